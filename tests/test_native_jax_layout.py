"""Images that converted JAX functions carry with their channels last: the same numbers and
gradients, and nothing turned between two convolutions.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import sardonyx as sx
from sardonyx.engines.onnxruntime import Runner
from sardonyx.normalize import normalize

jax = pytest.importorskip("jax")

CONV = "Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]>"
MAX = "MaxPool <kernel_shape = [2, 2], strides = [2, 2]>"
W4 = {"w": (4, 3, 3, 3), "v": (4, 4, 3, 3)}
NORM = {"scale": (4,), "bias": (4,), "mean": (4,), "var": (4,)}

# id: (input, weights, nodes); the output is y
CASES: dict[str, tuple[tuple[int, ...], dict[str, tuple[int, ...]], str]] = {
    "norms-and-pools": (
        (2, 3, 8, 9),
        {**W4, **NORM, "b": (4,)},
        f"a = {CONV} (x, w, b) n = BatchNormalization (a, scale, bias, mean, var) r = Relu (n)"
        f"p = {MAX} (r) q = {CONV} (p, v) g = GlobalAveragePool (q) y = Flatten (g)",
    ),
    "overlapping-maxima": (
        (2, 3, 7, 9),
        W4,
        f"a = {CONV} (x, w) y = MaxPool <kernel_shape = [3, 3], strides = [2, 2], "
        "pads = [1, 1, 1, 1], ceil_mode = 1> (a)",
    ),
    "large-and-dilated-maxima": (
        (2, 3, 9, 9),
        W4,
        f"a = {CONV} (x, w) m = MaxPool <kernel_shape = [4, 4]> (a) "
        "y = MaxPool <kernel_shape = [2, 2], dilations = [2, 1]> (m)",
    ),
    "means-without-padding": (
        (2, 3, 6, 7),
        W4,
        f"a = {CONV} (x, w) y = AveragePool <kernel_shape = [3, 2], pads = [1, 1, 1, 0], "
        "strides = [2, 1]> (a)",
    ),
    "means-with-padding": (
        (2, 3, 6, 7),
        W4,
        f"a = {CONV} (x, w) y = AveragePool <kernel_shape = [3, 2], pads = [1, 1, 1, 0], "
        "count_include_pad = 1> (a)",
    ),
    "residual-join-and-split": (
        (2, 3, 6, 6),
        {**W4, "u": (4, 2, 3, 3)},
        f"a = {CONV} (x, w) q = {CONV} (a, v) s = Add (a, q) j = Concat <axis = 1> (s, x, q) "
        "k, l, m = Split <axis = 1, num_outputs = 3> (j) z = Mul (k, l) "
        f"t = Slice (z, one, two, one) d = {CONV} (t, u) y = Concat <axis = 2> (d, a)",
    ),
    "factors-of-fewer-axes": (
        (2, 3, 6, 6),
        {**W4, "slope": (4, 1, 1), "factor": (1, 4, 1, 1), "row": (6,), "one_number": (1,)},
        f"a = {CONV} (x, w) p = PRelu (a, slope) f = Mul (p, factor) r = Add (f, row) "
        "n = Sub (one_number, r) y = LeakyRelu <alpha = 0.3> (n)",
    ),
    "attention-to-channels": (
        (2, 3, 6, 6),
        {**W4, "narrow": (4, 4, 1, 1)},
        f"a = {CONV} (x, w) g = GlobalMaxPool (a) s = Conv (g, narrow) h = Sigmoid (s) "
        "y = Mul (a, h)",
    ),
    "reductions": (
        (2, 3, 6, 5),
        W4,
        f"a = {CONV} (x, w) p = ReduceMean <keepdims = 0> (a, pixels) "
        "q = ReduceMax <keepdims = 1> (a, pixels) c = ReduceSum <keepdims = 1> (a, channels) "
        "k = ReduceMean <keepdims = 0> (c, channels) l = Flatten (k) m = Flatten (q) "
        "y = Concat <axis = 1> (p, l, m)",
    ),
    "read-in-both-layouts": (
        (2, 3, 6, 6),
        W4,
        f"a = {CONV} (x, w) r = Relu (a) q = {CONV} (r, v) f = Flatten (r) g = Flatten (q) "
        "y = Concat <axis = 1> (f, g)",
    ),
    "grouped-and-strided": (
        (2, 4, 9, 8),
        {"w": (6, 2, 3, 2), "v": (6, 1, 3, 3)},
        "a = Conv <group = 2, strides = [2, 1], dilations = [1, 2]> (x, w) "
        "y = Conv <group = 6> (a, v)",
    ),
    "transposed": (
        (2, 4, 4, 5),
        {"w": (4, 3, 3, 2), "b": (6,), "v": (4, 6, 3, 3)},
        "a = ConvTranspose <group = 2, strides = [2, 2], output_padding = [1, 0], "
        f"pads = [1, 0, 0, 1]> (x, w, b) y = {CONV} (a, v)",
    ),
    "one-axis": (
        (2, 3, 12),
        {"w": (4, 3, 3), "v": (4, 4, 3)},
        "a = Conv (x, w) r = Tanh (a) m = MaxPool <kernel_shape = [2]> (r) y = Conv (m, v)",
    ),
    "three-axes": (
        (2, 3, 5, 6, 4),
        {"w": (4, 3, 2, 3, 2)},
        "a = Conv (x, w) r = Elu (a) y = AveragePool <kernel_shape = [2, 2, 2]> (r)",
    ),
}  # fmt: skip


def model_of(name: str, batch: str | int = "N") -> sx.Model:
    shape, weights, nodes = CASES[name]
    rng = np.random.default_rng(0)
    size = [batch, *shape[1:]]
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20]> '
        f"images (float[{', '.join(map(str, size))}] x) => (float y) {{ {nodes} }}"
    )
    held = {n: rng.normal(size=s).astype(np.float32) / 2 for n, s in weights.items()}
    held |= {"var": np.abs(held["var"]) + 1} if "var" in held else {}
    integers = {"pixels": [2, 3], "channels": [1], "one": [1], "two": [3]}
    held |= {n: np.array(v) for n, v in integers.items()}
    used = {i for node in proto.graph.node for i in node.input}
    arrays = [onnx.numpy_helper.from_array(a, n) for n, a in held.items() if n in used]
    proto.graph.initializer.extend(arrays)
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    return sx.load(proto)


def image(name: str) -> np.ndarray:
    return np.random.default_rng(1).normal(size=CASES[name][0]).astype(np.float32)


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_onnxruntime(name: str) -> None:
    model, x = model_of(name), image(name)
    apply, params = sx.to_jax(model)
    (expected,) = Runner(model)({"x": x}).values()
    np.testing.assert_allclose(jax.jit(apply)(params, x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    model, x = model_of(name), image(name)
    apply, params = sx.to_jax(model)
    result, dx = jax.jit(jax.grad(lambda p, x: (apply(p, x) ** 2).sum(), (0, 1)))(params, x)
    module, inputs = sx.to_torch(model).eval(), torch.tensor(x, requires_grad=True)
    module(inputs).square().sum().backward()
    np.testing.assert_allclose(dx, inputs.grad, rtol=1e-3, atol=1e-3)
    for key, weight in module.named_parameters():
        np.testing.assert_allclose(result[key], weight.grad, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kernel", [2, 3])
def test_of_equal_maxima_the_first_has_the_gradient(kernel: int) -> None:
    torch = pytest.importorskip("torch")
    pool = f"y = MaxPool <kernel_shape = [{kernel}, {kernel}], strides = [2, 2]> (x)"
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20]> '
        f"pool (float[1, 2, 7, 7] x) => (float[1, 2, K, K] y) {{{pool}}}"
    )
    apply, _ = sx.to_jax(sx.load(proto))
    x = np.random.default_rng(0).integers(0, 3, (1, 2, 7, 7)).astype(np.float32)
    inputs = torch.tensor(x, requires_grad=True)
    torch.nn.functional.max_pool2d(inputs, kernel, 2).square().sum().backward()
    result = jax.grad(lambda x: (apply({}, x) ** 2).sum())(x)
    np.testing.assert_array_equal(result, inputs.grad)


def test_what_is_not_a_number_stays_so() -> None:
    model, x = model_of("overlapping-maxima"), image("overlapping-maxima")
    x[0, 1, 3, 3] = np.nan
    apply, params = sx.to_jax(model)
    value, _ = jax.value_and_grad(lambda p: apply(p, x)[0].sum())(params)
    assert np.isnan(value)


def test_sizes_may_be_symbolic() -> None:
    model, x = model_of("norms-and-pools"), image("norms-and-pools")
    apply, params = sx.to_jax(model)
    spec = jax.ShapeDtypeStruct(jax.export.symbolic_shape("n, 3, 8, 9"), x.dtype)
    stored = jax.export.export(jax.jit(apply))(params, spec).serialize(vjp_order=1)
    back = jax.export.deserialize(stored)
    (expected,) = Runner(model)({"x": x}).values()
    np.testing.assert_allclose(back.call(params, x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "turns"),
    [
        ("norms-and-pools", 1),  # the image; the means have one order in both layouts
        ("read-in-both-layouts", 3),
        ("attention-to-channels", 2),
        ("transposed", 2),
    ],
)
def test_images_turn_only_at_the_ends(name: str, turns: int) -> None:
    from sardonyx.engines.channels import channels_last
    from sardonyx.engines.jax.nn import CHANNELS_LAST

    made = channels_last(normalize(model_of(name)), CHANNELS_LAST)
    assert [n.op_type for n in made.graph].count("Transpose") == turns
