"""Losses: functions of `op` that turn a prediction and a label into one number.

Each is made by a function of its settings (`cross_entropy(label_smoothing=0.1)`) and says what
label it
wants. A user's own loss is any function `(op, prediction, label) -> scalar value`, see `custom`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder, rank
from sardonyx.errors import ArgumentError

Compute = Callable[..., ir.Value]
INT64 = ir.DataType.INT64
REDUCTIONS = ("mean", "sum")


@dataclass(frozen=True)
class Label:
    """What a loss asks to be fed: the type and shape of a label, from those of the prediction."""

    # "classes": integers without the class axis; "like": as the prediction; "pairs": one per pair
    kind: str
    axis: int = 1

    def of(self, prediction: ir.Value) -> tuple[ir.DataType, list[Any]]:
        dims = list(prediction.shape) if prediction.shape is not None else []
        if self.kind == "like":
            return prediction.dtype, dims  # type: ignore[return-value]
        if self.kind == "pairs":
            return prediction.dtype, ["pairs"]  # type: ignore[return-value]
        axis = self.axis % len(dims)
        return INT64, dims[:axis] + dims[axis + 1 :]


@dataclass(frozen=True)
class Loss:
    """A named loss: `compute(op, prediction, *labels)` builds it.

    logits -- the prediction is taken before a final Softmax or Sigmoid, if the model ends with one
    settings -- all arguments that it was made with; a loss of one's own has none
    names  -- what the labels are called, where the loss has names for them
    """

    name: str
    compute: Compute
    labels: tuple[Label, ...] = (Label("like"),)
    logits: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] = ()


@dataclass
class Term:
    """One part of a total loss: which output it looks at, its labels, and how much it counts."""

    loss: Loss
    output: str | None = None
    labels: Sequence[str] | None = None
    weight: float = 1.0


def graph(source: Any, labels: Sequence[Label] | None = None, name: str | None = None) -> Loss:
    """A loss out of an ONNX file, model or function: see `graph_loss.graph`."""
    from sardonyx.train import graph_loss

    return graph_loss.graph(source, labels, name)


def custom(
    function: Compute, labels: Sequence[Label] | None = None, name: str | None = None
) -> Loss:
    """A loss out of a Python function of `op`.

    >>> import sardonyx as sx
    >>> def log_cosh(op, prediction, label):
    ...     return op.ReduceMean(op.Log(op.Cosh(op.Sub(prediction, label))), keepdims=0)
    >>> sx.loss.custom(log_cosh).name
    'log_cosh'
    """
    kinds = (Label("like"),) if labels is None else tuple(labels)
    return Loss(name or str(getattr(function, "__name__", "custom")), function, kinds)


def _reduce(op: Builder, x: ir.Value, reduction: str) -> ir.Value:
    if reduction not in REDUCTIONS:
        raise ArgumentError(f"reduction is one of {', '.join(REDUCTIONS)}, not {reduction!r}")
    wide = (
        op.cast(x, ir.DataType.FLOAT)
        if x.dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
        else x
    )
    return (
        op.ReduceMean(wide, keepdims=0) if reduction == "mean" else op.ReduceSum(wide, keepdims=0)
    )


# -- classification -----------------------------------------------------------------


def cross_entropy(
    weight: Sequence[float] | None = None,
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    probabilities: bool = False,
    axis: int = 1,
    reduction: str = "mean",
) -> Loss:
    """Softmax cross entropy of logits; labels are class numbers, or probabilities if asked.

    As in torch: `mean` divides by the summed weights of the labels that are not ignored.
    """
    if reduction not in REDUCTIONS:
        raise ArgumentError(f"reduction is one of {', '.join(REDUCTIONS)}, not {reduction!r}")

    def compute(op: Builder, z: ir.Value, y: ir.Value) -> ir.Value:
        if axis % rank(z) != 1 and not probabilities:
            n = rank(z)
            z = op.transpose(z, [0, axis % n, *(a for a in range(1, n) if a != axis % n)])
        if probabilities:
            return _soft_cross_entropy(op, z, y, weight, label_smoothing, axis, reduction)
        if not label_smoothing:
            classes = None if weight is None else op.const(weight, z.dtype)
            extra = {} if ignore_index is None else {"ignore_index": ignore_index}
            return op.SoftmaxCrossEntropyLoss(z, y, classes, reduction=reduction, **extra)
        return _smoothed(op, z, y, weight, ignore_index, label_smoothing, reduction)

    label = Label("like") if probabilities else Label("classes", axis)
    settings = {k: v for k, v in locals().items() if k in _CROSS_ENTROPY}
    return Loss("cross_entropy", compute, (label,), "Softmax", settings)


_CROSS_ENTROPY = ("weight", "ignore_index", "label_smoothing", "probabilities", "axis", "reduction")


def _soft_cross_entropy(
    op: Builder, z: ir.Value, y: ir.Value, weight: Any, smoothing: float, axis: int, reduction: str
) -> ir.Value:
    classes = op.dim(z, axis)
    if not isinstance(classes, int):
        raise ArgumentError("label probabilities need a known number of classes")
    with op:
        if smoothing:
            y = y * (1.0 - smoothing) + smoothing / classes
        terms = y * op.LogSoftmax(z, axis=axis)
        if weight is not None:
            shape = [classes if a == axis % rank(z) else 1 for a in range(rank(z))]
            terms = terms * op.const(np.reshape(weight, shape), z.dtype)
        rows = op.Neg(op.total(terms, [axis]))
    return _reduce(op, rows, reduction)


def _smoothed(
    op: Builder,
    z: ir.Value,
    y: ir.Value,
    weight: Any,
    ignore: int | None,
    smoothing: float,
    reduction: str,
) -> ir.Value:
    """torch's label smoothing: the smooth part sums the weighted log-probabilities of all
    classes.
    """
    classes = op.dim(z, 1)
    if not isinstance(classes, int):
        raise ArgumentError("label smoothing needs a known number of classes")
    with op:
        logp = op.LogSoftmax(z, axis=1)
        keep = (
            op.cast(op.Not(op.Equal(y, ignore)), z.dtype)
            if ignore is not None
            else op.fill(1, y, z.dtype)
        )  # type: ignore[arg-type]
        safe = op.Where(op.Equal(y, ignore), 0, y) if ignore is not None else y
        picked = op.Squeeze(op.GatherElements(logp, op.Unsqueeze(safe, [1]), axis=1), [1])
        if weight is None:
            each, smooth = keep, op.total(logp, [1])
        else:
            w = op.const(weight, z.dtype)
            each = op.Gather(w, safe) * keep
            smooth = op.total(logp * op.reshape(w, [classes] + [1] * (rank(z) - 2)), [1])
        hard = op.Neg(picked * each)
        soft = op.Neg(smooth * keep)
        mix = op.ReduceSum(hard * (1.0 - smoothing) + soft * (smoothing / classes), keepdims=0)
        return mix / op.ReduceSum(each, keepdims=0) if reduction == "mean" else mix


def binary_cross_entropy(pos_weight: float | None = None, reduction: str = "mean") -> Loss:
    """Binary cross entropy of logits, in the form that stays finite: max(z,0) - z y +
    log(1+exp(-|z|)).
    """

    def compute(op: Builder, z: ir.Value, y: ir.Value) -> ir.Value:
        with op:
            tail = op.Log(1.0 + op.Exp(op.Neg(op.Abs(z))))
            if pos_weight is None:
                each = op.Relu(z) - z * y + tail
            else:
                more = 1.0 + (pos_weight - 1.0) * y
                each = (1.0 - y) * z + more * (tail + op.Relu(op.Neg(z)))
        return _reduce(op, each, reduction)

    settings = {"pos_weight": pos_weight, "reduction": reduction}
    return Loss("binary_cross_entropy", compute, (Label("like"),), "Sigmoid", settings)


def hinge(margin: float = 1.0, reduction: str = "mean") -> Loss:
    """Hinge loss; labels are -1 or 1, of the prediction's shape."""

    def compute(op: Builder, z: ir.Value, y: ir.Value) -> ir.Value:
        with op:
            return _reduce(op, op.Relu(margin - z * y), reduction)

    return Loss("hinge", compute, settings={"margin": margin, "reduction": reduction})


