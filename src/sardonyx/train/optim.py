"""Optimizers: chains of small transformations of gradients, written as ONNX nodes.

As in optax, an optimizer is data: `chain(scale_by_adam(), add_decayed_weights(0.01), scale_by_rate(1e-3))`.
A transformation gets the parameters of one group with their updates and changes the updates; its state are
named tensors of the record. The last one has turned gradients into what is added to the parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder, rank
from sardonyx.errors import ArgumentError
from sardonyx.train.program import RATE, Program, Slot
from sardonyx.train.schedule import Schedule

DOUBLE = ir.DataType.DOUBLE


@dataclass
class Parameter:
    """A parameter during one step: its tensor, its update so far (at first the gradient)."""

    name: str
    value: ir.Value
    update: ir.Value
    data: Callable[[], np.ndarray]
    final: ir.Value | None = None  # set by a transformation that writes the new parameter itself


@dataclass
class Step:
    """What a transformation sees: the program it writes into, and its group."""

    program: Program
    group: str = ""

    @property
    def op(self) -> Builder:
        return self.program.op

    def slot(self, p: Parameter, kind: str, start: np.ndarray | None = None) -> Slot:
        """State of one parameter, zeros of its shape and type unless `start` is given."""
        if start is None:
            dtype = p.value.dtype.numpy()  # type: ignore[union-attr]
            start = np.zeros([int(d) for d in p.value.shape], dtype)  # type: ignore[union-attr,arg-type]
        return self.program.slot(f"{p.name}/{kind}", start)

    def steps(self) -> ir.Value:
        """The number of this step, 1 in the first, as float64."""
        return self.op.cast(self.op.Add(self.program.count(), 1), DOUBLE)

    def hyper(self, name: str, value: float) -> ir.Value:
        """A hyperparameter of this group, as a float64 scalar; an input of the step with a default."""
        full = f"{name}/{self.group}" if self.group else name
        return self.op.cast(self.program.hyper(full, value), DOUBLE)

    def like(self, scalar: ir.Value, p: Parameter) -> ir.Value:
        """A float64 scalar in the type of the parameter."""
        return self.op.cast(scalar, p.value.dtype)  # type: ignore[arg-type]


Update = Callable[[Step, list[Parameter]], None]


@dataclass(frozen=True)
class Optimizer:
    """A chain of transformations; `text` is what a report says of it, `settings` its hyperparameters."""

    updates: tuple[Update, ...]
    text: str = "custom"
    settings: dict[str, Any] = field(default_factory=dict)
    every: int = 1

    def __call__(self, step: Step, parameters: list[Parameter]) -> None:
        for update in self.updates:
            update(step, parameters)

    def schedule(self, schedule: Schedule) -> Optimizer:
        """The same optimizer with a learning rate that changes over the steps."""
        return self.with_(schedule=schedule)

    def with_(self, **settings: Any) -> Optimizer:
        """The same optimizer with other settings: `adamw().with_(lr=3e-4)`."""
        maker = MAKERS.get(self.text)
        if maker is None:
            raise ArgumentError("a custom chain has no settings to change")
        return replace(maker(**{**self.settings, **settings}), every=self.every)


def chain(*parts: Update | Optimizer) -> Optimizer:
    """Apply transformations (or whole optimizers) one after the other."""
    updates: list[Update] = []
    for part in parts:
        updates += part.updates if isinstance(part, Optimizer) else [part]
    return Optimizer(tuple(updates))


# -- transformations ----------------------------------------------------------------


def scale_by_rate(lr: float, schedule: Schedule | None = None) -> Update:
    """Multiply by minus the learning rate: the last transformation of most chains."""

    def update(step: Step, parameters: list[Parameter]) -> None:
        negative = step.op.Neg(rate(step, lr, schedule))
        for p in parameters:
            p.update = step.op.Mul(p.update, step.like(negative, p))

    return update


def rate(step: Step, lr: float, schedule: Schedule | None) -> ir.Value:
    """The learning rate of this step, a float64 scalar."""
    base = step.hyper(RATE, lr)
    if schedule is None:
        return base
    with step.op.named("train/schedule"), step.op:
        t = step.op.cast(step.program.count(), DOUBLE)
        return step.op.Mul(base, schedule.factor(step.op, t))


def add_weight_decay(weight_decay: float) -> Update:
    """Add `weight_decay` times the parameter to its update (L2, when it comes first in the chain)."""

    def update(step: Step, parameters: list[Parameter]) -> None:
        if not weight_decay:
            return
        factor = step.hyper("weight_decay", weight_decay)
        for p in parameters:
            p.update = step.op.Add(p.update, step.op.Mul(p.value, step.like(factor, p)))

    return update


def trace(momentum: float, nesterov: bool = False, dampening: float = 0.0) -> Update:
    """Momentum, as torch's SGD has it."""

    def update(step: Step, parameters: list[Parameter]) -> None:
        op = step.op
        for p in parameters:
            slot = step.slot(p, "momentum")
            with op:
                g = p.update
                if dampening:
                    first = op.Equal(step.program.count(), 0)
                    g = g * op.Where(first, step.like(op.const(1.0, DOUBLE), p), 1.0 - dampening)
                slot.next = slot.value * momentum + g
                p.update = p.update + slot.next * momentum if nesterov else slot.next

    return update


