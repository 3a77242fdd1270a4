"""What a model is made of: `inspect` gathers it as plain data, for people and programs.

Inputs and outputs, versions, weights and constants with the reason, operators, cost for given input
sizes, training records, what would stop the model from training or converting. Nothing is run; the
table for people is printed by `cli/inspect.py`. The formulas for the cost are in `cost.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import onnx_ir as ir

from sardonyx import opset
from sardonyx.cost import Cost, cost
from sardonyx.errors import ArgumentError, quote, translated
from sardonyx.model import Model, ModelSource, load
from sardonyx.normalize import normalize
from sardonyx.passes.nesting import graphs
from sardonyx.registry import op_name
from sardonyx.weights import Weight, weights


@dataclass(frozen=True)
class Tensor:
    """An input or output: name, element type and dimensions (numbers, symbols, None: unknown)."""

    name: str
    type: str
    shape: tuple[int | str | None, ...] | None


@dataclass(frozen=True)
class Training:
    """One training record: what a step reads and changes."""

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

    def as_dict(self) -> dict[str, Any]:
        data = asdict(self)
        for row, tensor in zip(data["tensors"], self.tensors, strict=True):
            row["dtype"] = tensor.dtype.name.lower()
        return data


@translated("the model cannot be inspected")
def inspect(model: ModelSource, sizes: Mapping[str, int] | None = None) -> Inspection:
    """Gather what there is to know about `model` without running it.

    sizes -- numbers for symbolic dimensions, by name; those not given count as 1

    >>> import onnx, sardonyx as sx
    >>> text = '''<ir_version: 8, opset_import: ["": 17]> g (float[N,2] x) => (float[N,3] y)
    ... <float[2,3] w = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}> {y = MatMul(x, w)}'''
    >>> found = inspect(sx.load(onnx.parser.parse_model(text)), {"N": 10})
    >>> found.parameters, found.cost.flops
    (6, 120)
    """
    model = load(model)
    sized, used = _with_sizes(model, dict(sizes or {}))
    tensors = weights(model)
    trained = [w for w in tensors if w.kind == "weight"]
    operators = Counter(
        op_name((opset.domain_name(n.domain), n.op_type)) for g in graphs(model.graph) for n in g
    )
    return Inspection(
        name=model.graph.name or "",
        producer=" ".join(filter(None, (model.ir.producer_name, model.ir.producer_version))),
        ir_version=model.ir.ir_version or 0,
        opsets={d or "ai.onnx": v for d, v in model.ir.opset_imports.items()},
        inputs=[_tensor(v) for v in model.inputs],
        outputs=[_tensor(v) for v in model.outputs],
        nodes=sum(operators.values()),
        functions=len(model.ir.functions),
        operators=dict(sorted(operators.items(), key=lambda row: (-row[1], row[0]))),
        tensors=tensors,
        parameters=sum(w.size for w in trained),
        parameter_bytes=sum(w.size * w.dtype.bitwidth // 8 for w in trained),
        cost=cost(normalize(sized).graph, used),
        training=[_training(r) for r in model.records],
        blockers=_blockers(model, trained),
        unconvertible=_unconvertible(model),
        metadata=dict(model.metadata),
    )


def _tensor(value: ir.Value) -> Tensor:
    dims = None
    if value.shape is not None:
        dims = tuple(d if isinstance(d, int) else d.value for d in value.shape)
    kind = "unknown" if value.type is None else str(value.type)
    if isinstance(value.type, ir.TensorType):
        kind = value.type.dtype.name.lower()
    return Tensor(value.name or "", kind, dims)


def _with_sizes(model: Model, sizes: dict[str, int]) -> tuple[Model, dict[str, int]]:
    """A copy whose inputs have sizes in place of symbols, and the sizes that it used."""
    copy = model.copy()
    used: dict[str, int] = {}
    for value in copy.inputs:
        if value.shape is None:
            continue
        dims: list[int] = []
        for axis, dim in enumerate(value.shape):
            if isinstance(dim, int):
                dims.append(dim)
                continue
            symbol = dim.value or f"{value.name}[{axis}]"
            used[symbol] = sizes.get(symbol, 1)
            dims.append(used[symbol])
        value.shape = ir.Shape(dims)
    unknown = sorted(set(sizes) - set(used))
    if unknown:
        raise ArgumentError(
            f"no dimension of an input is called {', '.join(quote(u) for u in unknown)}",
            hint=f"there are: {', '.join(quote(u) for u in used) or 'none'}",
        )
    return copy, used


def _training(record: Any) -> Training:
    operators = Counter(op_name((opset.domain_name(n.domain), n.op_type)) for n in record.algorithm)
    return Training(
        inputs=[_tensor(v) for v in record.algorithm.inputs],
        updated=[key for key, _ in record.update_binding],
        state=list(record.state),
        state_bytes=sum(t.nbytes for t in record.state.values()),
        operators=dict(sorted(operators.items(), key=lambda row: (-row[1], row[0]))),
    )


def _unconvertible(model: Model) -> list[Blocker]:
    """The nodes that cannot be converted, because they have neither a lowering nor a body."""
    import sardonyx.engines.numpy.backend  # noqa: F401  (registers the shared rules and numpy's)
    from sardonyx.lower.driver import FRAMEWORKS, find

    nodes = [node for part in graphs(normalize(model).graph) for node in part]
    return [
        Blocker(op_name((n.domain, n.op_type)), n.name or "", "it has no lowering")
        for n in nodes
        if not opset.has_body(n.op_type, n.domain)
        and not any(find(n.op_type, n.domain, framework) for framework in FRAMEWORKS)
    ]


def _blockers(model: Model, trained: list[Weight]) -> list[Blocker]:
    """The nodes between weights and outputs through which no gradient can go."""
    from sardonyx.grad.driver import blocked, is_differentiable, path

    normal = normalize(model)
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
