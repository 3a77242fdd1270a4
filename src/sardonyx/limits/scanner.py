"""The single pass over an untrusted model: budgets, and the soundness of each message.

A `Scanner` visits every graph, function and training graph from a queue, never by recursion, and
collects problems; it raises nothing. `limits.scan` is the entry point. Single tensors and
attributes are checked in `wellformed.py`, names in `names.py`, inlined sizes in `callgraph.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import onnx
from google.protobuf.message import Message  # type: ignore[import-untyped]
from onnx import AttributeProto, TensorProto

from sardonyx.errors import quote

from .callgraph import ENDLESS, Body, Call, Costs
from .names import Scope
from .wellformed import (
    Problems,
    amount,
    attribute_problem,
    byte_count,
    data_lengths,
    element_problem,
    inside,
    node_label,
    shape_problem,
    sparse_problem,
    tensor_problem,
    type_levels,
)

if TYPE_CHECKING:
    from . import Limits

Label = Callable[[], str]
# Names that exporters write for sizes that they do not know: two of them need not be equal.
NO_NAME = frozenset(("?", "*", "-1", "None", "unknown"))
UNLIMITED_EXPANSION = 4096  # nodes up to which functions may be called as often as they like


@dataclass(frozen=True)
class Counts:
    """The result of a scan: sizes after inlining, and what was repaired.

    repaired_texts -- how many texts were not valid UTF-8
    freed          -- values with a dimension that is negative or a placeholder
    """

    nodes: int
    inlined_bytes: int
    call_depth: int
    subgraph_depth: int
    name_bytes: int
    repaired_texts: int
    freed: tuple[str, ...] = ()


class Scanner:
    """Each method looks at one kind of message; `problems` and `over` collect what is wrong."""

    def __init__(self, proto: onnx.ModelProto, limits: Limits):
        self.proto = proto
        self.limits = limits
        self.problems = Problems()
        self.over = Problems()
        self.exceeded: dict[str, None] = {}
        self.scopes: list[Scope] = []
        self._functions: dict[Hashable, Body] = {}
        self._roots: list[Body] = []
        self._queue: deque[tuple[Scope, Any]] = deque()
        self._name_bytes = 0
        self._dense_bytes = 0
        self._repaired = 0
        self._nodes = 0
        self._freed: dict[str, None] = {}

    def walk(self) -> None:
        """Visit every message of the model."""
        proto = self.proto
        self._read(proto)
        self._entries(proto.metadata_props, "the model")
        self._opsets(proto, "the model")
        for function in proto.functions:
            self._enter_function(function)
        self._enter_root(proto.graph, "", in_training=False)
        for index, record in enumerate(proto.training_info):
            label = f"training record {index}"
            for part in ("initialization", "algorithm"):
                if record.HasField(part):
                    graph = getattr(record, part)
                    self._enter_root(graph, f"{label}, {part}", in_training=True)
            self._entries(record.initialization_binding, label, values_are_names=True)
            self._entries(record.update_binding, label, values_are_names=True)
        while self._queue:
            scope, graph = self._queue.popleft()
            self._graph(scope, graph)
        self._exceed("total_name_bytes", self._name_bytes, "all names of the model")
        self._exceed("dense_bytes", self._dense_bytes, "all sparse tensors of the model")

    def inlined(self) -> Counts:
        """Check and return the sizes that the model has after inlining, once it was walked."""
        costs = Costs(self._functions, self._roots)
        for cycle in costs.recursive:
            description = " → ".join(body.label for body in [*cycle[:4], cycle[0]])
            self.problems.add(cycle[0].label, f"calls itself: {description}")
        nodes = sum(b.nodes for b in self._roots)
        size = sum(b.bytes for b in self._roots)
        calls = max(b.call_depth for b in self._roots)
        depth = max(b.depth for b in self._roots)
        self._exceed("subgraph_depth", depth, "the deepest graph inside nodes")
        self._exceed("nodes", nodes, "the model, its functions inlined")
        if self._functions:
            self._exceed("call_depth", calls, "the deepest call of functions")
            self._exceed("inlined_bytes", size, "the model, its functions inlined")
        if nodes > UNLIMITED_EXPANSION:
            growth = -(-nodes // max(self._nodes, 1))
            self._exceed("expansion", growth, "nodes after inlining for each node in the file")
        freed = tuple(self._freed)
        return Counts(nodes, size, calls, depth, self._name_bytes, self._repaired, freed)

    def _exceed(self, field: str, value: int, where: str) -> None:
        limit = getattr(self.limits, field)
        if value > limit:
            text = "without end" if value >= ENDLESS else amount(value)
            self.over.add(where, f"{field} is {text}", f"limit {amount(limit)}")
            self.exceeded[field] = None

    # Scopes: graphs, functions and training graphs wait in a queue.

    def _enter_root(self, graph: onnx.GraphProto, label: str, in_training: bool) -> None:
        body = Body(label)
        self._roots.append(body)
        self._enter(Scope(None, label, -1, body, in_training=in_training), graph)

    def _enter_function(self, function: onnx.FunctionProto) -> None:
        self._read(function)
        label = f"function {quote(function.name)}"
        key = (_domain(function.domain), function.name, function.overload)
        if key in self._functions:
            self.problems.add(label, "is defined twice")
        self._functions[key] = body = Body(label)
        self._enter(Scope(None, label, -1, body, in_function=True), function)

    def _enter(self, scope: Scope, graph: Any) -> None:
        scope.body.depth = max(scope.body.depth, scope.depth)
        self.scopes.append(scope)
        self._queue.append((scope, graph))

    def _graph(self, scope: Scope, graph: Any) -> None:
        label = scope.label
        self._read(graph)
        self._names([graph.name], lambda: label or "graph")
        if isinstance(graph, onnx.FunctionProto):
            self._function_signature(scope, graph)
        else:
            self._graph_signature(scope, graph)
        for value in graph.value_info:
            self._value(value, label)
        self._entries(graph.metadata_props, label)
        for index, node in enumerate(graph.node):
            self._node(scope, index, node)

    def _graph_signature(self, scope: Scope, graph: onnx.GraphProto) -> None:
        label, problems = scope.label, self.problems
        for value in graph.input:
            self._value(value, label)
            scope.declare_input(value.name, problems)
        for tensor in graph.initializer:
            where = partial(_initializer_label, label, tensor)
            self._tensor(tensor, where)
            scope.declare_initializer(tensor.name, problems)
        for sparse in graph.sparse_initializer:
            named = f"sparse initializer {quote(sparse.values.name)}"
            self._sparse(sparse, inside(label, named))
            scope.declare_initializer(sparse.values.name, problems)
        for value in graph.output:
            self._value(value, label)
            scope.outputs.append(value.name)
        for annotation in graph.quantization_annotation:
            self._names([self._read(annotation).get("tensor_name", "")], lambda: label or "graph")
            entries = annotation.quant_parameter_tensor_names
            self._entries(entries, label, values_are_names=True)

    def _function_signature(self, scope: Scope, function: onnx.FunctionProto) -> None:
        self._opsets(function, scope.label)
        inputs, outputs = self._strings(function, "input"), self._strings(function, "output")
        attributes = self._strings(function, "attribute")
        identity = (function.domain, function.overload)
        self._names([*identity, *inputs, *outputs, *attributes], lambda: scope.label)
        for name in inputs:
            scope.declare_input(name, self.problems)
        scope.outputs.extend(outputs)
        # Default graphs are passed by the function to itself, wherever its body refers to them.
        defaults = Call(None, 0)
        self._attributes(scope, -1, function.attribute_proto, scope.label, defaults)
        scope.body.defaults.update(defaults.graphs)

    # Nodes and attributes

    def _node(self, scope: Scope, index: int, node: onnx.NodeProto) -> None:
        self._nodes += 1
        name, op_type, inputs, outputs = node.name, node.op_type, node.input[:], node.output[:]
        domain, overload = node.domain, node.overload

        def label() -> str:
            return inside(scope.label, node_label(name, op_type, index))

        try:
            size = self._names([name, op_type, domain, overload, *inputs, *outputs], label)
        except TypeError:
            self._repair(node)
            self._node(scope, index, node)
            return
        if not op_type:
            self.problems.add(label(), "has no operator")
        scope.add_node(name, op_type, inputs, outputs, self.problems)
        if len(inputs) > self.limits.node_inputs:
            self._exceed("node_inputs", len(inputs), label())
        if len(outputs) > self.limits.node_outputs:
            self._exceed("node_outputs", len(outputs), label())
        key = (_domain(domain), op_type, overload)
        call = Call(key, scope.depth) if key in self._functions else None
        if call:
            scope.body.calls.append(call)
        else:
            scope.body.nodes += 1
        if node.attribute:
            size += self._attributes(scope, index, node.attribute, label(), call)
        if not isinstance(node.doc_string, str):
            self._repair(node)
        if node.metadata_props:
            self._entries(node.metadata_props, scope.label)
        scope.body.bytes += size

    def _attributes(
        self, scope: Scope, index: int, attributes: Any, label: str, call: Call | None
    ) -> int:
        """Check the attributes of node `index`, enter their graphs; return their bytes."""
        if len(attributes) > self.limits.node_attributes:
            self._exceed("node_attributes", len(attributes), label)
            return 0  # refused whatever they hold
        size, names = 0, set()
        for attribute in attributes:
            fields = self._read(attribute)
            name = fields.get("name", "")
            where = f"{label}, {quote(name)}"
            size += self._names([name, fields.get("ref_attr_name", "")], partial(str, where))
            problem = attribute_problem(fields, scope.in_function)
            if problem is None and name in names:
                problem = "is given twice"
            names.add(name)
            if problem:
                self.problems.add(where, problem)
            elif fields.get("ref_attr_name"):
                _refer(scope, fields, call)
            else:
                size += self._content(fields, where)
                graphs = [fields["g"]] if "g" in fields else fields.get("graphs", ())
                self._enter_attribute_graphs(scope, index, name, graphs, where, call)
        return size

    def _enter_attribute_graphs(
        self, scope: Scope, index: int, name: str, graphs: Any, where: str, call: Call | None
    ) -> None:
        if not graphs:
            return
        body, depth = scope.body, scope.depth + 1
        if call is not None:
            call.graphs[name] = body = Body(where)
            depth = 0
        for graph in graphs:
            child = Scope(scope, where, index, body, depth, scope.in_function, scope.in_training)
            self._enter(child, graph)

    def _content(self, fields: dict[str, Any], where: str) -> int:
        """Check the tensors and types of an attribute's value; return the value's bytes."""
        size = len(fields.get("s", b"")) + 4 * len(fields.get("floats", ()))
        size += 8 * len(fields.get("ints", ())) + sum(map(len, fields.get("strings", ())))
        for tensor in [fields["t"]] if "t" in fields else fields.get("tensors", ()):
            size += self._tensor(tensor, lambda: where)
        sparse = [fields["sparse_tensor"]] if "sparse_tensor" in fields else ()
        for tensor in sparse or fields.get("sparse_tensors", ()):
            size += self._sparse(tensor, where)
        for declared in [fields["tp"]] if "tp" in fields else fields.get("type_protos", ()):
            self._type(declared, where)
        return size

    # Tensors, types and texts

    def _tensor(self, tensor: TensorProto, label: Label) -> int:
        """Check a tensor; return the bytes of its data in the file."""
        fields = self._read(tensor)
        self._names([fields.get("name", "")], label)
        if "metadata_props" in fields:
            self._entries(tensor.metadata_props, label())
        data = data_lengths(fields)
        del fields  # it holds a copy of the data
        if len(tensor.dims) > self.limits.tensor_rank:
            self._exceed("tensor_rank", len(tensor.dims), label())
            return 0
        problem = tensor_problem(tensor, data)
        if problem:
            self.problems.add(label(), problem)
        return 8 * sum(data.values())

    def _sparse(self, sparse: onnx.SparseTensorProto, where: str) -> int:
        before = self.problems.count + self.over.count
        size = self._tensor(sparse.values, lambda: f"{where}, values")
        size += self._tensor(sparse.indices, lambda: f"{where}, indices")
        if len(sparse.dims) > self.limits.tensor_rank:
            self._exceed("tensor_rank", len(sparse.dims), where)
        if self.problems.count + self.over.count > before:
            return size
        kind = sparse.values.data_type
        problem = shape_problem(kind, sparse.dims) or sparse_problem(sparse)
        if problem:
            self.problems.add(where, problem)
        elif kind != TensorProto.STRING:
            self._dense_bytes += byte_count(kind, sparse.dims)
        return size

    def _value(self, value: onnx.ValueInfoProto, label: str) -> None:
        fields = self._read(value)
        name = fields.get("name", "")

        def where() -> str:
            return inside(label, f"value {quote(name)}")

        self._names([name], where)
        if "metadata_props" in fields:
            self._entries(value.metadata_props, where())
        if "type" in fields:
            self._type(fields["type"], where)

    def _type(self, declared: onnx.TypeProto, where: str | Label) -> None:
        def label() -> str:
            return where if isinstance(where, str) else where()

        depth = -1
        for level in type_levels(declared):
            depth += 1
            fields = self._read(level)
            names = [fields.get("denotation", "")]
            tensor = fields.get("tensor_type") or fields.get("sparse_tensor_type")
            for dim in tensor.shape.dim if tensor else ():
                dim_fields = self._read(dim)
                if dim_fields.get("dim_value", 0) < 0 or dim_fields.get("dim_param") in NO_NAME:
                    dim.ClearField("dim_value")
                    dim.ClearField("dim_param")
                    self._freed[label()] = None
                names += (dim_fields.get("dim_param", ""), dim_fields.get("denotation", ""))
            if "opaque_type" in fields:
                self._read(level.opaque_type)
                names += (level.opaque_type.domain, level.opaque_type.name)
            self._names(names, label)
            problem = element_problem(level, depth > 0)
            if problem:
                self.problems.add(label(), problem)
        if depth > self.limits.type_depth:
            self._exceed("type_depth", depth, label())

    def _opsets(self, holder: Any, label: str) -> None:
        imports = holder.opset_import
        self._names([self._read(i).get("domain", "") for i in imports], lambda: label)
        if len(imports) > self.limits.opset_imports:
            self._exceed("opset_imports", len(imports), label)

    def _entries(self, entries: Any, label: str, values_are_names: bool = False) -> None:
        for entry in entries:
            fields = self._read(entry)
            names = [fields.get("key", "")]
            if values_are_names:
                names.append(fields.get("value", ""))
            self._names(names, lambda: label or "graph")

    def _names(self, names: Sequence[str], label: Label) -> int:
        """Count `names` against both limits; return their bytes."""
        text = "".join(names)
        size = len(text) if text.isascii() else len(text.encode())
        self._name_bytes += size
        if size > self.limits.name_bytes:
            for name in names:
                length = len(name.encode())
                if length > self.limits.name_bytes:
                    self._exceed("name_bytes", length, f"{label()}: {quote(name)}")
        return size

    def _read(self, message: Message) -> dict[str, Any]:
        """Return the fields present in `message`, its own texts made valid."""
        present = message.ListFields()
        # The data of a tensor is of bytes too, and a second look would copy it again.
        if any(type(v) is bytes and f.type == f.TYPE_STRING for f, v in present):
            self._repair(message)
            present = message.ListFields()
        return {f.name: v for f, v in present}

    def _strings(self, message: Message, field: str) -> list[str]:
        """Return the texts of a repeated field, made valid."""
        texts = getattr(message, field)[:]
        if bytes in map(type, texts):
            self._repair(message)
            return getattr(message, field)[:]
        return texts

    def _repair(self, message: Message) -> None:
        """Escape what is not UTF-8 in a message's own texts, which protobuf gives as bytes."""
        for field, value in message.ListFields():
            if field.type != field.TYPE_STRING:
                continue
            if type(value) is bytes:
                setattr(message, field.name, _escaped(value))
                self._repaired += 1
            elif type(value) is not str:
                for index, text in enumerate(value):
                    if type(text) is bytes:
                        value[index] = _escaped(text)
                        self._repaired += 1


def _escaped(text: bytes) -> str:
    return text.decode("utf-8", "backslashreplace")


def _initializer_label(label: str, tensor: TensorProto) -> str:
    return inside(label, f"initializer {quote(tensor.name)}")


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _refer(scope: Scope, fields: dict[str, Any], call: Call | None) -> None:
    """Record that a node refers to a graph attribute of the function around it."""
    if fields.get("type") not in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
        return
    outer = fields["ref_attr_name"]
    if call is None:
        scope.body.refer(outer, 1, scope.depth + 1, 0)
    else:
        call.references[fields["name"]] = outer