def scale_by_adam(b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> Update:
    """Adam's direction. Slots hold m/(1-b1) and v/(1-b2): two passes over memory fewer.

    NOTE [scaled Adam]: with M = m/(1-b1), V = v/(1-b2) and k = sqrt((1-b2)/(1-b2^t)),
    m_hat / (sqrt(v_hat) + eps) = M * (1-b1)/((1-b1^t) k) / (sqrt(V) + eps/k).
    """

    def update(step: Step, parameters: list[Parameter]) -> None:
        op = step.op
        with op:
            t = step.steps()
            bc1 = 1.0 - op.Pow(op.const(b1, DOUBLE), t)
            k = op.Sqrt((1.0 - b2) / (1.0 - op.Pow(op.const(b2, DOUBLE), t)))
            scale, offset = (1.0 - b1) / (bc1 * k), eps / k
            for p in parameters:
                m, v = step.slot(p, "adam_m"), step.slot(p, "adam_v")
                m.next = m.value * b1 + p.update
                v.next = v.value * b2 + p.update * p.update
                p.update = m.next / (op.Sqrt(v.next) + step.like(offset, p))
                _later(p, scale)

    return update


def _later(p: Parameter, scale: ir.Value) -> None:
    """A scalar factor that the learning rate absorbs, instead of one more pass over the tensor."""
    p.update.meta["factor"] = scale


def descend(lr: float, schedule: Schedule | None = None, decay: float = 0.0) -> Update:
    """Subtract the learning rate times the update; with `decay`, shrink the parameter first (AdamW)."""

    def update(step: Step, parameters: list[Parameter]) -> None:
        op = step.op
        with op:
            lr_now = rate(step, lr, schedule)
            shrink = 1.0 - lr_now * step.hyper("weight_decay", decay) if decay else None
            for p in parameters:
                factor = p.update.meta.get("factor")
                scale = lr_now if factor is None else lr_now * factor
                start = p.value if shrink is None else p.value * step.like(shrink, p)
                p.final = start - p.update * step.like(scale, p)

    return update


def scale_by_rms(alpha: float, eps: float, momentum: float, centered: bool) -> Update:
    """RMSprop's direction, as torch has it."""

    def update(step: Step, parameters: list[Parameter]) -> None:
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

    def update(step: Step, parameters: list[Parameter]) -> None:
        op = step.op
        with op:
            for p in parameters:
                zeros = np.full([int(d) for d in p.value.shape], start, p.value.dtype.numpy())  # type: ignore[union-attr,arg-type]
                h = step.slot(p, "sum_of_squares", zeros)
                h.next = h.value + p.update * p.update
                p.update = p.update / (op.Sqrt(h.next) + eps)
                if lr_decay:
                    done = op.cast(step.program.count(), DOUBLE)
                    _later(p, 1.0 / (1.0 + done * lr_decay))

    return update


def scale_by_lion(b1: float, b2: float) -> Update:
    """Lion's direction: the sign of an interpolated momentum."""

    def update(step: Step, parameters: list[Parameter]) -> None:
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

    def update(step: Step, parameters: list[Parameter]) -> None:
        op = step.op
        with op:
            for p in parameters:
                u = _absorb(step, p)
                wide = op.cast(u, DOUBLE)
                w = op.Sqrt(op.ReduceSumSquare(op.cast(p.value, DOUBLE), keepdims=0))
                n = op.Sqrt(op.ReduceSumSquare(wide, keepdims=0))
                usable = op.And(op.Greater(w, 0.0), op.Greater(n, 0.0))
                ratio = op.Where(usable, w / op.Where(usable, n, 1.0), 1.0)
                p.update = u * step.like(ratio, p)

    return update


def _absorb(step: Step, p: Parameter) -> ir.Value:
    factor = p.update.meta.get("factor")
    return p.update if factor is None else step.op.Mul(p.update, step.like(factor, p))


def add_decayed_weights(weight_decay: float) -> Update:
    """Add `weight_decay` times the parameter to an Adam-like direction (decoupled decay, before the rate)."""

    def update(step: Step, parameters: list[Parameter]) -> None:
        if not weight_decay:
            return
        factor = step.hyper("weight_decay", weight_decay)
        for p in parameters:
            p.update = step.op.Add(_absorb(step, p), step.op.Mul(p.value, step.like(factor, p)))

    return update


def scale_by_factored_rms(b2_power: float, eps1: float, eps2: float, clip: float, lr: float | None) -> Update:
    """Adafactor's direction, as torch has it: second moments of matrices by their rows and columns."""

    def update(step: Step, parameters: list[Parameter]) -> None:
        op = step.op
        with op:
            t = step.steps()
            keep = op.Pow(t, op.const(b2_power, DOUBLE))
            rho = op.Min(step.hyper(RATE, 1e-2 if lr is None else lr), 1.0 / op.Sqrt(t))
            for p in parameters:
                _adafactor(step, p, keep, rho, eps1, eps2, clip)

    return update


def _adafactor(
    step: Step, p: Parameter, keep: ir.Value, rho: ir.Value, eps1: float, eps2: float, clip: float
) -> None:
    op, g = step.op, p.update
    new = step.like(keep, p)
    old = 1.0 - new
    dims = [int(d) for d in p.value.shape]  # type: ignore[union-attr]
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

    def update(step: Step, parameters: list[Parameter]) -> None:
        for p in parameters:
            p.update = step.op.Clip(p.update, -limit, limit)

    return update


def clip_by_global_norm(limit: float) -> Update:
    """Scale all gradients of the group together so that their norm is at most `limit` (as torch)."""

    def update(step: Step, parameters: list[Parameter]) -> None:
        op = step.op
        with op, op.named("train/clip"):
            squares = [
                op.cast(op.ReduceSumSquare(op.cast(p.update, ir.DataType.FLOAT), keepdims=0), DOUBLE)
                for p in parameters
            ]
            norm = op.Sqrt(op.Sum(*squares))
            factor = op.Min(limit / (norm + 1e-6), 1.0)
            if "grad_norm" not in step.program.results:
                step.program.output("grad_norm", op.cast(norm, ir.DataType.FLOAT))
            for p in parameters:
                p.update = p.update * step.like(factor, p)

    return update


def ema(decay: float = 0.999) -> Update:
    """Keep an exponential moving average of each parameter in the slot `<name>/ema`; put it last."""

    def update(step: Step, parameters: list[Parameter]) -> None:
        op = step.op
        with op:
            for p in parameters:
                slot = step.slot(p, "ema", p.data())
                slot.next = slot.value * decay + new_value(op, p) * (1.0 - decay)

    return update


def new_value(op: Builder, p: Parameter) -> ir.Value:
    """The parameter after this step."""
    if p.final is None:
        p.final = op.Add(p.value, p.update)
    return p.final


# -- optimizers -------------------------------------------------------------------------


def sgd(
    lr: float = 1e-2,
    momentum: float = 0.0,
    nesterov: bool = False,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    schedule: Schedule | None = None,
) -> Optimizer:
    """Stochastic gradient descent, with momentum if asked (torch.optim.SGD)."""
    parts = [add_weight_decay(weight_decay)]
    if momentum:
        parts.append(trace(momentum, nesterov, dampening))
    return _made("sgd", locals(), *parts, descend(lr, schedule))


def adam(
    lr: float = 1e-3,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    schedule: Schedule | None = None,
) -> Optimizer:
    """Adam (torch.optim.Adam); `weight_decay` is L2, added to the gradient."""
    return _made(
        "adam", locals(), add_weight_decay(weight_decay), scale_by_adam(b1, b2, eps), descend(lr, schedule)
    )


def adamw(
    lr: float = 1e-3,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    schedule: Schedule | None = None,
) -> Optimizer:
    """Adam with decoupled weight decay (torch.optim.AdamW).

    >>> import sardonyx as sx
    >>> sx.optim.adamw(3e-4).settings["lr"]
    0.0003
    """
    return _made("adamw", locals(), scale_by_adam(b1, b2, eps), descend(lr, schedule, weight_decay))


def adagrad(
    lr: float = 1e-2,
    lr_decay: float = 0.0,
    eps: float = 1e-10,
    initial: float = 0.0,
    weight_decay: float = 0.0,
    schedule: Schedule | None = None,
) -> Optimizer:
    """Adagrad (torch.optim.Adagrad)."""
    parts = [add_weight_decay(weight_decay), scale_by_adagrad(lr_decay, eps, initial)]
    return _made("adagrad", locals(), *parts, descend(lr, schedule))


def rmsprop(
    lr: float = 1e-2,
    alpha: float = 0.99,
    eps: float = 1e-8,
    momentum: float = 0.0,
    centered: bool = False,
    weight_decay: float = 0.0,
    schedule: Schedule | None = None,
) -> Optimizer:
    """RMSprop (torch.optim.RMSprop)."""
    parts = [add_weight_decay(weight_decay), scale_by_rms(alpha, eps, momentum, centered)]
    return _made("rmsprop", locals(), *parts, descend(lr, schedule))


def adafactor(
    lr: float = 1e-2,
    beta2_decay: float = -0.8,
    eps1: float | None = None,
    eps2: float = 1e-3,
    clip: float = 1.0,
    weight_decay: float = 0.0,
) -> Optimizer:
    """Adafactor (torch.optim.Adafactor): memory of rows and columns instead of whole matrices."""
    eps = float(np.finfo(np.float32).eps) if eps1 is None else eps1
    return _made(
        "adafactor",
        locals(),
        scale_by_factored_rms(beta2_decay, eps, eps2, clip, lr),
        _decay_then_add(lr, weight_decay),
    )


def _decay_then_add(lr: float, weight_decay: float) -> Update:
    def update(step: Step, parameters: list[Parameter]) -> None:
        op = step.op
        if not weight_decay:
            return
        with op:
            shrink = 1.0 - step.hyper(RATE, lr) * step.hyper("weight_decay", weight_decay)
            for p in parameters:
                p.final = p.value * step.like(shrink, p) + p.update

    return update


def lion(
    lr: float = 1e-4,
    b1: float = 0.9,
    b2: float = 0.99,
    weight_decay: float = 0.0,
    schedule: Schedule | None = None,
) -> Optimizer:
    """Lion (Chen et al. 2023): the sign of the momentum, decoupled weight decay."""
    return _made("lion", locals(), scale_by_lion(b1, b2), descend(lr, schedule, weight_decay))


def lamb(
    lr: float = 1e-3,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-6,
    weight_decay: float = 0.01,
    schedule: Schedule | None = None,
) -> Optimizer:
    """LAMB (You et al. 2020): Adam with a trust ratio per parameter, for large batches."""
    return _made(
        "lamb",
        locals(),
        scale_by_adam(b1, b2, eps),
        add_decayed_weights(weight_decay),
        scale_by_trust_ratio(),
        descend(lr, schedule),
    )


def _made(name: str, settings: dict[str, Any], *updates: Update) -> Optimizer:
    kept = {k: v for k, v in settings.items() if k in _SETTINGS[name]}
    return Optimizer(tuple(updates), name, kept)


def accumulate(optimizer: Optimizer, every: int) -> Optimizer:
    """Average the gradients of `every` steps before the optimizer sees them."""
    if every < 1:
        raise ArgumentError("gradients are accumulated over one step or more")
    return replace(optimizer, every=every)


MAKERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": sgd,
    "adam": adam,
    "adamw": adamw,
    "adagrad": adagrad,
    "rmsprop": rmsprop,
    "adafactor": adafactor,
    "lion": lion,
    "lamb": lamb,
}
_SETTINGS = {
    name: set(maker.__code__.co_varnames[: maker.__code__.co_argcount]) for name, maker in MAKERS.items()
}


