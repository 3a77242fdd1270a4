"""A learning-rate scheduler of torch as tables, read off a copy of it that runs ahead.

What comes after the end of a table is a rule found in its tail: the last number stays, a stretch
repeats, or it repeats times a factor. Where there is none, the rate is NaN after the table, so that
training stops instead of going on with a rate that torch would not have.
"""

from __future__ import annotations

import copy
import functools
import inspect
import math
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from sardonyx.errors import ArgumentError, ImportRefused, quote
from sardonyx.record import schedule as schedules
from sardonyx.record.schedule import Schedule

# How many updates ahead a copy runs: at least, where that shows no rule, and at most.
SHORT, LONG, LONGEST = 2048, 65536, 500_000
CLOSE = 1e-12


@dataclass
class Timetable:
    """The rates, and cycled momenta, of every group from now on.

    rates, momenta -- for each group its numbers, one for each update; empty where nothing changes
    notes          -- what was not taken over
    """

    rates: list[np.ndarray] = field(default_factory=list)
    momenta: list[np.ndarray] = field(default_factory=list)
    notes: list[tuple[str, str, str]] = field(default_factory=list)

    def schedules(self, group: int) -> dict[str, Any]:
        """The settings of an optimizer that change over the updates of a group."""
        return self.placed(group, 0)

    def placed(self, group: int, start: int) -> dict[str, Any]:
        """These settings, for a group whose next update has the number `start`."""
        settings: dict[str, Any] = {}
        if self.rates and np.ptp(self.rates[group][np.isfinite(self.rates[group])]) > 0:
            base = float(np.nanmax(np.abs(self.rates[group])))
            settings |= {"lr": base, "schedule": _table(self.rates[group] / base, start)}
        if self.momenta and self.momenta[group].size and np.ptp(_finite(self.momenta[group])) > 0:
            base = float(np.nanmax(np.abs(self.momenta[group])))
            settings["momentum_schedule"] = _table(self.momenta[group] / base, start)
            settings["momentum"] = base
        return settings


def _finite(values: np.ndarray) -> np.ndarray:
    return values[np.isfinite(values)]


def read_scheduler(optimizer: torch.optim.Optimizer, scheduler: Any) -> Timetable:
    """The numbers of a scheduler from its present position on; one of its steps per update."""
    if scheduler is None:
        if not any("initial_lr" in group for group in optimizer.param_groups):
            return Timetable()
        why = "the optimizer has one that was not passed: scheduler="
        return Timetable(notes=[("not taken over", "a scheduler: the rate stays", why)])
    if not hasattr(scheduler, "step") or getattr(scheduler, "optimizer", None) is not optimizer:
        raise ArgumentError(
            f"the scheduler {quote(type(scheduler).__name__)} is not one of this optimizer"
        )
    if isinstance(scheduler, ReduceLROnPlateau):
        why = "it follows a metric of the validation, which a record does not see"
        return Timetable(notes=[("not taken over", "ReduceLROnPlateau: the rate stays", why)])
    horizon = _horizon(scheduler)
    for length in (horizon, max(horizon, LONG)):
        rates, momenta = _ahead(optimizer, scheduler, length)
        goes_on = all(_tail(v) is not None for t in (rates, momenta) for v in _columns(t))
        if goes_on or len(rates) < length:
            break
    text = f"{type(scheduler).__name__}: {len(rates)} updates read off a copy"
    why = "from its present position; one step of the scheduler for each update"
    notes = [("schedule", text, why)]
    if not goes_on:
        text = f"what {type(scheduler).__name__} does after {len(rates)} updates"
        notes.append(("not taken over", text, "the rate is NaN then, and training stops"))
    return Timetable(_columns(rates), _columns(momenta), notes)


def _horizon(scheduler: Any) -> int:
    """How many updates to look ahead: some multiple of the largest number that it is made with."""
    numbers = list(_numbers(scheduler, set()))
    return int(min(max(8 * max(numbers, default=0) + 64, SHORT), LONGEST))


def _numbers(thing: Any, visited_ids: set[int]) -> Iterator[int]:
    """Whole numbers inside a scheduler, and inside functions that it calls."""
    if id(thing) in visited_ids or isinstance(thing, (torch.optim.Optimizer, torch.Tensor, str)):
        return
    visited_ids.add(id(thing))
    if isinstance(thing, (int, float)) and not isinstance(thing, bool):
        if math.isfinite(thing) and 0 < thing <= LONGEST and thing == int(thing):
            yield int(thing)
        return
    parts: list[Any] = []
    if isinstance(thing, dict):
        parts = [*thing.keys(), *thing.values()]
    elif isinstance(thing, (list, tuple, set)):
        parts = list(thing)
    elif isinstance(thing, functools.partial):
        parts = [thing.func, thing.args, thing.keywords]
    elif inspect.isfunction(thing):
        cells = [c.cell_contents for c in thing.__closure__ or () if _is_set(c)]
        parts = [*cells, thing.__defaults__, thing.__code__.co_consts]
    elif isinstance(thing, torch.optim.lr_scheduler.LRScheduler) or hasattr(thing, "__dict__"):
        hidden = ("last_epoch", "_step_count", "optimizer", "base_lrs", "_last_lr")
        parts = [v for k, v in vars(thing).items() if k not in hidden]
    for part in parts:
        yield from _numbers(part, visited_ids)


