"""Data: whatever people hold becomes batches of named arrays.

A `Table` has a length and gives any rows (arrays, .npz, .npy, CSV, Parquet, a folder of images, a
data set object); a `Stream` gives batches in its own order (an iterable, a generator function, a
DataLoader).
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx.errors import DataError, MissingExtra, quote
from sardonyx.limits.archives import check_archive

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm")
MEMORY = "the data"  # what arrays in memory are called in messages
Rows = dict[str, np.ndarray]


@dataclass(frozen=True)
class Field:
    """One named column of the data: its element type and the shape of one row."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...] | None


class Table:
    """Rows by number: `len(table)`, `table.take(indices)`.

    columns -- arrays, or anything indexable by an integer array; all of one length
    """

    def __init__(self, columns: Mapping[str, Any], origin: str):
        if not columns:
            raise DataError(f"{origin} holds no data")
        self.columns = {
            str(k): v if hasattr(v, "__getitem__") else np.asarray(v) for k, v in columns.items()
        }
        self.origin = origin
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

    def split(self, share: float, seed: int) -> tuple[Table, Table]:
        """Two tables: the second has `share` of the rows, drawn by `seed`."""
        order = np.random.default_rng([seed, 0x5E]).permutation(self.length)
        count = max(1, round(self.length * share))
        if count >= self.length:
            raise DataError(f"a validation share of {share} leaves nothing to train on")
        validation_rows = np.sort(order[:count])
        training_rows = np.sort(order[count:])
        return Subset(self, training_rows), Subset(self, validation_rows)


def _rows(column: Any, rows: np.ndarray) -> np.ndarray:
    # `take` moves whole rows, where an index array visits every element
    return column.take(rows, 0) if type(column) is np.ndarray else np.asarray(column[rows])


class Subset(Table):
    """Some rows of another table."""

    def __init__(self, table: Table, rows: np.ndarray):
        self.table, self.rows = table, rows
        self.origin, self.length = table.origin, len(rows)

    def take(self, rows: np.ndarray, names: Collection[str] | None = None) -> Rows:
        return self.table.take(self.rows[rows], names)

    def row_bytes(self, names: Collection[str]) -> int | None:
        return self.table.row_bytes(names)


class Images(Table):
    """A folder with one sub-folder of images per class; read when they are needed."""

    def __init__(self, folder: Path, size: tuple[int, int] | None, channels: int = 3):
        self.classes = sorted(d.name for d in folder.iterdir() if d.is_dir())
        found = [
            (path, index)
            for index, name in enumerate(self.classes)
            for path in sorted((folder / name).iterdir())
            if path.suffix.lower() in IMAGES
        ]
        if not found:
            raise DataError(
                f"{quote(str(folder))} holds no images",
                hint="one sub-folder per class, with .png or .jpg files in it",
            )
        self.paths = [p for p, _ in found]
        self.labels = np.array([i for _, i in found], np.int64)
        self.size, self.channels = size, channels
        self.origin, self.length = str(folder), len(found)

    def take(self, rows: np.ndarray, names: Collection[str] | None = None) -> Rows:
        return {
            "image": np.stack([self._read(self.paths[i]) for i in rows]),
            "label": self.labels[rows],
        }

    def row_bytes(self, names: Collection[str]) -> int | None:
        return None

    def _read(self, path: Path) -> np.ndarray:
        try:
            from PIL import Image
        except ImportError as error:
            raise MissingExtra("pillow", "images") from error
        with Image.open(path) as picture:
            return _pixels(picture, self.size, self.channels)


def _pixels(picture: Any, size: tuple[int, int] | None, channels: int) -> np.ndarray:
    """A picture of PIL: channels first, float32 from 0 to 1."""
    from PIL import Image

    converted = picture.convert("L" if channels == 1 else "RGB")
    if size is not None and converted.size != size[::-1]:
        converted = converted.resize(size[::-1], Image.Resampling.BILINEAR)
    pixels = np.asarray(converted, np.float32) / np.float32(255.0)
    return pixels[None] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


