"""`spread`: the graph that one of several processes runs.

It rewrites a graph whose inputs are parted along an axis (rows of a batch, pieces of a
variable) so that every process computes its part of whatever follows, with the numbers that one
process would compute. Where an operator needs more than the part, it reads the whole tensor:
what is not known here is gathered, never guessed. Sizes are those of whole tensors. New operators,
in the domain `NATIVE`:

AllSum(x)            the sum of x over the processes
AllRows(x)           the whole of a tensor that is parted along the attribute `axis`
OwnRows(x)           the part of this process along `axis`; an axis of one element stays

How operators treat parts is in `rules.py`. All parts are of one size.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx.engines.rows.rules import parted
from sardonyx.engines.rows.work import NeedsWhole, Work, World
from sardonyx.lower.custom_native import NATIVE
from sardonyx.model import Model
from sardonyx.normalize import NormalizedModel, regular_copy
from sardonyx.passes.dead import remove_dead
from sardonyx.passes.nesting import bodies, reads


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
    output_axes: Mapping[str, int] | None = None,
    sized: Collection[str] = (),
    gathered: Collection[str] = (),
) -> Spread:
    """The graph that one process runs.

    axes   -- inputs that are parted → along which axis
    gathered -- those among them that are read whole: parameters beside rows of a batch
    output_axes -- outputs that are parted → along which axis; others are whole
    sized  -- outputs of which nothing but the sizes is read: they stay as they are
    """
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
    results = _outputs(work, output_axes or {}, sized)
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


def _outputs(work: Work, output_axes: Mapping[str, int], sized: Collection[str]) -> dict[str, int]:
    """Give outputs the parts that the caller wants; returns how all of them are parted."""
    axes: dict[str, int] = {}
    for place, value in enumerate(list(work.graph.outputs)):
        name, axis = value.name or "", work.axes.get(value)
        target = output_axes.get(name)
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
