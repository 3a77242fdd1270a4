"""Data: whatever holds rows becomes a `Table` or a `Stream` of named arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx.errors import ArgumentError, DataError, quote
from sardonyx.train.files import open_file, open_frame
from sardonyx.train.images import Images, Layout
from sardonyx.train.objects import Columns, Items, item_stream
from sardonyx.train.tables import MEMORY, Source, Stream, Table, as_array


def open_data(
    data: Any,
    columns: Sequence[str] | None = None,
    layout: Layout | None = None,
    classes: Sequence[str] = (),
    features: int | None = None,
) -> Source:
    """Anything that holds data, as a Table or a Stream.

    columns  -- the columns to use, of a table the last one being the label
    layout   -- the form of images that the model takes
    classes  -- the names of the classes that the model was trained on
    features -- for data without labels: the number of columns that the model takes
    """
    layout = layout or Layout()
    if isinstance(data, (Table, Stream)):
        return data
    if isinstance(data, (str, Path)):
        path = Path(data)
        if not path.exists():
            raise DataError(f"no such file: {quote(str(path))}")
        if not path.is_dir():
            return open_file(path, columns, features)
        return _without_columns(columns, Images(path, layout, classes))
    if _is_frame(data):
        return open_frame(data, columns, features)
    if hasattr(data, "column_names") and hasattr(data, "__len__"):
        return Columns(data, columns, layout)
    return _without_columns(columns, _open_object(data, layout))


def _open_object(data: Any, layout: Layout) -> Source:
    if isinstance(data, Mapping):
        return Table(data, MEMORY)
    pair = isinstance(data, (tuple, list)) and len(data) == 2
    if pair and all(hasattr(d, "shape") or _is_column(d) for d in data):
        return Table({"x": as_array(data[0]), "label": as_array(data[1])}, MEMORY)
    if isinstance(data, np.ndarray):
        return Table({"x": data}, MEMORY)
    if hasattr(data, "column_names") and hasattr(data, "iter"):  # a Hugging Face data set, streamed
        return Stream(lambda size: data.iter(batch_size=size), "a streamed data set")
    if any(kind.__name__ == "IterableDataset" for kind in type(data).__mro__):
        return item_stream(data, layout)
    sized = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    if sized and not isinstance(data, Sequence):
        return Items(data, layout)
    if callable(data):
        return Stream(lambda _: iter(data()), "the generator")
    if isinstance(data, Iterator):
        raise DataError(
            "an iterator can be read only once",
            hint="give a function that makes one, or a list of batches",
        )
    if isinstance(data, Iterable):
        length = len(data) if isinstance(data, Sized) else None
        return Stream(lambda _: iter(data), type(data).__name__, length=length)
    raise DataError(f"cannot read data from {type(data).__name__}")


def _is_column(values: Any) -> bool:
    """A list of numbers, of texts, or of lists of numbers: one element for each row."""
    return isinstance(values, list) and isinstance(
        next(iter(values), None), int | float | str | list
    )


def _is_frame(data: Any) -> bool:
    """A data frame of pandas or polars, or an Arrow table, without importing any of them."""
    named = hasattr(data, "to_numpy") and hasattr(data, "columns")
    return named or (hasattr(data, "to_batches") and hasattr(data, "column_names"))


def _without_columns(columns: Sequence[str] | None, source: Source) -> Source:
    if columns:
        raise ArgumentError(
            f"columns cannot be chosen from {source.origin}",
            hint="--columns (columns=) is for CSV, Parquet and .npz files and for data frames",
        )
    return source
