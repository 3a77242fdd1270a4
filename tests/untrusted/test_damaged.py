"""Damaged nodes: one clear error from every way in, never another library's exception."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import sardonyx as sx
from sardonyx.errors import SardonyxError

WAYS: dict[str, Callable[[sx.Model, Path], Any]] = {
    "normalize": lambda m, _: sx.normalize(m),
    "to_numpy": lambda m, _: sx.to_numpy(m),
    "to_torch_source": lambda m, path: sx.to_torch_source(m, path / "net"),
    "grad": lambda m, _: sx.grad(m),
}
UNKNOWN = {
    op: f"""<ir_version: 8, opset_import: ["": 17]> g (float[2,3] x) => (float[a,b] y)
    <int64[2] s = {{3,2}}> {{y = {op}}}"""
    for op in ("Reshape<wrong=3>(x, s)", "Relu<axis=1>(x)", "Softmax<axes=[1]>(x)")
}


@pytest.mark.parametrize("text", UNKNOWN)
@pytest.mark.parametrize("way", WAYS)
def test_an_unknown_attribute_is_named(way: str, text: str, tmp_path: Path) -> None:
    """onnxruntime and ONNX's checker refuse it as well."""
    proto = onnx.parser.parse_model(UNKNOWN[text])
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(proto)
    with pytest.raises(sx.errors.ModelError, match="attribute that the operator does not have"):
        WAYS[way](sx.load(proto), tmp_path)


def test_source_of_a_convolution_over_a_constant(tmp_path: Path) -> None:
    import torch

    text = """<ir_version: 8, opset_import: ["": 17]> g (float[1,1,2,2] x) => (float[1,1,2,2] y)
    <float[1,1,2,2] k = {1,2,3,4}, float[1,1,1,1] w = {2}> {c = Conv(k, w) y = Add(c, x)}"""
    sx.to_torch_source(sx.load(onnx.parser.parse_model(text)), tmp_path / "net")
    space: dict[str, Any] = {"__file__": str(tmp_path / "net" / "model.py"), "__name__": "net"}
    exec((tmp_path / "net" / "model.py").read_text(), space)
    out = space["load"]()(torch.ones(1, 1, 2, 2)).detach().numpy()
    np.testing.assert_allclose(out.ravel(), [3, 5, 7, 9])


def test_weights_without_numbers_and_bodies_without_a_graph(tmp_path: Path) -> None:
    """Nothing but an error of ours, in every command that reads on."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y)
    <float[2] w = {1, 2}> { y = Add(x, w) }"""
    sound, empty, hollow = (onnx.parser.parse_model(text) for _ in range(3))
    empty.graph.initializer[0].ClearField("float_data")
    empty.graph.initializer[0].ClearField("raw_data")
    attribute = hollow.graph.node[0].attribute.add()
    attribute.name, attribute.type = "body", onnx.AttributeProto.GRAPH
    for damaged in (empty, hollow):
        for work in (
            lambda m: str(sx.diff(sound, m)),
            lambda m: sx.save(sx.load(m), tmp_path / "saved.onnx"),
            lambda m: sx.trainable(m, "mse"),
            sx.dequantize,
        ):
            with contextlib.suppress(SardonyxError):
                work(damaged)


def test_adapters_and_source_of_numbers_that_are_none(tmp_path: Path) -> None:
    groups = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
    g (float[1,1,4,4] x) => (float[a,b,c,d] y) <float[1,1,1,1] w = {1}>
    {y = Conv <group = 0> (x, w)}""")
    with pytest.raises(SardonyxError):
        sx.lora(groups)
    scales = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
    g (float[1,1,4,4] x) => (float[a,b,c,d] y) <float[4] s = {1, 1, 1, 1}>
    {y = Resize (x, , s)}""")
    numbers = np.array([1, 1, np.nan, -2], np.float32)
    scales.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(numbers, "s"))
    with pytest.raises(SardonyxError):
        sx.to_matlab_source(scales, tmp_path / "net")
