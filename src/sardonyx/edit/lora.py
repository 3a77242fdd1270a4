"""Low-rank adapters: `lora` adds them beside the weights of a model, `merge_lora` folds them in.

A product with a weight W becomes one with W + alpha / rank · A·B, computed as a path of its own:
x·A, times alpha / rank, ·B, plus what the product gives (for a convolution, two convolutions).
W stays as it is stored, also as integers behind DequantizeLinear. What is trained is A and B,
which are inputs of the graph with default values, so that a session may be fed others.
`edit/products.py` has the arithmetic of each operator.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx import opset
from sardonyx.build import FLOATS, Builder
from sardonyx.edit.merged import IMPORTED, separate_merged
from sardonyx.edit.products import OPERATORS, Product, adaptable, stored_array
from sardonyx.edit.surgery import ADAPTERS, FRESH, FROZEN, ROLE, finish, open_model
from sardonyx.errors import ArgumentError, ModelError, quote
from sardonyx.initializer import Initializer, draw
from sardonyx.model import Model, ModelSource, load
from sardonyx.passes.nesting import graphs
from sardonyx.passes.nesting import names as all_names
from sardonyx.weights import classified, weights

BESIDE = "sardonyx.lora.beside"  # weights that are trained beside them, such as a new head's
RECORDS = "sardonyx.training"  # the descriptions of training records, which a merge drops
FIRST, SECOND = ".lora_A", ".lora_B"
ROUNDED = "its weight is rounded while it is trained: sx.to_integers first stores it as integers"
KAIMING = Initializer("kaiming_uniform", 3**-0.5)  # ±1/√fan_in, as layers of torch start


@dataclass(frozen=True)
class Adapter:
    """One adapter: the weight that it stands beside, and its settings.

    >>> Adapter("w", "MatMul", rank=8, alpha=16.0).scale
    2.0
    """

    weight: str
    operator: str
    rank: int
    alpha: float
    dropout: float = 0.0

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


def adapters(model: Model) -> dict[str, Adapter]:
    """The adapters of a model: the beginning of the names of their tensors → the adapter."""
    text = model.metadata.get(ADAPTERS)
    return {} if text is None else parse(text, "the model")


def parse(text: str, source: str) -> dict[str, Adapter]:
    """Adapters from their JSON, as it is in a model or in a file; wrong ones are an error."""
    try:
        listed = {str(name): Adapter(**settings) for name, settings in json.loads(text).items()}
        for adapter in listed.values():
            _check_settings(adapter.rank, adapter.alpha, adapter.dropout)
    except (ValueError, TypeError, AttributeError, ArgumentError) as error:
        raise ModelError(f"the description of adapters in {source} is damaged") from error
    return listed


def describe(listed: Mapping[str, Adapter]) -> str:
    """The JSON that `parse` reads."""
    return json.dumps({name: asdict(adapter) for name, adapter in listed.items()})


def lora(
    model: ModelSource,
    rank: int = 8,
    alpha: float = 16.0,
    targets: str | Sequence[str] = "MatMul|Gemm|Conv",
    dropout: float = 0.0,
    *,
    exclude: str | Sequence[str] = (),
    seed: int = 0,
) -> Model:
    """Add low-rank adapters beside weights, and freeze everything else; the outputs stay the same.

    rank     -- columns of A, rows of B; for a grouped convolution, in each group
    alpha    -- the path is scaled by alpha / rank
    targets  -- operators whose weights get an adapter, or patterns of names of weights; one string
                may hold several, separated by |
    dropout  -- the share of the path's inputs that training drops
    exclude  -- patterns of names of weights that get none
    seed     -- of A, which starts random; B starts at 0

    The tensors are called `<weight>.lora_A` and `<weight>.lora_B`. The weights of a head that
    `replace_head` made get no adapter: they are trained themselves.

    >>> import onnx, sardonyx as sx
    >>> model = sx.load(onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
    ... g (float[N,2] x) => (float[N,3] y) <float[2,3] w = {1,2,3,4,5,6}> {y = MatMul(x, w)}'''))
    >>> sx.lora(model, rank=1).initializer("w.lora_A").shape
    Shape([2, 1])
    """
    _check_settings(rank, alpha, dropout, seed)
    loaded = load(model)
    if adapters(loaded):
        raise ArgumentError(
            "the model has adapters already", hint="sx.merge_lora folds them into the weights"
        )
    work, op = _opened(loaded)
    groups = _groups(work)
    products = _targets(work, groups, _tokens(targets), _tokens(exclude))
    _require_room(products, rank)
    listed: dict[str, Adapter] = {}
    for name, (product, *others) in groups.items():
        if product not in products:
            continue
        weight = product.weight.name or ""
        first, second = product.factors(rank)
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        adapter = Adapter(weight, product.node.op_type, int(rank), float(alpha), float(dropout))
        start = product.started(draw(KAIMING, first, rng))
        _add(op, name, adapter, start, np.zeros(second, start.dtype), (product, *others))
        listed[name] = adapter
    return _adapted(work, op, listed)


def with_adapters(
    model: ModelSource, listed: Mapping[str, Adapter], arrays: Mapping[str, np.ndarray]
) -> Model:
    """A model with the adapters of a file: those that `lora` would have added, with their values.

    arrays -- A and B of each adapter, by name
    """
    work, op = _opened(model)
    groups = _groups(work)
    missing = [[quote(name), "is no weight of a product"] for name in listed if name not in groups]
    wrong = [
        [quote(name), f"does not fit {group[0].operand.shape}"]
        for name, group in groups.items()
        if name in listed and not _fits(group[0], listed[name], name, arrays)
    ]
    if missing or wrong:
        raise ArgumentError("the adapters do not belong to this model", [*missing, *wrong])
    for name, adapter in listed.items():
        _add(op, name, adapter, arrays[name + FIRST], arrays[name + SECOND], groups[name])
    return _adapted(work, op, dict(listed))


def _opened(model: ModelSource) -> tuple[Model, Builder]:
    """A copy in which layers have weights, and so adapters, of their own, also where an exporter
    had made equal ones one tensor.
    """
    work, op = open_model(model)
    if IMPORTED not in work.metadata:
        separate_merged(work, lambda *_: None)
        op.reserve(all_names(work.graph))
    return work, op


def _fits(product: Product, adapter: Adapter, name: str, arrays: Mapping[str, np.ndarray]) -> bool:
    shapes = product.started_shape(adapter.rank), product.factors(adapter.rank)[1]
    kind = np.dtype(product.dtype)
    return all(
        arrays[name + end].shape == shape and arrays[name + end].dtype == kind
        for end, shape in zip((FIRST, SECOND), shapes, strict=True)
    )


def merge_lora(model: ModelSource) -> Model:
    """Fold the adapters into their weights and remove their paths.

    A training record, which describes the graph with the adapters, is dropped. An integer weight
    becomes a float one: the sum has no exact place among its levels.

    >>> import onnx, sardonyx as sx
    >>> model = sx.load(onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
    ... g (float[N,2] x) => (float[N,3] y) <float[2,3] w = {1,2,3,4,5,6}> {y = MatMul(x, w)}'''))
    >>> list(sx.merge_lora(sx.lora(model, rank=1)).graph.initializers)
    ['w']
    """
    loaded = load(model)
    listed = require_adapters(loaded)
    bare = loaded.copy()
    bare.records = []
    work, op = open_model(bare)
    for name, adapter in listed.items():
        _merge(work, op, name, adapter)
    added = {name + end for name in listed for end in (FIRST, SECOND)}
    added.update(json.loads(work.metadata.get(BESIDE, "[]")))
    inputs = [v for v in work.graph.inputs if v.name not in added]
    work.graph.inputs.clear()
    work.graph.inputs.extend(inputs)
    for key in [k for k in work.metadata if k.startswith(ROLE) or k in (ADAPTERS, BESIDE, RECORDS)]:
        del work.metadata[key]
    finish(work, op, "the adapters cannot be merged")
    return work


def require_adapters(model: Model) -> dict[str, Adapter]:
    """The adapters of a model; an error where it has none."""
    listed = adapters(model)
    if not listed:
        raise ArgumentError("the model has no adapters", hint="sx.lora adds them")
    return listed


def adapter_tensors(model: Model) -> dict[str, ir.Value]:
    """What makes up the adapter of a model: A and B of each, and what is trained beside them.

    That are weights which are not frozen, and whatever else a record updates, such as running
    statistics.
    """
    initializers = model.graph.initializers
    listed = require_adapters(model)
    names = [n + end for n in listed for end in (FIRST, SECOND)]
    missing = [[quote(n)] for n in names if n not in initializers]
    if missing:
        raise ModelError("tensors of adapters are not in the model", missing)
    frozen = {k.removeprefix(ROLE) for k, v in model.metadata.items() if v == FROZEN}
    kinds = {w.name: w.kind for w in weights(model)}
    updated = {name for record in model.records for name, _ in record.update_binding}
    names += [
        n
        for n in initializers
        if n not in names and (n in updated or (kinds.get(n) == "weight" and n not in frozen))
    ]
    return {name: initializers[name] for name in names}


# -- targets ------------------------------------------------------------------------------


def _check_settings(rank: Any, alpha: Any, dropout: Any, seed: Any = 0) -> None:
    rows = []
    for name, value, least in (("rank", rank, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
            rows.append([name, repr(value), f"is not a whole number from {least} on"])
    if not _is_number(alpha) or not math.isfinite(alpha) or alpha == 0:
        rows.append(["alpha", repr(alpha), "is not a number other than 0"])
    if not _is_number(dropout) or not 0 <= dropout < 1:
        rows.append(["dropout", repr(dropout), "is not a share from 0 to below 1"])
    if rows:
        raise ArgumentError("adapters cannot have these settings", rows)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)


def _tokens(targets: str | Sequence[str]) -> list[str]:
    listed = (targets,) if isinstance(targets, str) else targets
    if not isinstance(listed, (list, tuple, set)) or not all(isinstance(t, str) for t in listed):
        raise ArgumentError("targets are names or patterns of names", [[repr(targets)]])
    return [part.strip() for token in listed for part in token.split("|") if part.strip()]


def _groups(model: Model) -> dict[str, list[Product]]:
    """The products of a model by the names that their adapters have.

    Products that read one weight in the same way share an adapter, `w`; those that read it in
    another way, such as transposed, share `w.2`.
    """
    shared: dict[tuple[Any, ...], list[Product]] = {}
    for graph in graphs(model.graph):
        for product in filter(None, map(adaptable, graph)):
            shared.setdefault(product.key, []).append(product)
    groups: dict[str, list[Product]] = {}
    for products in shared.values():
        weight = products[0].weight.name or ""
        others = sum(group[0].weight.name == weight for group in groups.values())
        groups[f"{weight}.{others + 1}" if others else weight] = products
    return groups


def _targets(
    model: Model,
    groups: Mapping[str, list[Product]],
    tokens: Sequence[str],
    exclude: Sequence[str],
) -> list[Product]:
    """The products that the tokens name; an error for tokens that name none."""
    products = [product for group in groups.values() for product in group]
    fresh = {k.removeprefix(ROLE) for k, v in model.metadata.items() if v == FRESH}
    names = {p.weight.name or "" for p in products}
    rows = [
        [quote(t), _why_not(t, model)]
        for t in (*tokens, *exclude)
        if t not in OPERATORS and not any(fnmatchcase(n, t) for n in names)
    ]
    operators = [t for t in tokens if t in OPERATORS]
    if operators and not any(p.node.op_type in operators for p in products):
        rows += [[quote(t), _why_not(t, model)] for t in operators]
    if rows or not tokens:
        raise ArgumentError(
            "no weight can get an adapter" if tokens else "`targets` names nothing",
            rows,
            hint=f"weights that can: {_list_of(names)}",
        )
    matching = [
        p
        for p in products
        if not any(fnmatchcase(p.weight.name or "", e) for e in exclude)
        and (
            any(fnmatchcase(p.weight.name or "", t) for t in tokens if t not in OPERATORS)
            or (p.node.op_type in operators and p.weight.name not in fresh)
        )
    ]
    if not matching:
        raise ArgumentError(
            "every weight that `targets` names is excluded, or belongs to a new head",
            [[quote(n)] for n in sorted(names)],
        )
    return matching


def _why_not(token: str, model: Model) -> str:
    if token in OPERATORS:
        nodes = [n for g in graphs(model.graph) for n in g if n.op_type == token]
        if any(map(_is_rounded, nodes)):
            return "its weights are rounded while they are trained: sx.to_integers stores integers"
        return f"{len(nodes)} nodes, none of them with a stored float weight of two axes or more"
    if opset.schema(token) is not None:
        return f"is an operator that takes no adapter: {', '.join(OPERATORS)} do"
    readers = {
        node.op_type
        for name, value in model.graph.initializers.items()
        if fnmatchcase(name, token)
        for node in value.consumers()
    }
    if readers:
        return f"is read by {', '.join(sorted(readers))}, not by {', '.join(OPERATORS)}"
    return "matches no weight"


def _list_of(names: set[str], limit: int = 6) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - limit} more" if len(listed) > limit else ""
    return (", ".join(quote(n) for n in listed[:limit]) or "none in this model") + more


def _require_room(products: Sequence[Product], rank: int) -> None:
    small = {p.weight.name: p for p in products if min(p.matrix) < rank}
    if small:
        rows = [
            [quote(n), f"{p.node.op_type} of {' × '.join(map(str, p.matrix))}{p.grouping}"]
            for n, p in small.items()
        ]
        raise ArgumentError(
            f"the rank {rank} is above that of {len(rows)} weights",
            rows,
            hint=f"rank={min(min(p.matrix) for p in small.values())} fits all of them; "
            "`targets` takes names of others, `exclude` leaves weights out",
        )


# -- paths --------------------------------------------------------------------------------


def _add(
    op: Builder,
    name: str,
    adapter: Adapter,
    first: np.ndarray,
    second: np.ndarray,
    products: Sequence[Product],
) -> None:
    """Build the paths of one adapter, whose tensors have names that begin with `name`."""
    a, b = op.weight(name + FIRST, first), op.weight(name + SECOND, second)
    if (a.name, b.name) != (name + FIRST, name + SECOND):
        raise ArgumentError(f"the model already has a tensor {quote(name + FIRST)} or …_B")
    for product in products:
        node, graph = product.node, product.node.graph
        assert graph is not None
        before = node.outputs[0]
        readers = list(before.uses())
        with op.named(f"{name}.lora"):
            total = op.Add(before, product.path(op, a, b, adapter.scale, adapter.dropout))
        nodes, op.nodes = op.nodes, []
        graph.insert_after(node, nodes)
        for reader, position in readers:
            reader.replace_input_with(position, total)
        _swap_output(graph, before, total, op)


def _swap_output(graph: ir.Graph, old: ir.Value, new: ir.Value, op: Builder) -> None:
    """Make `new` the output that `old` was, under its name."""
    if not any(v is old for v in graph.outputs):
        return
    name = old.name
    old.name = op.fresh(f"{name}/before")
    new.name = name
    for index, value in enumerate(graph.outputs):
        if value is old:
            graph.outputs[index] = new


def _adapted(work: Model, op: Builder, listed: dict[str, Adapter]) -> Model:
    """The finished model: adapters are inputs with defaults, what is not trained is frozen."""
    finish(work, op, "adapters do not fit into the model")
    work.metadata[ADAPTERS] = describe(listed)
    initializers = work.graph.initializers
    trained = {n + end for n in listed for end in (FIRST, SECOND)}
    others = {w.name for w in classified(work.graph) if w.kind == "weight"} - trained
    beside = [n for n in initializers if work.metadata.get(f"{ROLE}{n}") == FRESH]
    for name in others - set(beside):
        work.metadata[f"{ROLE}{name}"] = FROZEN
    work.metadata[BESIDE] = json.dumps(beside)
    for name, value in initializers.items():
        if (name in trained or name in beside) and not value.is_graph_input():
            work.graph.inputs.append(value)
    return work


# -- merging ------------------------------------------------------------------------------


def _merge(work: Model, op: Builder, name: str, adapter: Adapter) -> None:
    initializers = work.graph.initializers
    a, b = (initializers.get(name + end) for end in (FIRST, SECOND))
    if a is None or b is None or a.const_value is None or b.const_value is None:
        raise ModelError(f"the tensors of the adapter {quote(name)} are not in the model")
    sums = [total for node in b.consumers() for total in node.outputs[0].consumers()]
    products = [_product_of(total) for total in sums]
    if not sums or any(p is None for p in products):
        raise ModelError(
            f"the path of the adapter {quote(name)} is not as `lora` builds it",
            hint=ROUNDED
            if any(_is_rounded(n) for total in sums for n in _factors(total))
            else None,
        )
    factors = a.const_value.numpy(), b.const_value.numpy()
    for total, beside in zip(sums, products, strict=True):
        assert beside is not None and total.graph is not None
        before, after = beside.node.outputs[0], total.outputs[0]
        _swap_output(total.graph, after, before, op)
        after.replace_all_uses_with(before)
    readers: dict[ir.Value, list[Product]] = {}
    for product in products:
        assert product is not None
        readers.setdefault(product.operand, []).append(product)
    for operand, group in readers.items():  # training may have given them weights of their own
        change = group[0].change(*factors) * adapter.scale
        weight = (stored_array(operand).astype(np.float64) + change).astype(group[0].dtype)
        _store(op, group, weight)


def _factors(total: ir.Node) -> list[ir.Node]:
    """The product to which a path is added, if there is one."""
    node = total.inputs[0].producer() if total.inputs[0] is not None else None
    return [] if node is None else [node]


def _is_rounded(node: ir.Node) -> bool:
    """Whether an operand of a product is rounded while the model trains (`quantize_aware`)."""
    for value in node.inputs:
        pair = value.producer() if value is not None else None
        source = pair.inputs[0] if pair is not None and pair.inputs else None
        maker = source.producer() if source is not None else None
        if maker is not None and maker.op_type == "QuantizeLinear":
            stored = maker.inputs[0]
            if stored is not None and stored.is_initializer():
                return True
    return False


def _product_of(total: ir.Node) -> Product | None:
    """The product beside which a path ends in `total`."""
    node = total.inputs[0].producer() if total.op_type == "Add" and total.inputs[0] else None
    return None if node is None else adaptable(node)


def _store(op: Builder, products: Sequence[Product], array: np.ndarray) -> None:
    """Let the products read `array`: in the place of their weight if nothing else reads it."""
    source, nodes = products[0].weight, {p.node for p in products}
    tensor = ir.Tensor(array, name=source.name)
    if products[0].operand is source and set(source.consumers()) <= nodes and not _is_shown(source):
        source.const_value = tensor
        return
    value = op.weight(f"{source.name}.merged", array)
    for beside in products:
        beside.node.replace_input_with(beside.position, value)


def _is_shown(value: ir.Value) -> bool:
    return value.is_graph_output() or value.dtype not in FLOATS
