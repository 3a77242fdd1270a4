"""One file for data preparation, model and what follows it; `split` gives the parts back.

The preparation becomes a local function that the model calls, named by the model-level metadata
key `preprocessing_fn`, and every node says its stage (`stages.py`), so that the boundary survives
inlining. The model itself stays as it is, node for node, with its training records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.errors import ArgumentError, VersionError, quote
from sardonyx.model import Model, ModelSource, load
from sardonyx.normalize import regular_copy
from sardonyx.passes.functions import inline
from sardonyx.passes.nesting import names as all_names
from sardonyx.passes.stages import (
    AFTER,
    MODEL,
    PREPARATION,
    STAGE,
    cut_back,
    cut_front,
    mark,
    stage_of,
)
from sardonyx.passes.validity import check_whole
from sardonyx.versions import fit
from sardonyx.versions.signatures import is_same_at

DOMAIN = "sardonyx.composed"
KEYS = {PREPARATION: "preprocessing_fn", AFTER: "postprocessing_fn"}
FUNCTIONS = {PREPARATION: "Preprocessing", AFTER: "Postprocessing"}
FEATURES = "sardonyx.features"
NUMBERS = "fiub"


@dataclass(frozen=True)
class Parts:
    """The parts of a composed model; a part that it does not have is None."""

    preparation: Model | None
    model: Model
    after: Model | None


def compose(
    preparation: ModelSource | None, model: ModelSource, after: ModelSource | None = None
) -> Model:
    """Join data preparation, a model and what follows it into one model that takes raw data.

    preparation -- a model whose outputs are the inputs of `model`: matched by name, else by
                   position; several columns are joined where `model` takes one matrix
    model       -- the model proper; its training records stay
    after       -- a model whose inputs are outputs of `model`

    Numbers are cast to the type that the next part takes.

    >>> import onnx, sardonyx as sx
    >>> text = '''<ir_version: 8, opset_import: ["": 17]> p (double[N] age, double[N] fare)
    ... => (double[N] a, double[N] f) {a = Sqrt(age)  f = Log(fare)}'''
    >>> preparation = sx.load(onnx.parser.parse_model(text))
    >>> text = '''<ir_version: 8, opset_import: ["": 17]> g (float[N,2] x) => (float[N,1] y)
    ... <float[2,1] w = {1.0, 2.0}> {y = MatMul(x, w)}'''
    >>> whole = sx.compose(preparation, onnx.parser.parse_model(text))
    >>> [value.name for value in whole.inputs]
    ['age', 'fare']
    """
    whole = load(model).copy()
    for part, stage in ((preparation, PREPARATION), (after, AFTER)):
        if part is not None and _names_of(whole, stage):
            raise ArgumentError(f"the model has {stage} already", hint="sx.split takes it off")
    mark(whole.graph, MODEL)
    if preparation is not None:
        _put_before(whole, load(preparation))
    if after is not None:
        _put_behind(whole, load(after))
    for function in whole.ir.functions.values():
        if function.domain == DOMAIN:
            function.opset_imports.update(whole.ir.opset_imports)
            function.opset_imports.pop(DOMAIN)
    check_whole(whole, "composing")
    return whole


def split(model: ModelSource) -> Parts:
    """The parts of a composed model: preparation, the model proper with its records, and after.

    >>> import sardonyx as sx
    >>> sx.split("model.onnx").preparation is None
    True
    """
    whole = load(model)
    before = _names_of(whole, PREPARATION)
    behind = _names_of(whole, AFTER)
    preparation = after = None
    if before:
        parts = cut_front(whole, before)
        preparation, whole = _plain(parts.front), parts.rest
    if behind:
        parts = cut_back(whole, behind)
        whole, after = parts.front, _plain(parts.rest)
    if preparation is not None or after is not None:
        whole = _without_functions(whole)
    return Parts(preparation, whole, after)


def _names_of(model: Model, stage: str) -> set[str]:
    """The first outputs of the nodes of a stage."""
    return {n.outputs[0].name or "" for n in model.graph if n.outputs and stage_of(n) == stage}


def _plain(part: Model) -> Model:
    """A part as an ordinary model: what was a local function is inlined."""
    inline(part.ir)
    part.records = []
    return part


def _without_functions(model: Model) -> Model:
    """The model without the functions and the metadata of the parts that are gone."""
    for stage, name in FUNCTIONS.items():
        model.ir.functions.pop((DOMAIN, name, ""), None)
        model.metadata.pop(KEYS[stage], None)
    model.metadata.pop(FEATURES, None)
    model.ir.opset_imports.pop(DOMAIN, None)
    return model


# -- joining ------------------------------------------------------------------------------


def _put_before(whole: Model, preparation: Model) -> None:
    part = _opened(preparation, whole, "preparation")
    inputs = _matched(part, whole)
    _free_names(whole, [v.name or "" for v in part.inputs])
    raw = [ir.Value(name=v.name, type=v.type, shape=v.shape) for v in part.inputs]
    rest = [v for v in whole.graph.inputs if v not in inputs]
    call = _call(whole, part, raw, list(inputs.values()), PREPARATION)
    for feature, result in zip(inputs, call.outputs, strict=True):
        name, feature.name = feature.name, None
        result.name, result.type, result.shape = name, feature.type, feature.shape
        feature.replace_all_uses_with(result, replace_graph_outputs=True)
    whole.graph.inputs.clear()
    whole.graph.inputs.extend([*raw, *rest])
    first = next(iter(whole.graph), None)
    if first is None:
        whole.graph.append(call)
    else:
        whole.graph.insert_before(first, call)
    for key, text in preparation.metadata.items():
        whole.metadata.setdefault(key, text)


def _put_behind(whole: Model, after: Model) -> None:
    part = _opened(after, whole, "part that follows")
    _free_names(whole, [v.name or "" for v in part.outputs])
    sources_by_name = {v.name: v for v in whole.graph.outputs}
    inputs = part.inputs
    if not all(v.name in sources_by_name for v in inputs):
        if len(inputs) != len(sources_by_name):
            outputs = whole.graph.outputs
            raise _unmatched("the part that follows takes", inputs, "the model gives", outputs)
        sources_by_name = {v.name: o for v, o in zip(inputs, whole.graph.outputs, strict=True)}
    sources = [sources_by_name[v.name] for v in inputs]
    _refuse_types(sources, inputs)
    results = [(v.name, v.type, v.shape) for v in part.outputs]
    call = _call(whole, part, sources, list(part.outputs), AFTER)
    for value, (name, kind, shape) in zip(call.outputs, results, strict=True):
        value.name, value.type, value.shape = name, kind, shape
    others = [v for v in whole.graph.outputs if v not in sources]
    whole.graph.outputs.clear()
    whole.graph.outputs.extend([*call.outputs, *others])
    whole.graph.append(call)


def _call(
    whole: Model, part: Model, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value], stage: str
) -> ir.Node:
    """A local function of the part's graph, and a node that calls it with `inputs`."""
    mark(part.graph, stage, overwrite=True)
    name = FUNCTIONS[stage]
    formal, nodes = part.inputs, _take_nodes(part, stage)
    for value in (*formal, *(v for node in nodes for v in node.outputs)):
        value.type = value.shape = None  # a function has none before IR 10
    body = ir.Graph(
        formal,
        outputs,
        nodes=nodes,
        opset_imports=dict(whole.ir.opset_imports),
        name=name,
    )
    whole.ir.functions[(DOMAIN, name, "")] = ir.Function(DOMAIN, name, graph=body, attributes=())
    whole.ir.opset_imports[DOMAIN] = 1
    whole.metadata[KEYS[stage]] = f"{DOMAIN}::{name}"
    node = ir.Node(DOMAIN, name, inputs, num_outputs=len(outputs), name=name.lower())
    node.metadata_props[STAGE] = stage
    return node


