"""Data frames in and out of a model: the schema of its columns, feeds from a frame, a frame back.

A model that was recorded from pandas code stores a schema in its metadata. For each column it says
the tensor, the dtype, and how values are fed:

    form         tensor                missing
    float        float or double [N]   NaN
    int, bool    int64, bool [N]       none; nullable dtypes are int64 with INT64_MIN
    datetime     int64 [N]             INT64_MIN (NaT); the unit is the column's
    timedelta    int64 [N]             INT64_MIN (NaT); the unit is the column's
    category     int64 [N], codes      -1
    text         string [N]            the string `MISSING_TEXT`
    characters   int32 [N, L]          code points, padded with -1; -2 in the first place: missing

Operators of ONNX compare and join strings but cannot look inside them; a column whose characters
are read is therefore fed as its code points. Nothing here runs a model.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx.errors import DataError, MissingExtra, quote

if TYPE_CHECKING:
    import pandas as pd

KEY = "sardonyx.frame"
FROZEN = "sardonyx.frozen"
MISSING_TEXT = "\ue000missing\ue000"  # private-use characters, which no text of people contains
MISSING_INT = int(np.iinfo(np.int64).min)
END, MISSING_CHARACTER = -1, -2


@dataclass
class Column:
    """One column: its name in the frame, its tensor in the model, its type and form."""

    name: Any
    tensor: str
    form: str
    dtype: str
    nullable: bool = False
    unit: str = ""
    timezone: str = ""
    categories: list[Any] = field(default_factory=list)
    categories_dtype: str = ""
    ordered: bool = False


@dataclass
class Result:
    """One result of the function: a frame or a series, and the columns that it consists of."""

    kind: str
    name: Any
    columns: list[Column]


@dataclass
class Schema:
    """The columns that a model takes and gives."""

    inputs: list[Column]
    results: list[Result]
    order_dependent: bool = False

    def text(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    @property
    def outputs(self) -> list[Column]:
        return [column for result in self.results for column in result.columns]


def schema(metadata: Mapping[str, str]) -> Schema:
    """The schema in a model's metadata."""
    text = metadata.get(KEY)
    if text is None:
        raise DataError(
            "the model has no schema of columns", hint="models from sx.from_pandas have one"
        )
    content = json.loads(text)
    results = [
        Result(r["kind"], r["name"], [Column(**c) for c in r["columns"]])
        for r in content["results"]
    ]
    inputs = [Column(**c) for c in content["inputs"]]
    return Schema(inputs, results, content["order_dependent"])


def frozen(metadata: Mapping[str, str]) -> list[dict[str, Any]]:
    """What a model from pandas took from its training frame: line, code, call and value."""
    return json.loads(metadata.get(FROZEN, "[]"))


def pandas_module() -> Any:
    """pandas, or the error that says how to install it."""
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise MissingExtra("pandas", "pandas") from error
    return pandas


# -- from a frame to tensors --------------------------------------------------------


def feeds(columns: Schema, frame: pd.DataFrame) -> dict[str, np.ndarray]:
    """The model's inputs for the rows of `frame`; every column that does not fit is named."""
    arrays, problems = {}, []
    if type(frame).__module__.partition(".")[0] == "polars":
        frame = frame.to_pandas()  # type: ignore[operator]
    for column in columns.inputs:
        if column.name not in frame.columns:
            problems.append([quote(column.name), f"is missing; it is {column.dtype}"])
            continue
        try:
            arrays[column.tensor] = ENCODERS[column.form](column, frame[column.name])
        except (TypeError, ValueError, OverflowError) as error:
            problems.append([quote(column.name), str(error)])
    if problems:
        raise DataError(
            f"{len(problems)} columns of the frame do not fit the model"
            if len(problems) > 1
            else "a column of the frame does not fit the model",
            problems,
            hint="the frame needs the columns and dtypes of the training frame",
        )
    return arrays


def _unfit(column: Column, series: Any) -> TypeError:
    return TypeError(f"is {series.dtype} and not {column.dtype}")


def _encode_float(column: Column, series: Any) -> np.ndarray:
    if series.dtype.kind not in "fiub" or series.dtype == np.dtype(object):
        raise _unfit(column, series)
    dtype = np.float32 if column.dtype.lower() == "float32" else np.float64
    if hasattr(series.dtype, "na_value"):
        return series.to_numpy(dtype, na_value=np.nan)
    return np.ascontiguousarray(series.to_numpy(), dtype)


