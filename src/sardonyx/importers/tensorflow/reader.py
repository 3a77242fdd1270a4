"""The driver: walks the operators of a TensorFlow graph and applies the rule of each.

A rule is a plain function `(op, *inputs, **attributes)` named after TensorFlow's operator. It takes
the attributes that it needs by name, `node` (the operator itself, with the shapes that TensorFlow
knows) and `reader` if it asks for them. Values that ONNX has no type for (variables, lists, tables)
are objects of Python while the graph is read. What a rule cannot express, and every operator
without a rule, is collected with its name; the import is refused when the graph has been read.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import tensorflow as tf
from tensorflow.python.framework import function_def_to_graph

from sardonyx.errors import ArgumentError, ImportRefused, counted
from sardonyx.importers import rules as user_rules
from sardonyx.importers.tensorflow.evaluation import evaluated
from sardonyx.importers.tensorflow.frames import EXITS, conditions, needs, part
from sardonyx.importers.tensorflow.writer import Refusal, Writer

T = ir.DataType
FAMILIES = (
    "array", "blocks", "diagonal", "frames", "functional", "gradients", "image", "indexing",
    "linalg", "lists", "lookup", "math", "nn", "quantize", "ragged", "random", "reductions",
    "resampling", "resize", "rnn", "segments", "special", "spectral", "state", "string", "switches",
    "tensor_arrays", "windows",
)  # fmt: skip
HINT = (
    "compute these parts outside of the function, or add a rule with "
    '@sx.importer("tensorflow.<operator>")'
)
# Operators without a rule that are computed where their inputs are constants.
PURE = ("StatelessRandom", "StatelessTruncated", "StaticRegex", "String")
WRITES = frozenset([
    "AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "Assign", "AssignAdd",
    "AssignSub", "ResourceScatterUpdate", "ResourceScatterAdd", "ResourceScatterNdUpdate",
    "LookupTableInsertV2", "LookupTableRemoveV2", "PyFunc", "EagerPyFunc", "PyFuncStateless",
])  # fmt: skip
REASONS = {
    "PyFunc": "it calls Python",
    "EagerPyFunc": "it calls Python",
    "PyFuncStateless": "it calls Python",
    "MutableHashTableV2": "a lookup table with state",
    "MutableDenseHashTableV2": "a lookup table with state",
    "LookupTableInsertV2": "a lookup table with state",
    "LookupTableRemoveV2": "a lookup table with state",
}


@dataclass(frozen=True)
class Rule:
    function: Callable[..., Any]
    keywords: frozenset[str]


class Unknown:
    """The result of an operator that was refused."""


RULES: dict[str, Rule] = {}


def importer(*operators: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as the rule of TensorFlow's `operators`."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in operators:
            if name in RULES:
                raise ArgumentError(f"the TensorFlow operator {name} already has a rule")
            RULES[name] = _rule(function)
        return function

    return register


def _rule(function: Callable[..., Any]) -> Rule:
    parameters = inspect.signature(function).parameters.values()
    return Rule(function, frozenset(p.name for p in parameters if p.kind == p.KEYWORD_ONLY))


def load_rules() -> None:
    for family in FAMILIES:
        importlib.import_module(f"sardonyx.importers.tensorflow.ops.{family}")


def rule_of(operator: str) -> Rule | None:
    """The rule of an operator: ours, or one that a user registered as `tensorflow.<operator>`."""
    theirs = user_rules.RULES.get(f"tensorflow.{operator}")
    return _rule(theirs) if theirs is not None else RULES.get(operator)


class Reader:
    """Reads graphs of TensorFlow; `problems` are rows for the error that refuses them."""

    def __init__(self) -> None:
        load_rules()
        self.problems: dict[tuple[str, str, str], None] = {}
        self.weights: dict[str, tuple[ir.Value, np.ndarray]] = {}
        self.untrained: set[str] = set()  # weights whose variables are not trainable
        self.random = False  # whether results are drawn, and cannot be compared
        self.frozen = False  # whether weights are constants of the graph
        self.fetch: Callable[[tf.Tensor], Any] | None = None  # reads handles inside the graph
        self.root: tf.Graph | None = None  # the graph whose library has the functions
        self.library: dict[str, Any] = {}
        self.results: set[str] = set()  # names of tensors that are results of a graph
        self.values: dict[str, Any] = {}  # of the graph that is being read, by names of tensors
        self.conditions: dict[str, Any] = {}  # of branches of TensorFlow 1, by names of their ends

    def graph(
        self, op: Writer, graph: tf.Graph, fed: Mapping[str, Any], results: Sequence[tf.Tensor]
    ) -> list[Any]:
        """The values of `results`; `fed` has those of placeholders, by the names of tensors."""
        self._refuse_effects(graph, results)
        self.results |= {t.name for t in results}
        around = self.values, self.conditions
        self.values, self.conditions = dict(fed), {}
        try:
            return self._results(op, results)
        finally:
            self.values, self.conditions = around

    def _results(self, op: Writer, results: Sequence[tf.Tensor]) -> list[Any]:
        """The values of `results`; what follows a loop of TensorFlow 1 is a graph of its own.

        TensorFlow knows no shapes behind such a loop. The graph of what follows it is built with
        the shapes of the loop's results.
        """
        values = self.values
        try:
            order = _ordered(results, values)
        except Refusal as refusal:
            self.refused(results[0].op, str(refusal))
            return [Unknown() for _ in results]
        exits = [node for node in order if node.type in EXITS]
        if not exits:
            self._read(op, order, values)
            return [values[t.name] for t in results]
        self._read(op, _independent(order), values)
        self._read(op, exits[:1], values)
        self.conditions.update(conditions(order, self.conditions))
        inputs = {t.name: t for n in order for t in needs(n) if t.name in values}
        inputs |= {t.name: t for t in results if t.name in values}
        rest = part({n: known_shape(values[n]) for n in inputs}, results)
        values |= {t.name: values[n] for n, t in zip(inputs, rest.inputs, strict=True)}
        return self._results(op, rest.outputs)

    def _read(self, op: Writer, order: Sequence[tf.Operation], values: dict[str, Any]) -> None:
        scope = op.prefix
        for node in order:
            with op.named("/".join(s for s in (scope, node.name) if s)):
                for tensor, value in zip(node.outputs, self._node(op, node, values), strict=True):
                    values.setdefault(tensor.name, value)

    def function(self, op: Writer, name: str, graph: tf.Graph, operands: Sequence[Any]) -> list:
        """The results of a function of the library on `operands`, written with `op`."""
        body = self.body(name, graph, operands)
        fed = {t.name: v for t, v in zip(body.inputs, operands, strict=True)}
        return self.graph(op, body, fed, body.outputs)

    def body(self, name: str, graph: tf.Graph, operands: Sequence[Any]) -> Any:
        """The graph of a function of the library, with the shapes of its operands."""
        return self.body_of_shapes(name, graph, [tf_shape(v) for v in operands])

    def body_of_shapes(self, name: str, graph: tf.Graph, shapes: Sequence[tf.TensorShape]) -> Any:
        """The graph of a function of the library, with these shapes of its arguments."""
        if self.root is None:
            self.root = graph
            library = graph.as_graph_def().library
            self.library = {f.signature.name: f for f in library.function}
        definition = self.library.get(name)
        if definition is None:
            raise Refusal(f"the graph has no function {name}")
        with self.root.as_default():
            try:
                return function_def_to_graph.function_def_to_graph(definition, list(shapes))
            except (ValueError, tf.errors.InvalidArgumentError):  # its own shapes are others
                return function_def_to_graph.function_def_to_graph(definition)

    def _node(self, op: Writer, node: tf.Operation, values: Mapping[str, Any]) -> list[Any]:
        inputs = [values[t.name] for t in needs(node)]
        if any(isinstance(v, Unknown) for v in inputs):
            return [_placeholder(t) for t in node.outputs]
        if node.type in RULES or node.type.startswith(PURE):
            constants = evaluated(op, node, inputs)
            if constants is not None:
                return constants
        before = len(op.nodes)
        try:
            rule = rule_of(node.type)
            if rule is None:
                raise Refusal(REASONS.get(node.type, "no rule"))
            results = self._apply(op, rule, node, inputs)
        except (Refusal, ArgumentError) as refusal:
            del op.nodes[before:]
            self.refused(node, str(refusal).partition("\n")[0])
            return [_placeholder(t) for t in node.outputs]
        return [_checked(node, v, t) for v, t in zip(results, node.outputs, strict=True)]

    def refused(self, node: tf.Operation, reason: str) -> None:
        self.problems[(node.type, reason, node.name)] = None

    def _apply(self, op: Writer, rule: Rule, node: tf.Operation, inputs: list[Any]) -> list[Any]:
        if node.type not in COMPLEX and any(is_complex(v) for v in inputs):
            raise Refusal("complex numbers: ONNX has no type for them")
        attributes: dict[str, Any] = {}
        for name in rule.keywords:
            if name == "node":
                attributes[name] = node
            elif name == "reader":
                attributes[name] = self
            elif any(a.name == name for a in node.op_def.attr):
                value = node.get_attr(name)
                attributes[name] = value.decode() if isinstance(value, bytes) else value
        results = rule.function(op, *inputs, **attributes)
        return list(results) if isinstance(results, (list, tuple)) else [results]

    def condition(self, op: Writer, graph: tf.Graph, name: str) -> Any:
        """The value of a condition of the graph that is being read: maybe nothing else reads it."""
        if name not in self.values:
            tensor = graph.get_tensor_by_name(name)
            self._read(op, _ordered([tensor], self.values), self.values)
        return self.values[name]

    def _refuse_effects(self, graph: tf.Graph, results: Sequence[tf.Tensor]) -> None:
        """Refuse operators that change variables or tables while the graph runs."""
        controls = list(getattr(graph, "control_outputs", []))
        for node in _executed([t.op for t in results] + controls):
            if node.type in WRITES:
                self.refused(node, REASONS.get(node.type, "it changes a variable"))
            elif node.type in ("StatefulPartitionedCall", "PartitionedCall") and not node.outputs:
                name = node.get_attr("f").name
                body = self.body(name, graph, [None] * len(node.inputs))
                self._refuse_effects(body, body.outputs)

    def refuse(self, hint: str = HINT) -> None:
        """Raise one error with every operator that could not be read."""
        if not self.problems:
            return
        rows = [list(row) for row in self.problems]
        raise ImportRefused(
            f"{counted(len(rows), 'operator')} of this graph cannot become ONNX",
            rows,
            hint=hint,
        )


COMPLEX = {
    "RFFT", "RFFT2D", "RFFT3D", "IRFFT", "IRFFT2D", "FFT", "IFFT", "FFT2D", "IFFT2D", "ComplexAbs",
    "Real", "Imag", "Complex", "Conj", "Angle", "Identity", "Reshape", "ExpandDims", "Squeeze",
    "AddV2", "Add", "Sub", "Mul", "StridedSlice", "Exp",
}  # fmt: skip


def is_complex(value: Any) -> bool:
    return isinstance(value, ir.Value) and bool(value.meta.get("complex"))


def _ordered(results: Iterable[tf.Tensor], fed: Mapping[str, Any]) -> list[tf.Operation]:
    """The operators that results need, each after those that it needs."""
    order: dict[tf.Operation, None] = {}
    stack = [(t.op, False) for t in reversed(list(results)) if t.name not in fed]
    open_nodes: set[tf.Operation] = set()
    while stack:
        node, done = stack.pop()
        if done:
            order[node] = None
            continue
        if node in order or node in open_nodes:
            continue
        open_nodes.add(node)
        stack.append((node, True))
        stack += [(t.op, False) for t in reversed(needs(node)) if t.name not in fed]
    return list(order)


def _independent(order: Sequence[tf.Operation]) -> list[tf.Operation]:
    """The operators that need no loop of TensorFlow 1."""
    later: set[tf.Operation] = set()
    for node in order:
        if node.type in EXITS or any(t.op in later for t in node.inputs):
            later.add(node)
    return [node for node in order if node not in later]


def _executed(nodes: Iterable[tf.Operation]) -> list[tf.Operation]:
    """The operators that TensorFlow runs for `nodes`, those that control edges lead to included."""
    operations: dict[tf.Operation, None] = {}
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in operations:
            operations[node] = None
            stack += [t.op for t in node.inputs] + list(node.control_inputs)
    return list(operations)


# -- types and shapes -----------------------------------------------------------------------------


def dtype_of(dtype: tf.DType) -> ir.DataType | None:
    """The type of ONNX for one of TensorFlow; None where there is none."""
    if dtype == tf.string:
        return T.STRING
    if dtype in (tf.complex64, tf.complex128):
        return T.FLOAT if dtype == tf.complex64 else T.DOUBLE
    if dtype.is_quantized or dtype in (tf.resource, tf.variant):
        return None
    try:
        return T.from_numpy(np.dtype(dtype.as_numpy_dtype))
    except TypeError:
        return None


def tf_shape(value: Any) -> tf.TensorShape:
    """What is known of the shape of a value, as TensorFlow writes it."""
    if not isinstance(value, ir.Value) or value.shape is None:
        return tf.TensorShape(None if isinstance(value, ir.Value) or value is None else [])
    dims = [d if isinstance(d, int) else None for d in value.shape]
    return tf.TensorShape(dims[:-1] if is_complex(value) else dims)


def known_shape(value: Any) -> tf.TensorShape:
    """What is known of the shape of a value; nothing, where it is no tensor of ONNX."""
    return tf_shape(value) if isinstance(value, ir.Value) else tf.TensorShape(None)


def _placeholder(tensor: tf.Tensor) -> Any:
    return Unknown()


def _checked(node: tf.Operation, value: Any, tensor: tf.Tensor) -> Any:
    """The result of a rule, with the type and shape that TensorFlow gives it."""
    if not isinstance(value, ir.Value) or is_complex(value):
        return value
    kind = dtype_of(tensor.dtype)
    if kind is None:
        return value
    if value.type is None:
        value.type = ir.TensorType(kind)
    assert value.dtype == kind, f"{node.type} gave {value.dtype}, TensorFlow {kind}"
    merge_shape(value, tensor.shape, node.type)
    return value


def merge_shape(value: ir.Value, shape: tf.TensorShape, what: str) -> None:
    """Add what TensorFlow knows of a value's shape."""
    if shape.rank is None or value.const_value is not None:
        return
    theirs = shape.as_list()
    if value.shape is None:
        value.shape = ir.Shape(theirs)
        return
    ours = list(value.shape)
    assert len(ours) == len(theirs), f"{what} gave {value.shape}, TensorFlow {shape}"
    merged: list[Any] = []
    for mine, other in zip(ours, theirs, strict=True):
        both = isinstance(mine, int) and other is not None
        assert not both or mine == other, f"{what} gave {value.shape}, TensorFlow {shape}"
        merged.append(other if other is not None else mine)
    if merged != ours and not value.is_graph_input():
        value.shape = ir.Shape(merged)
