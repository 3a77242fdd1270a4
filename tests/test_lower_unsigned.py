"""uint64 beyond the range of int64, on every engine; numpy's own arithmetic is the oracle."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from sardonyx.model import load

HEADER = '<ir_version: 10, opset_import: ["": 22]>'
A = np.array([2**63 + 5, 3, 2**64 - 1, 2**63, 12], np.uint64)
B = np.array([7, 2**63 + 1, 2, 2**63, 5], np.uint64)
SHIFTS = np.array([0, 1, 3, 63, 2], np.uint64)

PAIRS: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.floor_divide,
    "Mod": np.remainder,
    "Max": np.maximum,
    "Min": np.minimum,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Equal": np.equal,
    "BitwiseXor": np.bitwise_xor,
}
REDUCTIONS: dict[str, Callable[..., Any]] = {
    "ReduceMax": np.max,
    "ReduceMin": np.min,
    "ReduceSum": np.sum,
    "ArgMax": np.argmax,
    "ArgMin": np.argmin,
}


def run(name: str, body: str, **feeds: np.ndarray) -> list[Any]:
    pytest.importorskip(name)
    model = load(onnx.parser.parse_model(f"{HEADER} {body}"))
    runner = importlib.import_module(f"sardonyx.engines.{name}").Runner(model)
    return list(runner(feeds).values())


@pytest.mark.parametrize("name", ("numpy", "torch", "jax", "tensorflow"))
class TestUnsigned:
    @pytest.mark.parametrize("op", PAIRS)
    def test_pairs(self, name: str, op: str) -> None:
        expected = PAIRS[op](A, B)
        kind = "bool" if expected.dtype == bool else "uint64"
        body = f"g (uint64[5] a, uint64[5] b) => ({kind}[5] y) {{y = {op}(a, b)}}"
        np.testing.assert_array_equal(run(name, body, a=A, b=B)[0], expected)

    @pytest.mark.parametrize("op", REDUCTIONS)
    def test_reductions(self, name: str, op: str) -> None:
        kind = "int64" if op.startswith("Arg") else "uint64"
        body = f"g (uint64[5] a) => ({kind}[1] y) {{y = {op}(a)}}"
        np.testing.assert_array_equal(run(name, body, a=A)[0], [REDUCTIONS[op](A)])

    def test_shifts(self, name: str) -> None:
        body = """g (uint64[5] a, uint64[5] b) => (uint64[5] l, uint64[5] r) {
            l = BitShift<direction = "LEFT">(a, b) r = BitShift<direction = "RIGHT">(a, b)}"""
        left, right = run(name, body, a=A, b=SHIFTS)
        np.testing.assert_array_equal(left, A << SHIFTS)
        np.testing.assert_array_equal(right, A >> SHIFTS)

    def test_order(self, name: str) -> None:
        body = """g (uint64[5] a) => (uint64[3] v, int64[3] i) <int64[1] k = {3}> {
            v, i = TopK(a, k)}"""
        values, places = run(name, body, a=A)
        np.testing.assert_array_equal(values, np.sort(A)[::-1][:3])
        np.testing.assert_array_equal(places, np.argsort(A)[::-1][:3])
