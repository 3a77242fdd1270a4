"""Features of the whole data, computed once: no epoch prepares a row again.

A model whose front turns text or raw columns into numbers (`record/front.py`) runs it over a table
before the first step, where every row's features depend on that row alone. That is tried, on rows
of every chunk; where it is not so (text that is padded to the longest of a batch), and for streams,
the front runs with every batch.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from sardonyx.engines.training import TrainingRep
from sardonyx.train.batches import epoch_blocks
from sardonyx.train.fields import Link
from sardonyx.train.tables import Rows, Source, Stream, Table

CHUNK = 4096  # rows that the front takes at once
TRIED = 8  # rows of a chunk that are computed alone as well
MEMORY_BYTES = 1 << 31  # of features; more are not kept


class Prepared(Table):
    """A table with the features of its rows beside its fields."""

    def __init__(self, table: Table, features: Rows):
        self.table, self.features = table, features
        self.origin, self.length = table.origin, len(table)
        self.classes, self.facts = table.classes, table.facts

    def take(self, rows: np.ndarray, names: Collection[str] | None = None) -> Rows:
        names = [*self.table.fields, *self.features] if names is None else names
        fields = [n for n in names if n not in self.features]
        batch = {n: self.features[n].take(rows, 0) for n in names if n in self.features}
        return batch | (self.table.take(rows, fields) if fields else {})

    def row_bytes(self, names: Collection[str]) -> int | None:
        rest = self.table.row_bytes([n for n in names if n not in self.features])
        features = [self.features[n] for n in names if n in self.features]
        return None if rest is None else rest + sum(a.nbytes // self.length for a in features)

    def sample(self, name: str) -> np.ndarray:
        return self.features[name] if name in self.features else self.table.sample(name)

    def fingerprint(self, names: Collection[str]) -> str:
        return self.table.fingerprint(names)


def prepared(
    rep: TrainingRep, sources: Sequence[Source | None], links: list[Link]
) -> tuple[list[Source | None], list[Link]]:
    """The sources with their features, and the links that feed those; or both as they were."""
    if rep.front is None or rep.front.is_random:
        return list(sources), links
    raw = [item for item in links if item.input in {v.name for v in rep.front.model.inputs}]
    tables: list[Source | None] = []
    for source in sources:
        features = None if isinstance(source, Stream) else _features(rep, source, raw)
        if source is not None and features is None:
            return list(sources), links
        tables.append(Prepared(source, features) if features is not None else None)  # type: ignore[arg-type]
    arrays = next(table.features for table in tables if isinstance(table, Prepared))
    rest = [item for item in links if item.input not in rep.front.inputs]
    computed = [
        Link(_feature(n), n, a.dtype, a.shape[1:], "computed once for all rows", cast=False)
        for n, a in arrays.items()
    ]
    return tables, rest + computed


def _field(feature: str) -> str:
    """The name of a feature among the fields of the data, which may have one of that name."""
    return f"feature {feature}"


def _feature(field: str) -> str:
    return field.removeprefix("feature ")


def _features(rep: TrainingRep, table: Table | None, links: list[Link]) -> Rows | None:
    """The features of all rows; None where a row's features depend on other rows."""
    if table is None or not links or any(item.axis for item in links):
        return None
    assert rep.front is not None
    parts: dict[str, list[np.ndarray]] = {name: [] for name in rep.front.features}
    size = next((item.batch for item in links if item.batch), None) or CHUNK
    total = 0
    for block in epoch_blocks(table, links, size, seed=None, epoch=0):
        for batch in block:
            features = _of_chunk(rep, batch)
            if features is None:
                return None
            total += sum(a.nbytes for a in features.values())
            shapes = {n: a[-1].shape[1:] for n, a in parts.items() if a}
            moved = [n for n, shape in shapes.items() if features[n].shape[1:] != shape]
            if moved or total > MEMORY_BYTES:
                return None
            for name, array in features.items():
                parts[name].append(array)
    return {_field(name): np.concatenate(arrays) for name, arrays in parts.items()}


def _of_chunk(rep: TrainingRep, batch: Rows) -> Rows | None:
    """The features of some rows; None where they are not those of each row alone."""
    assert rep.front is not None
    features = _only(rep.features(batch), rep.front.features)
    count = len(next(iter(batch.values())))
    if any(a.shape[:1] != (count,) for a in features.values()):
        return None
    for row in np.unique(np.linspace(0, count - 1, min(TRIED, count)).astype(int)):
        alone = _only(
            rep.features({n: a[row : row + 1] for n, a in batch.items()}), rep.front.features
        )
        for name, array in features.items():
            if not np.array_equal(alone[name], array[row : row + 1], equal_nan=_is_float(array)):
                return None
    return features


def _only(values: object, names: Collection[str]) -> Rows:
    return {name: np.asarray(values[name]) for name in names}  # type: ignore[index]


def _is_float(array: np.ndarray) -> bool:
    return array.dtype.kind == "f"
