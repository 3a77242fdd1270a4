"""The optimizer of a training record as Keras knows it: it holds the slots and the rate."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Never

import keras
import numpy as np

from sardonyx.engines.keras.steps import engine_name, held_dtype
from sardonyx.errors import EngineError

PACKAGE = "sardonyx"


@keras.saving.register_keras_serializable(PACKAGE)
class RecordOptimizer(keras.optimizers.Optimizer):
    """The slots of a record as variables of Keras; the record itself computes the updates.

    slots -- the variables by the record's names for them
    """

    def __init__(self, slots: Mapping[str, np.ndarray], learning_rate: float = 0.0, **more: Any):
        super().__init__(learning_rate=float(learning_rate), **more)
        self.slots = {}
        for name, array in slots.items():
            variable = named_variable(name, array, trainable=False)
            self._track_variable(variable)
            self.slots[name] = variable
        self.built = True

    def apply(self, grads: Any, trainable_variables: Any = None) -> Never:
        raise EngineError(
            "the optimizer of a training record updates inside `train_step` alone",
            hint="model.fit and model.train_on_batch train; model.compile(…) sets another",
        )


def named_variable(name: str, array: np.ndarray, trainable: bool) -> Any:
    """A variable of Keras whose path is `name`; torch's parameters have no dots in theirs."""
    path = name.replace(".", "/") if engine_name() == "torch" else name
    *scopes, last = [part for part in path.split("/") if part] or ["value"]
    dtype = held_dtype(np.asarray(array).dtype)
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        start = np.asarray(array).astype(dtype)
        return keras.Variable(start, dtype=dtype, trainable=trainable, name=last)


def tensor_of(variable: Any) -> Any:
    """The value of a variable as a tensor of the backend."""
    value = variable.value if hasattr(variable, "path") else variable
    return value.read_value() if hasattr(value, "read_value") else value
