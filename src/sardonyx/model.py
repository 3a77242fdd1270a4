"""Model: one ONNX model in memory, as the file has it; `load` reads it, `save` writes it.

A Model is the graph (`onnx_ir`), plus its training records, which onnx_ir and most tools drop. It
keeps the file's opset, functions and names. The regular form that the rules need is made by
`normalize`, on a copy that shares the weights.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx.numpy_helper
import onnx_ir as ir

from sardonyx import column_inputs, frames, opset, partial
from sardonyx.collector import paused
from sardonyx.errors import ArgumentError, ModelError, quote, translated
from sardonyx.external import ExternalData
from sardonyx.html_page import table, text
from sardonyx.limits import Limits, parse, read_file, scan, set_as_loaded, set_freed, set_limits
from sardonyx.limits.wellformed import index_problem

STUB = "sardonyx:payload"
MAP_TYPE = "sardonyx.map_type"
SPARSE = "sardonyx.sparse"  # the names of initializers that were sparse in the file
EARLY_READS = "sardonyx.early_reads"  # (node, value) in the file: read before it is computed
INLINE_BYTES = 256
INLINE_INTEGER_BYTES = 8 * 1024


class Record:
    """One training record: what a TrainingInfoProto holds, as graphs.

    algorithm            one step. A partial graph (`partial.py`): a value that it reads and nothing
                         in it defines is the tensor of that name in `state` or the model's graph;
                         `info.combine` connects them
    state                the initializers of `algorithm`: optimizer slots, counters, constants
    initialization       a graph without inputs that computes starting values
    update_binding       (state name, output name) pairs, assigned after a step
    initialization_binding   (state name, output of `initialization`) pairs

    Copies share the graphs, which hold no state: to change a graph, replace it by a changed
    `partial.clone`. The graphs of a file are read when they are needed first.
    """

    def __init__(
        self,
        algorithm: ir.Graph | _StoredGraph,
        state: dict[str, ir.TensorProtocol] | None = None,
        initialization: ir.Graph | _StoredGraph | None = None,
        update_binding: Iterable[tuple[str, str]] = (),
        initialization_binding: Iterable[tuple[str, str]] = (),
    ):
        self._algorithm = algorithm
        self._initialization = (
            ir.Graph([], [], nodes=[]) if initialization is None else initialization
        )
        self.state = {} if state is None else state
        self.update_binding = list(update_binding)
        self.initialization_binding = list(initialization_binding)

    @property
    def algorithm(self) -> ir.Graph:
        return _read(self._algorithm)

    @algorithm.setter
    def algorithm(self, graph: ir.Graph) -> None:
        self._algorithm = graph

    @property
    def initialization(self) -> ir.Graph:
        return _read(self._initialization)

    @initialization.setter
    def initialization(self, graph: ir.Graph) -> None:
        self._initialization = graph

    @property
    def graphs(self) -> tuple[ir.Graph, ir.Graph]:
        return self.algorithm, self.initialization

    def copy(self) -> Record:
        """The same graphs, state and bindings of its own."""
        return Record(
            self._algorithm,
            dict(self.state),
            self._initialization,
            self.update_binding,
            self.initialization_binding,
        )


@dataclass
class _StoredGraph:
    """The graph of a record as a checked message, until something needs the graph itself.

    located   -- the external tensors of the file, by their place
    maps      -- the map types that were taken out of the message, by the name of the value
    sparse    -- the names of the initializers that were sparse
    algorithm -- whether the initializers are state of the record, and not part of the graph
    """

    proto: onnx.GraphProto | None
    located: dict[str, ir.TensorProtocol]
    maps: dict[str, bytes]
    sparse: set[str]
    algorithm: bool
    graph: ir.Graph | None = None


_reading = threading.Lock()


def _read(graph: ir.Graph | _StoredGraph) -> ir.Graph:
    if not isinstance(graph, _StoredGraph):
        return graph
    with _reading:
        if graph.graph is None:
            assert graph.proto is not None
            with paused(), translated("the training record cannot be read"):
                graph.graph = _partial_graph(graph.proto, graph)
            graph.proto = None
        return graph.graph


class Model:
    """A loaded ONNX model: `model.ir` is the graph, `model.records` its training."""

    def __init__(
        self, ir_model: ir.Model, records: Iterable[Record] = (), source: Path | None = None
    ):
        self.ir = ir_model
        self.records = list(records)
        self.source = source

    @property
    def graph(self) -> ir.Graph:
        return self.ir.graph

    @property
    def opset(self) -> int:
        """The version of the standard operators that the model imports (0: none)."""
        imports = self.ir.opset_imports
        return imports.get("", imports.get("ai.onnx", 0))

    @property
    def inputs(self) -> list[ir.Value]:
        """The inputs that a caller must feed: those without an initializer."""
        return [v for v in self.graph.inputs if v.name not in self.graph.initializers]

    @property
    def outputs(self) -> list[ir.Value]:
        return list(self.graph.outputs)

    @property
    def metadata(self) -> dict[str, str]:
        return self.ir.metadata_props

    def initializer(self, name: str) -> ir.TensorProtocol:
        """The tensor of the initializer `name`."""
        value = self.graph.initializers.get(name)
        if value is None or value.const_value is None:
            raise ArgumentError(f"the model has no initializer {quote(name)}")
        return value.const_value

    def feeds(self, frame: Any) -> dict[str, np.ndarray]:
        """The inputs for the rows of a pandas frame.

        By the schema that a model from pandas stores, or, where each input is one column (models
        from PMML, and from estimators that were given a frame), by the names of the inputs.
        """
        if frames.KEY not in self.metadata and column_inputs.are_columns(self.inputs):
            return column_inputs.feeds(self.inputs, self.metadata, frame)
        return frames.feeds(frames.schema(self.metadata), frame)

    def frame(self, outputs: Any) -> Any:
        """The pandas frame that outputs (by name, or in order) stand for, by the same schema."""
        return frames.frame(frames.schema(self.metadata), outputs)

    def copy(self) -> Model:
        """An independent graph over the same weights."""
        try:
            graph = self.ir.clone()
        except (RuntimeError, ValueError, KeyError) as error:  # onnx_ir on a damaged graph
            raise ModelError(
                f"the model cannot be copied: {error}", hint="sx.check lists what is wrong with it"
            ) from error
        return Model(graph, [r.copy() for r in self.records], self.source)

    @property
    def model(self) -> onnx.ModelProto:
        """`proto()`, under the name that tools expect beside `feeds(frame)`."""
        return self.proto()

    def proto(self) -> onnx.ModelProto:
        """The whole model as one ModelProto, training records included."""
        proto = self._serialized()
        for record in self.records:
            _serialize_record(proto.training_info.add(), record)
        return proto

    def skeleton(self, attributes: bool = False) -> onnx.ModelProto:
        """The model without the payload of its larger initializers (types and shapes stay).

        attributes -- leave out the payload of larger tensors in attributes as well
        """
        values, nodes = [], []
        for graph in (self.graph, *self.graph.subgraphs()):
            for value in graph.initializers.values():
                tensor = value.const_value
                if tensor is not None and _is_large(tensor):
                    values.append((value, tensor))
            for node in graph if attributes else ():
                for attr in node.attributes.values():
                    if _is_tensor(attr) and _is_large(attr.value):
                        nodes.append((node, attr))
        try:
            for value, tensor in values:
                value.const_value = _stub(tensor, value.name)
            for node, attr in nodes:
                node.attributes.add(ir.AttrTensor(attr.name, _stub(attr.value, attr.value.name)))
            return self._serialized()
        finally:
            for value, tensor in values:
                value.const_value = tensor
            for node, attr in nodes:
                node.attributes.add(attr)

    def graphs(self) -> Iterator[ir.Graph]:
        """Every graph of the model: those of functions and records, and the bodies in all."""
        functions = (function.graph for function in self.ir.functions.values())
        for graph in (self.graph, *functions, *(g for r in self.records for g in r.graphs)):
            with translated("the bodies of nodes cannot be read"):
                parts = (graph, *graph.subgraphs())
            yield from parts

    def _serialized(self) -> onnx.ModelProto:
        """The graph as a message, map types put back: ONNX's inference crashes without them."""
        proto = ir.serde.serialize_model(self.ir)
        _restore_maps(proto.graph, self.graph)
        return proto

    def __repr__(self) -> str:
        name = quote(self.graph.name or "")
        counts = f"{len(self.graph)} nodes, opset {self.opset}, {len(self.records)} records"
        return f"<Model {name}: {counts}>"

    def _repr_html_(self) -> str:
        rows = [
            [kind, value.name or "", str(value.dtype or ""), str(value.shape or "")]
            for kind, values in (("input", self.inputs), ("output", self.outputs))
            for value in values
        ]
        return f"<p>{text(repr(self))}</p>" + table(["", "name", "type", "shape"], rows)


