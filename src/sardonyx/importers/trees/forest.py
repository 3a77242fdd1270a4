"""Forest: decision trees in memory, as numbered nodes that test one column each.

A node is referred to by a number: `n >= 0` is a test, `~row` (negative) is the leaf whose values
are in that row of the leaf table. Children exist before the nodes that refer to them, or are added
in one piece (`extend`). Two tests may refer to the same node: it is copied when nodes are emitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from sardonyx.errors import ArgumentError

# The comparisons of TreeEnsemble, by number: `column MODE value` leads to the `yes` node.
MODES = ("<=", "<", ">=", ">", "==", "!=", "in")
MEMBER = MODES.index("in")


class Forest:
    """Trees over the columns of one matrix of doubles; NaN in it means missing.

    A missing value never fulfils a test: it leads to `yes` where `missing` is true, else to `no`.

    >>> forest = Forest()
    >>> small, large = forest.leaf([1.0]), forest.leaf([2.0])
    >>> forest.tree(forest.test(0, "<=", 0.5, small, large, missing=True))
    >>> forest.trees, forest.width
    (1, 1)
    """

    def __init__(self) -> None:
        self._column: list[Any] = []
        self._mode: list[Any] = []
        self._value: list[Any] = []
        self._yes: list[Any] = []
        self._no: list[Any] = []
        self._missing: list[Any] = []
        self._leaves: list[Any] = []
        self._pending: list[tuple[Any, ...]] = []  # tests that were added one at a time
        self._tests = 0
        self._rows = 0
        self.sets: dict[int, np.ndarray] = {}  # the values of each test of mode "in"
        self.whole: set[int] = set()  # columns that hold no fractions, where that is certain
        self.roots: list[int] = []
        self.targets: list[int] = []

    # -- one node at a time ------------------------------------------------------

    def leaf(self, values: Sequence[float] | np.ndarray | float) -> int:
        """A leaf with a vector of values; all leaves of a forest have vectors of one length."""
        self._leaves.append(np.atleast_2d(np.asarray(values, np.float64)))
        self._rows += 1
        return ~(self._rows - 1)

    def test(
        self, column: int, mode: str, value: float, yes: int, no: int, missing: bool = False
    ) -> int:
        """A test `column MODE value`, with a mode of `MODES` other than "in"."""
        if mode not in MODES[:MEMBER]:
            raise ArgumentError(f"{mode!r} is not a comparison", hint=f"one of {MODES[:MEMBER]}")
        if mode == "!=":  # for which a missing value counts as different in onnxruntime 1.31
            mode, yes, no, missing = "==", no, yes, not missing
        return self._single(column, MODES.index(mode), value, yes, no, missing)

    def member(
        self, column: int, values: Iterable[float], yes: int, no: int, missing: bool = False
    ) -> int:
        """A test whether the column is one of `values`."""
        members = np.unique(np.asarray(list(values), np.float64))
        members = members[~np.isnan(members)]
        if not len(members):  # nothing is in it: a test that nothing passes
            return self.test(column, "<", -np.inf, yes, no, missing)
        if len(members) == 1:
            return self.test(column, "==", float(members[0]), yes, no, missing)
        fraction = members != np.floor(members)
        if fraction.any() and not fraction.all():  # emit.py relies on sets of one kind
            no = self.member(column, members[fraction], yes, no, missing)
            members = members[~fraction]
            if len(members) == 1:
                return self.test(column, "==", float(members[0]), yes, no, missing)
        self.sets[self._tests] = members
        return self._single(column, MEMBER, 0.0, yes, no, missing)

    def _single(self, *test: Any) -> int:
        """One test; many of them become arrays together."""
        self._pending.append(test)
        self._tests += 1
        return self._tests - 1

    def _flush(self) -> None:
        if self._pending:
            for store, new in zip(self._stores, zip(*self._pending)):
                store.append(np.array(new))
            self._pending = []

    @property
    def _stores(self) -> tuple[list[Any], ...]:
        return (self._column, self._mode, self._value, self._yes, self._no, self._missing)

    def present(self, column: int, yes: int, no: int) -> int:
        """A test whether the column has a value, that is, is not missing."""
        return self.test(column, "<=", np.inf, yes, no)

    def tree(self, root: int, target: int = 0) -> None:
        """Declare `root` to be the root of a tree, whose values are added to the sum `target`."""
        self.roots.append(int(root))
        self.targets.append(int(target))

    # -- many at once --------------------------------------------------------------

    def extend(self, column: Any, mode: Any, value: Any, yes: Any, no: Any, missing: Any) -> int:
        """Add tests as arrays; `mode` is a number, references are final. Returns the first."""
        first = self._tests
        self._flush()
        for store, new in zip(self._stores, (column, mode, value, yes, no, missing)):
            store.append(np.asarray(new))
        self._tests += len(self._column[-1])
        return first

    def extend_leaves(self, values: np.ndarray) -> int:
        """Add leaves as rows of a matrix. Returns the number of the first row."""
        first = self._rows
        self._leaves.append(np.asarray(values, np.float64))
        self._rows += len(values)
        return first

    def move_columns(self, first: int, to: int) -> None:
        """Renumber the columns from `first` on, so that they begin at `to`."""
        column = self.arrays()["column"]
        self._column = [np.where(column >= first, column - first + to, column)]
        self.whole = {c - first + to if c >= first else c for c in self.whole}

    # -- what is there ---------------------------------------------------------------

    @property
    def trees(self) -> int:
        return len(self.roots)

    @property
    def tests(self) -> int:
        return self._tests

    @property
    def leaves(self) -> np.ndarray:
        """The leaf table: one row of values per leaf."""
        if len(self._leaves) > 1:
            widths = {part.shape[1] for part in self._leaves}
            if len(widths) > 1:
                raise ArgumentError(f"leaves have vectors of different lengths: {sorted(widths)}")
            self._leaves = [np.concatenate(self._leaves)]
        return self._leaves[0] if self._leaves else np.zeros((0, 1))

    @property
    def width(self) -> int:
        """How many values a leaf has."""
        return self._leaves[0].shape[1] if self._leaves else 1

    def arrays(self) -> dict[str, np.ndarray]:
        """The tests, as arrays: column, mode, value, yes, no, missing."""
        self._flush()
        kinds = {
            "column": (self._column, np.int64),
            "mode": (self._mode, np.uint8),
            "value": (self._value, np.float64),
            "yes": (self._yes, np.int64),
            "no": (self._no, np.int64),
            "missing": (self._missing, np.int64),
        }
        joined = {}
        for name, (store, dtype) in kinds.items():
            if len(store) != 1:
                store[:] = [np.concatenate(store)] if store else [np.zeros(0, dtype)]
            joined[name] = store[0].astype(dtype)
        return joined

    def thresholds(self) -> dict[int, np.ndarray]:
        """The values that each column is compared with: where a tree may turn."""
        arrays = self.arrays()
        plain = arrays["mode"] != MEMBER
        columns, values = arrays["column"][plain], arrays["value"][plain]
        order = np.argsort(columns, kind="stable")
        columns, values = columns[order], values[order]
        names, starts = np.unique(columns, return_index=True)
        parts = {int(c): np.unique(v) for c, v in zip(names, np.split(values, starts[1:]))}
        for node, members in self.sets.items():
            column = int(arrays["column"][node])
            parts[column] = np.union1d(parts.get(column, members[:0]), members)
        return parts