def _encode_int(column: Column, series: Any) -> np.ndarray:
    kind, missing = series.dtype.kind, series.isna()
    if kind not in "iubf":
        raise _unfit(column, series)
    if missing.any() and not column.nullable:
        raise ValueError(f"has missing values, which {column.dtype} cannot have")
    if kind in "iu" and not column.nullable and not hasattr(series.dtype, "na_value"):
        values = series.to_numpy()
    else:
        values = series.fillna(0).to_numpy()
        if kind == "f" and not (values == np.floor(values)).all():
            raise ValueError(f"has fractions, which {column.dtype} cannot have")
    limits = np.iinfo(column.dtype.lower() if column.dtype.lower()[:4] != "bool" else np.int64)
    if len(values) and (values.min() < limits.min or values.max() > min(limits.max, 2**63 - 1)):
        raise ValueError(f"has values outside the range of {column.dtype}")
    array = np.ascontiguousarray(values, np.int64)
    if column.nullable:
        array = np.where(missing.to_numpy(), MISSING_INT, array)
    return array


def _encode_bool(column: Column, series: Any) -> np.ndarray:
    if column.dtype == "object" and series.dtype.kind in "Ofb":  # True, False and missing values
        present = series.dropna()
        if not all(isinstance(v, (bool, np.bool_)) for v in present):
            raise TypeError("has values that are no booleans")
        codes = np.full(len(series), MISSING_INT)
        codes[series.notna().to_numpy()] = present.astype(np.int64)
        return codes
    if series.dtype.kind != "b":
        raise _unfit(column, series)
    if column.nullable:
        values = series.fillna(False).to_numpy().astype(np.int64)
        return np.where(series.isna().to_numpy(), MISSING_INT, values)
    if series.isna().any():
        raise ValueError("has missing values, which bool cannot have")
    return np.ascontiguousarray(series.to_numpy(), np.bool_)


def _encode_time(column: Column, series: Any) -> np.ndarray:
    kind = "M" if column.form == "datetime" else "m"
    if series.dtype.kind != kind:
        raise _unfit(column, series)
    if kind == "M" and str(getattr(series.dtype, "tz", None) or "") != column.timezone:
        raise _unfit(column, series)
    converted = series.astype(column.dtype)
    if not (converted.isna() | (converted == series)).all():
        raise ValueError(f"has times that the unit {column.unit} cannot express")
    return np.ascontiguousarray(converted.astype("int64").to_numpy())


def _encode_category(column: Column, series: Any) -> np.ndarray:
    pd = pandas_module()
    codes = pd.Index(categories(column)).get_indexer(series.astype(object))
    return np.where(series.isna().to_numpy(), -1, codes).astype(np.int64)


def _texts(column: Column, series: Any) -> tuple[list[str], np.ndarray]:
    """Python strings, with an empty one in every missing place, and where values are missing."""
    missing = series.isna().to_numpy()
    if series.dtype.kind not in "OUT" and str(series.dtype) not in ("category", "string", "str"):
        raise _unfit(column, series)
    values = series.astype(object).to_numpy(copy=True)
    values[missing] = ""
    others = {type(v).__name__ for v in values if not isinstance(v, str)}
    if others:
        raise TypeError(f"has values that are no strings but {', '.join(sorted(others))}")
    return values.tolist(), missing


def _encode_text(column: Column, series: Any) -> np.ndarray:
    values, missing = _texts(column, series)
    if MISSING_TEXT in values:
        raise ValueError("contains the string that stands for a missing value")
    array = np.array(values, object)
    array[missing] = MISSING_TEXT
    return array


def _encode_characters(column: Column, series: Any) -> np.ndarray:
    values, missing = _texts(column, series)
    lengths = np.fromiter(map(len, values), np.int64, len(values))
    width = max(int(lengths.max(initial=0)), 1)
    points = np.array(values, f"<U{width}").view(np.uint32).reshape(len(values), width)
    points = points.astype(np.int32)
    points[np.arange(width) >= lengths[:, None]] = END
    points[missing, 0] = MISSING_CHARACTER
    return points


ENCODERS = {
    "float": _encode_float,
    "int": _encode_int,
    "bool": _encode_bool,
    "datetime": _encode_time,
    "timedelta": _encode_time,
    "category": _encode_category,
    "text": _encode_text,
    "characters": _encode_characters,
}


# -- from tensors to a frame --------------------------------------------------------


