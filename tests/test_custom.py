"""Custom operators by their bodies: values, gradients and engines follow, and are compared."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import numpy as np
import onnx
import pytest

import sardonyx as sx
from sardonyx.errors import ArgumentError, EngineError
from sardonyx.grad import GRADIENT_RULES
from sardonyx.lower.driver import KERNELS

DOMAIN = "com.acme"
SMOOTH = """<domain: "com.acme", opset_import: ["": 22]>
    Smooth <sharp: float = 2.0> (x) => (y) {
        k = Constant<value_float: float = @sharp>() z = Mul(x, k) s = Sigmoid(z) y = Mul(x, s)
    }"""
MODEL = """<ir_version: 10, opset_import: ["": 22, "com.acme": 1]>
    g (float[N] x) => (float[N] y) {h = Neg(x) y = com.acme.Smooth<sharp = 3.0>(h)}"""


@pytest.fixture(autouse=True)
def smooth() -> Iterator[None]:
    sx.define(SMOOTH)
    yield
    sx.undefine(DOMAIN, "Smooth")


def wanted(x: np.ndarray) -> np.ndarray:
    return -x / (1 + np.exp(3 * x))


@pytest.mark.parametrize("name", ("numpy", "torch", "jax", "tensorflow", "onnxruntime"))
def test_every_engine(name: str) -> None:
    pytest.importorskip(name)
    backend = importlib.import_module(f"sardonyx.engines.{name}").Backend
    x = np.array([-1, 0, 0.5], np.float32)
    (result,) = backend.prepare(sx.normalize(sx.load(onnx.parser.parse_model(MODEL)))).run([x])
    np.testing.assert_allclose(result, wanted(x), rtol=1e-5, atol=1e-7)


def test_gradient() -> None:
    model = sx.grad(sx.load(onnx.parser.parse_model(MODEL)), outputs=False)
    x, step = np.array([-1, 0.25, 0.5]), 1e-6
    result = sx.to_numpy(model, float64=True)(x)
    difference = (wanted(x + step) - wanted(x - step)) / (2 * step)
    np.testing.assert_allclose(result, difference, rtol=1e-7)


def case() -> sx.testing.Case:
    return sx.testing.case("Smooth", (2, 3), domain=DOMAIN)


def test_check_passes() -> None:
    sx.check_operator(case())


def test_check_finds_a_wrong_lowering() -> None:
    try:
        sx.lowering("Smooth", domain=DOMAIN, only="numpy")(lambda xp, x, **given: xp.sin(x))
        with pytest.raises(EngineError, match=r'its rule on numpy *"y0"'):
            sx.check_operator(case())
    finally:
        KERNELS["numpy"].remove("Smooth", DOMAIN)


def test_check_finds_a_wrong_gradient() -> None:
    try:
        sx.gradient_rule("Smooth", domain=DOMAIN)(lambda op, g, x, **given: g)
        with pytest.raises(EngineError, match=r'its own gradient *"grad/x0"'):
            sx.check_operator(case())
    finally:
        GRADIENT_RULES.remove("Smooth", DOMAIN)


def test_mistakes() -> None:
    with pytest.raises(ArgumentError, match="defined already"):
        sx.define(SMOOTH)
    with pytest.raises(ArgumentError, match="needs a domain"):
        sx.define('<domain: "", opset_import: ["": 22]> F (x) => (y) {y = Neg(x)}')
    with pytest.raises(ArgumentError, match="has no body"):
        sx.check_operator(sx.testing.case("Rough", (2,), domain=DOMAIN))
