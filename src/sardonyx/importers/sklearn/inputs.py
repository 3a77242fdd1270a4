"""What an estimator is fed: graph inputs for X, and X as feeds.

An array is one input, `X`. A data frame is one input per column, of shape [rows, 1], with the
column's name and type. In inputs of texts, one text stands for missing values; the model's metadata
has it under `missing_string`. Where that is the empty text, `empty_string` stands for texts that
are empty in fact, which no category is. scikit-learn tells None from NaN: where a column had one of
the two, `missing_kinds` says which, and the other is like a category that was never seen.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.column_inputs import OTHER_MISSING, kind_of_missing
from sardonyx.errors import ArgumentError, ImportRefused, quote
from sardonyx.importers.assembly import graph_input
from sardonyx.importers.sklearn.encoders import is_missing
from sardonyx.importers.sklearn.table import BOOL, DOUBLE, FLOAT, INT64, STRING, Columns, Table

ARRAY = "X"
MISSING_TEXTS = ("", "<missing>", "\x1fmissing")
EMPTY_TEXT = "\x1fempty"


@dataclass
class Schema:
    """The inputs of a model: their names and types, and how missing texts are fed."""

    names: list[str]
    types: list[ir.DataType]
    frame: bool
    width: int | None  # of the one matrix; None: a vector
    missing: str = ""
    empty: str = ""
    kinds: dict[str, str] = field(default_factory=dict)  # of missing texts, by column
    values: list[ir.Value] = field(default_factory=list)

    def table(self) -> Table:
        """The graph inputs, made anew."""
        if self.frame:
            pairs = zip(self.names, self.types)
            self.values = [graph_input(n, t, ["rows", 1]) for n, t in pairs]
            return Columns(list(self.values))
        shape: list[int | str | None] = ["rows"]
        shape += [] if self.width is None else [self.width]
        self.values = [graph_input(self.names[0], self.types[0], shape)]
        return self.values[0]

    def feeds(self, x: Any) -> dict[str, np.ndarray]:
        """X as the arrays that the model takes."""
        if self.frame:
            columns = (x[name] for name in x.columns)
            return {
                n: self._array(np.asarray(c, object), t, self.kinds.get(n)).reshape(-1, 1)
                for n, t, c in zip(self.names, self.types, columns)
            }
        x = x.toarray() if hasattr(x, "toarray") else np.asarray(x)
        return {self.names[0]: self._array(x, self.types[0])}

    def _array(self, values: np.ndarray, dtype: ir.DataType, kind: str | None = None) -> np.ndarray:
        if dtype != STRING:
            if values.dtype == object:
                values = np.array([np.nan if is_na(v) else v for v in values.ravel()]).reshape(
                    values.shape
                )
            return values.astype(dtype.numpy())
        texts = [self._text(v, kind) for v in values.ravel()]
        return np.array(texts, object).reshape(values.shape)

    def _text(self, value: Any, kind: str | None) -> str:
        if not is_na(value):
            return str(value) or self.empty
        return self.missing if kind in (None, kind_of_missing(value)) else OTHER_MISSING

    def metadata(self) -> dict[str, str]:
        """What those who feed the model have to know of its inputs."""
        if STRING not in self.types:
            return {}
        words = {"missing_string": self.missing}
        if self.empty:
            words["empty_string"] = self.empty
        if self.kinds:
            words["missing_kinds"] = json.dumps(self.kinds)
        return words


def is_na(value: Any) -> bool:
    return is_missing(value) or type(value).__name__ in ("NAType", "NaTType")


def schema_of(estimator: Any, x: Any) -> Schema:
    """The inputs for an example X, or for what the estimator was fitted on."""
    if x is None:
        return _from_estimator(estimator)
    shape, width = np.shape(x), getattr(estimator, "n_features_in_", None)
    if width is not None and len(shape) == 2 and shape[1] != width:
        raise ArgumentError(
            f"X has {shape[1]} columns, {type(estimator).__name__} was fitted on {width}"
        )
    if hasattr(x, "columns") and hasattr(x, "dtypes"):
        return _from_frame(estimator, x)
    array = x if hasattr(x, "toarray") else np.asarray(x)
    if array.ndim not in (1, 2):
        raise ArgumentError(f"X has {array.ndim} dimensions", hint="rows and columns")
    columns = array.shape[1] if array.ndim == 2 else None
    kind = _kind(array.dtype, [] if hasattr(x, "toarray") else array.ravel().tolist())
    if kind is None:
        raise ArgumentError(f"X holds {array.dtype}", hint="numbers, texts, or a data frame")
    given = array.ravel().tolist() if kind == STRING else []
    return Schema([ARRAY], [kind], False, columns, *_special_texts(estimator, given))


def _kind(dtype: Any, values: list[Any]) -> ir.DataType | None:
    """The element type of an array or column; None where there is none."""
    name = str(dtype)
    if name == "float32":
        return FLOAT
    if name in ("bool", "boolean"):
        return BOOL if not any(is_na(v) for v in values) else DOUBLE
    kind = getattr(dtype, "kind", "O")
    if kind == "f":
        return DOUBLE
    if kind in "iu":
        return DOUBLE if any(is_na(v) for v in values) else INT64
    present = [v for v in values if not is_na(v)]
    if all(isinstance(v, (str, np.str_)) for v in present):
        return STRING if present or kind != "O" else DOUBLE
    if all(isinstance(v, (bool, np.bool_)) for v in present):
        return BOOL if len(present) == len(values) else DOUBLE
    if all(isinstance(v, (int, float, np.number, np.bool_)) for v in present):
        return DOUBLE
    return None


def _from_frame(estimator: Any, x: Any) -> Schema:
    names, types, problems = [], [], []
    texts: list[Any] = []
    for name in x.columns:
        values = np.asarray(x[name], object).tolist()
        dtype: Any = getattr(x[name], "dtype", np.dtype(object))
        if str(dtype) == "category":
            dtype = dtype.categories.dtype
        kind = _kind(dtype, values)
        if kind is None:
            problems.append([quote(name), f"of type {dtype}"])
            continue
        names.append(str(name))
        types.append(kind)
        texts += values if kind == STRING else []
    if problems:
        raise ImportRefused(
            f"{len(problems)} columns of X have types without a faithful ONNX type", problems
        )
    if len(set(names)) < len(names):
        raise ArgumentError("two columns of X have the same name")
    columns = {i for i, dtype in enumerate(types) if dtype == STRING}
    computes = _computes_with_texts(estimator, list(range(len(types))), columns)
    # pandas and boosters take both kinds for the same.
    same = estimator is None or computes
    kinds = {} if same else _kinds_of_missing(estimator, x, columns)
    special = _special_texts(estimator, texts, computes)
    return Schema(names, types, True, None, *special, kinds)


def _from_estimator(estimator: Any) -> Schema:
    width = getattr(estimator, "n_features_in_", None)
    if width is None:
        raise ArgumentError(
            f"{type(estimator).__name__} does not know how many columns it takes",
            hint="give an example: from_sklearn(estimator, X)",
        )
    texts = text_columns(estimator, list(range(int(width))))
    names = getattr(estimator, "feature_names_in_", None)
    missing, empty = _special_texts(estimator, [])
    if names is not None:
        types = [STRING if i in texts else DOUBLE for i in range(int(width))]
        return Schema([str(n) for n in names], types, True, None, missing, empty)
    if texts and len(texts) < width:
        raise ArgumentError(
            "the estimator takes columns of numbers and of texts",
            hint="give an example: from_sklearn(estimator, X)",
        )
    return Schema([ARRAY], [STRING if texts else DOUBLE], False, int(width), missing, empty)


# -- what can be found in a fitted estimator ------------------------------------------------------


def text_columns(estimator: Any, indices: list[int]) -> set[int]:
    """Which of the columns that an estimator takes hold texts, as far as its categories tell."""
    inner = getattr(estimator, "best_estimator_", None) or getattr(estimator, "_preprocessor", None)
    if inner is not None:
        return text_columns(inner, indices)
    if hasattr(estimator, "steps"):
        steps = [s for _, s in estimator.steps if s is not None and not isinstance(s, str)]
        return text_columns(steps[0], indices) if steps else set()
    if hasattr(estimator, "_transformer_to_input_indices"):
        columns: set[int] = set()
        for name, part, _ in estimator.transformers_:
            which = estimator._transformer_to_input_indices.get(name, [])
            if not isinstance(part, str):
                columns |= text_columns(part, [indices[i] for i in which])
        return columns
    if hasattr(estimator, "transformer_list"):
        parts = [p for _, p in estimator.transformer_list if not isinstance(p, str)]
        return set().union(*(text_columns(p, indices) for p in parts)) if parts else set()
    lists = getattr(estimator, "categories_", None)
    if lists is None and hasattr(estimator, "statistics_"):
        lists = [[s] for s in estimator.statistics_]
    if lists is None:
        return set()
    return {i for i, c in zip(indices, lists) if any(isinstance(v, str) for v in list(c))}


def parts_of(estimator: Any) -> Iterator[Any]:
    """An estimator and every estimator that its fitted attributes hold."""
    pending, parts = [estimator], set()
    while pending:
        thing = pending.pop()
        if id(thing) in parts or isinstance(thing, (str, bytes, np.ndarray, type)):
            continue
        parts.add(id(thing))
        if isinstance(thing, dict):
            pending.extend(thing.values())
        elif isinstance(thing, (list, tuple)) and len(thing) < 10_000:
            pending.extend(t for t in thing if not isinstance(t, (int, float, str)))
        elif hasattr(thing, "get_params") and not isinstance(thing, type):
            yield thing
            pending.extend(vars(thing).values())


def _kinds_of_missing(estimator: Any, x: Any, texts: set[int]) -> dict[str, str]:
    """Whether a column's missing texts are None or NaN, where they are of one kind.

    Where there are none, they are of the kind that imputers look for.
    """
    kinds = {}
    imputers = ("SimpleImputer", "MissingIndicator")
    marks = [p.missing_values for p in parts_of(estimator) if type(p).__name__ in imputers]
    imputed = {kind_of_missing(mark) for mark in marks if is_missing(mark)}
    for i, name in enumerate(x.columns):
        if i in texts:
            values = [*np.asarray(x[name], object).tolist(), *frame_categories(estimator, i)]
            both = {kind_of_missing(v) for v in values if is_na(v)} or imputed
            if len(both) == 1:
                kinds[str(name)] = both.pop()
    return kinds


def _computes_with_texts(estimator: Any, indices: list[int], texts: set[int]) -> bool:
    """Whether a function gets any of the columns `texts`; `indices` are those of the estimator."""
    if type(estimator).__name__ == "FunctionTransformer":
        return estimator.func is not None and bool(texts & set(indices))
    if hasattr(estimator, "steps"):
        steps = [s for _, s in estimator.steps if s is not None and not isinstance(s, str)]
        # What comes behind an imputer gets texts, too.
        kept = [type(step).__name__ == "SimpleImputer" for step in steps]
        first = steps[: kept.index(False) + 1 if False in kept else None]
        return any(_computes_with_texts(step, indices, texts) for step in first)
    parts = [(part, indices) for _, part in getattr(estimator, "transformer_list", [])]
    if hasattr(estimator, "_transformer_to_input_indices"):
        which = estimator._transformer_to_input_indices
        parts = [(p, [indices[i] for i in which.get(n, [])]) for n, p, _ in estimator.transformers_]
    if parts:
        return any(_computes_with_texts(p, i, texts) for p, i in parts if not isinstance(p, str))
    inner = [getattr(estimator, name, None) for name in ("best_estimator_", "regressor_")]
    others = [v for v in inner if v is not None]
    if others:
        return _computes_with_texts(others[0], indices, texts)
    functions = [p for p in parts_of(estimator) if type(p).__name__ == "FunctionTransformer"]
    return bool(texts) and any(f.func is not None for f in functions)


def frame_categories(estimator: Any, column: int) -> list[Any]:
    """The categories of a column, wherever the estimator that has them is."""
    for part in parts_of(estimator):
        indices = getattr(part, "_transformer_to_input_indices", None)
        if indices is None:
            continue
        for name, inner, _ in part.transformers_:
            which = list(indices.get(name, []))
            if column in which and not isinstance(inner, str):
                for deeper in parts_of(inner):
                    lists = getattr(deeper, "categories_", None)
                    if lists is not None and len(lists) > which.index(column):
                        return np.asarray(lists[which.index(column)], object).tolist()
    return categories(estimator, column)


def categories(estimator: Any, i: int) -> list[Any]:
    """The categories of a column of an encoder, or of a pipeline that begins with one."""
    lists = getattr(estimator, "categories_", None)
    if lists is None and hasattr(estimator, "steps"):
        return categories(estimator.steps[0][1], i)
    if lists is None:
        classes = getattr(estimator, "classes_", [])
        return np.asarray(classes, object).tolist()
    return np.asarray(lists[i], object).tolist() if i < len(lists) else []


def _special_texts(estimator: Any, texts: list[Any], computes: bool = False) -> tuple[str, str]:
    """A text that no category and no given value is, for missing values, and one for empty texts.

    Whoever looks into texts, as functions do (`computes`), gets the empty ones as they are.
    """
    used = {v for v in texts if isinstance(v, str)}
    vocabulary = False
    for part in parts_of(estimator):
        vocabulary |= hasattr(part, "vocabulary_")
        for values in getattr(part, "categories_", None) or []:
            used |= {v for v in np.asarray(values, object).tolist() if isinstance(v, str)}
    if computes:
        used.add("")
    missing = next(text for text in MISSING_TEXTS if text not in used)
    return missing, "" if missing or vocabulary else EMPTY_TEXT
