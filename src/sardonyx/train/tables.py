"""What data is to the loop: a `Table`, which has a length and gives any rows, or a `Stream`, which
gives batches in an order of its own. `data.py` makes one of them out of anything that holds data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sardonyx.errors import DataError, quote
from sardonyx.record.hash_order import VALIDATION, hash_order

# Names of fields that hold labels.
LABELS = ("label", "labels", "y", "target", "targets", "class", "classes")
MEMORY = "the data"  # what arrays in memory are called in messages
HASHED_BYTES = 1 << 26  # of a field; of a larger one, the fingerprint looks at some rows
HASHED_ROWS = 1024
CHECKED_ROWS = 4096  # of data that is not in memory, looked at before training
Rows = dict[str, np.ndarray]


@dataclass(frozen=True)
class Field:
    """One named column of the data: its element type and the shape of one row."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...] | None


class Table:
    """Rows by number: `len(table)`, `table.take(indices)`.

    columns   -- arrays, or anything indexable by an integer array; all of one length
    classes   -- the names of the classes by label number, where they are known
    facts     -- what people should know about how the data was read
    x_columns -- the columns of a file that stand side by side in the field `x`
    """

    classes: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    x_columns: tuple[str, ...] = ()

    def __init__(self, columns: Mapping[str, Any], origin: str):
        if not columns:
            raise DataError(f"{origin} holds no data")
        self.columns = {str(name): _column(values) for name, values in columns.items()}
        self.origin = origin
        scalars = [n for n, column in self.columns.items() if not getattr(column, "shape", (0,))]
        if scalars:
            raise DataError(
                f"fields of {origin} hold one value instead of one for each row",
                [[quote(n), str(self.columns[n])] for n in scalars],
                hint="leave them out; what is the same for all rows is given as a constant: "
                f"constants={{'input': value}}, --constant {scalars[0]}=VALUE",
            )
        ragged = [n for n, c in self.columns.items() if _is_ragged(c)]
        if ragged:
            raise DataError(
                f"rows of {origin} have different shapes",
                [[quote(n)] for n in ragged],
                hint="pad them to one length, or give batches, each with a length of its own",
            )
        lengths = {name: len(column) for name, column in self.columns.items()}
        if len(set(lengths.values())) > 1:
            raise DataError(
                f"the fields of {origin} have different lengths",
                [[quote(n), c] for n, c in lengths.items()],
            )
        self.length = next(iter(lengths.values()))
        if self.length == 0:
            raise DataError(f"{origin} has no rows")

    def __len__(self) -> int:
        return self.length

    @property
    def fields(self) -> dict[str, Field]:
        one = self.take(np.array([0]))
        return {name: Field(a.dtype, a.shape[1:]) for name, a in one.items()}

    def take(self, rows: np.ndarray, names: Collection[str] | None = None) -> Rows:
        """These rows, of the fields `names` at least."""
        names = self.columns if names is None else names
        return {name: _rows(self.columns[name], rows) for name in names}

    def row_bytes(self, names: Collection[str]) -> int | None:
        """How large a row is in memory; None where it must be read first."""
        arrays = [self.columns[name] for name in names]
        if not all(type(array) is np.ndarray for array in arrays):
            return None
        return sum(array.nbytes // self.length for array in arrays)

    def sample(self, name: str) -> np.ndarray:
        """The field, whole where that costs nothing; of data that must be read, the first rows."""
        column = self.columns[name]
        if type(column) is np.ndarray:
            return column
        return self.take(np.arange(min(self.length, CHECKED_ROWS)), [name])[name]

    def whole(self, name: str) -> np.ndarray:
        """All rows of a field."""
        column = self.columns.get(name) if hasattr(self, "columns") else None
        if type(column) is np.ndarray:
            return column
        starts = range(0, self.length, CHECKED_ROWS)
        parts = (np.arange(s, min(s + CHECKED_ROWS, self.length)) for s in starts)
        return np.concatenate([self.take(rows, [name])[name] for rows in parts])

    def fingerprint(self, names: Collection[str]) -> str:
        """A number that changes when the contents of these fields do; "" where none is known."""
        digest = hashlib.blake2b(str(self.length).encode(), digest_size=8)
        for name in sorted(names):
            column = self.columns[name]
            size = getattr(column, "nbytes", HASHED_BYTES + 1)
            rows: Any = slice(None)
            if size > HASHED_BYTES:
                rows = np.linspace(0, self.length - 1, min(self.length, HASHED_ROWS)).astype(int)
            array = np.asarray(column[rows])
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            text = array.dtype.kind in "OUS"
            digest.update(repr(array.tolist()).encode() if text else array.tobytes())
        return digest.hexdigest()

    def split(self, share: float, seed: int, by_hash: bool = False) -> tuple[Table, Table]:
        """Two tables: the second has `share` of the rows, drawn by `seed`, by NumPy or a hash."""
        if by_hash:
            order = hash_order(seed, 0, self.length, VALIDATION)
        else:
            order = np.random.default_rng([seed, 0x5E]).permutation(self.length)
        count = max(1, round(self.length * share))
        if count >= self.length:
            raise DataError(f"a validation share of {share} leaves nothing to train on")
        validation_rows = np.sort(order[:count])
        training_rows = np.sort(order[count:])
        return Subset(self, training_rows), Subset(self, validation_rows)


def _is_ragged(column: Any) -> bool:
    objects = isinstance(column, np.ndarray) and column.dtype.kind == "O" and column.size
    return bool(objects) and isinstance(column.flat[0], (list, tuple, np.ndarray))


def _column(values: Any) -> Any:
    """A column whose rows an array of numbers picks: of a series, whose index may be any, the
    values; what reads its rows from a file is left as it is.
    """
    if hasattr(values, "to_numpy"):
        return np.asarray(values.to_numpy())
    lazy = hasattr(values, "__getitem__") and hasattr(values, "shape")
    if isinstance(values, np.ma.MaskedArray):
        return as_array(values)
    return values if lazy and not hasattr(values, "detach") else as_array(values)


def _rows(column: Any, rows: np.ndarray) -> np.ndarray:
    # `take` moves whole rows, where an index array visits every element
    return column.take(rows, 0) if type(column) is np.ndarray else np.asarray(column[rows])


class Subset(Table):
    """Some rows of another table."""

    def __init__(self, table: Table, rows: np.ndarray):
        self.table, self.rows = table, rows
        self.origin, self.length = table.origin, len(rows)
        self.classes, self.facts, self.x_columns = table.classes, table.facts, table.x_columns

    def sample(self, name: str) -> np.ndarray:
        return self.table.sample(name)  # rows as people count them

    def fingerprint(self, names: Collection[str]) -> str:
        return self.table.fingerprint(names)

    def take(self, rows: np.ndarray, names: Collection[str] | None = None) -> Rows:
        return self.table.take(self.rows[rows], names)

    def row_bytes(self, names: Collection[str]) -> int | None:
        return self.table.row_bytes(names)


class Stream:
    """Batches in the order in which the source gives them.

    make   -- starts the source anew, given the number of rows that a batch should have
    length -- the number of batches, where that is known
    """

    classes: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()

    def __init__(
        self,
        make: Callable[[int], Iterator[Any]],
        origin: str,
        names: Sequence[str] | None = None,
        length: int | None = None,
    ):
        self.make, self.origin, self.names, self.length = make, origin, names, length

    def batches(self, batch_size: int = 1) -> Iterator[Rows]:
        for batch in self.make(batch_size):
            yield self._named(batch)

    def sample(self, name: str) -> np.ndarray:
        return next(self.batches())[name]

    def fingerprint(self, names: Collection[str]) -> str:
        return ""

    @property
    def fields(self) -> dict[str, Field]:
        first = next(self.batches(), None)
        if first is None:
            raise DataError(f"{self.origin} gives no batches")
        return {name: Field(a.dtype, a.shape[1:]) for name, a in first.items()}

    def _named(self, batch: Any) -> Rows:
        if isinstance(batch, Mapping):
            return self._batch({str(k): as_array(v) for k, v in batch.items()})
        if isinstance(batch, (tuple, list)):
            names = self.names or (
                ["x", "label"] if len(batch) == 2 else [f"field{i}" for i in range(len(batch))]
            )
            return self._batch({n: as_array(v) for n, v in zip(names, batch, strict=True)})
        raise DataError(
            f"a batch of {self.origin} is a {type(batch).__name__}",
            hint="give dicts of arrays, or (x, label) pairs",
        )

    def _batch(self, fields: Rows) -> Rows:
        """The fields of a batch, unless they are those of a single row."""
        lengths = {len(array) if array.ndim else None for array in fields.values()}
        pair = len(fields) == 2 and len(lengths) > 1
        if pair or any(not array.ndim and name in LABELS for name, array in fields.items()):
            raise DataError(
                f"an element of {self.origin} is not a batch: its fields have no common rows",
                [[quote(name), list(array.shape)] for name, array in fields.items()],
                hint="every element is a batch, whose arrays have the rows on their first axis; "
                "for single rows give arrays of all rows, such as {'x': x, 'label': label}, or a "
                "torch Dataset",
            )
        return fields


def as_array(value: Any) -> np.ndarray:
    """Anything that holds numbers as an array; a torch tensor too, without importing torch."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise DataError(
            "an array of the data has masked elements, and a mask is not trained on",
            hint="fill them, such as array.filled(0), or leave their rows out",
        )
    try:
        return np.asarray(value)
    except ValueError:  # rows of different lengths
        return np.array([np.asarray(row) for row in value], dtype=object)


Source = Table | Stream
