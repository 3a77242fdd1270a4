"""A graph computed by several processes, each of which has its part of some tensors.

`spread` rewrites a graph whose inputs are parted along an axis (rows of a batch, pieces of a
variable) so that every process computes its part of whatever follows, with the numbers that one
process would compute. Where an operator needs more than the part, it reads the whole tensor:
what is not known here is gathered, never guessed. Sizes are those of whole tensors. New operators,
in the domain `NATIVE`:

AllSum(x)            the sum of x over the processes
AllRows(x)           the whole of a tensor that is parted along the attribute `axis`
OwnRows(x)           the part of this process along `axis`; an axis of one element stays

How operators treat parts is in `rows_rules.py`. All parts are of one size.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.lower.custom_native import NATIVE
from sardonyx.model import Model
from sardonyx.normalize import NormalizedModel, regular_copy
from sardonyx.passes.dead import remove_dead
from sardonyx.passes.nesting import bodies, reads
from sardonyx.passes.nesting import names as all_names


class NeedsWhole(Exception):
    """An operator that mixes the parts of its inputs: it reads whole tensors."""


@dataclass(frozen=True)
class World:
    """Which of the processes this is, and how many there are."""

    rank: int
    size: int


@dataclass
class Spread:
    """A graph over parts, and along which axis its outputs are parted, by name."""

    model: NormalizedModel
    axes: dict[str, int]


def spread(
    model: Model,
    axes: Mapping[str, int],
    world: World,
    *,
    wanted: Mapping[str, int] | None = None,
    sized: Collection[str] = (),
    gathered: Collection[str] = (),
) -> Spread:
    """The graph that one process runs.

    axes   -- inputs that are parted → along which axis
    gathered -- those among them that are read whole: parameters beside rows of a batch
    wanted -- outputs that are parted → along which axis; others are whole
    sized  -- outputs of which nothing but the sizes is read: they stay as they are
    """
    from sardonyx.engines.rows_rules import parted

    copy = regular_copy(model)
    work = Work(copy.graph, world)
    for value in copy.graph.inputs:
        if value.name in axes:
            work.axes[value] = axes[value.name or ""]
    nodes = list(copy.graph)
    for value in copy.graph.inputs:
        if value in work.axes and value.name in gathered and nodes:
            uses = list(value.uses())
            whole = work.whole(value)
            for use in uses:
                use.node.replace_input_with(use.idx, whole)
    if nodes:
        work.insert(nodes[0])
    for node in nodes:
        if bodies(node):
            _read_whole(work, node)
        elif any(v in work.axes or v in work.counts for v in node.inputs if v is not None):
            try:
                parted(work, node)
            except NeedsWhole:
                _read_whole(work, node)
        work.insert(node, after=True)
    results = _outputs(work, wanted or {}, sized)
    for value in copy.graph.inputs:
        if value.name in axes:
            _shorten(value, axes[value.name or ""], world.size)
    remove_dead(copy.graph)
    copy.ir.opset_imports[NATIVE] = 1
    return Spread(NormalizedModel.of(copy), results)


def _shorten(value: ir.Value, axis: int, parts: int) -> None:
    """Give an input of a fixed size the size of a part."""
    if value.shape is not None and isinstance(value.shape[axis], int):
        sizes = list(value.shape)
        sizes[axis] = value.shape[axis] // parts  # type: ignore[operator]
        value.shape = ir.Shape(sizes)


def _read_whole(work: Work, node: ir.Node) -> None:
    outer = {v for v in reads(node) if v in work.axes and v not in node.inputs}
    if outer:  # read inside of a body
        whole = {v: work.whole(v) for v in outer}
        for body in bodies(node):
            for inner in body.all_nodes():
                for place, value in enumerate(inner.inputs):
                    if value in whole:
                        inner.replace_input_with(place, whole[value])
    for place, value in enumerate(node.inputs):
        if value in work.axes:
            node.replace_input_with(place, work.whole(value))  # type: ignore[arg-type]
    work.insert(node)


def _outputs(work: Work, wanted: Mapping[str, int], sized: Collection[str]) -> dict[str, int]:
    """Give outputs the parts that the caller wants; returns how all of them are parted."""
    axes: dict[str, int] = {}
    for place, value in enumerate(list(work.graph.outputs)):
        name, axis = value.name or "", work.axes.get(value)
        target = wanted.get(name)
        if axis is not None and name in sized:
            axes[name] = axis
            continue
        if target is not None:
            axes[name] = target
        if axis == target:
            continue
        result = value if axis is None else work.whole(value)
        result = result if target is None else work.own(result, target)
        work.insert(None)
        value.name, result.name = work.op.fresh(f"{name}/parts"), name
        work.graph.outputs[place] = result
    return axes


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