def _is_large(tensor: ir.TensorProtocol) -> bool:
    """Whether a tensor is too large to hold a shape, so that shape inference needs no values."""
    if tensor.dtype == ir.DataType.STRING:
        return False
    return tensor.nbytes > (INLINE_INTEGER_BYTES if tensor.dtype.is_integer() else INLINE_BYTES)


def _is_tensor(attr: ir.Attr) -> bool:
    return attr.type == ir.AttributeType.TENSOR and not attr.is_ref()


def _stub(tensor: ir.TensorProtocol, name: str | None) -> ir.ExternalTensor:
    shape = ir.Shape(tensor.shape.numpy())
    return ir.ExternalTensor(STUB, 0, tensor.nbytes, tensor.dtype, shape=shape, name=name or "")


# What every public function accepts as a model.
ModelSource: TypeAlias = "Model | str | Path | bytes | onnx.ModelProto"


# -- loading ----------------------------------------------------------------------


def load(
    source: ModelSource,
    *,
    directory: str | Path | None = None,
    trust: str | None = None,
    limits: Limits | None = None,
) -> Model:
    """Load an ONNX model: any opset, functions, external data, training records.

    source     -- a path, the bytes of a file, a ModelProto, or a Model (returned as it is)
    directory  -- where external data lies, when `source` is not a path
    trust      -- "local" accepts links and hard links out of the model's folder
    limits     -- the resource limits for untrusted files

    >>> import sardonyx as sx
    >>> sx.load(b"not a model")
    Traceback (most recent call last):
    ...
    sardonyx.errors.ModelError: ...
    """
    if isinstance(source, Model):
        return source
    limits = limits or Limits()
    path = None
    if isinstance(source, (str, Path)):
        path = Path(source)
        proto = parse(read_file(path, limits), limits, path.name)
        directory = path.parent
    elif isinstance(source, (bytes, bytearray, memoryview)):
        proto = parse(bytes(source), limits)
    elif isinstance(source, onnx.ModelProto):
        proto = onnx.ModelProto()
        proto.CopyFrom(source)
    else:
        raise ArgumentError(f"cannot load a model from {type(source).__name__}")
    with paused(), translated("the model cannot be read"):
        counts = scan(proto, limits)
        folder = Path(directory) if directory is not None else None
        external = ExternalData(folder, path, trust, limits)
        external.check_all(proto)
        model = from_proto(proto, external, path)
        set_limits(model.graph, limits)
        set_freed(model.graph, counts.freed)
        set_as_loaded(model.graph, True)
        return model


