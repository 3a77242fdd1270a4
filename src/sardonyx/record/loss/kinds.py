"""What a loss is: a function of `op`, the labels that it needs, its settings.

A user's own loss is any function `(op, prediction, label) -> scalar value`, see `custom`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.errors import ArgumentError
from sardonyx.record.loss.class_axis import class_axis

Compute = Callable[..., ir.Value]
INT64 = ir.DataType.INT64
REDUCTIONS = ("mean", "sum")


@dataclass(frozen=True)
class Label:
    """One label of a loss: its type and shape follow from those of the prediction."""

    # "classes": integers without the class axis; "like": as the prediction; "pairs": one per pair
    kind: str
    axis: int | None = 1  # of the classes; None: the one that the graph shows

    def of(self, prediction: ir.Value) -> tuple[ir.DataType, list[Any]]:
        dims = list(prediction.shape) if prediction.shape is not None else []
        if self.kind == "like":
            return prediction.dtype, dims  # type: ignore[return-value]
        if self.kind == "pairs":
            return prediction.dtype, ["pairs"]  # type: ignore[return-value]
        axis = (class_axis(prediction)[0] if self.axis is None else self.axis) % len(dims)
        return INT64, dims[:axis] + dims[axis + 1 :]


@dataclass(frozen=True)
class Loss:
    """A named loss: `compute(op, prediction, *labels)` builds it.

    logits -- the prediction is taken before a final Softmax or Sigmoid, if the model ends with one
    settings -- all its arguments; a user's own loss has none
    names  -- what the labels are called, where the loss has names for them
    reads  -- further tensors of the model, by name, that `compute` gets before the labels
    """

    name: str
    compute: Compute
    labels: tuple[Label, ...] = (Label("like"),)
    logits: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()


@dataclass
class Term:
    """One part of a total loss: the tensor that it judges, its labels, and its weight.

    prediction -- the name of an output or any other tensor of the model; its first output if None
    """

    loss: Loss
    prediction: str | None = None
    labels: Sequence[str] | None = None
    weight: float = 1.0


def custom(
    function: Compute, labels: Sequence[Label] | None = None, name: str | None = None
) -> Loss:
    """A loss from a Python function of `op`.

    labels -- its labels: `Label("like")`, of the type and shape of the prediction (the
              default, one of them), `Label("classes")`, integers without the axis of the classes,
              or `Label("pairs")`, one number for each pair

    >>> import sardonyx as sx
    >>> def log_cosh(op, prediction, label):
    ...     return op.ReduceMean(op.Log(op.Cosh(op.Sub(prediction, label))), keepdims=0)
    >>> sx.loss.custom(log_cosh).name
    'log_cosh'
    """
    kinds = (Label("like"),) if labels is None else tuple(labels)
    return Loss(name or str(getattr(function, "__name__", "custom")), function, kinds)


def check_reduction(reduction: str) -> None:
    """Raise an error unless losses have this reduction."""
    if reduction not in REDUCTIONS:
        raise ArgumentError(f"reduction is one of {', '.join(REDUCTIONS)}, not {reduction!r}")


def reduce(op: Builder, x: ir.Value, reduction: str) -> ir.Value:
    """One number out of all elements; halves are added up in float32."""
    check_reduction(reduction)
    half = x.dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
    wide = op.cast(x, ir.DataType.FLOAT) if half else x
    total = op.ReduceMean if reduction == "mean" else op.ReduceSum
    return total(wide, keepdims=0)
