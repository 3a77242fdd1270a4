"""Memory that a training session need not hold: the weights as they were loaded, which only a
restart and a report read again, and what preparing a step has left with the allocator.
"""

from __future__ import annotations

import ctypes
import gc
import tempfile
from pathlib import Path

import numpy as np
import onnx_ir as ir

from sardonyx.model import Model
from sardonyx.train.step import all_state

LARGE = 1 << 16  # bytes
FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16)


def spilled(model: Model) -> Model:
    """A copy whose large trained weights lie in a temporary file, until nobody needs them."""
    copy = model.copy()
    folder = tempfile.TemporaryDirectory(prefix="sardonyx-")
    path = Path(folder.name) / "weights.bin"
    with path.open("wb") as file:
        for name in all_state(copy):
            value = copy.graph.initializers.get(name)
            tensor = value.const_value if value is not None else None
            if value is None or tensor is None or tensor.dtype not in FLOATS:
                continue
            if tensor.nbytes >= LARGE:
                value.const_value = _stored(tensor, folder, path, file.tell())
                file.write(tensor.tobytes())
    return copy


def _stored(
    tensor: ir.TensorProtocol, folder: tempfile.TemporaryDirectory[str], path: Path, offset: int
) -> ir.LazyTensor:
    kind, sizes = tensor.dtype, tensor.shape.numpy()

    def read() -> ir.Tensor:
        assert folder is not None  # the folder is there as long as a tensor that reads from it
        count = int(np.prod(sizes))
        stored = np.fromfile(path, kind.numpy().newbyteorder("<"), count, offset=offset)
        return ir.Tensor(stored.astype(kind.numpy(), copy=False).reshape(sizes), name=tensor_name)

    tensor_name = tensor.name
    return ir.LazyTensor(read, dtype=kind, shape=ir.Shape(sizes), name=tensor_name)


def give_back() -> None:
    """Return free memory to the system, where the allocator can be asked to."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if hasattr(ctypes, "CDLL") else None
    if trim is not None:
        trim(0)