def frame(columns: Schema, outputs: Mapping[str, Any] | Sequence[Any]) -> Any:
    """The frame (or series, or a tuple of them) that the model's outputs stand for."""
    pd = pandas_module()
    tensors = [column.tensor for column in columns.outputs]
    if not isinstance(outputs, Mapping):
        if len(outputs) != len(tensors):
            raise DataError(f"{len(outputs)} outputs were given, the model has {len(tensors)}")
        outputs = dict(zip(tensors, outputs, strict=True))
    missing = [name for name in tensors if name not in outputs]
    if missing:
        raise DataError("outputs of the model are missing", [[quote(n)] for n in missing])
    results = []
    for result in columns.results:
        values = [_decode(c, np.asarray(outputs[c.tensor])) for c in result.columns]
        if result.kind == "series":
            results.append(values[0].rename(result.columns[0].name))
            continue
        table = pd.DataFrame(dict(enumerate(values)))
        table.columns = pd.Index([c.name for c in result.columns], dtype=None)
        results.append(table)
    return results[0] if len(results) == 1 else tuple(results)


def _decode(column: Column, array: np.ndarray) -> Any:
    pd = pandas_module()
    if column.form == "text":
        values = np.array([v.decode() if isinstance(v, bytes) else v for v in array], object)
        values[values == MISSING_TEXT] = None
        return _strings(column, values)
    if column.form == "characters":
        return _strings(column, characters_to_texts(array))
    if column.form == "category":
        levels = pd.Index(categories(column))
        values = pd.Categorical.from_codes(array, categories=levels, ordered=column.ordered)
        return pd.Series(values)
    if column.form in ("datetime", "timedelta"):
        kind = "datetime64" if column.form == "datetime" else "timedelta64"
        values = pd.Series(array.astype(np.int64).view(f"{kind}[{column.unit}]"))
        return (
            values.dt.tz_localize("UTC").dt.tz_convert(column.timezone)
            if column.timezone
            else values
        )
    if column.nullable and column.form != "float":
        is_missing = array == MISSING_INT
        values = pd.Series(
            np.where(is_missing, 0, array), dtype=column.dtype if column.form == "int" else "Int64"
        )
        values = values.mask(is_missing)
        return values.astype("boolean") if column.form == "bool" else values
    return _numbers(column, array)


def _numbers(column: Column, array: np.ndarray) -> Any:
    """A numeric column of its dtype, unless values are missing that the dtype cannot have."""
    pd = pandas_module()
    series = pd.Series(array)
    if array.dtype.kind == "f" and not column.dtype.lower().startswith("float"):
        if column.dtype == "object" or np.isnan(array).any() or not np.isfinite(array).all():
            return series
        if (array != np.floor(array)).any():
            return series
    return series.astype(column.dtype) if column.dtype != "object" else series


def _strings(column: Column, values: np.ndarray) -> Any:
    pd = pandas_module()
    dtype = column.dtype if column.dtype in ("str", "string") else object
    if column.dtype == "date":
        days = [pd.NaT if v is None else datetime.date.fromisoformat(v) for v in values]
        return pd.Series(days, dtype=object)
    if column.dtype.startswith("period["):
        dtype = column.dtype
    return pd.Series(values, dtype=dtype)


def characters_to_texts(points: np.ndarray) -> np.ndarray:
    """Strings (None where missing) of rows of code points."""
    texts = np.empty(len(points), object)
    for number, row in enumerate(points):
        if row[:1].tolist() != [MISSING_CHARACTER]:
            texts[number] = "".join(map(chr, row[row >= 0]))
    return texts


def _plain_number(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def plain_categories(levels: Any) -> tuple[list[Any], str]:
    """Categories as JSON can hold them, and the kind of thing that they are."""
    pd = pandas_module()
    if isinstance(levels, pd.IntervalIndex):
        kind = f"interval[{levels.closed}]"
        return [[_plain_number(i.left), _plain_number(i.right)] for i in levels], kind
    if levels.dtype.kind in "Mm":
        return [int(v) for v in levels.astype("int64")], str(levels.dtype)
    return levels.tolist(), str(levels.dtype)


def categories(column: Column) -> Any:
    """The categories of a column as an index of pandas."""
    pd = pandas_module()
    kind = column.categories_dtype
    if kind.startswith("interval"):
        edges = [tuple(edge) for edge in column.categories]
        return pd.IntervalIndex.from_tuples(edges, closed=kind[9:-1])
    if kind.startswith(("datetime64", "timedelta64")):
        return pd.Index(np.array(column.categories, np.int64).view(kind))
    return pd.Index(column.categories, dtype=kind)