# -- regression -----------------------------------------------------------------------


def mse(reduction: str = "mean") -> Loss:
    """Mean squared error."""

    def compute(op: Builder, z: ir.Value, y: ir.Value) -> ir.Value:
        with op:
            difference = z - y
            return _reduce(op, difference * difference, reduction)

    return Loss("mse", compute, settings={"reduction": reduction})


def l1(reduction: str = "mean") -> Loss:
    """Mean absolute error."""

    def compute(op: Builder, z: ir.Value, y: ir.Value) -> ir.Value:
        with op:
            return _reduce(op, op.Abs(z - y), reduction)

    return Loss("l1", compute, settings={"reduction": reduction})


def huber(delta: float = 1.0, reduction: str = "mean") -> Loss:
    """Quadratic within `delta`, linear outside."""

    def compute(op: Builder, z: ir.Value, y: ir.Value) -> ir.Value:
        with op:
            size = op.Abs(z - y)
            inside = op.Min(size, delta)
            return _reduce(op, 0.5 * inside * inside + delta * (size - inside), reduction)

    return Loss("huber", compute, settings={"delta": delta, "reduction": reduction})


# -- distributions and embeddings --------------------------------------------------------


def kl_divergence(log_target: bool = False, reduction: str = "batchmean") -> Loss:
    """Kullback-Leibler divergence; the prediction is log-probabilities, the label probabilities."""

    def compute(op: Builder, z: ir.Value, y: ir.Value) -> ir.Value:
        with op:
            if log_target:
                each = op.Exp(y) * (y - z)
            else:
                positive = op.Greater(y, 0.0)
                # log of a positive stand-in: 0 log 0 is 0, and its derivative stays finite
                each = y * op.Log(op.Where(positive, y, 1.0)) - y * z
            if reduction != "batchmean":
                return _reduce(op, each, reduction)
            rows = op.cast(op.Shape(z, start=0, end=1), z.dtype)  # type: ignore[arg-type]
            return op.ReduceSum(each, keepdims=0) / op.Squeeze(rows, [0])

    settings = {"log_target": log_target, "reduction": reduction}
    return Loss("kl_divergence", compute, settings=settings)


