"""A graph that is being rewritten for parts of tensors, and what rules read of its nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx.build import Builder, constant
from sardonyx.lower.custom_native import NATIVE
from sardonyx.passes.nesting import names as all_names


class NeedsWhole(Exception):
    """An operator that mixes the parts of its inputs: it reads whole tensors."""


@dataclass(frozen=True)
class World:
    """Which of the processes this is, and how many there are."""

    rank: int
    size: int


class Work:
    """A graph that is being rewritten: along which axes its values are parted."""

    def __init__(self, graph: ir.Graph, world: World):
        self.graph, self.world = graph, world
        self.axes: dict[ir.Value, int] = {}
        self.counts: set[ir.Value] = set()  # numbers of elements of parted tensors
        self.op = Builder("rows")
        self.op.reserve(all_names(graph))
        self._whole: dict[ir.Value, ir.Value] = {}
        self._own: dict[tuple[ir.Value, int], ir.Value] = {}

    def native(self, op_type: str, x: ir.Value, *attributes: ir.Attr) -> ir.Value:
        node = ir.Node(NATIVE, op_type, [x], attributes)
        (result,) = node.outputs
        node.name = result.name = self.op.fresh(f"{x.name}/{op_type}")
        result.type, result.shape = x.type, x.shape
        self.op.nodes.append(node)
        return result

    def all_sum(self, x: ir.Value) -> ir.Value:
        return self.native("AllSum", x)

    def all_mean(self, x: ir.Value) -> ir.Value:
        """The mean over the processes."""
        total = self.all_sum(x)
        share = self.op.const(1.0 / self.world.size, total.dtype)
        return self.op.Mul(total, share)  # type: ignore[no-any-return]

    def whole(self, x: ir.Value) -> ir.Value:
        if x not in self._whole:
            self._whole[x] = self.native("AllRows", x, ir.AttrInt64("axis", self.axes[x]))
        return self._whole[x]

    def own(self, x: ir.Value, axis: int) -> ir.Value:
        if (x, axis) not in self._own:
            self._own[x, axis] = self.native("OwnRows", x, ir.AttrInt64("axis", axis))
        return self._own[x, axis]

    def insert(self, node: ir.Node | None, after: bool = False) -> None:
        """Put the nodes that were built before or after a node, or at the end."""
        for value in self.op.constants.values():
            if value.name not in self.graph.initializers:
                self.graph.register_initializer(value)
        nodes = list(self.op.nodes)
        self.op.nodes.clear()
        if not nodes:
            return
        if node is None or node.graph is None:
            self.graph.extend(nodes)
        elif after:
            self.graph.insert_after(node, nodes)
        else:
            self.graph.insert_before(node, nodes)


# -- what rules read ---------------------------------------------------------------------


def rank_of(value: ir.Value | None) -> int:
    if value is None or value.shape is None:
        raise NeedsWhole
    return len(value.shape)


def axis_of(work: Work, value: ir.Value | None) -> int | None:
    return None if value is None else work.axes.get(value)


def give(work: Work, node: ir.Node, axis: int) -> None:
    for value in node.outputs:
        work.axes[value] = axis


def only_first(work: Work, node: ir.Node) -> int:
    """The axis of the first input, where no other is parted."""
    axis = axis_of(work, node.inputs[0])
    if axis is None or any(axis_of(work, v) is not None for v in node.inputs[1:]):
        raise NeedsWhole
    return axis


def numbers(value: ir.Value | None) -> list[int]:
    array = None if value is None else constant(value)
    if array is None:
        raise NeedsWhole
    return [int(n) for n in array.reshape(-1)]


def replace(work: Work, node: ir.Node, place: int, value: ir.Value) -> None:
    work.insert(node)
    node.replace_input_with(place, value)


def aligned(work: Work, node: ir.Node, places: Sequence[int]) -> int:
    """Broadcast inputs against each other: where they are parted, counted from the last axis.

    Inputs that are whole and have that axis give their part of it.
    """
    present = [i for i in places if i < len(node.inputs) and node.inputs[i] is not None]
    backs = set()
    for i in present:
        axis = axis_of(work, node.inputs[i])
        if axis is not None:
            backs.add(axis - rank_of(node.inputs[i]))
    if len(backs) != 1:
        raise NeedsWhole
    (back,) = backs
    ranks = {i: rank_of(node.inputs[i]) for i in present}
    for i in present:
        value = node.inputs[i]
        assert value is not None and value.shape is not None
        if value in work.axes or ranks[i] < -back or value.shape[back] == 1:
            continue
        replace(work, node, i, work.own(value, ranks[i] + back))
    return back


def after_output(work: Work, node: ir.Node, change: Callable[[ir.Value], ir.Value]) -> None:
    """Let everything that reads the first output of a node read a function of it."""
    value = node.outputs[0]
    uses = list(value.uses())
    is_output = value.is_graph_output()
    result = change(value)
    result.type, result.shape = value.type, value.shape
    for use in uses:
        use.node.replace_input_with(use.idx, result)
    if is_output:
        places = [i for i, v in enumerate(work.graph.outputs) if v is value]
        name, value.name = value.name, work.op.fresh(f"{value.name}/part")
        result.name = name
        for place in places:
            work.graph.outputs[place] = result
