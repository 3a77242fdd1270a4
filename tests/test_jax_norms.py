"""jax's kernels of normalization, and products in mixed precision, against torch and NumPy."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from onnx import helper

import sardonyx as sx
from tests.test_jax_math import RNG, differentiated, node, of_torch, same

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
F = torch.nn.functional
EPSILON = float(np.float32(1e-5))  # attributes of ONNX have single precision


def batch_norm(shape: tuple[int, ...], momentum: float = 0.9) -> Any:
    names = ("x", "scale", "b", "mean", "var")
    sizes: list[Any] = [shape, *[shape[1:2]] * 4]
    inputs = [helper.make_tensor_value_info(n, 11, s) for n, s in zip(names, sizes)]
    outputs = [helper.make_tensor_value_info("y", 11, shape)]
    outputs += [helper.make_tensor_value_info(n, 11, shape[1:2]) for n in ("new_mean", "new_var")]
    options = {"training_mode": 1, "momentum": momentum, "epsilon": EPSILON}
    body = helper.make_node("BatchNormalization", names, ["y", "new_mean", "new_var"], **options)
    graph = helper.make_graph([body], "g", inputs, outputs)
    opsets = [helper.make_opsetid("", 21)]
    return sx.load(helper.make_model(graph, opset_imports=opsets, ir_version=10))


@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 5), (4, 3, 5, 2), (2, 1, 3, 1, 4), (1, 2, 1, 3)])
def test_batch_normalization_in_training(shape: tuple[int, ...]) -> None:
    x = RNG.normal(size=shape) * 3 + 7
    scale, b = RNG.normal(size=shape[1]), RNG.normal(size=shape[1])
    statistics = RNG.normal(size=shape[1]), np.ones(shape[1])
    ours = differentiated(batch_norm(shape), x, scale, b, given=statistics)

    def theirs(x: Any, scale: Any, b: Any) -> Any:
        return F.batch_norm(x, None, None, scale, b, True, 0.0, EPSILON)

    value, slopes = of_torch(theirs, x, scale, b)
    same(ours, (value, slopes))


def test_second_derivatives_of_normalizations() -> None:
    apply, params = sx.to_jax(batch_norm((4, 2, 3)))
    x, scale = RNG.normal(size=(4, 2, 3)), RNG.normal(size=2)
    rest = np.zeros(2), np.zeros(2), np.ones(2)
    with jax.enable_x64(True):
        curvature = jax.hessian(lambda x: (apply(params, x, scale, *rest)[0] ** 3).sum())(x)

    def theirs(x: Any) -> Any:
        y = F.batch_norm(x, None, None, torch.tensor(scale), None, True, 0.0, EPSILON)
        return (y**3).sum()

    expected = torch.autograd.functional.hessian(theirs, torch.tensor(x))
    np.testing.assert_allclose(curvature, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("far", [0.0, 1e4, -3e5])
def test_variances_far_from_zero_keep_their_digits(far: float) -> None:
    """In single precision, a sum of squares would lose all of them."""
    x = (RNG.normal(size=(8, 3, 16, 16)) + far).astype(np.float32)
    x[0] += np.float32(20)  # an image apart from the others
    from sardonyx.engines.jax.nn import one_pass

    mean, variance = one_pass(x, (0, 2, 3))
    exact = x.astype(np.float64)
    np.testing.assert_allclose(np.ravel(mean), exact.mean((0, 2, 3)), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(np.ravel(variance), exact.var((0, 2, 3)), rtol=1e-4)


@pytest.mark.parametrize("bias", [True, False])
def test_layer_normalization(bias: bool) -> None:
    x, scale, b = RNG.normal(size=(3, 4, 5)) + 9, RNG.normal(size=5), RNG.normal(size=5)
    inputs = [("x", "double", (3, 4, 5)), ("scale", "double", (5,)), ("b", "double", (5,))]
    model = node("LayerNormalization", inputs[: 2 + bias], (3, 4, 5), axis=-1, stash_type=11)
    arrays = (x, scale, b)[: 2 + bias]

    def theirs(x: Any, scale: Any, b: Any = None) -> Any:
        return F.layer_norm(x, (5,), scale, b, EPSILON)

    same(differentiated(model, *arrays), of_torch(theirs, *arrays))


def test_instance_normalization() -> None:
    x, scale, b = RNG.normal(size=(3, 4, 5)), RNG.normal(size=4), RNG.normal(size=4)
    inputs = [("x", "double", (3, 4, 5)), ("scale", "double", (4,)), ("b", "double", (4,))]
    model = node("InstanceNormalization", inputs, (3, 4, 5))
    theirs = of_torch(
        lambda x, s, b: F.instance_norm(x, weight=s, bias=b, eps=EPSILON), x, scale, b
    )
    same(differentiated(model, x, scale, b), theirs)


@pytest.mark.parametrize("parts", [[2, 3, 1], [6]])
def test_a_split_joins_its_gradients(parts: list[int]) -> None:
    x = RNG.normal(size=(2, 6))
    outputs = [f"y{i}" for i in range(len(parts))]
    nodes = [
        helper.make_node("Constant", [], ["sizes"], value_ints=parts),
        helper.make_node("Split", ["x", "sizes"], outputs, axis=1),
        helper.make_node("Concat", outputs[::-1], ["y"], axis=1),
    ]
    values = [helper.make_tensor_value_info(n, 11, (2, 6)) for n in "xy"]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    opsets = [helper.make_opsetid("", 21)]
    model = sx.load(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    theirs = of_torch(lambda x: torch.cat(torch.split(x, parts, 1)[::-1], 1), x)
    same(differentiated(model, x), theirs)


def test_products_of_gradients_are_narrow_in_mixed_precision() -> None:
    """Of a product with float32 inside, jax would differentiate in float32: twice the time."""
    module = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    net = sx.trainable(sx.from_torch(module, torch.zeros(2, 8)), "mse", sx.optim.sgd(0.1))
    rep = sx.prepare_training(net, "jax", precision="bf16")
    (step,) = rep.steps
    rng = np.random.default_rng(0)
    feeds = {v.name: rng.normal(size=(2, 8 if i == 0 else 4)).astype(np.float32)
             for i, v in enumerate(rep.step_inputs)}  # fmt: skip
    with rep.context():
        state = {n: rep.variables[n].value for n in step.graph.state}
        text = jax.jit(step.function).lower(state, step._arrays(feeds)).as_text()
    types = re.findall(r"stablehlo\.dot_general .*-> tensor<[\dx]*x(\w+)>", text)
    assert len(types) == 5 and set(types) == {"bf16"}
