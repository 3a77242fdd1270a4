"""Searching characters for a pattern: the automaton of `regex.py` as two scans over the places.

The first scan goes backwards and notes at every place from which states the rest can match. The
second goes forwards and takes, at every place, the first alternative that can still match: what
Python's backtracking would end with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.importers.pandas import characters
from sardonyx.importers.pandas.emission import BOOL, FLOAT, INT64, Emission, Rep
from sardonyx.importers.pandas.regex import NO_CONDITION, TOP, Condition, Program


@dataclass
class Search:
    """What a search found: [rows] and, over the places between characters, [rows, length + 1]."""

    success: ir.Value
    starts: list[ir.Value]  # for the whole match and each group; -1: none
    ends: list[ir.Value]
    began: ir.Value
    ended: ir.Value


def classes(em: Emission, data: ir.Value, program: Program) -> tuple[ir.Value, np.ndarray]:
    """The class of each character, and which states read which class (the last: padding)."""
    op = em.op
    bounds = sorted(
        {b for ranges in program.ranges for low, high in ranges for b in (low, high + 1)}
    )
    bounds = [b for b in bounds if 0 < b <= TOP]
    edges = [0, *bounds]
    table = np.zeros((len(edges) + 1, len(program.ranges)), np.float32)
    for state, ranges in enumerate(program.ranges):
        for low, high in ranges:
            first, last = np.searchsorted(edges, [low, high + 1])
            table[first:last, state] = 1
    padding = np.int64(len(edges))
    if len(bounds) > 24:
        lookup = np.repeat(np.arange(len(bounds)), np.diff(edges)).astype(np.int64)
        lookup = np.append(lookup, len(bounds))
        at = op.Min(op.Max(data, np.int32(0)), np.int32(len(lookup) - 1))
        number = op.Gather(em.ints(lookup), at)
    else:
        number = em.ints(0)
        for bound in bounds:
            above = op.Cast(op.GreaterOrEqual(data, np.int32(bound)), to=int(INT64))
            number = op.Add(number, above)
    return op.Where(op.Less(data, np.int32(0)), em.ints(padding), number), table


def conditions(em: Emission, data: ir.Value, program: Program) -> ir.Value:
    """[length + 1, rows, conditions]: which conditions hold between the characters."""
    op = em.op
    wide = op.Pad(data, em.ints([0, 0, 0, 1]), np.int32(-1))
    always = op.Equal(wide, wide)
    parts = []
    for demands in program.conditions:
        part = always
        for condition in sorted(demands, key=lambda c: (c.kind, c.negative, c.ranges)):
            part = op.And(part, held(em, wide, condition))
        parts.append(op.Unsqueeze(part, em.ints([2])))
    stacked = op.Concat(*parts, axis=2)
    return op.Transpose(op.Cast(stacked, to=int(FLOAT)), perm=[1, 0, 2])


def held(em: Emission, wide: ir.Value, condition: Condition) -> ir.Value:
    """[rows, length + 1]: where a condition holds; `wide` has one place behind the last."""
    op = em.op
    if condition.kind == "boundary":
        after = characters.member(em, wide, condition.ranges[0])
        before = characters.member(em, shifted(em, wide, -1), condition.ranges[0])
        test = op.Xor(after, before)
    elif condition.kind in ("next", "previous"):
        count = len(condition.ranges)
        first = 0 if condition.kind == "next" else -count
        test = op.Equal(wide, wide)
        for place, ranges in enumerate(condition.ranges):
            test = op.And(test, characters.member(em, shifted(em, wide, first + place), ranges))
    else:
        between = characters.places(em, wide)
        size = characters.column(em, characters.lengths(em, wide))
        if condition.kind == "start":
            return op.Expand(op.Equal(between, em.ints(0)), op.Shape(wide))
        test = op.Equal(between, size)
        if condition.kind == "end":
            last = op.Equal(between, op.Sub(size, em.ints(1)))
            test = op.Or(test, op.And(last, op.Equal(wide, np.int32(10))))
    return op.Not(test) if condition.negative else test


def shifted(em: Emission, wide: ir.Value, distance: int) -> ir.Value:
    """The character so many places on (or back), padding where there is none."""
    if not distance:
        return wide
    pads = [0, 0, 0, distance] if distance > 0 else [0, -distance, 0, 0]
    padded = em.op.Pad(wide, em.ints(pads), np.int32(-1))
    start = max(distance, 0)
    end = em.op.Add(characters.width(em, wide), em.ints([start]))
    return em.op.Slice(padded, em.ints([start]), end, em.ints([1]))


def scanned(
    em: Emission, body: Builder, initial: list[ir.Value], scans: list[ir.Value],
    inputs: list[ir.Value], outputs: list[ir.Value], reverse: bool,
) -> Any:  # fmt: skip
    graph = ir.Graph(inputs, outputs, nodes=body.nodes, name=em.op.fresh("body"))
    count = len(outputs)
    direction = [int(reverse)] * len(scans)
    return em.op.call(
        "Scan",
        [*initial, *scans],
        {
            "body": graph,
            "num_scan_inputs": len(scans),
            "scan_input_directions": direction,
            "scan_output_directions": [int(reverse)] * (count - len(initial)),
        },
        outputs=count,
    )


def _value(em: Emission, name: str, element: Any, shape: list[Any]) -> ir.Value:
    return ir.Value(name=em.op.fresh(name), shape=ir.Shape(shape), type=ir.TensorType(element))


def reachable(em: Emission, reads: ir.Value, truths: ir.Value, program: Program) -> ir.Value:
    """[length + 1, rows, states + 1]: from where the rest can match (the end always can)."""
    op, states = em.op, len(program.ranges)
    used = sorted({e.condition for edges in program.edges for e in edges})
    matrices = {}
    for condition in used:
        matrix = np.zeros((states + 1, states + 1), np.float32)
        for source, edges in enumerate(program.edges):
            for edge in edges:
                if edge.condition == condition:
                    matrix[edge.target, source] = 1
        matrices[condition] = op.const(matrix)
    rows = op.Shape(reads, start=1, end=2)
    one = op.Expand(op.const(np.ones((1, 1), np.float32)), op.Concat(rows, em.ints([1]), axis=0))
    zeros = op.Expand(
        op.const(np.zeros((1, states), np.float32)), op.Concat(rows, em.ints([states]), axis=0)
    )
    last = op.Concat(zeros, one, axis=1)

    def reach(build: Builder, can: ir.Value, hold: ir.Value) -> ir.Value:
        total = None
        for condition, matrix in matrices.items():
            part = build.MatMul(can, matrix)
            if condition != NO_CONDITION:
                flag = build.Slice(
                    hold, em.ints([condition]), em.ints([condition + 1]), em.ints([1])
                )
                part = build.Mul(part, flag)
            total = part if total is None else build.Add(total, part)
        return build.Cast(build.Greater(total, np.float32(0)), to=int(FLOAT))

    body = Builder("scan", parent=op)
    state = _value(em, "reach", FLOAT, [None, states + 1])
    read = _value(em, "read", FLOAT, [None, states])
    hold = _value(em, "hold", FLOAT, [None, len(program.conditions)])
    inner = body.Slice(state, em.ints([0]), em.ints([states]), em.ints([1]))
    product = body.Mul(read, inner)
    rows_inside = body.Concat(body.Shape(read, start=0, end=1), em.ints([1]), axis=0)
    ones = body.Expand(op.const(np.ones((1, 1), np.float32)), rows_inside)
    can = body.Concat(product, ones, axis=1)
    following = reach(body, can, hold)
    size = op.Shape(truths, start=0, end=1)
    before_end = op.Sub(size, em.ints([1]))
    at_end = op.Squeeze(op.Slice(truths, before_end, size, em.ints([0])), em.ints([0]))
    inside = op.Slice(truths, em.ints([0]), before_end, em.ints([0]))
    _, stacked = scanned(
        em, body, [reach(op, last, at_end)], [reads, inside], [state, read, hold],
        [following, body.Identity(can)], True,
    )  # fmt: skip
    stacked.type, stacked.shape = ir.TensorType(FLOAT), ir.Shape([None, None, states + 1])
    return op.Concat(stacked, op.Unsqueeze(last, em.ints([0])), axis=0)


def search(
    em: Emission, rep: Rep, program: Program, repeat: bool = False, limit: int = 0
) -> Search:
    """The first match, or all that do not overlap (at most `limit`, if it is not 0)."""
    op = em.op
    number, table = classes(em, rep.data, program)
    reads = op.Gather(op.const(table), op.Transpose(number, perm=[1, 0]), axis=0)
    truths = conditions(em, rep.data, program)
    can = reachable(em, reads, truths, program)
    forward = Forward(em, program, repeat, limit)
    return forward.run(can, truths)


class Forward:
    """The second scan: the state of each row, the spans of groups, matches begun and ended."""

    def __init__(self, em: Emission, program: Program, repeat: bool, limit: int):
        self.em, self.program, self.repeat, self.limit = em, program, repeat, limit
        self.states = len(program.ranges)
        self.start, self.done = self.states, self.states + 1
        self.width = max(len(edges) for edges in program.edges)
        sources = [*program.edges, []]
        shape = (len(sources), self.width)
        self.targets = np.full(shape, self.states + 1, np.int64)
        self.conditions = np.zeros(shape, np.int64)
        self.opens = np.zeros((*shape, program.groups + 1), np.bool_)
        self.closes = np.zeros((*shape, program.groups + 1), np.bool_)
        for source, edges in enumerate(sources):
            for place, edge in enumerate(edges):
                self.targets[source, place] = edge.target
                self.conditions[source, place] = edge.condition
                self.opens[source, place, [*edge.opens]] = True
                self.closes[source, place, [*edge.closes]] = True
                self.opens[source, place, 0] = source == self.start
                self.closes[source, place, 0] = edge.target == self.states

    def choose(
        self, op: Any, current: ir.Value, can: ir.Value, hold: ir.Value
    ) -> tuple[Any, Any, Any]:
        """Whether an edge can be taken, the state behind the first that can, and its number."""
        em = self.em
        targets = op.Gather(em.ints(self.targets), current, axis=0)
        open_ = op.GatherElements(can, targets, axis=1)
        if self.conditions.any():
            condition = op.Gather(em.ints(self.conditions), current, axis=0)
            open_ = op.Mul(open_, op.GatherElements(hold, condition, axis=1))
        first = op.ArgMax(open_, axis=1, keepdims=1)
        possible = op.Greater(op.ReduceMax(open_, [1], keepdims=0), np.float32(0))
        target = op.Squeeze(op.GatherElements(targets, first, axis=1), em.ints([1]))
        edge = op.Add(op.Mul(current, em.ints(self.width)), op.Squeeze(first, em.ints([1])))
        return possible, target, edge

    def tagged(
        self, op: Any, table: np.ndarray, edge: Any, taken: Any, place: Any, before: Any
    ) -> Any:
        flags = op.Gather(op.const(table.reshape(-1, table.shape[-1])), edge, axis=0)
        hit = op.And(flags, op.Unsqueeze(taken, self.em.ints([1])))
        return op.Where(hit, place, before)

    def run(self, can: ir.Value, truths: ir.Value) -> Search:
        em, op, groups = self.em, self.em.op, self.program.groups + 1
        body = Builder("scan", parent=op)
        rows = op.Shape(can, start=1, end=2)
        none = op.Concat(op.Shape(can, start=0, end=2), em.ints([1]), axis=0)
        can = op.Concat(can, op.Expand(op.const(np.zeros((1, 1, 1), np.float32)), none), axis=2)
        length = op.Squeeze(op.Shape(can, start=0, end=1), em.ints([0]))
        place = op.Range(em.ints(0), length, em.ints(1))
        wide = op.Concat(rows, em.ints([groups]), axis=0)
        unset = op.Expand(em.ints([[-1]]), wide)
        initial = [
            op.Expand(em.ints([self.start]), rows),
            unset,
            unset,
            op.Expand(em.ints([0]), rows),
        ]
        inputs = [
            _value(em, "state", INT64, [None]), _value(em, "starts", INT64, [None, groups]),
            _value(em, "ends", INT64, [None, groups]), _value(em, "count", INT64, [None]),
            _value(em, "can", FLOAT, [None, self.states + 2]),
            _value(em, "hold", FLOAT, [None, len(self.program.conditions)]),
            _value(em, "place", INT64, []),
        ]  # fmt: skip
        outputs = self.step(body, *inputs)
        results = scanned(em, body, initial, [can, truths, place], inputs, outputs, False)
        for value, element, rank in zip(
            results, [INT64] * 4 + [BOOL] * 2, [1, 2, 2, 1, 2, 2], strict=True
        ):
            value.type, value.shape = ir.TensorType(element), ir.Shape([None] * rank)
        _, starts, ends, count, began, ended = results
        pick = [op.Squeeze(op.Slice(x, em.ints([g]), em.ints([g + 1]), em.ints([1])), em.ints([1]))
                for x in (starts, ends) for g in range(groups)]  # fmt: skip
        return Search(
            op.Greater(count, em.ints(0)), pick[:groups], pick[groups:],
            op.Transpose(began, perm=[1, 0]), op.Transpose(ended, perm=[1, 0]),
        )  # fmt: skip

    def step(
        self,
        op: Any,
        state: Any,
        starts: Any,
        ends: Any,
        count: Any,
        can: Any,
        hold: Any,
        place: Any,
    ) -> list[ir.Value]:
        em = self.em
        allowed = None
        if self.limit:
            allowed = op.Less(count, em.ints(self.limit))

        def taken(state: Any, possible: Any) -> Any:
            if allowed is None:
                return possible
            return op.And(possible, op.Or(allowed, op.Not(op.Equal(state, em.ints(self.start)))))

        possible, target, edge = self.choose(op, state, can, hold)
        possible = taken(state, possible)
        starts = self.tagged(op, self.opens, edge, possible, place, starts)
        ends = self.tagged(op, self.closes, edge, possible, place, ends)
        accepted = op.And(possible, op.Equal(target, em.ints(self.states)))
        began = op.And(possible, op.Equal(state, em.ints(self.start)))
        after = em.ints(self.start if self.repeat else self.done)
        state = op.Where(accepted, after, op.Where(possible, target, state))
        count = op.Add(count, op.Cast(accepted, to=int(INT64)))
        if self.repeat:
            if self.limit:
                allowed = op.Less(count, em.ints(self.limit))
            again, target, edge = self.choose(op, state, can, hold)
            again = op.And(taken(state, again), accepted)
            state = op.Where(again, target, state)
            began = op.Or(began, again)
        return [state, starts, ends, count, began, accepted]


def fixed_at(em: Emission, rep: Rep, program: Program) -> ir.Value:
    """[rows, length]: where a plain sequence of characters stands."""
    op = em.op
    result: Any = None
    count = len(program.ranges)
    padded = op.Pad(rep.data, em.ints([0, 0, 0, max(count - 1, 1)]), np.int32(-1))
    size = characters.width(em, rep.data)
    for shift, ranges in enumerate(program.ranges):
        window = op.Slice(padded, em.ints([shift]), op.Add(size, em.ints([shift])), em.ints([1]))
        test = characters.member(em, window, ranges)
        result = test if result is None else op.And(result, test)
    return result


def is_found(em: Emission, rep: Rep, program: Program) -> ir.Value:
    """Whether a string contains a match."""
    if program.is_fixed and program.ranges:
        hits = em.op.Cast(fixed_at(em, rep, program), to=int(INT64))
        return em.op.Greater(em.op.ReduceMax(hits, [1], keepdims=0), em.ints(0))
    return search(em, rep, program).success
