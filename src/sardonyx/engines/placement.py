"""A dry run of a conversion: which nodes run on other engines, and which tensors are copied."""

from __future__ import annotations

import functools
import importlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from sardonyx import plugins
from sardonyx.engines.loading import load_engine
from sardonyx.errors import ArgumentError, quote, table
from sardonyx.lower.data_dependent import decided_by_data
from sardonyx.lower.driver import FRAMEWORKS, prepare
from sardonyx.lower.partition import Region, element_type, known_dims
from sardonyx.lower.xp import is_string
from sardonyx.model import ModelSource, load
from sardonyx.normalize import normalize
from sardonyx.passes.nesting import graphs
from sardonyx.weights import weights

# Symbols of a product, in order -> how often it counts: 4*N + 12 is {("N",): 4, (): 12}.
Amount = Counter[tuple[str, ...]]


@dataclass
class Part:
    """Nodes that run on another engine in one call.

    ins, outs -- bytes copied at each call, as numbers or as formulas of free sizes
    """

    engine: str
    nodes: list[list[str]]
    ins: str
    outs: str
    tensors: int


@dataclass
class Placements:
    """Which nodes of a model run on other engines, why, and how many bytes are copied.

    nodes -- operator, name, engine and reason of each such node
    parts -- the calls that these nodes form
    stays -- how many nodes run in the framework itself
    """

    framework: str
    stays: int
    nodes: list[list[str]]
    parts: list[Part]

    def __str__(self) -> str:
        plural = "s" * (self.stays != 1)
        lines = [f"{self.stays} node{plural} in {self.framework}, {len(self.nodes)} elsewhere"]
        for number, part in enumerate(self.parts, 1):
            count = len(part.nodes)
            what = f"{count} node{'s' * (count > 1)} on {part.engine}"
            crosses = f"{part.tensors} tensors cross: {part.ins} bytes in, {part.outs} bytes out"
            lines += [f"part {number}: {what}; {crosses}", *table(part.nodes)]
        return "\n".join(lines)


def placement(
    model: ModelSource,
    to: str,
    *,
    place: Mapping[str, str] | None = None,
    sizes: Mapping[str, int] | None = None,
    compiled: bool = False,
) -> Placements:
    """Which nodes of a model a framework cannot run itself, on which engine they run, and why.

    to     -- numpy, torch, jax or tensorflow, or an engine that compiles parts of a model, such as
              openvino
    place  -- pattern of node names or operators → the engine that runs these nodes; the last
              that matches decides
    sizes  -- values for the model's free sizes, which otherwise stay symbols in the formulas
    compiled -- as under `jax.jit`, which has no arrays of data-dependent shape; the graphs of torch
              and tensorflow have them

    >>> import sardonyx as sx
    >>> print(sx.placement("model.onnx", "torch", place={"Relu": "onnxruntime"}))
    2 nodes in torch, 1 elsewhere
    part 1: 1 node on onnxruntime; 2 tensors cross: 64·N bytes in, 64·N bytes out
      Relu  node "relu"  on onnxruntime  chosen
    """
    if to not in FRAMEWORKS and to in plugins.engines():
        return _in_segments(model, to, place, sizes or {})
    if to not in FRAMEWORKS:
        raise ArgumentError(f"there is no framework {quote(to)}", hint=f"one of {FRAMEWORKS}")
    arrays = importlib.import_module(f"sardonyx.engines.{to}.backend").arrays()
    loaded = normalize(load(model))
    names = [w.name for w in weights(loaded) if w.kind != "constant"]
    data_dependent = functools.partial(decided_by_data, framework=to, fed=names)
    more = data_dependent if compiled and to == "jax" else None
    prepared = prepare(loaded, to, arrays.strings, place, names, more)
    every = sum(len(graph) for graph in graphs(prepared.model.graph))
    parts = [_part(region, sizes or {}) for region in prepared.regions.values()]
    return Placements(to, every - len(parts), [p.row for p in prepared.placements], parts)


def _in_segments(
    model: ModelSource, to: str, place: Mapping[str, str] | None, sizes: Mapping[str, int]
) -> Placements:
    """Where nodes run if an engine compiles as much of a model as it can."""
    divide = getattr(getattr(load_engine(to), "Runner", None), "divide", None)
    if divide is None:
        raise ArgumentError(
            f"{to} runs whole models: no node runs elsewhere", hint=f"one of {FRAMEWORKS}"
        )
    if place:
        raise ArgumentError(f"{to} itself decides which nodes run elsewhere", hint="omit place")
    segments = divide(load(model), sizes)
    rows = {p.node: p.row for p in segments.placements}
    parts = []
    for segment, function in segments.parts:
        if segment.is_elsewhere:
            inputs, outputs = segment.model.graph.inputs, segment.model.graph.outputs
            ins, outs = (formula([bytes_of(v, sizes) for v in e]) for e in (inputs, outputs))
            listed = [rows[node] for node in segment.nodes.values()]
            tensors = len(inputs) + len(outputs)
            parts.append(Part(function.engine, listed, ins, outs, tensors))
    every = sum(len(segment.nodes) for segment, _ in segments.parts)
    return Placements(to, every - len(rows), list(rows.values()), parts)


def _part(region: Region, sizes: Mapping[str, int]) -> Part:
    graph = region.model.graph
    ins, outs = (
        formula([bytes_of(v, sizes) for v in values]) for values in (graph.inputs, graph.outputs)
    )
    rows = [p.row for p in region.placements]
    return Part(region.engine, rows, ins, outs, len(graph.inputs) + len(graph.outputs))


def bytes_of(value: ir.Value, sizes: Mapping[str, int]) -> Amount | None:
    """How many bytes a value takes; None where its rank, type or a size is not known."""
    dims, dtype = known_dims(value), element_type(value)
    if dims is None or dtype is None or is_string(dtype) or None in dims:
        return None
    number, free = dtype.itemsize, []
    for dim in dims:
        size: Any = sizes.get(dim, dim) if isinstance(dim, str) else dim
        if isinstance(size, int):
            number *= size
        else:
            free.append(str(size))
    return Counter({tuple(sorted(free)): number})


def formula(amounts: list[Amount | None]) -> str:
    """A sum of amounts as text: 1,024 + 64·N."""
    total: Amount = Counter()
    for amount in amounts:
        total.update(amount or {})
    terms = [f"{number:,}" + "".join(f"·{s}" for s in free) for free, number in total.items()]
    unknown = sum(amount is None for amount in amounts)
    if unknown:
        terms.append(f"{unknown} of unknown size")
    return " + ".join(terms) or "0"
