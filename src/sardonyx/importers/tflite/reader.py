"""A TensorFlow Lite file as plain records: tensors, operators, graphs.

The schema is the one that `ai-edge-litert` carries. A file is not trusted: whatever is out of its
bounds, refers to what is not there, or would need more memory than the limits allow is refused.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from sardonyx.errors import ImportRefused, MissingExtra, quote
from sardonyx.limits import Limits

IDENTIFIER = b"TFL3"
TYPES = {
    "FLOAT32": np.float32, "FLOAT16": np.float16, "FLOAT64": np.float64,
    "BFLOAT16": ml_dtypes.bfloat16, "INT8": np.int8, "INT16": np.int16, "INT32": np.int32,
    "INT64": np.int64, "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32,
    "UINT64": np.uint64, "BOOL": np.bool_, "COMPLEX64": np.float32,
}  # fmt: skip
DAMAGE = (struct.error, IndexError, ValueError, TypeError, OverflowError, UnicodeDecodeError)


@dataclass
class Tensor:
    """A tensor of a graph.

    shape   -- sizes; None where a size is free
    dtype   -- NumPy's type, of complex numbers that of their parts; None for resources and texts
    scale, zero, axis -- its quantization; `scale` is None without one
    is_variable -- whether it keeps its value from call to call, 0 at first
    """

    index: int
    name: str
    kind: str
    shape: list[int | None]
    dtype: Any
    data: np.ndarray | None = None
    scale: np.ndarray | None = None
    zero: np.ndarray | None = None
    axis: int = 0
    is_variable: bool = False

    @property
    def is_quantized(self) -> bool:
        return self.scale is not None and self.kind in ("INT8", "UINT8", "INT16")

    @property
    def is_complex(self) -> bool:
        return self.kind == "COMPLEX64"


@dataclass
class Operator:
    """One operator: its name in the schema, its tensors by index (-1: omitted), its options."""

    index: int
    name: str
    inputs: list[int]
    outputs: list[int]
    options: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, option: str) -> Any:
        return self.options[option]


@dataclass
class Graph:
    tensors: list[Tensor]
    operators: list[Operator]
    inputs: list[int]
    outputs: list[int]


@dataclass
class Signature:
    """An entry of a file: the number of its graph, its inputs and outputs (a tensor, its name).

    One tensor may be several outputs.
    """

    graph: int = 0
    inputs: list[tuple[int, str]] = field(default_factory=list)
    outputs: list[tuple[int, str]] = field(default_factory=list)

    def names(self, which: str, places: list[int]) -> list[str | None]:
        """The name of each input or output, in the order of the graph's."""
        left = list(self.inputs if which == "inputs" else self.outputs)
        names: list[str | None] = []
        for place in places:
            entry = next((e for e in left if e[0] == place), None)
            names.append(None if entry is None else entry[1])
            if entry is not None:
                left.remove(entry)
        return names


@dataclass
class File:
    graphs: list[Graph]
    signatures: dict[str, Signature]


def read(content: bytes, limits: Limits | None = None) -> File:
    """The records of a file."""
    schema = _schema()
    if len(content) < 8 or content[4:8] != IDENTIFIER:
        raise ImportRefused("this is no TensorFlow Lite file", hint="it lacks the mark TFL3")
    try:
        return _Reader(schema, content, limits or Limits()).file()
    except DAMAGE as error:
        raise ImportRefused(
            "the TensorFlow Lite file is damaged", [[f"{type(error).__name__}: {error}"[:160]]]
        ) from error


def _schema() -> Any:
    try:
        from ai_edge_litert import schema_py_generated
    except ImportError as error:
        raise MissingExtra("ai-edge-litert", "tflite") from error
    return schema_py_generated


def _names(enum: Any) -> dict[int, str]:
    return {v: k for k, v in vars(enum).items() if isinstance(v, int)}


