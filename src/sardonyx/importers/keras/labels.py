"""What the losses of a compiled Keras model compare with its outputs: types, shapes and names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from sardonyx.errors import ArgumentError

# Losses whose labels are numbers of classes, one for each place of the output.
CLASSES = frozenset(
    [
        "sparse_categorical_crossentropy",
        "SparseCategoricalCrossentropy",
        "categorical_generalized_cross_entropy",
        "CategoricalGeneralizedCrossEntropy",
        "circle",
        "Circle",
    ]
)
SEQUENCES = frozenset(["ctc", "CTC"])  # labels are sequences of classes, of any length
SAMPLE_WEIGHT = "sample_weight"


@dataclass
class Label:
    """One label input; sizes of None are free.

    classes     -- how many classes there are, where labels are numbers of classes; else 0
    is_sequence -- whether its length is another than that of the output
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: str
    classes: int = 0
    is_sequence: bool = False

    def draw(self, rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
        """Labels that any loss can take: classes, or numbers between 0 and 1 of sum 1."""
        if np.issubdtype(np.dtype(self.dtype), np.integer) or self.classes:
            low = 1 if self.classes > 2 else 0
            return rng.integers(low, max(self.classes, 2), shape).astype(self.dtype)
        numbers = rng.uniform(0.05, 0.95, shape)
        if len(shape) > 1 and shape[-1] > 1:
            numbers = numbers / numbers.sum(-1, keepdims=True)
        return np.asarray(numbers, self.dtype)


@dataclass
class Labels:
    """The labels of a model, in the order of its outputs.

    structure -- that of the outputs, with tensors of Keras as leaves; None: no loss reads labels
    places    -- for each output, its label; None where no loss reads it
    weight_shape -- that of the weights of samples, where they are fed as well
    keys      -- of the losses, where they name some of the outputs alone
    """

    structure: Any
    places: list[Label | None] = field(default_factory=list)
    weight_shape: tuple[int | None, ...] | None = None
    keys: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, model: keras.Model, outputs: Any, example: Any, weights: Any) -> Labels:
        weight_shape = _weight_shape(weights)
        leaves = keras.tree.flatten(outputs)
        names = _names(outputs, getattr(model, "output_names", None))
        if example is not None:
            return cls(outputs, _from_example(outputs, example, names), weight_shape)
        compiled = getattr(model, "_compile_loss", None)
        if compiled is None:
            return cls(None, [], weight_shape)
        losses = _by_output(compiled._user_loss, outputs, getattr(model, "output_names", None))
        places = [
            None if loss is None else _label(loss, leaf, name)
            for loss, leaf, name in zip(losses, leaves, names, strict=True)
        ]
        keys = []
        if isinstance(compiled._user_loss, dict) and any(place is None for place in places):
            keys = [name.removeprefix("label_") for name in names]
        return cls(outputs, places, weight_shape, keys)

    @property
    def all(self) -> list[Label]:
        shape = self.weight_shape
        weight = [] if shape is None else [Label(SAMPLE_WEIGHT, shape, "float32")]
        return [p for p in self.places if p is not None] + weight

    def arguments(self, values: Sequence[Any], outputs: Any = None) -> tuple[Any, Any]:
        """The labels as the model's losses take them, and the weights of samples."""
        rest = list(values)
        weight = rest.pop() if self.weight_shape is not None else None
        if self.structure is None:
            return None, weight
        leaves = [None if place is None else rest.pop(0) for place in self.places]
        if len(leaves) == 1 and not keras.tree.is_nested(self.structure):
            return leaves[0], weight
        if self.keys:
            pairs = zip(self.keys, leaves, strict=True)
            return {key: leaf for key, leaf in pairs if leaf is not None}, weight
        if any(leaf is None for leaf in leaves):
            spare = leaves[next(i for i, leaf in enumerate(leaves) if leaf is not None)]
            leaves = [spare if leaf is None else leaf for leaf in leaves]
        return keras.tree.pack_sequence_as(self.structure, leaves), weight


def _weight_shape(weights: Any) -> tuple[int | None, ...] | None:
    """The shape of weights of samples: whether there are any, or an example of them."""
    if weights is None or isinstance(weights, bool):
        return (None,) if weights else None
    return (None,) * len(weights.shape)


def _names(outputs: Any, output_names: Sequence[str] | None) -> list[str]:
    count = len(keras.tree.flatten(outputs))
    if count == 1:
        return ["label"]
    if isinstance(outputs, dict) and len(outputs) == count:
        return [f"label_{key}" for key in _sorted(outputs)]
    if output_names and len(output_names) == count and len(set(output_names)) == count:
        return [f"label_{name}" for name in output_names]
    return [f"label_{number}" for number in range(count)]


def _sorted(mapping: dict[str, Any]) -> list[str]:
    """The keys of a dictionary in the order in which its leaves are listed."""
    order = keras.tree.flatten({key: key for key in mapping})
    return [str(key) for key in order]


def _by_output(loss: Any, outputs: Any, names: Sequence[str] | None) -> list[Any]:
    """The loss of each output, as Keras matches them."""
    count = len(keras.tree.flatten(outputs))
    if not keras.tree.is_nested(loss):
        return [loss] * count
    if isinstance(loss, dict):
        keys = _sorted(outputs) if isinstance(outputs, dict) else list(names or [])
        if set(loss) <= set(keys) and len(keys) == count:
            return [loss.get(key) for key in keys]
    if isinstance(loss, (list, tuple)) and not any(keras.tree.is_nested(part) for part in loss):
        if len(loss) == count:
            return list(loss)
        if count == 1:
            return [loss[0]]
    flat = keras.tree.flatten(loss)
    if len(flat) == count:
        return flat
    raise ArgumentError(
        f"the model has {count} outputs, and its losses do not say which of them they read",
        hint="pass labels=, an example of what each output is compared with",
    )


def _label(loss: Any, output: Any, name: str) -> Label:
    kind = loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)
    shape = tuple(output.shape)
    classes = shape[-1] if shape and isinstance(shape[-1], int) else 0
    if kind in CLASSES:
        return Label(name, shape[:-1], "int32", classes)
    if kind in SEQUENCES:
        return Label(name, (*shape[:1], None), "int32", classes, is_sequence=True)
    return Label(name, shape, "float32")


def _from_example(outputs: Any, example: Any, names: Sequence[str]) -> list[Label | None]:
    leaves = keras.tree.flatten(example)
    if len(leaves) != len(names):
        raise ArgumentError(f"the model has {len(names)} outputs, and labels= has {len(leaves)}")
    labels: list[Label | None] = []
    for leaf, name, output in zip(leaves, names, keras.tree.flatten(outputs), strict=True):
        if leaf is None:
            labels.append(None)
            continue
        dtype = keras.backend.standardize_dtype(leaf.dtype)
        dtype = {"float64": "float32", "int64": "int32"}.get(dtype, dtype)
        classes = 0
        if np.issubdtype(np.dtype(dtype), np.integer):
            last = output.shape[-1] if len(output.shape) else 2
            classes = last if isinstance(last, int) and last > 1 else 2
        labels.append(Label(name, (None, *leaf.shape[1:]), dtype, classes))
    return labels
