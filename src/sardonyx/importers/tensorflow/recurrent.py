"""Loops of TensorFlow that are recurrent layers, as the operators of ONNX.

A loop is taken for layers if it reads one element of a list after the other, and every state that
it carries belongs to a cell of `cells`. Cells on top of each other are one operator each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import constant
from sardonyx.importers.tensorflow.cells import Body, Cell, Term, cell_of, operands, origin
from sardonyx.importers.tensorflow.lists import TensorList
from sardonyx.importers.tensorflow.writer import Writer

T = ir.DataType
PASSED_ON = ("Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze")
OUTPUTS = {"LSTM": 3, "GRU": 2, "RNN": 2}


def cells(
    body: Body,
    states: Mapping[ir.Value, ir.Value],
    sequences: set[ir.Value],
) -> list[Cell] | None:
    """The cells that carry all states, each after those that it reads; None where there are others.

    states    -- each before and after an iteration
    sequences -- values of an iteration that are elements of a list; the outputs of cells are added
    """
    rest, order = dict(states), list[Cell]()
    while rest:
        for state, following in rest.items():
            others = [pair for pair in rest.items() if pair[0] is not state]
            cell = cell_of(body, state, following, others)
            if cell is not None and cell.x in sequences and _is_single(cell):
                order.append(cell)
                sequences.add(origin(following))
                rest = {k: v for k, v in rest.items() if k not in cell.states}
                break
        else:
            return None
    return order


def _is_single(cell: Cell) -> bool:
    """Whether all numbers are float32, for which every runtime has these operators."""
    weights = [t.weight for gate in cell.gates for t in gate]
    return all(v.dtype == T.FLOAT for v in (cell.x, *cell.states, *weights))


class Layers:
    """Writes cells over whole sequences; `outside` are values of the body, computed before it."""

    def __init__(self, op: Writer, body: Body):
        self.op, self.body = op, body
        self.outside: dict[ir.Value, ir.Value] = {}

    def layer(
        self, cell: Cell, x: ir.Value, starts: Sequence[ir.Value]
    ) -> tuple[ir.Value, list[ir.Value]]:
        """All outputs of a cell over the sequence `x`, time first, and its last states."""
        op = self.op
        states = [op.Unsqueeze(start, [0]) for start in starts]
        w, r = (self._matrix(cell, source) for source in (cell.x, cell.states[0]))
        attributes: dict[str, Any] = {"hidden_size": cell.units}
        attributes["activations"] = list(cell.activations)
        values: list[Any] = [x, w, r, self._bias(cell), None, *states]
        if cell.kind == "GRU":
            attributes["linear_before_reset"] = int(cell.resets_after)
        if any(t.is_diagonal for gate in cell.gates for t in gate):
            values.append(self._diagonals(cell))
        results = op.call(cell.kind, values, attributes, outputs=OUTPUTS[cell.kind])
        every, *last = results
        return op.Squeeze(every, [1]), [op.Squeeze(state, [0]) for state in last]

    def _matrix(self, cell: Cell, source: ir.Value) -> ir.Value:
        """The matrices of all gates as ONNX has them: [1, gates · units, columns]."""
        op = self.op
        terms = [_the(t for t in g if t.source is source and not t.is_diagonal) for g in cell.gates]
        joined = self._joined(terms, 1)
        rows = terms[0].rows
        if rows is not None:
            joined = op.part(joined, 0, *rows)
        return op.Unsqueeze(op.Transpose(joined, perm=[1, 0]), [0])

    def _bias(self, cell: Cell) -> ir.Value | None:
        """The vectors beside the products with the input, then those beside the state's."""
        gates = [[t for t in gate if t.source is None] for gate in cell.gates]
        if not any(gates):
            return None
        inner = {t.weight for gate in gates for t in gate if t.reset is not None}
        halves = [
            [[t for t in gate if (t.weight in inner) == is_inner] for gate in gates]
            for is_inner in (False, True)
        ]
        return self.op.Unsqueeze(
            self.op.Concat(*(self._vectors(half, cell.units) for half in halves), axis=0), [0]
        )

    def _diagonals(self, cell: Cell) -> ir.Value:
        gates = [[t for t in gate if t.is_diagonal] for gate in cell.gates[:3]]
        return self.op.Unsqueeze(self._vectors(gates, cell.units), [0])

    def _vectors(self, gates: Sequence[Sequence[Term]], units: int) -> ir.Value:
        """The sums of vectors of each gate, one after the other."""
        op = self.op
        if not any(gates):
            return op.const(np.zeros(len(gates) * units, np.float32))
        if all(len(gate) == 1 and _size(gate[0]) for gate in gates):
            joined = self._joined([gate[0] for gate in gates], -1)
            return op.Reshape(joined, [-1])
        return op.Concat(*(self._vector(gate, units) for gate in gates), axis=0)

    def _vector(self, terms: Sequence[Term], units: int) -> ir.Value:
        op = self.op
        total = op.const(np.zeros(units, np.float32))
        for number, term in enumerate(terms):
            value = self._outside(term.weight)
            if _size(term):
                value = op.Reshape(op.part(value, -1, *term.columns), [-1])
            if number or not _size(term):  # a number is repeated by the sum
                value = op.Add(total, op.Reshape(value, [-1]))
            total = value
        return total

    def _joined(self, terms: Sequence[Term], axis: int) -> ir.Value:
        """Columns of matrices or vectors beside each other: all of one, where they are."""
        op, count = self.op, len(terms)
        wholes = {t.weight for t in terms}
        units = terms[0].columns[1] - terms[0].columns[0]
        places = [t.columns[0] // units for t in terms]
        value = self._outside(terms[0].weight)
        if len(wholes) == 1 and _size(terms[0]) == count * units:
            if places == list(range(count)):
                return value
            if sorted(places) == list(range(count)):
                parts = op.call("Split", [value], {"axis": -1, "num_outputs": count}, outputs=count)
                return op.Concat(*(parts[i] for i in places), axis=axis)
        pieces = [op.part(self._outside(t.weight), -1, *t.columns) for t in terms]
        return op.Concat(*pieces, axis=axis) if count > 1 else pieces[0]

    def _outside(self, value: ir.Value) -> ir.Value:
        """A value that no iteration changes, computed before the loop."""
        value = origin(value)
        node = value.producer()
        if node is None or node not in self.body.nodes:
            return value
        if value not in self.outside:
            inputs = [None if v is None else self._outside(v) for v in node.inputs]
            attributes = {a.name: a.value for a in node.attributes.values()}
            results = self.op.call(
                node.op_type, inputs, attributes, domain=node.domain, outputs=len(node.outputs)
            )
            self.outside.update(zip(node.outputs, results, strict=True))
        return self.outside[value]


def detach(nodes: Sequence[ir.Node]) -> None:
    """Let nodes that belong to no graph read nothing."""
    for node in nodes:
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                detach(list(attribute.as_graph()))
        for i in range(len(node.inputs)):
            node.replace_input_with(i, None)


def _the(terms: Any) -> Term:
    (term,) = terms
    return term


def _size(term: Term) -> int:
    """How many columns a weight has; 0 for a single number."""
    shape = term.weight.shape
    assert shape is not None
    size = shape[-1] if len(shape) else 1
    single = size == 1 and (term.columns[1] - term.columns[0] > 1 or not len(shape))
    return 0 if single or not isinstance(size, int) else size


def element_sequences(body: Body, counters: set[ir.Value]) -> dict[ir.Value, ir.Value]:
    """Values of an iteration that are the element of its number, and the lists that have them."""
    out = {}
    for node in body.nodes:
        if node.op_type != "Gather":
            continue
        data, index = operands(node)
        axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
        rank = None if data.shape is None else len(data.shape)
        if axis != 0 or rank != 3 or _number(index) not in counters or not body.is_fixed(data):
            continue
        for value in (node.outputs[0], *_squeezed(node.outputs[0])):
            if value.shape is not None and len(value.shape) == 2:
                out[value] = data
    return out


def _squeezed(value: ir.Value) -> list[ir.Value]:
    """A list of one element without its first axis."""
    nodes = [n for n in value.consumers() if n.op_type == "Squeeze" and len(n.inputs) == 2]
    axes = [constant(operands(n)[1]) for n in nodes]
    pairs = zip(nodes, axes, strict=True)
    return [n.outputs[0] for n, a in pairs if a is not None and a.reshape(-1).tolist() == [0]]


def _number(value: ir.Value) -> ir.Value:
    """A single number before its type and shape were changed."""
    node = value.producer()
    while node is not None and node.op_type in PASSED_ON:
        value = operands(node)[0]
        node = value.producer()
    return value


class RecurrentLoop:
    """A loop that may be recurrent layers.

    loop   -- of TensorFlow, with what each of its variables is
    inner  -- the writer of one iteration
    body   -- the graph of TensorFlow that it was read from
    inside -- the variables before the iteration
    new    -- and after it
    """

    def __init__(self, loop: Any, inner: Writer, body: Any, inside: list[Any], new: list[Any]):
        self.loop, self.inner, self.graph, self.inside, self.new = loop, inner, body, inside, new
        self.carried = [
            i for i in range(len(inside)) if i not in loop.kept and i not in loop.appended
        ]
        self.counters = [i for i in self.carried if self._counts(i)]
        self.last = {i: v for i in self.carried if (v := self._only_element(i)) is not None}

    def results(self) -> list[Any] | None:
        """The variables after the loop, from operators of ONNX; None where it is something else."""
        states = [i for i in self.carried if i not in self.counters and i not in self.last]
        if not states or not self.counters or not all(map(self._is_matrix, states)):
            return None
        changing = [self.inside[i] for i in self.carried if isinstance(self.inside[i], ir.Value)]
        changing += [self.inside[i].value for i in self.last]
        body = Body(self.inner.nodes, changing)
        lists = element_sequences(body, {self.inside[i] for i in self.counters})
        elements = set(lists)
        pairs = {self.inside[i]: self.new[i] for i in states}
        order = cells(body, pairs, elements)
        items = [self.new[i] for i in self.loop.appended] + list(self.last.values())
        if order is None or any(origin(v) not in elements for v in items):
            return None
        used = {cell.x: lists[cell.x] for cell in order if cell.x in lists}
        if not all(self._has_all(x) for x in used.values()) or not self._fits(order, used, states):
            return None
        return self._written(order, lists, states, Layers(self.loop.op, body))

    def _counts(self, i: int) -> bool:
        return isinstance(self.loop.operands[i], ir.Value) and self.loop.counts(i, self.graph)

    def _only_element(self, i: int) -> ir.Value | None:
        """The element of a list of one that each iteration writes anew."""
        operand, value = self.loop.operands[i], self.new[i]
        if not isinstance(operand, TensorList) or not isinstance(value, TensorList):
            return None
        count = None if operand.count is None else constant(operand.count)
        if operand.value is not None or count is None or count.reshape(-1)[0] != 1:
            return None
        node = None if value.value is None else value.value.producer()
        if node is None or node.op_type != "ScatterND" or node not in self.inner.nodes:
            return None
        item = operands(node)[2].producer()
        return operands(item)[0] if item is not None and item.op_type == "Unsqueeze" else None

    def _is_matrix(self, i: int) -> bool:
        values = self.loop.operands[i], self.inside[i], self.new[i]
        return all(
            isinstance(v, ir.Value) and v.shape is not None and len(v.shape) == 2 for v in values
        )

    def _has_all(self, x: ir.Value) -> bool:
        """Whether the loop reads all elements of a list, and no more."""
        op = self.loop.op
        sizes = op.shape_elements(x)
        return sizes is not None and bool(self.loop.fills(op.sized(sizes[:1], T.INT64)))

    def _fits(self, order: list[Cell], lists: dict[ir.Value, ir.Value], states: list[int]) -> bool:
        """Whether the first states have the rows of the sequences, as far as these are known."""
        (x, *_) = lists.values()
        rows = x.shape[1]  # type: ignore[index]
        starts = [self.loop.operands[i] for i in states]
        return not any(isinstance(s.shape[0], int) and s.shape[0] != rows for s in starts)

    def _written(
        self, order: list[Cell], lists: dict[ir.Value, ir.Value], states: list[int], layers: Layers
    ) -> list[Any]:
        loop, op = self.loop, self.loop.op
        starts = {self.inside[i]: loop.operands[i] for i in states}
        finals: dict[ir.Value, ir.Value] = {}
        for cell in order:
            every, last = layers.layer(cell, lists[cell.x], [starts[s] for s in cell.states])
            lists[origin(cell.following[0])] = every
            finals |= dict(zip(cell.states, last, strict=True))
        results = list(loop.operands)
        for i in states:
            results[i] = finals[self.inside[i]]
        length = op.dim_value(lists[order[0].x], 0)
        for i in self.counters:
            results[i] = op.cast(op.Squeeze(length, [0]), loop.operands[i].dtype)
        outputs = {origin(cell.following[0]): finals[cell.states[0]] for cell in order}
        for i, item in self.last.items():
            element = outputs.get(origin(item))
            if element is None:  # an element of the input
                element = op.Gather(lists[origin(item)], op.const(np.int64(-1)), axis=0)
            results[i] = TensorList(loop.operands[i].dtype, op.Unsqueeze(element, [0]))
        for i in loop.appended:
            results[i] = TensorList(self.new[i].dtype, lists[origin(self.new[i])])
        detach(self.inner.nodes)
        return results
