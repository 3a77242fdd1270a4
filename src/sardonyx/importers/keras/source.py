"""A Keras model on the JAX backend as pure functions of arrays, with a name for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import keras

from sardonyx.importers.jax.trees import structs
from sardonyx.importers.keras.labels import Labels
from sardonyx.importers.keras.names import (
    BATCH,
    input_names,
    input_structure,
    paths,
    require_built,
    sizes,
)
from sardonyx.importers.keras.refusals import refuse_layers
from sardonyx.importers.keras.replaced import replacements
from sardonyx.importers.keras.sizes import largest, settled


class Source:
    """A built Keras model.

    names    -- of its variables, the trained ones first; their paths, if not given
    labels   -- examples of what its losses compare with its outputs
    weighted -- whether steps take a weight for each sample, or an example of the weights
    example  -- examples of its inputs, where the model does not declare them
    """

    def __init__(
        self,
        model: keras.Model,
        names: Sequence[str] = (),
        labels: Any = None,
        weighted: Any = False,
        example: Any = None,
    ):
        require_built(model, example)
        self.structure = input_structure(model, example)
        tensors = keras.tree.flatten(self.structure)
        refuse_layers(model, tensors)
        self.model = model
        self.trained = list(model.trainable_variables)
        self.frozen = list(model.non_trainable_variables)
        self.names = list(names) or paths([*self.trained, *self.frozen])
        count = len(self.trained)
        self.trained_names, self.frozen_names = self.names[:count], self.names[count:]
        self.input_names = input_names(tensors, self.structure)
        self.shapes = [sizes(number, t.shape) for number, t in enumerate(tensors)]
        kinds = [keras.backend.standardize_dtype(t.dtype) for t in tensors]
        # JAX computes in 32 bits what a model declares in 64.
        self.dtypes = [jax.dtypes.canonicalize_dtype(kind).name for kind in kinds]
        self.least = 1  # how large free sizes are, as far as the trace is concerned
        self.largest: dict[str, int] = {}  # free sizes that the model does not take above
        self.weighted, self.label_example = weighted, labels
        self.masked_metrics = False
        layers = model._flatten_layers()
        kept = [layer.states or [] for layer in layers if getattr(layer, "stateful", False)]
        self.states = keras.tree.flatten(kept)  # of recurrent layers: Keras does not count them
        self.state_names = paths([*self.trained, *self.frozen, *self.states])[len(self.names) :]

    def structs(self) -> list[jax.ShapeDtypeStruct]:
        """Examples of JAX for the inputs alone."""
        return structs(self.shapes, self.dtypes, self.constraints())

    def constraints(self) -> list[str]:
        """What JAX may take for granted of the free sizes."""
        limits = [f"{symbol} <= {size}" for symbol, size in self.largest.items()]
        if self.least == 1:
            return limits
        texts = dict.fromkeys(d for shape in self.shapes for d in shape if isinstance(d, str))
        symbols = dict.fromkeys(text.rpartition("*")[2] for text in texts)
        least = {s: min(self.least, self.largest.get(s, self.least)) for s in symbols}
        return limits + [f"{s} >= {size}" for s, size in least.items() if s != BATCH]

    def fixed_structs(self, size: int) -> list[jax.ShapeDtypeStruct]:
        """Examples of JAX for the inputs alone, where every free symbol is `size`."""

        def number(dim: int | str) -> int:
            if isinstance(dim, int):
                return dim
            factor, _, symbol = dim.rpartition("*")
            if symbol == BATCH:
                return 2
            return int(factor or 1) * min(size, self.largest.get(symbol, size))

        pairs = zip(self.shapes, self.dtypes, strict=True)
        return [jax.ShapeDtypeStruct(tuple(map(number, s)), d) for s, d in pairs]

    def takes(self, arguments: Sequence[jax.ShapeDtypeStruct]) -> bool:
        """Whether the model takes inputs of these shapes."""
        try:
            with replacements():
                jax.eval_shape(self.inference, *arguments)
        except Exception:
            return False
        return True

    def settle_sizes(self) -> bool:
        """Find out which free sizes have to be equal, or multiples; whether anything was found."""

        before, self.shapes = self.shapes, settled(self.shapes, self._works)
        return self.shapes != before

    def bound_sizes(self) -> bool:
        """Find out which free sizes the model does not take above a limit; whether there are any.

        A trace then knows as much as Keras does, which refuses such inputs.
        """
        self.largest = largest(self.shapes, self._works)
        return bool(self.largest)

    def _works(self, shapes: Sequence[Sequence[int]]) -> bool:
        pairs = zip(shapes, self.dtypes, strict=True)
        return self.takes([jax.ShapeDtypeStruct(tuple(shape), dtype) for shape, dtype in pairs])

    def moving(self) -> list[str]:
        """The variables that a call in inference assigns: states of layers, random states."""
        kinds = [type(layer) for layer in self.model._flatten_layers()]
        if all(kind.__module__.startswith("keras.") for kind in kinds):
            return self.state_names
        names: list[str] = []

        def call(values: Any, *inputs: Any) -> Any:
            outputs, new = self.call(values, inputs, training=False)
            old = values[len(self.trained) :]
            triples = zip(self.frozen_names, old, new, strict=True)
            names[:] = [name for name, before, after in triples if before is not after]
            return outputs

        with replacements():
            jax.eval_shape(call, self.values(), *self.structs())
        return names + self.state_names

    def served_call(self, values: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
        """The results of inference, and the new values of what is not trained, by name."""
        if not self.states:
            outputs, new = self.call([values[n] for n in self.names], inputs, training=False)
            return outputs, dict(zip(self.frozen_names, new, strict=True))
        names = [*self.names, *self.state_names]
        variables = [*self.trained, *self.frozen, *self.states]
        mapping = [(v, values[n]) for v, n in zip(variables, names, strict=True)]
        options = {"training": False} if self.model._call_has_training_arg else {}
        with keras.StatelessScope(state_mapping=mapping) as scope:
            outputs = self.model(self.arguments(inputs), **options)
        pairs = zip(names, variables, strict=True)
        return outputs, {n: scope.get_current_value(v) for n, v in pairs}

    def inference(self, *inputs: Any) -> Any:
        return self.call(self.values(), inputs, training=False)[0]

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
