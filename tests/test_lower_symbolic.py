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
CHANNELS = 8

# Attention as exporters write it: sizes are read from tensors, joined, and given to Reshape.
HEADER = """
    <ir_version: 10, opset_import: ["": 18]>
    g (float[%(batch)s,%(time)s,8] x0) => (float[%(batch)s,%(time)s,8] x%(blocks)s)
    <int64[1] heads = {2}, int64[1] each = {4}, int64[1] all = {8}, int64 zero = {0},
     int64 one = {1}, int64[1] first = {0}>
"""
BLOCK = """
    sizes_I = Shape(xI)
    n0_I = Gather<axis=0>(sizes_I, zero)
    t0_I = Gather<axis=0>(sizes_I, one)
    n_I = Unsqueeze(n0_I, first)
    t_I = Unsqueeze(t0_I, first)
    split_I = Concat<axis=0>(n_I, t_I, heads, each)
    joined_I = Concat<axis=0>(n_I, t_I, all)
    p_I = MatMul(xI, w)
    biased_I = Add(p_I, b)
    parts_I = Reshape(biased_I, split_I)
    q_I = Transpose<perm=[0,2,1,3]>(parts_I)
    k_I = Transpose<perm=[0,2,3,1]>(parts_I)
    scores_I = MatMul(q_I, k_I)
    weights_I = Softmax<axis=-1>(scores_I)
    mixed_I = MatMul(weights_I, q_I)
    back_I = Transpose<perm=[0,2,1,3]>(mixed_I)
    out_I = Reshape(back_I, joined_I)
    sum_I = Add(xI, out_I)
    xJ = Relu(sum_I)
"""


