"""The proof: the graph against pandas, on the training frame and on rows that are likely to differ.

What pandas says of rows that were not in the training frame is the recording, repeated by pandas
with what was frozen; where nothing was frozen, also the function itself.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from sardonyx.errors import ImportDiffers, quote
from sardonyx.importers.pandas.recorder import Rows, Step, holds_booleans

TEXTS = [
    "", " ", "zzz never seen", "  Padded Text ", "Ünïcode ß é", "None", "nan", "0042", "-3.5e2",
    "ab " * 40, "two\nlines", "A", "a,b.c (d)", "Σίσυφος İ ǅ", "😀 1½", "1e5", "\t5\n",
]  # fmt: skip
NUMBERS = [np.nan, 0.0, -0.0, 1.0, -7.25, 1e15, -1e9, 1e-12, np.inf, -np.inf, 0.5, 2.5]
INTEGERS = [0, 1, -1, -3, 2, 7, 100, 2_000_000_011]
TIMES = [
    "1970-01-01", "2024-02-29 23:59:59", "1901-03-01 06:07:08", "2199-12-31 12:00:00",
    "2017-01-01", "2000-12-31 23:59:59", "2020-12-31", "2021-01-03", "1969-12-31 23:59:59",
]  # fmt: skip
ATTEMPTS = 120  # rows that are tried one by one where pandas fails on several at once


# -- replay -------------------------------------------------------------------------


def replay(steps: Sequence[Step], inputs: dict[Step, Any], frame: pd.DataFrame) -> list[pd.Series]:
    """What pandas computes for the rows of a frame, with what was frozen."""
    frame = frame.reset_index(drop=True)
    values: dict[Step, pd.Series] = {}

    def index_of(rows: Rows) -> pd.Index:
        if rows.parts:
            return pd.RangeIndex(sum(len(index_of(part)) for part in rows.parts))
        if rows.keep is None:
            return frame.index if rows.base is None else index_of(rows.base)
        keep = value_of(rows.keep)
        return keep.index[keep.astype(bool)]

    def value_of(step: Step) -> pd.Series:
        pending = [step]
        while pending:
            top = pending[-1]
            waiting = [s for s in top.inputs if s not in values]
            if top in values or not waiting:
                pending.pop()
                if top in values:
                    continue
                if top in inputs:
                    values[top] = frame[inputs[top]]
                elif top.of_index:
                    values[top] = top.replay(index_of(top.rows))
                else:
                    values[top] = top.replay(*(values[s] for s in top.inputs))
            else:
                pending.extend(waiting)
        return values[step]

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return [value_of(step) for step in steps]


# -- rows ---------------------------------------------------------------------------


def constants_of(function: Any) -> list[Any]:
    """The numbers and strings that a function mentions: values next to which it may jump."""
    constants: list[Any] = []
    pending = [getattr(function, "__code__", None)]
    while pending:
        code = pending.pop()
        for value in code.co_consts if isinstance(code, types.CodeType) else ():
            if isinstance(value, types.CodeType):
                pending.append(value)
            elif isinstance(value, (tuple, frozenset)):
                constants += [v for v in value if isinstance(v, (int, float, str))]
            elif isinstance(value, (int, float, str)) and not isinstance(value, bool):
                constants.append(value)
    return list(dict.fromkeys(constants))[:40]


def odd_values(series: pd.Series, constants: list[Any]) -> list[Any]:
    """Values of a column's type on which a wrong graph is likely to show."""
    dtype = series.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        return [None, *dtype.categories[:5]]
    if dtype.kind == "b":
        return [True, False] + ([pd.NA] if hasattr(dtype, "na_value") else [])
    if dtype.kind == "M":
        stamps = [pd.Timestamp(t) for t in TIMES]
        zone = getattr(dtype, "tz", None)
        return [pd.NaT, *(t.tz_localize(zone) if zone is not None else t for t in stamps)]
    if dtype.kind == "m":
        return [pd.NaT, *map(pd.Timedelta, ["0s", "-1D", "1D 01:02:03", "-3h", "400D"])]
    numbers = [c for c in constants if isinstance(c, (int, float))]
    if dtype.kind in "iu":
        limits = np.iinfo(str(dtype).lower())
        values = [*INTEGERS, *(int(n) for n in numbers if float(n).is_integer())]
        values = [v for v in values if limits.min <= v <= limits.max]
        return values + ([pd.NA] if hasattr(dtype, "na_value") else [])
    if dtype.kind == "f":
        present = series.dropna()
        edges = [present.min(), present.max(), present.median()] if len(present) else []
        return [*NUMBERS, *edges, *numbers]
    if holds_booleans(series):
        return [None, True, False]
    texts = [c for c in constants if isinstance(c, str) and len(c) < 200]
    examples = [v for v in series.dropna().unique()[:3] if isinstance(v, str)]
    variants = [
        f(v) for v in examples for f in (str.lower, str.upper, lambda v: f" {v}", lambda v: v + "x")
    ]
    return [None, *TEXTS, *texts, *examples, *variants]


