"""Transformations of gradients, the links of which optimizers are chains, written as ONNX nodes.

A transformation gets the parameters of one group with their updates and changes the updates; its
state are named tensors of the record. The last one of a chain has turned gradients into what is
added to the parameters. The chains themselves are in `optim.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import HALF, Builder, rank
from sardonyx.record.builder import RATE, RecordBuilder, Slot
from sardonyx.record.schedule import Schedule

FLOAT, DOUBLE = ir.DataType.FLOAT, ir.DataType.DOUBLE


@dataclass
class Parameter:
    """A parameter during one update.

    update -- the update so far, at first the gradient
    scale  -- a float64 scalar that `update` is still to be multiplied by, see `descend`
    final  -- the new value, where a transformation writes it itself
    """

    name: str
    value: ir.Value
    update: ir.Value
    data: Callable[[], np.ndarray]
    scale: ir.Value | None = None
    final: ir.Value | None = None


@dataclass
class UpdateContext:
    """What a transformation sees: the builder it writes into, and its group.

    every      -- how many steps make one update: more than one where gradients are accumulated
    hyper_type -- the type of hyperparameters: float64 where a parameter is, else float32
    offset     -- how many updates more than the record this group has had; may be negative
    """

    builder: RecordBuilder
    group: str = ""
    every: int = 1
    hyper_type: type[np.floating] = np.float32
    offset: int = 0

    @property
    def op(self) -> Builder:
        return self.builder.op

    def slot(self, p: Parameter, kind: str, start: np.ndarray | None = None) -> Slot:
        """State of one parameter, zeros of its shape and type unless `start` is given."""
        if start is None:
            dtype = p.value.dtype.numpy()  # type: ignore[union-attr]
            start = np.zeros([int(d) for d in p.value.shape], dtype)  # type: ignore[union-attr,arg-type]
        return self.builder.slot(f"{p.name}/{kind}", start)

    def done(self) -> ir.Value:
        """How many updates were made before this one, an int64 scalar."""
        steps = self.builder.count()
        updates = steps if self.every == 1 else self.op.Div(steps, self.every)
        return self.op.Add(updates, self.offset) if self.offset else updates

    def steps(self) -> ir.Value:
        """The number of this update, 1 in the first, as float64."""
        return self.op.cast(self.op.Add(self.done(), 1), DOUBLE)

    def hyper(self, name: str, value: float) -> ir.Value:
        """A hyperparameter of this group, as a float64 scalar; an input of the step with a
        default.
        """
        full = f"{name}/{self.group}" if self.group else name
        return self.op.cast(self.builder.hyper(full, value, self.hyper_type), DOUBLE)

    def like(self, scalar: ir.Value, p: Parameter) -> ir.Value:
        """A float64 scalar in the type of the parameter."""
        return self.op.cast(scalar, p.value.dtype)  # type: ignore[arg-type]


Update = Callable[[UpdateContext, list[Parameter]], None]


# -- transformations ----------------------------------------------------------------


def scale_by_rate(lr: float, schedule: Schedule | None = None) -> Update:
    """Multiply by minus the learning rate: the last transformation of most chains."""

    def update(step: UpdateContext, parameters: list[Parameter]) -> None:
        negative = step.op.Neg(rate(step, lr, schedule))
        for p in parameters:
            p.update = step.op.Mul(p.update, step.like(negative, p))

    return update


def rate(step: UpdateContext, lr: float, schedule: Schedule | None) -> ir.Value:
    """The learning rate of this update, a float64 scalar."""
    base = step.hyper(RATE, lr)
    if schedule is None:
        return base
    with step.op.named("train/schedule"), step.op:
        t = step.op.cast(step.done(), DOUBLE)
        return step.op.Mul(base, schedule.factor(step.op, t))


def add_weight_decay(weight_decay: float) -> Update:
    """Add `weight_decay` times the parameter to its update (L2, when it comes first in the
    chain).
    """

    def update(step: UpdateContext, parameters: list[Parameter]) -> None:
        if not weight_decay:
            return
        factor = step.hyper("weight_decay", weight_decay)
        for p in parameters:
            p.update = step.op.Add(p.update, step.op.Mul(p.value, step.like(factor, p)))

    return update


def trace(
    momentum: float,
    nesterov: bool = False,
    dampening: float = 0.0,
    schedule: Schedule | None = None,
) -> Update:
    """Momentum, as torch's SGD has it; `schedule` changes it over the updates."""

    def update(step: UpdateContext, parameters: list[Parameter]) -> None:
        op = step.op
        now = scheduled(step, momentum, schedule)
        for p in parameters:
            slot = step.slot(p, "momentum")
            with op:
                g = p.update
                if dampening:
                    first = op.Equal(step.done(), 0)
                    g = g * op.Where(first, step.like(op.const(1.0, DOUBLE), p), 1.0 - dampening)
                share = now if isinstance(now, float) else step.like(now, p)
                slot.next = slot.value * share + g
                p.update = p.update + slot.next * share if nesterov else slot.next

    return update


