"""Connectionist temporal classification: the loss of all alignments between frames and labels.

The forward algorithm in log space, as one Scan over the frames, so that its gradient comes from the
rule of Scan. Blank is class 0 by default; labels shorter than the longest are padded, their lengths
are fed.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.errors import ArgumentError
from sardonyx.record.loss.kinds import INT64, Label, Loss

# Log of "impossible". Finite, so that differences of impossible values are 0 and not NaN.
NEVER = -1e30


def ctc(blank: int = 0, batch_first: bool = True, reduction: str = "mean") -> Loss:
    """CTC; prediction (batch, frames, classes) of logits, labels (batch, length), label lengths
    (batch).
    """

    def compute(op: Builder, z: ir.Value, labels: ir.Value, lengths: ir.Value) -> ir.Value:
        with op:
            logp = op.LogSoftmax(z, axis=-1)
            frames = op.transpose(logp, [1, 0, 2]) if batch_first else logp
            states = _extended(op, labels, blank)
            alpha = _forward(op, frames, states, labels, blank)
            last = op.Unsqueeze(lengths * 2, [1])
            ends = op.Concat(last, op.Max(last - 1, 0), axis=1)
            picked = op.GatherElements(alpha, ends, axis=1)
            # an empty label has one end, not two
            twice = op.And(op.Equal(last, 0), op.const([[False, True]]))
            each = op.Neg(_logsumexp(op, op.Where(twice, NEVER, picked), 1))
            if reduction == "sum":
                return op.ReduceSum(each, keepdims=0)
            if reduction != "mean":
                raise ArgumentError(f"reduction is mean or sum, not {reduction!r}")
            return op.ReduceMean(each / op.cast(op.Max(lengths, 1), z.dtype), keepdims=0)  # type: ignore[arg-type]

    settings = {"blank": blank, "batch_first": batch_first, "reduction": reduction}
    return Loss("ctc", compute, (_Sequence(), _Lengths()), settings=settings)


class _Sequence(Label):
    def __init__(self) -> None:
        super().__init__("labels")

    def of(self, prediction: ir.Value) -> tuple[ir.DataType, list[object]]:
        return INT64, [prediction.shape[0], "label_length"]  # type: ignore[index]


class _Lengths(Label):
    def __init__(self) -> None:
        super().__init__("lengths")

    def of(self, prediction: ir.Value) -> tuple[ir.DataType, list[object]]:
        return INT64, [prediction.shape[0]]  # type: ignore[index]


def _extended(op: Builder, labels: ir.Value, blank: int) -> ir.Value:
    """Blank, label, blank, label, …, blank: (batch, 2 * length + 1)."""
    column = op.Unsqueeze(labels, [2])
    pairs = op.Concat(column, op.fill(blank, column), axis=2)
    flat = op.Reshape(pairs, op.Concat(op.Shape(labels, start=0, end=1), op.const([-1]), axis=0))
    return op.Pad(flat, [0, 1, 0, 0], blank)


def _forward(
    op: Builder, frames: ir.Value, states: ir.Value, labels: ir.Value, blank: int
) -> ir.Value:
    """Log-probability of every prefix after the last frame."""
    first, second = op.Slice(states, [0], [-2], [1]), op.Slice(states, [2], [2**31 - 1], [1])
    # a label may be reached past the blank before it, unless it repeats the label before
    skip = op.And(op.Not(op.Equal(first, second)), op.Not(op.Equal(second, blank)))
    skip = op.Pad(op.cast(skip, frames.dtype), [0, 2, 0, 0], 0.0)  # type: ignore[arg-type]
    penalty = (1.0 - skip) * NEVER
    emitted = op.GatherElements(
        frames,
        op.Expand(states, op.Concat(op.Shape(frames, start=0, end=1), op.Shape(states), axis=0)),
        axis=2,
    )
    # before the first frame, all mass stands just before the first blank
    zero = op.cast(op.Equal(op.CumSum(op.fill(1, states), 1), 1), frames.dtype)  # type: ignore[arg-type]
    start = (1.0 - zero) * NEVER
    body_op = Builder("ctc", parent=op)
    alpha = ir.Value(name=op.fresh("ctc/alpha"), type=start.type, shape=start.shape)
    emit = ir.Value(name=op.fresh("ctc/emit"), type=start.type, shape=start.shape)
    with body_op:
        one = body_op.Pad(body_op.Slice(alpha, [0], [-1], [1]), [0, 1, 0, 0], NEVER)
        two = body_op.Pad(body_op.Slice(alpha, [0], [-2], [1]), [0, 2, 0, 0], NEVER)
        stack = body_op.Concat(
            *(body_op.Unsqueeze(v, [0]) for v in (alpha, one, two + penalty)), axis=0
        )
        new = body_op.Max(_logsumexp(body_op, stack, 0) + emit, NEVER)
    body = ir.Graph([alpha, emit], [new], nodes=body_op.nodes, name="ctc")
    out = op.Scan(start, emitted, num_scan_inputs=1, body=body)
    out.type, out.shape = start.type, start.shape
    return out


def _logsumexp(op: Builder, x: ir.Value, axis: int) -> ir.Value:
    top = op.ReduceMax(x, [axis], keepdims=1)
    total = op.ReduceSum(op.Exp(op.Sub(x, top)), [axis], keepdims=1)
    return op.Squeeze(op.Add(op.Log(total), top), np.array([axis]))
