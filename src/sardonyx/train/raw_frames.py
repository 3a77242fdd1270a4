"""Raw rows for a model that takes the columns of a data frame: a frame, a CSV or a Parquet file.

The schema in the model says how each column is fed (`frames.py`). Columns of a file are read in the
types of the schema; columns that the model does not take (labels, ids) stay fields by their names.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sardonyx import frames
from sardonyx.errors import DataError, quote
from sardonyx.model import Model
from sardonyx.train.files import as_numbers
from sardonyx.train.tables import Table

TRUE, FALSE = ("true", "yes", "1", "1.0"), ("false", "no", "0", "0.0")


def takes_frames(model: Model, data: Any) -> bool:
    """Whether a model has a schema of columns, and data comes as a frame or a file of one."""
    if frames.KEY not in model.metadata:
        return False
    if isinstance(data, (str, Path)):
        return Path(data).suffix.lower() in (".csv", ".tsv", ".parquet")
    return type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "columns")


class RawTable(Table):
    """The columns of a frame as a model takes them; `others` are columns that it does not take."""

    def __init__(self, columns: dict[str, np.ndarray], origin: str, others: list[str]):
        super().__init__(columns, origin)
        self.others = others


def open_raw(model: Model, data: Any) -> RawTable:
    """The rows of a frame, or of a file, as the inputs of a model, and the other columns."""
    schema = frames.schema(model.metadata)
    names = {v.name for v in model.graph.inputs}
    schema.inputs = [column for column in schema.inputs if column.tensor in names]
    if isinstance(data, (str, Path)):
        frame, origin = _read(Path(data), schema), Path(data).name
    else:
        frame, origin = data, "the data frame"
    if not len(frame):
        raise DataError(f"{origin} has no rows")
    fields = frames.feeds(schema, frame)
    inputs = {column.name for column in schema.inputs}
    others = [name for name in frame.columns if name not in inputs]
    clashes = [str(name) for name in others if str(name) in fields]
    if clashes:
        raise DataError(
            "columns that the model does not take have the names of its inputs",
            [[quote(name)] for name in clashes],
            hint="rename them",
        )
    rest = {str(name): _plain(frame[name]) for name in others}
    return RawTable({**fields, **rest}, origin, list(rest))


def _plain(series: Any) -> np.ndarray:
    """A column as numbers, or as text where it holds anything else."""
    if series.dtype.kind in "biuf" and not hasattr(series.dtype, "na_value"):
        return np.asarray(series.to_numpy())
    return as_numbers(["" if missing else str(v) for v, missing in zip(series, series.isna())])


def _read(path: Path, schema: frames.Schema) -> Any:
    """A file as a frame whose columns have the types of the schema."""
    pandas = frames.pandas_module()
    if not path.exists():
        raise DataError(f"no such file: {quote(str(path))}")
    try:
        if path.suffix.lower() == ".parquet":
            frame = pandas.read_parquet(path)
        else:
            separator = "\t" if path.suffix.lower() == ".tsv" else None
            frame = pandas.read_csv(path, sep=separator, engine="python", dtype=str)
    except (ValueError, OSError, UnicodeError, pandas.errors.ParserError) as error:
        raise DataError(f"cannot read {quote(path.name)}: {error}") from error
    problems = []
    for column in schema.inputs:
        if column.name not in frame.columns:
            continue  # `frames.feeds` names all that are missing
        try:
            frame[column.name] = _typed(pandas, frame[column.name], column)
        except (TypeError, ValueError, OverflowError) as error:
            problems.append([quote(column.name), f"is not {column.dtype}", str(error)[:80]])
    if problems:
        raise DataError(f"columns of {quote(path.name)} do not fit the model", problems)
    return frame


def _typed(pandas: Any, series: Any, column: frames.Column) -> Any:
    """A column of text in the type that the schema has for it; one of another type as it is."""
    if series.dtype.kind not in "OT" and str(series.dtype) not in ("str", "string"):
        return series.astype(column.dtype) if column.form in ("float", "int") else series
    if column.form == "float" or (column.form == "int" and not column.nullable):
        return pandas.to_numeric(series)
    if column.form == "int":
        return pandas.to_numeric(series).astype(column.dtype)
    if column.form == "bool":
        return _booleans(series).astype(column.dtype if column.nullable else bool)
    if column.form == "datetime":
        # Other spellings are ambiguous: 03/04/2024 is a day in March or in April.
        times = pandas.to_datetime(series, utc=bool(column.timezone), format="ISO8601")
        return (times.dt.tz_convert(column.timezone) if column.timezone else times).astype(
            column.dtype
        )
    if column.form == "timedelta":
        return pandas.to_timedelta(series).astype(column.dtype)
    if column.form == "category" and not column.categories_dtype.startswith(("str", "obj")):
        return pandas.to_numeric(series)
    return series


def _booleans(series: Any) -> Any:
    lower = series.str.strip().str.lower()
    wrong = series[~(lower.isin(TRUE + FALSE) | series.isna())]
    if len(wrong):
        raise ValueError(f"{wrong.iloc[0]!r} is neither true nor false")
    if series.isna().any():
        return lower.map(lambda text: None if text is None else text in TRUE).astype("boolean")
    return lower.isin(TRUE)
