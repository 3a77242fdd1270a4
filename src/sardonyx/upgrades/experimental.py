"""Operators that were experimental until opset 9: no schema today, but onnxruntime runs them."""

from __future__ import annotations

import numpy as np

from sardonyx.upgrades.driver import ints, like, take, upgrade


@upgrade("Affine", to=10, shapes=True)
def affine_1_10(op, node):
    x = node.inputs[0]
    scaled = op.Mul(x, like(op, take(node, "alpha", 1.0), x))
    return op.Add(scaled, like(op, take(node, "beta", 0.0), x))


@upgrade("ImageScaler", to=10, shapes=True)
def imagescaler_1_10(op, node):
    x = node.inputs[0]
    bias = np.array(take(node, "bias", ()), np.float32).reshape(-1, 1, 1)
    scaled = op.Mul(x, like(op, take(node, "scale", 1.0), x))
    return op.Add(scaled, op.CastLike(op.const(bias), x)) if bias.size else scaled


@upgrade("Scale", to=10, shapes=True)
def scale_1_10(op, node):
    x = node.inputs[0]
    return op.Mul(x, like(op, take(node, "scale", 1.0), x))


@upgrade("ScaledTanh", to=10, shapes=True)
def scaledtanh_1_10(op, node):
    x = node.inputs[0]
    inner = op.Tanh(op.Mul(x, like(op, take(node, "beta", 1.0), x)))
    return op.Mul(inner, like(op, take(node, "alpha", 1.0), x))


@upgrade("ParametricSoftplus", to=10, shapes=True)
def parametricsoftplus_1_10(op, node):
    x = node.inputs[0]
    inner = op.Softplus(op.Mul(x, like(op, take(node, "beta", 1.0), x)))
    return op.Mul(inner, like(op, take(node, "alpha", 1.0), x))


@upgrade("Crop", to=10)
def crop_1_10(op, node):
    left, top, right, bottom = take(node, "border")
    size = take(node, "scale")
    whole = np.iinfo(np.int64).max
    if size is not None:
        ends = (top + size[0], left + size[1])
    else:
        ends = (-bottom or whole, -right or whole)
    return op.Slice(node.inputs[0], ints(op, (top, left)), ints(op, ends), ints(op, (2, 3)))


@upgrade("MeanVarianceNormalization", to=9)
def meanvariancenormalization_1_9(op, node):
    x = node.inputs[0]
    across, scaled = take(node, "across_channels", 0), take(node, "normalize_variance", 1)
    axes = (0, 1, 2, 3) if across else (0, 2, 3)
    if scaled:
        return op.MeanVarianceNormalization(x, axes=axes)
    return op.Sub(x, op.ReduceMean(x, ints(op, axes)))


@upgrade("DynamicSlice", to=10)
def dynamicslice_1_10(op, node):
    return op.Slice(*node.inputs)
