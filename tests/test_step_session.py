"""How onnxruntime runs a step: in place, in order, folded, with values computed again.

What is arranged must not change a number: plans are held against the step as onnxruntime arranges
it by itself, which has a buffer of its own for every update, and against numpy and torch.
"""

from __future__ import annotations

import errno
import gc
import json
import signal
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx_ir as ir
import pytest
from onnx.parser import parse_graph, parse_model

import sardonyx as sx
from sardonyx.engines.onnxruntime import TrainingRep, prepare_training, step_session
from sardonyx.engines.onnxruntime.fold import fold_batches
from sardonyx.engines.onnxruntime.in_place import ELEMENTWISE, LARGE, VIEWS
from sardonyx.engines.onnxruntime.session import open_session
from sardonyx.errors import SardonyxError

from .networks import mlp

torch = pytest.importorskip("torch")

WIDTH, LAYERS, ROWS = 160, 6, 96
ALONE = {"execution_order": step_session.ort.ExecutionOrder.DEFAULT}  # onnxruntime decides: no plan


@pytest.fixture
def arranged_models(monkeypatch: pytest.MonkeyPatch) -> list[onnx.ModelProto]:
    """The models that arranged sessions hand to onnxruntime."""
    seen: list[onnx.ModelProto] = []

    def spied(data: bytes, **settings: Any) -> Any:
        seen.append(onnx.load_from_string(data))
        return open_session(data, **settings)

    monkeypatch.setattr(step_session, "open_session", spied)
    return seen


def chain(layers: int = LAYERS) -> onnx.ModelProto:
    """Layers of a product and a tanh, all of one width."""
    rng = np.random.default_rng(0)
    text = ["h0 = Identity(x)"]
    for i in range(layers):
        text += [f"z{i} = MatMul(h{i}, w{i})", f"a{i} = Tanh(z{i})", f"h{i + 1} = Add(a{i}, h{i})"]
    model = parse_model(
        f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[N,{WIDTH}] x) => (float[N,{WIDTH}] y) {{
        {chr(10).join(text)}
        y = Identity(h{layers})
        }}"""
    )
    for i in range(layers):
        w = (rng.normal(size=(WIDTH, WIDTH)) / 13).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(w, f"w{i}"))
    return model


def batch() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        "x": rng.normal(size=(ROWS, WIDTH)).astype(np.float32),
        "label": rng.integers(0, WIDTH, ROWS),
    }


def trainable(optimizer: Any = None) -> Any:
    return sx.trainable(chain(), "cross_entropy", optimizer or sx.optim.adamw(1e-3))


def run(rep: TrainingRep, steps: int = 4) -> tuple[list[float], dict[str, np.ndarray]]:
    losses = [float(rep.step(batch())["loss"]) for _ in range(steps)]
    return losses, rep.state()


def assert_same(first: Any, second: Any) -> None:
    assert first[0] == second[0]
    assert first[1].keys() == second[1].keys()
    for name, value in first[1].items():
        np.testing.assert_array_equal(value, second[1][name], err_msg=name)


# -- in place ---------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [sx.optim.adamw(1e-2), sx.optim.sgd(0.1, 0.9)])
def test_in_place_is_the_same_to_the_bit(optimizer: Any) -> None:
    net = trainable(optimizer)
    # compiled kernels, which ALONE has not, round a tangent otherwise
    rep = prepare_training(net, threads=2, without=["kernels"])
    alone = prepare_training(net, threads=2, options=ALONE)
    assert rep.steps[0].session.in_place, "large variables have one buffer"
    assert not alone.steps[0].session.in_place
    assert_same(run(rep), run(alone))
    for name in rep.steps[0].session.in_place:
        assert len(rep.variables[name].buffers) == 1, name


def test_parameters_and_slots_are_written_in_place() -> None:
    rep = prepare_training(trainable())
    large = {n for n, v in rep.variables.items() if np.prod(v.shape) >= LARGE}
    assert {"w0", "w5"} < large
    assert len(large) == 3 * LAYERS
    assert rep.steps[0].session.in_place == large


def test_every_reader_comes_before_the_writer_by_data(
    arranged_models: list[onnx.ModelProto],
) -> None:
    """On the graph that onnxruntime is given, and told not to change."""
    rep = prepare_training(trainable())
    (model,) = arranged_models
    nodes = list(model.graph.node)
    makers = {o: i for i, n in enumerate(nodes) for o in n.output}
    updates = rep.steps[0].graph.updates
    for name in rep.steps[0].session.in_place:
        writer = makers[updates[name]]
        needed = set(ancestors(writer, nodes, makers))
        for reader in readers(name, nodes):
            assert reader == writer or reader in needed, (name, nodes[reader].name)
        assert nodes[writer].op_type in (*ELEMENTWISE, "Fused")


def ancestors(node: int, nodes: list[onnx.NodeProto], makers: dict[str, int]) -> Iterator[int]:
    seen, waiting = {node}, [node]
    while waiting:
        for name in nodes[waiting.pop()].input:
            if name in makers and makers[name] not in seen:
                seen.add(makers[name])
                waiting.append(makers[name])
                yield makers[name]


def readers(name: str, nodes: list[onnx.NodeProto]) -> Iterator[int]:
    for i, node in enumerate(nodes):
        if name in node.input:
            yield i
            if node.op_type in VIEWS:
                yield from readers(node.output[0], nodes)


def record(model: onnx.ModelProto, algorithm: str, **state: np.ndarray) -> onnx.ModelProto:
    graph = parse_graph(algorithm)
    for name, value in state.items():
        graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    bindings = [(n, f"{n}_new") for n in state]
    model.training_info.append(onnx.helper.make_training_info(graph, bindings, None, None))
    return model


def served() -> onnx.ModelProto:
    return parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[N,200] x) => (float[N,200] y) { y = Identity(x) }"""
    )


