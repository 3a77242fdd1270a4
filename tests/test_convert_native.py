"""Kernels, names and gradients of converted models that are a framework's own."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.numpy_helper
import pytest
from onnxruntime import InferenceSession

import sardonyx as sx
from sardonyx.errors import EngineError
from tests.test_grad_official import official

# Rows that are masked as a whole are NaN after the softmax, and replaced: as torch exports it.
MASKED = """
    <ir_version: 10, opset_import: ["": 22]>
    g (float[N,4] x, bool[N,4] mask) => (float[N,4] y)
    <float hidden = {0}, float zero = {0}>
    { scores = Where(mask, x, hidden)
      weights = Softmax<axis=-1>(scores)
      missing = IsNaN(weights)
      y = Where(missing, zero, weights) }
"""


def masked_inputs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    mask = np.array([[1, 0, 1, 1], [0, 0, 0, 0], [0, 1, 0, 0]], bool)
    return x, mask, np.arange(12, dtype=np.float32).reshape(3, 4)


def masked_gradient() -> np.ndarray:
    """By hand: y * (seed - sum(seed * y)) in rows of which something is seen."""
    x, mask, seed = masked_inputs()
    e = np.where(mask, np.exp(x), 0)
    y = e / np.maximum(e.sum(1, keepdims=True), 1e-30)
    return y * (seed - (seed * y).sum(1, keepdims=True))


@pytest.mark.parametrize("framework", ["torch", "jax", "tensorflow"])
def test_rows_that_are_masked_as_a_whole_have_gradients_of_zero(framework: str) -> None:
    library = pytest.importorskip(framework)
    proto = onnx.parser.parse_model(MASKED)
    (hidden,) = (t for t in proto.graph.initializer if t.name == "hidden")
    hidden.CopyFrom(onnx.numpy_helper.from_array(np.array(-np.inf, np.float32), "hidden"))
    source = sx.load(proto)
    x, mask, seed = masked_inputs()
    if framework == "torch":
        leaf = library.tensor(x, requires_grad=True)
        sx.to_torch(source)(leaf, library.tensor(mask)).backward(library.tensor(seed))
        gradient = leaf.grad.numpy()
    elif framework == "jax":
        apply, params = sx.to_jax(source)
        gradient = library.grad(lambda v: (apply(params, v, mask) * seed).sum())(x)
    else:
        module, tensor = sx.to_tensorflow(source), library.constant(x)
        with library.GradientTape() as tape:
            tape.watch(tensor)
            y = module(tensor, library.constant(mask))
        gradient = tape.gradient(y, tensor, seed).numpy()
    np.testing.assert_allclose(gradient, masked_gradient(), atol=1e-6)


@pytest.mark.parametrize(
    "name",
    [
        "attention_23_boolmask_fullymasked_row_nan_robustness_expanded",
        "attention_causal_boolmask_nan_robustness_expanded",
    ],
)
def test_official_cases_of_masked_rows_have_finite_gradients(name: str) -> None:
    library = pytest.importorskip("torch")
    case = official()[name]
    inputs = [np.array(x) for x in case.data_sets[0][0]]
    leaves = [library.tensor(x, requires_grad=x.dtype == np.float32) for x in inputs]
    sx.to_torch(case.model)(*leaves).sum().backward()
    gradients = [leaf.grad for leaf in leaves if leaf.requires_grad]
    assert len(gradients) == 3 and all(g.isfinite().all() for g in gradients)


def convolution(rank: int, channels: int, features: int, group: int, more: str = "") -> sx.Model:
    sizes = ",".join("HWD"[:rank])
    shape = ",".join(["3"] * rank)
    proto = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 22]>
        my_graph (float[N,{channels},{sizes}] x,
                  float[{features},{channels // group},{shape}] w) => (float[N,M,{sizes}] y)
        {{ y = Conv<group={group}{more}>(x, w) }}"""
    )
    proto.graph.name = "my.graph"  # tensorflow allows no dot in the name of a module
    return sx.load(proto)


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("more", ["", ", strides", ", dilations"])
@pytest.mark.parametrize("features", [6, 12])
def test_a_depthwise_convolution_is_one_kernel_of_tensorflow(
    rank: int, more: str, features: int
) -> None:
    tf = pytest.importorskip("tensorflow")
    more = f"{more}=[{','.join(['2'] * rank)}]" if more else ""
    source = convolution(rank, 6, features, 6, more)
    module = sx.to_tensorflow(source)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 6, *[9] * rank)).astype(np.float32)
    w = rng.normal(size=(features, 1, *[3] * rank)).astype(np.float32)
    (expected,) = InferenceSession(source.proto().SerializeToString()).run(None, {"x": x, "w": w})
    np.testing.assert_allclose(module(x, w).numpy(), expected, atol=1e-5)
    kinds = [o.type for o in module.serve.get_concrete_function().graph.get_operations()]
    assert kinds.count("DepthwiseConv2dNative") == 1
    assert "Conv2D" not in kinds
    assert isinstance(module, tf.Module)