def cosine(reduction: str = "mean", eps: float = 1e-8) -> Loss:
    """One minus the cosine between prediction and label along the last axis."""

    def compute(op: Builder, z: ir.Value, y: ir.Value) -> ir.Value:
        with op:
            dot = op.total(z * y, [-1])
            norms = op.total(z * z, [-1]) * op.total(y * y, [-1])
            return _reduce(op, 1.0 - dot / op.Sqrt(op.Max(norms, eps * eps)), reduction)

    return Loss("cosine", compute, settings={"reduction": reduction, "eps": eps})


def contrastive(margin: float = 1.0, reduction: str = "mean") -> Loss:
    """Pairs: rows 2i and 2i+1 of the prediction; label 1 draws them together, 0 pushes them
    apart.
    """

    def compute(op: Builder, z: ir.Value, y: ir.Value) -> ir.Value:
        with op:
            pairs = op.Reshape(z, [-1, 2, *_width(z)])
            a, b = op.Split(pairs, [1, 1], axis=1, outputs=2)
            squared = op.total((a - b) * (a - b), [1, 2])
            away = op.Relu(margin - op.Sqrt(squared + 1e-12))
            return _reduce(op, y * squared + (1.0 - y) * away * away, reduction)

    settings = {"margin": margin, "reduction": reduction}
    return Loss("contrastive", compute, (Label("pairs"),), settings=settings)


def triplet(margin: float = 1.0, reduction: str = "mean") -> Loss:
    """Triplets: rows 3i, 3i+1, 3i+2 are anchor, positive, negative; there is no label."""

    def compute(op: Builder, z: ir.Value) -> ir.Value:
        with op:
            triples = op.Reshape(z, [-1, 3, *_width(z)])
            a, p, n = op.Split(triples, [1, 1, 1], axis=1, outputs=3)
            near = op.Sqrt(op.total((a - p) * (a - p), [1, 2]) + 1e-12)
            far = op.Sqrt(op.total((a - n) * (a - n), [1, 2]) + 1e-12)
            return _reduce(op, op.Relu(near - far + margin), reduction)

    return Loss("triplet", compute, (), settings={"margin": margin, "reduction": reduction})


def _width(z: ir.Value) -> list[int]:
    if rank(z) != 2 or not isinstance(z.shape[1], int):  # type: ignore[index]
        raise ArgumentError("embeddings are rows of a matrix with a known width")
    return [z.shape[1]]  # type: ignore[index]


def l2_penalty(op: Builder, parameters: Sequence[ir.Value], weight: float) -> ir.Value:
    """`weight` times half the squared norm of the parameters."""
    return op.Mul(op.Sum(*(op.ReduceSumSquare(p, keepdims=0) for p in parameters)), weight / 2)


def l1_penalty(op: Builder, parameters: Sequence[ir.Value], weight: float) -> ir.Value:
    """`weight` times the sum of absolute values of the parameters."""
    return op.Mul(op.Sum(*(op.ReduceSum(op.Abs(p), keepdims=0) for p in parameters)), weight)


def makers() -> dict[str, Callable[..., Loss]]:
    """Every loss by its name."""
    from sardonyx.train.ctc import ctc

    return {**MAKERS, "ctc": ctc}


def named(name: str, **settings: Any) -> Loss:
    """The loss called `name`, e.g. `named("cross_entropy", label_smoothing=0.1)`."""
    found = makers().get(name)
    if found is None:
        raise ArgumentError(f"no loss is called {name!r}", hint=f"one of {', '.join(makers())}")
    try:
        return found(**settings)
    except TypeError as error:
        raise ArgumentError(f"{name} does not take these settings: {sorted(settings)}") from error


MAKERS: dict[str, Callable[..., Loss]] = {
    "cross_entropy": cross_entropy,
    "binary_cross_entropy": binary_cross_entropy,
    "mse": mse,
    "l1": l1,
    "huber": huber,
    "hinge": hinge,
    "kl_divergence": kl_divergence,
    "cosine": cosine,
    "triplet": triplet,
    "contrastive": contrastive,
}
