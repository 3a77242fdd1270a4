"""A graph read as a list of statements: shape arithmetic becomes numbers and sizes on the way.

Operators are written by the rules in `operators.py` and `layout.py`, layers with weights by
`layers.py`. The order is the graph's; the path of a statement says which module it belongs to.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.engines.torch.source.expression import (
    Dim,
    Expression,
    Hole,
    Literal,
    Size,
    build,
    joined,
)
from sardonyx.engines.torch.source.layers import Layer, layer_of
from sardonyx.engines.torch.source.scopes import Path
from sardonyx.errors import UnsupportedOp, quote
from sardonyx.lower.custom_native import NATIVE
from sardonyx.lower.driver import attributes, find
from sardonyx.lower.precompute import GROWTH, compute
from sardonyx.lower.xp import is_symbolic, settle
from sardonyx.normalize import constants_to_initializers
from sardonyx.passes.cse import is_random
from sardonyx.passes.folding import Budget
from sardonyx.passes.functions import expand
from sardonyx.passes.nesting import bodies, names

LISTED = 16  # numbers that are read from a tensor one by one
LITERAL_ELEMENTS = 4096  # elements of a constant that counts as a number or a list of numbers

# (domain, operator) -> its rule; filled by `operators.py` and `layout.py`
RULES: dict[tuple[str, str], Callable[..., Any]] = {}


def op(*ops: str, domain: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the rule of an operator: it takes reader, node, inputs and attributes."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in ops:
            RULES[domain, name] = function
        return function

    return decorate


@dataclass
class Statement:
    """`outputs = expression`, or the call of a layer."""

    outputs: list[ir.Value]
    path: Path
    op: str
    expression: Expression
    layer: Layer | None = None
    inputs: Sequence[ir.Value] = ()  # of a layer
    branch: Path = ()  # the branch of an If that it is in
    branches: Sequence[Branch] = ()  # of an If, whose expression is the condition
    cycle: Cycle | None = None  # of a Loop or Scan, whose body is the only branch

    @property
    def reads(self) -> list[ir.Value]:
        results = [v for branch in self.branches for v in branch.outputs]
        starts = self.cycle.starts if self.cycle is not None else []
        return [*self.expression.values, *self.inputs, *results, *starts]


@dataclass
class Branch:
    """One branch of an If: the scope of its statements, and its outputs."""

    path: Path
    outputs: list[ir.Value]


@dataclass
class Cycle:
    """A Loop or Scan: `for items in expression:`, the body called with items and states."""

    items: list[ir.Value]  # inputs of the body that the iteration gives
    states: list[ir.Value]  # inputs of the body that it computes anew
    starts: list[ir.Value]  # the states before the first iteration
    has_condition: bool  # the first state says whether to go on
    axes: list[int]  # along which further results of the body are stacked
    turned: list[bool] = field(default_factory=list)  # which of them are stacked backwards
    may_be_empty: bool = False  # there may be no iteration at all


class Unwritten(Exception):
    """A rule met an option that it cannot write."""


class Reader:
    """Reads a graph once, node by node."""

    def __init__(self, graph: ir.Graph, paths: dict[ir.Node, Path], weights: set[str]):
        self.graph, self.paths, self.weights = graph, paths, weights
        self.budget = Budget(graph, GROWTH)
        self.known: dict[ir.Value, np.ndarray] = {}
        self.ids: dict[ir.Value, tuple[Any, ...]] = {}
        self.statements: list[Statement] = []
        self.problems: list[list[str]] = []
        self.branch: Path = ()
        self.conditions: set[ir.Value] = set()  # bools of Python, not tensors
        self.branches: set[Path] = set()
        self._constants(graph)
        for value in graph.inputs:
            self.ids[value] = self._declared(value)

    def _constants(self, graph: ir.Graph) -> None:
        for name, value in graph.initializers.items():
            tensor = value.const_value
            if tensor is None or value.is_graph_input():
                continue
            self.ids[value] = tuple(tensor.shape.numpy())
            if name not in self.weights and tensor.size <= LITERAL_ELEMENTS:
                self.known[value] = tensor.numpy()

    def read(self) -> list[Statement]:
        for node in self.graph:
            self._node(node)
        self._drop_unread()
        self._hold_computed()
        if self.problems:
            raise UnsupportedOp(
                "some nodes cannot be written as torch source",
                self.problems,
                hint="to_torch converts this model to a module without readable source",
            )
        return self.statements

    def _drop_unread(self) -> None:
        """Leave out what nothing reads, as weights rearranged for a layer that has its own."""
        needed = set(self.graph.outputs)
        statements: list[Statement] = []
        for statement in reversed(self.statements):
            if needed.intersection(statement.outputs):
                needed.update(statement.reads)
                statements.append(statement)
        self.statements = statements[::-1]

    def _hold_computed(self) -> None:
        """Give values computed here, but read as tensors, a constant or a tensor of sizes."""
        statements, self.statements = self.statements, []
        sizes: set[ir.Value] = set()
        for statement in statements:
            for value in statement.reads:
                node = value.producer()
                if node is None or value not in self.known or value.const_value is not None:
                    continue
                if not is_symbolic(self.known[value]):
                    value.const_value = ir.tensor(self.known[value], name=value.name)
                elif value not in sizes:
                    sizes.add(value)
                    self._tensor_of_sizes(node, value, statement)
            self.statements.append(statement)

    def _tensor_of_sizes(self, node: ir.Node, value: ir.Value, reader: Statement) -> None:
        """Write sizes as a tensor, before the statement that reads it."""
        array = self.known[value]
        if array.ndim > 1 or reader.branch:
            self._refuse(node, "sizes as a tensor")
            return
        items = list(array.flat)
        whole = joined(v.parts if isinstance(v, Size) else (Literal(int(v)),) for v in items)
        text = "torch.tensor([{0}], {1})" if array.ndim else "torch.tensor({0}, {1})"
        tensor = build(text, whole, self.device(items))
        self.statements.append(Statement([value], reader.path, "Shape", tensor))

    # -- one node

    def _node(self, node: ir.Node) -> None:
        if self._compute(node):
            return
        for value in node.outputs:
            self.declare(value)
        path = self.paths.get(node, self.branch)
        if node.op_type == "If" and node.domain == "":
            self._choose(node, path)
            return
        if node.op_type in ("Loop", "Scan") and node.domain == "":
            from sardonyx.engines.torch.source.loops import read_loop

            try:
                read_loop(self, node, path)
            except Unwritten as reason:
                self._refuse(node, str(reason))
            return
        first = len(self.statements)
        self._plain(node, path)
        for statement in self.statements[first:]:
            statement.branch = self.branch

    def _choose(self, node: ir.Node, path: Path) -> None:
        """Statements of both branches, each in a scope of its own, then the choice."""
        (condition,) = node.inputs
        branches = [
            self.branch_of(node.attributes[name].as_graph(), path, word)
            for name, word in (("then_branch", "when_true"), ("else_branch", "when_false"))
        ]
        assert condition is not None
        outputs = [v for v in node.outputs if v.name]
        self.statements.append(
            Statement(
                outputs, path, "If", build("{0}", condition), branch=self.branch, branches=branches
            )
        )

    def branch_of(
        self, graph: ir.Graph, path: Path, word: str, results: Sequence[ir.Value] | None = None
    ) -> Branch:
        """Read the statements of a body into a scope of its own."""
        number, scope = 1, (*path, word)
        while scope in self.branches:
            number += 1
            scope = (*path, f"{word}{number}")
        self.branches.add(scope)
        self._constants(graph)
        outside, self.branch = self.branch, scope
        for node in graph:
            self._node(node)
        produced = {v for node in graph for v in node.outputs}
        outputs = []
        for i, value in enumerate(graph.outputs if results is None else results):
            # A value from outside, or one that is two outputs, gets another name here.
            if value not in produced or value in self.known or value in outputs:
                alias = ir.Value(name=f"{value.name}/{word}{i}", type=value.type, shape=value.shape)
                self.ids[alias] = self.ids.get(value) or self._declared(value)
                same = Statement([alias], scope, "Identity", build("{0}", value), branch=scope)
                self.statements.append(same)
                value = alias
            outputs.append(value)
        self.branch = outside
        return Branch(scope, outputs)

    def _plain(self, node: ir.Node, path: Path) -> None:
        layer = layer_of(self, node)
        if layer is not None:
            self._derive(node)
            self.statements += layer.statements(node, path)
            return
        self._derive(node)
        try:
            written = self._written(node)
        except Unwritten as reason:
            self._refuse(node, str(reason))
            return
        if written is None:
            return
        outputs = [v for v in node.outputs if v.name]
        if isinstance(written, Expression):
            self.statements.append(Statement(outputs[:1], path, node.op_type, written))
            outputs = outputs[1:]
            if any(v.uses() or v.is_graph_output() for v in outputs):
                self._refuse(node, "more than one output is read")
        else:
            (whole,) = written
            self.statements.append(Statement(outputs, path, node.op_type, whole))

    def _written(self, node: ir.Node) -> Any:
        rule = RULES.get((node.domain, node.op_type))
        if bodies(node):
            self._refuse(node, "this control flow is not written")
            return None
        if rule is None:
            self._refuse(node, "torch has no such function")
            return None
        options = attributes(node)
        try:
            inspect.signature(rule).bind(self, node, *node.inputs, **options)
        except TypeError:
            raise Unwritten("inputs or attributes that the operator does not have") from None
        return rule(self, node, *node.inputs, **options)

    def _refuse(self, node: ir.Node, why: str) -> None:
        label = node.name or (node.outputs[0].name if node.outputs else "")
        self.problems.append([node.op_type, f"node {quote(label)}", why])

    # -- values computed while reading

    def _compute(self, node: ir.Node) -> bool:
        """Compute a node's outputs if they are numbers and sizes; whether it could."""
        if node.domain != "" or bodies(node) or is_random(node):
            return False
        if node.op_type == "DequantizeLinear":  # a weight, in the form in which it is stored
            return False
        if any(v.is_graph_output() for v in node.outputs):
            return False
        if node.op_type in ("Shape", "Size"):
            return self._sizes(node)
        if not node.inputs or any(v is not None and v not in self.known for v in node.inputs):
            return False
        values = [None if v is None else self.known[v] for v in node.inputs]
        rule = find(node.op_type, node.domain, "numpy")
        symbolic = any(map(is_symbolic, values))
        results: Sequence[Any] | None
        if symbolic and node.op_type == "Cast":
            to = ir.DataType(node.attributes["to"].value)
            if to not in (ir.DataType.INT64, ir.DataType.INT32):
                return False
            results = (values[0],)
        elif rule is None or (symbolic and not rule.options["sizes"]):
            return False
        else:
            results = compute(node, values, self.budget)
        if results is None:  # it is written as torch code instead
            return False
        if any(np.size(v) > LITERAL_ELEMENTS for v in results):
            return False
        for value, array in zip(node.outputs, results):
            self.known[value] = np.asarray(array)
            self.ids[value] = np.shape(array)
        return True

    def _sizes(self, node: ir.Node) -> bool:
        x = node.inputs[0]
        if x is None or x.shape is None:
            return False
        sizes = self.sizes(x)
        if node.op_type == "Shape":
            start = node.attributes.get_int("start", 0)
            end = node.attributes.get_int("end", len(sizes))
            numbers = sizes[slice(start, end)]
        else:
            numbers = [1]
            for size in sizes:
                numbers[0] = size * numbers[0]
        array = settle(numbers, () if node.op_type == "Size" else (len(numbers),))
        self.known[node.outputs[0]] = array
        self.ids[node.outputs[0]] = array.shape
        return True

    # -- for rules

    def operand(self, value: ir.Value | None) -> Any:
        """An operand as it is written: a number, a size, or the value itself."""
        if value is None:
            raise Unwritten("an input is missing")
        array = self.known.get(value)
        if array is None or array.size != 1 or array.ndim > 1:
            return value
        if array.ndim == 1 and not all(self._has_axes_beside(value, u.node) for u in value.uses()):
            return value
        item = array.reshape(-1)[0]
        if isinstance(item, Size):
            return item
        return Literal(item.item() if isinstance(item, np.generic) else item, "value")

    def _has_axes_beside(self, value: ir.Value, node: ir.Node) -> bool:
        """Whether a node's result has axes without this operand: as a number it would have none."""
        others = [v for v in node.inputs if v is not None and v is not value]
        ranks = [1 if v.shape is None else len(v.shape) for v in others]
        return not others or any(ranks)

    def operands(self, *values: ir.Value) -> list[Any]:
        """Operands of which at least one is a tensor: torch takes numbers only beside one."""
        operands = [self.operand(value) for value in values]
        return operands if any(isinstance(v, ir.Value) for v in operands) else list(values)

    def is_condition(self, node: ir.Node, *values: ir.Value) -> bool:
        """Whether a comparison of sizes only decides an If: then it is a bool of Python."""
        is_python = not any(isinstance(self.operand(v), ir.Value) for v in values)
        if is_python and _only_decides(node.outputs[0]):
            self.conditions.add(node.outputs[0])
            return True
        return False

    def array(self, value: ir.Value | None) -> np.ndarray:
        """A constant, or an array of numbers and sizes."""
        if value is None or value not in self.known:
            raise Unwritten("an input that torch takes as a number depends on data")
        return self.known[value]

    def listed(self, value: ir.Value | None) -> list[int | Size]:
        """A list of numbers and sizes, read from a tensor where they depend on data."""
        if value is not None and value not in self.known:
            return self._read(value)
        array = self.array(value)
        if array.dtype.kind not in "biuO":
            raise Unwritten("a number of iterations or a size that is no integer")
        items = array.reshape(-1).tolist()
        return [v if isinstance(v, Size) else int(v) for v in items]

    def _read(self, value: ir.Value) -> list[int | Size]:
        """The numbers in a tensor of integers, whose count is known."""
        shape = self.ids.get(value) if value.shape is not None else None
        is_integer = value.dtype in (ir.DataType.INT64, ir.DataType.INT32)
        if not is_integer or shape is None or not all(isinstance(d, int) for d in shape):
            raise Unwritten("an input that torch takes as a number depends on data")
        if not shape:
            return [Size.read(value)]
        if len(shape) > 1 or shape[0] > LISTED:
            raise Unwritten("an input that torch takes as a list depends on data")
        return [Size.read(value, place) for place in range(shape[0])]

    def integers(self, value: ir.Value | None) -> list[int]:
        numbers = self.listed(value)
        if any(isinstance(v, Size) for v in numbers):
            raise Unwritten("a size where torch takes a number")
        return [v for v in numbers if isinstance(v, int)]

    def number(self, value: ir.Value | None) -> Any:
        array = self.array(value)
        if array.size != 1 or is_symbolic(array):
            raise Unwritten("more than one number")
        return array.reshape(-1)[0].item()

    def rank(self, value: ir.Value | None) -> int:
        if value is None or value.shape is None:
            raise Unwritten("the rank of an input is not known")
        return len(value.shape)

    def axes(self, value: ir.Value, axes: Sequence[int]) -> list[int]:
        """Axes counted from the front; unchanged where the rank is not known."""
        return list(axes) if value.shape is None else [a % len(value.shape) for a in axes]

    def last_or_front(self, value: ir.Value, axis: int) -> int:
        """The last axis as -1, others from the front; unchanged where the rank is not known."""
        (axis,) = self.axes(value, [axis])
        return -1 if value.shape is not None and axis == len(value.shape) - 1 else axis

    def sizes(self, value: ir.Value) -> list[int | Size]:
        """The sizes of a value: numbers, and `Size` where only a run knows."""
        ids = self.ids.get(value) or self._declared(value)
        return [i if isinstance(i, int) else Size.of(value, a) for a, i in enumerate(ids)]

    def is_float(self, value: ir.Value) -> bool:
        return value.dtype is not None and value.dtype.is_floating_point()

    def device(self, sizes: Sequence[Any]) -> Expression:
        """`device=x.device` of a tensor whose size is among these."""
        for size in sizes:
            for part in size.parts if isinstance(size, Size) else ():
                if isinstance(part, (Dim, Hole)):
                    return build("device={0}.device", part.value)
        if self.graph.inputs:
            return build("device={0}.device", self.graph.inputs[0])
        raise Unwritten("no input tells the device")

    # -- which sizes are the same

    def declare(self, value: ir.Value) -> None:
        self.ids[value] = self._declared(value)

    def _declared(self, value: ir.Value) -> tuple[Any, ...]:
        dims = [] if value.shape is None else list(value.shape)
        return tuple(
            d if isinstance(d, int) else _symbol(str(d)) or (value.name, a)
            for a, d in enumerate(dims)
        )

    def _derive(self, node: ir.Node) -> None:
        """Sizes that shape inference lost, from those of the inputs."""
        out = node.outputs[0]
        is_unknown = [isinstance(i, tuple) for i in self.ids[out]]
        if not any(is_unknown):
            return
        derived = self._derived(node, len(is_unknown))
        if derived is not None and len(derived) == len(is_unknown):
            pairs = zip(self.ids[out], derived, is_unknown)
            self.ids[out] = tuple(new if is_lost else old for old, new, is_lost in pairs)

    def _derived(self, node: ir.Node, rank: int) -> list[Any] | None:
        if any(v is not None and v.shape is None and v not in self.known for v in node.inputs):
            return None
        shapes = [self.ids.get(v, ()) if v is not None else () for v in node.inputs]
        if node.op_type == "Reshape":
            sizes = self.known.get(node.inputs[1]) if node.inputs[1] is not None else None
            if sizes is None:
                return None
            return [
                self.ids[s.atom.value][s.atom.axis]
                if isinstance(s, Size) and s.atom is not None
                else ((node.outputs[0].name, a) if isinstance(s, Size) or s < 1 else int(s))
                for a, s in enumerate(sizes.reshape(-1).tolist())
            ]
        if node.op_type == "Transpose":
            perm = node.attributes.get_ints("perm", range(rank)[::-1])
            return [shapes[0][p] for p in perm] if len(shapes[0]) == rank else None
        if node.op_type == "Gather":
            axis = node.attributes.get_int("axis", 0)
            return [*shapes[0][:axis], *shapes[1], *shapes[0][axis + 1 :]]
        if node.op_type == "DotProductAttention":
            return [*shapes[0][:-1], shapes[2][-1]]
        if node.op_type == "Linear":
            turned = node.attributes.get_int("transposed", 0)
            return [*shapes[0][:-1], shapes[1][0 if turned else 1]]
        if node.op_type == "Split":
            axis = node.attributes.get_int("axis", 0)
            output_ids = self.ids[node.outputs[0]]
            return [*shapes[0][:axis], output_ids[axis], *shapes[0][axis + 1 :]]
        if node.op_type in BROADCAST:
            return _broadcast(shapes, rank)
        return (
            list(shapes[0]) if shapes and len(shapes[0]) == rank and node.op_type in ALIKE else None
        )


