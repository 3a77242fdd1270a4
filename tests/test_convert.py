"""Models converted to jax, tensorflow and numpy, and their weights back in the ONNX file.

Oracles: onnxruntime for what a model computes, the gradients of onnxruntime's training step for
what differentiation gives.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sardonyx as sx
from sardonyx.errors import ArgumentError
from sardonyx.model import Model
from tests.converted_networks import NETWORKS, close, expected, gradients, rows
from tests.networks import cnn, mlp


@pytest.fixture(scope="module", params=NETWORKS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


# -- jax -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def functions() -> dict[str, tuple[Model, Any, dict]]:
    pytest.importorskip("jax")
    made = {n: make() for n, (make, _) in NETWORKS.items()}
    return {n: (model, *sx.to_jax(model)) for n, model in made.items()}


def test_jax_gives_the_same_numbers(functions: dict, name: str) -> None:
    import jax

    model, apply, params = functions[name]
    assert set(params) == {w.name for w in sx.weights(model) if w.kind == "weight"}
    x = rows(name, 3)
    result = jax.jit(apply)(params, x)
    assert result.dtype == np.float32
    close(result, expected(model, x))


def test_jax_gradients_are_those_of_the_model(functions: dict, name: str) -> None:
    import jax

    model, apply, params = functions[name]
    x = rows(name, 3)
    result = jax.jit(jax.grad(lambda p: (apply(p, x) ** 2).sum()))(params)
    expected = gradients(model, x)
    assert result.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(np.asarray(result[key]), value, rtol=1e-3, atol=1e-4)


def test_jax_maps_over_another_axis(functions: dict) -> None:
    import jax

    model, apply, params = functions["mlp"]
    x = np.stack([rows("mlp", 2, seed) for seed in range(3)])
    result = jax.vmap(apply, (None, 0))(params, x)
    for part, inputs in zip(result, x, strict=True):
        close(part, expected(model, inputs))


@pytest.mark.parametrize("network_name", ["mlp", "transformer"])
def test_jax_exports_with_symbolic_sizes(functions: dict, network_name: str) -> None:
    import jax

    model, apply, params = functions[network_name]
    x = rows(network_name, 4)
    (size,) = jax.export.symbolic_shape("rows")
    spec = jax.ShapeDtypeStruct((size, *x.shape[1:]), jax.numpy.asarray(x).dtype)
    exported = jax.export.export(jax.jit(apply))(params, spec)
    close(exported.call(params, jax.numpy.asarray(x)), expected(model, x))


def test_jax_params_come_back_bit_for_bit(functions: dict) -> None:
    model, _, params = functions["cnn"]
    tuned = sx.with_weights(model, {n: w + 0.1 for n, w in params.items()})
    for key, value in params.items():
        np.testing.assert_array_equal(tuned.initializer(key).numpy(), np.asarray(value + 0.1))
    np.testing.assert_array_equal(
        tuned.initializer("bn.var").numpy(), model.initializer("bn.var").numpy()
    )


def test_inputs_that_do_not_fit_are_named(functions: dict) -> None:
    _, apply, params = functions["mlp"]
    x = rows("mlp", 2)
    with pytest.raises(ArgumentError, match='"x"  is missing'):
        apply(params)
    with pytest.raises(ArgumentError, match='"z"'):
        apply(params, x, z=x)


# -- tensorflow ------------------------------------------------------------------


@pytest.fixture(scope="module")
def tf_modules() -> dict[str, tuple[Model, Any]]:
    pytest.importorskip("tensorflow")
    made = {n: make() for n, (make, _) in NETWORKS.items()}
    return {n: (model, sx.to_tensorflow(model)) for n, model in made.items()}


def test_tensorflow_gives_the_same_numbers_with_free_sizes(tf_modules: dict, name: str) -> None:
    model, module = tf_modules[name]
    for count, longer in ((1, False), (4, name in ("transformer", "lstm"))):
        x = rows(name, count, longer=longer)
        close(module(x), expected(model, x))
    assert module.serve.experimental_get_tracing_count() == 1


def test_tensorflow_gradients_are_those_of_the_model(tf_modules: dict, name: str) -> None:
    import tensorflow as tf

    model, module = tf_modules[name]
    x = rows(name, 3)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(module(x) ** 2)
    held = {n: v for n, v in module.weights.items() if v.trainable}
    result = tape.gradient(loss, held)
    expected = gradients(model, x)
    assert held.keys() == expected.keys()
    for key, value in expected.items():
        part = tf.convert_to_tensor(result[key])
        np.testing.assert_allclose(part.numpy(), value, rtol=1e-3, atol=1e-4)


def test_tensorflow_saved_model_serves_without_us(tf_modules: dict, tmp_path: Path) -> None:
    import subprocess
    import sys

    name = "transformer"
    model, module = tf_modules[name]
    module.save(tmp_path / "saved")
    x = rows(name, 5)
    np.save(tmp_path / "x.npy", x)
    script = (
        "import sys, numpy as np, tensorflow as tf\n"
        f"module = tf.saved_model.load({str(tmp_path / 'saved')!r})\n"
        f"x = tf.constant(np.load({str(tmp_path / 'x.npy')!r}))\n"
        f"np.save({str(tmp_path / 'y.npy')!r}, module.signatures['serving_default'](x)['scores'])\n"
        "assert 'sardonyx' not in sys.modules and len(module.weights) > 3\n"
        f"np.save({str(tmp_path / 'called.npy')!r}, module(x))\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    close(np.load(tmp_path / "y.npy"), expected(model, x))
    np.testing.assert_array_equal(np.load(tmp_path / "called.npy"), np.load(tmp_path / "y.npy"))


def test_tensorflow_training_updates_statistics(tf_modules: dict) -> None:
    model = cnn()
    module = sx.to_tensorflow(model)
    x = rows("cnn", 6)
    before = module(x).numpy()
    torch = pytest.importorskip("torch")
    twin = sx.to_torch(model).train()
    twin(torch.from_numpy(x))
    module(x, training=True)
    close(module.weights["bn.mean"], twin.bn.mean.numpy())
    close(module.weights["bn.var"], twin.bn.var.numpy())
    assert np.abs(module(x).numpy() - before).max() > 1e-4
    tuned = sx.with_weights(model, module)
    close(expected(tuned, x), module(x).numpy())


# -- numpy -----------------------------------------------------------------------


def test_numpy_gives_the_same_numbers(name: str) -> None:
    model = NETWORKS[name][0]()
    x = rows(name, 3)
    close(sx.to_numpy(model)(x), expected(model, x))
    assert sx.to_numpy(model, float64=True)(x).dtype == np.float64


def test_inputs_in_a_mapping_are_refused_with_the_way_to_give_them() -> None:
    function = sx.to_numpy(mlp())
    with pytest.raises(ArgumentError, match=r"unpack the mapping with \*\*"):
        function({"x": rows("mlp", 2)})