def odd_rows(
    frame: pd.DataFrame, columns: Sequence[Any], constants: list[Any]
) -> list[pd.DataFrame]:
    """Per column, rows of the training frame in which that column has an odd value."""
    groups = []
    for name in columns:
        values = list(dict.fromkeys(odd_values(frame[name], constants)))
        places = np.arange(len(values)) % min(len(frame), 3)
        rows = frame.iloc[places].reset_index(drop=True).copy()
        try:
            rows[name] = pd.array(values, dtype=frame[name].dtype)
        except (TypeError, ValueError, OverflowError, pd.errors.OutOfBoundsDatetime):
            continue
        groups.append(rows)
    blank = frame.iloc[[0]].reset_index(drop=True).copy()
    for name in columns:
        odd = odd_values(frame[name], [])
        missing_values = [v for v in odd if pd.api.types.is_scalar(v) and pd.isna(v)]
        if missing_values:
            blank[name] = pd.array(missing_values[:1], dtype=frame[name].dtype)
    return [*groups, blank]


def usable(
    groups: list[pd.DataFrame], compute: Callable[[pd.DataFrame], Any]
) -> list[pd.DataFrame]:
    """The rows that pandas itself can process, in one frame where it takes them together."""
    attempts, usable_rows = ATTEMPTS, []
    for rows in groups:
        if works(compute, rows):
            usable_rows.append(rows)
            continue
        for number in range(len(rows)):
            row = rows.iloc[[number]].reset_index(drop=True)
            if attempts and works(compute, row):
                usable_rows.append(row)
            attempts = max(attempts - 1, 0)
    if not usable_rows:
        return []
    together = pd.concat(usable_rows, ignore_index=True)
    return [together] if works(compute, together) else usable_rows[:ATTEMPTS]


def works(compute: Callable[[pd.DataFrame], Any], rows: pd.DataFrame) -> bool:
    try:
        compute(rows)
    except Exception:
        return False
    return True


# -- comparison ---------------------------------------------------------------------


def plain(values: Any) -> list[Any]:
    """Python values, every missing one None."""
    series = pd.Series(values)
    if isinstance(series.dtype, pd.CategoricalDtype):
        series = series.astype(object)
    is_missing = series.isna().to_numpy()
    if series.dtype.kind in "Mm":
        if getattr(series.dtype, "tz", None) is not None:
            series = series.dt.tz_convert("UTC").dt.tz_localize(None)
        ticks = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[series.dt.unit]
        series = series.astype("int64").astype(object) * ticks  # Python's integers are long enough
    return [None if g else v for v, g in zip(series.tolist(), is_missing, strict=True)]


def differs(expected: Any, actual: Any, slack: float = 0.0) -> bool:
    if expected is None or actual is None:
        return not (expected is None and actual is None)
    if isinstance(expected, (bool, int, float)) and isinstance(actual, (bool, int, float)):
        if isinstance(expected, float) or isinstance(actual, float):
            a, b = float(actual), float(expected)
            return not (a == b or abs(a - b) <= 1e-12 + 1e-9 * abs(b) + slack)
        return int(expected) != int(actual)
    return str(expected) != str(actual)


