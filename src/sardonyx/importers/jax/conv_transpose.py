"""Convolutions of JAX over images with zeros between their pixels, as ConvTranspose."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import onnx_ir as ir

from sardonyx.build import constant
from sardonyx.importers.jax.shapes import END
from sardonyx.importers.jax.writer import Writer, is_static


def transposed(
    op: Writer,
    x: ir.Value,
    kernel: ir.Value,
    spec: Sequence[int],
    padding: Sequence[tuple[int, int]],
    strides: Sequence[int],
    dilations: Sequence[int],
    groups: int,
) -> ir.Value | None:
    """The ConvTranspose that a convolution of `x` with spread pixels is; None where it is none.

    x       -- [batch, channels, …]
    kernel  -- as JAX has it; `spec` names its axes: those of results, of channels, of space
    strides -- how far the pixels are spread
    """
    if x.dtype != ir.DataType.FLOAT or kernel.shape is None or not is_static(list(kernel.shape)):
        return None
    sizes = [int(kernel.shape[a]) for a in spec[2:]]  # type: ignore[arg-type]
    reaches = [(k - 1) * int(d) for k, d in zip(sizes, dilations, strict=True)]
    starts = [r - int(low) for r, (low, _) in zip(reaches, padding, strict=True)]
    ends = [r - int(high) for r, (_, high) in zip(reaches, padding, strict=True)]
    more = [max(0, -end) for end in ends]
    fits = all(m < max(int(s), int(d)) for m, s, d in zip(more, strides, dilations, strict=True))
    if not fits or any(v < 0 for v in starts):
        return None
    y: ir.Value = op.ConvTranspose(
        x,
        _kernel(op, kernel, spec, groups),
        strides=[int(s) for s in strides],
        dilations=[int(d) for d in dilations],
        pads=[*starts, *(max(0, end) for end in ends)],
        output_padding=more,
        group=groups,
    )
    return y


def _kernel(op: Writer, kernel: ir.Value, spec: Sequence[int], groups: int) -> ir.Value:
    """The kernel that ConvTranspose takes: backwards, and channels before results."""
    shape: list[Any] = list(kernel.shape)  # type: ignore[arg-type]
    source, order = _backwards(op, kernel, [a for a in spec[2:] if shape[a] != 1])
    if groups == 1:
        return op.transpose(source, [order[a] for a in (spec[1], spec[0], *spec[2:])])
    w = op.transpose(source, [order[a] for a in spec])
    results, channels, *sizes = (int(shape[a]) for a in spec)
    w = op.reshape(w, [groups, results // groups, channels, *sizes])
    w = op.transpose(w, [0, 2, 1, *range(3, 3 + len(sizes))])
    return op.reshape(w, [groups * channels, results // groups, *sizes])


def _backwards(op: Writer, x: ir.Value, axes: Collection[int]) -> tuple[ir.Value, list[int]]:
    """`x` with some axes reversed, as a value and the order of its axes.

    JAX reverses a kernel for a transposed convolution, and so does ConvTranspose: both are left
    out, where `x` comes from reversals.
    """
    order, rest = list(range(len(x.shape))), set(axes)  # type: ignore[arg-type]
    while (node := x.producer()) is not None:
        if node.op_type == "Transpose" and "perm" in node.attributes:
            perm = node.attributes["perm"].as_ints()
            order, rest = [perm[a] for a in order], {perm[a] for a in rest}
        elif (reversal := _reversal(node)) is not None:
            rest ^= reversal
        else:
            break
        x = node.inputs[0]  # type: ignore[assignment]
    if rest:
        count = len(rest)
        x = op.Slice(x, [-1] * count, [-END] * count, sorted(rest), [-1] * count)
    return x, order


def _reversal(node: ir.Node) -> set[int] | None:
    """The axes that a Slice reverses as a whole; None for any other node."""
    if node.op_type != "Slice" or len(node.inputs) != 5 or node.inputs[0].shape is None:  # type: ignore[union-attr]
        return None
    parts: list[Any] = [constant(v) for v in node.inputs[1:] if v is not None]
    if len(parts) != 4 or any(p is None for p in parts):
        return None
    starts, ends, axes, steps = parts
    if (starts != -1).any() or (steps != -1).any() or (ends > -(1 << 31)).any():
        return None
    return {int(a) for a in axes}