BROADCAST = {"Add", "Sub", "Mul", "Div", "Pow", "Where", "Max", "Min"}
ALIKE = {
    "LayerNormalization", "Gelu", "Relu", "Softmax", "Cast", "Dropout", "Tanh", "Sigmoid", "Clip",
    "Erf", "Swish", "BatchNormalization", "Neg", "Exp", "Sqrt", "LeakyRelu", "Identity",
}  # fmt: skip


def _only_decides(value: ir.Value) -> bool:
    """Whether a value is read by nothing but If, directly or through Not and Cast to bool."""
    if value.is_graph_output():
        return False
    readers = [use.node for use in value.uses()]
    same = [n for n in readers if n.op_type == "Not" or _is_bool_cast(n)]
    return all(n.op_type == "If" or n in same for n in readers) and all(
        _only_decides(n.outputs[0]) for n in same
    )


def _is_bool_cast(node: ir.Node) -> bool:
    return node.op_type == "Cast" and node.attributes.get_int("to", 0) == ir.DataType.BOOL


def _symbol(text: str) -> str | None:
    unknown = text in ("None", "?") or text.startswith("unk__")
    return None if unknown else text


def _broadcast(shapes: Sequence[tuple[Any, ...]], rank: int) -> list[Any]:
    sizes: list[Any] = []
    for axis in range(rank):
        ids = [g[axis - rank + len(g)] for g in shapes if axis - rank + len(g) >= 0]
        wide = [i for i in ids if i != 1]
        named = [i for i in wide if isinstance(i, (int, str))]
        sizes.append((named or wide or [1])[0])
    return sizes


def expanded(graph: ir.Graph) -> None:
    """Replace operators without a rule by their function bodies."""
    namer = Builder()
    namer.reserve(names(graph))
    pending = list(graph)
    changed = False
    while pending:
        node = pending.pop()
        if (node.domain, node.op_type) in RULES or node.op_type in LAYERS or bodies(node):
            continue
        new = expand(node, namer) if node.domain == "" else None
        pending.extend(new or ())
        changed |= new is not None
    if changed:
        constants_to_initializers(graph)


LAYERS = {
    "Gemm", "Conv", "ConvTranspose", "BatchNormalization", "LayerNormalization", "LSTM", "GRU",
    "RNN", "GroupNormalization", "InstanceNormalization",
}  # fmt: skip

__all__ = ["NATIVE", "RULES", "Hole", "Reader", "Statement", "Unwritten", "expanded", "op"]