def squares(*seeds: int) -> list[np.ndarray]:
    return [
        (np.random.default_rng(s).normal(size=(200, 200)) / 14).astype(np.float32) for s in seeds
    ]


def test_a_reader_that_nothing_orders_sees_the_old_value() -> None:
    w, v, c = squares(0, 1, 2)
    algorithm = """t () => (float[200,200] w_new, float[200,200] v_new, float[200,200] c_new) {
        w_new = Sub(w, c)
        t = Transpose(w)
        a = MatMul(t, w)
        v_new = Add(v, a)
        c_new = Mul(c, c)
    }"""
    rep = prepare_training(record(served(), algorithm, w=w, v=v, c=c), threads=2)
    assert {"w", "c"} <= rep.steps[0].session.in_place
    w64, v64, c64 = (a.astype(np.float64) for a in (w, v, c))
    for _ in range(5):
        rep.step({})
        w64, v64, c64 = w64 - c64, v64 + w64.T @ w64, c64 * c64
        for name, expected in (("w", w64), ("v", v64), ("c", c64)):
            np.testing.assert_allclose(rep.state()[name], expected, rtol=1e-4, atol=1e-4)


def test_a_reader_through_a_view_sees_the_old_value() -> None:
    w, v = squares(0, 1)
    algorithm = """t () => (float[200,200] w_new, float[200,200] v_new) {
        shape = Constant<value_ints = [40000]>()
        back = Constant<value_ints = [200, 200]>()
        one = Constant<value_float = 1.0>()
        flat = Reshape(w, shape)
        w_new = Add(w, one)
        e = Exp(flat)
        b = Reshape(e, back)
        v_new = Add(v, b)
    }"""
    rep = prepare_training(record(served(), algorithm, w=w, v=v))
    rep.step({})
    np.testing.assert_allclose(rep.state()["v"], v + np.exp(w), rtol=1e-5)
    np.testing.assert_allclose(rep.state()["w"], w + 1, rtol=1e-6)


def test_variables_that_change_places_keep_two_buffers() -> None:
    a, b = squares(0, 1)
    algorithm = """t () => (float[200,200] a_new, float[200,200] b_new) {
        two = Constant<value_float = 2.0>()
        a_new = Mul(b, two)
        b_new = Mul(a, two)
    }"""
    rep = prepare_training(record(served(), algorithm, a=a, b=b))
    rep.step({})
    np.testing.assert_array_equal(rep.state()["a"], 2 * b)
    np.testing.assert_array_equal(rep.state()["b"], 2 * a)
    rep.step({})
    np.testing.assert_array_equal(rep.state()["a"], 4 * a)


