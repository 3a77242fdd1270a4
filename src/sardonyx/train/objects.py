"""Data sets of other libraries: columns by name (Hugging Face) or items by number (torch)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from sardonyx.errors import DataError, quote
from sardonyx.train.images import Layout
from sardonyx.train.tables import Rows, Stream, Table, as_array


class _Transformed(Table):
    """A data set that computes its rows when they are asked for."""

    def row_bytes(self, names: Collection[str]) -> int | None:
        return None

    def sample(self, name: str) -> np.ndarray:
        return self.take(np.arange(min(len(self), 64)))[name]

    def fingerprint(self, names: Collection[str]) -> str:
        return ""  # a transformation may give other numbers every time


class Columns(_Transformed):
    """A data set of Hugging Face's kind: columns by name, rows by a list of numbers."""

    def __init__(self, source: Any, columns: Sequence[str] | None, layout: Layout):
        missing = [c for c in columns or () if c not in source.column_names]
        if missing:
            raise DataError(
                f"the data set lacks the columns {', '.join(map(quote, missing))}",
                hint=f"it has {', '.join(map(quote, source.column_names))}",
            )
        self.source, self.names = source, list(columns or source.column_names)
        self.layout = layout
        self.origin, self.length = f"a data set of {type(source).__module__}", len(source)
        if not self.length:
            raise DataError("the data set has no rows")
        features = getattr(source, "features", None) or {}
        named = [features[n].names for n in self.names if hasattr(features.get(n), "names")]
        self.classes = tuple(named[0]) if len(named) == 1 else ()

    def take(self, rows: np.ndarray, names: Collection[str] | None = None) -> Rows:
        batch = self.source[[int(r) for r in rows]]
        # a format may show fewer columns than there are
        return {name: self._column(batch[name]) for name in self.names if name in batch}

    def _column(self, values: Any) -> np.ndarray:
        if isinstance(values, list) and values and hasattr(values[0], "convert"):
            return np.stack([self.layout.pixels(v) for v in values])
        return as_array(values)


class Items(_Transformed):
    """A data set of torch's kind: `len(data)`, and `data[i]` is a pair, a tuple or a dict."""

    def __init__(self, source: Any, layout: Layout):
        self.source, self.layout = source, layout
        self.origin, self.length = f"the data set {type(source).__name__}", len(source)
        if not self.length:
            raise DataError(f"{self.origin} has no rows")
        names = getattr(source, "classes", ())
        if isinstance(names, (list, tuple)) and all(isinstance(n, str) for n in names):
            self.classes = tuple(names)

    def take(self, rows: np.ndarray, names: Collection[str] | None = None) -> Rows:
        return stacked([self.source[int(r)] for r in rows], self.origin, self.layout)


def stacked(items: list[Any], origin: str, layout: Layout) -> Rows:
    """Items as one batch: each part of them side by side."""
    columns = [_named(item, origin) for item in items]
    try:
        return {
            name: np.stack([_part(column[name], layout) for column in columns])
            for name in columns[0]
        }
    except (KeyError, ValueError) as error:
        raise DataError(
            f"the items of {origin} do not make a batch: {error}",
            hint="all items have the same parts, of the same shapes",
        ) from error


def _named(item: Any, origin: str) -> dict[str, Any]:
    if isinstance(item, Mapping):
        return {str(k): v for k, v in item.items()}
    if isinstance(item, (tuple, list)):
        names = ["x", "label"] if len(item) == 2 else [f"field{i}" for i in range(len(item))]
        return dict(zip(names, item, strict=True))
    if hasattr(item, "shape"):
        return {"x": item}
    raise DataError(
        f"an item of {origin} is a {type(item).__name__}",
        hint="give dicts of arrays, or (x, label) pairs",
    )


def _part(value: Any, layout: Layout) -> np.ndarray:
    return layout.pixels(value) if hasattr(value, "convert") else as_array(value)


def item_stream(source: Any, layout: Layout) -> Stream:
    """A torch `IterableDataset`, which gives items rather than batches."""

    def batches(size: int) -> Iterator[Rows]:
        items = iter(source)
        while batch := list(islice(items, size)):
            yield stacked(batch, origin, layout)

    origin = f"the data set {type(source).__name__}"
    return Stream(batches, origin)