def scheduled(step: UpdateContext, value: float, schedule: Schedule | None) -> Any:
    """A coefficient of this update: the number itself, or a float64 scalar that changes."""
    if schedule is None:
        return float(value)
    with step.op.named("train/schedule"), step.op:
        factor = schedule.factor(step.op, step.op.cast(step.done(), DOUBLE))
        return step.op.Mul(factor, step.op.const(float(value), DOUBLE))


def scale_by_adam(
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    amsgrad: bool = False,
    schedule: Schedule | None = None,
) -> Update:
    """Adam's direction. Slots hold m/(1-b1) and v/(1-b2): two passes over memory fewer.

    amsgrad  -- divide by the largest second moment so far
    schedule -- how b1 changes over the updates; the slot then holds m itself

    NOTE [scaled Adam]: with M = m/(1-b1), V = v/(1-b2) and k = sqrt((1-b2)/(1-b2^t)),
    m_hat / (sqrt(v_hat) + eps) = M * (1-b1)/((1-b1^t) k) / (sqrt(V) + eps/k).
    """

    def update(step: UpdateContext, parameters: list[Parameter]) -> None:
        op = step.op
        with op:
            t = step.steps()
            share = scheduled(step, b1, schedule)
            base = op.const(b1, DOUBLE) if schedule is None else share
            bc1 = 1.0 - op.Pow(base, t)
            k = op.Sqrt((1.0 - b2) / (1.0 - op.Pow(op.const(b2, DOUBLE), t)))
            scale = (1.0 - b1 if schedule is None else 1.0) / (bc1 * k)
            offset = eps / k
            for p in parameters:
                m, v = step.slot(p, "adam_m"), step.slot(p, "adam_v")
                if schedule is None:
                    m.next = m.value * b1 + p.update
                else:
                    old_share, new_share = step.like(share, p), step.like(1.0 - share, p)
                    m.next = m.value * old_share + p.update * new_share
                v.next = v.value * b2 + p.update * p.update
                second = v.next
                if amsgrad:
                    largest = step.slot(p, "adam_v_max")
                    second = largest.next = op.Max(largest.value, v.next)
                p.update = m.next / (op.Sqrt(second) + step.like(offset, p))
                p.scale = scale

    return update


def descend(lr: float, schedule: Schedule | None = None, decay: float = 0.0) -> Update:
    """Subtract the learning rate times the update; with `decay`, shrink the parameter first
    (AdamW). A pending scale is multiplied into the rate: one pass over the tensor fewer.
    """

    def update(step: UpdateContext, parameters: list[Parameter]) -> None:
        op = step.op
        with op:
            lr_now = rate(step, lr, schedule)
            shrink = 1.0 - lr_now * step.hyper("weight_decay", decay) if decay else None
            for p in parameters:
                scale = lr_now if p.scale is None else lr_now * p.scale
                start = p.value if shrink is None else p.value * step.like(shrink, p)
                p.final = start - p.update * step.like(scale, p)

    update.takes_scale = True  # type: ignore[attr-defined]
    return update