class _Reader:
    def __init__(self, schema: Any, content: bytes, limits: Limits):
        self.schema, self.content, self.limits = schema, content, limits
        self.model = schema.Model.GetRootAsModel(content, 0)
        self.kinds = _names(schema.TensorType)
        self.spent = 0

    def count(self, number: int) -> range:
        """The places of a vector, whose elements take four bytes each at least."""
        if number * 4 > len(self.content):
            raise ValueError(f"a vector of {number} elements is longer than the file")
        return range(number)

    def file(self) -> File:
        model = self.model
        self.codes = [
            self._code(model.OperatorCodes(i)) for i in self.count(model.OperatorCodesLength())
        ]
        graphs = [self._graph(model.Subgraphs(i)) for i in self.count(model.SubgraphsLength())]
        if not graphs:
            raise ValueError("there is no graph")
        records = [model.SignatureDefs(i) for i in self.count(model.SignatureDefsLength())]
        signatures = {(r.SignatureKey() or b"").decode(): self._signature(r) for r in records}
        for signature in signatures.values():
            if not 0 <= signature.graph < len(graphs):
                raise ValueError(f"there is no graph {signature.graph}")
        return File(graphs, signatures)

    def _signature(self, record: Any) -> Signature:
        inputs = self._entries(record.Inputs, record.InputsLength())
        outputs = self._entries(record.Outputs, record.OutputsLength())
        return Signature(int(record.SubgraphIndex()), inputs, outputs)

    def _entries(self, get: Any, count: int) -> list[tuple[int, str]]:
        entries = [get(i) for i in self.count(count)]
        return [(int(e.TensorIndex()), e.Name().decode()) for e in entries]

    def _code(self, code: Any) -> str:
        number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
        name = _names(self.schema.BuiltinOperator).get(number, f"operator {number}")
        if name == "CUSTOM":
            return f"CUSTOM {(code.CustomCode() or b'').decode()}"
        return name

    def _graph(self, graph: Any) -> Graph:
        tensors = [self._tensor(i, graph.Tensors(i)) for i in self.count(graph.TensorsLength())]
        operators = [
            self._operator(i, graph.Operators(i), len(tensors))
            for i in self.count(graph.OperatorsLength())
        ]
        inputs = [int(graph.Inputs(i)) for i in self.count(graph.InputsLength())]
        outputs = [int(graph.Outputs(i)) for i in self.count(graph.OutputsLength())]
        _inside([*inputs, *outputs], len(tensors), 0)
        return Graph(tensors, operators, inputs, outputs)

    # -- tensors

    def _tensor(self, index: int, tensor: Any) -> Tensor:
        kind = self.kinds.get(tensor.Type(), f"type {tensor.Type()}")
        dims = [int(tensor.Shape(i)) for i in self.count(tensor.ShapeLength())]
        signature = [
            int(tensor.ShapeSignature(i)) for i in self.count(tensor.ShapeSignatureLength())
        ]
        shape: list[int | None] = list(dims)
        if len(signature) == len(dims):
            shape = [None if s < 0 else d for s, d in zip(signature, dims)]
        if any(d < 0 for d in dims) or len(dims) > 16:
            raise ValueError(f"tensor {index} has the shape {dims}")
        record = Tensor(index, (tensor.Name() or b"").decode(), kind, shape, TYPES.get(kind))
        record.is_variable = bool(tensor.IsVariable())
        self._quantization(record, tensor.Quantization())
        record.data = self._data(record, tensor, dims)
        return record

    def _quantization(self, record: Tensor, q: Any) -> None:
        if q is None or not q.ScaleLength():
            return
        self.count(q.ScaleLength())
        scale = np.array(q.ScaleAsNumpy(), np.float32)
        zero = np.array(q.ZeroPointAsNumpy(), np.int64) if q.ZeroPointLength() else np.zeros(1, int)
        if zero.size not in (1, scale.size) or not np.isfinite(scale).all():
            raise ValueError(f"the quantization of {quote(record.name)} does not fit together")
        record.scale, record.zero = scale, np.broadcast_to(zero, scale.shape)
        record.axis = int(q.QuantizedDimension())
        size = record.shape[record.axis] if 0 <= record.axis < len(record.shape) else None
        if scale.size > 1 and size != scale.size:
            raise ValueError(f"the quantization of {quote(record.name)} does not fit its shape")

    def _data(self, record: Tensor, tensor: Any, dims: list[int]) -> np.ndarray | None:
        number = tensor.Buffer()
        if not 0 <= number < max(self.model.BuffersLength(), 1):
            raise ValueError(f"tensor {record.index} refers to a buffer that is not there")
        raw = self._buffer(number)
        if record.dtype is None or record.is_complex:
            return None
        if raw is None:
            # A constant without elements has no bytes; what an operator gives is overwritten.
            return np.zeros(dims, record.dtype) if 0 in dims else None
        dtype = np.dtype(record.dtype)
        if tensor.Sparsity() is not None:
            return self._dense(tensor.Sparsity(), raw.view(dtype), dims, dtype)
        size = int(np.prod(dims, dtype=object)) if dims else 1
        if size * dtype.itemsize != raw.size:
            raise ValueError(f"the data of {quote(record.name)} has another size than its shape")
        return np.frombuffer(raw.tobytes(), dtype).reshape(dims)

    def _buffer(self, number: int) -> np.ndarray | None:
        if not self.model.BuffersLength():
            return None
        buffer = self.model.Buffers(number)
        if buffer.Offset() > 1:
            start, size = buffer.Offset(), buffer.Size()
            if start + size > len(self.content):
                raise ValueError("a buffer is beyond the end of the file")
            return np.frombuffer(self.content, np.uint8, size, start)
        return buffer.DataAsNumpy() if buffer.DataLength() else None

    def _dense(
        self, sparsity: Any, values: np.ndarray, dims: list[int], dtype: np.dtype
    ) -> np.ndarray:
        """A sparse tensor in full: dimensions in the order of traversal, dense or compressed."""
        size = int(np.prod(dims, dtype=object)) * dtype.itemsize
        self.spent += size
        if self.spent > self.limits.fold_total_bytes:
            raise ValueError("sparse tensors would need more memory than the limits allow")
        order = [int(v) for v in sparsity.TraversalOrderAsNumpy()]
        blocks = [int(v) for v in sparsity.BlockMapAsNumpy()] if sparsity.BlockMapLength() else []
        levels = [sparsity.DimMetadata(i) for i in self.count(sparsity.DimMetadataLength())]
        rank = len(dims)
        if sorted(order) != list(range(len(levels))) or len(levels) != rank + len(blocks):
            raise ValueError("the traversal of a sparse tensor does not fit its shape")
        sizes = [1] * len(blocks)
        for axis, level in zip(order, levels):
            if axis >= rank:
                sizes[axis - rank] = level.DenseSize()
        places = _coordinates(levels, self._segments, len(values))
        full = np.zeros(dims, dtype)
        index = np.zeros((rank, len(values)), np.int64)
        for axis, column in zip(order, places):
            if axis < rank:
                factor = sizes[blocks.index(axis)] if axis in blocks else 1
                index[axis] += column * factor
            else:
                index[blocks[axis - rank]] += column
        full[tuple(index)] = values
        return full

    def _segments(self, level: Any) -> tuple[np.ndarray, np.ndarray]:
        vectors = []
        for kind, table in (
            (level.ArraySegmentsType(), level.ArraySegments()),
            (level.ArrayIndicesType(), level.ArrayIndices()),
        ):
            name = _names(self.schema.SparseIndexVector).get(kind, "NONE")
            vector = getattr(self.schema, name)()
            vector.Init(table.Bytes, table.Pos)
            vectors.append(np.array(vector.ValuesAsNumpy(), np.int64))
        return vectors[0], vectors[1]

    # -- operators

    def _operator(self, index: int, operator: Any, tensors: int) -> Operator:
        name = self.codes[operator.OpcodeIndex()]
        inputs = [int(operator.Inputs(i)) for i in self.count(operator.InputsLength())]
        outputs = [int(operator.Outputs(i)) for i in self.count(operator.OutputsLength())]
        _inside(inputs, tensors, -1)
        _inside(outputs, tensors, 0)
        options = self._options(operator.BuiltinOptionsType(), operator.BuiltinOptions(), "")
        options |= self._options(operator.BuiltinOptions2Type(), operator.BuiltinOptions2(), "2")
        return Operator(index, name, inputs, outputs, options)

    def _options(self, kind: int, table: Any, suffix: str) -> dict[str, Any]:
        name = _names(getattr(self.schema, f"BuiltinOptions{suffix}")).get(kind, "NONE")
        if name == "NONE" or table is None:
            return {}
        options = getattr(self.schema, name)()
        options.Init(table.Bytes, table.Pos)
        return dict(_fields(options))


