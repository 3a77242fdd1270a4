"""Parts of a graph that are repeated: each kind becomes one function, called with other weights.

A part is a run of consecutive nodes. Where exporters record scopes, the nodes of one scope are such
a run; else runs that follow one another with the same operators are found by comparing them. Two
runs are of one kind if they have the same operators, attributes and connections, and weights of
the same types and numbers of axes at the same places.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.build import array_bytes
from sardonyx.engines.matlab.function import constant, is_inline

FEWEST = 3  # nodes of a part that is worth a function
MANY = 8  # nodes of one that has no weights
LONGEST = 400  # nodes of a part that is looked for without scopes
SCOPES = "pkg.torch.onnx.name_scopes"


@dataclass(eq=False)
class Part:
    """Consecutive nodes of a graph, from `start` to before `stop`.

    inputs, weights, outputs -- what it reads from outside, in order of first use, and what others
                                read of it
    """

    start: int
    stop: int
    scope: str
    nodes: list[ir.Node]
    inputs: list[ir.Value]
    weights: list[ir.Value]
    outputs: list[ir.Value]
    kind: Hashable

    @property
    def has_ranks(self) -> bool:
        """Whether the number of axes of all that goes in and comes out is known."""
        return all(v.shape is not None for v in (*self.inputs, *self.outputs))


def is_weight(value: ir.Value) -> bool:
    """Whether a constant is stored with the weights, and not written as numbers."""
    array = constant(value)
    return array is not None and not is_inline(value, array)


def repeated(graph: ir.Graph) -> list[list[Part]]:
    """The parts that occur at least twice, by kind; no two of them overlap."""
    nodes = list(graph)
    chosen: list[list[Part]] = []
    taken = np.zeros(len(nodes), bool)
    for parts in _candidates(nodes):
        groups: dict[Hashable, list[Part]] = {}
        for part in parts:
            if not taken[part.start : part.stop].any() and part.has_ranks:
                groups.setdefault(part.kind, []).append(part)
        for group in groups.values():
            if len(group) > 1 and (group[0].weights or len(group[0].nodes) >= MANY):
                chosen.append(group)
                for part in group:
                    taken[part.start : part.stop] = True
    return chosen


def _candidates(nodes: Sequence[ir.Node]) -> Iterator[list[Part]]:
    """Lists of parts to compare: the largest first."""
    scopes = [scope_of(node) for node in nodes]
    for depth in range(1, max((len(s) for s in scopes), default=0) + 1):
        yield [_part(nodes, *run) for run in _runs(scopes, depth) if run[1] - run[0] >= FEWEST]
    if not any(scopes):
        yield from _tandem(nodes)


def scope_of(node: ir.Node) -> tuple[str, ...]:
    """The path of the module that a node was in, as the exporters of torch record it."""
    listed = re.findall(r"'([^']*)'", node.metadata_props.get(SCOPES, ""))
    if listed:
        return tuple(part for part in listed[:-1] if part)
    name = node.name or ""
    return tuple(name.split("/")[1:-1]) if name.startswith("/") else ()


def _runs(scopes: Sequence[tuple[str, ...]], depth: int) -> Iterator[tuple[int, int, str]]:
    start = 0
    for i in range(1, len(scopes) + 1):
        if i == len(scopes) or scopes[i][:depth] != scopes[start][:depth]:
            if len(scopes[start]) >= depth:
                yield start, i, scopes[start][depth - 1]
            start = i


def _tandem(nodes: Sequence[ir.Node]) -> Iterator[list[Part]]:
    """Equal runs that follow one another; those that cover the most nodes first."""
    words = [(n.op_type, len(n.inputs), len(n.outputs)) for n in nodes]
    coverage: list[tuple[int, int, int, int]] = []
    for length in range(FEWEST, min(LONGEST, len(nodes) // 2) + 1):
        run = 0
        for i in range(len(nodes) - length):
            run = run + 1 if words[i] == words[i + length] else 0
            if run >= length and (
                i + 1 == len(nodes) - length or words[i + 1] != words[i + 1 + length]
            ):
                coverage.append((run + length, length, i - run + 1, i + length + 1))
    for _, length, start, stop in sorted(coverage, key=lambda c: (-c[0], c[1])):
        for shift in range(min(length, stop - start - 2 * length + 1)):
            starts = range(start + shift, stop - length + 1, length)
            yield [_part(nodes, s, s + length, "") for s in starts]


def _part(nodes: Sequence[ir.Node], start: int, stop: int, scope: str) -> Part:
    inside = list(nodes[start:stop])
    members = set(inside)
    produced = {v: (i, j) for i, n in enumerate(inside) for j, v in enumerate(n.outputs)}
    inputs: dict[ir.Value, int] = {}
    weights: dict[ir.Value, int] = {}
    words: list[Hashable] = []
    for node in inside:
        places = [_place(v, produced, inputs, weights) for v in node.inputs]
        words.append((node.domain, node.op_type, _attributes(node), tuple(places)))
    outputs = [
        v
        for v in produced
        if v.is_graph_output() or any(use.node not in members for use in v.uses())
    ]
    words += [produced[v] for v in outputs]
    words += [(v.dtype, _rank(v)) for v in (*inputs, *weights, *produced)]
    return Part(start, stop, scope, inside, list(inputs), list(weights), outputs, tuple(words))


def _place(
    value: ir.Value | None,
    produced: dict[ir.Value, tuple[int, int]],
    inputs: dict[ir.Value, int],
    weights: dict[ir.Value, int],
) -> Hashable:
    if value is None:
        return None
    if value in produced:
        return produced[value]
    if is_weight(value):
        return "weight", weights.setdefault(value, len(weights))
    array = constant(value)
    if array is not None:
        return "number", array.dtype.str, array.shape, array_bytes(array)
    return "input", inputs.setdefault(value, len(inputs))


def _rank(value: ir.Value) -> int | None:
    return None if value.shape is None else len(value.shape)


def _attributes(node: ir.Node) -> Hashable:
    """Attributes as something to compare; those with tensors or bodies are never equal."""
    items = []
    for name, attribute in sorted(node.attributes.items()):
        value = attribute.value
        plain = isinstance(value, (int, float, str, bytes, list, tuple))
        items.append((name, str(value) if plain else id(attribute)))
    return tuple(items)
