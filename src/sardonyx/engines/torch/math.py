"""torch's own kernels of ONNX's family math: one pass over memory, not several."""

from __future__ import annotations

from sardonyx.engines.torch.xp import torch
from sardonyx.lower.engine import lower
from sardonyx.lower.math import product


@lower("Softmax", only="torch")
def softmax(xp, x, *, axis):
    return torch.softmax(x, axis)


@lower("LogSoftmax", only="torch")
def log_softmax(xp, x, *, axis):
    return torch.log_softmax(x, axis)


@lower("Relu", only="torch")
def relu(xp, x):
    return torch.relu(x)


@lower("Sigmoid", only="torch")
def sigmoid(xp, x):
    return torch.sigmoid(x)


@lower("Gelu", only="torch")
def gelu(xp, x, *, approximate):
    return torch.nn.functional.gelu(x, approximate=approximate)


@lower("Gemm", only="torch")
def gemm(xp, a, b, c=None, *, alpha, beta, transA, transB):
    plain = a.dtype.is_floating_point and alpha == beta == 1 and not transA
    if not plain or (c is not None and c.ndim != 1):
        return product.gemm(xp, a, b, c, alpha=alpha, beta=beta, transA=transA, transB=transB)
    if c is not None and c.shape[0] == 1:
        return torch.add(torch.nn.functional.linear(a, b if transB else b.t()), c)
    return torch.nn.functional.linear(a, b if transB else b.t(), c)
