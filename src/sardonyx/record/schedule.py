"""Learning-rate schedules: a factor per update, computed inside the record from its counter.

A schedule is a function `(op, t) -> factor`; `t` is the number of updates before this one, a
float64 scalar, and the factor multiplies the learning rate. Float64, because 1 - beta**t and long
ramps lose digits in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.errors import ArgumentError


@dataclass(frozen=True)
class Schedule:
    """How the learning rate changes over the updates.

    text     -- its description in reports
    settings -- its name and arguments, as in a configuration file; empty for a user's own
    """

    factor: Callable[[Builder, ir.Value], ir.Value]
    text: str
    settings: dict[str, Any] = field(default_factory=dict)


def constant() -> Schedule:
    """The same learning rate at every step."""
    one = ir.DataType.DOUBLE
    return Schedule(lambda op, t: op.const(1.0, one), "constant", {"name": "constant"})


def linear_warmup(steps: int, after: Schedule | None = None) -> Schedule:
    """Rise from 0 to the learning rate over `steps`, then follow `after`, by default constant."""

    def factor(op: Builder, t: ir.Value) -> ir.Value:
        ramp = op.Min((t + 1.0) / float(steps), 1.0)
        return ramp if after is None else ramp * after.factor(op, op.Max(t - float(steps), 0.0))

    text = f"linear warm-up over {steps}" + (f", then {after.text}" if after else "")
    return Schedule(factor, text, {"name": "linear_warmup", "steps": steps, "after": after})


def cosine(steps: int, end: float = 0.0) -> Schedule:
    """Fall along half a cosine from the learning rate to `end` times it, over `steps`."""

    def factor(op: Builder, t: ir.Value) -> ir.Value:
        progress = op.Min(t / float(steps), 1.0)
        wave = op.Cos(progress * math.pi)
        return end + (1.0 - end) * 0.5 * (1.0 + wave) if end else 0.5 * (1.0 + wave)

    text = f"cosine over {steps}" + (f" to {end:g}" if end else "")
    return Schedule(factor, text, {"name": "cosine", "steps": steps, "end": end})


def step(every: int, gamma: float = 0.1) -> Schedule:
    """Multiply the learning rate by `gamma` every `every` steps."""

    def factor(op: Builder, t: ir.Value) -> ir.Value:
        return op.Pow(op.const(gamma, ir.DataType.DOUBLE), op.Floor(t / float(every)))

    settings = {"name": "step", "every": every, "gamma": gamma}
    return Schedule(factor, f"times {gamma:g} every {every}", settings)


def exponential(gamma: float) -> Schedule:
    """Multiply the learning rate by `gamma` at every step."""
    return Schedule(
        lambda op, t: op.Pow(op.const(gamma, ir.DataType.DOUBLE), t),
        f"times {gamma:g} each step",
        {"name": "exponential", "gamma": gamma},
    )


def one_cycle(steps: int, peak: float = 0.3, start: float = 0.04, end: float = 4e-6) -> Schedule:
    """Rise along a cosine from `start` to 1 over the first `peak` of `steps`, then fall to `end`.

    The learning rate is the highest that is reached.
    """
    if not 0.0 < peak < 1.0:
        raise ArgumentError(
            "`peak` is the share of the steps before the highest rate, between 0 and 1"
        )
    up = peak * steps - 1.0
    down = steps - 1.0 - up

    def half(op: Builder, low: float, high: float, progress: ir.Value) -> ir.Value:
        wave = op.Cos(op.Clip(progress, 0.0, 1.0) * math.pi)
        return high + (low - high) * 0.5 * (1.0 + wave)

    def factor(op: Builder, t: ir.Value) -> ir.Value:
        rising = half(op, start, 1.0, t / up)
        falling = half(op, 1.0, end, (t - up) / down)
        return op.Where(op.Less(t, up), rising, falling)

    settings = {"name": "one_cycle", "steps": steps, "peak": peak, "start": start, "end": end}
    return Schedule(factor, f"one cycle over {steps}", settings)


def sequence(schedules: Sequence[Schedule], starts: Sequence[int]) -> Schedule:
    """Follow `schedules[0]` until step `starts[0]`, then `schedules[1]` from its beginning, …"""
    if len(starts) != len(schedules) - 1:
        raise ArgumentError("give one start for each schedule but the first")

    def factor(op: Builder, t: ir.Value) -> ir.Value:
        value = schedules[0].factor(op, t)
        for begin, following in zip(starts, schedules[1:], strict=True):
            later = following.factor(op, op.Max(t - float(begin), 0.0))
            value = op.Where(op.Less(t, float(begin)), value, later)
        return value

    settings = {"name": "sequence", "schedules": list(schedules), "starts": list(starts)}
    return Schedule(factor, ", then ".join(s.text for s in schedules), settings)


def table(factors: Sequence[float], every: int = 1, ratio: float = 1.0, start: int = 0) -> Schedule:
    """Read the factor of each update from a table that begins at update `start`.

    After its end, the last `every` factors repeat, multiplied by `ratio` at each repetition: by
    default the last factor stays.
    """
    count = len(factors)
    if not 1 <= every <= count:
        raise ArgumentError(f"a table of {count} factors cannot repeat its last {every}")
    values = [float(f) for f in factors]

    def factor(op: Builder, t: ir.Value) -> ir.Value:
        place = op.Max(t - float(start), 0.0)
        after = op.Max(place - float(count - every), 0.0)
        repeats = op.Floor(after / float(every))
        index = op.Where(
            op.Less(place, float(count)), place, after - repeats * float(every) + (count - every)
        )
        entries = op.const(np.array(values, np.float64))
        value = op.Gather(entries, op.cast(index, ir.DataType.INT64), axis=0)
        if ratio == 1.0:
            return value
        return value * op.Pow(op.const(ratio, ir.DataType.DOUBLE), repeats)

    settings = {"name": "table", "factors": values, "every": every, "ratio": ratio, "start": start}
    return Schedule(factor, f"a table of {count}", settings if count <= DESCRIBED else {})


DESCRIBED = 1000  # longer tables are not repeated in the file's description of its record
NAMES: dict[str, Callable[..., Schedule]] = {
    "constant": constant,
    "linear_warmup": linear_warmup,
    "cosine": cosine,
    "step": step,
    "exponential": exponential,
    "one_cycle": one_cycle,
    "table": table,
}


# -- in numbers ---------------------------------------------------------------------------


class _Numbers:
    """The operators of schedules on plain numbers, by the functions of an array package."""

    def __init__(self, package: Any):
        self.package = package
        self.Min, self.Max, self.Pow = package.minimum, package.maximum, package.power
        self.Cos, self.Floor, self.Clip = package.cos, package.floor, package.clip
        self.Where, self.Less = package.where, package.less

    def const(self, value: Any, dtype: Any = None) -> Any:
        return self.package.asarray(value, float)

    def cast(self, value: Any, dtype: ir.DataType) -> Any:
        return self.package.asarray(value).astype(int)

    def Gather(self, entries: Any, index: Any, axis: int = 0) -> Any:
        return self.package.take(entries, index, axis)


def factor_at(schedule: Schedule | None, updates: Any, package: Any = np) -> Any:
    """The factor of the learning rate after so many updates.

    package -- NumPy, or one that has its functions, such as `jax.numpy`
    """
    if schedule is None:
        return 1.0
    count = package.asarray(updates, float)
    return schedule.factor(_Numbers(package), count)  # type: ignore[arg-type]