def _take_nodes(part: Model, stage: str) -> list[ir.Node]:
    """The nodes of the part, its initializers as Constant nodes: a function has none."""
    nodes = []
    for value in list(part.graph.initializers.values()):
        if not value.uses():
            continue
        assert value.const_value is not None
        constant = ir.Node("", "Constant", [], [ir.AttrTensor("value", value.const_value)])
        constant.outputs[0].name = value.name
        constant.metadata_props[STAGE] = stage
        value.replace_all_uses_with(constant.outputs[0], replace_graph_outputs=True)
        nodes.append(constant)
    part.graph.initializers.clear()
    every = list(part.graph)
    part.graph.outputs.clear()
    part.graph.inputs.clear()
    part.graph.remove(every)
    return [*nodes, *every]


def _free_names(whole: Model, names: Sequence[str]) -> None:
    """Give tensors of the model that are called like raw inputs or new outputs another name."""
    used_names = all_names(whole.graph)
    clashes = [n for n in names if n in used_names]
    if not clashes:
        return
    if whole.records:
        raise ArgumentError(
            "tensors of the model have the names of columns, and its training record reads them",
            [[quote(n)] for n in clashes],
            hint="compose first and call sx.trainable on the result, or rename the columns",
        )
    op = Builder("model")
    op.reserve(used_names | set(names))
    values = [*whole.graph.inputs, *(v for node in whole.graph for v in node.outputs)]
    for value in values:
        if value.name in clashes:
            value.name = op.fresh(f"model/{value.name}")
    for name in [n for n in whole.graph.initializers if n in clashes]:
        value = whole.graph.initializers.pop(name)
        value.name = op.fresh(f"model/{name}")
        whole.graph.register_initializer(value)