def scale_by_rms(alpha: float, eps: float, momentum: float, centered: bool) -> Update:
    """RMSprop's direction, as torch has it."""

    def update(step: UpdateContext, parameters: list[Parameter]) -> None:
        op = step.op
        with op:
            for p in parameters:
                v = step.slot(p, "square_avg")
                v.next = v.value * alpha + p.update * p.update * (1.0 - alpha)
                mean_square = v.next
                if centered:
                    m = step.slot(p, "grad_avg")
                    m.next = m.value * alpha + p.update * (1.0 - alpha)
                    mean_square = v.next - m.next * m.next
                p.update = p.update / (op.Sqrt(mean_square) + eps)
                if momentum:
                    b = step.slot(p, "momentum")
                    b.next = b.value * momentum + p.update
                    p.update = b.next

    return update


def scale_by_adagrad(lr_decay: float, eps: float, start: float) -> Update:
    """Adagrad's direction, as torch has it."""

    def update(step: UpdateContext, parameters: list[Parameter]) -> None:
        op = step.op
        with op:
            for p in parameters:
                zeros = np.full([int(d) for d in p.value.shape], start, p.value.dtype.numpy())  # type: ignore[union-attr,arg-type]
                h = step.slot(p, "sum_of_squares", zeros)
                h.next = h.value + p.update * p.update
                p.update = p.update / (op.Sqrt(h.next) + eps)
                if lr_decay:
                    p.scale = 1.0 / (1.0 + op.cast(step.done(), DOUBLE) * lr_decay)

    return update


def scale_by_lion(b1: float, b2: float) -> Update:
    """Lion's direction: the sign of an interpolated momentum."""

    def update(step: UpdateContext, parameters: list[Parameter]) -> None:
        op = step.op
        with op:
            for p in parameters:
                m = step.slot(p, "lion_m")
                direction = op.Sign(m.value * b1 + p.update * (1.0 - b1))
                m.next = m.value * b2 + p.update * (1.0 - b2)
                p.update = direction

    return update


def scale_by_trust_ratio() -> Update:
    """LAMB's layer-wise scaling: the norm of the parameter over that of its update."""

    def update(step: UpdateContext, parameters: list[Parameter]) -> None:
        op = step.op
        with op:
            for p in parameters:
                wide = op.cast(p.update, DOUBLE)
                w = op.Sqrt(op.ReduceSumSquare(op.cast(p.value, DOUBLE), keepdims=0))
                n = op.Sqrt(op.ReduceSumSquare(wide, keepdims=0))
                usable = op.And(op.Greater(w, 0.0), op.Greater(n, 0.0))
                ratio = op.Where(usable, w / op.Where(usable, n, 1.0), 1.0)
                p.update = p.update * step.like(ratio, p)

    return update


def apply_scale(step: UpdateContext, parameters: list[Parameter]) -> None:
    """Multiply the updates by their pending scales."""
    for p in parameters:
        if p.scale is not None:
            p.update, p.scale = step.op.Mul(p.update, step.like(p.scale, p)), None


def add_decayed_weights(weight_decay: float) -> Update:
    """Add `weight_decay` times the parameter to an Adam-like direction (decoupled decay, before
    the rate).
    """
    return add_weight_decay(weight_decay)