def from_proto(
    proto: onnx.ModelProto, external: ExternalData | None = None, source: Path | None = None
) -> Model:
    """The Model of a checked ModelProto; the message is consumed."""
    sparse = [{s.values.name for s in g.sparse_initializer} for g in _record_graphs(proto)]
    _densify(proto, external)
    located = _external_tensors(proto, external)
    maps = _take_maps(proto)
    stored = [
        _StoredGraph(graph, located, maps, names, algorithm=index % 2 == 0)
        for index, (graph, names) in enumerate(zip(_record_graphs(proto), sparse, strict=True))
    ]
    parts = zip(proto.training_info, stored[::2], stored[1::2], strict=True)
    records = [_record(info, *graphs) for info, *graphs in parts]
    model = Model(ir.serde.deserialize_model(proto), records, source)
    _mark_maps(model.graph, maps)
    for graph in (model.graph, *(f.graph for f in model.ir.functions.values())):
        _attach(graph, located)
        if any(_early_reads(graph)):
            graph.sort()
    return model


def _record_graphs(proto: onnx.ModelProto) -> list[onnx.GraphProto]:
    return [g for info in proto.training_info for g in (info.algorithm, info.initialization)]


def _record(
    info: onnx.TrainingInfoProto, algorithm: _StoredGraph, initialization: _StoredGraph
) -> Record:
    tensors = (ir.serde.deserialize_tensor(t) for t in info.algorithm.initializer if t.name)
    return Record(
        algorithm,
        {t.name or "": _located(t, algorithm.located) for t in tensors},
        initialization,
        [(e.key, e.value) for e in info.update_binding],
        [(e.key, e.value) for e in info.initialization_binding],
    )


def _partial_graph(proto: onnx.GraphProto, stored: _StoredGraph) -> ir.Graph:
    """A graph whose undefined names are free values: inputs while it is read, then not any more."""
    defined = {v.name for v in (*proto.input, *proto.initializer)}
    defined.update(name for node in proto.node for name in node.output)
    declared = {info.name: info for info in proto.value_info}
    for name in dict.fromkeys(_names_read(proto)):
        if name and name not in defined:
            proto.input.append(declared.get(name, onnx.ValueInfoProto(name=name)))
    graph = ir.serde.deserialize_graph(proto)
    while len(graph.inputs) and graph.inputs[-1].name not in defined:
        graph.inputs.pop()
    _attach(graph, stored.located)
    graph.meta.update({SPARSE: stored.sparse, EARLY_READS: list(_early_reads(graph))})
    if graph.meta[EARLY_READS]:
        graph.sort()
    _mark_maps(graph, stored.maps)
    if stored.algorithm:
        _free_initializers(graph)
    return graph


