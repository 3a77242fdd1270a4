"""A model as text, for the configuration in a `.keras` file; Keras stores the numbers itself."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from sardonyx.errors import LimitExceeded
from sardonyx.limits import Limits
from sardonyx.model import Model, load
from sardonyx.record.info import state_names
from sardonyx.weights import weights


def held_names(model: Model) -> dict[str, str]:
    """The tensors that a Keras layer holds as variables: "weight" or "statistic" of each."""
    kinds = {w.name: w.kind for w in weights(model) if w.kind != "constant"}
    return {n: kind for n, kind in kinds.items() if n in model.graph.initializers}


def slot_names(model: Model) -> list[str]:
    """The state of records that is not in the model's own graph, in order."""
    names = [n for record in model.records for n in state_names(model, record)]
    return [n for n in dict.fromkeys(names) if n not in model.graph.initializers]


def encoded(model: Model, held: Mapping[str, str]) -> str:
    """A model as text; the tensors that Keras holds are zeros in it."""
    copy = model.copy()
    for name in held:
        value = copy.graph.initializers[name]
        assert value.const_value is not None
        value.const_value = _zeros(value.const_value)
    slots = set(slot_names(model))
    for record in copy.records:
        for name, tensor in record.state.items():
            if name in slots:
                record.state[name] = _zeros(tensor)
    return base64.b64encode(zlib.compress(copy.proto().SerializeToString(), 6)).decode()


def decoded(text: str) -> Model:
    """The model of such a text, within the limits of any file."""
    stream = zlib.decompressobj()
    data = stream.decompress(base64.b64decode(text), Limits().file_bytes)
    if stream.unconsumed_tail:
        raise LimitExceeded("the model in this configuration is larger than a file may be")
    return load(data)


def _zeros(tensor: ir.TensorProtocol) -> ir.Tensor:
    shape = [int(d) for d in tensor.shape.numpy()]
    array = np.zeros(shape, tensor.dtype.numpy())
    return ir.Tensor(array, tensor.dtype, shape=ir.Shape(shape), name=tensor.name)