def test_a_reader_of_the_new_value_is_no_reader_of_the_old() -> None:
    a, b = squares(0, 1)
    algorithm = """t () => (float[200,200] a_new, float[200,200] b_new) {
        two = Constant<value_float = 2.0>()
        a_new = Mul(a, two)
        s = Sub(a_new, a)
        b_new = Add(b, s)
    }"""
    rep = prepare_training(record(served(), algorithm, a=a, b=b))
    rep.step({})
    np.testing.assert_array_equal(rep.state()["a"], 2 * a)
    np.testing.assert_allclose(rep.state()["b"], b + a, rtol=1e-6)


def test_a_figure_may_depend_on_the_new_value() -> None:
    (a,) = squares(0)
    algorithm = """t () => (float[200,200] a_new, float after, float before) {
        two = Constant<value_float = 2.0>()
        before = ReduceMax<keepdims = 0>(a)
        a_new = Mul(a, two)
        after = ReduceMax<keepdims = 0>(a_new)
    }"""
    rep = prepare_training(record(served(), algorithm, a=a))
    assert rep.steps[0].session.in_place == {"a"}
    result = rep.step({})
    assert (result["before"], result["after"]) == (a.max(), 2 * a.max())
    rep.load_state({"a": np.full_like(a, np.inf)})
    assert rep.step({})["after"] == np.inf


# -- a step that goes wrong --------------------------------------------------------------


def test_a_loss_that_is_not_finite_can_be_looked_at() -> None:
    net = trainable(sx.optim.sgd(0.1))
    rep = prepare_training(net)
    rep.step(batch())
    before = rep.state()
    broken = batch()
    broken["x"][0, 0] = np.inf
    assert not np.isfinite(rep.step(broken)["loss"])
    kept = rep.steps[0].before()
    for name, value in before.items():
        np.testing.assert_array_equal(kept[name], value, err_msg=name)
    assert "h0" in str(rep.first_not_finite(broken))
    alone = prepare_training(net, options=ALONE)
    alone.step(batch())
    alone.step(broken)
    for name, value in alone.state().items():
        np.testing.assert_array_equal(rep.state()[name], value, err_msg=name)


def test_training_goes_on_after_a_figure_that_is_not_finite() -> None:
    net = trainable(sx.optim.sgd(0.1))
    rep, alone = prepare_training(net), prepare_training(net, options=ALONE)
    for each in (rep, alone):
        before = each.state()
        broken = batch()
        broken["x"][0, 0] = np.nan
        each.step(broken)
        each.load_state(before)
    assert_same(run(rep), run(alone))


# -- order -------------------------------------------------------------------------------


def test_onnxruntime_runs_the_list_as_it_stands(
    arranged_models: list[onnx.ModelProto], tmp_path: Path
) -> None:
    options = {"enable_profiling": True, "profile_file_prefix": str(tmp_path / "profile")}
    rep = prepare_training(trainable(), options=options)
    rep.step(batch())
    events = json.loads(Path(rep.steps[0].session.session.end_profiling()).read_text())
    ran = [e["name"].removesuffix("_kernel_time") for e in events if e.get("cat") == "Node"]
    first = list(dict.fromkeys(ran))
    shapes = {
        n.name for n in arranged_models[0].graph.node if n.op_type == "Shape"
    }  # these go first
    expected = [n.name for n in arranged_models[0].graph.node if n.name and n.name not in shapes]
    assert [n for n in first if n in set(expected)] == expected


# -- folding -----------------------------------------------------------------------------