def _free_initializers(graph: ir.Graph) -> None:
    """Make free values of the initializers of a partial graph, which are state of the record."""
    for value in graph.initializers.values():
        value.const_value = None
        if not value.is_graph_input():
            value.type = value.shape = None
    graph.initializers.clear()


def _names_read(graph: onnx.GraphProto) -> Iterator[str]:
    """The names that nodes and bodies of a graph read, and those of its outputs."""
    pending = [graph]
    while pending:
        current = pending.pop()
        yield from (o.name for o in current.output)
        for node in current.node:
            yield from node.input
            for attr in node.attribute:
                pending.extend([attr.g] if attr.HasField("g") else attr.graphs)


def record_proto(record: Record) -> onnx.TrainingInfoProto:
    """The record as the standard writes it."""
    info = onnx.TrainingInfoProto()
    _serialize_record(info, record)
    return info


def _serialize_record(info: onnx.TrainingInfoProto, record: Record) -> None:
    """Write the record into `info`, as the standard has it."""
    for proto, graph in (
        (info.algorithm, record.algorithm),
        (info.initialization, record.initialization),
    ):
        proto.SetInParent()
        ir.serde.serialize_graph_into(proto, graph)
        _restore_maps(proto, graph)
        # An initializer has its own type and shape; only a free value that has a type declares it.
        declared = [i for i in proto.value_info if i.name not in graph.initializers]
        free = [v for v in partial.free_values(graph) if v.type and not v.is_graph_output()]
        declared += [ir.serde.serialize_value(v) for v in free]
        del proto.value_info[:]
        proto.value_info.extend(declared)
    for name, tensor in record.state.items():
        added = info.algorithm.initializer.add()
        ir.serde.serialize_tensor_into(added, tensor)
        added.name = name
    for pairs, out in (
        (record.update_binding, info.update_binding),
        (record.initialization_binding, info.initialization_binding),
    ):
        for key, value in pairs:
            out.add(key=key, value=value)


def _tensor(proto: onnx.TensorProto, external: ExternalData | None) -> ir.TensorProtocol:
    if proto.data_location == onnx.TensorProto.EXTERNAL:
        return _mapped(proto, external)
    copy = onnx.TensorProto()
    copy.CopyFrom(proto)
    return ir.serde.deserialize_tensor(copy)


def _mapped(proto: onnx.TensorProto, external: ExternalData | None) -> ir.TensorProtocol:
    """External data as a tensor over the mapped file: nothing is read until it is used."""
    if external is None:
        raise ModelError(
            f"tensor {quote(proto.name)} has external data", hint="load it from a path"
        )
    data = external.array(proto, f"tensor {quote(proto.name)}")
    dtype, shape = ir.DataType(proto.data_type), ir.Shape(tuple(proto.dims))
    if dtype.bitwidth < 8:
        return ir.PackedTensor(np.asarray(data), dtype, shape=shape, name=proto.name)
    array = np.frombuffer(data, dtype.numpy()).reshape(tuple(proto.dims))
    return ir.Tensor(array, dtype, shape=shape, name=proto.name)


