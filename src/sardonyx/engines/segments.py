"""A model in segments: those that a compiled runtime takes, and the rest, which other engines run.

A runtime such as OpenVINO compiles whole graphs, but not all operators and types. The nodes that it
lacks are found before anything runs, from its own table and from its refusals; the graph is divided
so that the runtime gets as few and as large parts as possible.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

import onnx_ir as ir

from sardonyx.engines.loading import load_engine
from sardonyx.errors import EngineError, MissingExtra
from sardonyx.lower.partition import Cut, Placement, readers_in
from sardonyx.model import Model
from sardonyx.passes.nesting import reads

Function = Callable[[Mapping[str, Any]], dict[str, Any]]
REASON = "refused while it was compiled"


def _aligns_corners(node: ir.Node) -> bool:
    mode = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
    return mode == "align_corners"


# Nodes for which onnxruntime 1.31 gives other numbers than the official suite.
DIFFERS: dict[str, Callable[[ir.Node], bool]] = {
    "MaxUnpool": lambda node: len(node.inputs) > 2,
    "Attention": lambda node: len(node.outputs) > 3,
    "Resize": _aligns_corners,
}


class Refusal(EngineError):
    """A runtime does not compile a model; `operators` are those that it names."""

    def __init__(self, what: str, operators: Collection[str] = ()):
        super().__init__(what)
        self.operators = frozenset(operators)


class Runtime(Protocol):
    """What compiles models: `compile` raises `Refusal`; `lacks` gives the reason why a node must
    run elsewhere, `lacks_graph` why all nodes of a graph must, or nothing; `declares` says where
    an operator runs ("here", "partly" or "elsewhere").
    """

    name: str

    def compile(self, model: Model) -> Function: ...
    def lacks(self, node: ir.Node) -> str: ...
    def lacks_graph(self, graph: ir.Graph) -> str: ...
    def declares(self, op: str, domain: str) -> str: ...


class Elsewhere:
    """What the runtime lacks: in onnxruntime, and in NumPy where that is missing or fails."""

    def __init__(self, model: Model):
        self.model = model
        self.rep: Any = None
        self.outputs = [v.name or "" for v in model.outputs]
        self.engine = "onnxruntime"
        if any(node.op_type in DIFFERS and DIFFERS[node.op_type](node) for node in model.graph):
            self._use_numpy()
            return
        try:
            self.rep = load_engine("onnxruntime").prepare(model)
        except (MissingExtra, EngineError):
            self._use_numpy()

    def _use_numpy(self) -> None:
        self.engine = "numpy"
        self.rep = load_engine("numpy").prepare(self.model, fallback="allow")

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        try:
            outputs = self.rep.run(feeds)
        except EngineError:
            if self.engine == "numpy":
                raise
            self._use_numpy()
            outputs = self.rep.run(feeds)
        return dict(zip(self.outputs, outputs, strict=True))


class Segments:
    """A normalized model, divided and compiled; called with feeds, it gives the outputs by name.

    placements -- the nodes that run elsewhere, each with the reason
    """

    def __init__(self, model: Model, runtime: Runtime):
        self.runtime = runtime
        self.outputs = [v.name or "" for v in model.graph.outputs]
        nodes = list(model.graph)
        whole = runtime.lacks_graph(model.graph)
        listed = ((i, whole or runtime.lacks(node)) for i, node in enumerate(nodes))
        reasons = {i: why for i, why in listed if why}
        while True:
            divided = Divided(model, reasons)
            refused = self._compiled(divided)
            if not refused:
                break
            reasons |= refused
        self.divided = divided
        self.placements = [
            Placement(nodes[i], why, "onnxruntime") for i, why in sorted(reasons.items())
        ]

    @property
    def parts(self) -> list[tuple[Segment, Any]]:
        """Each segment with what executes it."""
        return list(zip(self.divided.segments, self.functions, strict=True))

    def _compiled(self, divided: Divided) -> dict[int, str]:
        """Compile every segment; the nodes that the runtime refuses, by position."""
        refused: dict[int, str] = {}
        self.functions: list[Function] = []
        for segment in divided.segments:
            if segment.is_elsewhere:
                self.functions.append(Elsewhere(segment.model))
                continue
            try:
                self.functions.append(self.runtime.compile(segment.model))
            except Refusal as refusal:
                refused |= self._culprits(segment, refusal)
        return refused

    def _culprits(self, segment: Segment, refusal: Refusal) -> dict[int, str]:
        """The nodes of a segment that the runtime refuses: those that it names, those that it
        refuses one by one, else all of them.
        """
        named = [i for i, node in segment.nodes.items() if node.op_type in refusal.operators]
        if not named:
            named = [i for i, node in segment.nodes.items() if not self._takes(segment, node)]
        return dict.fromkeys(named or segment.nodes, REASON)

    def _takes(self, segment: Segment, node: ir.Node) -> bool:
        if len(segment.nodes) == 1:
            return False
        try:
            self.runtime.compile(segment.cut.model_of([node]))
        except Refusal:
            return False
        return True

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        values = {**self.divided.defaults, **feeds}
        for segment, function in self.parts:
            outputs = function({n: values[n] for n in segment.inputs})
            values.update(outputs)
            for name in segment.last:
                values.pop(name, None)
        return {name: values[name] for name in self.outputs}


class Segment:
    """Consecutive nodes of one engine.

    nodes -- position in the whole graph → node
    last  -- the values that no later segment reads
    """

    def __init__(self, cut: Cut, nodes: Mapping[int, ir.Node], is_elsewhere: bool):
        self.cut, self.nodes, self.is_elsewhere = cut, nodes, is_elsewhere
        self.model = cut.model_of(list(nodes.values()))
        self.inputs = [v.name or "" for v in self.model.graph.inputs]
        self.last: list[str] = []


class Divided:
    """The segments of a graph, in the order in which they run."""

    def __init__(self, model: Model, reasons: Mapping[int, str]):
        graph = model.graph
        cut = Cut(model, {}, readers_in(graph), ())
        levels = level_of_each(graph, reasons)
        parts: dict[int, dict[int, ir.Node]] = {}
        for i, node in enumerate(graph):
            parts.setdefault(levels[i], {})[i] = node
        self.segments = [Segment(cut, parts[n], n % 2 == 1) for n in sorted(parts)]
        values = {v.name: v for v in (*graph.inputs, *graph.outputs) if v.is_initializer()}
        self.defaults = {
            name: v.const_value.numpy()
            for name, v in values.items()
            if name and v.const_value is not None
        }
        self._free({v.name or "" for v in graph.outputs})

    def _free(self, needed: set[str]) -> None:
        for segment in reversed(self.segments):
            segment.last = [n for n in segment.inputs if n not in needed]
            needed |= set(segment.inputs)


def level_of_each(graph: ir.Graph, elsewhere: Collection[int]) -> list[int]:
    """A number for each node: even in the runtime, odd elsewhere, and never below a producer's."""
    levels: list[int] = []
    number = {node: i for i, node in enumerate(graph)}
    for i, node in enumerate(graph):
        before = [levels[number[p]] for v in reads(node) if (p := v.producer()) in number]
        level = max(before, default=0)
        levels.append(level + ((level % 2 == 1) != (i in elsewhere)))
    return levels
