"""Every loss: its value and its gradient against torch, in float64; and where it must stay
finite.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import sardonyx as sx
from sardonyx.build import Builder
from sardonyx.model import Model
from sardonyx.record.loss import Loss
from sardonyx.testing import Runner

torch = pytest.importorskip("torch")
F = torch.nn.functional
rng = np.random.default_rng(5)


def loss_model(loss: Loss, prediction: np.ndarray, labels: list[np.ndarray]) -> Model:
    """The loss alone as a model: inputs `z`, `y0`, `y1`, …, output `loss`."""
    op = Builder("loss")
    arrays = {"z": prediction, **{f"y{i}": y for i, y in enumerate(labels)}}
    values = [
        ir.Value(
            name=n, type=ir.TensorType(ir.DataType.from_numpy(a.dtype)), shape=ir.Shape(a.shape)
        )
        for n, a in arrays.items()
    ]
    with op:
        out = op.Identity(loss.compute(op, *values))
    out.name = "loss"
    graph = ir.Graph(
        values,
        [out],
        nodes=op.nodes,
        initializers=list(op.constants.values()),
        opset_imports={"": 28},
        name="loss",
    )
    return Model(ir.Model(graph, ir_version=10))


def value_and_gradient(
    loss: Loss, prediction: np.ndarray, labels: list[np.ndarray]
) -> tuple[Any, Any]:
    model = loss_model(loss, prediction, labels)
    result = Runner(sx.grad(model, of="loss", wrt="z"))(
        {"z": prediction, **{f"y{i}": y for i, y in enumerate(labels)}}
    )
    return result["loss"], result["grad/z"]


Z = rng.normal(size=(5, 4))
CLASSES = rng.integers(0, 4, 5)
DENSE = rng.normal(size=(2, 4, 3, 2))
DENSE_CLASSES = rng.integers(0, 4, (2, 3, 2))
SOME_IGNORED = np.array([0, 3, 1, 1, 2])
WEIGHTS = [0.5, 2.0, 1.0, 0.1]
PROBABILITIES = rng.dirichlet(np.ones(4), 5)
Y = rng.normal(size=(5, 4))
BITS = rng.integers(0, 2, (5, 4)).astype(float)
W = torch.tensor(WEIGHTS, dtype=torch.float64)
L = sx.loss

TABLE: dict[str, tuple[Loss, np.ndarray, list[np.ndarray], Callable[..., Any]]] = {
    "cross entropy": (L.cross_entropy(), Z, [CLASSES], F.cross_entropy),
    "cross entropy, images": (L.cross_entropy(), DENSE, [DENSE_CLASSES], F.cross_entropy),
    "cross entropy, last axis": (
        L.cross_entropy(axis=-1),
        DENSE.transpose(0, 2, 3, 1).copy(),
        [DENSE_CLASSES],
        lambda z, y: F.cross_entropy(z.permute(0, 3, 1, 2), y),
    ),
    "cross entropy, weights": (
        L.cross_entropy(weight=WEIGHTS),
        Z,
        [CLASSES],
        lambda z, y: F.cross_entropy(z, y, W),
    ),
    "cross entropy, ignored": (
        L.cross_entropy(weight=WEIGHTS, ignore_index=1),
        Z,
        [SOME_IGNORED],
        lambda z, y: F.cross_entropy(z, y, W, ignore_index=1),
    ),
    "cross entropy, sum": (
        L.cross_entropy(reduction="sum"),
        Z,
        [CLASSES],
        lambda z, y: F.cross_entropy(z, y, reduction="sum"),
    ),
    "cross entropy, smoothed": (
        L.cross_entropy(label_smoothing=0.2),
        Z,
        [CLASSES],
        lambda z, y: F.cross_entropy(z, y, label_smoothing=0.2),
    ),
    "cross entropy, smoothed, weights, ignored": (
        L.cross_entropy(label_smoothing=0.2, weight=WEIGHTS, ignore_index=1),
        Z,
        [SOME_IGNORED],
        lambda z, y: F.cross_entropy(z, y, W, ignore_index=1, label_smoothing=0.2),
    ),
    "cross entropy, smoothed images": (
        L.cross_entropy(label_smoothing=0.1, weight=WEIGHTS),
        DENSE,
        [DENSE_CLASSES],
        lambda z, y: F.cross_entropy(z, y, W, label_smoothing=0.1),
    ),
    "cross entropy, probabilities": (
        L.cross_entropy(probabilities=True),
        Z,
        [PROBABILITIES],
        F.cross_entropy,
    ),
    "cross entropy, probabilities, weights, smoothed": (
        L.cross_entropy(probabilities=True, weight=WEIGHTS, label_smoothing=0.1),
        Z,
        [PROBABILITIES],
        lambda z, y: F.cross_entropy(z, y, W, label_smoothing=0.1),
    ),
    "binary cross entropy": (
        L.binary_cross_entropy(),
        Z,
        [BITS],
        F.binary_cross_entropy_with_logits,
    ),
    "binary cross entropy, pos_weight": (
        L.binary_cross_entropy(pos_weight=3.0),
        Z,
        [BITS],
        lambda z, y: F.binary_cross_entropy_with_logits(z, y, pos_weight=torch.tensor(3.0)),
    ),
    "mse": (L.mse(), Z, [Y], F.mse_loss),
    "mse, sum": (L.mse("sum"), Z, [Y], lambda z, y: F.mse_loss(z, y, reduction="sum")),
    "l1": (L.l1(), Z, [Y], F.l1_loss),
    "huber": (L.huber(0.7), Z, [Y], lambda z, y: F.huber_loss(z, y, delta=0.7)),
    "hinge": (L.hinge(), Z, [2 * BITS - 1], lambda z, y: torch.relu(1 - z * y).mean()),
    "kl": (
        L.kl_divergence(),
        np.log(rng.dirichlet(np.ones(4), 5)),
        [PROBABILITIES],
        lambda z, y: F.kl_div(z, y, reduction="batchmean"),
    ),
    "kl, zeros in the target": (
        L.kl_divergence(),
        np.log(rng.dirichlet(np.ones(4), 5)),
        [np.eye(4)[CLASSES]],
        lambda z, y: F.kl_div(z, y, reduction="batchmean"),
    ),
    "cosine": (
        L.cosine(),
        Z,
        [Y],
        lambda z, y: F.cosine_embedding_loss(z, y, torch.ones(5, dtype=torch.float64)),
    ),
    "triplet": (
        L.triplet(0.8),
        rng.normal(size=(9, 4)),
        [],
        lambda z: F.triplet_margin_loss(z[0::3], z[1::3], z[2::3], margin=0.8, eps=0.0),
    ),
    "contrastive": (
        L.contrastive(3.0),
        rng.normal(size=(8, 4)),
        [np.array([1.0, 0.0, 0.0, 1.0])],
        lambda z, y: (
            y * (z[0::2] - z[1::2]).pow(2).sum(1)
            + (1 - y) * torch.relu(3.0 - (z[0::2] - z[1::2]).norm(dim=1)) ** 2
        ).mean(),
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_matches_torch(name: str) -> None:
    loss, prediction, labels, function = TABLE[name]
    z = torch.tensor(prediction, requires_grad=True)
    expected = function(z, *(torch.tensor(y) for y in labels))
    expected.backward()
    value, gradient = value_and_gradient(loss, prediction, labels)
    np.testing.assert_allclose(value, expected.item(), rtol=1e-9)
    np.testing.assert_allclose(gradient, z.grad.numpy(), rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("lengths", [[3, 2, 1], [3, 0, 2]])
def test_ctc_matches_torch(lengths: list[int]) -> None:
    z = rng.normal(size=(3, 8, 5))
    labels = np.array([[1, 1, 2], [3, 4, 0], [2, 1, 0]])
    tensor = torch.tensor(z, requires_grad=True)
    expected = F.ctc_loss(
        tensor.log_softmax(-1).permute(1, 0, 2),
        torch.tensor(labels),
        torch.full((3,), 8),
        torch.tensor(lengths),
        reduction="mean",
    )
    expected.backward()
    value, gradient = value_and_gradient(sx.loss.ctc(), z, [labels, np.array(lengths)])
    np.testing.assert_allclose(value, expected.item(), rtol=1e-7)
    np.testing.assert_allclose(gradient, tensor.grad.numpy(), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("logit", [-1000.0, 1000.0])
@pytest.mark.parametrize("label", [0.0, 1.0])
def test_binary_cross_entropy_is_finite_at_extreme_logits(logit: float, label: float) -> None:
    z = np.full((2, 1), logit, np.float32)
    value, gradient = value_and_gradient(
        sx.loss.binary_cross_entropy(), z, [np.full((2, 1), label, np.float32)]
    )
    wrong = (logit > 0) != (label > 0)
    assert value == (1000.0 if wrong else 0.0)
    np.testing.assert_allclose(gradient, (np.sign(logit) / 2 if wrong else 0.0) * np.ones((2, 1)))


def test_cross_entropy_is_finite_at_extreme_logits() -> None:
    z = np.array([[1000.0, -1000.0]], np.float32)
    value, gradient = value_and_gradient(sx.loss.cross_entropy(), z, [np.array([1])])
    assert value == 2000.0
    np.testing.assert_allclose(gradient, [[1.0, -1.0]])


def test_unknown_loss_is_refused() -> None:
    with pytest.raises(sx.errors.ArgumentError, match="no loss is called 'mae'"):
        sx.loss.named("mae")