class DataSet(Table):
    """An object of Hugging Face's kind: columns by name, rows by a list of numbers."""

    def __init__(
        self,
        source: Any,
        columns: Sequence[str] | None,
        size: tuple[int, int] | None,
        channels: int,
    ):
        missing = [c for c in columns or () if c not in source.column_names]
        if missing:
            raise DataError(
                f"the data set lacks the columns {', '.join(map(quote, missing))}",
                hint=f"it has {', '.join(map(quote, source.column_names))}",
            )
        self.source, self.names = source, list(columns or source.column_names)
        self.size, self.channels = size, channels
        self.origin, self.length = f"a data set of {type(source).__module__}", len(source)
        if not self.length:
            raise DataError("the data set has no rows")

    def take(self, rows: np.ndarray, names: Collection[str] | None = None) -> Rows:
        batch = self.source[[int(r) for r in rows]]
        # a format may show fewer columns than there are
        return {name: self._column(batch[name]) for name in self.names if name in batch}

    def row_bytes(self, names: Collection[str]) -> int | None:
        return None

    def _column(self, values: Any) -> np.ndarray:
        if isinstance(values, list) and values and hasattr(values[0], "convert"):
            return np.stack([_pixels(v, self.size, self.channels) for v in values])
        return _array(values)


class Stream:
    """Batches in the order in which the source gives them.

    make   -- starts the source anew; it is told how many rows a batch should have, and may not care
    length -- how many batches there are, where that is known
    """

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

    @property
    def fields(self) -> dict[str, Field]:
        first = next(self.batches(), None)
        if first is None:
            raise DataError(f"{self.origin} gives no batches")
        return {name: Field(a.dtype, a.shape[1:]) for name, a in first.items()}

    def _named(self, batch: Any) -> Rows:
        if isinstance(batch, Mapping):
            return {str(k): _array(v) for k, v in batch.items()}
        if isinstance(batch, (tuple, list)):
            names = self.names or (
                ["x", "label"] if len(batch) == 2 else [f"field{i}" for i in range(len(batch))]
            )
            return {n: _array(v) for n, v in zip(names, batch, strict=True)}
        raise DataError(
            f"a batch of {self.origin} is a {type(batch).__name__}",
            hint="give dicts of arrays, or (x, label) pairs",
        )


def _array(value: Any) -> np.ndarray:
    if hasattr(value, "detach"):  # a torch tensor, without importing torch
        value = value.detach().cpu()
    return np.asarray(value)


Source = Table | Stream


def open_data(
    data: Any,
    columns: Sequence[str] | None = None,
    image_size: tuple[int, int] | None = None,
    channels: int = 3,
) -> Source:
    """Anything that people hold, as a Table or a Stream.

    columns -- the columns of a CSV or Parquet file to use, the last one being the label
    """
    if isinstance(data, (Table, Stream)):
        return data
    if isinstance(data, (str, Path)):
        return _open_path(Path(data), columns, image_size, channels)
    if isinstance(data, Mapping):
        return Table(data, MEMORY)
    if (
        isinstance(data, (tuple, list))
        and len(data) == 2
        and all(hasattr(d, "shape") for d in data)
    ):
        return Table({"x": _array(data[0]), "label": _array(data[1])}, MEMORY)
    if isinstance(data, np.ndarray):
        return Table({"x": data}, MEMORY)
    if hasattr(data, "column_names") and hasattr(data, "__len__"):
        return DataSet(data, columns, image_size, channels)
    if hasattr(data, "column_names") and hasattr(data, "iter"):  # a Hugging Face data set, streamed
        return Stream(lambda size: data.iter(batch_size=size), "a streamed data set")
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


