"""Memory that a training session need not hold: the weights as they were loaded, which only a
restart and a report read again, and what preparing a step has left with the allocator.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx_ir as ir

from sardonyx.model import Model
from sardonyx.passes.nesting import graphs
from sardonyx.train.step import all_state

LARGE = 1 << 16  # bytes
FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16)


class _Store:
    """A temporary file of numbers, which goes when nobody reads from it any more."""

    def __init__(self) -> None:
        handle, name = tempfile.mkstemp(prefix="sardonyx-")
        os.close(handle)
        self.path = Path(name)
        weakref.finalize(self, self.path.unlink, missing_ok=True)

    def add(self, tensor: ir.TensorProtocol) -> ir.LazyTensor:
        """Write a tensor; what stands for it reads it when it is asked to."""
        kind, sizes, name = tensor.dtype, tensor.shape.numpy(), tensor.name
        offset = self.path.stat().st_size
        with self.path.open("ab") as file:
            file.write(tensor.tobytes())

        def read() -> ir.Tensor:
            little = np.dtype(kind.numpy()).newbyteorder("<")
            stored = np.fromfile(self.path, little, int(np.prod(sizes)), offset=offset)
            return ir.Tensor(stored.astype(kind.numpy(), copy=False).reshape(sizes), name=name)

        return ir.LazyTensor(read, dtype=kind, shape=ir.Shape(sizes), name=name)


def spilled(model: Model) -> Model:
    """A copy whose large trained weights lie in a temporary file, until nobody needs them."""
    copy, store = model.copy(), _Store()
    state = set(all_state(copy))
    for value in copy.graph.initializers.values():
        tensor = value.const_value
        if tensor is not None and value.name in state and tensor.dtype in FLOATS:
            value.const_value = store.add(tensor) if tensor.nbytes >= LARGE else tensor
    _let_go(copy)
    return copy


def _let_go(model: Model) -> None:
    """Tensors of their own: one that is still part of a loaded file keeps all of it in memory."""
    for graph in graphs(model.graph):
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.TensorProtoTensor):
                value.const_value = _own(value.const_value)
        for node, attribute in _tensors(graph):
            node.attributes.add(ir.AttrTensor(attribute.name, _own(attribute.value)))


def _tensors(graph: ir.Graph) -> Iterator[tuple[ir.Node, ir.Attr]]:
    for node in graph:
        for attribute in list(node.attributes.values()):
            if isinstance(attribute.value, ir.TensorProtoTensor):
                yield node, attribute


def _own(tensor: ir.TensorProtoTensor) -> ir.TensorProtocol:
    array = np.array(tensor.numpy(), copy=True)
    return ir.Tensor(array, dtype=tensor.dtype, shape=tensor.shape, name=tensor.name)


def give_back() -> None:
    """Return free memory to the system, where the allocator can be asked to."""
    gc.collect()
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "malloc_trim"):
        library.malloc_trim(0)
