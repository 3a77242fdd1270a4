"""Files of data: .npz, .npy, CSV, TSV and Parquet as tables; data frames likewise."""

from __future__ import annotations

import csv
import mmap
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx.errors import DataError, MissingExtra, quote
from sardonyx.limits.archives import check_archive
from sardonyx.train.tables import LABELS, Table

SEPARATORS = (",", ";", "\t", "|")
NO_VALUE = ("", "na", "n/a", "#n/a", "null", "none", "?", "-")  # cells of missing numbers
DECIMAL_COMMA = re.compile(r"^\s*([-+]?\d*),(\d+(?:[eE][-+]?\d+)?)\s*$")


def open_file(path: Path, columns: Sequence[str] | None, features: int | None = None) -> Table:
    """A file as a table.

    columns  -- the fields or columns to use; of a table of numbers the last one is the label
    features -- for data without labels: the number of columns that the model takes
    """
    kind = path.suffix.lower()
    if kind in (".csv", ".tsv"):
        return _open_csv(path, columns, features)
    if kind == ".parquet":
        return _open_parquet(path, columns, features)
    if kind not in (".npz", ".npy"):
        raise DataError(
            f"{quote(path.name)} is of an unknown kind",
            hint="a .npz, .npy, .csv or .parquet file, or a folder with one sub-folder of images "
            "per class",
        )
    try:
        return _open_npz(path, columns) if kind == ".npz" else _open_npy(path, columns)
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"cannot read {quote(path.name)}: {error}") from error


def _open_npz(path: Path, columns: Sequence[str] | None) -> Table:
    check_archive(path)
    with np.load(path, allow_pickle=False) as archive:
        _refuse_missing(columns, archive.files, path.name)
        return Table({name: archive[name] for name in columns or archive.files}, path.name)


def _open_npy(path: Path, columns: Sequence[str] | None) -> Table:
    """Memory-mapped, together with its neighbour of labels: `x.npy` and `label.npy`."""
    fields = {"x": _mapped(path)}
    for name in ("label", "labels", "y", "target"):
        beside = path.with_name(f"{name}.npy")
        if beside.exists() and beside != path:
            fields["label"] = _mapped(beside)
            break
    _refuse_missing(columns, fields, path.name)
    return Table({name: fields[name] for name in columns or fields}, path.name)


def _mapped(path: Path) -> np.ndarray:
    """An array whose rows are read from the file when they are needed."""
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    pages: Any = getattr(array, "_mmap", None)
    if hasattr(pages, "madvise"):
        # Rows come shuffled: what the system would read ahead of each is mostly thrown away.
        pages.madvise(mmap.MADV_RANDOM)
    return array


def _open_csv(path: Path, columns: Sequence[str] | None, features: int | None) -> Table:
    rows, separator = _csv_rows(path)
    lines = [row for _, row in rows]
    header = [f"column{i + 1}" for i in range(len(lines[0]))] if lines else []
    headed = not lines or _has_header(lines)
    if headed and lines:
        header, lines, rows = [name.strip() for name in lines[0]], lines[1:], rows[1:]
    if not lines:
        raise DataError(f"{quote(path.name)} has no rows")
    wrong = [[f"line {line}"] for line, row in rows if len(row) != len(header)]
    if wrong:
        lines_of = f"{len(wrong)} line{'s' * (len(wrong) > 1)} of {quote(path.name)}"
        raise DataError(f"{lines_of} with another number of columns than {len(header)}", wrong)
    repeated = [[quote(name)] for name in {n: None for n in header if header.count(n) > 1}]
    if repeated:
        raise DataError(f"{quote(path.name)} has several columns of the same name", repeated)
    fields = {name: as_numbers([row[i] for row in lines]) for i, name in enumerate(header)}
    table = side_by_side(fields, columns, path.name, features)
    if not headed:
        table.facts += (("header", f"none in {path.name}: columns are numbered from column1"),)
    elif _is_numbering(header):
        table.facts += (("header", f"the first line of {path.name}, which numbers the columns"),)
    if separator not in (",", "\t"):
        table.facts += (("columns", f"separated by {separator!r} in {path.name}"),)
    return table


def _csv_rows(path: Path) -> tuple[list[tuple[int, list[str]]], str]:
    """The rows of a text file, with the number of the line that each ends in, and what separates
    the columns. Numbers with decimal commas, as files with semicolons have them, get points.
    """
    with path.open(newline="", encoding="utf-8-sig") as file:
        try:
            separator = "\t" if path.suffix.lower() == ".tsv" else _separator(file.readline())
            file.seek(0)
            reader = csv.reader(file, delimiter=separator)
            rows = [(reader.line_num, row) for row in reader if row]
        except UnicodeDecodeError as error:
            message = f"cannot read {quote(path.name)}: {error}"
            raise DataError(message, hint="save it in UTF-8") from error
        except csv.Error as error:
            raise DataError(f"cannot read {quote(path.name)}: {error}") from error
    if separator == ";":
        rows = [(n, [DECIMAL_COMMA.sub(r"\1.\2", cell) for cell in row]) for n, row in rows]
    return rows, separator


