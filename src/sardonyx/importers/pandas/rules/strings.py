"""The `.str` accessor: with operators on strings where they suffice, on characters elsewhere."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from sardonyx.importers.pandas import characters, regex, search
from sardonyx.importers.pandas.column import Column, is_column, record
from sardonyx.importers.pandas.emission import BOOL, INT64, TEXTS, Emission, Rep
from sardonyx.importers.pandas.recorder import Proxy, Step, attribute, freeze, refuse, rule


class Strings(Proxy):
    """`series.str`."""

    _owner = "str"

    def __init__(self, column: Column):
        self.column = column

    def __getitem__(self, key: Any) -> Any:
        return attribute(self, "__getitem__")(key)


@rule("Series", "str", is_property=True)
def str_(self: Any) -> Any:
    if hasattr(type(self), "strings"):
        return self.strings()
    dtype = self.step.value.dtype
    if isinstance(dtype, pd.CategoricalDtype) and self.value.cat.categories.dtype in (
        object,
        "str",
    ):
        return Strings(self.astype(dtype.categories.dtype))
    if not (isinstance(dtype, pd.StringDtype) or dtype == np.dtype(object)):
        raise AttributeError("Can only use .str accessor with string values")
    return Strings(self)


def record_strings(
    name: str, self: Strings, replay: Callable[..., Any], emit: Callable[..., Any], *others: Any,
    chars: bool = True,
) -> Any:  # fmt: skip
    def build(em: Emission, a: Rep, *rest: Any) -> Any:
        if a.kind not in TEXTS:
            em.refuse(f".str.{name} of a column that is not of strings has no rule")
        return emit(em, a, *rest)

    return record(
        f"str.{name}", [self.column, *others], replay, build, chars=chars, label=self.column.label
    )


# -- letters ------------------------------------------------------------------------


def _case(name: str) -> None:
    def method(self: Any) -> Any:
        dtype = self.column.step.value.dtype
        table = characters.case_table(dtype, name)
        rest = characters.case_table(dtype, name, "a") if name in ("title", "capitalize") else None
        if name == "title":
            cased = characters.accepted_before(dtype)

        def emit(em: Emission, a: Rep) -> Rep:
            data = a.data
            if rest is None:
                return a.but(data=characters.substituted(em, data, table))
            if any(len(v) != 1 for t in (table, rest) for v in t.values()):
                em.refuse(
                    f".str.{name} of Python's strings changes the length of some characters",
                    'convert the column with astype("str") first',
                )
            first = em.op.Equal(characters.places(em, data), em.ints(0))
            if name == "title":
                first = _starts_of_words(em, data, cased)
            upper, lower = (characters.substituted(em, data, t) for t in (table, rest))
            return a.but(data=em.op.Where(first, upper, lower))

        return record_strings(name, self, lambda a: getattr(a.str, name)(), emit)

    rule("str", name)(method)


def _starts_of_words(em: Emission, data: Any, cased: characters.Ranges) -> Any:
    op = em.op
    inside = characters.member(em, data, cased)
    shifted = op.Pad(op.Cast(inside, to=int(INT64)), em.ints([0, 1, 0, 0]), np.int64(0))
    before = op.Slice(shifted, em.ints([0]), characters.width(em, data), em.ints([1]))
    return op.Equal(before, em.ints(0))


for _name in ("lower", "upper", "title", "capitalize", "swapcase", "casefold"):
    _case(_name)


def _strip(name: str, left: bool, right: bool) -> None:
    def method(self: Any, to_strip: Any = None) -> Any:
        dtype = self.column.step.value.dtype

        def emit(em: Emission, a: Rep) -> Rep:
            ranges = (
                characters.stripped(dtype)
                if to_strip is None
                else characters.ranges_of(ord(c) for c in to_strip)
            )
            return characters.strip(em, a, ranges, left, right)

        return record_strings(name, self, lambda a: getattr(a.str, name)(to_strip), emit)

    rule("str", name)(method)


for _name, _left, _right in (
    ("strip", True, True),
    ("lstrip", True, False),
    ("rstrip", False, True),
):
    _strip(_name, _left, _right)


def _asked(self: Any, name: str) -> Callable[..., Any]:
    """A test without arguments as pandas answers it."""

    def replay(a: pd.Series) -> pd.Series:
        answers = getattr(a.str, name)()
        return answers == True if self.column.is_value else answers  # noqa: E712

    return replay


def _test(name: str) -> None:
    def method(self: Any) -> Any:
        dtype = self.column.step.value.dtype

        def emit(em: Emission, a: Rep) -> Rep:
            result = characters.all_of(em, a, characters.accepted(dtype, name))
            return _without_missing(em, a, result, False if self.column.is_value else None)

        return record_strings(name, self, _asked(self, name), emit)

    rule("str", name)(method)


for _name in ("isdigit", "isalpha", "isnumeric", "isdecimal", "isalnum", "isspace"):
    _test(_name)


def _all_in_case(name: str, other: str) -> None:
    def method(self: Any) -> Any:
        dtype = self.column.step.value.dtype

        def emit(em: Emission, a: Rep) -> Rep:
            def some(ranges: characters.Ranges) -> Any:
                hits = em.op.Cast(characters.member(em, a.data, ranges), to=int(INT64))
                return em.op.Greater(em.op.ReduceMax(hits, [1], keepdims=0), em.ints(0))

            accepted = some(characters.accepted(dtype, name))
            unwanted = em.op.Or(some(characters.accepted(dtype, other)), some(TITLE))
            test = em.op.And(accepted, em.op.Not(unwanted))
            return _without_missing(em, a, test, False if self.column.is_value else None)

        return record_strings(name, self, _asked(self, name), emit)

    rule("str", name)(method)


TITLE = characters.ranges_of(c for c in range(0x2000) if unicodedata.category(chr(c)) == "Lt")
_all_in_case("isupper", "islower")
_all_in_case("islower", "isupper")


def _without_missing(em: Emission, a: Rep, result: Any, default: bool | None) -> Rep:
    if a.missing is None:
        return Rep("bool", result)
    if default is None and em.step is not None and _is_object(em.step.inputs[0]):
        return Rep("bool", result, a.missing)
    if a.nullable and default is None:
        return Rep("bool", result, a.missing, nullable=True)
    keep = em.op.Or(result, a.missing) if default else em.op.And(result, em.op.Not(a.missing))
    return Rep("bool", keep)


def _is_object(step: Step) -> bool:
    """Columns of Python objects answer NaN for missing strings, where those of strings say no."""
    return step.value.dtype == np.dtype(object)


# -- parts --------------------------------------------------------------------------


@rule("str", "len")
def len_(self: Any) -> Any:
    def emit(em: Emission, a: Rep) -> Rep:
        count = em.op.Cast(characters.lengths(em, a.data), to=11)
        if a.missing is not None:
            count = em.op.Where(a.missing, em.doubles(np.nan), count)
        return Rep("float", count)

    return record_strings("len", self, lambda a: a.str.len(), emit)


@rule("str", "__getitem__")
def getitem(self: Any, key: Any) -> Any:
    if isinstance(key, slice):
        return slice_(self, key.start, key.stop, key.step)
    return get(self, key)


@rule("str")
def get(self: Any, i: Any) -> Any:
    if not isinstance(i, (int, np.integer)):
        refuse("the place of a character must be a number")
    return record_strings(
        "get", self, lambda a: a.str[i], lambda em, a: characters.character(em, a, int(i))
    )


@rule("str", "slice")
def slice_(self: Any, start: Any = None, stop: Any = None, step: Any = None) -> Any:
    if step not in (None, 1):
        refuse("slices of strings with steps have no rule")
    return record_strings(
        "slice", self, lambda a: a.str.slice(start, stop),
        lambda em, a: characters.sliced(em, a, start, stop),
    )  # fmt: skip


def _pad(name: str) -> None:
    def method(
        self: Any, width: int, *options: str, side: str = "left", fillchar: str = " "
    ) -> Any:
        if options:  # pad has the side before the character
            side = options[0] if name == "pad" else side
            fillchar = options[-1] if name != "pad" or len(options) > 1 else fillchar
        fill = "0" if name == "zfill" else fillchar
        where = {"zfill": "left", "rjust": "left", "ljust": "right"}.get(name, side)
        if where not in ("left", "right"):
            refuse("padding on both sides has no rule")

        def emit(em: Emission, a: Rep) -> Rep:
            return _padded(em, a, width, fill, where, name == "zfill")

        def replay(a: Any) -> Any:
            if name == "zfill":
                return a.str.zfill(width)
            return a.str.pad(width, side=where, fillchar=fill)

        return record_strings(name, self, replay, emit)

    rule("str", name)(method)


def _padded(em: Emission, a: Rep, width: int, fill: str, side: str, after_sign: bool) -> Rep:
    op = em.op
    short = op.Sub(em.ints(width), characters.lengths(em, a.data))
    places = op.Less(em.ints(list(range(max(width, 1)))), characters.column(em, short))
    padding = op.Where(places, np.int32(ord(fill)), np.int32(-1))
    parts = [padding, a.data] if side == "left" else [a.data, padding]
    if after_sign:
        head = op.Slice(a.data, em.ints([0]), em.ints([1]), em.ints([1]))
        sign = op.Or(op.Equal(head, np.int32(43)), op.Equal(head, np.int32(45)))
        lead = op.Where(sign, head, np.int32(-1))
        place = op.Equal(characters.places(em, a.data), em.ints(0))
        rest = op.Where(op.And(place, sign), np.int32(-1), a.data)
        parts = [lead, padding, rest]
    joined = op.Concat(*parts, axis=1)
    keep = op.GreaterOrEqual(joined, np.int32(0))
    return a.but(data=characters.compact(em, joined, keep))


for _name in ("zfill", "pad", "rjust", "ljust"):
    _pad(_name)


def _affix_removed(name: str, start: bool) -> None:
    def method(self: Any, affix: str) -> Any:
        has = self.startswith(affix, na=False) if start else self.endswith(affix, na=False)
        rest = slice_(self, len(affix), None) if start else slice_(self, None, -len(affix))
        return self.column.mask(has, rest).named(self.column.label) if affix else self.column

    rule("str", name)(method)


_affix_removed("removeprefix", True)
_affix_removed("removesuffix", False)


@rule("str")
def get_dummies(self: Any, sep: str = "|") -> Any:
    """One column per part that a string of the training frame has."""
    from sardonyx.importers.pandas.frame import Frame

    levels = freeze(
        f"{self.column.label} dummies", list(self.column.value.str.get_dummies(sep).columns)
    )
    edge = re.escape(sep)
    columns = {
        level: contains(self, rf"(?:\A|{edge}){re.escape(level)}(?:{edge}|\Z)", na=False).astype(
            "int64"
        )
        for level in levels
    }
    return Frame(columns, self.column.rows)


@rule("str")
def cat(self: Any, others: Any = None, sep: Any = None, na_rep: Any = None) -> Any:
    columns = others if isinstance(others, (list, tuple)) else [others]
    if others is None or not all(is_column(c) for c in columns):
        refuse(".str.cat needs columns to join", "without them it joins all rows")
    result = self.column if na_rep is None else self.column.fillna(na_rep)
    for other in columns:
        other = other if na_rep is None else other.fillna(na_rep)
        result = (result + sep if sep else result) + other
    return result.named(self.column.label)


# -- searching ----------------------------------------------------------------------


def pattern_of(pat: Any, literal: bool) -> str:
    if isinstance(pat, re.Pattern):
        return f"(?{'i' if pat.flags & re.IGNORECASE else 'u'}){pat.pattern}"
    if not isinstance(pat, str):
        refuse("a pattern must be a string")
    return re.escape(pat) if literal else pat


def _found(
    name: str, self: Any, pattern: str, flags: int, replay: Callable[..., Any], before: str,
    after: str, na: Any,
) -> Any:  # fmt: skip
    """A test of strings: one operator on strings, or a search in characters."""
    plain = regex.re2(pattern, flags)
    anchored = f"{before and chr(92) + 'A'}(?:{pattern}){after and chr(92) + 'Z'}"
    program = regex.compiled(anchored if before or after else pattern, flags)
    default = None if na is None or na is pd.NA or na is np.nan or na is ... else bool(na)

    def emit(em: Emission, a: Rep) -> Rep:
        if a.kind == "text":
            head, tail = "" if before else ".*", "" if after else ".*"
            test = em.op.RegexFullMatch(a.data, pattern=f"(?s){head}(?:{plain}){tail}")
        else:
            test = search.is_found(em, a, program)
        return _without_missing(em, a, test, default)

    return record_strings(name, self, replay, emit, chars=plain is None)


@rule("str")
def contains(
    self: Any, pat: Any, case: bool = True, flags: int = 0, na: Any = ..., regex: bool = True
) -> Any:
    na = _answer(self, na)
    options = {} if na is ... else {"na": na}
    pattern = pattern_of(pat, not regex)
    ignore = flags | (0 if case else int(re.IGNORECASE))
    return _found(
        "contains", self, pattern, ignore,
        lambda a: a.str.contains(pat, case=case, flags=flags, regex=regex, **options), "", "", na,
    )  # fmt: skip


def _answer(self: Any, na: Any) -> Any:
    """What a missing string gives; the value of one row is a string wherever Python goes on."""
    return False if na is ... and self.column.is_value else na


def _affix(name: str, before: bool) -> None:
    def method(self: Any, pat: Any, na: Any = ...) -> Any:
        texts = pat if isinstance(pat, tuple) else (pat,)
        if not all(isinstance(t, str) for t in texts):
            refuse(f".str.{name} needs strings")
        na = _answer(self, na)
        options = {} if na is ... else {"na": na}
        pattern = "|".join(re.escape(t) for t in texts)
        return _found(
            name, self, pattern, 0, lambda a: getattr(a.str, name)(pat, **options),
            "^" if before else "", "" if before else "$", na,
        )  # fmt: skip

    rule("str", name)(method)


_affix("startswith", True)
_affix("endswith", False)


def _matching(name: str, after: str) -> None:
    def method(self: Any, pat: Any, case: bool = True, flags: int = 0, na: Any = ...) -> Any:
        na = _answer(self, na)
        options = {} if na is ... else {"na": na}
        ignore = flags | (0 if case else int(re.IGNORECASE))
        return _found(
            name, self, pattern_of(pat, False), ignore,
            lambda a: getattr(a.str, name)(pat, case=case, flags=flags, **options), "^", after, na,
        )  # fmt: skip

    rule("str", name)(method)


_matching("match", "")
_matching("fullmatch", "$")


@rule("str")
def count(self: Any, pat: Any, flags: int = 0) -> Any:
    program = regex.compiled(pattern_of(pat, False), flags)
    if program.may_be_empty:
        refuse("counting a pattern that may be empty has no rule")

    def emit(em: Emission, a: Rep) -> Rep:
        match = search.search(em, a, program, repeat=True)
        total = em.op.ReduceSum(em.op.Cast(match.ended, to=int(INT64)), [1], keepdims=0)
        value = em.op.Cast(total, to=11)
        if a.missing is not None:
            value = em.op.Where(a.missing, em.doubles(np.nan), value)
        return Rep("float", value)

    return record_strings("count", self, lambda a: a.str.count(pat, flags), emit)


@rule("str")
def find(self: Any, sub: str) -> Any:
    program = regex.compiled(re.escape(sub))

    def emit(em: Emission, a: Rep) -> Rep:
        match = search.search(em, a, program)
        value = em.op.Cast(em.op.Where(match.success, match.starts[0], em.ints(-1)), to=11)
        if a.missing is not None:
            value = em.op.Where(a.missing, em.doubles(np.nan), value)
        return Rep("float", value)

    return record_strings("find", self, lambda a: a.str.find(sub), emit)


@rule("str")
def extract(self: Any, pat: Any, flags: int = 0, expand: bool = True) -> Any:
    pattern = pattern_of(pat, False)
    program = regex.compiled(pattern, flags)
    if not program.groups:
        refuse("pattern contains no capture groups")
    names = {number: name for name, number in program.names.items()}
    memo: dict[int, Any] = {}

    def column(group: int) -> Any:
        def emit(em: Emission, a: Rep) -> Rep:
            if id(em) not in memo:
                memo.clear()
                memo[id(em)] = {}
            searches = memo[id(em)]
            if a.data not in searches:
                searches[a.data] = search.search(em, a, program)
            return span(em, a, searches[a.data], group)

        def replay(a: Any) -> Any:
            return a.str.extract(pat, flags, expand=True).iloc[:, group - 1]

        return record_strings("extract", self, replay, emit)

    if program.groups == 1 and not expand:
        label = names.get(1, self.column.label)
        return column(1).named(label)
    from sardonyx.importers.pandas.frame import Frame

    labels = [names.get(g, g - 1) for g in range(1, program.groups + 1)]
    return Frame({label: column(g + 1) for g, label in enumerate(labels)}, self.column.rows)


def span(em: Emission, a: Rep, match: search.Search, group: int) -> Rep:
    op = em.op
    start, end = match.starts[group], match.ends[group]
    place = characters.places(em, a.data)
    keep = op.And(
        op.GreaterOrEqual(place, characters.column(em, start)),
        op.Less(place, characters.column(em, end)),
    )
    unset = op.Or(op.Less(start, em.ints(0)), op.Less(end, start))
    absent = op.Or(op.Not(match.success), unset)
    keep = op.And(keep, op.Not(characters.column(em, absent)))
    return Rep("chars", characters.compact(em, a.data, keep), em.either(a.missing, absent))


@rule("str")
def replace(
    self: Any, pat: Any, repl: Any = None, n: int = -1, case: Any = None, flags: int = 0,
    regex: bool = False,
) -> Any:  # fmt: skip
    from sardonyx.importers.pandas.regex import compiled

    if isinstance(pat, dict):
        for key, value in pat.items():
            self = Strings(replace(self, key, value, n, case, flags, regex))
        return self.column
    if not isinstance(repl, str):
        refuse(".str.replace with a function has no rule", "replace with a text")
    pattern = pattern_of(pat, not regex)
    if regex and "\\" in repl:
        refuse("a replacement that refers to groups has no rule", "use .str.extract")
    ignore = flags | (int(re.IGNORECASE) if case is False else 0)
    program = compiled(pattern, ignore)
    if program.may_be_empty:
        refuse("replacing a pattern that may be empty has no rule", "use + instead of *")

    def emit(em: Emission, a: Rep) -> Rep:
        return _replaced(em, a, program, repl, max(n, 0))

    def replay(a: Any) -> Any:
        return a.str.replace(pat, repl, n=n, case=case, flags=flags, regex=regex)

    return record_strings("replace", self, replay, emit)


def matches(
    em: Emission, a: Rep, program: Any, limit: int, from_right: bool = False
) -> tuple[Any, Any]:
    """[rows, length]: where a match begins, and which characters are in one."""
    op = em.op
    if from_right and limit:
        hits = search.fixed_at(em, a, program)
        after = op.CumSum(op.Cast(hits, to=int(INT64)), em.ints(1), reverse=1)
        hits = op.And(hits, op.LessOrEqual(after, em.ints(limit)))
        return hits, hits
    if program.is_fixed and len(program.ranges) == 1 and not limit:
        hits = search.fixed_at(em, a, program)
        return hits, hits
    match = search.search(em, a, program, repeat=True, limit=limit)
    size = characters.width(em, a.data)
    began, ended = (
        op.Cast(op.Slice(x, em.ints([0]), size, em.ints([1])), to=int(INT64))
        for x in (match.began, match.ended)
    )
    depth = op.Sub(op.CumSum(began, em.ints(1)), op.CumSum(ended, em.ints(1)))
    return op.Cast(began, to=int(BOOL)), op.Greater(depth, em.ints(0))


def _replaced(em: Emission, a: Rep, program: Any, repl: str, limit: int) -> Rep:
    op = em.op
    begins, inside = matches(em, a, program, limit)
    rest = op.Where(inside, np.int32(-1), a.data)
    if not repl:
        return a.but(data=characters.compact(em, rest, op.GreaterOrEqual(rest, np.int32(0))))
    text = op.const(np.array([[[ord(c) for c in repl]]], np.int32))
    new = op.Where(op.Unsqueeze(begins, em.ints([2])), text, np.int32(-1))
    both = op.Concat(new, op.Unsqueeze(rest, em.ints([2])), axis=2)
    width = op.Mul(characters.width(em, a.data), em.ints([len(repl) + 1]))
    shape = op.Concat(op.Shape(a.data, start=0, end=1), width, axis=0)
    flat = op.Reshape(both, shape, allowzero=1)
    return a.but(data=characters.compact(em, flat, op.GreaterOrEqual(flat, np.int32(0))))
