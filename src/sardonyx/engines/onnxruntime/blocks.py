"""Updates of large variables, block by block: what the update computes stays in the cache.

An optimizer's update is a dozen operators that each read and write whole tensors. Where a variable
is larger than the caches, all of these pass through memory. Here the elementwise nodes that lead to
the new values of a parameter and its slots become the body of one `Scan` over blocks of them: a
scan reads slices of its inputs where they lie and writes its outputs slice by slice, so that
nothing is copied, and what is in between has the size of a block. A transpose of the gradient moves
into the body too. Every element is computed by the same operators in the same order: the numbers
are the same to the bit.

The outputs then have the shape of the blocks; `step.py` binds the same memory under that shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from sardonyx.build import is_static, static

NAME = "sardonyx/blocks"
LARGE = 1 << 20  # elements: below, nothing is gained on two threads (bench/train.py)
PER_THREAD = 1 << 15  # elements of a block for each thread
SMALLEST, LARGEST = 1 << 16, 1 << 20
FEWEST = 6  # nodes: less is not worth a loop
ELEMENTWISE = (
    *("Abs", "Add", "Cast", "Clip", "Div", "Equal", "Exp", "Greater", "GreaterOrEqual", "Less"),
    *("LessOrEqual", "Log", "Max", "Min", "Mul", "Neg", "Pow", "Reciprocal", "Sign", "Sqrt"),
    *("Sub", "Tanh", "Where"),
)
TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


def is_block_update(node: ir.Node) -> bool:
    """Whether a node is a scan of this module, which writes each block after it has read it."""
    return node.op_type == "Scan" and (node.name or "").startswith(NAME)


def update_in_blocks(
    graph: ir.Graph, updates: Mapping[str, str], threads: int
) -> dict[str, tuple[int, ...]]:
    """Rewrite the updates that gain from it: variable → the shape in which its output comes."""
    inputs = {v.name: v for v in graph.inputs}
    outputs = {v.name: v for v in graph.outputs}
    variables: dict[ir.Value, ir.Value] = {}  # the new value → the variable
    for name, output in updates.items():
        new, old = outputs[output], inputs.get(name)
        if old is not None and new.producer() is not None and _is_large(old):
            variables[new] = old
    size = min(max(PER_THREAD * threads, SMALLEST), LARGEST)
    shapes: dict[str, tuple[int, ...]] = {}
    for part in _parts(variables):
        if not part.is_safe(variables) or len(part.nodes) < FEWEST:
            continue
        if (plan := _plan(part, size)) is not None:
            shapes |= _Writing(graph, part, plan).replace(variables)
    return shapes


def _is_large(value: ir.Value) -> bool:
    return value.dtype in TYPES and is_static(value) and math.prod(static(value)) >= LARGE


# -- which nodes ----------------------------------------------------------------------------


@dataclass
class _Part:
    """Elementwise nodes over one shape that belong together, in order."""

    shape: tuple[int, ...]
    nodes: list[ir.Node] = field(default_factory=list)

    def outputs(self, variables: Mapping[ir.Value, ir.Value]) -> list[ir.Value]:
        return [v for node in self.nodes for v in node.outputs if v in variables]

    def inputs(self) -> list[ir.Value]:
        """The tensors that come in from outside, each once."""
        inside = {v for node in self.nodes for v in node.outputs}
        read = (v for node in self.nodes for v in node.inputs if v is not None)
        return list(dict.fromkeys(v for v in read if v not in inside and _has(v, self.shape)))

    def is_safe(self, variables: Mapping[ir.Value, ir.Value]) -> bool:
        """Whether no node could see the new value of a variable in place of the old one.

        The body writes over the variables: all that reads an old value must come before the node
        that writes the new one, by data.
        """
        inside = set(self.nodes)
        for new in self.outputs(variables):
            if any(node not in inside for node in new.consumers()):
                return False
            before = self._ancestors(new)
            readers = [n for n in variables[new].consumers() if n in inside]
            if any(reader not in before for reader in readers):
                return False
        return True

    def _ancestors(self, value: ir.Value) -> set[ir.Node]:
        """The nodes of this part on which a value depends, its own included."""
        inside, seen = set(self.nodes), set()
        pending = [value.producer()]
        while pending:
            node = pending.pop()
            if node in inside and node not in seen:
                seen.add(node)
                pending += [v.producer() for v in node.inputs if v is not None]
        return seen


def _has(value: ir.Value, shape: tuple[int, ...]) -> bool:
    return is_static(value) and static(value) == shape


def _is_elementwise(node: ir.Node | None, shape: tuple[int, ...]) -> bool:
    """Whether a node combines tensors of this shape, and numbers, element by element."""
    if node is None or node.domain != "" or node.op_type not in ELEMENTWISE:
        return False
    values = [v for v in node.inputs if v is not None]
    numbers = [v for v in values if not _has(v, shape)]
    if any(not is_static(v) or len(static(v)) > 1 or math.prod(static(v)) != 1 for v in numbers):
        return False
    return len(node.outputs) == 1 and _has(node.outputs[0], shape) and len(numbers) < len(values)


def _parts(variables: Mapping[ir.Value, ir.Value]) -> list[_Part]:
    """The nodes that lead to new values and to nothing else, by what is connected."""
    group: dict[ir.Node, ir.Node] = {}

    def root(node: ir.Node) -> ir.Node:
        while group[node] is not node:
            node = group[node]
        return node

    nodes = _reached(variables)
    for node in nodes:
        group[node] = node
    for node in nodes:
        for value in node.inputs:
            maker = value.producer() if value is not None else None
            if maker in group:
                group[root(maker)] = root(node)
    parts: dict[ir.Node, _Part] = {}
    for node in nodes:
        shape = static(node.outputs[0])
        parts.setdefault(root(node), _Part(shape)).nodes.append(node)
    return list(parts.values())


def _reached(variables: Mapping[ir.Value, ir.Value]) -> list[ir.Node]:
    """Elementwise nodes behind the new values, without those that something else reads too."""
    reached: dict[ir.Node, None] = {}
    for new in variables:
        pending = [new.producer()]
        while pending:
            node = pending.pop()
            if node not in reached and _is_elementwise(node, static(new)):
                assert node is not None
                reached[node] = None
                pending += [v.producer() for v in node.inputs if v is not None]
    while True:
        shared = [
            node
            for node in reached
            if node.outputs[0] not in variables
            and (
                node.outputs[0].is_graph_output()
                or any(reader not in reached for reader in node.outputs[0].consumers())
            )
        ]
        if not shared:
            return _in_order(reached)
        for node in shared:
            del reached[node]


def _in_order(nodes: Iterable[ir.Node]) -> list[ir.Node]:
    """The nodes as they stand in their graph."""
    members = set(nodes)
    graph = next((node.graph for node in members), None)
    return [node for node in graph if node in members] if graph is not None else []


# -- which blocks ---------------------------------------------------------------------------


@dataclass
class _Plan:
    """How a part is cut: `count` blocks of `block`, and the transposes that move inside."""

    count: int
    block: tuple[int, ...]
    transposes: dict[ir.Value, ir.Node] = field(default_factory=dict)


def _plan(part: _Part, size: int) -> _Plan | None:
    """Blocks of rows where a transpose moves inside, else of any elements."""
    rows, row = part.shape[0], math.prod(part.shape[1:])
    inside = set(part.nodes)
    transposes = {v: n for v in part.inputs() if (n := _row_transpose(v, inside)) is not None}
    many = _divisor(rows, size // row) if transposes and row <= size else 0
    if many * row * 8 >= size:
        return _Plan(rows // many, (many, *part.shape[1:]), transposes)
    total = rows * row
    block = _divisor(total, size)
    return _Plan(total // block, (block,)) if block * 8 >= size else None


def _row_transpose(value: ir.Value, inside: set[ir.Node]) -> ir.Node | None:
    """The Transpose behind a value that only these nodes read, if it leaves the first axis."""
    node = value.producer()
    if node is None or node.op_type != "Transpose" or node.domain != "":
        return None
    source, order = node.inputs[0], node.attributes.get_ints("perm", ())
    if source is None or source.producer() is None or not is_static(source):
        return None
    if value.is_graph_output() or any(reader not in inside for reader in value.consumers()):
        return None
    return node if order and order[0] == 0 else None


def _divisor(number: int, limit: int) -> int:
    """The largest divisor of a number up to a limit."""
    if number <= limit:
        return number
    small = (d for d in range(1, math.isqrt(number) + 1) if number % d == 0)
    return max((d for s in small for d in (s, number // s) if d <= limit), default=1)


# -- the scan -------------------------------------------------------------------------------


class _Writing:
    """Writes the scan of one part.

    A body reads nothing from outside but slices: onnxruntime (1.31.1) removes a chain of casts
    although a body reads what it makes, and frees a number that only a body reads. So a number is a
    vector of as many equal elements as there are blocks, and constants are the body's own.
    """

    def __init__(self, graph: ir.Graph, part: _Part, plan: _Plan):
        self.graph, self.part, self.plan = graph, part, plan
        self.name = ""
        self.before: list[ir.Node] = []  # in the graph, before the scan
        self.nodes: list[ir.Node] = []  # of the body
        self.inside: dict[ir.Value, ir.Value] = {}  # a value of the graph → that of the body
        self.slices: dict[ir.Value, ir.Value] = {}  # an input of the scan → that of the body
        self.constants: list[ir.Value] = []

    def replace(self, variables: Mapping[ir.Value, ir.Value]) -> dict[str, tuple[int, ...]]:
        """Put the scan in the place of the nodes; variable → the shape of its new value."""
        new_values = self.part.outputs(variables)
        self.name = f"{NAME}/{new_values[0].name}"
        for value in self.part.inputs():
            self._read(value)
        for node in self.part.nodes:
            self._copy(node)
        scan = self._scan(new_values)
        self.graph.insert_after(self.part.nodes[-1], [*self.before, scan])
        shape = (self.plan.count, *self.plan.block)
        for old, new in zip(new_values, scan.outputs, strict=True):
            new.type, new.shape, new.name = old.type, ir.Shape(shape), old.name
            old.name = f"{old.name}/whole"
            self.graph.outputs[list(self.graph.outputs).index(old)] = new
        old_nodes = [*self.part.nodes, *self.plan.transposes.values()]
        self.graph.remove(old_nodes, safe=False)
        return {variables[old].name or "": shape for old in new_values}

    def _scan(self, new_values: list[ir.Value]) -> ir.Node:
        outputs = [self.inside[v] for v in new_values]
        body = ir.Graph(
            list(self.slices.values()),
            outputs,
            nodes=self.nodes,
            initializers=self.constants,
            name=f"{self.name}/body",
        )
        attributes = [ir.AttrGraph("body", body), ir.AttrInt64("num_scan_inputs", len(self.slices))]
        count = len(new_values)
        return ir.Node("", "Scan", list(self.slices), attributes, num_outputs=count, name=self.name)

    def _read(self, value: ir.Value) -> None:
        """A tensor, block by block; a transpose of it is done in the body."""
        moved = self.plan.transposes.get(value)
        source = moved.inputs[0] if moved is not None else value
        assert source is not None
        if source not in self.inside:
            rows = len(self.plan.block) > 1
            sizes = (self.plan.block[0], *static(source)[1:]) if rows else self.plan.block
            self.inside[source] = self._sliced("Reshape", source, sizes)
        if moved is not None:
            self._copy(moved)

    def _number(self, value: ir.Value) -> ir.Value:
        tensor = value.const_value if value.is_initializer() else None
        if tensor is None:
            return self._sliced("Expand", value, (1,))
        constant = ir.Value(name=f"{self.name}/{value.name}")
        constant.const_value = ir.tensor(tensor.numpy(), name=constant.name)
        constant.type, constant.shape = value.type, value.shape
        self.constants.append(constant)
        return constant

    def _sliced(self, op_type: str, value: ir.Value, sizes: tuple[int, ...]) -> ir.Value:
        """What the body has of a value that is given the shape of all blocks."""
        number = len(self.slices)
        all_sizes = np.array([self.plan.count, *sizes], np.int64)
        shape = _constant(self.graph, all_sizes, f"{self.name}/shape_{number}")
        node = ir.node(op_type, [value, shape], name=f"{self.name}/{op_type}_{number}")
        (view,) = node.outputs
        view.name, view.type = f"{self.name}/blocks_{number}", value.type
        view.shape = ir.Shape(all_sizes.tolist())
        self.before.append(node)
        block = ir.Value(name=f"{value.name}/block", type=value.type, shape=ir.Shape(sizes))
        self.slices[view] = block
        return block

    def _copy(self, node: ir.Node) -> None:
        """A node, over blocks."""
        for value in node.inputs:
            if value is not None and value not in self.inside:
                self.inside[value] = self._number(value)
        inputs = [self.inside[v] if v is not None else None for v in node.inputs]
        copy = ir.Node("", node.op_type, inputs, node.attributes.values(), num_outputs=1)
        copy.name = f"{node.name}/block"
        value, out = node.outputs[0], copy.outputs[0]
        out.name, out.type, out.shape = f"{value.name}/block", value.type, ir.Shape(self.plan.block)
        self.inside[value] = out
        self.nodes.append(copy)


def _constant(graph: ir.Graph, array: np.ndarray, name: str) -> ir.Value:
    value = ir.Value(name=name, const_value=ir.tensor(array, name=name))
    value.type, value.shape = ir.TensorType(ir.DataType.INT64), ir.Shape(array.shape)
    graph.register_initializer(value)
    return value
