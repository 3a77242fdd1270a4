"""Recording: every call of pandas becomes a step that pandas can repeat and a graph can compute.

A `Step` is one column. It holds the value of the training frame (`value`), how pandas computes it
from the columns before (`replay`), and how the graph does (`emit`). Fitted state is in neither: a
reduction is computed when it is met, listed in `Trace.frozen`, and is a plain value from there on.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import linecache
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pandas as pd

from sardonyx.errors import ImportRefused

_INTERNAL = (
    *(str(Path(m.__file__).parent) for m in (pd, np) if m.__file__),
    str(Path(__file__).parent),
    str(Path(inspect.__file__).parent),
    "<frozen",
    "<__array_function__",
)


@dataclass(frozen=True)
class Place:
    """A line of the user's code."""

    file: str
    line: int

    @property
    def text(self) -> str:
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


@dataclass(frozen=True)
class Frozen:
    """A value of the training frame that became a constant."""

    place: Place
    call: str
    value: Any


@dataclass
class Trace:
    """One recording: what was frozen, and what the caller allows."""

    order_dependent: bool = False
    dynamic: frozenset[str] = frozenset()
    frozen: list[Frozen] = field(default_factory=list)
    uses_order: bool = False
    inside_group: bool = False  # while the function of groupby(...).transform is recorded
    marks: dict[str, Any] = field(default_factory=dict)  # values inside texts that are formatted
    memo: dict[Any, Any] = field(default_factory=dict)  # steps that a call with these gave before
    decide: Callable[[Any], bool] | None = None  # answers `if` on a value while a lambda is traced
    catches: bool = False  # while a function with `try` is traced: errors of rows are raised in it
    refusals: list[ImportRefused] = field(default_factory=list)  # also those that `except` took


_trace: contextvars.ContextVar[Trace] = contextvars.ContextVar("trace")


def trace() -> Trace:
    return _trace.get()


@contextmanager
def recording(current: Trace) -> Iterator[Trace]:
    token = _trace.set(current)
    try:
        yield current
    finally:
        _trace.reset(token)


def place() -> Place:
    """The innermost line on the stack that is neither ours nor a library's."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_INTERNAL):
            return Place(name, frame.f_lineno)
        frame = frame.f_back  # type: ignore[assignment]
    return Place("?", 0)


def raised_at(error: BaseException) -> Place:
    """The innermost line of the user's code in the traceback of an error."""
    place, trace_back = Place("?", 0), error.__traceback__
    while trace_back is not None:
        name = trace_back.tb_frame.f_code.co_filename
        if not name.startswith(_INTERNAL):
            place = Place(name, trace_back.tb_lineno)
        trace_back = trace_back.tb_next
    return place


def refuse(reason: str, hint: str | None = None, where: Place | None = None) -> NoReturn:
    """Refuse the line of the user's code that is being recorded."""
    where = where or place()
    error = ImportRefused(
        "the function has a line of pandas that cannot become ONNX",
        [[str(where), where.text, reason]],
        hint,
    )
    current = _trace.get(None)
    if current is not None:
        current.refusals.append(error)
    raise error


def freeze(call: str, value: Any) -> Any:
    """List a value of the training frame as frozen, and return it."""
    if trace().inside_group and not call.startswith("groupby."):
        refuse(
            f"{call} inside a function of groups is computed per group, which has no rule",
            "mean, median, min, max, std, sum and count of the group have one; compute what is "
            "over all rows before",
        )
    trace().frozen.append(Frozen(place(), call, value))
    return value


def needs_order(call: str) -> None:
    """Refuse a call that depends on the rows around, unless the caller allows it."""
    if trace().inside_group:
        refuse(f"{call} within groups has no rule")
    if not trace().order_dependent:
        refuse(
            f"{call} depends on the order of the rows or on the other rows of the batch",
            "a model that scores single rows cannot do it; pass order_dependent=True if every "
            "batch has its rows in the order of the training frame",
        )
    trace().uses_order = True


# -- steps --------------------------------------------------------------------------


def holds_booleans(values: pd.Series) -> bool:
    """Whether a column of objects holds True, False and missing values."""
    if values.dtype != np.dtype(object):
        return False
    present = values.dropna()
    return len(present) > 0 and all(isinstance(v, (bool, np.bool_)) for v in present)


