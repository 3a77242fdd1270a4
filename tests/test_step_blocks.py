"""Updates of large variables block by block: the same numbers to the bit, written in place.

What is held against is the step without this rewrite, which computes whole tensors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import pytest
from onnx.parser import parse_graph, parse_model

import sardonyx as sx
from sardonyx.engines.onnxruntime import TrainingRep, blocks, prepare_training, step_session
from sardonyx.engines.onnxruntime.session import open_session
from sardonyx.errors import ArgumentError

WIDTH, ROWS = 96, 24


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of a few thousand elements are large, blocks have about a thousand."""
    for name, value in (("LARGE", 1 << 12), ("PER_THREAD", 1 << 10), ("SMALLEST", 1 << 10)):
        monkeypatch.setattr(blocks, name, value)
    # where kernels are compiled, they compute the updates
    monkeypatch.setattr(step_session, "find_compiler", lambda: None)


def network(last: int = WIDTH) -> onnx.ModelProto:
    """A convolution, whose gradient is transposed, and two products."""
    rng = np.random.default_rng(0)
    model = parse_model(
        f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[N,16,4,4] x) => (float[N,{last}] y) {{
        c = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x, k)
        r = Relu(c)
        m = GlobalAveragePool(r)
        f = Flatten(m)
        a = MatMul(f, w)
        t = Tanh(a)
        s = MatMul(t, v)
        y = Add(s, b)
        }}"""
    )
    shapes = {"k": (64, 16, 3, 3), "w": (64, WIDTH), "v": (WIDTH, last), "b": (last,)}
    for name, shape in shapes.items():
        array = (rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def batch(seed: int = 1) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(ROWS, 16, 4, 4)).astype(np.float32)
    return {"x": x, "label": rng.integers(0, WIDTH, ROWS)}


def run(rep: TrainingRep, steps: int = 5) -> tuple[list[float], dict[str, np.ndarray]]:
    return [float(rep.step(batch(i))["loss"]) for i in range(steps)], rep.state()


def assert_same(first: Any, second: Any) -> None:
    assert first[0] == second[0]
    for name, value in first[1].items():
        np.testing.assert_array_equal(value, second[1][name], err_msg=name)


COSINE = sx.schedule.cosine(10)
SETTINGS: dict[str, dict[str, Any]] = {
    "adamw": {"optimizer": sx.optim.adamw(1e-2)},
    "adam with decay": {"optimizer": sx.optim.adam(1e-2, weight_decay=0.1)},
    "amsgrad, cosine": {"optimizer": sx.optim.adam(1e-2, amsgrad=True, schedule=COSINE)},
    "adamw, clip, ema": {"optimizer": sx.optim.adamw(1e-2), "clip_norm": 0.1, "ema": 0.9},
    "adamw, accumulate, clip": {
        "optimizer": sx.optim.adamw(1e-2), "accumulate": 2, "clip_value": 0.01,
    },
    "adamw, accumulate, ema": {"optimizer": sx.optim.adamw(1e-2), "accumulate": 3, "ema": 0.9},
    "groups, l2": {
        "optimizer": sx.optim.adamw(1e-2), "groups": {"w": {"lr": 1e-3}}, "l2": 0.1,
    },
    "groups, cosine": {
        "optimizer": sx.optim.adamw(1e-2, schedule=COSINE), "groups": {"v": {"weight_decay": 0.0}},
    },
    "frozen": {"optimizer": sx.optim.adamw(1e-2), "freeze": ["w"]},
    "momentum, ema": {"optimizer": sx.optim.sgd(0.1, 0.9, weight_decay=0.1), "ema": 0.9},
    **{n: {"optimizer": n} for n in ("nadam", "radam", "adamax", "adadelta", "rmsprop", "rprop")},
    **{n: {"optimizer": n} for n in ("adagrad", "lion", "lamb", "adafactor", "asgd")},
}  # fmt: skip
REWRITTEN = ("adamw", "groups", "frozen", "momentum", "nadam", "amsgrad", "adam with")


@pytest.mark.parametrize("how", SETTINGS)
def test_numbers_are_the_same_to_the_bit(how: str) -> None:
    net = sx.trainable(network(), "cross_entropy", **SETTINGS[how])
    rep, whole = prepare_training(net), prepare_training(net, without=["blocks"])
    if how.startswith(REWRITTEN):
        assert rep.steps[0].session.blocks
    assert not whole.steps[0].session.blocks
    assert rep.steps[0].session.in_place == whole.steps[0].session.in_place
    assert_same(run(rep), run(whole))


def test_parameters_and_slots_have_one_buffer_and_no_whole_tensor_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[onnx.ModelProto] = []

    def spied(data: bytes, **settings: Any) -> Any:
        seen.append(onnx.load_from_string(data))
        return open_session(data, **settings)

    monkeypatch.setattr(step_session, "open_session", spied)
    rep = prepare_training(sx.trainable(network(), "cross_entropy", sx.optim.adamw(1e-2)))
    run(rep)
    session = rep.steps[0].session
    assert session.blocks.keys() == {f"{n}{slot}" for n in "kwv" for slot in SLOTS}
    for name in session.blocks:
        # one buffer where a variable is large enough to be written in place
        assert len(rep.variables[name].buffers) == 2 - (name in session.in_place)
    scans = [n for n in seen[0].graph.node if blocks.NAME in n.name and n.op_type == "Scan"]
    assert len(scans) == 3
    bodies = [next(a.g for a in n.attribute if a.name == "body") for n in scans]
    assert sum(node.op_type == "Transpose" for body in bodies for node in body.node) == 1
    onnx.checker.check_model(seen[0])


SLOTS = ("", "/adam_m", "/adam_v")


def test_rows_that_nothing_divides_stay_whole() -> None:
    net = sx.trainable(network(last=6007), "cross_entropy", sx.optim.adamw(1e-2))  # a prime
    # with more threads, a block has room for all elements
    rep, whole = (prepare_training(net, threads=2, without=w) for w in ([], ["blocks"]))
    assert "w" in rep.steps[0].session.blocks
    assert "v" not in rep.steps[0].session.blocks
    assert_same(run(rep), run(whole))


def test_a_reader_in_the_body_sees_the_old_value() -> None:
    """The update of b reads what a was, after the new a is there: the data does not order them."""
    arrays = [np.random.default_rng(s).normal(size=(200, 200)).astype(np.float32) for s in (0, 1)]
    graph = parse_graph(
        """t () => (float[200,200] a_new, float[200,200] b_new) {
        two = Constant<value_float = 2.0>()
        c = Mul(a, two)
        d = Neg(c)
        e = Abs(d)
        a_new = Mul(e, two)
        s = Sub(a_new, a)
        b_new = Add(b, s)
        }"""
    )
    for name, array in zip("ab", arrays, strict=True):
        graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    model = parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[N,200] x) => (float[N,200] y) { y = Identity(x) }"""
    )
    bindings = [("a", "a_new"), ("b", "b_new")]
    model.training_info.append(onnx.helper.make_training_info(graph, bindings, None, None))
    rep = prepare_training(model)
    assert not rep.steps[0].session.blocks
    rep.step({})
    a, b = arrays
    np.testing.assert_array_equal(rep.state()["a"], np.abs(a * 2) * 2)
    np.testing.assert_array_equal(rep.state()["b"], b + (np.abs(a * 2) * 2 - a))


