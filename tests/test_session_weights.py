"""Sessions that read large weights where they lie: the same numbers as copies of them."""

from __future__ import annotations

import gc
import resource
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import sardonyx as sx
from sardonyx.engines.onnxruntime import session as sessions
from sardonyx.errors import EngineError

STATM = Path("/proc/self/statm")


def memory() -> int:
    """Bytes that this process holds."""
    return int(STATM.read_text().split()[1]) * resource.getpagesize()


def model_of(element: int, rows: int = 256) -> sx.Model:
    """y = x @ w + b, where only w is large."""
    rng = np.random.default_rng(0)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(element)
    w = (rng.standard_normal((rows, 128)) / 16).astype(dtype)
    b = rng.standard_normal(128).astype(dtype)
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w"], ["p"]),
        onnx.helper.make_node("Add", ["p", "b"], ["y"]),
    ]
    ends = [
        onnx.helper.make_tensor_value_info("x", element, ["n", rows]),
        onnx.helper.make_tensor_value_info("y", element, ["n", 128]),
    ]
    graph = onnx.helper.make_graph(
        nodes, "g", ends[:1], ends[1:],
        [onnx.numpy_helper.from_array(w, "w"), onnx.numpy_helper.from_array(b, "b")],
    )  # fmt: skip
    opsets = [onnx.helper.make_opsetid("", 18)]
    return sx.load(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9))


@pytest.mark.parametrize("element", [1, 10, 11])
def test_borrowed_weights_give_the_same_bits(element: int, monkeypatch: Any) -> None:
    model = model_of(element)
    plain = sessions.Runner(model)
    monkeypatch.setattr(sessions, "FILE_SIZE", 1 << 15)
    borrowing = sessions.Runner(model, borrow=True)
    assert len(borrowing.session.borrowed_weights) == 1
    weight = model.graph.initializers["w"].const_value
    assert weight is not None and weight.nbytes  # the model has its weights as before
    dtype = weight.numpy().dtype
    del model, weight
    gc.collect()
    x = np.random.default_rng(1).standard_normal((3, 256)).astype(dtype)
    np.testing.assert_array_equal(borrowing({"x": x})["y"], plain({"x": x})["y"])


def test_weights_that_are_not_plain_go_through_a_file(monkeypatch: Any) -> None:
    monkeypatch.setattr(sessions, "FILE_SIZE", 1 << 12)
    monkeypatch.setattr(sessions, "PLAIN", ())
    model = model_of(1)
    runner = sessions.Runner(model, borrow=True)
    assert not runner.session.borrowed_weights
    assert runner({"x": np.zeros((2, 256), np.float32)})["y"].shape == (2, 128)


def test_a_model_that_onnxruntime_refuses_keeps_its_weights(monkeypatch: Any) -> None:
    monkeypatch.setattr(sessions, "FILE_SIZE", 1 << 12)
    model = model_of(1)
    next(iter(model.graph)).domain = "nowhere"
    with pytest.raises(EngineError):
        sessions.session(model, borrow=True)
    weight = model.graph.initializers["w"].const_value
    assert weight is not None
    assert weight.numpy().shape == (256, 128)


@pytest.mark.skipif(not STATM.exists(), reason="the system does not say what a process holds")
def test_borrowed_weights_are_not_copied(monkeypatch: Any) -> None:
    monkeypatch.setattr(sessions, "FILE_SIZE", 1 << 12)
    model = model_of(1, rows=1 << 17)
    weight = model.graph.initializers["w"]
    assert weight.const_value is not None
    weight.const_value = ir.Tensor(weight.const_value.numpy().copy(), name="w")
    before = memory()
    runner = sessions.Runner(model, borrow=True)
    runner({"x": np.zeros((2, 1 << 17), np.float32)})
    assert memory() - before < (1 << 17) * 128 * 4 / 2