def _is_set(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _columns(table: Sequence[Sequence[float]]) -> list[np.ndarray]:
    return [np.array(column, np.float64) for column in zip(*table, strict=True)]


def _ahead(
    optimizer: torch.optim.Optimizer, scheduler: Any, length: int
) -> tuple[list[list[float]], list[list[float]]]:
    """Rates and momenta of every group for the next updates; fewer where the scheduler ends."""
    runner = _copied(optimizer, scheduler)
    groups = runner.optimizer.param_groups
    rates: list[list[float]] = []
    momenta: list[list[float]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is stepped without its optimizer, on purpose
        for _ in range(length):
            rates.append([float(g["lr"]) for g in groups])
            momenta.append([_momentum(g) for g in groups])
            try:
                runner.step()
            except ValueError:  # OneCycleLR refuses steps after its last
                break
            except TypeError as error:
                raise ImportRefused(
                    f"the scheduler {quote(type(scheduler).__name__)} cannot run ahead: {error}",
                    hint="pass the optimizer alone: the rate then stays as it is",
                ) from error
    return rates, momenta


def _momentum(group: dict[str, Any]) -> float:
    if "betas" in group:
        return float(group["betas"][0])
    return float(group.get("momentum", 0.0))


def _copied(optimizer: torch.optim.Optimizer, scheduler: Any) -> Any:
    """A copy of the scheduler with an optimizer of its own, over stand-ins for the parameters."""
    memo: dict[int, Any] = {id(optimizer.state): defaultdict(dict)}
    for group in optimizer.param_groups:
        memo |= {id(p): torch.nn.Parameter(torch.zeros(())) for p in group["params"]}
    return copy.deepcopy(scheduler, memo)


def _table(factors: np.ndarray, start: int) -> Schedule:
    tail = _tail(factors)
    if tail is None:
        return schedules.table([*factors, math.nan], start=start)
    return schedules.table(list(_shortened(factors, tail)), tail.every, tail.ratio, start)


@dataclass
class _Tail:
    """The values end as repetitions of `every` of them, each times `ratio`, up to `atol`."""

    every: int
    ratio: float
    atol: float


def _tail(values: np.ndarray) -> _Tail | None:
    values = values / (np.max(np.abs(values), initial=0.0) or 1.0)
    half = len(values) // 2
    lengths = [n for n in (1, *_candidates(values[half:])) if 0 < n <= half // 2]
    for atol in (0.0, CLOSE):
        for every in lengths:
            late, early = values[half + every :], values[half:-every]
            ratio = _ratio(late, early)
            if ratio is not None and np.allclose(late, early * ratio, rtol=1e-9, atol=atol):
                return _Tail(every, ratio, atol)
    return None


def _candidates(values: np.ndarray) -> list[int]:
    """Distances after which the last value, or a jump, comes again."""
    changes = np.flatnonzero(np.abs(np.diff(values)) > CLOSE * np.abs(values[:-1]))
    gaps = np.diff(changes)
    jumps = [int(gaps[-1])] if gaps.size and (gaps == gaps[-1]).all() else []
    same = np.flatnonzero(np.isclose(values, values[-1], rtol=1e-9, atol=0.0))
    return jumps + sorted({int(len(values) - 1 - i) for i in same[:-1]})[:64]


def _ratio(late: np.ndarray, early: np.ndarray) -> float | None:
    if np.array_equal(late, early):
        return 1.0
    place = int(np.argmax(np.abs(early)))
    ratio = float(late[place] / early[place]) if early[place] else None
    if ratio is not None and abs(ratio - 1.0) < CLOSE:
        return 1.0
    return ratio if ratio is not None and 0.0 < abs(ratio) <= 1.0 else None


def _shortened(values: np.ndarray, tail: _Tail) -> np.ndarray:
    """The shortest table whose tail goes on as the whole one does."""
    every, atol = tail.every, tail.atol * np.max(np.abs(values), initial=0.0)
    expected = values[:-every] * tail.ratio
    wrong = np.flatnonzero(~np.isclose(values[every:], expected, rtol=1e-9, atol=atol))
    return values[: (int(wrong[-1]) + 1 if wrong.size else 0) + every]
