"""Rules of the operators with which TensorFlow writes gradients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.build import rank
from sardonyx.importers.tensorflow.ops.windows import is_first, pads_of, spatial
from sardonyx.importers.tensorflow.reader import importer
from sardonyx.importers.tensorflow.writer import Refusal, Writer


@importer("TanhGrad")
def tanh_grad(op: Writer, y: ir.Value, g: ir.Value) -> ir.Value:
    return op.Mul(g, op.Sub(op.like(1, y), op.Mul(y, y)))


@importer("SigmoidGrad")
def sigmoid_grad(op: Writer, y: ir.Value, g: ir.Value) -> ir.Value:
    return op.Mul(op.Mul(g, y), op.Sub(op.like(1, y), y))


@importer("ReluGrad")
def relu_grad(op: Writer, g: ir.Value, x: ir.Value) -> ir.Value:
    return op.Where(op.Greater(x, op.like(0, x)), g, op.like(0, g))


@importer("Relu6Grad")
def relu6_grad(op: Writer, g: ir.Value, x: ir.Value) -> ir.Value:
    inside = op.And(op.Greater(x, op.like(0, x)), op.Less(x, op.like(6, x)))
    return op.Where(inside, g, op.like(0, g))


@importer("LeakyReluGrad")
def leaky_relu_grad(op: Writer, g: ir.Value, x: ir.Value, *, alpha: float) -> ir.Value:
    return op.Where(op.Greater(x, op.like(0, x)), g, op.Mul(g, op.like(alpha, g)))


@importer("EluGrad")
def elu_grad(op: Writer, g: ir.Value, y: ir.Value) -> ir.Value:
    return op.Where(op.Less(y, op.like(0, y)), op.Mul(g, op.Add(y, op.like(1, y))), g)


@importer("SoftplusGrad")
def softplus_grad(op: Writer, g: ir.Value, x: ir.Value) -> ir.Value:
    return op.Mul(g, op.Sigmoid(x))


@importer("SoftsignGrad")
def softsign_grad(op: Writer, g: ir.Value, x: ir.Value) -> ir.Value:
    size = op.Add(op.Abs(x), op.like(1, x))
    return op.Div(g, op.Mul(size, size))


@importer("SqrtGrad")
def sqrt_grad(op: Writer, y: ir.Value, g: ir.Value) -> ir.Value:
    return op.Div(op.Mul(g, op.like(0.5, g)), y)


@importer("RsqrtGrad")
def rsqrt_grad(op: Writer, y: ir.Value, g: ir.Value) -> ir.Value:
    return op.Mul(op.Mul(g, op.like(-0.5, g)), op.Mul(op.Mul(y, y), y))


@importer("ReciprocalGrad", "InvGrad")
def reciprocal_grad(op: Writer, y: ir.Value, g: ir.Value) -> ir.Value:
    return op.Neg(op.Mul(g, op.Mul(y, y)))


@importer("BiasAddGrad")
def bias_add_grad(op: Writer, g: ir.Value, *, data_format: str) -> ir.Value:
    n = rank(g)
    channel = 1 if is_first(data_format) and n > 2 else n - 1
    return op.ReduceSum(g, [a for a in range(n) if a != channel], keepdims=0)


@importer("Conv2DBackpropFilter")
def conv2d_backprop_filter(
    op: Writer,
    x: ir.Value,
    sizes: ir.Value,
    g: ir.Value,
    *,
    strides: Sequence[int],
    padding: str,
    data_format: str,
    dilations: Sequence[int],
    explicit_paddings: Sequence[int] = (),
) -> ir.Value:
    """A convolution over the batch: the image with the gradient as its kernel."""
    kernel = [int(d) for d in op.known(sizes, "the size of a kernel")]
    image = x if is_first(data_format) else op.channels_first(x)
    back = g if is_first(data_format) else op.channels_first(g)
    dims = list(image.shape)[2:]  # type: ignore[arg-type]
    if any(not isinstance(d, int) for d in dims) or image.shape[1] != kernel[2]:  # type: ignore[index]
        raise Refusal("the gradient of a kernel by images of free size, or in groups")
    steps, gaps = spatial(strides, data_format), spatial(dilations, data_format)
    pads = pads_of(padding, dims, kernel[:2], steps, gaps, explicit_paddings, data_format)
    y = op.Conv(
        op.Transpose(image, perm=[1, 0, 2, 3]),
        op.Transpose(back, perm=[1, 0, 2, 3]),
        strides=gaps,
        dilations=steps,
        **pads,
    )
    y = op.Slice(y, [0, 0], kernel[:2], [2, 3])  # a stride may leave positions at the end
    return op.Transpose(y, perm=[2, 3, 0, 1])


@importer("BroadcastGradientArgs")
def broadcast_gradient_args(op: Writer, a: ir.Value, b: ir.Value) -> list[ir.Value]:
    """The axes over which gradients are summed, where the sizes that matter are known."""
    shapes = [op.elements(v) for v in (a, b)]
    if any(s is None for s in shapes):
        raise Refusal("the gradient of a broadcast of free sizes")
    n = max(len(s) for s in shapes)  # type: ignore[arg-type]
    rows = [[1] * (n - len(s)) + list(s) for s in shapes]  # type: ignore[arg-type]
    axes: list[list[int]] = [[], []]
    for axis, (mine, other) in enumerate(zip(*rows, strict=True)):
        if mine is other or (hasattr(mine, "same") and mine.same(other)):
            continue
        if not isinstance(mine, int) or not isinstance(other, int):
            raise Refusal("the gradient of a broadcast of free sizes")
        for side, size in enumerate((mine, other)):
            if size == 1:
                axes[side].append(axis)
    return [op.const(np.array(v, np.int64), a.dtype) for v in axes]