def named(name: str, **settings: Any) -> Optimizer:
    """The optimizer called `name`, e.g. `named("adamw", lr=1e-3)`."""
    if name not in MAKERS:
        raise ArgumentError(f"no optimizer is called {name!r}", hint=f"one of {', '.join(MAKERS)}")
    unknown = set(settings) - _SETTINGS[name]
    if unknown:
        raise ArgumentError(
            f"{name} has no setting {', '.join(sorted(unknown))}",
            hint=f"it takes {', '.join(sorted(_SETTINGS[name]))}",
        )
    return MAKERS[name](**settings)


def apply(step: Step, optimizer: Optimizer, parameters: Sequence[Parameter]) -> dict[str, ir.Value]:
    """Write the optimizer's nodes; the new value of each parameter, by name."""
    group = list(parameters)
    if optimizer.every == 1:
        optimizer(step, group)
        return {p.name: new_value(step.op, p) for p in group}
    return _accumulated(step, optimizer, group)


def _accumulated(step: Step, optimizer: Optimizer, group: list[Parameter]) -> dict[str, ir.Value]:
    """Every `every`-th step is real, the others only add up gradients: all state waits for it."""
    op, k = step.op, optimizer.every
    raw = step.program.count()
    with op:
        due = op.Equal(op.Mod(raw + 1, k), 0)
        sums = {}
        for p in group:
            acc = step.slot(p, "accumulated")
            sums[p.name] = total = acc.value + p.update
            acc.next = op.Where(due, 0.0, total)
            p.update = total * (1.0 / k)
        before = set(step.program.slots)
        counted = _Accumulating(step.program, step.group, k)
        optimizer(counted, group)
        for name in set(step.program.slots) - before:
            slot = step.program.slots[name]
            if slot.next is not None:
                slot.next = op.Where(due, slot.next, slot.value)
        return {p.name: op.Where(due, new_value(op, p), p.value) for p in group}


@dataclass
class _Accumulating(Step):
    """Counts updates, not steps."""

    every: int = 1

    def steps(self) -> ir.Value:
        done = self.op.Div(self.program.count(), self.every)
        return self.op.cast(self.op.Add(done, 1), DOUBLE)