def test_a_loss_that_is_not_finite_leaves_the_state_before_it() -> None:
    net = sx.trainable(network(), "cross_entropy", sx.optim.adamw(1e-2))
    rep, whole = prepare_training(net), prepare_training(net, without=["blocks"])
    for each in (rep, whole):
        each.step(batch())
    before = rep.state()
    broken = batch()
    broken["x"][0, 0] = np.inf
    assert not np.isfinite(rep.step(broken)["loss"])
    whole.step(broken)
    for name, value in rep.steps[0].before().items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)
    for each in (rep, whole):
        each.load_state(before)
    assert_same(run(rep), run(whole))


@pytest.mark.parametrize("recompute", [False, True])
def test_a_run_that_is_resumed_ends_where_the_whole_one_does(recompute: bool) -> None:
    net = sx.trainable(network(), "cross_entropy", sx.optim.adamw(1e-2), ema=0.9)
    whole = prepare_training(net, recompute=recompute)
    first = prepare_training(net, recompute=recompute)
    losses, state = run(whole, 4)
    run(first, 2)
    second = prepare_training(first.to_model(), without=["blocks"])
    rest = [float(second.step(batch(i))["loss"]) for i in (2, 3)]
    assert_same((losses[2:], state), (rest, second.state()))


def test_the_loop_saves_and_goes_on(tmp_path: Path) -> None:
    batches = [batch(i) for i in range(4)]
    data = {name: np.concatenate([b[name] for b in batches]) for name in batches[0]}
    net = sx.trainable(network(), "cross_entropy", sx.optim.adamw(1e-2))
    sx.train(net, data, epochs=1, output=tmp_path / "a.onnx")
    sx.train(net, data, epochs=2, output=tmp_path / "a.onnx", resume=True)
    again = prepare_training(sx.load(tmp_path / "a.onnx"), without=["blocks"])
    rep = prepare_training(sx.load(tmp_path / "a.onnx"))
    assert_same(run(rep), run(again))


def test_a_rewrite_that_does_not_exist_is_refused() -> None:
    net = sx.trainable(network(), "cross_entropy")
    with pytest.raises(ArgumentError, match="no rewrite"):
        prepare_training(net, without=["block"])
