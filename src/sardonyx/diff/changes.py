"""The changes between two models: of nodes, weights, inputs and outputs, versions, functions,
training records and metadata.

`match.py` pairs the nodes. Where nodes with bodies match, their bodies are compared like graphs.
Weights are paired through the nodes that read them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.diff.match import (
    Matching,
    attributes,
    match,
    nodes_of,
    stored,
    tensor_of,
    weight_key,
)
from sardonyx.errors import quote, table, translated
from sardonyx.model import Model, ModelSource, Record, load

NODE, WEIGHT, OPSET, METADATA, INTERFACE = "node", "weight", "version", "metadata", "interface"
FUNCTION, TRAINING = "function", "training"
SHOWN = 200  # changes that a notebook lists
KINDS = (NODE, WEIGHT, INTERFACE, OPSET, FUNCTION, TRAINING, METADATA)


@dataclass(frozen=True)
class Change:
    """One change: what kind of thing, which one, what happened to it, and the details."""

    kind: str
    where: str
    what: str
    detail: str = ""
    size: float = 0.0  # of a changed weight: rms of the change / rms of the old values


@dataclass(repr=False)
class Diff:
    """All changes from one model to another; falsy when there are none."""

    changes: list[Change] = field(default_factory=list)
    matched: int = 0  # nodes that have a counterpart in the other model
    renamed: int = 0  # those of them that have another name there
    matched_weights: int = 0
    renamed_weights: int = 0

    def __bool__(self) -> bool:
        return bool(self.changes)

    def of(self, kind: str) -> list[Change]:
        return [c for c in self.changes if c.kind == kind]

    def as_dict(self) -> dict[str, Any]:
        return {
            "changes": [asdict(c) for c in self.changes],
            "matched": self.matched,
            "renamed": self.renamed,
            "matched_weights": self.matched_weights,
            "renamed_weights": self.renamed_weights,
        }

    def __repr__(self) -> str:
        counts = {kind: len(self.of(kind)) for kind in KINDS}
        text = ", ".join(f"{kind} {count}" for kind, count in counts.items() if count)
        return f"<Diff: {text or 'no changes'}>"

    def _repr_html_(self) -> str:
        from sardonyx import html_page as html

        rows = [[c.kind, c.what, c.where, c.detail] for c in self.changes[:SHOWN]]
        more = f", {len(self.changes) - SHOWN} further changes" if self.changes[SHOWN:] else ""
        changes = html.table(["kind", "change", "where", "detail"], rows) if rows else ""
        return f"{changes}<p>{html.text(self._summary() + more)}</p>"

    def _summary(self) -> str:
        nodes = _counted(self.matched, "node", self.renamed)
        weights = _counted(self.matched_weights, "weight", self.renamed_weights)
        return f"{'matched' if self.changes else 'no changes'}: {nodes}, {weights}"

    def __str__(self) -> str:
        lines = []
        for kind in KINDS:
            changes = sorted(self.of(kind), key=lambda c: -c.size)  # the most changed weight first
            if changes:
                lines.append(f"{kind} ({len(changes)})")
                lines += table([c.what, c.where, c.detail] for c in changes)
        return "\n".join([*lines, self._summary()])


def _counted(count: int, noun: str, renamed: int) -> str:
    """A count in words, with how many of them were renamed."""
    text = f"{count} {noun}" + ("s" if count != 1 else "")
    return text + (f" ({renamed} renamed)" if renamed else "")


@translated("the models cannot be compared")
def diff(a: ModelSource, b: ModelSource) -> Diff:
    """What changed from model `a` to model `b`.

    a, b -- paths, Models, or anything else that `load` takes

    >>> import sardonyx as sx
    >>> print(sx.diff("model.onnx", "model.onnx"))
    no changes: 3 nodes, 4 weights
    """
    before, after = load(a), load(b)
    result = Diff()
    _versions(result, before, after)
    _interface(result, before.graph, after.graph)
    _graphs(result, before.graph, after.graph, "")
    _functions(result, before, after)
    _training(result, before, after)
    _mapping(result, METADATA, before.metadata, after.metadata)
    return result


def _versions(result: Diff, a: Model, b: Model) -> None:
    before = {"IR": a.ir.ir_version, **{d or "ai.onnx": v for d, v in a.ir.opset_imports.items()}}
    after = {"IR": b.ir.ir_version, **{d or "ai.onnx": v for d, v in b.ir.opset_imports.items()}}
    _mapping(result, OPSET, before, after)
    producers = [
        f"{m.ir.producer_name or ''} {m.ir.producer_version or ''}".strip() for m in (a, b)
    ]
    _mapping(result, METADATA, {"producer": producers[0]}, {"producer": producers[1]})


def _mapping(result: Diff, kind: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> None:
    for key in dict.fromkeys((*a, *b)):
        if a.get(key) == b.get(key):
            continue
        what = "added" if key not in a else "removed" if key not in b else "changed"
        old, new = (quote(m[key]) if isinstance(m.get(key), str) else m.get(key) for m in (a, b))
        detail = (
            f"{new}" if what == "added" else f"{old}" if what == "removed" else f"{old} → {new}"
        )
        result.changes.append(Change(kind, key, what, detail))


def _interface(result: Diff, a: ir.Graph, b: ir.Graph) -> None:
    for side in ("input", "output"):
        old, new = (
            {f"{side} {quote(v.name)}": _Unquoted(_signature(v)) for v in getattr(g, f"{side}s")}
            for g in (a, b)
        )
        _mapping(result, INTERFACE, old, new)


@dataclass(frozen=True)
class _Unquoted:
    """A text that `_mapping` shows without quotes."""

    text: str

    def __str__(self) -> str:
        return self.text


def _signature(value: ir.Value) -> str:
    tensor = tensor_of(value)
    if tensor is not None:
        return f"{tensor.dtype.name.lower()}{list(tensor.shape.numpy())}"
    kind = value.dtype.name.lower() if value.dtype is not None else str(value.type)
    dims = "?" if value.shape is None else ", ".join(str(d) for d in value.shape)
    return f"{kind}[{dims}]"


# -- nodes --------------------------------------------------------------------------------


@dataclass
class _Scope:
    """The matched nodes and weights of a graph and of the graphs around it."""

    matching: Matching
    names: tuple[frozenset[str | None], frozenset[str | None]]  # of the old and the new weights
    weights: dict[tuple[ir.Value, ir.Value], None]  # pairs of weights that matched nodes read

    @classmethod
    def of(cls, a: ir.Graph, b: ir.Graph, outer: _Scope | None) -> _Scope:
        matching = match(a, b)
        names = (frozenset(v.name for v in stored(a)), frozenset(v.name for v in stored(b)))
        if outer is None:
            return cls(matching, names, {})
        both = (outer.names[0] | names[0], outer.names[1] | names[1])
        return cls(outer.matching.around(matching), both, outer.weights)


def _graphs(
    result: Diff, a: ir.Graph, b: ir.Graph, inside: str, outer: _Scope | None = None
) -> None:
    scope = _Scope.of(a, b, outer)
    pairs = {
        node: scope.matching.pairs[node] for node in nodes_of(a) if node in scope.matching.pairs
    }
    matched = set(pairs.values())
    for old, new in pairs.items():
        result.matched += 1
        result.renamed += (old.name or "") != (new.name or "")
        _node(result, old, new, scope, inside)
    for node in nodes_of(a):
        if node not in pairs:
            result.changes.append(Change(NODE, _label(node, inside), "removed", _reads(node)))
    for node in nodes_of(b):
        if node not in matched:
            result.changes.append(Change(NODE, _label(node, inside), "added", _reads(node)))
    _outputs(result, a, b, scope.matching, inside)
    _weights(result, a, b, scope.weights, inside)


def _outputs(result: Diff, a: ir.Graph, b: ir.Graph, matching: Matching, inside: str) -> None:
    """Outputs that another node computes now; paired by position in a body, by name in a model."""
    new_outputs = {v.name: v for v in b.outputs}
    pairs = (
        zip(a.outputs, b.outputs) if inside else ((v, new_outputs.get(v.name)) for v in a.outputs)
    )
    for old, new in pairs:
        if new is None or tensor_of(old) is not None or tensor_of(new) is not None:
            continue  # `_interface` or `_weights` reports it
        if not _is_same_source(old, new, matching):
            label = f"{inside}output {quote(new.name)}"
            sources = " → ".join(f"{quote(v.name)} {_producer_text(v)}" for v in (old, new))
            result.changes.append(Change(INTERFACE, label, "rewired", sources))


def _label(node: ir.Node, inside: str) -> str:
    name = node.name or (node.outputs[0].name if node.outputs else "")
    return f"{inside}{node.op_type} {quote(name)}"


def _reads(node: ir.Node) -> str:
    names = ", ".join(quote(v.name) for v in node.inputs if v is not None)
    return f"reads {names}" if names else ""


def _node(result: Diff, old: ir.Node, new: ir.Node, scope: _Scope, inside: str) -> None:
    label = _label(new, inside)
    is_replaced = (old.domain, old.op_type) != (new.domain, new.op_type)
    if is_replaced:
        result.changes.append(Change(NODE, label, "replaced", f"{old.op_type} → {new.op_type}"))
    # Attributes of different operators are not compared.
    old_attributes, new_attributes = ({}, {}) if is_replaced else (attributes(old), attributes(new))
    for name in dict.fromkeys((*old_attributes, *new_attributes)):
        if old_attributes.get(name) != new_attributes.get(name):
            before, after = (
                _short(m.get(name, "default")) for m in (old_attributes, new_attributes)
            )
            result.changes.append(Change(NODE, label, "attribute", f"{name}: {before} → {after}"))
    count = max(len(old.inputs), len(new.inputs))
    for place in range(count):
        a, b = (n.inputs[place] if place < len(n.inputs) else None for n in (old, new))
        if a is not None and b is not None and _is_new_version(a, b, *scope.names):
            scope.weights[a, b] = None
        elif not _is_same_source(a, b, scope.matching):
            before, after = _sources(a, b)
            result.changes.append(
                Change(NODE, label, "rewired", f"input {place}: {before} → {after}")
            )
    for name, attr in old.attributes.items():
        other = new.attributes.get(name)
        if other is not None and _is_body(attr) and _is_body(other):
            _graphs(result, attr.as_graph(), other.as_graph(), f"{label} / ", scope)


def _is_body(attr: ir.Attr) -> bool:
    return attr.type == ir.AttributeType.GRAPH and not attr.is_ref()


def _sources(a: ir.Value | None, b: ir.Value | None) -> tuple[str, str]:
    """What an input read before and reads now; with the producers, if the names are equal."""
    texts = ["nothing" if v is None else quote(v.name) for v in (a, b)]
    if texts[0] == texts[1]:
        texts = [f"{text} {_producer_text(v)}" for text, v in zip(texts, (a, b))]
    return texts[0], texts[1]


def _producer_text(value: ir.Value | None) -> str:
    if value is not None and tensor_of(value) is not None:
        return "as a weight"
    node = value.producer() if value is not None else None
    return f"of {node.op_type}" if node is not None else "as an input"


def _short(value: Any) -> str:
    text = str(list(value)) if isinstance(value, tuple) else str(value)
    if isinstance(value, float):
        text = f"{value:g}"
    return text if len(text) <= 60 else text[:57] + "…"


def _is_new_version(
    a: ir.Value, b: ir.Value, before: Collection[str | None], after: Collection[str | None]
) -> bool:
    """Whether the weight `b` is a new version of `a`: the same name, a new name, or equal values.

    A weight counts as renamed only if neither name occurs in the other model.

    before, after -- the names of all weights in the old and in the new model
    """
    old, new = tensor_of(a), tensor_of(b)
    if old is None or new is None:
        return False
    renamed = a.name not in after and b.name not in before
    return a.name == b.name or renamed or _tensor_change(old, new) is None


def _is_same_source(a: ir.Value | None, b: ir.Value | None, matching: Matching) -> bool:
    if a is None or b is None:
        return a is b
    if tensor_of(a) is not None or tensor_of(b) is not None:
        return False  # two different weights, or a weight on one side only
    producers = a.producer(), b.producer()
    if producers[0] is not None and producers[1] is not None:
        return matching.is_same(producers[0], producers[1]) and a.index() == b.index()
    if producers != (None, None):
        return False
    if a.is_graph_input() and b.is_graph_input() and a.graph is not None and b.graph is not None:
        return list(a.graph.inputs).index(a) == list(b.graph.inputs).index(b)
    return a.name == b.name


# -- weights --------------------------------------------------------------------------------


def _weights(
    result: Diff,
    a: ir.Graph,
    b: ir.Graph,
    pairs: Mapping[tuple[ir.Value, ir.Value], None],
    inside: str,
) -> None:
    """Compare the weights of two graphs; Constant nodes count as weights.

    pairs -- old and new weights that matched nodes read, also those of bodies and outer graphs;
             each pair is compared in the graph that holds the new weight
    """
    old_weights, new_weights = stored(a), stored(b)
    old_paired, new_paired = {old for old, _ in pairs}, {new for _, new in pairs}
    unread = list(_unread([v for v in old_weights if v not in old_paired], new_weights, new_paired))
    local_weights = set(new_weights)
    for old, new in (*(pair for pair in pairs if pair[1] in local_weights), *unread):
        result.matched_weights += 1
        result.renamed_weights += old.name != new.name
        change = _tensor_change(tensor_of(old), tensor_of(new))
        if change:
            was = f" (was {quote(old.name)})" if old.name != new.name else ""
            result.changes.append(Change(WEIGHT, f"{inside}{quote(new.name)}{was}", *change))
    old_paired.update(old for old, _ in unread)
    new_paired.update(new for _, new in unread)
    removed = [(v, "removed") for v in old_weights if v not in old_paired]
    for value, what in (*removed, *((v, "added") for v in new_weights if v not in new_paired)):
        label = f"{inside}{quote(value.name)}"
        result.changes.append(Change(WEIGHT, label, what, _signature(value)))


def _unread(
    old_weights: Sequence[ir.Value], new_weights: Sequence[ir.Value], paired: Collection[ir.Value]
) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Pairs of weights that no matched node reads: by name, then by content."""
    free = {v.name: v for v in new_weights if v not in paired}
    left = []
    for old in old_weights:
        if old.name in free:
            yield old, free.pop(old.name)
        else:
            left.append(old)
    by_content = {weight_key(v): v for v in free.values()}
    for old in left:
        new = by_content.pop(weight_key(old), None)
        if new is not None:
            yield old, new


