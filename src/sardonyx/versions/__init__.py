"""Fitting versions: the opset and IR that a model needs, not above what its target takes.

A model whose versions the target accepts is left alone. Any other gets a new opset: for each node,
the history of its operator tells the oldest version at which the same node means the same. A node
that is too new is rewritten (`downgrades.py`) or replaced by ONNX's definition of the operator; the
nodes for which neither works are listed, all at once, before anything is written.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

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
from sardonyx.upgrades.driver import ADAPTERS
from sardonyx.versions.downgrades import DOWNGRADES, ONLY_SINCE
from sardonyx.versions.features import least_ir, newest_feature

ML = "ai.onnx.ml"
NEWEST, NEWEST_IR = opset.INSIDE, 14
REWORDED = "sardonyx.reworded"  # the version that a rewritten node was written for
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
    infer_types(copy.graph, copy.skeleton(attributes=True))
    with _all_connected(copy.records, copy):
        _set_versions(copy, parts, limits, exact)
    return copy


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
            and not any(_other_defaults(node, self.current, self.ceiling))
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
                        _reword_defaults(node, self.current, version)
        return version

    def _lower(self, graph: ir.Graph, op: Builder, floor: int) -> int:
        """The version that the nodes of `graph` need, once those above the ceiling are reworded;
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
                reworded = self._reword(op, node, low)
                if reworded is not None:
                    pending.extend(reworded)
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

    def _reword(self, op: Builder, node: ir.Node, low: int) -> list[ir.Node] | None:
        """Rewrite a node in older operators; the nodes to check again, or None."""
        downgrade = DOWNGRADES.get((node.domain, node.op_type, low))
        if downgrade is not None:
            with op.named(node.name or node.op_type):
                reworded = downgrade(op, node)
            if reworded:
                assert node.graph is not None
                nodes = list(op.nodes)
                node.graph.insert_before(node, nodes)
                op.nodes.clear()
                node.meta[REWORDED] = low - 1
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


# -- how far down one node can go -------------------------------------------------------


@dataclass(frozen=True)
class _Form:
    """One version of an operator's signature."""

    since: int
    deprecated: bool
    min_inputs: int
    max_inputs: int
    min_outputs: int
    max_outputs: int
    inputs: tuple[tuple[bool, frozenset[str]], ...]  # required, allowed types; the last repeats
    outputs: tuple[tuple[bool, frozenset[str]], ...]
    attributes: tuple[str, ...]
    required: frozenset[str]
    defaults: dict[str, Any]


@functools.cache
def forms(op_type: str, domain: str) -> tuple[_Form, ...]:
    """Every signature that the operator had, newest first."""
    signatures = []
    for schema in reversed(opset.history(op_type, domain)):
        allowed = {
            c.type_param_str: frozenset(c.allowed_type_strs) for c in schema.type_constraints
        }
        parameters = [
            tuple(
                (p.option == opset.Single, allowed.get(p.type_str, frozenset([p.type_str])))
                for p in side
            )
            for side in (schema.inputs, schema.outputs)
        ]
        signatures.append(
            _Form(
                schema.since_version,
                schema.deprecated,
                schema.min_input,
                schema.max_input,
                schema.min_output,
                schema.max_output,
                parameters[0],
                parameters[1],
                tuple(schema.attributes),
                frozenset(n for n, a in schema.attributes.items() if a.required),
                {n: opset.attribute_value(a.default_value) for n, a in schema.attributes.items()},
            )
        )
    return tuple(signatures)


@functools.cache
def _forms_until(op_type: str, domain: str, version: int) -> tuple[_Form, ...]:
    """The signatures that the operator had up to `version`, newest first."""
    return tuple(form for form in forms(op_type, domain) if form.since <= version)


def lowest(node: ir.Node, version: int, floor: int = 0) -> int:
    """The lowest opset at which `node` means what it means at `version`, or one from `floor` down
    at which it does.
    """
    version = node.meta.get(REWORDED, version) if node.meta else version
    now, *rest = _forms_until(node.op_type, node.domain, version) or (None,)
    if now is None:
        return version
    if now.since <= floor:
        return now.since
    boundaries = {a.to for a in ADAPTERS.get((node.domain, node.op_type), ())}
    low = now
    for older in rest:
        if low.since <= floor:
            break
        means_more = ONLY_SINCE.get((node.domain, node.op_type, low.since))
        if low.since in boundaries or (means_more is not None and means_more(node)):
            break
        if older.deprecated or not _fits(node, older, now):
            break
        low = older
    return low.since


