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
from sardonyx.record.step import all_state
from sardonyx.save import full_disk_reported

LARGE = 1 << 16  # bytes
SPILLED_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16)


class _Store:
    """A temporary file of numbers, which is deleted once nothing refers to it."""

    def __init__(self) -> None:
        handle, name = tempfile.mkstemp(prefix="sardonyx-")
        os.close(handle)
        self.path = Path(name)
        weakref.finalize(self, self.path.unlink, missing_ok=True)

    def add(self, tensor: ir.TensorProtocol) -> ir.LazyTensor:
        """Write a tensor; the lazy tensor that is returned reads it when needed."""
        kind, sizes, name = tensor.dtype, tensor.shape.numpy(), tensor.name
        offset = self.path.stat().st_size
        content = np.frombuffer(tensor.tobytes(), np.uint8)
        with full_disk_reported(self.path.parent), self.path.open("r+b") as file:
            file.truncate(offset + content.size)
            if content.any():  # slots start from zeros: a hole in the file
                file.seek(offset)
                file.write(content.data)

        def read() -> ir.Tensor:
            little = np.dtype(kind.numpy()).newbyteorder("<")
            stored = np.fromfile(self.path, little, int(np.prod(sizes)), offset=offset)
            return ir.Tensor(stored.astype(kind.numpy(), copy=False).reshape(sizes), name=name)

        return ir.LazyTensor(read, dtype=kind, shape=ir.Shape(sizes), name=name)


def spilled(model: Model) -> Model:
    """A copy whose large trained weights and slots lie in a temporary file for as long as it
    is needed.
    """
    copy, store = model.copy(), _Store()
    for name in set(all_state(copy)) & copy.graph.initializers.keys():
        value = copy.graph.initializers[name]
        if value.const_value is not None:
            value.const_value = _aside(value.const_value, store)
    for record in copy.records:
        record.state = {name: _aside(tensor, store) for name, tensor in record.state.items()}
    _let_go(copy)
    return copy


def _aside(tensor: ir.TensorProtocol, store: _Store) -> ir.TensorProtocol:
    large = tensor.dtype in SPILLED_TYPES and tensor.nbytes >= LARGE
    return store.add(tensor) if large else tensor


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
    """Return free memory to the system, where the allocator has a call for it."""
    gc.collect()
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "malloc_trim"):
        library.malloc_trim(0)
