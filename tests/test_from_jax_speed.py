"""Traced steps of JAX take the forms that records have, for which engines have kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx as sx
from sardonyx.engines.c_library import find_compiler
from sardonyx.engines.onnxruntime import step_session
from sardonyx.engines.onnxruntime.kernels import fusion, images
from sardonyx.engines.onnxruntime.session import open_session

jax = pytest.importorskip("jax")
jnp, lax = jax.numpy, jax.lax
pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler")
LAYOUT = ("NHWC", "HWIO", "NHWC")
Loss = Callable[[Any, Any], Any]


def noise(seed: int, *shape: int) -> Any:
    return jax.random.normal(jax.random.key(seed), shape)


def conv(x: Any, w: Any, stride: int = 1, groups: int = 1, padding: str = "SAME") -> Any:
    return lax.conv_general_dilated(
        x, w, (stride, stride), padding, dimension_numbers=LAYOUT, feature_group_count=groups
    )


def max_pool(x: Any, size: int, padding: str = "VALID") -> Any:
    window = (1, size, size, 1)
    return lax.reduce_window(x, -jnp.inf, lax.max, window, (1, 2, 2, 1), padding)


def descent(loss: Loss) -> Callable[[Any, Any], Any]:
    def step(params: Any, batch: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(params, batch["x"])
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, gradient), {"loss": value}

    return step


def nodes_of_a_step(
    monkeypatch: pytest.MonkeyPatch, loss: Loss, params: Any, x: Any
) -> Counter[str]:
    """The operators that run, after three steps with the losses of JAX."""
    monkeypatch.setattr(fusion, "LEAST_SAVED", 1 << 14)
    monkeypatch.setattr(images, "LEAST", 0)
    found: list[bytes] = []

    def spied(data: bytes, **settings: Any) -> Any:
        found.append(data)
        return open_session(data, **settings)

    step = descent(loss)
    model = sx.from_jax_step(step, params, {"x": x})
    monkeypatch.setattr(step_session, "open_session", spied)
    training = sx.prepare_training(model)
    compiled = jax.jit(lambda params, batch: step(params, batch))
    for _ in range(3):
        params, metrics = compiled(params, {"x": x})
        result = training.step({"x": np.asarray(x)})
        np.testing.assert_allclose(result["loss"], metrics["loss"], rtol=1e-5)
    return Counter(n.op_type for n in onnx.load_from_string(found[-1]).graph.node)


@pytest.mark.parametrize(("size", "padding"), [(2, "VALID"), (3, "VALID"), (3, "SAME")])
def test_poolings_and_kernels_of_a_traced_step_are_compiled(
    monkeypatch: pytest.MonkeyPatch, size: int, padding: str
) -> None:
    params = {"a": 0.3 * noise(0, 3, 3, 3, 32), "b": 0.1 * noise(1, 3, 3, 32, 16)}

    def loss(p: Any, x: Any) -> Any:
        y = max_pool(jax.nn.relu(conv(x, p["a"])), size, padding)
        return jnp.mean(conv(y, p["b"]) ** 2)

    nodes = nodes_of_a_step(monkeypatch, loss, params, noise(2, 4, 16, 16, 3))
    assert nodes["PoolGradient"] == 1
    assert not nodes["ScatterElements"]
    assert not nodes["Concat"], "the gradient of a kernel is a convolution, not a join of patches"
    assert not nodes["Where"], "the mask of a Relu is part of the gradient of a pooling"


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("groups", [2, 16])
@pytest.mark.parametrize("size", [1, (2, 5)])
def test_kernels_of_groups(
    monkeypatch: pytest.MonkeyPatch, stride: int, groups: int, size: Any
) -> None:
    tall, wide = size if isinstance(size, tuple) else (size, size)
    params = {"w": 0.3 * noise(0, tall, wide, 16 // groups, 32), "v": noise(1, 1, 1, 32, 8)}

    def loss(p: Any, x: Any) -> Any:
        y = jnp.tanh(conv(x, p["w"], stride, groups))
        return jnp.mean(conv(y, p["v"]) ** 2)

    nodes_of_a_step(monkeypatch, loss, params, noise(2, 3, 13, 11, 16))


def test_a_mask_reads_the_result_of_its_relu() -> None:
    def loss(p: Any, x: Any) -> Any:
        return jnp.mean(jax.nn.relu(x * p["a"] + p["b"]) ** 2)

    params = {"a": noise(0, 5), "b": noise(1, 5)}
    model = sx.from_jax_step(descent(loss), params, {"x": noise(2, 4, 5)})
    nodes = [*model.graph, *model.records[0].algorithm]
    (greater,) = [n for n in nodes if n.op_type == "Greater"]
    (relu,) = [n for n in nodes if n.op_type == "Relu"]
    assert greater.inputs[0].name == relu.outputs[0].name
