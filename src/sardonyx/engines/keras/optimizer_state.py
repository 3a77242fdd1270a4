"""The state of a Keras optimizer, put into the training record of a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.engines.keras.convert import array_of, weight_arrays
from sardonyx.errors import ArgumentError, quote
from sardonyx.model import Model
from sardonyx.record.builder import RATE, STEP
from sardonyx.record.info import state_names
from sardonyx.record.keras_state import ITERATION, RULES, our_name, slot_names


def with_optimizer_state(model: Model, network: Any, optimizer: Any) -> Model:
    """A copy of `model` whose record goes on where the optimizer of a Keras model stands.

    optimizer -- True: the one that the model is compiled with
    """
    optimizer = network.optimizer if optimizer is True else optimizer
    if optimizer is None:
        raise ArgumentError("the Keras model is not compiled", hint="model.compile(…), then train")
    if len(model.records) != 1:
        raise ArgumentError(f"the model has {len(model.records)} training records, not one")
    copy = model.copy()
    record = copy.records[0]
    arrays, rate = _arrays(network, optimizer, record.state)
    names = [n for n in state_names(model, record) if n in record.state]
    names = [n for n in names if not n.endswith("/seed") or n in arrays]
    problems = [[quote(n), "is not in the optimizer"] for n in names if n not in arrays]
    problems += [
        [quote(n), f"{list(record.state[n].shape.numpy())} ← {list(a.shape)}"]
        for n, a in arrays.items()
        if n in record.state and tuple(record.state[n].shape.numpy()) != a.shape
    ]
    if problems:
        raise ArgumentError(
            "the state of the optimizer does not fit the record",
            problems,
            hint="the model must have been made by sx.to_keras, or imported from this one",
        )
    for name, array in {**arrays, **rate}.items():
        if name in record.state:
            tensor = record.state[name]
            cast = np.asarray(array).astype(tensor.dtype.numpy())
            record.state[name] = ir.Tensor(
                cast, tensor.dtype, shape=ir.Shape(cast.shape), name=name
            )
    return copy


def _arrays(
    network: Any, optimizer: Any, state: Any
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The state by the record's names for it; the rate, which is fed."""
    variables = getattr(optimizer, "slots", None)
    if isinstance(variables, dict):
        rate = {RATE: array_of(optimizer.learning_rate)}
        return {name: array_of(v) for name, v in variables.items()}, rate
    names = list(weight_arrays(network))
    trained = list(network.trainable_variables)
    slots = slot_names(optimizer, trained, names[: len(trained)])
    arrays = dict(zip(slots, map(array_of, optimizer.variables), strict=True))
    rate = {RATE: arrays.pop(RATE)} if RATE in arrays else {}
    rule = RULES.get(type(optimizer).__name__)
    if rule is not None and STEP in state and ITERATION not in state:
        arrays = {our_name(rule, n): a for n, a in arrays.items()}
    others = zip(names[len(trained) :], network.non_trainable_variables, strict=True)
    arrays |= {n: array_of(v) for n, v in others if n in state}
    return arrays, rate
