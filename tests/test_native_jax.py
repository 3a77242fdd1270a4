"""Converted JAX functions where JAX has its own ways: NNX modules, donation, batches of batches."""

from __future__ import annotations

import numpy as np
import pytest

import sardonyx as sx
from sardonyx.engines.onnxruntime import Runner
from sardonyx.errors import ArgumentError
from tests.networks import cnn, mlp, transformer

jax = pytest.importorskip("jax")


def expected(model: sx.Model, x: np.ndarray) -> np.ndarray:
    return next(iter(Runner(model)({model.inputs[0].name: x}).values()))


def rows(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def test_nnx_module_has_the_weights_as_params() -> None:
    nnx = pytest.importorskip("flax.nnx")
    model = mlp()
    module = sx.to_jax(model, as_="nnx")
    x = rows(3, 6)
    np.testing.assert_allclose(nnx.jit(module)(x), expected(model, x), rtol=1e-5, atol=1e-6)
    leaves = nnx.state(module, nnx.Param)
    assert len(jax.tree.leaves(leaves)) == 4
    grads = nnx.grad(lambda m: (m(x) ** 2).sum())(module)
    apply, params = sx.to_jax(model)
    reference = jax.grad(lambda p: (apply(p, x) ** 2).sum())(params)
    for name, value in reference.items():
        np.testing.assert_allclose(grads.weights[name][...], value, rtol=1e-5, atol=1e-6)


def test_nnx_module_comes_back_bit_for_bit() -> None:
    pytest.importorskip("flax.nnx")
    model = mlp()
    module = sx.to_jax(model, as_="nnx")
    weight = module.weights["fc0.weight"]
    weight[...] = weight[...] + 1.0
    tuned = sx.with_weights(model, module)
    expected = model.initializer("fc0.weight").numpy() + np.float32(1)
    np.testing.assert_array_equal(tuned.initializer("fc0.weight").numpy(), expected)
    same = model.initializer("fc1.bias").numpy()
    np.testing.assert_array_equal(tuned.initializer("fc1.bias").numpy(), same)


def test_unknown_form_is_refused() -> None:
    with pytest.raises(ArgumentError, match="'haiku'"):
        sx.to_jax(mlp(), as_="haiku")


def test_params_can_be_donated() -> None:
    model = mlp()
    apply, params = sx.to_jax(model)
    x = rows(3, 6)

    def step(weights: dict, x: np.ndarray) -> dict:
        slopes = jax.grad(lambda p: (apply(p, x) ** 2).sum())(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, slopes)

    expected = step(params, x)
    held = {n: jax.numpy.array(w) for n, w in params.items()}
    result = jax.jit(step, donate_argnums=0)(held, x)
    for name, value in expected.items():
        np.testing.assert_allclose(result[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("make", "shape"), [(cnn, (3, 8, 8)), (mlp, (6,))], ids=["cnn", "mlp"])
def test_vmap_over_a_new_axis(make: object, shape: tuple[int, ...]) -> None:
    model = make()  # type: ignore[operator]
    apply, params = sx.to_jax(model)
    x = rows(2, 3, *shape)
    result = jax.vmap(apply, (None, 0))(params, x)
    for part, inputs in zip(result, x, strict=True):
        np.testing.assert_allclose(part, expected(model, inputs), rtol=1e-4, atol=1e-5)


def test_export_with_two_symbolic_sizes() -> None:
    model = transformer()
    apply, params = sx.to_jax(model)
    batch, length = jax.export.symbolic_shape("batch, length")
    spec = jax.ShapeDtypeStruct((batch, length), np.int32)
    exported = jax.export.export(jax.jit(apply))(params, spec)
    for shape in ((2, 5), (3, 7)):
        ids = np.random.default_rng(1).integers(0, 11, shape)
        result = exported.call(params, ids.astype(np.int32))
        np.testing.assert_allclose(result, expected(model, ids), rtol=1e-4, atol=1e-4)
