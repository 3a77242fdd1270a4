"""Loops over the steps of sequences as one node: a `Scan` of products and elementwise nodes.

A recurrent layer is two of them, forward and backward (grad/rnn). All that a body may contain works
on the rows of a batch one by one: products with a matrix from outside, elementwise operators,
columns that are cut and joined. Other loops stay as they are. Elementwise nodes before a loop
whose results only the loop reads are computed in it: gates and their slopes are then read once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from sardonyx.build import is_static, static
from sardonyx.engines.onnxruntime.kernels.loop_program import Buffer, LoopProgram, Pieces, width
from sardonyx.engines.onnxruntime.kernels.program import ARITY, DOMAIN, single_number
from sardonyx.passes.nesting import bodies

FLOAT, BOOL = ir.DataType.FLOAT, ir.DataType.BOOL
PRODUCTS = (("", "MatMul"), ("", "Gemm"), ("com.microsoft", "FusedMatMul"))
FUSED_GEMM = ("com.microsoft", "FusedGemm")  # what onnxruntime makes of a product and an activation
MOST_VALUES = 64  # of each kind that a loop reads or writes
LARGEST = 1 << 23  # elements of a matrix that every thread reads in every step
STEPS = ROWS = 32  # how many an unknown number is taken to be


class _Unsupported(Exception):
    """A loop that stays as it is."""


@dataclass
class Loops:
    """What becomes of the loops of a graph.

    nodes -- Scan → the node that takes its place; not yet in the graph
    taken -- nodes outside the bodies that the new nodes compute themselves
    """

    nodes: dict[ir.Node, _Loop] = field(default_factory=dict)
    taken: set[ir.Node] = field(default_factory=set)
    texts: dict[str, int] = field(default_factory=dict)

    def work(self) -> int:
        return sum(loop.work() for loop in self.nodes.values())

    def bodies(self) -> set[ir.Graph]:
        return {body for node in self.nodes for body in bodies(node)}

    def source(self) -> str:
        """The C text of all functions, and how they are found."""
        head = (
            "const void *const *read, float *const *write, const float *const *now, "
            "float *const *next, const float *const *outer, float *const *temp, "
            "const float *const *matrix, int64_t rows, float *panels"
        )
        unused = "(void)read, (void)write, (void)now, (void)next, (void)outer, (void)temp"
        end = f"  {unused}, (void)matrix, (void)panels;\n}}\n"
        functions = [
            f"static void loop_{i}({head}) {{\n  {text}\n{end}" for text, i in self.texts.items()
        ]
        cases = "".join(f"  if (number == {i}) return loop_{i};\n" for i in self.texts.values())
        cases += "  return (void)number, (LoopBody)0;\n"
        found = f"static LoopBody loop_body(int64_t number) {{\n{cases}}}"
        return "\n".join([*functions, found])

    def replace(self, graph: ir.Graph) -> None:
        """Put the new nodes into the graph."""
        packed: dict[tuple[ir.Value, int], ir.Value] = {}
        for scan, loop in self.nodes.items():
            loop.pack(graph, packed)
            graph.insert_after(scan, loop.node)
            for old, new in zip(loop.results, loop.node.outputs, strict=True):
                new.type, new.shape = old.type, old.shape
                new.name, old.name = old.name, f"{old.name}/before"
                ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
            graph.remove(scan, safe=True)
        for node in reversed([n for n in graph if n in self.taken]):
            graph.remove(node, safe=True)


def choose_loops(graph: ir.Graph, threads: int) -> Loops:
    """The loops of a graph that one node each can compute."""
    loops = Loops()
    for node in graph:
        if node.op_type != "Scan" or node.domain != "":
            continue
        loop = _Loop(node, graph)
        try:
            text = loop.text()
        except _Unsupported:
            continue
        number = loops.texts.setdefault(text, len(loops.texts))
        loop.make(number, threads)
        loops.nodes[node] = loop
        loops.taken |= loop.sunk
    return loops


class _Loop:
    """Reads a Scan and its body."""

    def __init__(self, scan: ir.Node, graph: ir.Graph):
        self.scan, self.graph = scan, graph
        self.program = LoopProgram()
        self.known: dict[ir.Value, Pieces] = {}  # of the body
        self.reads: dict[tuple[ir.Value, int], Buffer] = {}
        self.outers: dict[ir.Value, Buffer] = {}
        self.matrices: dict[tuple[ir.Value, int], int] = {}
        self.sizes: list[tuple[int, int]] = []  # of matrices: depth and columns
        self.results: list[ir.Value] = []
        self.writes: list[tuple[int, int]] = []
        self.sunk: set[ir.Node] = set()
        self.rows: int | str = 0

    def work(self) -> int:
        """Multiplications of the whole loop."""
        first = self.sequences[0].shape
        sizes = [d if isinstance(d, int) else STEPS for d in (first or (STEPS, ROWS))][:2]
        return math.prod(sizes) * sum(depth * columns for depth, columns in self.sizes)

    # -- the loop as a whole ----------------------------------------------------------

    def text(self) -> str:
        self._open()
        for node in self.body:
            self._node(node)
        self._close()
        text = self.program.text()
        counts = (self.reads, self.outers, self.matrices, self.writes, self.program.temps)
        if any(len(c) > MOST_VALUES for c in counts) or not self.program.products:
            raise _Unsupported
        return text

    def _open(self) -> None:
        scan, attributes = self.scan, self.scan.attributes
        (self.body,) = bodies(scan)
        values = list(scan.inputs)
        count = attributes.get_int("num_scan_inputs", 0)
        if any(v is None for v in values) or not 0 < count < len(values):
            raise _Unsupported
        inputs = [v for v in values if v is not None]
        self.states, self.sequences = inputs[:-count], inputs[-count:]
        axes = ("scan_input_axes", "scan_output_axes")
        if any(any(attributes.get_ints(n, ())) for n in axes):
            raise _Unsupported
        self.inward = list(attributes.get_ints("scan_input_directions", ()) or [0] * count)
        written = len(scan.outputs) - len(self.states)
        self.outward = list(attributes.get_ints("scan_output_directions", ()) or [0] * written)
        self.rows = _named(self.body.inputs[0], 2)[0]
        self._sink()
        for i, value in enumerate(self.body.inputs):
            if i < len(self.states):
                self._state(i, value)
            else:
                self._sequence(i - len(self.states), value)

    def _state(self, i: int, value: ir.Value) -> None:
        rows, columns = _named(value, 2)
        if _named(self.states[i], 2) != (rows, columns) or value.dtype != FLOAT:
            raise _Unsupported
        buffer = Buffer("now", i, self._columns(rows, columns), f"PADDED({columns})")
        self.known[value] = self.program.load(buffer, 0, buffer.width)

    def _sequence(self, i: int, value: ir.Value) -> None:
        rows, columns = _named(value, 2)
        outside = self.sequences[i]
        if _named(outside, 3)[1:] != (rows, columns):
            raise _Unsupported
        self._columns(rows, columns)
        self.known[value] = self._outside(outside, self.inward[i])

    def _columns(self, rows: int | str, columns: int | str) -> int:
        if rows != self.rows or not isinstance(columns, int):
            raise _Unsupported
        return columns

    def _close(self) -> None:
        results = zip(self.body.outputs, self.scan.outputs, strict=True)
        for i, (inside, outside) in enumerate(results):
            if inside.dtype != FLOAT or inside not in self.known:
                raise _Unsupported
            pieces = self.known[inside]
            columns = _named(inside, 2)[1]
            if not isinstance(columns, int) or columns not in (1, width(pieces)):
                raise _Unsupported
            if width(pieces) != columns:
                raise _Unsupported
            if i < len(self.states):
                if columns != _named(self.states[i], 2)[1]:
                    raise _Unsupported
                buffer = Buffer("next", i, columns, f"PADDED({columns})")
            elif outside.uses() or outside.is_graph_output():
                buffer = Buffer("write", len(self.writes), columns, str(columns))
                self.writes.append((columns, self.outward[i - len(self.states)]))
            else:
                continue
            self.program.stores[buffer] = pieces
            self.results.append(outside)

    def make(self, number: int, threads: int) -> None:
        """The node; its matrices are not in panels yet."""
        widths = [b.width for b in self.reads.values()]
        counts = [len(c) for c in (self.states, self.reads, self.writes, self.outers)]
        settings = [number, threads, *counts, len(self.matrices), len(self.program.temps)]
        settings += [int(_named(v, 2)[1]) for v in self.states]
        for ((_, direction), buffer), columns in zip(self.reads.items(), widths, strict=True):
            settings += [columns, int(buffer.flag), direction]
        settings += [n for pair in self.writes for n in pair]
        for buffer in self.outers.values():
            settings += [buffer.width, int(buffer.row != "0")]
        settings += [n for pair in self.sizes for n in pair]
        settings += self.program.temps
        inputs = [*self.states, *(v for v, _ in self.reads), *self.outers]
        inputs += [v for v, _ in self.matrices]
        self.node = ir.Node(
            DOMAIN,
            "Recurrence",
            inputs,
            [ir.AttrInt64s("recurrence", settings)],
            num_outputs=len(self.results),
            name=f"{self.scan.name}/loop",
        )

    def pack(self, graph: ir.Graph, packed: dict[tuple[ir.Value, int], ir.Value]) -> None:
        """Give the node its matrices in panels, each made once in the graph."""
        first = len(self.node.inputs) - len(self.matrices)
        transposes = [transposed for _, transposed in self.matrices]
        for index, transposed in enumerate(transposes, first):
            matrix = self.node.inputs[index]
            assert matrix is not None
            key = (matrix, transposed)
            if key not in packed:
                attribute = ir.AttrInt64s("product", [0, transposed, 1])
                maker = ir.Node(DOMAIN, "Pack", [matrix], [attribute], num_outputs=1)
                maker.name = f"{matrix.name}/panels_{transposed}"
                (packed[key],) = maker.outputs
                packed[key].name, packed[key].type = maker.name, matrix.type
                graph.append(maker)
            self.node.replace_input_with(index, packed[key])

    # -- what comes from outside ------------------------------------------------------

    def _sink(self) -> None:
        """Find elementwise nodes before the loop that only the loop reads, directly or not."""
        inside = {self.scan}
        pending = list(self.sequences)
        while pending:
            value = pending.pop()
            node = value.producer()
            if node is None or node in inside or not self._can_sink(node):
                continue
            if value.is_graph_output() or any(n not in inside for n in value.consumers()):
                continue  # met again when its last reader has been added
            inside.add(node)
            pending += [v for v in node.inputs if v is not None]
        self.sunk = inside - {self.scan}

    def _can_sink(self, node: ir.Node) -> bool:
        if node.graph is not self.graph or node.domain != "" or len(node.outputs) != 1:
            return False
        shape = _named_or_none(node.outputs[0], 3)
        if shape is None or shape[:2] != _named(self.sequences[0], 3)[:2]:
            return False
        if node.op_type == "Concat":
            if node.attributes.get_int("axis", 0) not in (2, -1):
                return False
        elif node.op_type not in ARITY or not _is_plain(node):
            return False
        return all(self._is_leaf(v, shape[:2]) for v in node.inputs if v is not None)

    def _is_leaf(self, value: ir.Value, lead: tuple[int | str, ...]) -> bool:
        """Whether the loop can read a value: of each step and row, or the same for all."""
        if value.dtype not in (FLOAT, BOOL):
            return False
        if single_number(value) is not None:
            return True
        shape = _named_or_none(value, 3)
        if shape is not None and shape[:2] == lead and isinstance(shape[2], int):
            return True
        return value.dtype == FLOAT and _is_row(value)

    def _outside(self, value: ir.Value, direction: int) -> Pieces:
        """A sequence, or the expression that makes it."""
        node = value.producer()
        if node in self.sunk:
            assert node is not None
            lead = _named(value, 3)[:2]
            parts = []
            for operand in (v for v in node.inputs if v is not None):
                shape = _named_or_none(operand, 3)
                if single_number(operand) is None and shape is not None and shape[:2] == lead:
                    parts.append(self._outside(operand, direction))
                else:
                    parts.append(self._outer(operand))
            if node.op_type == "Concat":
                return tuple(p for part in parts for p in part)
            return self._apply(node.op_type, parts)
        columns = _named(value, 3)[2]
        if not isinstance(columns, int) or value.dtype not in (FLOAT, BOOL):
            raise _Unsupported
        key = (value, direction)
        if key not in self.reads:
            flag = value.dtype == BOOL
            self.reads[key] = Buffer("read", len(self.reads), columns, str(columns), flag)
        return self.program.load(self.reads[key], 0, columns)

    def _outer(self, value: ir.Value) -> Pieces:
        """A value that is the same in all steps."""
        number = single_number(value)
        if number is not None:
            return self.program.number(number)
        if value.is_initializer() and value.graph is not self.graph:
            raise _Unsupported
        if value.dtype != FLOAT:
            raise _Unsupported
        if value not in self.outers:
            if _is_row(value):
                columns, row = math.prod(static(value)), "0"
            else:
                columns = self._columns(*_named(value, 2))
                row = str(columns)
            self.outers[value] = Buffer("outer", len(self.outers), columns, row)
        buffer = self.outers[value]
        return self.program.load(buffer, 0, buffer.width)

    # -- the body ---------------------------------------------------------------------

    def _value(self, value: ir.Value | None) -> Pieces:
        if value is None:
            raise _Unsupported
        if value in self.known:
            return self.known[value]
        maker = value.producer()
        if maker is not None and maker.graph is self.body:
            raise _Unsupported
        return self._outer(value)

    def _node(self, node: ir.Node) -> None:
        if bodies(node):
            raise _Unsupported
        kind = (node.domain, node.op_type)
        if kind in PRODUCTS or kind == FUSED_GEMM:
            results = [self._product(node)]
        elif kind == ("", "Split"):
            results = self._split(node)
        elif kind == ("", "Concat"):
            if node.attributes.get_int("axis", 0) not in (1, -1):
                raise _Unsupported
            for value in node.inputs:
                self._rows_of(value)
            results = [tuple(p for v in node.inputs for p in self._value(v))]
        elif node.domain == "" and (node.op_type in ARITY or node.op_type == "Sum"):
            results = [self._elementwise(node)]
        else:
            raise _Unsupported
        for value, pieces in zip(node.outputs, results, strict=True):
            self.known[value] = pieces
            if _named(value, 2) != (self.rows, width(pieces)):
                raise _Unsupported

    def _rows_of(self, value: ir.Value | None) -> None:
        if value is None or _named(value, 2)[0] != self.rows:
            raise _Unsupported

    def _elementwise(self, node: ir.Node) -> Pieces:
        if not _is_plain(node):
            raise _Unsupported
        values = [v for v in node.inputs if v is not None]
        parts = [self._value(v) for v in values]
        if node.op_type == "Sum":
            return self._apply("Add", parts) if len(parts) > 1 else parts[0]
        return self._apply(node.op_type, parts)

    def _apply(self, operator: str, parts: Sequence[Pieces]) -> Pieces:
        widths = {width(p) for p in parts} - {1}
        if len(widths) > 1 or len(parts) < ARITY[operator]:
            raise _Unsupported
        if operator == "Identity":
            return parts[0]
        result = self.program.apply(operator, parts[: ARITY[operator]])
        for other in parts[ARITY[operator] :]:  # Max, Min and Sum take any number
            result = self.program.apply(operator, [result, other])
        return result

    def _split(self, node: ir.Node) -> list[Pieces]:
        source = node.inputs[0]
        if source not in self.known or node.attributes.get_int("axis", 0) not in (1, -1):
            raise _Unsupported
        pieces, at, results = self.known[source], 0, []
        for value in node.outputs:
            columns = self._columns(*_named(value, 2))
            results.append(self.program.cut(pieces, at, at + columns))
            at += columns
        if at != width(pieces):
            raise _Unsupported
        return results

    def _product(self, node: ir.Node) -> Pieces:
        transposed = _form(node)
        a, b, *rest = node.inputs
        if a not in self.known or b is None or not self._is_matrix(b) or len(rest) > 1:
            raise _Unsupported
        shape = _named(b, 2)
        depth, columns = (int(n) for n in (reversed(shape) if transposed else shape))
        left = self.known[a]
        if width(left) != depth or depth * columns > LARGEST:
            raise _Unsupported
        key = (b, transposed)
        if key not in self.matrices:
            self.matrices[key] = len(self.matrices)
            self.sizes.append((depth, columns))
        result = self.program.multiply(left, self.matrices[key], depth, columns)
        if rest and rest[0] is not None:
            result = self._apply("Add", [result, self._value(rest[0])])
        if (node.domain, node.op_type) == FUSED_GEMM:
            activation = node.attributes.get_string("activation", "")
            if activation not in ("Relu", "Tanh", "Sigmoid"):
                raise _Unsupported
            result = self._apply(activation, [result])
        return result

    def _is_matrix(self, value: ir.Value) -> bool:
        if value.dtype != FLOAT or not is_static(value) or len(value.shape or ()) != 2:
            return False
        maker = value.producer()
        if maker is not None:
            return maker.graph is self.graph
        return value.graph is self.graph


def _form(node: ir.Node) -> int:
    """Whether the second matrix of a plain product is transposed."""
    attributes = node.attributes
    factors = [attributes.get_float(name, 1.0) for name in ("alpha", "beta")]
    others = [attributes.get_int(n, 0) for n in ("transA", "transBatchA", "transBatchB")]
    if factors != [1.0, 1.0] or any(others):
        raise _Unsupported
    return attributes.get_int("transB", 0)


def _is_plain(node: ir.Node) -> bool:
    """Whether an elementwise node computes float or bool from float or bool."""
    values = [*(v for v in node.inputs if v is not None), *node.outputs]
    if node.op_type == "Cast" and node.outputs[0].dtype != FLOAT:
        return False
    return {v.dtype for v in values} <= {FLOAT, BOOL}


def _is_row(value: ir.Value) -> bool:
    """Whether a value is one row of static size, whatever leading axes of one element it has."""
    if value.shape is None or not is_static(value) or len(value.shape) > 3:
        return False
    sizes = [int(d) for d in value.shape if isinstance(d, int)]
    return all(size == 1 for size in sizes[:-1]) and all(sizes)


def _named_or_none(value: ir.Value, rank: int) -> tuple[int | str, ...] | None:
    """The sizes of a value that has so many axes, each a number above 0 or a name."""
    if value.shape is None or len(value.shape) != rank:
        return None
    sizes = [d if isinstance(d, int) else d.value for d in value.shape]
    named = tuple(d for d in sizes if d is not None and d != 0)
    return named if len(named) == rank else None


def _named(value: ir.Value, rank: int) -> tuple[int | str, ...]:
    shape = _named_or_none(value, rank)
    if shape is None:
        raise _Unsupported
    return shape
