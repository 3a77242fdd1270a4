"""The model that a whole training trains, stored in the file of the training.

The weights are there already, as the values where the state starts. So the model is stored without
them, as compressed text in the metadata, and gets them back when it is read.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Collection, Iterator

import onnx

from sardonyx.model import Model, load

KEY = "sardonyx.whole.model"
DATA = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data")


def with_model(whole: Model, net: Model, state: Collection[str]) -> None:
    """Store a model in the metadata of its training, without the data of its state."""
    proto = net.proto()
    for tensor in _state(proto, state):
        for name in DATA:
            tensor.ClearField(name)  # type: ignore[arg-type]
    packed = zlib.compress(proto.SerializeToString(), 6)
    whole.metadata[KEY] = base64.b64encode(packed).decode("ascii")


def stored_model(whole: onnx.ModelProto, state: dict[str, onnx.TensorProto]) -> Model:
    """The model of a training, with the values of `state`."""
    metadata = {entry.key: entry.value for entry in whole.metadata_props}
    proto = onnx.ModelProto.FromString(zlib.decompress(base64.b64decode(metadata[KEY])))
    for tensor in _state(proto, state):
        name = tensor.name
        tensor.CopyFrom(state[name])
        tensor.name = name
    return load(proto)


def _state(proto: onnx.ModelProto, names: Collection[str]) -> Iterator[onnx.TensorProto]:
    graphs = [proto.graph, *(t.algorithm for t in proto.training_info)]
    for graph in graphs:
        yield from (tensor for tensor in graph.initializer if tensor.name in names)
