"""What a model is made of: `inspect` gathers it as plain data.

Inputs and outputs, versions, weights and constants with the reason, operators, cost for given input
sizes, training records, what would stop the model from training or converting. Nothing is run.
`cli/inspect_model.py` prints it as a table. The formulas for the cost are in `cost.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import onnx_ir as ir

from sardonyx import frames, opset
from sardonyx.collector import paused
from sardonyx.cost import Cost, cost
from sardonyx.errors import ArgumentError, quote, translated
from sardonyx.html_page import cards, table
from sardonyx.model import Model, ModelSource, load
from sardonyx.normalize import normalize, regularize
from sardonyx.passes.nesting import bodies, graphs, reads
from sardonyx.passes.stages import AFTER, MODEL, PREPARATION, stage_of
from sardonyx.record.builder import ROLE
from sardonyx.record.describe import descriptions
from sardonyx.registry import op_name
from sardonyx.weights import Weight, classified

STAGES = (PREPARATION, MODEL, AFTER)


@dataclass(frozen=True)
class Tensor:
    """An input or output: name, element type and dimensions (numbers, symbols, None: unknown)."""

    name: str
    type: str
    shape: tuple[int | str | None, ...] | None


@dataclass(frozen=True)
class Training:
    """One training record: what a step reads and changes.

    loss, optimizer -- as `trainable` wrote them; empty for a record of another tool
    step            -- how many steps were made; None where the record does not count them
    """

    loss: str
    optimizer: str
    step: int | None
    inputs: list[Tensor]
    updated: list[str]
    state: list[str]
    state_bytes: int
    operators: dict[str, int]


@dataclass(frozen=True)
class Blocker:
    """One node through which training or converting cannot go, and why."""

    operator: str
    node: str
    reason: str


@dataclass(frozen=True)
class Stage:
    """A part of the model by what it is for: preprocessing, model or postprocessing.

    reads, gives -- the tensors that enter the stage (weights aside) and those that leave it
    """

    name: str
    nodes: int
    reads: list[str]
    gives: list[str]


@dataclass(frozen=True)
class Node:
    """One node of the graph, bodies included: its operator, and the names that it reads and makes.

    depth  -- how many bodies it is in
    shapes -- the shape of each output in the regular form, where it is known
    """

    name: str
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    depth: int
    shapes: tuple[tuple[int | str | None, ...] | None, ...]


@dataclass
class Inspection:
    """Everything that `inspect` gathered; `as_dict` returns it as plain data, ready for JSON."""

    name: str
    producer: str
    ir_version: int
    opsets: dict[str, int]
    inputs: list[Tensor]
    outputs: list[Tensor]
    nodes: int
    functions: int
    operators: dict[str, int]
    tensors: list[Weight]
    parameters: int
    parameter_bytes: int
    cost: Cost
    training: list[Training]
    blockers: list[Blocker]
    unconvertible: list[Blocker]
    metadata: dict[str, str] = field(default_factory=dict)
    graph: list[Node] = field(default_factory=list)
    frozen: list[dict[str, Any]] = field(default_factory=list)  # line, code, call and value
    stages: list[Stage] = field(default_factory=list)  # empty where no node names its stage

    def __repr__(self) -> str:
        counts = f"{self.nodes:,} nodes, {self.parameters:,} parameters"
        return f"<Inspection of {quote(self.name)}: {counts}, {len(self.blockers)} blockers>"

    def _repr_html_(self) -> str:
        numbers = {
            "nodes": f"{self.nodes:,}",
            "parameters": f"{self.parameters:,}",
            "FLOP per run": f"{self.cost.flops:,}",
            "peak bytes of activations": f"{self.cost.peak_bytes:,}",
        }
        rows = [
            [kind, tensor.name, tensor.type, shape_text(tensor.shape)]
            for kind, tensors in (("input", self.inputs), ("output", self.outputs))
            for tensor in tensors
        ]
        return cards(numbers) + table(["", "name", "type", "shape"], rows)

    def as_dict(self) -> dict[str, Any]:
        data = asdict(self)
        for row, tensor in zip(data["tensors"], self.tensors, strict=True):
            row["dtype"] = tensor.dtype.name.lower()
        return data


def shape_text(shape: Sequence[int | str | None] | None) -> str:
    """A shape as text: [N, 3, ?]."""
    if shape is None:
        return "unknown"
    return f"[{', '.join('?' if d is None else str(d) for d in shape)}]"


@translated("the model cannot be inspected")
@paused()
def inspect(
    model: ModelSource, sizes: Mapping[str, int] | None = None, *, nodes: bool = False
) -> Inspection:
    """Gather what there is to know about `model` without running it.

    sizes -- numbers for symbolic dimensions, by name; those not given count as 1
    nodes -- list every node as well, in `graph`

    >>> import onnx, sardonyx as sx
    >>> text = '''<ir_version: 8, opset_import: ["": 17]> g (float[N,2] x) => (float[N,3] y)
    ... <float[2,3] w = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}> {y = MatMul(x, w)}'''
    >>> found = sx.inspect(sx.load(onnx.parser.parse_model(text)), {"N": 10})
    >>> found
    <Inspection of "g": 1 nodes, 6 parameters, 0 blockers>
    >>> found.cost.flops
    120
    """
    loaded = load(model)
    used = _sizes(loaded, dict(sizes or {}))
    updated = {key for record in loaded.records for key, _ in record.update_binding}
    file = _as_loaded(loaded, nodes)
    # A model that was loaded here needs no copy to be normalized.
    normal = normalize(loaded) if loaded is model else regularize(loaded)
    tensors = classified(normal.graph, updated)
    trained = [w for w in tensors if w.kind == "weight"]
    blockers, unconvertible = _blockers(normal, trained), _unconvertible(normal)
    return Inspection(
        **file | {"graph": _with_shapes(file["graph"], normal)},
        tensors=tensors,
        parameters=sum(w.size for w in trained),
        parameter_bytes=sum(w.size * w.dtype.bitwidth // 8 for w in trained),
        cost=cost(_sized(model, normal, used), used),
        blockers=blockers,
        unconvertible=unconvertible,
    )


def _as_loaded(model: Model, nodes: bool) -> dict[str, Any]:
    """The fields of an inspection that describe the model as its file has it."""
    operators = _count_operators(graphs(model.graph))
    return {
        "name": model.graph.name or "",
        "producer": " ".join(filter(None, (model.ir.producer_name, model.ir.producer_version))),
        "ir_version": model.ir.ir_version or 0,
        "opsets": {d or "ai.onnx": v for d, v in model.ir.opset_imports.items()},
        "inputs": [_tensor(v) for v in model.inputs],
        "outputs": [_tensor(v) for v in model.outputs],
        "nodes": sum(operators.values()),
        "functions": len(model.ir.functions),
        "operators": operators,
        "training": _training(model),
        "metadata": dict(model.metadata),
        "graph": list(_nodes(model)) if nodes else [],
        "frozen": frames.frozen(model.metadata),
        "stages": stages(model),
    }


def stages(model: Model) -> list[Stage]:
    """The stages of the model in their order; nodes that name none belong to the model proper."""
    if not any(stage_of(node) for node in model.graph):
        return []
    members: dict[str, list[ir.Node]] = {}
    for node in model.graph:
        members.setdefault(stage_of(node) or MODEL, []).append(node)
    return [
        Stage(name, _size(model, nodes), *_boundary(nodes, model.graph.initializers))
        for name, nodes in sorted(members.items(), key=lambda row: _position(row[0]))
    ]


def _position(stage: str) -> int:
    return STAGES.index(stage) if stage in STAGES else len(STAGES)


def _size(model: Model, nodes: Iterable[ir.Node]) -> int:
    """How many nodes there are, those of local functions and of bodies included."""
    count, pending = 0, list(nodes)
    while pending:
        node = pending.pop()
        function = model.ir.functions.get(node.op_identifier())
        count += function is None
        pending += () if function is None else function
        pending += [inner for body in bodies(node) for inner in body]
    return count


def _boundary(nodes: list[ir.Node], weights: Mapping[str, ir.Value]) -> tuple[list[str], list[str]]:
    """The names of the tensors that nodes read from outside, and of those that others read."""
    inside = set(nodes)
    entering: dict[str, None] = {}
    leaving: dict[str, None] = {}
    for node in nodes:
        for value in reads(node):
            if value.producer() not in inside and value.name and value.name not in weights:
                entering[value.name] = None
        for value in node.outputs:
            if value.is_graph_output() or any(user not in inside for user, _ in value.uses()):
                leaving[value.name or ""] = None
    return list(entering), list(leaving)


def _count_operators(parts: Iterable[ir.Graph]) -> dict[str, int]:
    """How many nodes each operator has in `parts`, the most frequent first."""
    counts = Counter((node.domain, node.op_type) for part in parts for node in part)
    operators: Counter[str] = Counter()
    for (domain, op_type), count in counts.items():
        operators[op_name((opset.domain_name(domain), op_type))] += count
    return dict(sorted(operators.items(), key=lambda row: (-row[1], row[0])))


def _tensor(value: ir.Value) -> Tensor:
    dims = None
    if value.shape is not None:
        dims = tuple(d if isinstance(d, int) else d.value for d in value.shape)
    kind = "unknown" if value.type is None else str(value.type)
    if isinstance(value.type, ir.TensorType):
        kind = value.type.dtype.name.lower()
    return Tensor(value.name or "", kind, dims)


def _sizes(model: Model, sizes: dict[str, int]) -> dict[str, int]:
    """A number for each free dimension of the inputs, by its symbol or its place."""
    used: dict[str, int] = {}
    for value in model.inputs:
        for axis, dim in enumerate(value.shape or ()):
            if not isinstance(dim, int):
                symbol = dim.value or f"{value.name}[{axis}]"
                used[symbol] = sizes.get(symbol, 1)
    unknown = sorted(set(sizes) - set(used))
    if unknown:
        raise ArgumentError(
            f"no dimension of an input is called {', '.join(quote(u) for u in unknown)}",
            hint=f"there are: {', '.join(quote(u) for u in used) or 'none'}",
        )
    return used


def _sized(model: ModelSource, normal: Model, sizes: Mapping[str, int]) -> ir.Graph:
    """The regular graph with numbers in place of symbols.

    Where a shape has a size that no symbol of an input names, shapes are inferred anew.
    """
    shapes = [v.shape for v in _values(normal.graph)]
    every_dim = (d for shape in shapes if shape is not None for d in shape.dims)
    symbols = {d.value for d in every_dim if not isinstance(d, int)}
    if not symbols:
        return normal.graph
    if symbols <= sizes.keys() and all(shape is not None for shape in shapes):
        graph = normal.copy().graph if normal is model else normal.graph  # one of our own
        shared: dict[tuple[Any, ...], ir.Shape] = {}  # nothing changes the shapes of this graph
        for value in _values(graph):
            assert value.shape is not None
            dims = value.shape.dims
            if dims not in shared:
                shared[dims] = ir.Shape([_number(d, sizes) for d in dims], frozen=True)
            value.shape = shared[dims]
        return graph
    copy = model.copy() if isinstance(model, Model) else load(model)
    for value in copy.inputs:
        if value.shape is not None:
            axes = enumerate(value.shape)
            value.shape = ir.Shape([_number(d, sizes, f"{value.name}[{a}]") for a, d in axes])
    return regularize(copy).graph


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    for part in graphs(graph):
        yield from part.inputs
        for node in part:
            yield from node.outputs


def _number(dim: int | ir.SymbolicDim, sizes: Mapping[str, int], place: str = "") -> int:
    return dim if isinstance(dim, int) else sizes[dim.value or place]


def _nodes(model: Model) -> Iterator[Node]:
    """Every node as the file has it, without the shapes of its outputs."""
    pending = [(n, 0) for n in reversed(model.graph)]
    while pending:
        node, depth = pending.pop()
        yield Node(
            node.name or "",
            op_name((opset.domain_name(node.domain), node.op_type)),
            tuple("" if v is None else v.name or "" for v in node.inputs),
            tuple(v.name or "" for v in node.outputs),
            depth,
            (),
        )
        pending.extend((n, depth + 1) for body in reversed(bodies(node)) for n in reversed(body))


def _with_shapes(nodes: list[Node], normal: Model) -> list[Node]:
    """The nodes with the shapes that normalization inferred for their outputs."""
    if not nodes:
        return []
    shapes = {
        v.name: None if v.shape is None else tuple(_dim(d) for d in v.shape)
        for g in graphs(normal.graph)
        for n in g
        for v in n.outputs
    }
    return [replace(node, shapes=tuple(map(shapes.get, node.outputs))) for node in nodes]


def _dim(dim: int | ir.SymbolicDim) -> int | str | None:
    return dim if isinstance(dim, int) else dim.value


def _training(model: Model) -> list[Training]:
    steps = [k.removeprefix(ROLE) for k, v in model.metadata.items() if v == "step"]
    rows = []
    for record, description in zip(model.records, descriptions(model), strict=True):
        counters = [record.state[name] for name in steps if name in record.state]
        choices: dict[str, list[str]] = {}
        for what, value, _ in description.get("choices", ()):
            choices.setdefault(what, []).append(value)
        rows.append(
            Training(
                loss=" + ".join(choices.get("loss", ())),
                optimizer=choices.get("optimizer", [""])[-1],
                step=int(counters[0].numpy().reshape(-1)[0]) if counters else None,
                inputs=[_tensor(v) for v in record.algorithm.inputs],
                updated=[key for key, _ in record.update_binding],
                state=list(record.state),
                state_bytes=sum(t.nbytes for t in record.state.values()),
                operators=_count_operators([record.algorithm]),
            )
        )
    return rows


def _unconvertible(normal: Model) -> list[Blocker]:
    """The nodes that cannot be converted, because they have neither a lowering nor a body."""
    import sardonyx.engines.numpy.backend  # noqa: F401  (registers the shared rules and numpy's)
    from sardonyx.lower.driver import FRAMEWORKS, find

    nodes = [node for part in graphs(normal.graph) for node in part]
    missing = {
        (domain, op)
        for domain, op in {(n.domain, n.op_type) for n in nodes}
        if not opset.has_body(op, domain)
        and not any(find(op, domain, framework) for framework in FRAMEWORKS)
    }
    return [
        Blocker(op_name((n.domain, n.op_type)), n.name or "", "it has no lowering")
        for n in nodes
        if (n.domain, n.op_type) in missing
    ]


def _blockers(normal: Model, trained: list[Weight]) -> list[Blocker]:
    """The nodes between weights and outputs through which no gradient can go."""
    from sardonyx.grad.driver import blocked, is_differentiable, path

    starts = {normal.graph.initializers[w.name] for w in trained}
    ends = [v for v in normal.outputs if is_differentiable(v)]
    between, values = path(list(normal.graph), starts, ends, ())
    if starts and not between:
        return [Blocker("", "", "no weight has an influence on a floating-point output")]
    return [
        Blocker(op_name((n.domain, n.op_type)), n.name or "", "it has no gradient rule")
        for n in blocked(between, values)
        if not opset.has_body(n.op_type, n.domain)
    ]