def _tensor_change(
    old: ir.TensorProtocol | None, new: ir.TensorProtocol | None
) -> tuple[str, str, float] | None:
    """How a tensor changed: a word, the details and the relative size; None if it did not."""
    if old is None or new is None or old is new:
        return None
    x, y = old.numpy(), new.numpy()
    if x.shape != y.shape or x.dtype != y.dtype:
        text = f"{x.dtype}{list(x.shape)} → {y.dtype}{list(y.shape)}"
        if x.ndim == 2 and x.T.shape == y.shape and np.array_equal(x.T, y):
            return "transposed", text, 0.0
        return ("retyped" if x.shape == y.shape else "reshaped"), text, 0.0
    if x.dtype.kind in "OUS":
        count = int(np.sum(x != y))
        return ("changed", f"{count} of {x.size} texts", count / x.size) if count else None
    changed = (
        x.view(np.uint8).tobytes() != y.view(np.uint8).tobytes()
        if x.ndim
        else x.tobytes() != y.tobytes()
    )
    if not changed:
        return None
    if x.ndim == 2 and x.shape[0] == x.shape[1] and np.array_equal(x.T, y):
        return "transposed", f"{x.dtype}{list(x.shape)}", 0.0
    old_values, new_values = x.astype(np.float64), y.astype(np.float64)
    with np.errstate(all="ignore"):
        difference = np.abs(new_values - old_values)
        scale = float(np.sqrt(np.mean(np.square(old_values)))) or 1.0
    count, largest = int(np.sum(x != y)), float(np.max(difference, initial=0.0))
    share = float(np.sqrt(np.mean(np.square(difference)))) / scale
    text = f"{count} of {x.size} elements, at most {largest:.3g}, {share:.3g} of its size"
    return "changed", text, share


