"""jax's kernels of softmax, attention and the loss of classes, against torch: values, gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import sardonyx as sx

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
F = torch.nn.functional
RNG = np.random.default_rng(0)


def differentiated(model: Any, *arrays: np.ndarray, given: tuple[np.ndarray, ...] = ()) -> Any:
    """A model's first output and the gradients of a weighted sum of it by its first inputs."""
    apply, params = sx.to_jax(model)

    def total(arrays: Any) -> Any:
        y = apply(params, *arrays, *given)
        y = y[0] if isinstance(y, (list, tuple)) else y
        return (y * np.cos(np.arange(y.size)).reshape(y.shape)).sum(), y

    with jax.enable_x64(True):
        (_, value), slopes = jax.value_and_grad(total, has_aux=True)(arrays)
    return np.asarray(value), [np.asarray(g) for g in slopes]


def of_torch(function: Any, *arrays: np.ndarray) -> Any:
    leaves = [torch.tensor(a, requires_grad=True) for a in arrays]
    y = function(*leaves)
    (y * torch.cos(torch.arange(y.numel()).double()).reshape(y.shape)).sum().backward()
    return y.detach().numpy(), [leaf.grad.numpy() for leaf in leaves]


def same(ours: Any, theirs: Any) -> None:
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-12, atol=1e-12)
    for a, b in zip(ours[1], theirs[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def node(op: str, inputs: list[tuple[str, str, Any]], shape: Any, **attributes: Any) -> Any:
    """A model of one node; inputs are (name, type, shape)."""
    kinds = {"double": 11, "int64": 7, "int32": 6}
    values = [helper.make_tensor_value_info(n, kinds[t], s) for n, t, s in inputs]
    body = helper.make_node(op, [n for n, _, _ in inputs], ["y"], **attributes)
    output = helper.make_tensor_value_info("y", 11, shape)
    graph = helper.make_graph([body], "g", values, [output])
    opsets = [helper.make_opsetid("", 21)]
    return sx.load(helper.make_model(graph, opset_imports=opsets, ir_version=10))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_softmax(op: str, axis: int) -> None:
    x = RNG.normal(size=(3, 4, 5)) * 20
    x[0, 1] = x[0, 1, 0]  # equal elements, all of them the largest
    function = torch.softmax if op == "Softmax" else torch.log_softmax
    model = node(op, [("x", "double", x.shape)], x.shape, axis=axis)
    same(differentiated(model, x), of_torch(lambda t: function(t, axis), x))


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignored", [None, 1, -1])
@pytest.mark.parametrize("shape", [(6, 4), (2, 4, 3), (2, 4, 3, 2)])
def test_cross_entropy(
    shape: tuple[int, ...], ignored: int | None, weighted: bool, reduction: str
) -> None:
    scores = RNG.normal(size=shape) * 10
    labels = RNG.integers(0, 4, (shape[0], *shape[2:]))
    if ignored is not None:
        labels.flat[0] = ignored
    weights = RNG.uniform(0.5, 2.0, 4)
    inputs = [("x", "double", shape), ("label", "int64", labels.shape)]
    inputs += [("w", "double", (4,))] if weighted else []
    more = {} if ignored is None else {"ignore_index": ignored}
    result = labels.shape if reduction == "none" else ()
    model = node("SoftmaxCrossEntropyLoss", inputs, result, reduction=reduction, **more)
    given = (labels, weights) if weighted else (labels,)

    def theirs(t: Any) -> Any:
        w = torch.tensor(weights) if weighted else None
        index = -100 if ignored is None else ignored
        return F.cross_entropy(t, torch.tensor(labels), w, ignore_index=index, reduction=reduction)

    same(differentiated(model, scores, given=given), of_torch(theirs, scores))


def test_a_label_that_no_class_has_is_no_number() -> None:
    model = node(
        "SoftmaxCrossEntropyLoss",
        [("x", "double", (2, 3)), ("label", "int32", (2,))],
        (2,),
        reduction="none",
    )
    apply, params = sx.to_jax(model)
    with jax.enable_x64(True):
        losses = np.asarray(apply(params, np.zeros((2, 3)), np.array([1, 3], np.int32)))
    assert np.isclose(losses[0], np.log(3)) and np.isnan(losses[1])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_attention(causal: bool, masked: bool) -> None:
    from sardonyx.engines.jax.math import dot_product_attention
    from sardonyx.engines.jax.xp import arrays

    q, k, v = (RNG.normal(size=(2, 3, 5, 4)) for _ in range(3))
    mask = RNG.normal(size=(2, 1, 5, 5)) if masked and not causal else None

    def ours(operands: Any) -> Any:
        y = dot_product_attention(arrays(), *operands, mask, scale=0.3, is_causal=causal)
        return (y * np.cos(np.arange(y.size)).reshape(y.shape)).sum(), y

    with jax.enable_x64(True):
        (_, value), slopes = jax.value_and_grad(ours, has_aux=True)((q, k, v))
    tensor = None if mask is None else torch.tensor(mask)
    theirs = of_torch(
        lambda *t: F.scaled_dot_product_attention(*t, tensor, is_causal=causal, scale=0.3), q, k, v
    )
    same((np.asarray(value), [np.asarray(g) for g in slopes]), theirs)
    low = dot_product_attention(
        arrays(), *(jax.numpy.asarray(a, "bfloat16") for a in (q, k, v)), None, scale=0.3,
        is_causal=causal,
    )  # fmt: skip
    assert low.dtype == "bfloat16"