def _fields(options: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a table by names in snake case."""
    methods = [n for n in vars(type(options)) if n[:1].isupper() and not n.startswith("GetRoot")]
    for method in methods:
        if (
            method.endswith(("AsNumpy", "IsNone", "BufferHasIdentifier", "Length"))
            or method == "Init"
        ):
            continue
        key = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", method).lower()
        if f"{method}AsNumpy" in methods:
            present = getattr(options, f"{method}Length")()
            yield key, getattr(options, f"{method}AsNumpy")().tolist() if present else []
        elif f"{method}Length" not in methods:
            yield key, getattr(options, method)()


def _inside(places: list[int], count: int, least: int) -> None:
    wrong = [place for place in places if not least <= place < count]
    if wrong:
        raise ValueError(f"there is no tensor {wrong[0]}")


def _coordinates(levels: list[Any], segments: Any, count: int) -> list[np.ndarray]:
    """The place of each stored value along each level, in the order of traversal."""
    columns: list[np.ndarray] = []
    nodes = 1
    for level in levels:
        if level.Format() == 0:
            size = level.DenseSize()
            if nodes * size > max(count, 1) * 64:
                raise ValueError("a sparse tensor has far fewer values than places")
            columns = [np.repeat(c, size) for c in columns]
            columns.append(np.tile(np.arange(size), nodes))
            nodes *= size
            continue
        starts, indices = segments(level)
        lengths = np.diff(starts)
        if len(lengths) != nodes or (lengths < 0).any() or len(indices) < starts[-1]:
            raise ValueError("the segments of a sparse tensor do not fit together")
        columns = [np.repeat(c, lengths) for c in columns]
        columns.append(indices[: int(starts[-1])])
        nodes = int(starts[-1])
    if nodes != count:
        raise ValueError("a sparse tensor has another number of values than its indices")
    return columns
