"""State that a step writes over: one buffer where there would be two.

An update may be written into the buffer of the variable that it replaces if every node that reads
the old value comes first. The data must enforce that order: where it does not, the update is made
to wait for the reader. NOTE [waiting]: a tensor passes through a Reshape to its own shape, and that
shape is joined with empty vectors, `Shape` of nothing, one per tensor to wait for. Nothing is
copied: onnxruntime's Reshape shares its input's memory.

A step that goes wrong is run again for diagnosis, on the state before it. So every update also
waits for the metrics, and if one of them is not finite the run stops before anything was written:
the empty vector is then taken from a row that does not exist (`GUARD`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.build import is_static, static
from sardonyx.engines.onnxruntime.blocks import is_block_update
from sardonyx.engines.onnxruntime.kernels.program import is_fused
from sardonyx.engines.onnxruntime.schedule import VIEWS, Dependencies
from sardonyx.passes.nesting import bodies

LARGE = 1 << 14  # elements
METRIC_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
GUARD = "sardonyx/metrics_are_finite"
# Operators that read and write element by element: their output may lie over an input.
ELEMENTWISE = ("Add", "Sub", "Mul", "Div", "Where")


def write_in_place(graph: ir.Graph, updates: Mapping[str, str], metrics: Sequence[str]) -> set[str]:
    """Make the updates of large variables wait for all readers; the variables that may be written.

    updates -- variable, an input of the graph → the output that becomes its new value
    """
    inputs = {v.name: v for v in graph.inputs}
    outputs = {v.name: v for v in graph.outputs}
    data = Dependencies(graph)
    ties: dict[str, tuple[ir.Value, ir.Node, list[ir.Node]]] = {}
    for name, output in updates.items():
        value, writer = inputs.get(name), outputs[output].producer()
        if value is None or writer is None or not _is_large(value):
            continue
        readers = _readers(value, graph)
        if readers is None or not _may_write(writer, value, readers, data):
            continue
        late = [r for r in readers if r is not writer and not data.precedes(r, writer)]
        for reader in late:
            data.put_before(reader, writer)
        ties[name] = value, writer, late
    if ties:
        metric_values = [outputs[f] for f in metrics if f in outputs]
        writers = [writer for _, writer, _ in ties.values()]
        _Waiting(graph, [f for f in metric_values if _is_before(f, writers, data)]).tie(
            ties.values()
        )
    return set(ties)


def _is_before(metric: ir.Value, writers: Sequence[ir.Node], data: Dependencies) -> bool:
    """Whether a metric is a number that no update leads to."""
    maker = metric.producer()
    if maker is None or metric.dtype not in METRIC_TYPES:
        return False
    return not any(maker is writer or data.precedes(writer, maker) for writer in writers)


def _is_large(value: ir.Value) -> bool:
    return is_static(value) and math.prod(static(value)) >= LARGE


def _may_write(
    writer: ir.Node, value: ir.Value, readers: Sequence[ir.Node], data: Dependencies
) -> bool:
    """Whether the writer can come last: no reader needs the new value; it reads as it writes."""
    if is_block_update(writer) or is_fused(writer):
        readers = [r for r in readers if r is not writer]
    elif writer in readers and (writer.op_type not in ELEMENTWISE or value not in writer.inputs):
        return False
    if _tied_input(writer, value) is None or any(bodies(r) for r in readers):
        return False
    if not all(isinstance(_first(r).type, ir.TensorType) for r in readers):
        return False
    return not any(data.precedes(writer, r) for r in readers if r is not writer)


def _readers(value: ir.Value, graph: ir.Graph) -> list[ir.Node] | None:
    """Every node that reads the memory of a value, or a view of it; None if an output shows it."""
    if value.is_graph_output():
        return None
    readers: dict[ir.Node, None] = {}
    for node in value.consumers():
        if node.graph is not graph:
            return None
        readers[node] = None
        if node.op_type in VIEWS:
            behind = _readers(node.outputs[0], graph)
            if behind is None:
                return None
            readers.update(dict.fromkeys(behind))
    return list(readers)


def _first(node: ir.Node) -> ir.Value:
    return next(v for v in node.outputs if v.name)


def _tied_input(writer: ir.Node, value: ir.Value) -> int | None:
    """The input of a writer that can be made to wait: the variable, or the first computed one."""
    if value in writer.inputs:
        return list(writer.inputs).index(value)
    for i, read in enumerate(writer.inputs):
        if read is not None and read.producer() is not None and is_static(read):
            return i
    return None


class _Waiting:
    """Writes the nodes of NOTE [waiting] into a graph."""

    def __init__(self, graph: ir.Graph, metrics: Sequence[ir.Value]):
        self.graph = graph
        self.count = 0
        self.shapes: dict[tuple[int, ...], ir.Value] = {}
        self.joined: dict[tuple[int, ...], ir.Value] = {}
        self.always = self._guard(metrics)

    def tie(self, ties: Iterable[tuple[ir.Value, ir.Node, list[ir.Node]]]) -> None:
        for value, writer, late in ties:
            index = _tied_input(writer, value)
            assert index is not None
            tied = writer.inputs[index]
            assert tied is not None
            shape = self._shape(static(tied), [self._empty(r) for r in late])
            if shape is not None:
                writer.replace_input_with(index, self._node("Reshape", [tied, shape], like=tied))

    def _shape(self, sizes: tuple[int, ...], waited: list[ir.Value]) -> ir.Value | None:
        """A shape that is known only when all that is waited for has been computed."""
        empty = [*self.always, *waited]
        if not empty:
            return None
        if not waited and sizes in self.joined:
            return self.joined[sizes]
        if sizes not in self.shapes:
            self.shapes[sizes] = self._constant(np.array(sizes, np.int64))
        shape = self._node("Concat", [self.shapes[sizes], *empty], axis=0)
        if not waited:
            self.joined[sizes] = shape
        return shape

    def _empty(self, reader: ir.Node) -> ir.Value:
        """An empty vector that is there as soon as `reader` has run."""
        return self._node("Shape", [_first(reader)], start=0, end=0)

    def _guard(self, metrics: Sequence[ir.Value]) -> list[ir.Value]:
        """An empty vector that exists if the metrics are finite; else the run fails."""
        if not metrics:
            return []
        # zero times a metric is zero, or not a number
        zero = [self._single(self._node("Mul", [f, self._zero(f)])) for f in metrics]
        flat = [self._node("Reshape", [z, self._constant(np.array([-1]))]) for z in zero]
        joined = self._node("Concat", flat, axis=0) if len(flat) > 1 else flat[0]
        total = self._node("ReduceSum", [joined], keepdims=0)
        row = self._node("Cast", [self._node("IsNaN", [total])], to=int(ir.DataType.INT64))
        return [self._node("Gather", [self._constant(np.zeros((1, 0), np.int64)), row], GUARD)]

    def _zero(self, like: ir.Value) -> ir.Value:
        assert like.dtype is not None
        return self._constant(np.zeros((), like.dtype.numpy()))

    def _single(self, value: ir.Value) -> ir.Value:
        return self._node("Cast", [value], to=int(ir.DataType.FLOAT))

    def _node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value],
        name: str | None = None,
        like: ir.Value | None = None,
        **attributes: int,
    ) -> ir.Value:
        self.count += 1
        node = ir.node(op_type, inputs, attributes, name=name or f"sardonyx/wait_{self.count}")
        (out,) = node.outputs
        out.name = f"sardonyx/waited_{self.count}"
        if like is not None:
            out.type, out.shape = like.type, like.shape
        self.graph.append(node)
        return out

    def _constant(self, array: np.ndarray) -> ir.Value:
        self.count += 1
        tensor = ir.tensor(array, name=f"sardonyx/constant_{self.count}")
        value = ir.Value(name=tensor.name, const_value=tensor)
        value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(array.shape)
        self.graph.register_initializer(value)
        return value
