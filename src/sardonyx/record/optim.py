"""Optimizers: chains of small transformations of gradients, written as ONNX nodes.

As in optax, an optimizer is data: `chain(scale_by_adam(), add_decayed_weights(0.01),
scale_by_rate(1e-3))`. The transformations are in `transform.py`. Where an operator of ONNX computes
exactly the same, it is written instead (`standard.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.errors import ArgumentError, did_you_mean
from sardonyx.record.builder import RecordBuilder
from sardonyx.record.directions import (
    averaged_descent,
    descend_by_shape,
    negate,
    scale_by_adadelta,
    scale_by_adamax,
    scale_by_muon,
    scale_by_nadam,
    scale_by_radam,
    scale_by_rprop,
)
from sardonyx.record.schedule import Schedule
from sardonyx.record.settings import check_numbers
from sardonyx.record.standard import adagrad_operator, adam_operator, momentum_operator, preferred
from sardonyx.record.transform import (
    Parameter,
    Update,
    UpdateContext,
    add_decayed_weights,
    add_weight_decay,
    apply_scale,
    clip_by_global_norm,
    clip_by_value,
    descend,
    ema,
    new_value,
    rate,
    scale_by_adagrad,
    scale_by_adam,
    scale_by_factored_rms,
    scale_by_lion,
    scale_by_rate,
    scale_by_rms,
    scale_by_trust_ratio,
    trace,
)

__all__ = [
    "Optimizer",
    "Parameter",
    "UpdateContext",
    "accumulate",
    "adadelta",
    "adafactor",
    "adagrad",
    "adam",
    "adamax",
    "adamw",
    "add_decayed_weights",
    "add_weight_decay",
    "asgd",
    "chain",
    "clip_by_global_norm",
    "clip_by_value",
    "descend",
    "ema",
    "lamb",
    "lion",
    "muon",
    "nadam",
    "named",
    "onnx_adam",
    "radam",
    "rate",
    "rmsprop",
    "rprop",
    "scale_by_adagrad",
    "scale_by_adam",
    "scale_by_factored_rms",
    "scale_by_lion",
    "scale_by_rate",
    "scale_by_rms",
    "scale_by_trust_ratio",
    "sgd",
    "trace",
]


@dataclass(frozen=True)
class Optimizer:
    """A chain of transformations.

    text     -- its name in reports
    settings -- its hyperparameters
    every    -- how many steps make one update, see `accumulate`
    """

    updates: tuple[Update, ...]
    text: str = "custom"
    settings: dict[str, Any] = field(default_factory=dict)
    every: int = 1

    def __call__(self, step: UpdateContext, parameters: list[Parameter]) -> None:
        with step.op.named(f"train/{self.text}"):
            for update in self.updates:
                if not getattr(update, "takes_scale", False):
                    apply_scale(step, parameters)
                update(step, parameters)
            apply_scale(step, [p for p in parameters if p.final is None])
            for p in parameters:
                new_value(step.op, p)

    def schedule(self, schedule: Schedule) -> Optimizer:
        """The same optimizer with a learning rate that changes over the steps."""
        return self.with_(schedule=schedule)

    def with_(self, **settings: Any) -> Optimizer:
        """The same optimizer with other settings: `adamw().with_(lr=3e-4)`."""
        if self.text not in MAKERS:
            raise ArgumentError("a custom chain has no settings to change")
        return replace(named(self.text, **{**self.settings, **settings}), every=self.every)


def chain(*parts: Update | Optimizer) -> Optimizer:
    """Apply transformations (or whole optimizers) one after the other.

    Where a part accumulates gradients, the whole chain sees the accumulated ones.
    """
    updates: list[Update] = []
    for part in parts:
        updates += part.updates if isinstance(part, Optimizer) else [part]
    counts = {part.every for part in parts if isinstance(part, Optimizer)} - {1}
    if len(counts) > 1:
        raise ArgumentError(f"parts of one chain accumulate over {sorted(counts)} steps")
    return Optimizer(tuple(updates), every=counts.pop() if counts else 1)


# -- optimizers -------------------------------------------------------------------------


def sgd(
    lr: float = 1e-2,
    momentum: float = 0.0,
    nesterov: bool = False,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    schedule: Schedule | None = None,
    momentum_schedule: Schedule | None = None,
    maximize: bool = False,
) -> Optimizer:
    """Stochastic gradient descent, with or without momentum (torch.optim.SGD)."""
    parts = [add_weight_decay(weight_decay)]
    if momentum:
        parts.append(trace(momentum, nesterov, dampening, momentum_schedule))
    parts.append(descend(lr, schedule))
    if momentum and not weight_decay and momentum_schedule is None:
        operator = momentum_operator(lr, momentum, nesterov, dampening, schedule)
        parts = [preferred(operator, *parts)]
    return _made("sgd", locals(), *_signed(maximize), *parts)


def _signed(maximize: bool) -> list[Update]:
    return [negate()] if maximize else []


def adam(
    lr: float = 1e-3,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    schedule: Schedule | None = None,
    momentum_schedule: Schedule | None = None,
    amsgrad: bool = False,
    maximize: bool = False,
) -> Optimizer:
    """Adam (torch.optim.Adam); `weight_decay` is L2, added to the gradient."""
    return _made(
        "adam",
        locals(),
        *_signed(maximize),
        add_weight_decay(weight_decay),
        scale_by_adam(b1, b2, eps, amsgrad, momentum_schedule),
        descend(lr, schedule),
    )


def adamw(
    lr: float = 1e-3,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    schedule: Schedule | None = None,
    momentum_schedule: Schedule | None = None,
    amsgrad: bool = False,
    maximize: bool = False,
) -> Optimizer:
    """Adam with decoupled weight decay (torch.optim.AdamW).

    >>> import sardonyx as sx
    >>> sx.optim.adamw(3e-4).settings["lr"]
    0.0003
    """
    direction = scale_by_adam(b1, b2, eps, amsgrad, momentum_schedule)
    parts = (*_signed(maximize), direction, descend(lr, schedule, weight_decay))
    return _made("adamw", locals(), *parts)


def adagrad(
    lr: float = 1e-2,
    lr_decay: float = 0.0,
    eps: float = 1e-10,
    initial: float = 0.0,
    weight_decay: float = 0.0,
    schedule: Schedule | None = None,
    maximize: bool = False,
) -> Optimizer:
    """Adagrad (torch.optim.Adagrad)."""
    parts = [add_weight_decay(weight_decay), scale_by_adagrad(lr_decay, eps, initial)]
    parts.append(descend(lr, schedule))
    if not weight_decay:
        parts = [preferred(adagrad_operator(lr, lr_decay, eps, initial, schedule), *parts)]
    return _made("adagrad", locals(), *_signed(maximize), *parts)


def onnx_adam(
    lr: float = 1e-3,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-6,
    weight_decay: float = 0.0,
    decay_after: float = 0.0,
    schedule: Schedule | None = None,
) -> Optimizer:
    """Adam exactly as the operator of ONNX defines it: epsilon is added before the bias correction.

    `weight_decay` is its norm_coefficient, `decay_after` its norm_coefficient_post: the share by
    which a parameter shrinks after each update.
    """
    operator = adam_operator(lr, b1, b2, eps, weight_decay, decay_after, schedule)
    return _made("onnx_adam", locals(), operator)


def rmsprop(
    lr: float = 1e-2,
    alpha: float = 0.99,
    eps: float = 1e-8,
    momentum: float = 0.0,
    centered: bool = False,
    weight_decay: float = 0.0,
    schedule: Schedule | None = None,
    maximize: bool = False,
) -> Optimizer:
    """RMSprop (torch.optim.RMSprop)."""
    parts = [add_weight_decay(weight_decay), scale_by_rms(alpha, eps, momentum, centered)]
    return _made("rmsprop", locals(), *_signed(maximize), *parts, descend(lr, schedule))


def nadam(
    lr: float = 2e-3,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    momentum_decay: float = 4e-3,
    decoupled: bool = False,
    schedule: Schedule | None = None,
    maximize: bool = False,
) -> Optimizer:
    """NAdam (torch.optim.NAdam); `decoupled` weight decay is that of AdamW."""
    direction = scale_by_nadam(b1, b2, eps, momentum_decay)
    parts = _decayed(direction, lr, weight_decay, decoupled, schedule)
    return _made("nadam", locals(), *_signed(maximize), *parts)


def radam(
    lr: float = 1e-3,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decoupled: bool = False,
    schedule: Schedule | None = None,
    maximize: bool = False,
) -> Optimizer:
    """RAdam (torch.optim.RAdam); `decoupled` weight decay is that of AdamW."""
    parts = _decayed(scale_by_radam(b1, b2, eps), lr, weight_decay, decoupled, schedule)
    return _made("radam", locals(), *_signed(maximize), *parts)


def _decayed(
    direction: Update, lr: float, decay: float, decoupled: bool, schedule: Schedule | None
) -> list[Update]:
    if decoupled:
        return [direction, descend(lr, schedule, decay)]
    return [add_weight_decay(decay), direction, descend(lr, schedule)]


def adamax(
    lr: float = 2e-3,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    schedule: Schedule | None = None,
    maximize: bool = False,
) -> Optimizer:
    """Adamax (torch.optim.Adamax)."""
    parts = _decayed(scale_by_adamax(b1, b2, eps), lr, weight_decay, False, schedule)
    return _made("adamax", locals(), *_signed(maximize), *parts)


def adadelta(
    lr: float = 1.0,
    rho: float = 0.9,
    eps: float = 1e-6,
    weight_decay: float = 0.0,
    schedule: Schedule | None = None,
    maximize: bool = False,
) -> Optimizer:
    """Adadelta (torch.optim.Adadelta)."""
    parts = _decayed(scale_by_adadelta(rho, eps), lr, weight_decay, False, schedule)
    return _made("adadelta", locals(), *_signed(maximize), *parts)


def rprop(
    lr: float = 1e-2,
    shrink: float = 0.5,
    grow: float = 1.2,
    smallest: float = 1e-6,
    largest: float = 50.0,
    maximize: bool = False,
) -> Optimizer:
    """Rprop (torch.optim.Rprop); `lr` is the first step size, `shrink` and `grow` change it."""
    direction = scale_by_rprop(lr, shrink, grow, smallest, largest)
    return _made("rprop", locals(), *_signed(maximize), direction)


def asgd(
    lr: float = 1e-2,
    decay: float = 1e-4,
    power: float = 0.75,
    start: float = 1e6,
    weight_decay: float = 0.0,
    schedule: Schedule | None = None,
    maximize: bool = False,
) -> Optimizer:
    """Averaged SGD (torch.optim.ASGD, where these are called lambd, alpha and t0)."""
    descent = averaged_descent(lr, decay, power, start, schedule)
    return _made("asgd", locals(), *_signed(maximize), add_weight_decay(weight_decay), descent)


def muon(
    lr: float = 1e-3,
    weight_decay: float = 0.1,
    momentum: float = 0.95,
    nesterov: bool = True,
    coefficients: Sequence[float] = (3.4445, -4.7750, 2.0315),
    eps: float = 1e-7,
    steps: int = 5,
    adjust: str | None = None,
    schedule: Schedule | None = None,
) -> Optimizer:
    """Muon (torch.optim.Muon), for matrices; it orthogonalizes in bfloat16, as torch does."""
    direction = scale_by_muon(momentum, nesterov, coefficients, steps, eps)
    return _made("muon", locals(), direction, descend_by_shape(lr, adjust, weight_decay, schedule))


def adafactor(
    lr: float = 1e-2,
    beta2_decay: float = -0.8,
    eps1: float | None = None,
    eps2: float = 1e-3,
    clip: float = 1.0,
    weight_decay: float = 0.0,
    schedule: Schedule | None = None,
    maximize: bool = False,
) -> Optimizer:
    """Adafactor (torch.optim.Adafactor): memory of rows and columns instead of whole matrices."""
    eps = float(np.finfo(np.float32).eps) if eps1 is None else eps1
    return _made(
        "adafactor",
        locals(),
        *_signed(maximize),
        scale_by_factored_rms(beta2_decay, eps, eps2, clip, lr, schedule),
        _decay_then_add(lr, weight_decay, schedule),
    )


def _decay_then_add(lr: float, weight_decay: float, schedule: Schedule | None) -> Update:
    def update(step: UpdateContext, parameters: list[Parameter]) -> None:
        op = step.op
        if not weight_decay:
            return
        with op:
            shrink = 1.0 - rate(step, lr, schedule) * step.hyper("weight_decay", weight_decay)
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
    arguments = {k: v for k, v in settings.items() if k in _SETTINGS[name]}
    schedule = arguments.get("schedule")
    if isinstance(arguments["lr"], Schedule) or not isinstance(schedule, (Schedule, type(None))):
        raise ArgumentError(
            f"{name} takes a number as lr, and a schedule by its keyword",
            hint=f"sx.optim.{name}(1e-3, schedule=sx.schedule.cosine(1000))",
        )
    check_numbers(arguments, name)
    return Optimizer(tuple(updates), name, arguments)


def accumulate(optimizer: Optimizer, every: int) -> Optimizer:
    """Average the gradients of `every` steps, then update once.

    Clipping, schedules, bias corrections and moving averages see updates, not steps.
    """
    check_numbers({"accumulate": every}, "the optimizer")
    return replace(optimizer, every=every)


MAKERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": sgd,
    "adam": adam,
    "adamw": adamw,
    "adagrad": adagrad,
    "onnx_adam": onnx_adam,
    "rmsprop": rmsprop,
    "adafactor": adafactor,
    "lion": lion,
    "lamb": lamb,
    "nadam": nadam,
    "radam": radam,
    "adamax": adamax,
    "adadelta": adadelta,
    "rprop": rprop,
    "asgd": asgd,
    "muon": muon,
}
_SETTINGS = {
    name: set(maker.__code__.co_varnames[: maker.__code__.co_argcount])
    for name, maker in MAKERS.items()
}


def named(name: str, **settings: Any) -> Optimizer:
    """The optimizer called `name`, e.g. `named("adamw", lr=1e-3)`."""
    if name not in MAKERS:
        raise ArgumentError(f"no optimizer is called {name!r}", hint=did_you_mean(name, MAKERS))
    unknown = set(settings) - _SETTINGS[name]
    if unknown:
        raise ArgumentError(
            f"{name} has no setting {', '.join(sorted(unknown))}",
            hint=f"it takes {', '.join(sorted(_SETTINGS[name]))}",
        )
    return MAKERS[name](**settings)


def apply(
    builder: RecordBuilder, parameters: list[Parameter], every: int, write: Callable[[], None]
) -> dict[str, ir.Value]:
    """The new value of each parameter, by name, after `write` has written one update of all.

    Only every `every`-th step is an update, from the mean of the gradients; the steps between add
    up gradients and leave the parameters and all state that `write` creates as they are.
    """
    if every == 1:
        write()
        return {p.name: new_value(builder.op, p) for p in parameters}
    op = builder.op
    with op, op.named("train/accumulate"):
        due = op.Equal(op.Mod(builder.count() + 1, every), 0)
        for p in parameters:
            accumulated = UpdateContext(builder).slot(p, "accumulated")
            total = accumulated.value + p.update
            accumulated.next = op.Where(due, 0.0, total)
            p.update = total * (1.0 / every)
        before = set(builder.slots)
        write()
        for name, slot in builder.slots.items():
            if name not in before and slot.next is not None:
                slot.next = op.Where(due, slot.next, slot.value)
        return {p.name: op.Where(due, new_value(op, p), p.value) for p in parameters}