def _separator(line: str) -> str:
    """What separates the columns of a file with this first line: a comma where there is one."""
    plain = re.sub(r'"[^"]*"', "", line)
    return next((c for c in SEPARATORS if c in plain), ",")


def _is_numbering(cells: list[str]) -> bool:
    """Whether a line numbers the columns from 0, as pandas does where they have no names."""
    return len(cells) > 2 and [cell.strip() for cell in cells] == [*map(str, range(len(cells)))]


def _has_header(lines: list[list[str]]) -> bool:
    """Whether the first line names the columns: a column of numbers begins with a word."""
    if _is_numbering(lines[0]) and len(lines) > 1:
        return True
    rest = [row for row in lines[1:101] if len(row) == len(lines[0])]
    numeric = [i for i in range(len(lines[0])) if rest and all(_is_number(r[i]) for r in rest)]
    words = [i for i in numeric if _is_word(lines[0][i])]
    if numeric:
        return bool(words)
    return not any(_is_number(cell) for cell in lines[0])


def _is_word(cell: str) -> bool:
    return cell.strip().lower() not in NO_VALUE and not _is_number(cell)


def _is_number(text: str) -> bool:
    try:
        float(text or "nan")
    except ValueError:
        return False
    return True


def as_numbers(texts: list[str]) -> np.ndarray:
    """Texts as whole numbers, as floats with NaN for empty ones, or as they are."""
    try:
        return np.array([int(t) for t in texts], np.int64)
    except (ValueError, OverflowError):
        pass
    try:
        return np.array([float(t) if t.strip() else np.nan for t in texts], np.float32)
    except ValueError:
        return np.array(texts, dtype=object)


def _open_parquet(path: Path, columns: Sequence[str] | None, features: int | None) -> Table:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise MissingExtra("pyarrow", "parquet") from error
    try:
        present = set(parquet.read_schema(path).names)
        names = [c for c in columns if c in present] if columns else None
        contents = parquet.read_table(path, columns=names)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"cannot read {quote(path.name)}: {error}") from error
    fields = {n: _plain(contents[n].to_numpy()) for n in contents.column_names}
    return side_by_side(fields, columns, path.name, features)


def open_frame(data: Any, columns: Sequence[str] | None, features: int | None) -> Table:
    """A data frame (pandas, polars) or an Arrow table."""
    names = getattr(data, "column_names", None) or list(data.columns)
    fields = {str(n): _plain(data[n].to_numpy()) for n in names}
    return side_by_side(fields, columns, "the data frame", features)


def _plain(column: np.ndarray) -> np.ndarray:
    """Numbers, or lists of them, that a library keeps as objects, as numbers."""
    if column.dtype.kind != "O" or not len(column):
        return column
    try:
        nested = isinstance(column[0], (list, tuple, np.ndarray))
        return np.stack(list(column)) if nested else column.astype(np.float32)
    except (TypeError, ValueError):
        return column


def side_by_side(
    fields: Mapping[str, np.ndarray],
    columns: Sequence[str] | None,
    origin: str,
    features: int | None = None,
) -> Table:
    """Columns of numbers side by side are one field `x`; the last column, or one that is named
    like a label, is `label`.
    """
    _refuse_missing(columns, fields, origin)
    names = list(columns or fields)
    named = next((n for n in LABELS if n in names), None) if not columns else names[-1]
    label = named or names[-1]
    if features is not None and len(names) == features and (named is None or columns):
        label = ""  # nothing but features
    inputs = [n for n in names if n != label]
    others = [n for n in inputs if fields[n].dtype.kind not in "biuf"]
    if others:
        raise DataError(
            f"columns of {quote(origin)} hold something else than numbers",
            [[quote(n), *_first_other(fields[n])] for n in others],
            hint="choose columns of numbers, the label last: columns=['a', 'b', 'label'], "
            "--columns a,b,label",
        )
    labels = {"label": np.asarray(fields[label])} if label else {}
    if not inputs or any(np.asarray(fields[n]).ndim != 1 for n in inputs):
        return Table({n: fields[n] for n in names}, origin)
    x = np.stack([np.asarray(fields[n]) for n in inputs], 1).astype(np.float32)
    table = Table({"x": x, **labels}, origin)
    table.x_columns = tuple(inputs)
    return table


def _first_other(column: np.ndarray) -> list[str]:
    """The first value of a column that is not a number, and its row."""
    row = next((i for i, v in enumerate(column) if not _is_number(str(v))), 0)
    return [f"row {row}", repr(str(column[row]))]


def _refuse_missing(columns: Sequence[str] | None, present: Any, origin: str) -> None:
    missing = [c for c in columns or () if c not in present]
    if missing:
        raise DataError(
            f"{quote(origin)} lacks the columns {', '.join(map(quote, missing))}",
            hint=f"it has {', '.join(map(quote, present))}",
        )
