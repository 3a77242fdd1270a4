"""The driver: the rule of an estimator is looked up and called; steps have names in errors.

A rule returns values by the names of the estimator's methods: `predict`, `predict_proba`,
`decision_function`, `transform`, `score_samples`. What nothing reads is removed at the end, so a
rule gives all that it can.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.errors import ImportRefused
from sardonyx.importers.rules import COLUMNS, public_name, rule_of
from sardonyx.importers.sklearn.table import FLOAT, Table, matrix

Methods = dict[str, Any]  # a value, or a list of values for several outputs

_path: ContextVar[tuple[str, ...]] = ContextVar("path", default=())


def where() -> str:
    """The names of the steps that lead to the estimator being imported."""
    return " › ".join(_path.get())


@contextmanager
def step(name: str) -> Iterator[None]:
    """Name what is imported inside: for errors and for the names of nodes."""
    token = _path.set((*_path.get(), name))
    try:
        yield
    finally:
        _path.reset(token)


def refuse(reason: str, hint: str | None = None) -> ImportRefused:
    """The error for a setting that has no faithful ONNX, with the step that it is in."""
    return ImportRefused(f"this estimator cannot be imported: {reason}", [[where(), reason]], hint)


def methods(op: Builder, estimator: Any, x: Table, name: str = "") -> Methods:
    """What the methods of a fitted estimator give for `x`."""
    kind = type(estimator)
    with step(name or kind.__name__):
        entry = rule_of(estimator)
        if entry is None:
            raise refuse(
                f"{public_name(kind)} has no rule",
                hint=f'add one with @sx.importer("{public_name(kind)}")',
            )
        full_name, rule = entry
        value = x if full_name in COLUMNS else matrix(op, x)
        before = op.prefix
        with op.named(f"{before}/{name or kind.__name__}" if before else name or kind.__name__):
            result = rule(op, estimator, value)
        if not isinstance(result, dict):
            result = {"transform" if hasattr(estimator, "transform") else "predict": result}
        return _kept_precision(op, estimator, x, result)


def _kept_precision(op: Builder, estimator: Any, x: Table, result: Methods) -> Methods:
    """Cast what a transformer gives for float32, where it keeps that type."""
    out = result.get("transform")
    if not isinstance(out, ir.Value) or out.dtype != ir.DataType.DOUBLE:
        return result
    parts = [x] if isinstance(x, ir.Value) else x.parts
    if {part.dtype for part in parts} == {FLOAT} and keeps_float32(estimator):
        return {**result, "transform": op.cast(out, FLOAT)}
    return result


def keeps_float32(estimator: Any) -> bool:
    """Whether `transform` gives float32 for float32, by the estimator's own tags."""
    try:
        from sklearn.utils import get_tags

        tags = get_tags(estimator).transformer_tags
    except Exception:
        return False
    return tags is not None and "float32" in tags.preserves_dtype


def method(op: Builder, estimator: Any, x: Table, name: str, step_name: str = "") -> Any:
    """One method of an estimator, which must have it."""
    result = methods(op, estimator, x, step_name)
    if name not in result:
        raise refuse(f"{type(estimator).__name__}.{name} has no rule")
    return result[name]


def transform(op: Builder, estimator: Any, x: Table, name: str = "") -> Table:
    """What `transform` gives, also for "passthrough"."""
    if estimator is None or (isinstance(estimator, str) and estimator == "passthrough"):
        return x
    return method(op, estimator, x, "transform", name)
