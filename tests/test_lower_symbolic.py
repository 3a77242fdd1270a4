"""Sizes that are not known while building: converted once, right at every size, at no cost.

The number of nodes of a converted graph is compared with that of the same model with known sizes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import pytest

from sardonyx.engines.numpy import Runner
from sardonyx.lower.program import Program
from sardonyx.model import Model, load

RATIO = 1.1
CHANNELS, HEADS = 8, 2

# Attention as exporters write it: sizes are read from tensors, joined, and given to Reshape.
ATTENTION = """
    <ir_version: 10, opset_import: ["": 18]>
    g (float[%(batch)s,%(time)s,8] x) => (float[%(batch)s,%(time)s,8] y)
    <int64[1] heads = {2}, int64[1] each = {4}, int64[1] all = {8}, int64 zero = {0},
     int64 one = {1}, int64[1] first = {0}>
    {
        sizes = Shape(x)
        n0 = Gather<axis=0>(sizes, zero)
        t0 = Gather<axis=0>(sizes, one)
        n = Unsqueeze(n0, first)
        t = Unsqueeze(t0, first)
        split = Concat<axis=0>(n, t, heads, each)
        joined = Concat<axis=0>(n, t, all)
        p = MatMul(x, w)
        biased = Add(p, b)
        parts = Reshape(biased, split)
        q = Transpose<perm=[0,2,1,3]>(parts)
        k = Transpose<perm=[0,2,3,1]>(parts)
        scores = MatMul(q, k)
        weights = Softmax<axis=-1>(scores)
        mixed = MatMul(weights, q)
        back = Transpose<perm=[0,2,1,3]>(mixed)
        out = Reshape(back, joined)
        sum = Add(x, out)
        y = Relu(sum)
    }
"""


def model(batch: int | str, time: int | str) -> Model:
    proto = onnx.parser.parse_model(ATTENTION % {"batch": batch, "time": time})
    rng = np.random.default_rng(0)
    for name, shape in (("w", (CHANNELS, CHANNELS)), ("b", (CHANNELS,))):
        array = rng.normal(size=shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return load(proto)


def data(batch: int, time: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(batch, time, CHANNELS)).astype(np.float32)


def program(name: str, source: Model) -> Callable[[Any], Any]:
    arrays = importlib.import_module(f"sardonyx.engines.{name}.xp").arrays()
    made = Program(source, arrays)
    return lambda x: made({"x": x})[0]


def in_torch(
    source: Model, free: tuple[int, ...]
) -> tuple[int, Callable[[np.ndarray], np.ndarray]]:
    torch = pytest.importorskip("torch")
    from sardonyx.engines.torch.xp import arrays

    class Module(torch.nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.program = Program(source, arrays())

        def forward(self, x: Any) -> Any:
            return self.program({"x": x})[0]

    dims = {axis: torch.export.Dim(f"d{axis}", min=2) for axis in free}
    example = (torch.tensor(data(3, 5)),)
    exported = torch.export.export(Module(), example, dynamic_shapes=(dims or None,))
    module = exported.module()
    calls = [n for n in exported.graph.nodes if n.op == "call_function"]
    return len(calls), lambda x: module(torch.tensor(x)).numpy()


def in_jax(source: Model, free: tuple[int, ...]) -> tuple[int, Callable[[np.ndarray], np.ndarray]]:
    jax = pytest.importorskip("jax")
    from jax import export

    function = program("jax", source)
    names = ["n", "t"]
    symbols = export.symbolic_shape(", ".join(names))
    shape = [symbols[a] if a in free else d for a, d in enumerate((3, 5))]
    spec = jax.ShapeDtypeStruct((*shape, CHANNELS), np.float32)
    exported = export.export(jax.jit(function))(spec)
    equations = len(jax.make_jaxpr(function)(spec).eqns)
    return equations, lambda x: np.asarray(exported.call(x))


def in_tensorflow(
    source: Model, free: tuple[int, ...]
) -> tuple[int, Callable[[np.ndarray], np.ndarray]]:
    tf = pytest.importorskip("tensorflow")
    shape = [None if a in free else d for a, d in enumerate((3, 5))]
    spec = tf.TensorSpec((*shape, CHANNELS), tf.float32)
    function = tf.function(program("tensorflow", source), autograph=False).get_concrete_function(
        spec
    )
    return len(function.graph.get_operations()), lambda x: function(tf.constant(x)).numpy()


CONVERT = {"torch": in_torch, "jax": in_jax, "tensorflow": in_tensorflow}


@pytest.mark.parametrize("name", CONVERT)
def test_one_free_size_costs_nothing(name: str) -> None:
    known, _ = CONVERT[name](model(3, 5), ())
    count, run = CONVERT[name](model("N", 5), (0,))
    assert count <= RATIO * known
    for batch in (3, 4, 7):
        x = data(batch, 5)
        np.testing.assert_allclose(
            run(x), Runner(model("N", 5))({"x": x})["y"], rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("name", CONVERT)
def test_two_free_sizes_are_right_at_every_size(name: str) -> None:
    _, run = CONVERT[name](model("N", "T"), (0, 1))
    for batch, time in ((3, 5), (4, 7), (2, 9)):
        x = data(batch, time)
        np.testing.assert_allclose(
            run(x), Runner(model("N", "T"))({"x": x})["y"], rtol=1e-4, atol=1e-4
        )
