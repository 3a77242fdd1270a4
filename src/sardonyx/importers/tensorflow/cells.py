"""Cells of recurrent layers, told by the equations in the body of a loop: LSTM, GRU and RNN.

A body is nodes of ONNX. The sum before an activation is split into products: of the input or a
state with columns of a matrix that no iteration changes, and vectors beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx_ir as ir

from sardonyx.build import constant

# The activations without settings that ONNX's recurrent operators know.
ACTIVATIONS = frozenset(["Tanh", "Sigmoid", "Relu", "Softsign", "Softplus"])


@dataclass(frozen=True)
class Term:
    """One summand before an activation: columns of `weight`, or their product with `source`.

    source  -- the factor; None for a bias
    rows    -- of a matrix, where the factor is a part of what the matrix is multiplied with
    reset   -- a gate with which the summand is multiplied
    """

    weight: ir.Value
    columns: tuple[int, int]
    source: ir.Value | None = None
    rows: tuple[int, int] | None = None
    is_diagonal: bool = False
    reset: ir.Value | None = None


@dataclass(frozen=True)
class Cell:
    """A cell: what its state becomes by one input.

    kind        -- the operator of ONNX
    gates       -- the summands of each, in the order of that operator
    activations -- as the operator lists them
    x           -- the input
    states      -- before the step: the output's, and that of an LSTM's memory
    following   -- after the step
    """

    kind: str
    gates: tuple[tuple[Term, ...], ...]
    activations: tuple[str, ...]
    x: ir.Value
    states: tuple[ir.Value, ...]
    following: tuple[ir.Value, ...]
    units: int
    resets_after: bool = False

    @property
    def recurrent(self) -> list[tuple[Term, ...]]:
        """The summands of each gate that are no products with the input."""
        return [tuple(t for t in gate if t.source is not self.x) for gate in self.gates]


class Body:
    """The nodes of one iteration; `changing` are the values that differ between iterations."""

    def __init__(self, nodes: Iterable[ir.Node], changing: Iterable[ir.Value]):
        self.nodes = set(nodes)
        self._fixed = dict.fromkeys(changing, False)

    def is_fixed(self, value: ir.Value) -> bool:
        """Whether a value is the same in every iteration."""
        if value not in self._fixed:
            node = value.producer()
            fixed = node is None or node not in self.nodes
            if node is not None and not fixed:
                has_body = any(a.type == ir.AttributeType.GRAPH for a in node.attributes.values())
                drawn = "Random" in node.op_type or node.op_type in ("Bernoulli", "Multinomial")
                operands = [v for v in node.inputs if v is not None]
                fixed = not has_body and not drawn and all(map(self.is_fixed, operands))
            self._fixed[value] = fixed
        return self._fixed[value]

    def made_by(self, value: ir.Value, *op_types: str) -> ir.Node | None:
        """The node of one of these operators in the body that computes a value."""
        node = origin(value).producer()
        return node if node in self.nodes and node.op_type in op_types else None

    def factors(self, value: ir.Value) -> Iterator[tuple[ir.Value, ir.Value]]:
        node = self.made_by(value, "Mul")
        if node is not None:
            a, b = operands(node)
            yield from ((a, b), (b, a))

    def activated(self, value: ir.Value) -> tuple[str, ir.Value] | None:
        """The activation that gives a value, and what it is applied to."""
        node = self.made_by(value, *ACTIVATIONS)
        return None if node is None else (node.op_type, operands(node)[0])

    def terms(self, value: ir.Value, columns: tuple[int, int]) -> list[Term] | None:
        """The summands of columns of a matrix; None where it is no such sum."""
        value = origin(value)
        if self.is_fixed(value):
            return [Term(value, columns)] if is_vector(value) else None
        node = value.producer()
        if node is None or node not in self.nodes:
            return None
        if node.op_type == "Add":
            sides = [self.terms(v, columns) for v in operands(node)]
            return None if None in sides else [t for side in sides for t in side or ()]
        if node.op_type in ("Split", "Slice"):
            offset = _offset(node, value)
            if offset is None:
                return None
            return self.terms(operands(node)[0], (columns[0] + offset, columns[1] + offset))
        if node.op_type == "MatMul":
            return self._products(node, columns)
        return self._scaled(value, columns) if node.op_type == "Mul" else None

    def _products(self, node: ir.Node, columns: tuple[int, int]) -> list[Term] | None:
        factor, weight = operands(node)
        if not self.is_fixed(weight) or weight.shape is None or len(weight.shape) != 2:
            return None
        parts = self.made_by(factor, "Concat")
        if parts is None:
            return [Term(origin(weight), columns, origin(factor))]
        pieces, start, terms = operands(parts), 0, []
        if parts.attributes["axis"].as_int() not in (-1, 1):
            return None
        for piece in pieces:
            size = _last(piece)
            if size is None:
                return None
            terms.append(Term(origin(weight), columns, origin(piece), (start, start + size)))
            start += size
        return terms

    def _scaled(self, value: ir.Value, columns: tuple[int, int]) -> list[Term] | None:
        """A state times a vector, or summands times a gate."""
        for gate, scaled in self.factors(value):
            if self.is_fixed(scaled) and is_vector(scaled) and not self.is_fixed(gate):
                return [Term(origin(scaled), columns, origin(gate), is_diagonal=True)]
        for gate, scaled in self.factors(value):
            terms = self.terms(scaled, columns) if self.activated(gate) is not None else None
            if terms is not None and all(t.reset is None for t in terms):
                return [replace(t, reset=origin(gate)) for t in terms]
        return None

    def gate(self, value: ir.Value, units: int) -> tuple[str, tuple[Term, ...]] | None:
        """The activation of a gate, and the summands before it."""
        activated = self.activated(value)
        if activated is None or _last(activated[1]) != units:
            return None
        terms = self.terms(activated[1], (0, units))
        return None if terms is None else (activated[0], tuple(terms))


def origin(value: ir.Value) -> ir.Value:
    """A value before the nodes that pass it on."""
    node = value.producer()
    while node is not None and node.op_type == "Identity":
        value = operands(node)[0]
        node = value.producer()
    return value


def operands(node: ir.Node) -> list[ir.Value]:
    return [v for v in node.inputs if v is not None]


def is_vector(value: ir.Value) -> bool:
    """Whether a value is the same for every row of a batch: a number, a vector, or one row."""
    if value.shape is None:
        return False
    return len(value.shape) < 2 or (len(value.shape) == 2 and value.shape[0] == 1)


def _last(value: ir.Value) -> int | None:
    size = value.shape[-1] if value.shape is not None and len(value.shape) else None
    return size if isinstance(size, int) else None


def _offset(node: ir.Node, value: ir.Value) -> int | None:
    """At which column of its operand a part begins; None where it is no block of columns."""
    whole = operands(node)[0]
    if whole.shape is None or len(whole.shape) != 2:
        return None
    if node.op_type == "Split":
        if node.attributes["axis"].as_int() not in (-1, 1):
            return None
        before = [_last(v) for v in node.outputs[: list(node.outputs).index(value)]]
        return None if None in before else sum(size for size in before if size is not None)
    arrays = [None if v is None else constant(v) for v in node.inputs[1:]]
    if len(arrays) != 4 or any(a is None or a.size != 1 for a in arrays):
        return None
    start, _, axis, step = [int(a.reshape(-1)[0]) for a in arrays if a is not None]
    size = _last(whole)
    if axis not in (-1, 1) or step != 1 or size is None or _last(value) is None:
        return None
    return start + size if start < 0 else start


# -- kinds ----------------------------------------------------------------------------------------


def cell_of(
    body: Body, state: ir.Value, following: ir.Value, others: Sequence[tuple[ir.Value, ir.Value]]
) -> Cell | None:
    """The cell whose output is a state; `others` are the other states, before and after a step."""
    units = _last(following)
    if units is None:
        return None
    for memory, new_memory in others:
        cell = _lstm(body, (state, memory), (following, new_memory), units)
        if cell is not None:
            return cell
    return _gru(body, state, following, units) or _rnn(body, state, following, units)


def _lstm(
    body: Body, states: tuple[ir.Value, ...], following: tuple[ir.Value, ...], units: int
) -> Cell | None:
    """c' = f c + i g and h' = o a(c')."""
    gates = _lstm_gates(body, states[1], following, units)
    if gates is None:
        return None
    (first, i), (second, o), (third, f), (inner, g), outer = gates
    if not first == second == third:
        return None
    for gate, memory in zip((i, f, g), (states[1], states[1], None), strict=True):
        if any(t.is_diagonal and t.source is not memory for t in gate):
            return None
    if any(t.is_diagonal and t.source is not origin(following[1]) for t in o):
        return None
    return _finished("LSTM", (i, o, f, g), (first, inner, outer), states, following, units)


def _lstm_gates(body: Body, memory: ir.Value, following: tuple[ir.Value, ...], units: int) -> Any:
    for o, shown in body.factors(following[0]):
        outer = body.activated(shown)
        if outer is None or origin(outer[1]) is not origin(following[1]):
            continue
        total = body.made_by(following[1], "Add")
        sides = operands(total) if total is not None else []
        for kept, added in [sides, sides[::-1]] if sides else []:
            for f, before in body.factors(kept):
                if origin(before) is not memory:
                    continue
                output, forget = body.gate(o, units), body.gate(f, units)
                for i, g in body.factors(added):
                    first, second = body.gate(i, units), body.gate(g, units)
                    if first and second and output and forget and first[0] == forget[0]:
                        return first, output, forget, second, outer[0]
    return None


def _gru(body: Body, state: ir.Value, following: ir.Value, units: int) -> Cell | None:
    """h' = z h + (1 - z) n, where n multiplies h by r, or its product with a matrix."""
    total = body.made_by(following, "Add")
    sides = operands(total) if total is not None else []
    for kept, added in [sides, sides[::-1]] if sides else []:
        for z, before in body.factors(kept):
            if origin(before) is not state:
                continue
            for rest, n in body.factors(added):
                if _is_complement(body, rest, z):
                    return _gru_of(body, state, following, z, n, units)
    return None


def _is_complement(body: Body, value: ir.Value, gate: ir.Value) -> bool:
    node = body.made_by(value, "Sub")
    if node is None:
        return False
    one, other = operands(node)
    array = constant(one)
    return array is not None and bool((array == 1).all()) and origin(other) is origin(gate)


def _gru_of(
    body: Body, state: ir.Value, following: ir.Value, z: ir.Value, n: ir.Value, units: int
) -> Cell | None:
    update, new = body.gate(z, units), body.gate(n, units)
    if update is None or new is None:
        return None
    resets: set[ir.Value | None] = {t.reset for t in new[1] if t.reset is not None}
    terms = new[1]
    if not resets:  # the state is multiplied by the gate before the matrix
        terms, resets = _before_matrix(body, new[1], state)
    is_after = terms is new[1]
    gate = resets.pop() if len(resets) == 1 else None
    reset = None if gate is None else body.gate(gate, units)
    if reset is None or reset[0] != update[0]:
        return None
    inside = [t for t in terms if t.reset is not None]
    if any(t.source not in (None, state) for t in inside):
        return None
    if is_after and any(t.source is state and t.reset is None for t in terms):
        return None
    return _finished(
        "GRU", (update[1], reset[1], terms), (update[0], new[0]), (state,), (following,), units,
        is_after,
    )  # fmt: skip


def _before_matrix(
    body: Body, terms: tuple[Term, ...], state: ir.Value
) -> tuple[tuple[Term, ...], set[ir.Value | None]]:
    """The summands with the state in place of its product with a gate, and the gates."""
    out, gates = [], set[ir.Value | None]()
    for term in terms:
        pairs = [] if term.source is None else list(body.factors(term.source))
        gate = next((g for g, h in pairs if origin(h) is state), None)
        if gate is not None:
            gates.add(origin(gate))
            term = replace(term, source=state)
        elif term.source is state:
            gates.add(None)
        out.append(term)
    return tuple(out), gates


def _rnn(body: Body, state: ir.Value, following: ir.Value, units: int) -> Cell | None:
    gate = body.gate(following, units)
    if gate is None:
        return None
    return _finished("RNN", (gate[1],), (gate[0],), (state,), (following,), units)


def _finished(
    kind: str,
    gates: tuple[tuple[Term, ...], ...],
    activations: tuple[str, ...],
    states: tuple[ir.Value, ...],
    following: tuple[ir.Value, ...],
    units: int,
    resets_after: bool = False,
) -> Cell | None:
    """The cell, if each gate has one product with the input, and one with the state."""
    inputs: set[ir.Value | None] = set()
    rows: set[tuple[bool, tuple[int, int] | None]] = set()
    for number, gate in enumerate(gates):
        products = [t for t in gate if t.source is not None and not t.is_diagonal]
        resets_here = kind == "GRU" and number == len(gates) - 1
        if any(t.reset is not None for t in gate) and not resets_here:
            return None
        if any(t.is_diagonal for t in gate) and kind != "LSTM":
            return None
        sources = [t.source for t in products]
        if len(sources) != 2 or sources.count(states[0]) != 1:
            return None
        inputs.update(s for s in sources if s is not states[0])
        rows.update((t.source is states[0], t.rows) for t in products)
    (x, *more) = inputs
    if more or x is None or x in states or len(rows) != 2:
        return None
    return Cell(kind, gates, activations, x, states, following, units, resets_after)
