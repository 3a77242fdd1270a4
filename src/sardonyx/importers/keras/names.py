"""Names and structures of a Keras model's variables and inputs, on any backend."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from sardonyx.errors import ArgumentError

BATCH = "batch"
MADE_UP = re.compile(r"(keras_tensor|input_layer)(_\d+)?")  # names that Keras gives by itself


def require_built(model: keras.Model, example: Any = None) -> None:
    """Raise for a model whose variables or inputs are not there yet."""
    if example is not None:
        if not model.built:
            model(keras.tree.map_structure(_zeros, example))
        return
    if model.built and getattr(model, "inputs", None):
        return
    if model.built and _declared(model) is not None:
        if not all(layer.built for layer in model._flatten_layers()):
            # Keras stops to build a Sequential at a layer whose output shape it cannot tell.
            with contextlib.suppress(Exception):  # the trace will say what is wrong
                model(keras.tree.map_structure(_zeros, input_structure(model)))
        return
    raise ArgumentError(
        "the Keras model is not built, or has no declared inputs",
        hint="call it once, give it a keras.Input, or pass example=, arrays that it takes",
    )


def input_structure(model: keras.Model, example: Any = None) -> Any:
    """The inputs of a model as it takes them, with tensors of Keras as leaves."""
    if example is not None:
        return keras.tree.map_structure(_free_batch, example)
    inner = getattr(model, "_functional", None) or model
    structure = getattr(inner, "_inputs_struct", None)
    if structure is not None:
        return structure
    inputs = getattr(model, "inputs", None) or _declared(model)
    return inputs[0] if isinstance(inputs, list) and len(inputs) == 1 else inputs


def _declared(model: keras.Model) -> Any:
    """The inputs that a model of a user's class was built with: their shapes, in floats."""
    shapes = getattr(model, "_build_shapes_dict", None)
    if not shapes or len(shapes) != 1:
        return None
    (structure,) = shapes.values()
    try:
        return keras.tree.map_shape_structure(
            lambda shape: keras.KerasTensor((None, *shape[1:]), dtype=model.input_dtype), structure
        )
    except (TypeError, ValueError, IndexError):
        return None


def _free_batch(leaf: Any) -> Any:
    dtype = keras.backend.standardize_dtype(leaf.dtype)
    return keras.KerasTensor(
        (None, *leaf.shape[1:]), dtype={"float64": "float32"}.get(dtype, dtype)
    )


def _zeros(leaf: Any) -> Any:
    return np.zeros([1 if d is None else d for d in leaf.shape], leaf.dtype)


def input_names(tensors: Sequence[Any], structure: Any = None) -> list[str]:
    """The names of inputs; those that Keras made up differ from process to process.

    structure -- in which the model takes them: the keys of a dictionary are names
    """
    names = [tensor.name for tensor in tensors]
    plain = ["input"] if len(names) == 1 else [f"input_{i}" for i in range(len(names))]
    if isinstance(structure, dict) and len(structure) == len(names):
        plain = [str(key) for key in keras.tree.flatten({key: key for key in structure})]
    return [p if MADE_UP.fullmatch(n) else n for n, p in zip(names, plain, strict=True)]


def paths(variables: Sequence[Any]) -> list[str]:
    """A name for each variable: its path, numbered where layers share one."""
    names: list[str] = []
    for variable in variables:
        path, count = variable.path, 0
        while path in names:
            count += 1
            path = f"{variable.path}_{count}"
        names.append(path)
    return names


def sizes(number: int | str, shape: Sequence[int | None]) -> list[int | str]:
    """The sizes of a tensor; the batch is one symbol for all, other open sizes are their own."""
    return [
        (BATCH if axis == 0 else f"size_{number}_{axis}") if size is None else int(size)
        for axis, size in enumerate(shape)
    ]
