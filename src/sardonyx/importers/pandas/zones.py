"""Time zones: the clock time of a moment, by a table of when the offset from UTC changes."""

from __future__ import annotations

import datetime
import functools
from typing import Any

import numpy as np

from sardonyx.frames import MISSING_INT
from sardonyx.importers.pandas.emission import INT64, TICKS, Emission, Rep

DAY = 86400


def floor_div(em: Emission, a: Any, b: int) -> Any:
    """Division that rounds down. Div truncates, and onnxruntime's Mod uses one thread only."""
    op, divisor = em.op, em.op.const(b, a.dtype)
    quotient = op.Div(a, divisor)
    below = op.Less(a, op.Mul(quotient, divisor))
    return op.Sub(quotient, op.Cast(below, to=int(a.dtype)))


FIRST_YEAR, LAST_YEAR = 1900, 2200


@functools.cache
def offsets(zone: str) -> tuple[np.ndarray, np.ndarray]:
    """When the offset of a zone from UTC changes (in seconds), and the offsets between."""
    from zoneinfo import ZoneInfo

    place = ZoneInfo(zone)

    def offset(second: int) -> int:
        moment = datetime.datetime.fromtimestamp(second, datetime.UTC)
        return int(moment.astimezone(place).utcoffset().total_seconds())  # type: ignore[union-attr]

    start, end = (
        int(datetime.datetime(y, 1, 1, tzinfo=datetime.UTC).timestamp())
        for y in (FIRST_YEAR, LAST_YEAR)
    )
    changes, values = [], [offset(start)]
    for low in range(start, end, 7 * DAY):
        high = low + 7 * DAY
        after = offset(high)
        if after == values[-1]:
            continue
        while high - low > 1:  # where it changes within the week
            middle = (low + high) // 2
            low, high = (low, middle) if offset(middle) != values[-1] else (middle, high)
        changes.append(high)
        values.append(after)
    return np.array(changes, np.int64), np.array(values, np.int64)


def local(em: Emission, rep: Rep) -> Rep:
    """The clock time of a column in a time zone: UTC and the offset at that moment."""
    if rep.kind != "datetime" or rep.timezone in ("", "UTC"):
        return rep
    memo = em.__dict__.setdefault("local", {})
    if rep.data not in memo:
        op = em.op
        changes, values = offsets(rep.timezone)
        seconds = floor_div(em, rep.data, TICKS[rep.unit])
        place = search_sorted(em, seconds, changes)
        shift = op.Mul(op.Gather(em.ints(values), place), em.ints(TICKS[rep.unit]))
        data = op.Where(em.missing(rep), em.ints(MISSING_INT), op.Add(rep.data, shift))
        memo[rep.data] = data
    return rep.but(data=memo[rep.data], timezone="")


def search_sorted(em: Emission, value: Any, edges: np.ndarray) -> Any:
    """How many of the rising edges are at most the value: halving, as bisect does."""
    op = em.op
    count = 1 << max(len(edges), 1).bit_length()
    table = em.ints(np.append(edges, np.full(count - len(edges), np.iinfo(np.int64).max)))
    place = em.ints(0)
    step = count // 2
    while step:
        middle = op.Add(place, em.ints(step))
        reached = op.GreaterOrEqual(value, op.Gather(table, op.Sub(middle, em.ints(1))))
        place = op.Where(reached, middle, place)
        step //= 2
    return place


def clock_offsets(zone: str) -> tuple[np.ndarray, np.ndarray]:
    """The same by clock time; MISSING_INT where a clock shows a time twice, or never."""
    changes, values = offsets(zone)
    edges: list[int] = []
    held: list[int] = [int(values[0])]
    for change, before, after in zip(changes, values[:-1], values[1:], strict=True):
        first, last = sorted((int(change + before), int(change + after)))
        edges += [first, last]
        held += [MISSING_INT, int(after)]
    return np.array(edges, np.int64), np.array(held, np.int64)


def moments(em: Emission, rep: Rep, zone: str) -> Rep:
    """Clock times of a zone as moments; missing where the time is shown twice, or never."""
    op = em.op
    edges, held = clock_offsets(zone)
    place = search_sorted(em, floor_div(em, rep.data, TICKS[rep.unit]), edges)
    shift = op.Gather(em.ints(held), place)
    unclear = op.Or(em.missing(rep), op.Equal(shift, em.ints(MISSING_INT)))
    data = op.Sub(rep.data, op.Mul(shift, em.ints(TICKS[rep.unit])))
    return rep.but(data=op.Where(unclear, em.ints(MISSING_INT), data), timezone=zone)


def days_from_civil(em: Emission, year: Any, month: Any, day: Any) -> Any:
    """Days since 1970-01-01 of a date of the Gregorian calendar."""
    op, ints = em.op, em.ints
    early = op.LessOrEqual(month, ints(2))
    year = op.Sub(year, op.Cast(early, to=int(INT64)))
    era = floor_div(em, year, 400)
    of_era = op.Sub(year, op.Mul(era, ints(400)))
    shifted = op.Where(early, op.Add(month, ints(9)), op.Sub(month, ints(3)))
    of_year = op.Div(op.Add(op.Mul(shifted, ints(153)), ints(2)), ints(5))
    of_year = op.Add(of_year, op.Sub(day, ints(1)))
    total = op.Add(op.Mul(of_era, ints(365)), op.Div(of_era, ints(4)))
    total = op.Add(op.Sub(total, op.Div(of_era, ints(100))), of_year)
    return op.Sub(op.Add(total, op.Mul(era, ints(146097))), ints(719468))
