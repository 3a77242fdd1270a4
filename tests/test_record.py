"""Training records that others wrote: they train, and every defect is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.parser import parse_graph

import sardonyx as sx
from sardonyx.engines.onnxruntime import prepare_training
from sardonyx.errors import ArgumentError, EngineError, RecordError, SardonyxError
from sardonyx.record import info

from .networks import mlp
from .records import (
    BATCH,
    W,
    X,
    Y,
    gradient,
    info_of,
    made,
    node,
    start_reads_w,
    swap,
    unscanned,
)


def test_record_made_by_hand_trains() -> None:
    rep = prepare_training(made(), threads=1)
    w = W.astype(np.float64)
    for _ in range(10):
        loss = rep.step(BATCH)["loss"]
        np.testing.assert_allclose(loss, np.mean((X @ w - Y) ** 2), rtol=1e-5)
        w = w - 0.1 * gradient(w)
    np.testing.assert_allclose(rep.state()["w"], w, rtol=1e-5)
    np.testing.assert_allclose(rep.run({"x": X})["y"], X @ w, rtol=1e-4)


# -- the checker, one defect at a time -----------------------------------------------------


def bind(model: onnx.ModelProto, key: str, value: str, initial: bool = False) -> None:
    field = info_of(model).initialization_binding if initial else info_of(model).update_binding
    field.add(key=key, value=value)


def text(algorithm: str) -> Callable[[onnx.ModelProto], None]:
    return lambda m: info_of(m).algorithm.CopyFrom(parse_graph(algorithm))


def output_type(m: onnx.ModelProto, dims: list[int], kind: int = 1) -> None:
    outputs = info_of(m).algorithm.output
    outputs[1].CopyFrom(helper.make_tensor_value_info("w_new", kind, dims))


def start_of_shape(m: onnx.ModelProto) -> None:
    graph = "start () => (float[3] w0) { w0 = RandomNormal<shape = [3]>() }"
    info_of(m).initialization.CopyFrom(parse_graph(graph))
    bind(m, "w", "w0", initial=True)


def start_with_input(m: onnx.ModelProto) -> None:
    graph = "start (float[2,1] z) => (float[2,1] w0) { w0 = Neg(z) }"
    info_of(m).initialization.CopyFrom(parse_graph(graph))


def sparse_key(m: onnx.ModelProto) -> None:
    values = helper.make_tensor("v", 1, [1], [1.0])
    indices = helper.make_tensor("v_i", 7, [1], [0])
    info_of(m).algorithm.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2]))
    bind(m, "v", "w_new")


DEFECTS: dict[str, tuple[Callable[[onnx.ModelProto], object], str]] = {
    "a swapped pair": (swap, "key and value are swapped"),
    "a state bound twice": (lambda m: bind(m, "w", "loss"), "is assigned 2 times"),
    "a key that nobody has": (lambda m: bind(m, "nowhere", "loss"), '"nowhere".*is no init'),
    "a key that is a computed tensor": (lambda m: bind(m, "d", "loss"), '"d".*is no initializer'),
    "a value that is no output": (lambda m: bind(m, "rate", "nowhere"), '"nowhere".*is no output'),
    "a value that is an inner tensor": (lambda m: bind(m, "rate", "u"), '"u".*is no output'),
    "a sparse initializer as key": (sparse_key, '"v".*is no initializer'),
    "a start that is no output": (lambda m: bind(m, "w", "w0", True), '"w0".*is no output'),
    "an initialization with inputs": (start_with_input, "has no inputs"),
    "an initialization that reads a weight": (start_reads_w, "is an initializer of another graph"),
    "a start of another shape": (start_of_shape, r"\[2, 1\] ← \[3\]"),
    "an update of another shape": (lambda m: output_type(m, [1, 2]), r"\[2, 1\] ← \[1, 2\]"),
    "an update of another rank": (lambda m: output_type(m, [2]), r"\[2, 1\] ← \[2\]"),
    "an update of another type": (lambda m: output_type(m, [2, 1], 11), "FLOAT ← DOUBLE"),
    "IR 6": (lambda m: setattr(m, "ir_version", 6), "training records need 7"),
    "Gradient of an unknown tensor": (
        lambda m: node(m, "grad").attribute[1].CopyFrom(helper.make_attribute("y", "nothing")),
        '"nothing".*is not in the graph',
    ),
    "Gradient with respect to an unknown tensor": (
        lambda m: node(m, "grad").attribute[0].CopyFrom(helper.make_attribute("xs", ["v"])),
        '"v".*is not in the graph',
    ),
    "Gradient with too many inputs": (
        lambda m: node(m, "grad").input.append("x"),
        "2 inputs.*for 1 names",
    ),
    "Gradient with too many outputs": (
        lambda m: node(m, "grad").output.append("h"),
        "2 outputs.*for 1 names",
    ),
    "a tensor made twice": (
        text("t (float[N,1] label) => (float loss) { y = Neg(label) loss = ReduceMean(y) }"),
        '"y".*is defined 2 times',
    ),
    "an input of the graph again": (
        text("t (float[N,2] x) => (float loss) { loss = ReduceMean<keepdims=0>(x) }"),
        '"x".*is defined 2 times',
    ),
    "an initializer of the graph again": (
        text("t () => (float[2,1] w_new) <float[2,1] w = {1, 1}> { w_new = Neg(w) }"),
        '"w".*is defined 2 times',
    ),
    "a tensor that nobody makes": (
        text("t () => (float[2,1] w_new) { w_new = Mul(w, nothing) }"),
        '"nothing".*is not computed anywhere',
    ),
    "two nodes of one name": (
        text("t () => (float[2,1] w_new) { [n] v = Neg(w) [n] w_new = Neg(v) }"),
        '"n".*is the name of 2 nodes',
    ),
    "the wrong order": (
        text("t () => (float[2,1] w_new) { w_new = Neg(later) later = Neg(w) }"),
        '"later".*is read before it is computed',
    ),
    "an unknown operator": (
        text("t () => (float[2,1] w_new) { w_new = Negate(w) }"),
        "Negate",
    ),
    "an operator without a required attribute": (
        text("t () => (float[2,1] w_new) { w_new = Cast(w) }"),
        "Cast|to",
    ),
}  # fmt: skip


@pytest.mark.parametrize("defect", DEFECTS)
def test_defect_is_named(defect: str) -> None:
    break_it, message = DEFECTS[defect]
    model = made()
    info.check(unscanned(model))
    break_it(model)
    with pytest.raises(RecordError, match=f"(?s){message}"):
        info.check(unscanned(model))


def test_defects_are_reported_together() -> None:
    model = made()
    bind(model, "nowhere", "loss")
    bind(model, "rate", "missing")
    start_with_input(model)
    with pytest.raises(RecordError, match="breaks 3 rules") as caught:
        info.check(sx.load(model))
    assert len(caught.value.where) == 3


def test_graph_that_reads_the_algorithm_is_refused() -> None:
    model = made()
    model.graph.node[0].input[0] = "d"
    with pytest.raises(SardonyxError, match='"d"'):
        prepare_training(model)


def test_decision_11_a_shape_that_shows_only_in_the_first_step() -> None:
    algorithm = """t (float[A,B] any) => (float[P,Q] w_new) { w_new = Neg(any) }"""
    rep = prepare_training(made(algorithm), threads=1)
    with pytest.raises(EngineError, match="shape"):
        rep.step({"any": np.ones((3, 3), np.float32)})
    rep.step({"any": np.ones((2, 1), np.float32)})
    assert (rep.state()["w"] == -1).all()


def test_no_record_is_a_clear_error() -> None:
    with pytest.raises(ArgumentError, match="no training record"):
        prepare_training(mlp())


def test_the_shape_of_a_weight_is_that_of_its_numbers() -> None:
    """A file may return a weight, and declare another shape for it there."""
    proto = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 20]>
        g (float[N,3] x) => (float[N,2] y, float[N,2] w) <float[3,2] w = {1, 2, 3, 4, 5, 6}>
        { y = MatMul(x, w) }"""
    )
    net = sx.trainable(proto, "mse", "adam", prediction="y")
    state = {v.name: v.const_value.shape for v in net.graph.initializers.values() if "w" in v.name}
    assert state["w"] == (3, 2)


