"""Categories: one-hot, ordinal and target encoders, label encoders, feature names to columns."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder, rank
from sardonyx.importers.rules import importer
from sardonyx.importers.sklearn.driver import refuse
from sardonyx.importers.sklearn.table import (
    DOUBLE,
    FLOAT,
    INT64,
    STRING,
    column,
    double,
    matrix,
    texts,
)

F = np.float64

# The text that stands for a missing value in inputs of texts, and which kind of missing value that
# is in some inputs, by name: the other kind is another text there.
missing_text: ContextVar[str] = ContextVar("missing_text", default="")
missing_kinds: ContextVar[Mapping[str, str]] = ContextVar(
    "missing_kinds", default=MappingProxyType({})
)


def is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, (float, np.floating)) and np.isnan(value))


def coded(op: Builder, x: ir.Value, categories: Any, numbers: np.ndarray, unknown: int) -> ir.Value:
    """The number of each value's category: int64 [rows, 1]; `unknown` for all others."""
    values = np.asarray(categories)
    numbers = np.asarray(numbers, np.int64)
    if x.dtype == STRING:
        keys = [missing_text.get() if is_missing(v) else str(v) for v in values.tolist()]
        if len(set(keys)) < len(keys):
            raise refuse("categories that are the same text, or two kinds of missing values")
        return op.call(
            "LabelEncoder",
            [x],
            {
                "keys_strings": keys,
                "values_int64s": numbers.tolist(),
                "default_int64": int(unknown),
            },
            domain="ai.onnx.ml",
        )
    try:
        points = np.array([np.nan if is_missing(v) else v for v in values.tolist()], F)
    except (TypeError, ValueError):
        raise refuse(
            "categories of texts for a column of numbers", hint="give X with texts in that column"
        ) from None
    return _number_codes(op, double(op, x), points, numbers, unknown)


def _number_codes(op, x, keys, numbers, unknown) -> ir.Value:
    missing = np.isnan(keys)
    order = np.argsort(keys[~missing], kind="stable")
    points, codes = keys[~missing][order], numbers[~missing][order]
    if len(points):
        reached = op.Cast(op.GreaterOrEqual(x, points[None]), to=int(INT64))
        at = op.Max(op.Sub(op.ReduceSum(reached, [1], keepdims=1), np.int64(1)), np.int64(0))
        same = op.Equal(op.Gather(op.const(points), at), x)
        code = op.Where(same, op.Gather(op.const(codes), at), np.int64(unknown))
    else:
        code = op.Where(op.IsNaN(x), np.int64(unknown), np.int64(unknown))
    if missing.any():
        code = op.Where(op.IsNaN(x), np.int64(numbers[missing][0]), code)
    return code


def output_type(model: Any) -> ir.DataType:
    return FLOAT if np.dtype(model.dtype) == np.float32 else DOUBLE


@importer("sklearn.preprocessing.OneHotEncoder", columns=True)
def one_hot_encoder(op, model, x):
    parts = []
    for i, categories in enumerate(model.categories_):
        numbers, unknown, count = _one_hot_numbers(model, i, len(categories))
        if not count:
            continue
        code = coded(op, column(op, x, i), categories, numbers, unknown)
        hot = op.Equal(code, np.arange(count)[None])
        parts.append(op.Cast(hot, to=int(output_type(model))))
    if not parts:
        raise refuse("a OneHotEncoder without any output")
    return {"transform": op.Concat(*parts, axis=1) if len(parts) > 1 else parts[0]}