def are_close(expected: Any, actual: Any) -> bool:
    """The quick answer for columns of floats, where it is yes."""
    left, right = np.asarray(expected), np.asarray(actual)
    if left.dtype.kind not in "fiub" or right.dtype.kind not in "fiub" or left.shape != right.shape:
        return False
    if left.dtype.kind != "f" and right.dtype.kind != "f":
        return bool((left == right).all())
    return bool(np.isclose(right.astype(float), left.astype(float), 1e-9, 1e-12, True).all())


def first_difference(expected: Any, actual: Any) -> int | None:
    if are_close(expected, actual):
        return None
    left, right = plain(expected), plain(actual)
    if len(left) != len(right):
        return min(len(left), len(right))
    for number, (a, b) in enumerate(zip(left, right, strict=True)):
        if differs(a, b):
            return number
    return None


def explained(expected: Any, actual: Any, others: list[Any], number: int) -> bool:
    """Whether a rounding of the inputs changes the expected value as much as the difference."""
    want, have = plain(expected)[number], plain(actual)[number]
    near = [plain(o)[number] if number < len(o) else None for o in others]
    if any(not differs(n, have) for n in near):
        return True
    if isinstance(want, float) and isinstance(have, (int, float)):
        spread = max((abs(n - want) for n in near if isinstance(n, (int, float))), default=0.0)
        return not differs(want, have, 64 * spread)
    return False


def nudged(frame: pd.DataFrame, factor: float) -> pd.DataFrame:
    """The frame with every float moved by one rounding."""
    floats = [c for c in frame.columns if frame[c].dtype.kind == "f"]
    return (
        frame.assign(**{c: frame[c] * factor for c in floats})
        if all(isinstance(c, str) for c in floats)
        else frame
    )


def compare(
    label: str,
    frame: pd.DataFrame,
    names: Sequence[Any],
    expected: Sequence[Any],
    actual: Sequence[Any],
    places: Sequence[str],
    again: Callable[..., Sequence[Any]],
    by_row: bool = True,
) -> None:
    """Raise the error that names the first column and row that differ.

    by_row -- accept what pandas says of a row alone (see `is_alone`), or of inputs that are off by
              one rounding; False where both sides are pandas, which leaves no room
    """
    near: list[Sequence[Any]] | None = None
    for position, name in enumerate(names):
        want, have = expected[position], actual[position]
        if len(want) != len(have):
            _raise(label, name, places[position], f"{len(have)} rows instead of {len(want)}")
        single = str(getattr(want, "dtype", "")).lower() == "float32"
        if are_close(want, have):
            continue
        left, right = plain(want), plain(have)
        for number, (a, b) in enumerate(zip(left, right, strict=True)):
            if not differs(a, b, 1e-5 * abs(a) if single and isinstance(a, float) else 0.0):
                continue
            row = frame.iloc[number].to_dict() if len(frame) == len(want) else {}
            what = f"{b!r} instead of {a!r}, in row {number} {row}"[:600]
            if not by_row:
                _raise(label, name, places[position], what)
            if near is None:
                near = [again(nudged(frame, f)) for f in (1 + 2.3e-16, 1 - 2.3e-16)]
            if explained(want, have, [n[position] for n in near], number):
                continue
            if len(frame) == len(want) and is_alone(frame, number, position, b, again):
                continue
            _raise(label, name, places[position], what)


def is_alone(frame: pd.DataFrame, number: int, position: int, actual: Any, again: Any) -> bool:
    """Whether pandas says of a row alone what the graph says.

    What pandas says of a row may hang on its neighbours: integers become 1.0 as soon as some other
    row is missing. The graph says of each row what pandas says of it alone.
    """
    try:
        alone = plain(again(frame.iloc[[number]].reset_index(drop=True), position)[0])
    except Exception:
        return False
    return len(alone) == 1 and not differs(alone[0], actual)


def _raise(label: str, name: Any, where: str, what: str) -> None:
    raise ImportDiffers(
        f"the recorded graph does not give what pandas gives for {label}",
        [[f"column {quote(name)}", where, what]],
        hint="this is a defect of the importer; please report the line",
    )