# -- functions and training -----------------------------------------------------------------


def _functions(result: Diff, a: Model, b: Model) -> None:
    before, after = a.ir.functions, b.ir.functions
    for key in dict.fromkeys((*before, *after)):
        label = quote("::".join(p for p in key if p))
        if key not in after:
            result.changes.append(Change(FUNCTION, label, "removed"))
        elif key not in before:
            result.changes.append(Change(FUNCTION, label, "added"))
        else:
            _graphs(result, before[key].graph, after[key].graph, f"function {label} / ")


def _training(result: Diff, a: Model, b: Model) -> None:
    if len(a.records) != len(b.records):
        detail = f"{len(a.records)} → {len(b.records)} records"
        result.changes.append(Change(TRAINING, "records", "changed", detail))
    for number, (old, new) in enumerate(zip(a.records, b.records)):
        for what, detail in _record_changes(old, new):
            result.changes.append(Change(TRAINING, f"record {number}", what, detail))


def _record_changes(old: Record, new: Record) -> Iterator[tuple[str, str]]:
    for title, old_binding, new_binding in (
        ("updates", dict(old.update_binding), dict(new.update_binding)),
        ("initialization", dict(old.initialization_binding), dict(new.initialization_binding)),
    ):
        for name in dict.fromkeys((*old_binding, *new_binding)):
            if (name in old_binding) != (name in new_binding):
                yield title, f"{quote(name)} {'added' if name in new_binding else 'removed'}"
    for name in dict.fromkeys((*old.state, *new.state)):
        if name not in old.state or name not in new.state:
            yield "state", f"{quote(name)} {'added' if name in new.state else 'removed'}"
        elif tensor_change := _tensor_change(old.state[name], new.state[name]):
            yield "state", f"{quote(name)} {tensor_change[0]}: {tensor_change[1]}"
    for title, old_graph, new_graph in (
        ("algorithm", old.algorithm, new.algorithm),
        ("initialization", old.initialization, new.initialization),
    ):
        graph_diff = Diff()
        _graphs(graph_diff, old_graph, new_graph, f"{title} / ")
        for change in graph_diff.changes:
            yield change.what, f"{change.where} {change.detail}".strip()