def model(batch: int | str, time: int | str, blocks: int = 1) -> Model:
    text = HEADER % {"batch": batch, "time": time, "blocks": blocks} + "{"
    for i in range(blocks):
        text += BLOCK.replace("xI", f"x{i}").replace("xJ", f"x{i + 1}").replace("_I", f"_{i}")
    proto = onnx.parser.parse_model(text + "}")
    rng = np.random.default_rng(0)
    for name, shape in (("w", (CHANNELS, CHANNELS)), ("b", (CHANNELS,))):
        array = rng.normal(size=shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return load(proto)


def data(batch: int, time: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(batch, time, CHANNELS)).astype(np.float32)


def arrays_of(name: str) -> Any:
    return importlib.import_module(f"sardonyx.engines.{name}.xp").arrays()


def program(name: str, source: Model) -> Callable[[Any], Any]:
    made = Program(source, arrays_of(name))
    return lambda x: made({"x0": x})[0]


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
            return self.program({"x0": x})[0]

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


def in_tensorflow_module(
    source: Model, free: tuple[int, ...]
) -> tuple[int, Callable[[np.ndarray], np.ndarray]]:
    """The graph that users get: weights are variables, which are read, not numbers inside of it."""
    tf = pytest.importorskip("tensorflow")
    import sardonyx as sx

    function = sx.to_tensorflow(source).serve.get_concrete_function()
    return len(function.graph.get_operations()), lambda x: function(tf.constant(x)).numpy()


CONVERT = {
    "torch": in_torch,
    "jax": in_jax,
    "tensorflow": in_tensorflow,
    "tensorflow module": in_tensorflow_module,
}


def check(
    name: str, sizes: tuple[int | str, int | str], free: tuple[int, ...], blocks: int
) -> None:
    """As many nodes as with known sizes, but for a tenth; the same values at every size."""
    known, _ = CONVERT[name](model(3, 5, blocks), ())
    count, run = CONVERT[name](model(*sizes, blocks), free)
    exact = Runner(model(*sizes, blocks), float64=True)
    for batch, time in ((3, 5), (4, 7 if 1 in free else 5), (2, 9 if 1 in free else 5)):
        x = data(batch, time)
        expected = exact({"x0": x})[f"x{blocks}"]
        np.testing.assert_allclose(run(x), expected, rtol=1e-4, atol=1e-4)
    assert count <= RATIO * known, (count, known)


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("name", CONVERT)
def test_one_free_size_costs_nothing(name: str, blocks: int) -> None:
    check(name, ("N", 5), (0,), blocks)


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("name", CONVERT)
def test_two_free_sizes_cost_nothing(name: str, blocks: int) -> None:
    check(name, ("N", "T"), (0, 1), blocks)


def test_a_slice_leaves_a_free_axis_alone() -> None:
    jax = pytest.importorskip("jax")
    from jax import export

    text = """
        <ir_version: 10, opset_import: ["": 18]>
        g (float[N,9] x) => (float[N,2] y)
        <int64[1] begin = {-8}, int64[1] end = {99}, int64[1] axis = {1}, int64[1] step = {2}>
        { part = Slice(x, begin, end, axis, step)
          a, b = Split<axis=1, num_outputs=2>(part)
          y = Sub(a, b) }
    """
    model = Program(load(onnx.parser.parse_model(text)), arrays_of("jax"))
    (n,) = export.symbolic_shape("n")
    spec = jax.ShapeDtypeStruct((n, 9), np.float32)
    traced = jax.make_jaxpr(lambda x: model({"x": x})[0])(spec)
    assert [e.primitive.name for e in traced.eqns] == ["slice", "split", "sub"]
    x = np.arange(27, dtype=np.float32).reshape(3, 9)
    expected = x[:, 1:5:2] - x[:, 5::2]
    np.testing.assert_array_equal(np.asarray(model({"x": jax.numpy.asarray(x)})[0]), expected)


# What a graph is at one size, it may not be at another.
DEPENDS_ON_SIZE = {
    "frames": """
        <ir_version: 10, opset_import: ["": 18]>
        g (float[batch,time] x) => (float[batch,frames,9,2] y)
        <int64[4] pads = {0, 8, 0, 8}, int64 step = {5}, int64 length = {16}, int64[1] last = {2}>
        { wide = Pad(x, pads)
          signal = Unsqueeze(wide, last)
          y = STFT<onesided=1>(signal, step, , length) }
    """,
    "at most thirty": """
        <ir_version: 10, opset_import: ["": 18]>
        g (float[batch,time] x) => (float[batch,kept] y)
        <int64[1] begin = {0}, int64[1] end = {30}, int64[1] axis = {1}>
        { y = Slice(x, begin, end, axis) }
    """,
    "from thirty on": """
        <ir_version: 10, opset_import: ["": 18]>
        g (float[batch,time] x) => (float[batch,kept] y)
        <int64[1] begin = {-30}, int64[1] end = {99999}, int64[1] axis = {1}>
        { part = Slice(x, begin, end, axis)
          y = Relu(part) }
    """,
}


@pytest.mark.parametrize("name", DEPENDS_ON_SIZE)
def test_a_module_is_right_at_sizes_of_another_kind(name: str) -> None:
    torch = pytest.importorskip("torch")
    from onnxruntime import InferenceSession

    import sardonyx as sx

    proto = onnx.parser.parse_model(DEPENDS_ON_SIZE[name])
    session = InferenceSession(proto.SerializeToString())
    module = sx.to_torch(load(proto))
    for batch, time in ((1, 1), (2, 3), (3, 29), (1, 31), (4, 100), (2, 3000)):
        x = np.random.default_rng(time).standard_normal((batch, time)).astype(np.float32)
        np.testing.assert_allclose(
            module(torch.from_numpy(x)).numpy(), session.run(None, {"x": x})[0], atol=1e-5
        )


@pytest.mark.parametrize("op", ["ReduceSum", "Squeeze", "Unsqueeze"])
def test_axes_that_a_graph_cannot_take_from_data_are_named(op: str) -> None:
    tf = pytest.importorskip("tensorflow")
    import sardonyx as sx
    from sardonyx.lower.program import DependsOnData

    source = load(
        onnx.parser.parse_model(
            f"""<ir_version: 10, opset_import: ["": 18]>
            g (float[2,1,4] x, int64[1] axes) => (float y)
            {{ a = {op}(x, axes)
               y = ReduceSum<keepdims=0>(a) }}"""
        )
    )
    module = sx.to_tensorflow(source)
    function = tf.function(lambda *values: module(*values), autograph=False)
    with pytest.raises(DependsOnData, match=op):
        function(tf.ones((2, 1, 4)), tf.constant([1], tf.int64))