class Rows:
    """The identity of a set of rows: columns of one `Rows` belong together.

    keep -- the step of booleans that chose them; None for the rows that are fed
    base -- the rows that `keep` chose from
    parts -- the sets of rows of which these are, one after the other
    """

    def __init__(
        self, keep: Step | None = None, base: Rows | None = None, parts: tuple[Rows, ...] = ()
    ):
        self.keep, self.base, self.parts = keep, base, parts

    @property
    def are_fed(self) -> bool:
        """Whether they are the rows that are fed, in their order."""
        return self.keep is None and self.base is None and not self.parts


@dataclass(eq=False)
class Step:
    """One column of the recording.

    chars    -- for strings: it works on characters, and so do the strings that it reads
    order    -- it depends on the order of the rows
    of_index -- `replay` takes the index of the rows: the column is the same in every row
    """

    name: str
    inputs: tuple[Step, ...]
    replay: Callable[..., pd.Series]
    emit: Callable[..., Any]
    value: pd.Series
    rows: Rows
    place: Place
    chars: bool = False
    order: bool = False
    of_index: bool = False


class Proxy:
    """What stands for a pandas object while the function is recorded."""

    _owner = ""

    def __getattr__(self, name: str) -> Any:
        return attribute(self, name)

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        refuse("the values of a column are not known while the function is recorded")

    def __iter__(self) -> Any:
        refuse(
            "iteration over rows has no graph",
            "write it for the whole column: arithmetic, np.where, map, or apply with a lambda",
        )

    def __bool__(self) -> bool:
        refuse("`if` on a column has no graph", "np.where chooses between values row by row")

    def __float__(self) -> NoReturn:
        refuse("a column cannot become one number", "NumPy's functions take columns; math's do not")

    __int__ = __index__ = __complex__ = __float__

    def __contains__(self, _: Any) -> NoReturn:
        refuse("`in` on a column looks at its index", "isin compares every row")

    def __reduce__(self) -> NoReturn:
        refuse("a column cannot be copied or stored while the function is recorded")

    def __deepcopy__(self, _: Any) -> Any:
        return self.copy()


@dataclass(frozen=True)
class Rule:
    """The function that records one method or attribute of pandas."""

    function: Callable[..., Any]
    is_property: bool
    signature: inspect.Signature


RULES: dict[tuple[str, str], Rule] = {}


def rule(owner: str, *names: str, is_property: bool = False) -> Callable[[Any], Any]:
    """Register the rule of `owner`'s methods `names` (the name of the function, if not given)."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names or (function.__name__.rstrip("_"),):
            if (owner, name) in RULES:
                raise ImportRefused(f"{owner}.{name} already has a rule")
            RULES[owner, name] = Rule(function, is_property, inspect.signature(function))
        return function

    return register


PANDAS: dict[str, Any] = {
    "Series": pd.Series,
    "DataFrame": pd.DataFrame,
    "str": pd.Series.str,
    "pandas": pd,
    "numpy": np,
}


def attribute(proxy: Any, name: str) -> Any:
    """The rule of an attribute, as a property or a bound method; what has none is refused."""
    owner = proxy._owner
    entry = RULES.get((owner, name))
    if entry is None:
        home = PANDAS.get(owner)
        if name.startswith("__") or (home is not None and not hasattr(home, name)):
            raise AttributeError(f"{owner} has no attribute {name!r}")
        refuse(f"{owner}.{name} has no rule")
    if entry.is_property:
        return entry.function(proxy)
    return functools.partial(call, owner, name, proxy)


def call(owner: str, name: str, /, *arguments: Any, **options: Any) -> Any:
    """Call a rule; arguments that it does not have are refused, never ignored."""
    entry = RULES[owner, name]
    try:
        entry.signature.bind(*arguments, **options)
    except TypeError as error:
        parameters = list(entry.signature.parameters)[1:]
        refuse(
            f"{owner}.{name} with these arguments has no rule: {error}",
            f"the arguments that can be recorded: {', '.join(parameters)}" if parameters else None,
        )
    return entry.function(*arguments, **options)


def has_rule(owner: str, name: str) -> bool:
    return (owner, name) in RULES


def same_rows(steps: Sequence[Step]) -> Rows:
    rows = steps[0].rows
    if any(step.rows is not rows for step in steps):
        refuse(
            "columns of different sets of rows are combined, which pandas aligns by their index",
            "compute the columns before rows are removed or moved, or filter the whole frame",
        )
    return rows
