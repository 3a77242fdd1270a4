"""The model that a whole training trains, stored in the file of the training.

The weights are there already, as the values where the state starts. So the model is stored without
them, as compressed text in the metadata, and gets them back when it is read.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Collection, Iterator, Mapping

import onnx

from sardonyx.model import Model, load

KEY = "sardonyx.whole.model"
DATA = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data")


def with_model(whole: Model, net: Model, starts: Collection[str]) -> None:
    """Store a model in the metadata of its training, without the data of the variables `starts`."""
    proto = net.proto()
    for tensor in _state(proto, starts):
        for name in DATA:
            tensor.ClearField(name)  # type: ignore[arg-type]
    packed = zlib.compress(proto.SerializeToString(), 6)
    whole.metadata[KEY] = base64.b64encode(packed).decode("ascii")


def stored_model(whole: onnx.ModelProto, starts: Mapping[str, str]) -> Model:
    """The model of a training, as it is before the first step.

    starts -- variable → the initializer of the file that holds its first value; a variable that
              is not among them is filled by one number
    """
    metadata = {entry.key: entry.value for entry in whole.metadata_props}
    proto = onnx.ModelProto.FromString(zlib.decompress(base64.b64decode(metadata[KEY])))
    held = {tensor.name: tensor for tensor in whole.graph.initializer}
    for tensor in _state(proto, starts):
        name = tensor.name
        tensor.CopyFrom(held[starts[name]])
        tensor.name = name
    return load(proto)


def _state(proto: onnx.ModelProto, names: Collection[str]) -> Iterator[onnx.TensorProto]:
    graphs = [proto.graph, *(t.algorithm for t in proto.training_info)]
    for graph in graphs:
        yield from (tensor for tensor in graph.initializer if tensor.name in names)