def test_a_convolution_without_kernel_shape_in_jax() -> None:
    """As gradients of ConvTranspose contain it."""
    jax = pytest.importorskip("jax")
    from sardonyx.engines.jax.nn import convolution_last
    from sardonyx.engines.jax.xp import arrays

    rng = np.random.default_rng(0)
    x, w = (rng.normal(size=s).astype(np.float32) for s in ((1, 5, 5, 2), (3, 2, 3, 3)))
    y = convolution_last(arrays(), jax.numpy.asarray(x), jax.numpy.asarray(w), group=1)
    source = convolution(2, 2, 3, 1)
    first = np.ascontiguousarray(np.moveaxis(x, -1, 1))
    session = InferenceSession(source.proto().SerializeToString())
    (expected,) = session.run(None, {"x": first, "w": w})
    np.testing.assert_allclose(np.moveaxis(np.asarray(y), -1, 1), expected, atol=1e-5)


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_indices_in_a_function_that_jax_compiles(op: str) -> None:
    jax = pytest.importorskip("jax")
    header = '<ir_version: 10, opset_import: ["": 22]>'
    nodes = f"g (float[N,4] x) => (int64[N] y) {{ y = {op}<axis=-1, keepdims=0>(x) }}"
    apply, params = sx.to_jax(sx.load(onnx.parser.parse_model(f"{header} {nodes}")))
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    expected = np.argmax(x, 1) if op == "ArgMax" else np.argmin(x, 1)
    np.testing.assert_array_equal(jax.jit(apply)(params, x), expected)


def test_groups_are_one_convolution_in_tensorflow() -> None:
    """Values and gradients are torch's, in one kernel rather than one for each group."""
    tf = pytest.importorskip("tensorflow")
    torch = pytest.importorskip("torch")
    text = """<ir_version: 9, opset_import: ["" : 18]>
    g (float[N,8,6,6] x, float[12,2,3,3] w) => (float[N,12,6,6] y)
    { y = Conv<group=4, pads=[1,1,1,1]>(x, w) }"""
    generator = np.random.default_rng(0)
    shapes = (2, 8, 6, 6), (12, 2, 3, 3)
    arrays = [generator.standard_normal(s).astype(np.float32) for s in shapes]
    leaves = [torch.tensor(a, requires_grad=True) for a in arrays]
    expected = torch.nn.functional.conv2d(*leaves, padding=1, groups=4)
    (expected**3).sum().backward()
    module = sx.to_tensorflow(sx.load(onnx.parser.parse_model(text)))
    tensors = [tf.constant(a) for a in arrays]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        y = module(*tensors)
        total = tf.reduce_sum(y**3)
    np.testing.assert_allclose(y, expected.detach().numpy(), rtol=1e-4, atol=1e-5)
    for ours, leaf in zip(tape.gradient(total, tensors), leaves, strict=True):
        np.testing.assert_allclose(ours, leaf.grad.numpy(), rtol=1e-3, atol=1e-3)
    graph = module.serve.get_concrete_function().graph
    assert [op.type for op in graph.get_operations()].count("Conv2D") == 1


def test_jax_without_flatbuffers_is_told_before_any_work(tmp_path, monkeypatch) -> None:
    pytest.importorskip("jax")
    from sardonyx.engines.jax import convert

    find = convert.importlib.util.find_spec
    monkeypatch.setattr(
        convert.importlib.util, "find_spec", lambda n: None if n == "flatbuffers" else find(n)
    )
    with pytest.raises(EngineError, match="flatbuffers") as error:
        convert.store("no-such-file.onnx", tmp_path / "out")
    assert "pip install flatbuffers" in str(error.value)
