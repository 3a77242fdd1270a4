"""A Keras model on the JAX backend as pure functions of arrays, with a name for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import keras

from sardonyx.importers.jax.trees import structs
from sardonyx.importers.keras.labels import Labels
from sardonyx.importers.keras.names import (
    input_names,
    input_structure,
    paths,
    require_built,
    sizes,
)


class Source:
    """A built Keras model.

    names    -- of its variables, the trained ones first; their paths, if not given
    labels   -- examples of what its losses compare with its outputs
    weighted -- whether steps take a weight for each sample
    example  -- examples of its inputs, where the model does not declare them
    """

    def __init__(
        self,
        model: keras.Model,
        names: Sequence[str] = (),
        labels: Any = None,
        weighted: bool = False,
        example: Any = None,
    ):
        require_built(model, example)
        self.model = model
        self.trained = list(model.trainable_variables)
        self.frozen = list(model.non_trainable_variables)
        self.names = list(names) or paths([*self.trained, *self.frozen])
        count = len(self.trained)
        self.trained_names, self.frozen_names = self.names[:count], self.names[count:]
        self.structure = input_structure(model, example)
        tensors = keras.tree.flatten(self.structure)
        self.input_names = input_names(tensors)
        self.shapes = [sizes(number, t.shape) for number, t in enumerate(tensors)]
        kinds = [keras.backend.standardize_dtype(t.dtype) for t in tensors]
        # JAX computes in 32 bits what a model declares in 64.
        self.dtypes = [jax.dtypes.canonicalize_dtype(kind).name for kind in kinds]
        self.weighted, self.label_example = weighted, labels

    def structs(self) -> list[jax.ShapeDtypeStruct]:
        """Examples of JAX for the inputs alone."""
        return structs(self.shapes, self.dtypes)

    def labels(self) -> Labels:
        outputs = keras.tree.map_structure(_spec, self.output_specs())
        return Labels.of(self.model, outputs, self.label_example, self.weighted)

    def output_specs(self) -> Any:
        """The outputs of the model, as tensors of Keras without values."""
        inner = getattr(self.model, "_functional", None) or self.model
        if self.structure is getattr(inner, "_inputs_struct", None):
            return inner._outputs_struct
        return self.model.compute_output_spec(self.structure)

    def arguments(self, inputs: Sequence[Any]) -> Any:
        """The inputs as the model takes them: one, a list, or a dictionary."""
        return keras.tree.pack_sequence_as(self.structure, list(inputs))

    def values(self) -> list[Any]:
        """The values of all variables, as arrays of JAX."""
        return [v.value for v in (*self.trained, *self.frozen)]

    def call(self, values: Sequence[Any], inputs: Sequence[Any], training: bool) -> Any:
        """The model's results, and the new values of variables that are not trained."""
        options = {"training": training} if self.model._call_has_training_arg else {}
        count = len(self.trained)
        return self.model.stateless_call(
            list(values[:count]), list(values[count:]), self.arguments(inputs), **options
        )


def _spec(tensor: Any) -> Any:
    return keras.KerasTensor(tensor.shape, dtype=tensor.dtype, name=tensor.name)
