"""Modules of torch whose sizes depend on data: traced, compiled and exported with sizes left free.

These are the post-processing steps of detectors and text recognizers. The oracle is onnxruntime.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sardonyx as sx
from sardonyx.engines.onnxruntime import Runner
from sardonyx.model import Model
from tests.networks import network

torch = pytest.importorskip("torch")


def integers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


COUNT = """top = ReduceMax <keepdims = 0> (x)  n = Cast <to = 7> (top)  k = Unsqueeze (n, zero)"""
VECTOR, MATRIX = "m (float[N] x) => (float[K] y)", "m (float[N,4] x) => (float[K,4] y)"
BODY = "b (int64 i, bool go, float[3] s) => (bool on, float[3] t, float[3] row)"
CASES = {
    "NonZero": f"{VECTOR} {{ i = NonZero (x)  j = Squeeze (i, zero)  y = Gather (x, j) }}",
    "Compress": f"""{MATRIX} {{ s = ReduceSum <keepdims = 0> (x, one)  b = Greater (s, half)
        y = Compress <axis = 0> (x, b) }}""",
    "NonMaxSuppression": """m (float[1,N,4] x, float[1,C,N] scores) => (float[K,4] y) {
        i = NonMaxSuppression (x, scores, five, half1)  j = Gather <axis = 1> (i, two)
        b = Squeeze (x, zero)  y = Gather (b, j) }""",
    "Range": f"{VECTOR} {{ {COUNT}  r = Range (none, n, step)  f = Cast <to = 1> (r)"
    "  y = Mul (f, top) }",
    "Slice": f"{MATRIX} {{ {COUNT}  a = Slice (x, one, k, zero)  y = Relu (a) }}",
    "Expand": f"m (float[N] x) => (float[K,N] y) {{ {COUNT}  s = Concat <axis = 0> (k, one)"
    "  e = Expand (x, s)  y = Mul (e, e) }",
    "ConstantOfShape": f"{VECTOR} {{ {COUNT}  e = ConstantOfShape (k)  y = Add (e, top) }}",
    "Reshape": f"m (float[N,4] x) => (float[K,L] y) {{ {COUNT}  s = Concat <axis = 0> (k, minus)"
    "  y = Reshape (x, s) }",
    "Tile": f"{VECTOR} {{ {COUNT}  y = Tile (x, k) }}",
    "TopK": f"m (float[N] x) => (float[K] y, int64[K] i) {{ {COUNT}  y, i = TopK (x, k) }}",
    "a loop that may not begin": f"""m (float[N] x) => (float[K,3] y) {{ {COUNT}
        some = Greater (n, none)  last, y = Loop (n, some, ones) <body = {BODY} {{
            on = Identity (go)  t = Add (s, s)  row = Mul (t, t) }}> }}""",
    "a loop that ends itself": f"""m (float[N] x) => (float[K,3] y) {{ {COUNT}
        last, y = Loop (n, yes, ones) <body = {BODY} {{
            t = Add (s, s)  row = Mul (t, t)  m = ReduceMax <keepdims = 0> (t)
            on = Less (m, seven) }}> }}""",
}
VALUES = {
    "zero": integers(0),
    "one": integers(1),
    "minus": integers(-1),
    "five": integers(5),
    "two": np.int64(2),
    "none": np.int64(0),
    "step": np.int64(1),
    "half": np.float32(0.5),
    "half1": np.array([0.5], np.float32),
    "seven": np.float32(7),
    "ones": np.ones(3, np.float32),
    "yes": np.array(True),
}


def model_of(name: str) -> Model:
    words = CASES[name].replace(",", " ").replace(")", " ").replace("(", " ").split()
    return network(CASES[name], {n: v for n, v in VALUES.items() if n in words})


def feeds_of(model: Model, count: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(count)
    feeds = {}
    for value in model.inputs:
        sizes = {"N": count, "C": 2}
        shape = [d if isinstance(d, int) else sizes[str(d)] for d in value.shape or ()]
        x = rng.normal(size=shape).astype(np.float32)
        x.flat[0] = count // 2 + 0.5  # the largest: what `COUNT` makes of it divides the matrix
        if shape[-1] == 4 and shape[0] == 1:
            x[..., 2:] = x[..., :2] + 1
        feeds[value.name or ""] = x
    return feeds


def check(function: Any, model: Model) -> None:
    for count in (6, 8):
        feeds = feeds_of(model, count)
        with torch.no_grad():
            outputs = function(*map(torch.from_numpy, feeds.values()))
        outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        for value, expected in zip(outputs, Runner(model)(feeds).values(), strict=True):
            np.testing.assert_allclose(value.numpy(), expected, rtol=1e-5, atol=1e-6)


def exported(module: Any, model: Model) -> Any:
    tensors = tuple(map(torch.from_numpy, feeds_of(model, 6).values()))
    sizes = tuple(
        {i: torch.export.Dim.AUTO for i, d in enumerate(v.shape or ()) if not isinstance(d, int)}
        for v in model.inputs
    )
    return torch.export.export(module, tensors, dynamic_shapes=sizes).module()


@pytest.mark.parametrize("name", CASES)
def test_traced_and_exported(name: str) -> None:
    model = model_of(name)
    module = sx.to_torch(model)
    assert module.untraced == ""
    check(module, model)
    check(exported(module, model), model)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", CASES)
def test_compiled(name: str, backend: str) -> None:
    model = model_of(name)
    torch._dynamo.reset()
    check(torch.compile(sx.to_torch(model), backend=backend, dynamic=True), model)


def test_a_shape_that_data_decides_may_say_that_the_size_stays() -> None:
    model = network("m (float[N,4] x, int64[2] s) => (float[K,L] y) { y = Reshape (x, s) }", {})
    module = sx.to_torch(model)
    x = np.arange(24, dtype=np.float32).reshape(6, 4)
    for shape in ([0, -1], [-1, 0], [3, 8], [0, 0], [-1, 2]):
        feeds = {"x": x, "s": integers(*shape)}
        (expected,) = Runner(model)(feeds).values()
        np.testing.assert_array_equal(module(*map(torch.from_numpy, feeds.values())), expected)


def test_export_of_a_layer_that_runs_node_by_node() -> None:
    """torch's exporter traces the program itself then, and knows only torch's own operators."""
    text = """m (float[T,2,3] x) => (float[T,1,2,5] y) {
        rows = SplitToSequence <axis = 0, keepdims = 0> (x)
        joined = ConcatFromSequence <axis = 0, new_axis = 1> (rows)
        y, h, c = LSTM <hidden_size = 5> (joined, w, r) }"""
    rng = np.random.default_rng(0)
    model = network(text, {"w": rng.normal(size=(1, 20, 3)), "r": rng.normal(size=(1, 20, 5))})
    module = sx.to_torch(model)
    assert module.untraced, "the number of rows is free"
    x = rng.normal(size=(4, 2, 3)).astype(np.float32)
    program = torch.export.export(module, (torch.from_numpy(x),)).module()
    (expected,) = Runner(model)({"x": x}).values()
    np.testing.assert_allclose(
        program(torch.from_numpy(x)).detach(), expected, rtol=1e-4, atol=1e-5
    )
