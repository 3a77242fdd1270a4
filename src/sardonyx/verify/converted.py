"""The ONNX model from which Sardonyx converted a module or function, with its current weights.

A module of `to_torch` or `to_tensorflow`, or the pair that `to_jax` gives, holds its weights under
the model's names. Put back into the model, they make each node of the conversion one that can be
replayed alone on the same engine. Modules and functions of other origin have no such model.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from sardonyx.engines.with_weights import with_weights
from sardonyx.errors import SardonyxError
from sardonyx.model import Model
from sardonyx.verify.subjects import (
    ConversionSubject,
    FunctionSubject,
    ModuleSubject,
    OnnxSubject,
    Subject,
)


def as_onnx(item: Subject, onto: Model) -> OnnxSubject | None:
    """A subject as a model on its engine; None where nothing is known of its inside.

    onto -- the model that a conversion was made from
    """
    if isinstance(item, ConversionSubject):
        assert item.model is not None
        return OnnxSubject(item.model, item.engine, item.name)
    if isinstance(item, OnnxSubject):
        return item
    conversion = _conversion(item)
    if conversion is None:
        return None
    engine, take_back = conversion
    try:
        return OnnxSubject(take_back(onto), engine, item.name)
    except SardonyxError:  # its weights are not those of this model: it came from another
        return None


def held_names(item: Subject) -> set[str]:
    """The names, in the model, of the trained weights that a converted module or function holds."""
    if isinstance(item, ModuleSubject) and _comes_from(type(item.module), "torch"):
        trained = {key for key, _ in item.module.named_parameters()}
        return {name for name, key in item.module.names.items() if key in trained}
    if isinstance(item, FunctionSubject):
        if _comes_from(type(item.function), "tensorflow"):
            variables: Any = item.function
            return {n for n, v in variables.weights.items() if v.trainable}
        apply, params = applied(item.function)
        return set(params) if _comes_from(apply, "jax") and params is not None else set()
    return set()


def _conversion(item: Subject) -> tuple[str, Callable[[Model], Model]] | None:
    """The engine of a conversion, and how its weights get back into a model."""
    if isinstance(item, ModuleSubject) and _comes_from(type(item.module), "torch"):
        return "torch", lambda model: with_weights(model, item.module, cast=True)
    if not isinstance(item, FunctionSubject):
        return None
    if _comes_from(type(item.function), "tensorflow"):
        module: Any = item.function
        return "tensorflow", lambda model: with_weights(model, module, cast=True)
    apply, params = applied(item.function)
    if _comes_from(apply, "jax") and isinstance(params, Mapping):
        return "jax", lambda model: with_weights(model, params, cast=True)
    return None


def applied(function: Any) -> tuple[Any, Any]:
    """`partial(apply, params)` taken apart."""
    if isinstance(function, functools.partial) and function.args:
        return function.func, function.args[0]
    return function, None


def _comes_from(thing: Any, engine: str) -> bool:
    return getattr(thing, "__module__", "") == f"sardonyx.engines.{engine}.convert"
