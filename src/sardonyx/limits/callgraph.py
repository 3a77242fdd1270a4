"""How large a model becomes once its local functions are inlined, found without inlining it.

A `Body` is a graph, a function, or a graph that a call passes to a function as an attribute: what
it holds itself, and which functions it calls. `Costs` adds them up, callees first, each once. The
nodes of a call are those of its callee; a graph passed to a function counts as often as the
expanded function refers to it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from sardonyx.errors import SHOWN

# Counts stop growing here: a chain of functions can claim a number with as many digits as it likes.
ENDLESS = 2**62


@dataclass(slots=True)
class Placement:
    """How often, how deep and through how many calls something occurs in an expanded body."""

    count: int = 0
    depth: int = 0
    calls: int = 0

    def add(self, count: int, depth: int, calls: int) -> None:
        self.count = min(self.count + count, ENDLESS)
        self.depth = max(self.depth, depth)
        self.calls = max(self.calls, calls)


@dataclass(slots=True, eq=False)
class Call:
    """A node that calls a function: its depth in its body, and the graphs that it passes."""

    callee: Hashable
    depth: int
    graphs: dict[str, Body] = field(default_factory=dict)
    references: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Body:
    """Nodes, their bytes, nesting, calls and references to graph attributes; then their totals."""

    label: str
    nodes: int = 0
    bytes: int = 0
    depth: int = 0
    call_depth: int = 0
    calls: list[Call] = field(default_factory=list)
    references: dict[str, Placement] = field(default_factory=dict)
    defaults: dict[str, Body] = field(default_factory=dict)

    def refer(self, name: str, count: int, depth: int, calls: int) -> None:
        self.references.setdefault(name, Placement()).add(count, depth, calls)


class Costs:
    """The totals of all bodies; `recursive` lists the functions that call themselves."""

    def __init__(self, functions: dict[Hashable, Body], roots: Iterable[Body]):
        self._functions = functions
        self.recursive: list[list[Body]] = []
        self._done: set[Body] = set()
        for body in [*roots, *functions.values()]:
            self._visit(body)

    def _needs(self, body: Body) -> list[Body]:
        needs = list(body.defaults.values())
        for call in body.calls:
            needs.append(self._functions[call.callee])
            needs.extend(call.graphs.values())
        return needs

    def _visit(self, start: Body) -> None:
        if start in self._done:
            return
        path = {start: None}
        stack = [(start, iter(self._needs(start)))]
        while stack:
            body, needs = stack[-1]
            need = next((n for n in needs if n not in self._done), None)
            if need is None:
                stack.pop()
                del path[body]
                self._done.add(body)
                if not self.recursive:
                    self._total(body)
            elif need in path:
                if len(self.recursive) < SHOWN:
                    open_bodies = list(path)
                    self.recursive.append(open_bodies[open_bodies.index(need) :])
            else:
                path[need] = None
                stack.append((need, iter(self._needs(need))))

    def _total(self, body: Body) -> None:
        for call in body.calls:
            callee = self._functions[call.callee]
            _include(body, callee, Placement(1, call.depth, 1))
            for name, graph in call.graphs.items():
                place = callee.references.get(name)
                if place:
                    place = Placement(place.count, call.depth + place.depth, 1 + place.calls)
                    _include(body, graph, place)
                    for inner, p in graph.references.items():
                        depth, calls = place.depth + p.depth, place.calls + p.calls
                        body.refer(inner, place.count * p.count, depth, calls)
            for name, outer in call.references.items():
                place = callee.references.get(name)
                if place:
                    body.refer(outer, place.count, call.depth + place.depth, 1 + place.calls)
        for name, graph in body.defaults.items():
            if name in body.references:
                _include(body, graph, body.references[name])


def _include(body: Body, part: Body, place: Placement) -> None:
    body.nodes = min(body.nodes + place.count * part.nodes, ENDLESS)
    body.bytes = min(body.bytes + place.count * part.bytes, ENDLESS)
    body.depth = max(body.depth, place.depth + part.depth)
    body.call_depth = max(body.call_depth, place.calls + part.call_depth)
