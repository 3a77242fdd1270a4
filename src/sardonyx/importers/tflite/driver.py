"""The graph of a TensorFlow Lite file as ONNX nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.errors import ImportRefused, quote
from sardonyx.importers.assembly import assemble, graph_input
from sardonyx.importers.tflite import (  # noqa: F401  (rules)
    elementwise,
    indexing,
    nn,
    recurrent,
    shapes,
    spectral,
    windows,
)
from sardonyx.importers.tflite.reader import File, Graph, Operator, Signature, Tensor
from sardonyx.importers.tflite.rules import OWN_ACTIVATION, RULES, Node, Unsupported, reads_integers
from sardonyx.model import Model

UNNAMED = "tensor"
CALLS = {"CALL": "subgraph", "STABLEHLO_COMPOSITE": "decomposition_subgraph_index"}
CONTROL = ("IF", "WHILE", "STABLEHLO_CASE", *CALLS)
STATE = ("CALL_ONCE", "VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE")
DEPTH = 8  # graphs that call graphs, at most
# What a rule raises at a file that it does not understand.
DEFECTS = (KeyError, IndexError, TypeError, ValueError, AssertionError, AttributeError)


def imported(
    file: File, name: str = "model", signature: Signature | None = None
) -> tuple[Model, dict[str, Variable]]:
    """The graph of a signature as a model, its images still as the file has them, and its state.

    A variable that the file keeps between calls is an input of the model, by whose name the second
    result has it, and an output with its next value.
    """
    for graph in file.graphs:
        refuse_unknown(graph)
    signature = signature or Signature()
    driver = _Driver(file, file.graphs[signature.graph], Builder())
    model = driver.model(name, signature)
    return model, {v.value.name or "": v for v in driver.state.values()}


@dataclass
class Variable:
    """A variable of the file: its input, its first value, what was assigned to it last."""

    value: ir.Value
    start: np.ndarray
    output: str
    current: ir.Value


def refuse_unknown(graph: Graph) -> None:
    """Refuse every operator without a rule and every tensor of a type that ONNX lacks, at once."""
    rows: list[list[object]] = []
    missing: dict[str, list[int]] = {}
    for operator in graph.operators:
        if operator.name not in RULES and operator.name not in (*CONTROL, *STATE):
            missing.setdefault(operator.name, []).append(operator.index)
    rows += [[name, f"operators {_places(places)}"] for name, places in missing.items()]
    rows += [
        [t.kind, f"tensor {quote(t.name)}"]
        for t in graph.tensors
        if (t.dtype is None or (t.is_complex and not _is_internal(graph, t)))
        and any(t.index in (*o.inputs, *o.outputs) for o in graph.operators if o.name not in STATE)
    ]
    if rows:
        raise ImportRefused(
            "the file has operators or types that cannot be imported", rows,
            hint="operators of other libraries (CUSTOM) have no ONNX form",
        )  # fmt: skip


def _is_internal(graph: Graph, tensor: Tensor) -> bool:
    """Whether only operators that know complex numbers give and read a tensor."""
    users = [o for o in graph.operators if tensor.index in (*o.inputs, *o.outputs)]
    ends = (*graph.inputs, *graph.outputs)
    known = all(o.name in spectral.COMPLEX for o in users)
    return known and tensor.data is None and tensor.index not in ends


def _places(places: Iterable[int]) -> str:
    shown = list(places)
    return ", ".join(map(str, shown[:8])) + (" …" if len(shown) > 8 else "")


class _Driver:
    """One graph of a file, written with a builder."""

    def __init__(self, file: File, graph: Graph, op: Builder, depth: int = 0):
        self.file, self.graph, self.op, self.depth = file, graph, op, depth
        self.values: dict[int, ir.Value] = {}
        self.floats: dict[int, ir.Value] = {}
        self.problems: list[list[object]] = []
        self.handles: dict[int, str] = {}
        self.state: dict[str, Variable] = {}
        self.starts: dict[str, Tensor] = {}

    def model(self, name: str, signature: Signature) -> Model:
        graph = self.graph
        names = _unique(signature.names("inputs", graph.inputs), graph.tensors, graph.inputs)
        outputs = _unique(signature.names("outputs", graph.outputs), graph.tensors, graph.outputs)
        self.op.reserve({*names, *outputs})
        inputs = []
        for index, label in zip(graph.inputs, names):
            tensor = graph.tensors[index]
            shape = [d if d is not None else f"{label}_{a}" for a, d in enumerate(tensor.shape)]
            value = graph_input(label, _type(tensor.dtype), shape)
            self.values[index] = value
            inputs.append(value)
        self._operators()
        if self.problems:
            raise ImportRefused("the file has operators that cannot be imported", self.problems)
        results = {n: self._raw(graph.tensors[i]) for i, n in zip(graph.outputs, outputs)}
        results |= {v.output: v.current for v in self.state.values()}
        inputs += [v.value for v in self.state.values()]
        return assemble(self.op, inputs, results, name)

    def called(self, inputs: Sequence[ir.Value]) -> list[ir.Value]:
        """The results of the graph on values, of which quantized ones are integers."""
        self.values.update(zip(self.graph.inputs, inputs, strict=True))
        self._operators()
        return [self._raw(self.graph.tensors[i]) for i in self.graph.outputs]

    def _operators(self) -> None:
        for operator in self.graph.operators:
            self._operator(operator, self.problems)

    # -- operators

    def _operator(self, operator: Operator, problems: list[list[object]]) -> None:
        tensors = self.graph.tensors
        node = Node(
            operator,
            [None if i < 0 else tensors[i] for i in operator.inputs],
            [tensors[i] for i in operator.outputs],
            self._turned,
            lambda place, value: self._assign(tensors[operator.inputs[place]], value),
            lambda index: [o.name for o in self.file.graphs[index].operators],
        )
        with self.op.named(
            node.outputs[0].name or operator.name if node.outputs else operator.name
        ):
            try:
                if operator.name in STATE:
                    self._variable(operator)
                    return
                if operator.name in CONTROL:
                    for tensor, value in zip(node.outputs, self._control(node), strict=True):
                        _learn(value, tensor)
                        self.values[tensor.index] = value
                    return
                present = [t for t in (*node.inputs, *node.outputs) if t is not None]
                raw = reads_integers(operator, present)
                read = self._integers if raw else self._float
                inputs = [None if t is None else read(t) for t in node.inputs]
                while inputs and inputs[-1] is None:
                    inputs.pop()
                results = RULES[operator.name](self.op, node, *inputs)
                for tensor, value in zip(node.outputs, _several(results), strict=True):
                    self._give(operator, tensor, value, raw)
            except Unsupported as error:
                problems.append([operator.name, f"operator {operator.index}", str(error)])
            except DEFECTS as error:
                what = f"{type(error).__name__}: {error}"[:120]
                problems.append([operator.name, f"operator {operator.index}", what])
        if problems:  # later operators can be looked at, with what the file says of their inputs
            for tensor in node.outputs:
                if tensor.index not in self.values:
                    self.values[tensor.index] = _placeholder(tensor)

    def _give(self, operator: Operator, tensor: Tensor, value: ir.Value, raw: bool) -> None:
        kind = operator.options.get("fused_activation_function", 0)
        if kind and operator.name not in OWN_ACTIVATION:
            value = elementwise.activated(self.op, value, kind)
        if tensor.is_quantized and not raw:
            value = self.op.QuantizeLinear(value, *_parameters(self.op, tensor), axis=tensor.axis)
        else:
            value = self.op.cast(value, _type(tensor.dtype))
        _learn(value, tensor)
        self.values[tensor.index] = value
        self.floats.pop(tensor.index, None)

    # -- control flow

    def _control(self, node: Node) -> list[ir.Value]:
        if self.depth >= DEPTH:
            raise Unsupported("graphs that call graphs, too deep")
        values = [self._raw(t) for t in node.inputs if t is not None]
        name = node.operator.name
        if name in CALLS:
            return self._call(node[CALLS[name]], self.op, values)
        if name == "STABLEHLO_CASE":
            return self._case(node, values)
        return self._if(node, values) if name == "IF" else self._while(node, values)

    def _call(self, index: int, op: Builder, inputs: Sequence[ir.Value]) -> list[ir.Value]:
        if not 0 < index < len(self.file.graphs):
            raise Unsupported(f"there is no graph {index}")
        driver = _Driver(self.file, self.file.graphs[index], op, self.depth + 1)
        results = driver.called(inputs)
        self.problems += driver.problems
        return results

    def _body(self, index: int, inputs: Sequence[ir.Value]) -> ir.Graph:
        inner = Builder(self.op.prefix, self.op)
        results = [inner.Identity(v) for v in self._call(index, inner, inputs)]
        return ir.Graph([], results, nodes=inner.nodes, name=self.op.fresh("branch"))

    def _if(self, node: Node, values: list[ir.Value]) -> list[ir.Value]:
        condition, *inputs = values
        branches = {
            "then_branch": self._body(node["then_subgraph_index"], inputs),
            "else_branch": self._body(node["else_subgraph_index"], inputs),
        }
        attributes = {name: ir.AttrGraph(name, graph) for name, graph in branches.items()}
        condition = self.op.Reshape(condition, np.zeros(0, np.int64))
        return list(self.op.call("If", [condition], attributes, outputs=len(node.outputs)))

    def _case(self, node: Node, values: list[ir.Value]) -> list[ir.Value]:
        """One of several graphs by its number; the last one for a number that none has."""
        number, *inputs = values
        number = self.op.Reshape(number, np.zeros(0, np.int64))
        *others, last = node["branch_subgraph_indices"]
        if not others:
            return self._call(last, self.op, inputs)
        branch = self._body(last, inputs)
        for place in reversed(range(len(others))):
            attributes = {
                "then_branch": ir.AttrGraph("then_branch", self._body(others[place], inputs)),
                "else_branch": ir.AttrGraph("else_branch", branch),
            }
            inner = Builder(self.op.prefix, self.op) if place else self.op
            condition = inner.Equal(number, np.int32(place))
            results = inner.call("If", [condition], attributes, outputs=len(node.outputs))
            if place:
                branch = ir.Graph([], results, nodes=inner.nodes, name=self.op.fresh("branch"))
        return list(results)

    def _while(self, node: Node, values: list[ir.Value]) -> list[ir.Value]:
        op = self.op
        scalar = np.zeros(0, np.int64)
        (start,) = self._call(node["cond_subgraph_index"], op, values)
        inner = Builder(op.prefix, op)
        count = graph_input(op.fresh("iteration"), ir.DataType.INT64, [])
        again = graph_input(op.fresh("condition"), ir.DataType.BOOL, [])
        state = [
            ir.Value(name=op.fresh("state"), type=v.type, shape=_declared(t))
            for v, t in zip(values, node.outputs, strict=True)
        ]
        results = self._call(node["body_subgraph_index"], inner, state)
        (going,) = self._call(node["cond_subgraph_index"], inner, results)
        outputs = [inner.Reshape(going, scalar), *(inner.Identity(v) for v in results)]
        body = ir.Graph([count, again, *state], outputs, nodes=inner.nodes, name=op.fresh("body"))
        inputs = [None, op.Reshape(start, scalar), *values]
        loop = op.call("Loop", inputs, {"body": ir.AttrGraph("body", body)}, outputs=len(state))
        for value, tensor in zip(loop, node.outputs, strict=True):
            value.type, value.shape = ir.TensorType(_type(tensor.dtype)), _declared(tensor)
        return list(loop)

    # -- variables

    def _variable(self, operator: Operator) -> None:
        if self.depth:
            raise Unsupported("a variable inside control flow")
        tensors = self.graph.tensors
        if operator.name == "CALL_ONCE":
            self._first_values(operator["init_subgraph_index"])
        elif operator.name == "VAR_HANDLE":
            self.handles[operator.outputs[0]] = _variable_name(operator)
        elif operator.name == "READ_VARIABLE":
            name, tensor = self.handles[operator.inputs[0]], tensors[operator.outputs[0]]
            self.values[tensor.index] = self._held(name, tensor).current
        else:
            name, tensor = self.handles[operator.inputs[0]], tensors[operator.inputs[1]]
            self._held(name, tensor).current = self._raw(tensor)

    def _first_values(self, index: int) -> None:
        """The constants that a graph, which is called once, assigns to variables."""
        if not 0 < index < len(self.file.graphs):
            raise Unsupported(f"there is no graph {index}")
        graph = self.file.graphs[index]
        handles = {
            o.outputs[0]: _variable_name(o) for o in graph.operators if o.name == "VAR_HANDLE"
        }
        for operator in graph.operators:
            if operator.name == "ASSIGN_VARIABLE":
                self.starts[handles[operator.inputs[0]]] = graph.tensors[operator.inputs[1]]
            elif operator.name != "VAR_HANDLE":
                raise Unsupported("first values that are computed")

    def _held(self, name: str, tensor: Tensor) -> Variable:
        if name not in self.state:
            start = self.starts.get(name)
            if start is None or start.data is None or None in tensor.shape:
                raise Unsupported(f"the first value of {quote(name)} is not known")
            self.state[name] = self._variable_of(name, start.data)
        return self.state[name]

    def _kept(self, tensor: Tensor) -> Variable:
        """A tensor that keeps what an operator writes into it, and is 0 at first."""
        key = f"tensor {tensor.index}"
        if key not in self.state:
            if self.depth:
                raise Unsupported("a variable inside control flow")
            if tensor.is_quantized or None in tensor.shape:
                raise Unsupported("a state of integers, or of a free size")
            start = np.zeros([d or 0 for d in tensor.shape], tensor.dtype)
            self.state[key] = self._variable_of(tensor.name or "state", start)
        return self.state[key]

    def _assign(self, tensor: Tensor, value: ir.Value) -> None:
        if not tensor.is_variable:
            raise Unsupported("a state that is no variable")
        self._kept(tensor).current = value
        self.floats.pop(tensor.index, None)

    def _variable_of(self, name: str, start: np.ndarray) -> Variable:
        label = self.op.fresh(name)
        value = graph_input(label, _type(start.dtype), list(start.shape))
        return Variable(value, start, self.op.fresh(f"{label}/next"), value)

    # -- tensors

    def _raw(self, tensor: Tensor) -> ir.Value:
        """A tensor as the file has it."""
        if tensor.is_variable and tensor.data is None:
            return self._kept(tensor).current
        if tensor.index not in self.values:
            if tensor.data is None:
                raise ImportRefused(
                    "the file reads a tensor that nothing gives",
                    [[quote(tensor.name), f"tensor {tensor.index}"]],
                )
            self.values[tensor.index] = self._constant(tensor, tensor.data)
        return self.values[tensor.index]

    def _constant(self, tensor: Tensor, data: np.ndarray) -> ir.Value:
        if data.size > 64 or (data.dtype.kind == "f" and data.ndim):
            return self.op.weight(tensor.name or UNNAMED, data)
        return self.op.const(data)

    def _float(self, tensor: Tensor) -> ir.Value:
        """A tensor as rules read it: the numbers that quantized elements and halves stand for."""
        if tensor.index not in self.floats:
            self.floats[tensor.index] = self._real(tensor, self._raw(tensor), tensor.axis)
        return self.floats[tensor.index]

    def _integers(self, tensor: Tensor) -> ir.Value:
        """A tensor, of which quantized elements are integers that every operator takes."""
        if tensor.is_quantized:
            return self.op.cast(self._raw(tensor), ir.DataType.INT64)
        return self._float(tensor)

    def _real(self, tensor: Tensor, value: ir.Value, axis: int) -> ir.Value:
        if tensor.scale is not None and tensor.kind == "INT64" and tensor.data is not None:
            return self._wide_bias(tensor)
        bias = tensor.scale is not None and tensor.kind == "INT32" and tensor.data is not None
        if tensor.is_quantized or bias:
            return self.op.DequantizeLinear(value, *_parameters(self.op, tensor), axis=axis)
        if tensor.kind in ("FLOAT16", "BFLOAT16"):
            return self.op.cast(value, ir.DataType.FLOAT)
        return value

    def _wide_bias(self, tensor: Tensor) -> ir.Value:
        """The bias of integers of 16 bits, in 64, which DequantizeLinear does not take."""
        assert tensor.scale is not None and tensor.data is not None
        numbers = tensor.data.astype(np.float64) * tensor.scale.astype(np.float64)
        return self.op.weight(tensor.name or UNNAMED, numbers.astype(np.float32))

    def _turned(
        self,
        op: Builder,
        tensor: Tensor | None,
        function: Callable[[np.ndarray], np.ndarray],
        axis: int,
    ) -> ir.Value:
        """A constant in another order of axes, in which `axis` is the one of its quantization."""
        source = self._source(tensor)
        if source is None or source.data is None:
            raise Unsupported("its weights are no constants")
        value = op.weight(source.name or UNNAMED, np.ascontiguousarray(function(source.data)))
        return self._real(source, value, axis)

    def _source(self, tensor: Tensor | None) -> Tensor | None:
        """The constant behind operators that only change how it is stored."""
        while tensor is not None and tensor.data is None:
            makers = [o for o in self.graph.operators if tensor.index in o.outputs]
            if not makers or makers[0].name not in ("DEQUANTIZE", "DENSIFY"):
                return None
            tensor = self.graph.tensors[makers[0].inputs[0]]
        return tensor


def _variable_name(operator: Operator) -> str:
    name = operator.options.get("shared_name") or b"state"
    return name.decode() if isinstance(name, bytes) else str(name)


def _learn(value: ir.Value, tensor: Tensor) -> None:
    """What the file knows and inference does not: sizes of computed shapes, types of branches."""
    if value.dtype is None:
        value.type = ir.TensorType(_type(tensor.dtype))
    shape = [*tensor.shape, 2] if tensor.is_complex else tensor.shape
    dims = [None] * len(shape) if value.shape is None else list(value.shape)
    if len(dims) == len(shape):
        sizes = [d if isinstance(d, int) or t is None else t for d, t in zip(dims, shape)]
        value.shape = ir.Shape(sizes)


def _parameters(op: Builder, tensor: Tensor) -> list[ir.Value]:
    assert tensor.scale is not None and tensor.zero is not None
    scale, zero = tensor.scale, tensor.zero.astype(tensor.dtype)
    if scale.size == 1:
        scale, zero = scale.reshape(()), zero.reshape(())
    return [op.const(scale), op.const(zero)]


def _declared(tensor: Tensor) -> ir.Shape:
    return ir.Shape(list(tensor.shape))


def _placeholder(tensor: Tensor) -> ir.Value:
    shape = ir.Shape([*tensor.shape, 2]) if tensor.is_complex else _declared(tensor)
    return ir.Value(
        name=f"{tensor.name}/unknown", type=ir.TensorType(_type(tensor.dtype)), shape=shape
    )


def _several(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def _type(dtype: Any) -> ir.DataType:
    return ir.DataType.from_numpy(np.dtype(dtype))


def _unique(names: list[str | None], tensors: list[Tensor], places: list[int]) -> list[str]:
    """Names of inputs or outputs: of the signature, else of the tensors; all different."""
    results: list[str] = []
    for number, (name, index) in enumerate(zip(names, places, strict=True)):
        name = name or tensors[index].name or f"{UNNAMED}_{index}"
        results.append(name if name not in results else f"{name}_{number}")
    return results