CONVOLUTIONS = [
    # (N, C, O, height, width, kernel, stride, padding, dilation)
    (5, 48, 56, 4, 4, 3, 1, 1, 1),
    (5, 64, 48, 7, 8, 3, 2, 1, 1),
    (3, 64, 64, 6, 5, 3, 1, 0, 2),
    (4, 160, 128, 4, 4, 1, 2, 0, 1),
]


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_folded_convolutions_are_those_of_torch(case: tuple[int, ...]) -> None:
    n, c, o, height, width, kernel, stride, padding, dilation = case
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(n, c, height, width)), rng.normal(size=(o, c, kernel, kernel)) / 8
    how = {"stride": stride, "padding": padding, "dilation": dilation}
    y = torch.nn.functional.conv2d(torch.tensor(x), torch.tensor(w), **how)
    g = rng.normal(size=y.shape)
    dx = torch.nn.grad.conv2d_input(x.shape, torch.tensor(w), torch.tensor(g), **how)
    reach = dilation * (kernel - 1) + 1
    extra = [
        size - ((count - 1) * stride - 2 * padding + reach)
        for size, count in zip(x.shape[2:], y.shape[2:], strict=True)
    ]
    attributes = (
        f"strides = [{stride}, {stride}], pads = [{padding}, {padding}, {padding}, {padding}], "
        f"dilations = [{dilation}, {dilation}]"
    )
    model = parse_model(
        f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[N,{c},{height},{width}] x, float[{o},{c},{kernel},{kernel}] w,
           float[N,{o},{y.shape[2]},{y.shape[3]}] g)
          => (float[N,{o},{y.shape[2]},{y.shape[3]}] y, float[N,{c},{height},{width}] dx) {{
        y = Conv<{attributes}>(x, w)
        dx = ConvTranspose<{attributes}, output_padding = [{extra[0]}, {extra[1]}]>(g, w)
        }}"""
    )
    folded = ir.serde.deserialize_model(model)
    fold_batches(folded.graph)
    assert [len(v.shape or ()) for v in conv_inputs(folded.graph)] == [5, 5], "both are folded"
    data = ir.serde.serialize_model(folded).SerializeToString()
    feeds = {"x": x, "w": w, "g": g}
    result = open_session(data).run(None, {k: a.astype(np.float32) for k, a in feeds.items()})
    for ours, theirs in zip(result, (y, dx), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4 * float(theirs.abs().max()))


def conv_inputs(graph: ir.Graph) -> list[ir.Value]:
    result = []
    for node in graph:
        if node.op_type in ("Conv", "ConvTranspose"):
            kernel = node.inputs[1]
            assert kernel is not None
            maker = kernel.producer()
            assert maker is not None and maker.op_type == "Unsqueeze"
            value = ir.Value(shape=ir.Shape([1] * (len(maker.inputs[0].shape) + 1)))  # type: ignore[union-attr,arg-type]
            result.append(value)
    return result


# -- recomputation -----------------------------------------------------------------------


def test_recomputation_is_the_same_to_the_bit_and_keeps_less(
    arranged_models: list[onnx.ModelProto],
) -> None:
    net = trainable()
    plain, again = (
        prepare_training(net, threads=1),
        prepare_training(net, threads=1, recompute=True),
    )
    assert_same(run(plain), run(again))
    less, more = live_at_the_loss(arranged_models[1]), live_at_the_loss(arranged_models[0])
    assert more >= {f"h{i}" for i in range(1, LAYERS)}, more
    assert len(less) <= len(more) / 2, less


def live_at_the_loss(model: onnx.ModelProto) -> set[str]:
    """The products and activations that are read after the loss is known."""
    nodes = list(model.graph.node)
    at = next(i for i, n in enumerate(nodes) if "loss" in n.output)
    made = {o: n.op_type for n in nodes[: at + 1] for o in n.output}
    after = {name for node in nodes[at + 1 :] for name in node.input}
    kinds = ("MatMul", "FusedMatMul", "Gemm", "Tanh", "Add", "Fused")
    return {n for n in after if made.get(n) in kinds}


def test_recomputation_with_batch_normalization_and_dropout() -> None:
    """Statistics are written once, masks are drawn alike."""
    module = torch.nn.Sequential(
        torch.nn.Conv2d(4, 24, 3, padding=1), torch.nn.BatchNorm2d(24), torch.nn.ReLU(),
        torch.nn.Conv2d(24, 24, 3, padding=1), torch.nn.BatchNorm2d(24), torch.nn.ReLU(),
        torch.nn.Dropout(0.3),
        torch.nn.Conv2d(24, 24, 3, padding=1), torch.nn.BatchNorm2d(24), torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(24, 5),
    )  # fmt: skip
    x = torch.randn(16, 4, 16, 16, generator=torch.Generator().manual_seed(0))
    program = torch.onnx.export(module.eval(), (x,), dynamo=True, optimize=False, verbose=False)
    assert program is not None
    net = sx.trainable(program.model_proto, "cross_entropy", sx.optim.sgd(0.05, 0.9))
    feeds = {net.inputs[0].name: x.numpy(), "label": np.arange(16) % 5}
    result = []
    for settings in ({}, {"recompute": True}):
        rep = prepare_training(net, threads=1, **settings)
        losses = [float(rep.step(feeds)["loss"]) for _ in range(4)]
        result.append((losses, rep.state()))
    assert_same(*result)


def test_the_loop_recomputes_where_asked() -> None:
    data = batch()
    settings: dict[str, Any] = {"steps": 2, "batch_size": ROWS, "every_minutes": None}
    net = trainable()
    plain = sx.train(net, data, **settings)
    again = sx.train(net, data, recompute=True, **settings)
    assert again.rep.recompute and not plain.rep.recompute
    for name, value in plain.rep.state().items():
        np.testing.assert_array_equal(again.rep.state()[name], value, err_msg=name)
    with pytest.raises(sx.errors.ArgumentError, match="does not recompute"):
        sx.train(net, data, engine="numpy", recompute=True, **settings)


# -- what onnxruntime leaves behind ------------------------------------------------------


def test_the_loss_is_taken_along_the_last_axis_and_copied_nowhere(
    arranged_models: list[onnx.ModelProto],
) -> None:
    """A softmax over another axis than the last copies, and so does an Identity."""
    prepare_training(trainable())
    nodes = list(arranged_models[0].graph.node)
    kept = {o.name for o in arranged_models[0].graph.output}
    made = {o: n for n in nodes for o in n.output}
    (softmax,) = [n for n in nodes if n.op_type == "LogSoftmax"]
    assert made[softmax.input[0]].op_type != "Reshape"
    assert [n.name for n in nodes if n.op_type == "Identity" and n.output[0] not in kept] == []


def test_scores_with_places_keep_their_axes() -> None:
    """A softmax over channels of an image is none along the last axis: it stays as it was."""
    model = parse_model(
        """<ir_version: 10, opset_import: ["": 21]>
        g (float[N,6,5,4] x) => (float[N,6,5,4] y) { y = Mul(x, w) }"""
    )
    rng = np.random.default_rng(0)
    w = rng.normal(size=(6, 5, 4)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    rep = prepare_training(sx.trainable(model, "cross_entropy", sx.optim.sgd(0.1)))
    x = rng.normal(size=(3, 6, 5, 4)).astype(np.float32)
    label = rng.integers(0, 6, (3, 5, 4))
    result = rep.step({"x": x, "label": label})["loss"]
    weight = torch.tensor(w, dtype=torch.float64, requires_grad=True)
    loss = torch.nn.functional.cross_entropy(torch.tensor(x).double() * weight, torch.tensor(label))
    loss.backward()
    np.testing.assert_allclose(result, loss.item(), rtol=1e-6)
    np.testing.assert_allclose(rep.state()["w"], w - 0.1 * weight.grad.numpy(), rtol=1e-5)  # type: ignore[union-attr]


def test_a_session_holds_no_large_constant_of_one_value(
    arranged_models: list[onnx.ModelProto],
) -> None:
    """The gradient of an embedding starts from zeros as large as the table."""
    model = parse_model(
        """<ir_version: 10, opset_import: ["": 21]>
        g (int64[N] x) => (float[N,64] y) { y = Gather(table, x) }"""
    )
    table = np.random.default_rng(0).normal(size=(2000, 64)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(table, "table"))
    rep = prepare_training(sx.trainable(model, "cross_entropy", sx.optim.sgd(1.0)))
    assert max(len(t.raw_data) for t in arranged_models[0].graph.initializer) < 1000
    gc.collect()
    tensors = [o for o in gc.get_objects() if type(o) is ir.Tensor and o.shape == table.shape]
    assert all(t.numpy().any() for t in tensors)  # nor is one left in the graph's history
    rows, label = np.array([3, 1999, 3, 7]), np.array([0, 63, 5, 9])
    rep.step({"x": rows, "label": label})
    weight = torch.tensor(table, dtype=torch.float64, requires_grad=True)
    torch.nn.functional.cross_entropy(weight[rows], torch.tensor(label)).backward()
    expected = table - weight.grad.numpy()  # type: ignore[union-attr]
    np.testing.assert_allclose(rep.state()["table"], expected, rtol=1e-5, atol=1e-7)


def test_the_kernel_of_a_folded_convolution_is_written_in_place() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(16, 48, 3, padding=1), torch.nn.ReLU(),
        torch.nn.Conv2d(48, 48, 3, padding=1), torch.nn.Flatten(), torch.nn.Linear(768, 5),
    )  # fmt: skip
    x = torch.randn(6, 16, 4, 4)
    program = torch.onnx.export(module.eval(), (x,), dynamo=True, optimize=False, verbose=False)
    assert program is not None
    net = sx.trainable(program.model_proto, "cross_entropy", sx.optim.sgd(0.1, 0.9))
    feeds: dict[str, Any] = {net.inputs[0].name or "": x.numpy(), "label": np.arange(6) % 5}
    rep, alone = prepare_training(net, threads=1), prepare_training(net, threads=1, options=ALONE)
    assert "2.weight" in rep.steps[0].session.in_place
    for _ in range(3):
        np.testing.assert_allclose(rep.step(feeds)["loss"], alone.step(feeds)["loss"], rtol=1e-5)
    for name, value in alone.state().items():
        np.testing.assert_allclose(rep.state()[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


# -- memory ------------------------------------------------------------------------------


def test_what_was_loaded_waits_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With recomputation the first weights and slots are not held: a restart still finds them."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    rep = prepare_training(trainable(), recompute=True)
    first = {t.name: onnx.numpy_helper.to_array(t) for t in chain().graph.initializer}
    slots = [n for n, v in rep.state().items() if n not in first and v.size >= LARGE]
    kept = sum(rep.state()[n].nbytes for n in (*first, *slots))
    (file,) = tmp_path.iterdir()
    assert slots and file.stat().st_size == kept
    run(rep, 2)
    assert all(rep.state()[n].any() for n in slots)
    assert not np.array_equal(rep.state()["w0"], first["w0"])
    rep.initialize()
    for name, value in first.items():
        np.testing.assert_array_equal(rep.state()[name], value, err_msg=name)
    assert not any(rep.state()[n].any() for n in slots)
    trained = sx.load(rep.to_model().proto())
    assert np.array_equal(trained.graph.initializers["w3"].const_value.numpy(), first["w3"])  # type: ignore[union-attr]
    del rep
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_slots_as_they_were_made_are_let_go() -> None:
    net = trainable()
    tensors = net.records[0].state.values()
    starts = [weakref.ref(t.numpy()) for t in tensors if t.size >= LARGE]
    assert starts and all(start() is not None for start in starts)
    rep = prepare_training(net, recompute=True)
    del net, tensors
    gc.collect()
    assert not [start for start in starts if start() is not None]
    run(rep, 1)


def test_zeros_keep_their_sign() -> None:
    (w,) = squares(0)
    algorithm = """t () => (float[200,200] w_new) { w_new = Div(one, w) }"""
    model = record(served(), algorithm, w=np.full_like(w, -0.0))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(1, np.float32), "one"))
    rep = prepare_training(model)
    rep.step({})
    assert (rep.state()["w"] == -np.inf).all()


def no_room(**_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_temporary_folder_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("INVALID_PROTOBUF : Protobuf serialization failed.")

    monkeypatch.setattr(step_session, "session", fails)
    net = sx.trainable(mlp(), loss="cross_entropy")
    with pytest.raises(RuntimeError, match="PROTOBUF"):
        prepare_training(net, threads=1)
    monkeypatch.setattr(tempfile, "TemporaryFile", no_room)
    with pytest.raises(SardonyxError, match=r"cannot write into .*: no space left on device"):
        prepare_training(net, threads=1)


def test_a_limit_on_sizes_of_files_is_named() -> None:
    """onnxruntime itself speaks of a protobuf that cannot be serialized."""
    resource = pytest.importorskip("resource")
    net = sx.trainable(mlp(), loss="cross_entropy")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, limits[1]))
    try:
        with pytest.raises(SardonyxError, match=r"cannot write into .*: file too large"):
            prepare_training(net, threads=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
