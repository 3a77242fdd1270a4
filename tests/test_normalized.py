"""A normalized model is a type of its own: never stale after an edit, never made twice."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import sardonyx as sx
from sardonyx.inspection import inspect
from sardonyx.normalize import NormalizedModel, normalize, regular_copy

TEXT = """<ir_version: 8, opset_import: ["": 17]> g (float[N,2] x) => (float[N,2] y)
<float[2,2] w = {1.0, -2.0, 3.0, 4.0}> {h = MatMul(x, w) y = Relu(h)}"""
X = np.array([[1.0, -1.0], [0.5, 2.0]], np.float32)


def model() -> sx.Model:
    return sx.load(onnx.parser.parse_model(TEXT))


def edit_node(m: sx.Model) -> None:
    """Relu becomes Tanh."""
    (node,) = (n for n in m.ir.graph if n.op_type == "Relu")
    node.op_type = "Tanh"


def edit_initializer(m: sx.Model) -> None:
    """Another weight, of another width."""
    array = np.array([[2.0, 0.5, 1.0], [1.0, 1.0, -3.0]], np.float32)
    value = m.ir.graph.initializers["w"]
    value.const_value, value.shape = ir.tensor(array, name="w"), ir.Shape(array.shape)
    m.ir.graph.outputs[0].shape = ir.Shape(["N", 3])


def edit_output(m: sx.Model) -> None:
    """The product instead of its activation."""
    (node,) = (n for n in m.ir.graph if n.op_type == "MatMul")
    value = node.outputs[0]
    value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(["N", 2])
    m.ir.graph.outputs[0] = value


EXPECTED: dict[Callable[[sx.Model], None], Any] = {
    edit_node: np.tanh(X @ np.array([[1.0, -2.0], [3.0, 4.0]], np.float32)),
    edit_initializer: np.maximum(X @ np.array([[2.0, 0.5, 1.0], [1.0, 1.0, -3.0]], np.float32), 0),
    edit_output: X @ np.array([[1.0, -2.0], [3.0, 4.0]], np.float32),
}


def _values(m: sx.Model, **more: Any) -> list[np.ndarray]:
    from sardonyx.engines.numpy import Runner

    return list(Runner(m)({"x": X, **more}).values())


def _stepped(m: sx.Model) -> list[np.ndarray]:
    from sardonyx.engines.numpy import prepare_training

    net = sx.trainable(m, loss="mse", optimizer=sx.optim.sgd(0.1))
    label = np.zeros((2, 3 if m.initializer("w").shape[1] == 3 else 2), np.float32)
    step = prepare_training(net)
    return [np.asarray(v) for v in step.step({"x": X, "label": label}).values()]


def _source(m: sx.Model, path: Path) -> list[str]:
    sx.to_torch_source(m, path / "net")
    texts = [f.read_text() for f in sorted(path.rglob("*.py"))]
    assert texts
    return texts


CALLS: dict[str, Callable[[sx.Model, Path], Any]] = {
    "to_numpy": lambda m, _: sx.to_numpy(m)(X),
    "to_torch": lambda m, _: sx.to_torch(m)(__import__("torch").tensor(X)).detach().numpy(),
    "to_jax": lambda m, _: (lambda f, p: np.asarray(f(p, X)))(*sx.to_jax(m)),
    "to_torch_source": lambda m, path: _source(m, path),
    "grad": lambda m, _: _values(sx.grad(m, wrt=["x", "w"])),
    "jvp": lambda m, _: _values(sx.jvp(m, wrt="x"), **{"tangent/x": X}),
    "weights": lambda m, _: [(w.name, w.kind, w.shape) for w in sx.weights(m)],
    "trainable": lambda m, _: _stepped(m),
    "verify": lambda m, _: sx.verify(m, "onnxruntime").verdict,
    "inspect": lambda m, _: inspect(m).as_dict(),
    "placement": lambda m, _: str(sx.placement(m, "jax")),
    "normalize": lambda m, _: sx.normalize(m).proto().SerializeToString(),
    "save": lambda m, path: onnx.load(sx.save(m, path / "m.onnx")).SerializeToString(),
    "diff": lambda m, _: str(sx.diff(model(), m)),
}


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, list) and a and isinstance(a[0], np.ndarray):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, np.ndarray):
        return a.shape == b.shape and bool(np.allclose(a, b, rtol=1e-6))
    return bool(a == b)


@pytest.mark.parametrize("edit", EXPECTED, ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", CALLS)
def test_no_call_returns_something_stale_after_an_edit(
    name: str, edit: Callable[[sx.Model], None], tmp_path: Path
) -> None:
    call = CALLS[name]
    edited = model()
    for sub in ("before", "after", "anew"):
        (tmp_path / sub).mkdir()
    before = call(edited, tmp_path / "before")
    edit(edited)
    after = call(edited, tmp_path / "after")
    anew = call(sx.load(edited.proto()), tmp_path / "anew")
    assert _same(after, anew)
    if name in ("to_numpy", "to_torch", "to_jax"):
        np.testing.assert_allclose(after, EXPECTED[edit], rtol=1e-6)
    elif name not in ("verify", "placement", "weights"):  # which need not change with every edit
        assert not _same(before, after)


def test_a_normalized_model_is_its_own_regular_form() -> None:
    normal = normalize(model())
    assert isinstance(normal, NormalizedModel) and normalize(normal) is normal
    assert not isinstance(normal.copy(), NormalizedModel)
    assert not isinstance(regular_copy(normal), NormalizedModel)


CONV = """<ir_version: 8, opset_import: ["": 17]> g (float[1,1,4,4] x) => (float[1,1,4,4] y)
<float[1,1,3,3] w = {1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0}>
{y = Conv<auto_pad = "SAME_UPPER">(x, w)}"""


def _edits() -> dict[str, Callable[[sx.Model], Any]]:
    def attribute(m: sx.Model) -> None:
        (node,) = m.ir.graph
        node.attributes.pop("pads")
        node.attributes.add(ir.AttrString("auto_pad", "SAME_UPPER"))

    def operator(m: sx.Model) -> None:
        (node,) = m.ir.graph
        node.op_type = "MaxPool"

    def shape(m: sx.Model) -> None:
        m.ir.graph.inputs[0].shape[0] = 5

    def tensor(m: sx.Model) -> None:
        m.ir.graph.initializers["w"].const_value = ir.tensor(np.zeros((1, 1, 3, 3), np.float32))

    def output(m: sx.Model) -> None:
        m.ir.graph.outputs.clear()

    def initializer(m: sx.Model) -> None:
        m.ir.graph.register_initializer(
            ir.Value(name="b", const_value=ir.tensor(np.zeros(1, np.float32), name="b"))
        )

    def imports(m: sx.Model) -> None:
        m.ir.opset_imports[""] = 17

    edits = (attribute, operator, shape, tensor, output, initializer, imports)
    return {edit.__name__: edit for edit in edits}


@pytest.mark.parametrize("name", _edits())
def test_an_edit_of_a_normalized_model_is_noticed(name: str) -> None:
    normal = normalize(sx.load(onnx.parser.parse_model(CONV)))
    _edits()[name](normal)
    assert not normal.is_unedited()


def test_an_edited_normalized_model_gets_its_regular_form_again() -> None:
    normal = normalize(sx.load(onnx.parser.parse_model(CONV)))
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    _edits()["attribute"](normal)
    padded = np.pad(x[0, 0], 1)
    expected = sum(padded[i : i + 4, j : j + 4] for i in range(3) for j in range(3))
    np.testing.assert_allclose(sx.to_numpy(normal)(x)[0, 0], expected)


def test_a_trainable_model_that_is_edited_trains_the_edited_graph() -> None:
    from sardonyx.engines.numpy import prepare_training

    net = sx.trainable(model(), loss="mse", optimizer=sx.optim.sgd(0.0))
    x, label = X, np.zeros((2, 2), np.float32)
    net.ir.graph.initializers["w"].const_value = ir.tensor(np.ones((2, 2), np.float32), name="w")
    loss = next(iter(prepare_training(net).step({"x": x, "label": label}).values()))
    expected = np.mean(np.maximum(x @ np.ones((2, 2)), 0) ** 2)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)


def test_a_model_is_normalized_once_on_its_way_to_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for `trainable`; once more for the record, which is joined to the graph in the step."""
    module = sys.modules["sardonyx.normalize"]
    sizes: list[int] = []
    run = module._normalize
    monkeypatch.setattr(module, "_normalize", lambda m: (sizes.append(len(m.graph)), run(m))[1])
    net = sx.trainable(model(), loss="mse", optimizer="adamw")
    assert len(sizes) == 1
    from sardonyx.engines.numpy import prepare_training

    prepare_training(net).step({"x": X, "label": np.zeros((2, 2), np.float32)})
    assert len(sizes) == 2
