"""Fitting versions: the opset and IR that a model needs, not above what its target takes.

A model whose versions the target accepts is left alone. Any other gets a new opset: for each node,
the history of its operator tells the oldest version at which the same node means the same. A node
that is too new is rewritten (`downgrades.py`) or replaced by ONNX's definition of the operator; the
nodes for which neither works are listed, all at once, before anything is written.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from sardonyx import opset, partial
from sardonyx.build import FOLDED_CONSTANT, Builder, infer
from sardonyx.errors import ArgumentError, VersionError, quote, translated
from sardonyx.model import Model, Record
from sardonyx.passes.cse import RANDOM
from sardonyx.passes.functions import expand, inline
from sardonyx.passes.nesting import graphs, names
from sardonyx.passes.shapes import infer_types
from sardonyx.registry import op_name
from sardonyx.upgrades import upgrade_graph
from sardonyx.versions.downgrades import DOWNGRADES
from sardonyx.versions.features import least_ir, newest_feature
from sardonyx.versions.signatures import (
    REWRITTEN,
    lowest,
    other_defaults,
    write_defaults,
)

ML = "ai.onnx.ml"
NEWEST, NEWEST_IR = opset.INSIDE, 14
FLOOR = {"": 13, ML: 1}  # below it, axes and Softmax meant other things, and no runtime needs it


Tensors = Mapping[str, ir.TensorProtocol]


@dataclass(frozen=True)
class Target:
    """What a reader of models takes.

    oldest   -- the lowest opset of the standard operators that it takes
    missing  -- operators that it lacks from some opset on, though it has them below
    expanded -- operators that it lacks from some opset on, and that must be written out
    """

    name: str
    opset: int = NEWEST[""]
    ir: int = NEWEST_IR
    ml: int = NEWEST[ML]
    oldest: int = 1
    missing: Mapping[str, int] = field(default_factory=dict)
    expanded: Mapping[str, int] = field(default_factory=dict)

    def ceiling(self, domain: str) -> int:
        return {**NEWEST, "": self.opset, ML: self.ml}[domain]


# Release of onnxruntime -> opset, IR, ai.onnx.ml; one that is not listed: as the one before it.
# Measured: the highest numbers with which the CPU wheel of each release from 1.8 to 1.31 opens a
# model of one node. Those of ai.onnx.ml are lower where it has no kernel for the newest tree
# ensemble (1.18 to 1.20 open a model of version 5, and run none of its trees). The oldest opset is
# that of the table at onnxruntime.ai/docs/reference/compatibility.html.
ONNXRUNTIME = {
    (1, 8): (14, 7, 2),
    (1, 9): (15, 8, 2),
    (1, 11): (16, 8, 3),
    (1, 12): (17, 8, 3),
    (1, 14): (18, 8, 3),
    (1, 15): (19, 9, 3),
    (1, 17): (20, 9, 4),
    (1, 18): (21, 10, 4),
    (1, 21): (22, 10, 5),
    (1, 23): (23, 11, 5),
    (1, 24): (25, 13, 5),
    (1, 25): (26, 13, 5),
}
ONNXRUNTIME_OLDEST = 7
# onnxruntime 1.31.1 has no kernels for these from opset 22 on, which only added bfloat16.
ONNXRUNTIME_MISSING = dict.fromkeys((*RANDOM, "RoiAlign", "MaxRoiPool", "GlobalLpPool"), 22)
# It has no kernel for this one either; it takes it apart itself, up to opset 24.
ONNXRUNTIME_EXPANDED = {"Swish": 25}


def target(runtime: str | None) -> Target:
    """`"onnxruntime"` (the installed release, else the newest), `"onnxruntime==1.20"`, None: any.

    >>> target("onnxruntime==1.20").opset
    21
    """
    if runtime is None:
        return Target("ONNX")
    match = re.fullmatch(r"onnxruntime(?:-gpu)?(?:==(\d+)\.(\d+)(?:\.\S*)?)?", runtime.strip())
    if match is None:
        raise ArgumentError(
            f"unknown runtime {quote(runtime)}", hint='use "onnxruntime" or "onnxruntime==1.20"'
        )
    version = (int(match[1]), int(match[2])) if match[1] else _installed()
    releases = [release for release in ONNXRUNTIME if release <= version]
    if not releases:
        oldest = ".".join(map(str, min(ONNXRUNTIME)))
        raise ArgumentError(f"{runtime} is too old", hint=f"onnxruntime {oldest} or later")
    accepted, ir_version, ml = ONNXRUNTIME[max(releases)]
    name = f"onnxruntime {version[0]}.{version[1]}"
    gaps = (ONNXRUNTIME_MISSING, ONNXRUNTIME_EXPANDED)
    return Target(name, accepted, ir_version, ml, ONNXRUNTIME_OLDEST, *gaps)


def _installed() -> tuple[int, int]:
    for package in ("onnxruntime", "onnxruntime-gpu"):
        try:
            major, minor = importlib.metadata.version(package).split(".")[:2]
        except importlib.metadata.PackageNotFoundError:
            continue
        return int(major), int(minor)
    return max(ONNXRUNTIME)


@translated("the versions of the model cannot be changed")
def fit(
    model: Model,
    *,
    runtime: str | None = "onnxruntime",
    opset: int | None = None,
    ir: int | None = None,
) -> Model:
    """The model with versions that the target takes: itself where they are, else a copy.

    runtime  -- what will read the file; see `target`
    opset    -- the highest version of the standard operators; instead of what `runtime` takes
    ir       -- the highest IR version; instead of what `runtime` takes
    """
    limits = target(runtime)
    if opset is not None:
        limits = replace(limits, name=f"opset {opset}", opset=opset)
    if ir is not None:
        limits = replace(limits, ir=ir)
    fitted = model if _accepts(limits, model) else _restamp(model, limits, exact=opset)
    return _fit_ir(fitted, limits, restamped=fitted is not model)


def _accepts(limits: Target, model: Model) -> bool:
    imports = [model.ir.opset_imports, *(f.opset_imports for f in model.ir.functions.values())]
    for domain, version in ((d, v) for i in imports for d, v in i.items()):
        standard = _known(domain)
        if standard is not None and version > limits.ceiling(standard):
            return False
    if 0 < model.opset < limits.oldest and not model.records:
        return False
    bodies = [model.graph, *(f.graph for f in model.ir.functions.values())]
    gaps = {**limits.missing, **limits.expanded}
    return all(model.opset <= _limit(limits, g, gaps) for g in bodies)


def _limit(limits: Target, graph: ir.Graph, gaps: Mapping[str, int]) -> int:
    """The opset up to which the target has every operator of the graph."""
    op_types = (n.op_type for part in graphs(graph) for n in part if n.domain == "")
    return min([limits.opset, *(gaps.get(op, limits.opset + 1) - 1 for op in op_types)])


def _known(domain: str) -> str | None:
    name = opset.domain_name(domain)
    return name if name in opset.INSIDE else None


# -- IR -------------------------------------------------------------------------------


def _fit_ir(model: Model, limits: Target, restamped: bool) -> Model:
    current = model.ir.ir_version or 0
    least = least_ir(model)
    if least > limits.ir:
        what, version = newest_feature(model)
        raise VersionError(
            f"the model needs IR {version}, {limits.name} takes IR {limits.ir}", [[what]]
        )
    chosen = least if restamped or current > limits.ir else max(current, least)
    if chosen == current:
        return model
    if not restamped:
        model = model.copy()
    model.ir.ir_version = chosen
    return model


# -- opsets ---------------------------------------------------------------------------


def _restamp(model: Model, limits: Target, exact: int | None) -> Model:
    copy = model.copy()
    copy.records = [_cloned(record) for record in copy.records]
    records = [graph for record in copy.records for graph in record.graphs]
    inline(copy.ir, records)
    parts = [copy.graph, *records]
    mixed = any(n.version is not None for part in parts for g in graphs(part) for n in g)
    if mixed or copy.opset < limits.oldest:
        _to_inside(copy, parts)
    if not _is_typed(copy.graph):
        infer_types(copy.graph, copy.skeleton(attributes=True))
    with _all_connected(copy.records, copy):
        _set_versions(copy, parts, limits, exact)
    return copy


def _is_typed(graph: ir.Graph) -> bool:
    """Whether every value has a type and a shape: a training step has, and inference takes long."""
    outputs = (v for part in graphs(graph) for node in part for v in node.outputs)
    return all(v.type is not None and v.shape is not None for v in outputs if v.name)


def lowered_records(
    records: Sequence[Record], base: Model, served: Model, version: int
) -> list[Record]:
    """Records that were written against `base` for `served`, which has its tensors, at opset
    `version`; a record of which no node has to be rewritten keeps its graphs.
    """
    stamper = _Stamper("", base.opset, version, Target(f"opset {version}", opset=version))
    with _all_connected(records, base):
        if stamper.fits(g for record in records for g in record.graphs):
            return [record.copy() for record in records]
    copies = [_cloned(record) for record in records]
    with _all_connected(copies, base):
        state = {name for record in (*copies, *served.records) for name in record.state}
        parts = [graph for record in copies for graph in record.graphs]
        stamper.stamp(parts, version, names(served.graph) | state)
    return copies


def _cloned(record: Record) -> Record:
    copy = record.copy()
    copy.algorithm = partial.clone(record.algorithm)
    copy.initialization = partial.clone(record.initialization)
    return copy


def _set_versions(copy: Model, parts: list[ir.Graph], limits: Target, exact: int | None) -> None:
    imports = {opset.domain_name(d): v for d, v in copy.ir.opset_imports.items()}
    for domain in (d for d in (*FLOOR,) if d in imports):
        ceiling = min(limits.ceiling(domain), imports[domain])
        if domain == "":
            ceiling = min(ceiling, _limit(limits, copy.graph, limits.missing))
        at = exact if exact and domain == "" and exact <= ceiling else None
        stamper = _Stamper(domain, imports[domain], ceiling, limits)
        imports[domain] = stamper.stamp(parts, at, {n for r in copy.records for n in r.state})
    copy.ir.opset_imports.clear()
    copy.ir.opset_imports.update(imports)


def _to_inside(model: Model, parts: list[ir.Graph]) -> None:
    """Bring nodes of mixed versions (from inlined functions) to the one version inside."""
    imports = model.ir.opset_imports
    for graph in parts:
        upgrade_graph(graph, dict(imports))
        for part in graphs(graph):
            for node in part:
                node.version = None
    imports.pop("ai.onnx", None)
    for domain in opset.INSIDE:
        if domain == "" or domain in imports:
            imports[domain] = opset.INSIDE[domain]


@contextlib.contextmanager
def _all_connected(records: Iterable[Record], model: Model) -> Iterator[None]:
    """Show types and constants of the model to records, while their nodes are rewritten."""
    updated = {
        key for r in model.records for key, _ in (*r.update_binding, *r.initialization_binding)
    }
    outer = partial.named_values(model.graph)
    with contextlib.ExitStack() as connections:
        for record in records:
            for graph, state in ((record.algorithm, record.state), (record.initialization, {})):
                connection = _connected(graph, model.opset, outer, state, updated)
                connections.enter_context(connection)
        yield


@contextlib.contextmanager
def _connected(
    graph: ir.Graph,
    version: int,
    outer: Mapping[str, ir.Value],
    state: Tensors,
    updated: Collection[str],
) -> Iterator[None]:
    """Show types and constants of `outer` and `state` to a partial graph of opset `version`.

    State that a step updates is no constant, whatever it starts from.
    """
    free = partial.free_values(graph)
    before = [(v, v.type, v.shape, v.const_value) for v in free]
    for value in free:
        source, tensor = outer.get(value.name or ""), state.get(value.name or "")
        if tensor is not None:
            value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
        elif source is not None:
            value.type, value.shape, tensor = source.type, source.shape, source.const_value
        if tensor is not None and tensor.size <= FOLDED_CONSTANT and value.name not in updated:
            value.const_value = tensor
    for node in graph:
        if any(v.type is None or v.shape is None for v in node.outputs):
            infer(node, version)
    try:
        yield
    finally:
        for value, kind, shape, tensor in before:
            value.type, value.shape, value.const_value = kind, shape, tensor


class _Stamper:
    """Finds the version at which every node of some graphs is valid, rewriting what is too new."""

    def __init__(self, domain: str, current: int, ceiling: int, limits: Target):
        self.domain, self.current, self.ceiling, self.limits = domain, current, ceiling, limits
        self.blocked: list[list[str]] = []

    def fits(self, parts: Iterable[ir.Graph]) -> bool:
        """Whether all nodes of `parts` are valid at the ceiling as they are."""
        return all(
            lowest(node, self.current, self.ceiling) <= self.ceiling
            and not any(other_defaults(node, self.current, self.ceiling))
            for graph in parts
            for part in graphs(graph)
            for node in part
            if node.domain == self.domain
        )

    def stamp(
        self, parts: Iterable[ir.Graph], exact: int | None = None, reserved: Iterable[str] = ()
    ) -> int:
        """The version that all nodes of `parts` are valid at now: `exact`, or the lowest."""
        parts = list(parts)
        op = Builder()
        op.reserve(set(reserved))
        for graph in parts:  # a record becomes one graph with the model
            op.reserve(names(graph))
            op.reserve({v.name for v in partial.free_values(graph) if v.name})
        floor = exact or min(FLOOR[self.domain], self.ceiling)
        need = max((self._lower(graph, op, floor) for graph in parts), default=0)
        if self.blocked:
            nodes = f"{len(self.blocked)} of the model's nodes have no equivalent at"
            target = f"opset {self.ceiling}"
            if self.limits.name != target:
                target += f", the newest that {self.limits.name} takes"
            raise VersionError(
                f"{nodes} {target}",
                self.blocked,
                hint="name a newer runtime or opset, or runtime=None to write it as it is",
            )
        version = max(need, floor)
        for graph in parts:
            for part in graphs(graph):
                for node in part:
                    if node.domain == self.domain:
                        write_defaults(node, self.current, version)
        return version

    def _lower(self, graph: ir.Graph, op: Builder, floor: int) -> int:
        """The version that the nodes of `graph` need, once those above the ceiling are rewritten;
        what they need below `floor` is not looked for.
        """
        need = 0
        pending = [n for part in graphs(graph) for n in part]
        while pending:
            node = pending.pop()
            if node.domain != self.domain:
                continue
            gap = self.limits.expanded.get(node.op_type, self.ceiling + 1)
            is_gap = node.domain == "" and gap <= self.ceiling
            low = lowest(node, self.current, 0 if is_gap else floor)
            if low > self.ceiling or is_gap:
                rewritten = self._rewrite(op, node, low)
                if rewritten is not None:
                    pending.extend(rewritten)
                    continue
                self.blocked.append(
                    [
                        op_name((node.domain, node.op_type)),
                        f"node {quote(node.name)}",
                        f"needs {low}",
                    ]
                )
            need = max(need, low)
        _place_constants(graph, op)
        return need

    def _rewrite(self, op: Builder, node: ir.Node, low: int) -> list[ir.Node] | None:
        """Rewrite a node in older operators; the nodes to check again, or None."""
        downgrade = DOWNGRADES.get((node.domain, node.op_type, low))
        if downgrade is not None:
            with op.named(node.name or node.op_type):
                succeeded = downgrade(op, node)
            if succeeded:
                assert node.graph is not None
                nodes = list(op.nodes)
                node.graph.insert_before(node, nodes)
                op.nodes.clear()
                node.meta[REWRITTEN] = low - 1
                return [*nodes, node]
            op.nodes.clear()
        return expand(node, op)


def _place_constants(graph: ir.Graph, op: Builder) -> None:
    """Constants as nodes at the start: a record has no initializers that are not state."""
    nodes = [
        ir.Node(
            "", "Constant", [], [ir.AttrTensor("value", v.const_value)], outputs=[v], name=v.name
        )
        for v in op.constants.values()
        if v.uses() and v.const_value is not None
    ]
    if nodes:
        graph.insert_before(graph[0], nodes)
    op.constants.clear()