# -- versions -----------------------------------------------------------------------------


def _opened(part: Model, whole: Model, what: str) -> Model:
    """A part at the versions of the model, without functions; the model is raised if need be."""
    if part.records:
        raise ArgumentError(
            f"the {what} carries a training record", hint="only the model proper is trained"
        )
    copy = part.copy()
    inline(copy.ir)
    if copy.opset != whole.opset:
        copy = _at_version(copy, whole, what)
    for domain, version in copy.ir.opset_imports.items():
        _agree(copy, whole, domain, version)
    return copy


def _at_version(part: Model, whole: Model, what: str) -> Model:
    """The part at the opset of the model; else the model at that of the part."""
    raised = part if part.opset > whole.opset else regular_copy(part)
    try:
        return fit(raised, runtime=None, opset=whole.opset)
    except VersionError:
        if whole.records or part.opset < whole.opset:
            raise ArgumentError(
                f"the {what} needs opset {part.opset}, and the model has opset {whole.opset}",
                hint="compose first, and call sx.trainable on the result",
            ) from None
    newer = fit(regular_copy(whole), runtime=None, opset=part.opset)
    whole.ir = newer.ir
    return part


def _agree(part: Model, whole: Model, domain: str, version: int) -> None:
    """One version of every other domain, at which all nodes of both mean what they mean now."""
    current = whole.ir.opset_imports.setdefault(domain, version)
    if current == version or domain in ("", "ai.onnx"):
        return
    low, high = sorted((current, version))
    older = whole if current == low else part
    nodes = [n for n in older.graph if n.domain == domain]
    if not all(is_same_at(node, low, high) for node in nodes):
        raise ArgumentError(
            f"the parts need version {low} and version {high} of the domain {quote(domain)}",
            [[n.op_type, quote(n.name)] for n in nodes],
        )
    whole.ir.opset_imports[domain] = part.ir.opset_imports[domain] = high


# -- matching -----------------------------------------------------------------------------


def _matched(part: Model, whole: Model) -> dict[ir.Value, ir.Value]:
    """The inputs of the model that the preparation gives, and the values of it that they get."""
    outputs, inputs = list(part.outputs), whole.inputs
    op = Builder("features")
    op.reserve(all_names(part.graph))
    by_name = {v.name: v for v in outputs}
    pairs = {v: by_name[v.name] for v in inputs if v.name in by_name}
    left = [v for v in outputs if v not in pairs.values()]
    free = [v for v in inputs if v not in pairs]
    if left and len(left) == len(free) and all(_fits(a, b) for a, b in zip(left, free)):
        pairs.update(zip(free, left, strict=True))
        left = []
    elif left and len(free) >= 1 and _is_matrix(free[0]) and all(map(_is_column, left)):
        pairs[free[0]] = _joined(op, left, free[0], whole)
        left = []
    if left or not pairs:
        raise _unmatched("the preparation gives", left or outputs, "the model takes", inputs)
    _refuse_types(list(pairs.values()), list(pairs))
    converted = {target: _converted(op, value, target) for target, value in pairs.items()}
    part.graph.extend(op.nodes)
    for value in op.constants.values():
        part.graph.register_initializer(value)
    return converted