def _one_hot_numbers(model: Any, i: int, count: int) -> tuple[np.ndarray, int, int]:
    """The output column of each category (-1: none), that of unknown ones, how many there are."""
    numbers = np.arange(count)
    unknown = -1
    if getattr(model, "_infrequent_enabled", False):
        mapping = model._default_to_infrequent_mappings[i]
        rare = model._infrequent_indices[i]
        if mapping is not None:
            numbers = np.asarray(mapping)
        if rare is not None and model.handle_unknown in ("infrequent_if_exist", "warn"):
            unknown = int(numbers[rare[0]])
    outputs = int(numbers.max()) + 1 if count else 0
    drops = model._drop_idx_after_grouping
    if drops is not None and drops[i] is not None:
        drop = int(drops[i])
        outputs -= 1

        def moved(n):
            return np.where(n == drop, -1, np.where(n > drop, n - 1, n))

        numbers, unknown = moved(numbers), int(moved(np.asarray(unknown)))
    return numbers, unknown, outputs


@importer("sklearn.preprocessing.OrdinalEncoder", columns=True)
def ordinal_encoder(op, model, x):
    parts = []
    for i, categories in enumerate(model.categories_):
        numbers = np.arange(len(categories))
        mapping = None
        if getattr(model, "_infrequent_enabled", False):
            mapping = model._default_to_infrequent_mappings[i]
        values = numbers.astype(F)
        if mapping is not None:  # which leaves out a missing value
            values[: len(mapping)] = mapping
        for at, category in enumerate(np.asarray(categories, object).tolist()):
            if is_missing(category) and category is not None:  # None is a category like others
                values[at] = model.encoded_missing_value
        other = F(np.nan)
        if model.handle_unknown == "use_encoded_value":
            other = F(model.unknown_value)
        table = np.append(values, other)
        code = coded(op, column(op, x, i), categories, numbers, len(numbers))
        parts.append(op.Gather(op.const(table), code))
    y = op.Concat(*parts, axis=1) if len(parts) > 1 else parts[0]
    return {"transform": op.cast(y, output_type(model))}


@importer("sklearn.preprocessing.TargetEncoder", columns=True)
def target_encoder(op, model, x):
    several = model.target_type_ == "multiclass"
    count = len(model.classes_) if several else 1
    means = np.atleast_1d(np.asarray(model.target_mean_, F))
    parts = []
    for e, encoding in enumerate(model.encodings_):
        categories = model.categories_[e // count]
        table = np.append(np.asarray(encoding, F), means[e % count])
        numbers = np.arange(len(categories))
        if getattr(model, "_infrequent_enabled", False):
            raise refuse("a TargetEncoder with infrequent categories")
        code = coded(op, column(op, x, e // count), categories, numbers, len(categories))
        parts.append(op.Gather(op.const(table), code))
    return {"transform": op.Concat(*parts, axis=1) if len(parts) > 1 else parts[0]}


@importer("sklearn.preprocessing.LabelEncoder", columns=True)
def label_encoder(op, model, x):
    code = coded(op, _one(op, x), model.classes_, np.arange(len(model.classes_)), -1)
    return {"transform": op.Squeeze(code, [1])}


@importer("sklearn.preprocessing.LabelBinarizer", columns=True)
def label_binarizer(op, model, x):
    if model.y_type_.startswith("multilabel"):
        y = double(op, x)
        positive = op.Greater(y, F(0))
        return {
            "transform": op.Where(positive, np.int64(model.pos_label), np.int64(model.neg_label))
        }
    count = len(model.classes_)
    code = coded(op, _one(op, x), model.classes_, np.arange(count), -1)
    numbers = np.arange(count) if count > 2 else np.array([1])
    if count == 1:
        return {
            "transform": op.Where(op.Equal(code, np.int64(-9)), code, np.int64(model.neg_label))
        }
    hot = op.Equal(code, numbers[None])
    return {"transform": op.Where(hot, np.int64(model.pos_label), np.int64(model.neg_label))}


def _one(op, x):
    """A vector of labels, as a column."""
    value = matrix(op, x)
    return op.Unsqueeze(value, [1]) if rank(value) == 1 else value


def text_equals(op: Builder, x: ir.Value, text: str) -> ir.Value:
    return op.Equal(x, texts(op, [[text]]))
