"""Splitting strings: the parts between separators, by their place."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd

from sardonyx.importers.pandas import characters, regex
from sardonyx.importers.pandas.column import Column, is_column, record
from sardonyx.importers.pandas.emission import INT64, Emission, Rep
from sardonyx.importers.pandas.frame import Frame
from sardonyx.importers.pandas.recorder import Proxy, refuse, rule
from sardonyx.importers.pandas.rules.strings import Strings, matches, pattern_of, record_strings


class Pieces(Column):
    """A column of lists: the parts between separators. Only their parts and number can be asked."""

    def strings(self) -> Any:
        return PieceStrings(self)

    def __getattr__(self, name: str) -> Any:
        if name in ("str", "apply", "map"):
            return super().__getattr__(name)
        return refuse("a column of lists has no graph", "take one part with .str[0]")


class PieceStrings(Proxy):
    """`.str` of a column of lists."""

    _owner = "str of lists"

    def __init__(self, pieces: Pieces):
        self.pieces = pieces

    def __getitem__(self, key: Any) -> Any:
        return piece(self, key)


@rule("str", "split")
def split(self: Any, pat: Any = None, n: int = -1, expand: bool = False, regex: Any = None) -> Any:
    return _split(self, pat, n, expand, regex)


def _partition(name: str, from_right: bool) -> None:
    def method(self: Any, sep: str = " ", expand: bool = True) -> Any:
        if not expand or not isinstance(sep, str) or not sep or (from_right and len(sep) > 1):
            refuse(f".str.{name} is recorded for a separator and with expand=True")
        dtype = self.column.step.value.dtype
        has = self.contains(sep, regex=False, na=False)
        pieces = PieceStrings(_split(self, sep, 1, False, False, from_right))
        first, second = (piece(pieces, k, dtype) for k in (0, 1))
        is_missing = self.column.isna()
        whole = self.column
        middle = whole.where(is_missing, "").mask(has, sep)
        empty = whole.where(is_missing, "")
        parts = (
            [empty.mask(has, first), middle, whole.mask(has, second)]
            if from_right
            else [first, middle, empty.mask(has, second)]
        )
        return Frame({k: c.named(k) for k, c in enumerate(parts)}, self.column.rows)

    rule("str", name)(method)


_partition("partition", False)
_partition("rpartition", True)


@rule("str", "rsplit")
def rsplit(self: Any, pat: Any = None, n: int = -1, expand: bool = False) -> Any:
    if not isinstance(pat, str) or len(pat) != 1:
        refuse(".str.rsplit is recorded for a separator of one character")
    return _split(self, pat, n, expand, None, from_right=True)


def _split(
    self: Any, pat: Any, n: int, expand: bool, is_regex: Any, from_right: bool = False
) -> Any:
    if pat is not None and not isinstance(pat, str):
        refuse("the separator must be a string")
    literal = pat is not None and (is_regex is False or (is_regex is None and len(pat) == 1))
    if is_regex is None and pat is not None and len(pat) > 1:
        literal = re.escape(pat) == pat or not set(pat) & set("\\.^$*+?{}[]|()")
    pattern = r"\s+" if pat in (None, "") else pattern_of(pat, literal)
    program = regex.compiled(pattern)
    if program.may_be_empty:
        refuse("splitting at a pattern that may be empty has no rule")
    options = {"n": n, **({} if is_regex is None else {"regex": is_regex})}
    source = self
    if pat in (None, ""):  # white space at the end stays where the number of parts is limited
        source = Strings(self.lstrip() if n > 0 else self.strip())

    def replay(a: Any) -> Any:
        return a.str.rsplit(pat, n=n) if from_right else a.str.split(pat, **options)

    def emit(em: Emission, a: Rep) -> Any:
        return a

    column = record_strings("split", source, replay, emit)
    pieces = Pieces(column.step, self.column.label)
    pieces.__dict__["parts"] = (program, max(n, 0), pat in (None, ""), from_right)
    pieces.__dict__["separator"] = (pattern, max(n, 0), pat in (None, ""), from_right)
    pieces.__dict__["source"] = source.column
    if not expand:
        return pieces
    widths = [len(v) for v in column.step.value if isinstance(v, list)]
    width = max(widths, default=1)
    strings = PieceStrings(pieces)
    dtype = self.column.step.value.dtype  # which the frame of parts keeps, and `.str[0]` does not
    return Frame({k: piece(strings, k, dtype).named(k) for k in range(width)}, self.column.rows)


@rule("str of lists", "get", "__getitem__")
def piece(self: Any, i: Any, dtype: Any = None) -> Any:
    if not isinstance(i, (int, np.integer)):
        refuse("only one part of a column of lists can be taken at a time")
    program, limit, whitespace, from_right = self.pieces.__dict__["parts"]

    def emit(em: Emission, a: Rep) -> Rep:
        op = em.op
        begins, inside = matches(em, a, program, limit, from_right)
        number = op.CumSum(op.Cast(begins, to=int(INT64)), em.ints(1))
        last = op.ReduceSum(op.Cast(begins, to=int(INT64)), [1], keepdims=0)
        number_of_piece = em.ints(int(i)) if i >= 0 else op.Add(last, em.ints(int(i) + 1))
        absent = op.Or(op.Less(number_of_piece, em.ints(0)), op.Greater(number_of_piece, last))
        if whitespace and not limit:
            absent = op.Or(absent, op.Equal(characters.lengths(em, a.data), em.ints(0)))
        at = number_of_piece if i >= 0 else characters.column(em, number_of_piece)
        keep = op.And(op.Equal(number, at), op.Not(inside))
        keep = op.And(keep, op.GreaterOrEqual(a.data, np.int32(0)))
        part = characters.compact(em, a.data, keep)
        if whitespace and limit:
            absent = op.Or(absent, op.Equal(characters.lengths(em, part), em.ints(0)))
        return Rep("chars", part, em.either(a.missing, absent))

    if whitespace and limit and i < 0:
        refuse("parts from the end, where their number is limited, have no rule")
    plain = Column(self.pieces.step, self.pieces.label)

    def replay(a: Any) -> Any:
        return a.str[i] if dtype is None else a.str[i].astype(dtype)

    return record("str.get", [plain], replay, emit, chars=True, label=self.pieces.label)


@rule("str of lists")
def join(self: Any, sep: str) -> Any:
    """The words of a text one after the other, which takes white space at its ends away."""
    pattern, limit, whitespace, _ = self.pieces.__dict__["separator"]
    if limit or not isinstance(sep, str):
        refuse("join of a limited number of parts has no rule", "use .str.replace")
    words = Strings(Column(self.pieces.__dict__["source"].step, self.pieces.label))
    edge = r"\s+" if whitespace else pattern
    return words.replace(edge, sep.replace("\\", "\\\\"), regex=True)


@rule("str of lists")
def has(self: Any, part: Any) -> Any:
    """Whether a text is one of the parts."""
    pattern, limit, whitespace, _ = self.pieces.__dict__["separator"]
    if limit:
        refuse("`in` a list of a limited number of parts has no rule")
    if is_column(part):
        return _has_value(self, part)
    if not isinstance(part, str):
        refuse("`in` a list of texts is recorded for a text")
    source = Strings(Column(self.pieces.__dict__["source"].step, None))
    edge = r"\s+" if whitespace else pattern
    form = rf"(?:\A|{edge}){re.escape(part)}(?:{edge}|\Z)"
    return source.contains(form, na=False)


def _has_value(self: Any, part: Any) -> Any:
    """Whether the text of a column is one of the parts of the same row."""

    def emit(em: Emission, a: Rep, other: Rep) -> Rep:
        op = em.op
        program, _, whitespace, _ = self.pieces.__dict__["parts"]
        program_of_one = program.is_fixed and len(program.ranges) == 1
        if not program_of_one or whitespace or a.kind != "chars" or other.kind != "chars":
            em.refuse("`in` a list is recorded for a separator of one character")
        edge = np.int32(program.ranges[0][0][0])

        # A separator at both ends of both; then the part must stand somewhere in the text.
        def framed(rep: Rep) -> Rep:
            bar = em.scalar(chr(int(edge)))
            return characters.concatenate(em, characters.concatenate(em, bar, rep), bar)

        present = characters.contains(em, framed(a), framed(other))
        clean = op.Equal(
            op.ReduceMax(op.Cast(op.Equal(other.data, edge), to=int(INT64)), [1], keepdims=0),
            em.ints(0),
        )
        held = op.And(present, clean)
        missing = em.either(a.missing, other.missing)
        return Rep("bool", held if missing is None else op.And(held, op.Not(missing)))

    def replay(a: pd.Series, other: pd.Series) -> pd.Series:
        pairs = zip(a, other, strict=True)
        answers = [isinstance(x, list) and isinstance(y, str) and y in x for x, y in pairs]
        return pd.Series(answers, index=a.index, dtype=bool)

    plain = Column(self.pieces.step, None)
    return record("str.has", [plain, Column(part.step)], replay, emit, chars=True)


@rule("str of lists", "len")
def number_of_pieces(self: Any) -> Any:
    program, limit, whitespace, from_right = self.pieces.__dict__["parts"]
    if whitespace and limit:
        refuse("the number of parts, where it is limited, has no rule")

    def emit(em: Emission, a: Rep) -> Rep:
        begins, _ = matches(em, a, program, limit, from_right)
        total = em.op.ReduceSum(em.op.Cast(begins, to=int(INT64)), [1], keepdims=0)
        value = em.op.Add(total, em.ints(1))
        if whitespace:
            empty = em.op.Equal(characters.lengths(em, a.data), em.ints(0))
            value = em.op.Where(empty, em.ints(0), value)
        value = em.op.Cast(value, to=11)
        if a.missing is not None:
            value = em.op.Where(a.missing, em.doubles(np.nan), value)
        return Rep("float", value)

    plain = Column(self.pieces.step, self.pieces.label)
    return record(
        "str.len", [plain], lambda a: a.str.len(), emit, chars=True, label=self.pieces.label
    )
