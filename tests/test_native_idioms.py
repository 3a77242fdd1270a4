"""Idioms: what exporters take apart becomes one node again, and the numbers stay onnxruntime's."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import sardonyx as sx
from sardonyx.engines.native import native
from sardonyx.engines.onnxruntime import Runner
from tests.networks import network, transformer

torch = pytest.importorskip("torch")

ROOT = np.asarray(2**0.5)
TANH = "c = Pow (x, three)  d = Mul (c, small)  e = Add (x, d)  f = Mul (e, root)  t = Tanh (f)"
CASES = {
    "Gelu": ("d = Div (x, root)  e = Erf (d)  s = Add (e, one)  p = Mul (x, s)  y = Mul (p, half)",
             {"root": ROOT, "one": np.asarray(1.0), "half": np.asarray(0.5)}),
    "Gelu, another order": (
        "h = Mul (half, x)  d = Mul (x, root)  e = Erf (d)  s = Add (one, e)  y = Mul (s, h)",
        {"root": 1 / ROOT, "one": np.asarray(1.0), "half": np.asarray(0.5)}),
    "Gelu of tanh": (f"{TANH}  s = Add (t, one)  h = Mul (x, half)  y = Mul (h, s)",
                     {"three": np.asarray(3.0), "small": np.asarray(0.044715),
                      "one": np.asarray(1.0), "half": np.asarray(0.5),
                      "root": np.asarray((2 / np.pi) ** 0.5)}),
    "Swish": ("s = Sigmoid (x)  y = Mul (x, s)", {}),
    "LayerNormalization": (
        "m = ReduceMean <keepdims = 1> (x, last)  d = Sub (x, m)  q = Pow (d, two)"
        "  v = ReduceMean <keepdims = 1> (q, last)  e = Add (v, tiny)  r = Sqrt (e)"
        "  n = Div (d, r)  s = Mul (n, ln.weight)  y = Add (s, ln.bias)",
        {"last": np.asarray([1]), "two": np.asarray(2.0), "tiny": np.asarray(1e-5),
         "ln.weight": np.arange(4.0), "ln.bias": np.ones(4)}),
    "Linear": ("m = MatMul (x, fc.weight)  y = Add (fc.bias, m)",
               {"fc.weight": np.arange(16.0).reshape(4, 4), "fc.bias": np.arange(4.0)}),
}  # fmt: skip
# Not one of those, however near: the nodes stay.
NEAR = {
    "another factor": ("s = Sigmoid (x)  t = Mul (s, two)  y = Mul (x, t)",
                       {"two": np.asarray(2.0)}),
    "another tensor": ("s = Sigmoid (x)  r = Relu (x)  y = Mul (r, s)", {}),
    "a variance of another axis": (
        "m = ReduceMean <keepdims = 1> (x, last)  d = Sub (x, m)  q = Pow (d, two)"
        "  v = ReduceMean <keepdims = 1> (q, first)  e = Add (v, tiny)  r = Sqrt (e)"
        "  n = Div (d, r)  s = Mul (n, ln.weight)  y = Add (s, ln.bias)",
        {"last": np.asarray([1]), "first": np.asarray([0]), "two": np.asarray(2.0),
         "tiny": np.asarray(1e-5), "ln.weight": np.arange(4.0), "ln.bias": np.ones(4)}),
}  # fmt: skip


def made(body: str, weights: dict) -> sx.Model:
    return network(f"m (float[N,4] x) => (float[N,4] y) {{ {body} }}", weights)


def agrees(model: sx.Model, x: np.ndarray) -> None:
    (expected,) = Runner(model)({model.inputs[0].name: x}).values()
    result = sx.to_torch(model)(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_idioms_are_found_again(name: str) -> None:
    model = made(*CASES[name])
    assert [n.op_type for n in native(model).served.graph] == [name.split(" ")[0].strip(",")]
    agrees(model, np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32) * 2)


@pytest.mark.parametrize("name", NEAR)
def test_what_only_looks_like_one_stays(name: str) -> None:
    model = made(*NEAR[name])
    result = {n.op_type for n in native(model).served.graph}
    assert not result & {"Swish", "LayerNormalization", "Gelu"}
    agrees(model, np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32))


def test_attention_with_its_mask() -> None:
    model = transformer()
    counts = Counter(n.op_type for n in native(model).served.graph)
    assert counts["DotProductAttention"] == 1 and counts["Softmax"] == 0 and counts["MatMul"] == 0
    agrees(model, np.random.default_rng(0).integers(0, 11, (3, 5)))


def test_the_model_itself_stays_as_it_is() -> None:
    model = made(*CASES["Gelu"])
    before = [n.op_type for n in model.graph]
    sx.to_torch(model)
    assert [n.op_type for n in model.graph] == before
