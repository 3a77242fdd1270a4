"""Gradients of ONNX's `nn` family: convolution, pooling, normalisation, attention, and the rest."""

from sardonyx.grad.nn import attention, batch_norm, conv, deform, norm, pool, simple

__all__ = ["attention", "batch_norm", "conv", "deform", "norm", "pool", "simple"]
