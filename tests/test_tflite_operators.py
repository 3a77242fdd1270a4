"""Operators that TensorFlow Lite lacks, in files of `to_tflite`; the oracles: numpy and torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx as sx

pytest.importorskip("tensorflow")
torch = pytest.importorskip("torch")
interpreter = pytest.importorskip("ai_edge_litert.interpreter")

SMALL = np.array([0.0, 1e-6, 1e-3, 0.1, 0.5, 0.9, 0.999], np.float32)
WIDE = np.array([0.0, 1e-6, 1e-3, 0.3, 1.0, 2.5, 8.0, 3e4], np.float32)
NUMBERS = {
    "Tan": (np.tan, SMALL), "Asin": (np.arcsin, SMALL), "Acos": (np.arccos, SMALL),
    "Atanh": (np.arctanh, SMALL), "Atan": (np.arctan, WIDE), "Asinh": (np.arcsinh, 1e16 * WIDE),
    "Sinh": (np.sinh, WIDE[:-1]), "Cosh": (np.cosh, WIDE[:-1]),
}  # fmt: skip


def outputs_of(text: str, path: Path, **feeds: np.ndarray) -> list[np.ndarray]:
    """What LiteRT gives for the file of a model."""
    model = onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 21]> ' + text)
    sx.to_tflite(sx.load(model), path, seeds=1)
    runner: Any = interpreter.Interpreter(str(path)).get_signature_runner()
    return list(runner(**feeds).values())


@pytest.mark.parametrize("name", NUMBERS)
def test_functions_of_one_number(name: str, tmp_path: Path) -> None:
    function, positive = NUMBERS[name]
    x = np.concatenate([positive, -positive])
    text = f"g (float[{x.size}] x) => (float[{x.size}] y) {{ y = {name}(x) }}"
    (y,) = outputs_of(text, tmp_path / "m.tflite", x=x)
    np.testing.assert_allclose(y, function(x.astype(np.float64)), rtol=2e-6, atol=1e-12)


@pytest.mark.parametrize("step", [1, 2, 3, -1, -2])
def test_slices_to_the_end_of_an_odd_axis(step: int, tmp_path: Path) -> None:
    start, end = (1, 2**63 - 1) if step > 0 else (-1, -(2**63))
    x = np.arange(14, dtype=np.float32).reshape(2, 7)
    expected = x[:, 1::step] if step > 0 else x[:, ::step]
    text = f"""g (float[2,7] x) => (float[2,{expected.shape[1]}] y)
        <int64[1] a = {{{start}}}, int64[1] b = {{{end}}}, int64[1] c = {{1}},
         int64[1] d = {{{step}}}> {{ y = Slice(x, a, b, c, d) }}"""
    (y,) = outputs_of(text, tmp_path / "m.tflite", x=x)
    np.testing.assert_array_equal(y, expected)


def test_inputs_and_outputs_have_the_order_of_the_model(tmp_path: Path) -> None:
    names = ["b", "x_1", "a", "x_0", "c", "k"]
    inputs = ", ".join(f"float[2] {name}" for name in names)
    outputs = ", ".join(f"float[2] out_{name}" for name in names)
    nodes = "\n".join(f"out_{name} = Mul({name}, w{i})" for i, name in enumerate(names))
    factors = ", ".join(f"float[1] w{i} = {{{i + 2}}}" for i in range(len(names)))
    head = '<ir_version: 10, opset_import: ["": 21]>'
    text = f"{head} g ({inputs}) => ({outputs}) <{factors}> {{ {nodes} }}"
    path = tmp_path / "m.tflite"
    sx.to_tflite(sx.load(onnx.parser.parse_model(text)), path, seeds=1)
    runner = interpreter.Interpreter(str(path))
    runner.allocate_tensors()
    details = runner.get_input_details()
    for i, detail in enumerate(details):
        runner.set_tensor(detail["index"], np.full(2, 10.0**i, np.float32))
    runner.invoke()
    results = [runner.get_tensor(d["index"])[0] for d in runner.get_output_details()]
    np.testing.assert_allclose(results, [(i + 2) * 10.0**i for i in range(len(names))])


def test_asinh_of_small_numbers(tmp_path: Path) -> None:
    x = np.concatenate([WIDE, -WIDE])
    text = "g (float[16] x) => (float[16] y) { y = Asinh(x) }"
    (y,) = outputs_of(text, tmp_path / "m.tflite", x=x)
    np.testing.assert_allclose(y, np.arcsinh(x.astype(np.float64)), rtol=2e-6, atol=1e-12)


def test_acosh(tmp_path: Path) -> None:
    """The model's own argument is never below 1, so that it can be compared on any numbers."""
    text = """g (float[8] x) => (float[8] y)
        <float[1] one = {1}> { a = Abs(x) b = Add(a, one) y = Acosh(b) }"""
    (y,) = outputs_of(text, tmp_path / "m.tflite", x=WIDE)
    above = (WIDE + np.float32(1)).astype(np.float64)
    # LiteRT's logarithm of numbers next to 1 is exact to an ulp of 1, not of the result.
    np.testing.assert_allclose(y, np.arccosh(above), rtol=2e-6, atol=np.spacing(np.float32(1)))


@pytest.mark.parametrize("kind", ["float", "int32", "int64"])
def test_remainders_with_the_sign_of_the_dividend(kind: str, tmp_path: Path) -> None:
    dtype = {"float": np.float32}.get(kind, kind)
    x = np.array([7, -7, 8, -8, 3, -3, 0, 5]).astype(dtype)
    text = f"""g ({kind}[8] x) => ({kind}[8] y, {kind}[8] z)
        <{kind}[2] d = {{3, -3}}, int64[2] t = {{2, 4}}, int64[1] n = {{8}}>
        {{ u = Reshape(x, t) f = Abs(x) s = Constant<value = {kind}[1] {{3}}>()
           y = Mod <fmod = 1> (x, s) z = Sub(f, s) }}"""
    y, z = outputs_of(text, tmp_path / "m.tflite", x=x)
    np.testing.assert_array_equal(sorted(y), sorted(np.fmod(x, 3)))
    np.testing.assert_array_equal(sorted(z), sorted(np.abs(x) - 3))


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", ["max", "average"])
def test_pools_of_volumes(name: str, padded: bool, tmp_path: Path) -> None:
    size, step, pad = (
        ([2, 3, 2], [2, 1, 2], [1, 1, 0]) if padded else ([2, 2, 3], [2, 2, 3], [0] * 3)
    )
    x = torch.randn(1, 2, 6, 7, 9, generator=torch.Generator().manual_seed(0))
    functions = torch.nn.functional
    if name == "max":
        expected = functions.max_pool3d(x, size, step, pad)
    else:
        expected = functions.avg_pool3d(x, size, step, pad, count_include_pad=False)
    operator = {"max": "MaxPool", "average": "AveragePool"}[name]
    dims = ",".join(map(str, expected.shape))
    text = f"""g (float[1,2,6,7,9] x) => (float[{dims}] y)
        {{ y = {operator} <kernel_shape = {size}, strides = {step}, pads = {[*pad, *pad]}> (x) }}"""
    (y,) = outputs_of(text, tmp_path / "m.tflite", x=x.numpy())
    np.testing.assert_allclose(y, expected.numpy(), rtol=1e-5, atol=1e-6)