def test_a_prediction_of_unknown_type_is_refused() -> None:
    """A damaged file returns a weight, and declares no type for it."""
    proto = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 20]>
        g (float[N,3] x) => (float[N,2] y) <float[3,2] w = {1, 2, 3, 4, 5, 6}>
        { y = MatMul(x, w) }"""
    )
    proto.graph.output.add().name = "s"
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(2, np.float32), "s"))
    with pytest.raises(SardonyxError, match='"s"'):
        sx.trainable(proto, "mse", prediction="s")


def test_a_model_may_have_the_names_of_a_record(tmp_path: Path) -> None:
    """Tensors called as what a record adds: the record gets other names, and the same numbers."""
    text = """<ir_version: 8, opset_import: ["": 17]>
    net (float[N,4] learning_rate) => (float[N,3] loss) <float[3,4] weight_decay> {
        momentum = Identity(learning_rate)
        loss = Gemm<transB = 1>(momentum, weight_decay)
    }"""
    renamed = text
    for own, other in {"learning_rate": "x", "loss": "y", "weight_decay": "w"}.items():
        renamed = renamed.replace(own, other)
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(3, 4)).astype(np.float32)
    x, label = rng.normal(size=(20, 4)).astype(np.float32), np.arange(20) % 3
    losses, files = [], []
    for source, name, stored in ((text, "learning_rate", "weight_decay"), (renamed, "x", "w")):
        model = onnx.parser.parse_model(source)
        del model.graph.initializer[:]
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, stored))
        net = sx.trainable(model, "cross_entropy", sx.optim.adamw(0.1), clip_norm=1.0)
        path = sx.save(net, tmp_path / f"{name}.onnx")
        sx.check(path)
        data = {name: x, "label": label}
        how = {"epochs": 2, "batch_size": 8, "shuffle": "hash", "validation": 0.2}
        run = sx.train(path, data, patience=3, **how)
        again = sx.train(path, data, lr=0.01, **how)
        losses.append([*run.losses, *again.losses, *sx.evaluate(run.model, data).values()])
        whole = sx.export_training(path, tmp_path / "whole.onnx", validation=0.2, patience=3)
        files.append(list(sx.run_training(whole, data, epochs=2, batch_size=8).losses))
    assert losses[0] == losses[1]
    assert files[0] == files[1] == losses[0][: len(files[0])]