def scale_by_factored_rms(
    b2_power: float,
    eps1: float,
    eps2: float,
    clip: float,
    lr: float,
    schedule: Schedule | None = None,
) -> Update:
    """Adafactor's direction, as torch has it: second moments of matrices by their rows and
    columns.
    """

    def update(step: UpdateContext, parameters: list[Parameter]) -> None:
        op = step.op
        with op:
            t = step.steps()
            keep = op.Pow(t, op.const(b2_power, DOUBLE))
            rho = op.Min(rate(step, lr, schedule), 1.0 / op.Sqrt(t))
            for p in parameters:
                _adafactor(step, p, keep, rho, eps1, eps2, clip)

    return update


def _adafactor(
    step: UpdateContext,
    p: Parameter,
    keep: ir.Value,
    rho: ir.Value,
    eps1: float,
    eps2: float,
    clip: float,
) -> None:
    op, g = step.op, p.update
    new = step.like(keep, p)
    old = 1.0 - new
    dims = [int(d) for d in p.value.shape]  # type: ignore[union-attr,arg-type]
    kind = p.value.dtype.numpy()  # type: ignore[union-attr]
    if rank(p.value) > 1:
        r = step.slot(p, "row_var", np.zeros([*dims[:-1], 1], kind))
        c = step.slot(p, "col_var", np.zeros([*dims[:-2], 1, dims[-1]], kind))
        r.next = r.value * old + op.ReduceMean(g * g, [-1], keepdims=1) * new
        c.next = c.value * old + op.ReduceMean(g * g, [-2], keepdims=1) * new
        outer = op.MatMul(r.next, c.next)
        v = outer / op.Max(op.ReduceMean(r.next, [-2], keepdims=1), eps1)
    else:
        s = step.slot(p, "variance")
        s.next = s.value * old + g * g * new
        v = s.next
    u = g / op.Sqrt(op.Max(v, eps1 * eps1))
    root = op.Sqrt(op.ReduceMean(op.cast(p.value, DOUBLE) * op.cast(p.value, DOUBLE), keepdims=0))
    size = op.Max(root, eps2) * rho
    rms = op.Sqrt(op.ReduceMean(op.cast(u, DOUBLE) * op.cast(u, DOUBLE), keepdims=0))
    p.update = u * step.like(op.Neg(size / op.Max(rms / clip, 1.0)), p)


def clip_by_value(limit: float) -> Update:
    """Clip every element of the gradients into [-limit, limit]."""

    def update(step: UpdateContext, parameters: list[Parameter]) -> None:
        for p in parameters:
            p.update = step.op.Clip(p.update, -limit, limit)

    return update


def clip_by_global_norm(limit: float) -> Update:
    """Scale the gradients of a group together so that their norm is at most `limit` (as torch)."""

    def update(step: UpdateContext, parameters: list[Parameter]) -> None:
        op = step.op
        with op, op.named("train/clip"):
            wide = [
                op.cast(p.update, FLOAT) if p.update.dtype in HALF else p.update for p in parameters
            ]
            squares = [op.cast(op.ReduceSumSquare(g, keepdims=0), DOUBLE) for g in wide]
            norm = op.Sqrt(op.Sum(*squares))
            factor = op.Min(limit / (norm + 1e-6), 1.0)
            name = step.builder.local("grad_norm")
            if name not in step.builder.results:
                kind = ir.DataType.from_numpy(np.dtype(step.hyper_type))
                step.builder.output(name, op.cast(norm, kind))
            for p in parameters:
                p.update = p.update * step.like(factor, p)

    return update


def ema(decay: float = 0.999) -> Update:
    """Keep an exponential moving average of a parameter in the slot `<name>/ema`.

    It comes last in a chain: it reads the new value.
    """

    def update(step: UpdateContext, parameters: list[Parameter]) -> None:
        op = step.op
        with op:
            for p in parameters:
                slot = step.slot(p, "ema", p.data())
                slot.next = slot.value * decay + new_value(op, p) * (1.0 - decay)

    return update


def new_value(op: Builder, p: Parameter) -> ir.Value:
    """The parameter after this update."""
    if p.final is None:
        p.final = op.Add(p.value, p.update)
    return p.final
