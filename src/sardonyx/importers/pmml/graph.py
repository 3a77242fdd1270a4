"""The graph that is built: every field is one column of doubles, and missing is NaN.

Text is held as a number as well: the place of the string in one vocabulary for the whole document,
which grows while the rules meet constants, or OTHER for a string that nothing compares with. The
nodes that translate between strings and these codes get their tables when everything is built.
A predicate is a pair of masks, where it holds and where it does not; elsewhere it is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder

OTHER = -1.0
ML = "ai.onnx.ml"
MISSING_TEXT = ""


class Graph(Builder):
    """A builder of columns: marks each node with the stage that it belongs to."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = "preprocessing"
        self.vocabulary: dict[str, float] = {}
        self.pending: list[tuple[ir.Node, Callable[[], tuple[Any, Any, Any]]]] = []
        self.invalid: list[ir.Value] = []
        self.rows: ir.Value | None = None
        self.shared: dict[tuple[Any, ...], Any] = {}  # parts that several expressions use

    def call(self, op_type: str, *arguments: Any, **options: Any) -> Any:
        out = super().call(op_type, *arguments, **options)
        self.nodes[-1].metadata_props["stage"] = self.stage
        return out

    @contextmanager
    def part(self, stage: str) -> Iterator[None]:
        """Mark the nodes built inside as belonging to `stage`."""
        before, self.stage = self.stage, stage
        try:
            yield
        finally:
            self.stage = before

    # -- numbers ---------------------------------------------------------------

    def number(self, value: float | Sequence[Any] | np.ndarray) -> ir.Value:
        return self.const(np.asarray(value, np.float64))

    def single(self, x: ir.Value) -> ir.Value:
        """`x` rounded to the nearest float of 32 bits."""
        return self.cast(self.cast(x, ir.DataType.FLOAT), ir.DataType.DOUBLE)

    def column(self, x: ir.Value) -> ir.Value:
        """`x` with one entry for each row: constants are repeated."""
        if x.shape is not None and len(x.shape) == 1 and not isinstance(x.shape[0], int):
            return x
        assert self.rows is not None
        return self.Expand(x, self.Shape(self.rows))

    def matrix(self, columns: Sequence[ir.Value]) -> ir.Value:
        """[N, K] out of K columns."""
        wide = [self.Unsqueeze(self.column(c), [1]) for c in columns]
        return wide[0] if len(wide) == 1 else self.Concat(*wide, axis=1)

    def pick(self, matrix: ir.Value, index: int) -> ir.Value:
        """One column of a matrix."""
        return self.Gather(matrix, np.array(index, np.int64), axis=1)

    def where(self, condition: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.Where(condition, x, y)

    def any(self, masks: Sequence[ir.Value]) -> ir.Value:
        out = masks[0]
        for mask in masks[1:]:
            out = self.Or(out, mask)
        return out

    # -- tables ----------------------------------------------------------------

    def table(self, x: ir.Value, entries: dict[float, float], default: float) -> ir.Value:
        """Each entry of `x` replaced by the number that belongs to it; NaN can be a key."""
        if not entries:
            entries = {float("nan"): default}
        keys, values = list(entries), list(entries.values())
        return self._encoder(x, np.array(keys, np.float64), np.array(values, np.float64), default)

    def member(self, x: ir.Value, values: Sequence[float]) -> ir.Value:
        """Where `x` is one of `values`; NaN never is."""
        distinct = list(dict.fromkeys(values))
        if len(distinct) <= 3:
            masks = [self.Equal(x, self.number(v)) for v in distinct]
            return self.any(masks) if masks else self.IsInf(x, detect_negative=0, detect_positive=0)
        return self.Equal(self.table(x, dict.fromkeys(distinct, 1.0), 0.0), self.number(1.0))

    def _encoder(self, x: ir.Value, keys: Any, values: Any, default: Any) -> ir.Value:
        return self.call(
            "LabelEncoder",
            [x],
            {
                "keys_tensor": _tensor("keys", keys),
                "values_tensor": _tensor("values", values),
                "default_tensor": _tensor("default", np.array([default], values.dtype)),
            },
            domain=ML,
        )

    def _late(self, x: ir.Value, tables: Callable[[], tuple[Any, Any, Any]]) -> ir.Value:
        """An encoder whose tables are known when the vocabulary is complete."""
        out = self._encoder(x, *tables())
        node = out.producer()
        assert node is not None
        self.pending.append((node, tables))
        return out

    def finish(self) -> None:
        """Give each encoder its table."""
        for node, tables in self.pending:
            keys, values, default = tables()
            for name, array in (("keys", keys), ("values", values), ("default", [default])):
                array = np.asarray(array, values.dtype if name == "default" else None)
                node.attributes.add(ir.AttrTensor(f"{name}_tensor", _tensor(name, array)))

    # -- text ------------------------------------------------------------------

    def code(self, text: str) -> float:
        """The number that stands for a string."""
        return self.vocabulary.setdefault(text, float(len(self.vocabulary)))

    def encode(self, text: ir.Value, empty_is_missing: bool = True) -> ir.Value:
        """The codes of a column of strings."""

        def tables() -> tuple[Any, Any, Any]:
            entries = dict(self.vocabulary)
            if empty_is_missing:
                entries[MISSING_TEXT] = float("nan")
            keys = np.array(list(entries) or ["\0"], object)
            return keys, np.array(list(entries.values()) or [OTHER], np.float64), OTHER

        return self._late(text, tables)

    def decode(self, codes: ir.Value) -> ir.Value:
        """The strings of a column of codes; missing is the empty string."""

        def tables() -> tuple[Any, Any, Any]:
            keys = np.array([float("nan"), *self.vocabulary.values()], np.float64)
            return keys, np.array([MISSING_TEXT, *self.vocabulary], object), MISSING_TEXT

        return self._late(codes, tables)

    def spell(self, x: ir.Value, spelling: Callable[[str], float | None]) -> ir.Value:
        """The codes of numbers written as text: `spelling` gives the number of a text, or None."""

        def tables() -> tuple[Any, Any, Any]:
            entries = {spelling(text): code for text, code in self.vocabulary.items()}
            entries.pop(None, None)
            keys = np.array([float("nan"), *entries], np.float64)
            return keys, np.array([float("nan"), *entries.values()], np.float64), OTHER

        return self._late(x, tables)


def _tensor(name: str, array: np.ndarray) -> ir.TensorProtocol:
    if array.dtype == object or array.dtype.kind in "US":
        data = np.array([str(s).encode("utf-8") for s in array], object)
        return ir.StringTensor(data, shape=ir.Shape(array.shape), name=name)
    return ir.tensor(array, name=name)


@dataclass
class Truth:
    """Where a statement holds and where it does not; `no` is None if it is never unknown."""

    yes: ir.Value
    no: ir.Value | None = None

    def known_no(self, g: Graph) -> ir.Value:
        return self.no if self.no is not None else g.Not(self.yes)


@dataclass
class Column:
    """One field while the graph is built.

    numbers  -- doubles or codes of text; scalar for a constant
    dtype    -- the data type of PMML: double, float, integer, boolean, string, …
    text     -- the strings themselves, where the field is an input of text
    finite   -- every string that the field can have, if they are known
    literal  -- the value of a constant
    truth    -- of a boolean: the masks that it was made from
    order    -- of an ordinal field: its values, lowest first
    """

    numbers: ir.Value
    dtype: str
    text: ir.Value | None = None
    finite: tuple[str, ...] | None = None
    literal: Any = None
    truth: Truth | None = field(default=None, repr=False)
    order: tuple[Any, ...] | None = None
    optype: str | None = None

    @property
    def is_text(self) -> bool:
        return self.dtype == "string"


NUMBERS = ("integer", "float", "double", "boolean")


def constant(g: Graph, value: Any, dtype: str) -> Column:
    """A column of one value; None is missing."""
    if value is None:
        return Column(g.number(float("nan")), dtype, finite=() if dtype == "string" else None)
    if dtype == "string":
        return Column(g.number(g.code(str(value))), dtype, finite=(str(value),), literal=str(value))
    return Column(g.number(float(value)), dtype, literal=float(value))


def boolean(g: Graph, truth: Truth) -> Column:
    """A truth as a column: 1, 0, or missing where unknown."""
    one, zero = g.number(1.0), g.number(0.0)
    no = zero if truth.no is None else g.Where(truth.no, zero, g.number(float("nan")))
    return Column(g.Where(truth.yes, one, no), "boolean", truth=truth)


def truth_of(g: Graph, column: Column) -> Truth:
    """A boolean column as masks."""
    if column.truth is not None:
        return column.truth
    return Truth(g.Equal(column.numbers, g.number(1.0)), g.Equal(column.numbers, g.number(0.0)))


def missing(g: Graph, column: Column) -> ir.Value:
    """Where a column is missing."""
    return g.IsNaN(column.numbers)


def merge(g: Graph, condition: ir.Value, a: Column, b: Column) -> Column:
    """`a` where the condition holds, else `b`."""
    finite = a.finite + b.finite if a.finite is not None and b.finite is not None else None
    text = None
    if a.is_text and finite is None:
        text = g.Where(condition, strings(g, a), strings(g, b))
    return Column(
        g.Where(condition, a.numbers, b.numbers), promoted(a, b), text=text, finite=finite
    )


def strings(g: Graph, column: Column) -> ir.Value:
    """A column of text as strings."""
    if column.text is not None:
        return column.text
    return g.decode(g.column(column.numbers))


def promoted(*columns: Column) -> str:
    """The data type of a result of arithmetic: the widest of its operands."""
    kinds = [c.dtype for c in columns if not _is_void(c)] or [columns[0].dtype]
    if any(k == "string" for k in kinds):
        return "string"
    for kind in ("double", "float", "integer"):
        if kind in kinds:
            return kind
    return kinds[0]


def _is_void(column: Column) -> bool:
    return column.finite == () and column.literal is None


def is_open(column: Column) -> bool:
    """Whether a text can be a string that the document does not name."""
    return column.is_text and column.finite is None
