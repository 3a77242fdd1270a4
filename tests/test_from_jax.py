"""Functions of JAX as ONNX models: JAX itself is the oracle, stock onnxruntime the runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx as sx
from sardonyx.errors import ArgumentError, ImportRefused

jax = pytest.importorskip("jax")
nn = pytest.importorskip("flax.linen")
ort = pytest.importorskip("onnxruntime")
jnp = jax.numpy
KEY = jax.random.key(0)


def run(model: sx.Model, **feeds: Any) -> list[np.ndarray]:
    proto = model.proto()
    onnx.checker.check_model(proto, full_check=True)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {k: np.asarray(v) for k, v in feeds.items()})


class MLP(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.LayerNorm()(nn.relu(nn.Dense(16)(x)))
        return nn.log_softmax(nn.Dense(4)(nn.gelu(x)))


class CNN(nn.Module):
    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        x = nn.relu(nn.BatchNorm(use_running_average=not train)(nn.Conv(8, (3, 3))(x)))
        x = nn.max_pool(x, (2, 2), (2, 2))
        x = nn.avg_pool(nn.Conv(16, (3, 3), strides=2, padding="VALID")(x), (2, 2))
        return nn.Dense(5)(x.reshape(x.shape[0], -1))


@pytest.mark.parametrize(
    ("module", "shape"), [(MLP(), (3, 8)), (CNN(), (2, 12, 12, 3))], ids=["MLP", "CNN"]
)
def test_a_flax_module_keeps_the_names_of_its_parameters(module: Any, shape: Any) -> None:
    x = jax.random.normal(KEY, shape)
    variables = module.init(KEY, x)
    model = sx.from_jax(module.apply, variables, x)
    names = {w.name for w in sx.weights(model) if w.kind != "constant"}
    assert "params.Dense_0.kernel" in names
    assert [v.name for v in model.inputs] == ["x"]
    (y,) = run(model, x=x)
    np.testing.assert_allclose(y, module.apply(variables, x), rtol=1e-5, atol=1e-6)


def test_a_symbolic_size_is_free() -> None:
    module, (b,) = MLP(), jax.export.symbolic_shape("b")
    variables = module.init(KEY, jnp.ones((1, 8)))
    model = sx.from_jax(module.apply, variables, jax.ShapeDtypeStruct((b, 8), jnp.float32))
    for count in (1, 5):
        x = jax.random.normal(KEY, (count, 8))
        (y,) = run(model, x=x)
        np.testing.assert_allclose(y, module.apply(variables, x), rtol=1e-5, atol=1e-6)


def test_symbolic_sizes_of_images() -> None:
    module = nn.Sequential(
        [nn.Conv(4, (3, 3)), nn.relu, lambda x: nn.max_pool(x, (2, 2), (2, 2)),
         lambda x: nn.avg_pool(x, (2, 2), (2, 2)), lambda x: x.mean((1, 2)), nn.Dense(3)]
    )  # fmt: skip
    variables = module.init(KEY, jnp.ones((1, 8, 8, 3)))
    shape = jax.export.symbolic_shape("b, 4*h + 1, w", constraints=["w >= 8"])
    model = sx.from_jax(module.apply, variables, jax.ShapeDtypeStruct((*shape, 3), jnp.float32))
    for size in ((1, 9, 8), (3, 13, 11)):
        x = jax.random.normal(KEY, (*size, 3))
        (y,) = run(model, **{model.inputs[0].name: x})
        np.testing.assert_allclose(y, module.apply(variables, x), rtol=1e-5, atol=1e-6)


def test_parts_of_symbolic_sizes() -> None:
    def joined_and_parted(params: Any, a: Any, b: Any) -> Any:
        both = jnp.tanh(jnp.concatenate([a, b], 1) @ params)
        return jnp.split(both, [a.shape[1]], 1)

    n, m = jax.export.symbolic_shape("n, m")
    weight = np.random.default_rng(0).normal(size=(4, 4)).astype("f")
    structs = [jax.ShapeDtypeStruct((2, size, 4), jnp.float32) for size in (n, m)]
    model = sx.from_jax(joined_and_parted, weight, *structs)
    arrays = [np.random.default_rng(k).normal(size=(2, k, 4)).astype("f") for k in (3, 1)]
    feeds = {v.name: array for v, array in zip(model.inputs, arrays, strict=True)}
    actual = run(model, **feeds)
    expected = joined_and_parted(weight, *arrays)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_size_that_no_input_shows_is_refused() -> None:
    shape = jax.export.symbolic_shape("a*b, 3")
    with pytest.raises(ImportRefused, match="2 symbolic sizes"):
        sx.from_jax(lambda p, x: x, {}, jax.ShapeDtypeStruct(shape, jnp.float32))


def test_every_equation_without_a_rule_is_named_with_its_line() -> None:
    def function(params: Any, x: Any) -> Any:
        a = jnp.linalg.eigh(x @ x.T)[0]
        return a + jnp.abs(jnp.fft.fft(x))[0, 0]

    with pytest.raises(ImportRefused) as refusal:
        sx.from_jax(function, {}, jnp.ones((3, 3)))
    text = str(refusal.value)
    assert "eigh" in text and "fft" in text and text.count("test_from_jax.py") >= 2


def test_python_that_looks_at_values_is_refused() -> None:
    def function(params: Any, x: Any) -> Any:
        return x if x.sum() > 0 else -x

    with pytest.raises(ImportRefused, match="looks at values"):
        sx.from_jax(function, {}, jnp.ones(3))


def test_leaves_that_are_no_arrays_are_named() -> None:
    with pytest.raises(ArgumentError, match='"activation"'):
        sx.from_jax(lambda p, x: x, {"activation": jnp.tanh}, jnp.ones(3))


def test_running_and_integer_reductions_over_a_free_size() -> None:
    def function(_: Any, x: Any) -> Any:
        numbers = (x * 1000).astype(jnp.int32)
        running = jnp.cumprod(x, 0), jax.lax.cummax(x, 0), jax.lax.cummin(x, 0, reverse=True)
        return *running, jax.lax.cumlogsumexp(x, 0), numbers.prod(0), numbers.prod()

    (n,) = jax.export.symbolic_shape("n")
    model = sx.from_jax(function, {}, jax.ShapeDtypeStruct((n, 3), jnp.float32))
    for count in (1, 6):
        x = np.random.default_rng(count).normal(size=(count, 3)).astype(np.float32)
        for actual, expected in zip(run(model, x=x), jax.jit(function)({}, x), strict=True):
            np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_what_jax_does_not_take_with_free_sizes_is_refused_with_its_line() -> None:
    (n,) = jax.export.symbolic_shape("n")
    struct = jax.ShapeDtypeStruct((n, 3), jnp.float32)
    with pytest.raises(ImportRefused, match="symbolic sizes") as refusal:
        sx.from_jax(lambda _, x: jnp.indices(x.shape)[0] + x, {}, struct)
    assert "jnp.indices" in str(refusal.value)
    with pytest.raises(ImportRefused, match="symbolic sizes"):
        sx.from_jax(lambda _, x: jnp.pad(x, ((2, 0), (0, 0)), mode="reflect"), {}, struct)
