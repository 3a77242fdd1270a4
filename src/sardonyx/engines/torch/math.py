"""torch's kernels for ONNX's family math: one pass over memory instead of several."""

from __future__ import annotations

import numpy as np

from sardonyx.engines.torch.xp import torch
from sardonyx.lower.driver import lowering
from sardonyx.lower.math import elementwise, product
from sardonyx.lower.xp import is_symbolic, settle


@lowering("Softmax", only="torch")
def softmax(xp, x, *, axis):
    return torch.softmax(x, axis)


@lowering("LogSoftmax", only="torch")
def log_softmax(xp, x, *, axis):
    return torch.log_softmax(x, axis)


@lowering("Relu", only="torch")
def relu(xp, x):
    return torch.relu(x)


@lowering("Sigmoid", only="torch")
def sigmoid(xp, x):
    return torch.sigmoid(x)


@lowering("Gelu", only="torch")
def gelu(xp, x, *, approximate):
    return torch.nn.functional.gelu(x, approximate=approximate)


@lowering("Mod", only="torch", either=("a", "b"))
def mod(xp, a, b, *, fmod):
    """The shared rule; the remainder of symbolic sizes stays symbolic."""
    are_numpy = isinstance(a, np.ndarray) and isinstance(b, np.ndarray)
    if are_numpy and not fmod and (is_symbolic(a) or is_symbolic(b)):
        a, b = np.broadcast_arrays(a.astype(object), b.astype(object))
        rest = [p % q for p, q in zip(a.flat, b.flat)]
        return settle(rest, a.shape)
    a, b = (xp.known(v) if isinstance(v, np.ndarray) else v for v in (a, b))
    return elementwise.mod(xp, a, b, fmod=fmod)


@lowering("Gemm", only="torch")
def gemm(xp, a, b, c=None, *, alpha, beta, transA, transB):
    plain = a.dtype.is_floating_point and alpha == beta == 1 and not transA
    if not plain or (c is not None and c.ndim != 1):
        return product.gemm(xp, a, b, c, alpha=alpha, beta=beta, transA=transA, transB=transB)
    if c is not None and c.shape[0] == 1:
        return torch.add(torch.nn.functional.linear(a, b if transB else b.t()), c)
    return torch.nn.functional.linear(a, b if transB else b.t(), c)


@lowering("SoftmaxCrossEntropyLoss", only="torch")
def softmax_cross_entropy_loss(xp, scores, labels, weights=None, *, ignore_index, reduction, count):
    """torch's fused loss; classes that are the last axis in memory are not moved."""
    classes = scores.shape[1]
    log_prob = torch.log_softmax(scores, 1) if count > 1 or weights is not None else None
    target = labels.long()
    ignored = -100 if ignore_index is None else ignore_index
    if weights is not None:
        loss = _weighted_loss(log_prob, target, weights, ignored, reduction)
        return (loss, log_prob)[:count]
    if scores.ndim > 2 and scores.stride(1) == 1 and reduction != "none":
        scores, target = scores.movedim(1, -1).reshape(-1, classes), target.reshape(-1)
    loss = torch.nn.functional.cross_entropy(
        scores, target, ignore_index=ignored, reduction=reduction
    )
    return (loss, log_prob)[:count]


def _weighted_loss(log_prob, target, weights, ignored, reduction):
    """Differentiable by the weights of classes too, as torch's own loss is not."""
    counted = target != ignored
    index = torch.where(counted, target, 0)
    picked = log_prob.gather(1, index.unsqueeze(1)).squeeze(1)
    factors = torch.where(counted, weights[index], 0)
    losses = -picked * factors
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.sum() / factors.sum()