def _fits(output: ir.Value, target: ir.Value) -> bool:
    """Whether an output can feed an input: the same rank, or a column for a matrix of width 1."""
    if output.shape is None or target.shape is None:
        return True
    missing = len(target.shape) - len(output.shape)
    sizes = list(zip(output.shape, target.shape, strict=False))
    same = all(not (isinstance(a, int) and isinstance(b, int)) or a == b for a, b in sizes)
    return same and (missing == 0 or (missing == 1 and target.shape[-1] == 1))


def _is_matrix(value: ir.Value) -> bool:
    return value.shape is not None and len(value.shape) == 2 and _kind(value) in NUMBERS


def _is_column(value: ir.Value) -> bool:
    rank = None if value.shape is None else len(value.shape)
    return rank in (1, 2) and _kind(value) in NUMBERS


def _kind(value: ir.Value) -> str:
    return np.dtype(value.dtype.numpy()).kind if value.dtype is not None else "?"


def _joined(op: Builder, columns: Sequence[ir.Value], target: ir.Value, whole: Model) -> ir.Value:
    """Columns side by side, in the type of the matrix that the model takes."""
    widths = [1 if len(v.shape or ()) == 1 else v.shape[1] for v in columns]  # type: ignore[index]
    width = target.shape[1]  # type: ignore[index]
    if isinstance(width, int) and all(isinstance(w, int) for w in widths) and sum(widths) != width:
        raise ArgumentError(
            f"the preparation gives {sum(widths)} columns, and {quote(target.name)} takes {width}",
            [[quote(v.name), str(w)] for v, w in zip(columns, widths, strict=True)],
        )
    whole.metadata[FEATURES] = ", ".join(v.name or "" for v in columns)
    matrices = []
    for value in columns:
        cast = op.Cast(value, to=target.dtype) if value.dtype != target.dtype else value
        flat = len(value.shape or ()) == 1
        matrices.append(op.Unsqueeze(cast, np.array([1])) if flat else cast)
    return op.Concat(*matrices, axis=1)


def _converted(op: Builder, value: ir.Value, target: ir.Value) -> ir.Value:
    """The value in the type and rank that the model takes, as a value of its own."""
    if target.dtype is not None and value.dtype not in (None, target.dtype):
        value = op.Cast(value, to=target.dtype)
    ranks = [None if v.shape is None else len(v.shape) for v in (value, target)]
    if None not in ranks and ranks[1] == ranks[0] + 1:  # type: ignore[operator]
        value = op.Unsqueeze(value, np.array([ranks[0]]))
    return op.Identity(value) if value.producer() is None else value


def _refuse_types(values: Sequence[ir.Value], targets: Sequence[ir.Value]) -> None:
    rows = [
        [quote(a.name), str(a.dtype), "→", quote(b.name), str(b.dtype)]
        for a, b in zip(values, targets, strict=True)
        if a.dtype and b.dtype and a.dtype != b.dtype and {_kind(a), _kind(b)} - set(NUMBERS)
    ]
    if rows:
        raise ArgumentError("types do not fit where the parts meet", rows)


def _unmatched(
    gives: str, ours: Iterable[ir.Value], takes: str, theirs: Iterable[ir.Value]
) -> ArgumentError:
    rows = [[gives, quote(v.name), f"{v.dtype} {v.shape}"] for v in ours]
    rows += [[takes, quote(v.name), f"{v.dtype} {v.shape}"] for v in theirs]
    return ArgumentError(
        "the parts do not fit together",
        rows,
        hint="name the outputs of one part like the inputs of the next",
    )
