"""Pytrees of JAX: their leaves, by names made of the path to each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import tree_util

from sardonyx.errors import ArgumentError, quote
from sardonyx.importers.jax import keys

# What Flax NNX puts between the path of a variable and its array.
WRAPPERS = ("value", "raw_value")


def named_leaves(tree: Any, prefix: str = "") -> dict[str, Any]:
    """The leaves of a tree; the keys on the way to a leaf are joined by dots.

    >>> named_leaves({"dense": {"kernel": 1}, "layers": [2, 3]})
    {'dense.kernel': 1, 'layers.0': 2, 'layers.1': 3}
    """
    names: dict[str, Any] = {}
    for path, leaf in tree_util.tree_flatten_with_path(tree)[0]:
        parts = [_text(key) for key in path]
        while parts and parts[-1] in WRAPPERS:
            parts.pop()
        stem = ".".join(p for p in (prefix, *parts) if p) or "value"
        name, count = stem, 0
        while name in names:
            count += 1
            name = f"{stem}_{count}"
        names[name] = leaf
    return names


def _text(key: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute)).strip(".")
    return str(key).strip(".[]'")


def argument_names(function: Callable[..., Any], count: int, skip: int) -> list[str]:
    """Names for `count` positional arguments of `function` after the first `skip`."""
    names = _positional(function)[skip:]
    module = getattr(function, "__self__", None)
    if not names and callable(module):  # `module.apply(variables, *args)` of Flax
        names = _positional(module)
    names = names[:count]
    return names + [f"input_{i}" for i in range(len(names), count)]


def _positional(function: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters if p.kind in kinds]


def input_leaves(names: Sequence[str], example: Sequence[Any]) -> dict[str, Any]:
    """The leaves of positional arguments, each below the name of its argument."""
    leaves: dict[str, Any] = {}
    for name, argument in zip(names, example, strict=True):
        leaves |= named_leaves(argument, name)
    return leaves


def structs(
    shapes: Sequence[Sequence[int | str]], dtypes: Sequence[Any], constraints: Sequence[str] = ()
) -> list[jax.ShapeDtypeStruct]:
    """Examples of JAX for inputs; a size that is a text is the symbol of that name.

    constraints -- what JAX may take for granted of the symbols, such as "n >= 8"
    """
    scope = jax.export.SymbolicScope(list(constraints))
    return [
        jax.ShapeDtypeStruct(
            jax.export.symbolic_shape(", ".join(map(str, shape)), scope=scope) if shape else (),
            dtype,
        )
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]


def output_names(result: Any, used_names: set[str]) -> list[str]:
    """Names for the leaves of a result: its own keys, or `output`, `output_0`, …"""
    leaves = tree_util.tree_flatten_with_path(result)[0]
    names: list[str] = []
    for path, _ in leaves:
        stem = ".".join(_text(key) for key in path)
        if not stem or stem[0].isdigit():
            stem = f"output_{stem.replace('.', '_')}" if stem else "output"
        while stem in used_names or stem in names:
            stem += "_out"
        names.append(stem)
    return names


def require_arrays(leaves: dict[str, Any], what: str) -> None:
    """Raise for leaves that are not numbers: functions, texts, modules."""
    rows = [
        [quote(name), type(leaf).__name__] for name, leaf in leaves.items() if not is_array(leaf)
    ]
    if rows:
        raise ArgumentError(
            f"{what} has leaves that are not arrays",
            rows,
            hint="bind them in the function; of an Equinox module, "
            "`eqx.partition(module, eqx.is_array)` separates the arrays",
        )


def is_array(leaf: Any) -> bool:
    arrays = (np.ndarray, np.generic, jax.Array, jax.ShapeDtypeStruct)
    return isinstance(leaf, (*arrays, bool, int, float))


def array(leaf: Any) -> np.ndarray:
    """A leaf as NumPy has it; keys as their words."""
    if keys.is_key(leaf):
        return keys.data(leaf)
    return np.asarray(jax.numpy.asarray(leaf))