def _open_path(
    path: Path, columns: Sequence[str] | None, image_size: tuple[int, int] | None, channels: int
) -> Table:
    if not path.exists():
        raise DataError(f"no such file: {quote(str(path))}")
    if path.is_dir():
        return Images(path, image_size, channels)
    kind = path.suffix.lower()
    try:
        if kind == ".npz":
            check_archive(path)
            with np.load(path, allow_pickle=False) as archive:
                return Table({name: archive[name] for name in archive.files}, path.name)
        if kind == ".npy":
            return _open_npy(path)
    except ValueError as error:
        raise DataError(f"cannot read {quote(path.name)}: {error}") from error
    if kind in (".csv", ".tsv"):
        return _open_csv(path, columns)
    if kind == ".parquet":
        return _open_parquet(path, columns)
    raise DataError(
        f"{quote(path.name)} is of an unknown kind",
        hint="a .npz, .npy, .csv or .parquet file, or a folder with one sub-folder of images "
        "per class",
    )


def _open_npy(path: Path) -> Table:
    """Memory-mapped, together with its neighbour of labels: `x.npy` and `label.npy`."""
    columns = {"x": _mapped(path)}
    for name in ("label", "labels", "y", "target"):
        beside = path.with_name(f"{name}.npy")
        if beside.exists() and beside != path:
            columns["label"] = _mapped(beside)
            break
    return Table(columns, path.name)


def _mapped(path: Path) -> np.ndarray:
    """An array whose rows are read from the file when they are asked for."""
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    pages: Any = getattr(array, "_mmap", None)
    if hasattr(pages, "madvise"):
        # Rows come shuffled: what the system would read ahead of each is mostly thrown away.
        pages.madvise(mmap.MADV_RANDOM)
    return array


def _open_csv(path: Path, columns: Sequence[str] | None) -> Table:
    import csv

    with path.open(newline="") as file:
        reader = csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
        header = next(reader, None)
        rows = [row for row in reader if row]
    if not header or not rows:
        raise DataError(f"{quote(path.name)} has no rows", hint="the first line names the columns")
    bad = [i + 2 for i, row in enumerate(rows) if len(row) != len(header)]
    if bad:
        raise DataError(
            f"{len(bad)} lines of {quote(path.name)} do not have {len(header)} columns",
            [[f"line {i}"] for i in bad],
        )
    table = {name: _numbers([row[i] for row in rows]) for i, name in enumerate(header)}
    return _features(table, columns, path.name)


def _numbers(texts: list[str]) -> np.ndarray:
    try:
        return np.array([int(t) for t in texts], np.int64)
    except ValueError:
        pass
    try:
        return np.array([float(t) if t.strip() else np.nan for t in texts], np.float32)
    except ValueError:
        return np.array(texts, dtype=object)


def _open_parquet(path: Path, columns: Sequence[str] | None) -> Table:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise MissingExtra("pyarrow", "parquet") from error
    known = set(parquet.read_schema(path).names)
    read = parquet.read_table(path, columns=[c for c in columns if c in known] if columns else None)
    return _features({n: read[n].to_numpy() for n in read.column_names}, columns, path.name)


def _features(table: dict[str, np.ndarray], columns: Sequence[str] | None, origin: str) -> Table:
    """Columns of numbers side by side are one field `x`; the last column is the label."""
    missing = [c for c in columns or () if c not in table]
    if missing:
        raise DataError(
            f"{quote(origin)} lacks the columns {', '.join(map(quote, missing))}",
            hint=f"it has {', '.join(map(quote, table))}",
        )
    names = list(columns or table)
    for label in ("label", "labels", "target", "y", "class"):
        if not columns and label in names:
            names.remove(label)
            names.append(label)
            break
    texts = [n for n in names if table[n].dtype == object]
    if texts:
        raise DataError(
            f"columns of {quote(origin)} hold text, not numbers",
            [[quote(n), repr(table[n][0])] for n in texts],
            hint="choose columns of numbers, the label last: columns=[…]",
        )
    features = [np.asarray(table[n]) for n in names[:-1]]
    if any(f.ndim != 1 for f in features):
        return Table({n: table[n] for n in names}, origin)
    return Table(
        {"x": np.stack(features, 1).astype(np.float32), "label": np.asarray(table[names[-1]])},
        origin,
    )