def _external_tensors(
    proto: onnx.ModelProto, external: ExternalData | None
) -> dict[str, ir.TensorProtocol]:
    """Map every external tensor, and mark its place in `proto` by a number."""
    from sardonyx.external import tensors

    located: dict[str, ir.TensorProtocol] = {}
    for tensor, _ in tensors(proto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            key = f"{STUB}:{len(located)}"
            located[key] = _mapped(tensor, external)
            tensor.ClearField("external_data")
            tensor.external_data.add(key="location", value=key)
    return located


def _attach(graph: ir.Graph, located: dict[str, ir.TensorProtocol]) -> None:
    """Put the mapped external tensors into a graph and its bodies."""
    for part in (graph, *graph.subgraphs()) if located else ():
        for value in part.initializers.values():
            if value.const_value is not None:
                value.const_value = _located(value.const_value, located)
        for node in part:
            for attr in list(node.attributes.values()):
                if _is_tensor(attr) and isinstance(attr.value, ir.ExternalTensor):
                    node.attributes.add(ir.AttrTensor(attr.name, _located(attr.value, located)))


def _located(tensor: ir.TensorProtocol, located: dict[str, ir.TensorProtocol]) -> ir.TensorProtocol:
    return located[str(tensor.location)] if isinstance(tensor, ir.ExternalTensor) else tensor


def _take_maps(proto: onnx.ModelProto) -> dict[str, bytes]:
    """Take map types out of the message; those of inputs and outputs come back when it is written.

    onnx_ir has no map type. Inside the graph the runtime infers it from the operator that makes it.
    """
    maps: dict[str, bytes] = {}
    pending = _graph_messages(proto)
    while pending:
        graph = pending.pop()
        infos = list(graph.value_info)
        if isinstance(graph, onnx.GraphProto):
            infos += [*graph.input, *graph.output]
        for info in infos:
            if opset.holds_map(info.type):
                maps[info.name] = info.type.SerializeToString()
                info.ClearField("type")
        for node in graph.node:
            for attr in node.attribute:
                pending.extend([attr.g] if attr.HasField("g") else attr.graphs)
    return maps


def _mark_maps(graph: ir.Graph, maps: dict[str, bytes]) -> None:
    for value in (*graph.inputs, *graph.outputs) if maps else ():
        if value.name in maps:
            value.meta[MAP_TYPE] = maps[value.name]


def _restore_maps(proto: onnx.GraphProto, graph: ir.Graph) -> None:
    values = (*graph.inputs, *graph.outputs)
    for info, value in zip((*proto.input, *proto.output), values, strict=True):
        if MAP_TYPE in value.meta:
            info.type.ParseFromString(value.meta[MAP_TYPE])


def _graph_messages(proto: onnx.ModelProto) -> list[onnx.GraphProto | onnx.FunctionProto]:
    return [proto.graph, *proto.functions, *_record_graphs(proto)]


def _densify(proto: onnx.ModelProto, external: ExternalData | None) -> None:
    """Sparse initializers and constants become dense: onnx_ir would drop or refuse them."""
    pending = _graph_messages(proto)
    while pending:
        graph = pending.pop()
        if isinstance(graph, onnx.GraphProto):
            for sparse in graph.sparse_initializer:
                graph.initializer.append(_dense(sparse, external))
            graph.ClearField("sparse_initializer")
        for node in graph.node:
            for attr in node.attribute:
                pending.extend([attr.g] if attr.HasField("g") else attr.graphs)
                if attr.type == onnx.AttributeProto.SPARSE_TENSOR and node.op_type == "Constant":
                    dense = _dense(attr.sparse_tensor, external)
                    attr.Clear()
                    attr.name, attr.type = "value", onnx.AttributeProto.TENSOR
                    attr.t.CopyFrom(dense)


def _dense(sparse: onnx.SparseTensorProto, external: ExternalData | None) -> onnx.TensorProto:
    values = _tensor(sparse.values, external).numpy()
    indices = _tensor(sparse.indices, external).numpy()
    dims = tuple(sparse.dims)
    bound = dims if indices.ndim > 1 else (math.prod(dims),)
    problem = index_problem(indices.reshape(len(values), len(bound)), bound)
    if problem:
        raise ModelError(f"sparse tensor {quote(sparse.values.name)} {problem}")
    dense = np.zeros(math.prod(dims), values.dtype)
    dense[indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), dims)] = values
    tensor = ir.Tensor(dense.reshape(dims), ir.DataType(sparse.values.data_type))
    proto = ir.serde.serialize_tensor(tensor)
    proto.name = sparse.values.name
    return proto


def _early_reads(graph: ir.Graph) -> Iterator[tuple[str, str]]:
    """Where a node reads what a later node computes: (node, value), by name."""
    passed: set[ir.Node] = set()
    for node in graph:
        for value in _uses(node) if node.attributes.data else node.inputs:
            producer = value.producer() if value is not None else None
            if value is None or producer is None or producer in passed:
                continue
            if producer.graph is graph:
                yield node.name or "", value.name or ""
        passed.add(node)


def _uses(node: ir.Node) -> Iterator[ir.Value]:
    """The values that a node reads, also inside its bodies."""
    stack: list[Any] = [node]
    while stack:
        current = stack.pop()
        yield from (v for v in current.inputs if v is not None)
        for attr in current.attributes.values():
            if attr.is_ref():
                continue
            if attr.type == ir.AttributeType.GRAPH:
                stack.extend(attr.value)
                yield from attr.value.outputs
            elif attr.type == ir.AttributeType.GRAPHS:
                for body in attr.value:
                    stack.extend(body)
                    yield from body.outputs