def is_same_at(node: ir.Node, one: int, other: int) -> bool:
    """Whether a standard node means the same at opset `other`, above `one`."""
    changes = {a.to for a in ADAPTERS.get((node.domain, node.op_type), ())}
    return all(
        (node.op_type, version) in KEPT and KEPT[node.op_type, version](node)
        for version in changes
        if one < version <= other
    )


def _is_inference(node: ir.Node) -> bool:
    return not any(v.name for v in node.outputs[1:])


def _is_over_the_last_axis(node: ir.Node) -> bool:
    shapes = [v.shape for v in (*node.inputs, *node.outputs) if v is not None]
    ranks = {len(shape) for shape in shapes if shape is not None}
    axis = node.attributes.get_int("axis", 1)
    return "axis" in node.attributes and (axis == -1 or ranks == {axis + 1})


# Changes of an operator's form that leave most of its nodes alone, and which.
KEPT = {
    ("BatchNormalization", 14): _is_inference,
    ("Softmax", 13): _is_over_the_last_axis,
    ("LogSoftmax", 13): _is_over_the_last_axis,
}


def _fits(node: ir.Node, form: _Form, now: _Form) -> bool:
    if not form.min_inputs <= len(node.inputs) <= form.max_inputs:
        return False
    if not form.min_outputs <= len(node.outputs) <= form.max_outputs:
        return False
    for values, parameters in ((node.inputs, form.inputs), (node.outputs, form.outputs)):
        for i, value in enumerate(values):
            required, allowed = parameters[min(i, len(parameters) - 1)]
            if value is None or not value.name:
                if required:
                    return False
                continue
            kind = type_name(value.type)
            if kind is not None and kind not in allowed:
                return False
    present = set(node.attributes)
    if not present and not form.required:
        return True
    if form.required - present - {n for n, d in now.defaults.items() if d is not None}:
        return False
    return all(
        name in form.attributes or _is_default(node.attributes[name], now.defaults.get(name))
        for name in present
    )


def _is_default(attr: ir.Attr, default: Any) -> bool:
    if default is None or attr.is_ref():
        return False
    value = attr.value
    return (tuple(value) if isinstance(value, (list, tuple)) else value) == default


def _reword_defaults(node: ir.Node, current: int, version: int) -> None:
    """Drop attributes that the older form lacks; write those whose default was another."""
    absent, added = _other_defaults(node, node.meta.pop(REWORDED, current), version)
    for name in absent:
        node.attributes.pop(name)
    for name, default in added.items():
        node.attributes.add(ir.convenience.convert_attribute(name, default))


def _other_defaults(node: ir.Node, current: int, version: int) -> tuple[set[str], dict[str, Any]]:
    """The attributes of a node that the older form lacks, and the defaults that were others."""
    now = next(iter(_forms_until(node.op_type, node.domain, current)), None)
    then = next(iter(_forms_until(node.op_type, node.domain, version)), None)
    if now is None or then is None or now is then:
        return set(), {}
    added: dict[str, Any] = {}
    if not (node.attributes or then.attributes):
        return set(), added
    for name in then.attributes:
        default = now.defaults.get(name)
        if name not in node.attributes and default is not None and then.defaults[name] != default:
            added[name] = default
    return set(node.attributes) - set(then.attributes), added


def type_name(kind: ir.TypeProtocol | None) -> str | None:
    """A type as schemas write it: `tensor(float)`, `seq(tensor(int64))`; None if not known."""
    if kind is None:
        return None
    if type(kind) is ir.TensorType:  # isinstance is slow for what derives from a protocol
        return _tensor_type_name(kind.dtype)
    if isinstance(kind, ir.SequenceType):
        inner = type_name(kind.elem_type)
        return None if inner is None else f"seq({inner})"
    if isinstance(kind, ir.OptionalType):
        inner = type_name(kind.elem_type)
        return None if inner is None else f"optional({inner})"
    return _tensor_type_name(kind.dtype) if isinstance(kind, ir.TensorType) else None


@functools.cache
def _tensor_type_name(dtype: ir.DataType) -> str | None:
    return None if dtype == ir.DataType.UNDEFINED else f"tensor({dtype.name.lower()})"
