"""What changed between two models: structure, weights, versions, metadata, training.

Nodes are matched by what they compute and from what, then by name, then by their neighbours; so
that a renamed or reordered model shows no changes. Bodies are compared like graphs, where their
nodes match. Weights are matched through the nodes that read them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx import opset
from sardonyx.errors import quote, table
from sardonyx.model import Model, Record, load

NODE, WEIGHT, OPSET, METADATA, INTERFACE = "node", "weight", "version", "metadata", "interface"
FUNCTION, TRAINING = "function", "training"
KINDS = (NODE, WEIGHT, INTERFACE, OPSET, FUNCTION, TRAINING, METADATA)


@dataclass(frozen=True)
class Change:
    """One change: what kind of thing, which one, what happened to it, and the details."""

    kind: str
    where: str
    what: str
    detail: str = ""


@dataclass
class Diff:
    """All changes from one model to another; falsy when there are none."""

    changes: list[Change] = field(default_factory=list)
    renamed: int = 0  # tensors and nodes that only have another name
    matched: int = 0

    def __bool__(self) -> bool:
        return bool(self.changes)

    def of(self, kind: str) -> list[Change]:
        return [c for c in self.changes if c.kind == kind]

    def as_dict(self) -> dict[str, Any]:
        return {
            "changes": [asdict(c) for c in self.changes],
            "renamed": self.renamed,
            "matched": self.matched,
        }

    def __str__(self) -> str:
        if not self.changes:
            tail = f", {self.renamed} renamed" if self.renamed else ""
            return f"no changes ({self.matched} nodes{tail})"
        lines = []
        for kind in KINDS:
            found = self.of(kind)
            if found:
                lines.append(f"{kind} ({len(found)})")
                lines += table([c.what, c.where, c.detail] for c in found)
        return "\n".join([*lines, f"{self.matched} nodes alike, {self.renamed} only renamed"])


def diff(a: Any, b: Any) -> Diff:
    """What changed from model `a` to model `b`.

    a, b -- paths, Models, or anything else that `load` takes

    >>> import sardonyx as sx
    >>> print(sx.diff("model.onnx", "model.onnx"))
    no changes (3 nodes)
    """
    before, after = load(a), load(b)
    found = Diff()
    _versions(found, before, after)
    _interface(found, before.graph, after.graph)
    _graphs(found, before.graph, after.graph, "")
    _functions(found, before, after)
    _training(found, before, after)
    _mapping(found, METADATA, before.metadata, after.metadata)
    return found


def _versions(found: Diff, a: Model, b: Model) -> None:
    theirs = {"IR": a.ir.ir_version, **{d or "ai.onnx": v for d, v in a.ir.opset_imports.items()}}
    ours = {"IR": b.ir.ir_version, **{d or "ai.onnx": v for d, v in b.ir.opset_imports.items()}}
    _mapping(found, OPSET, theirs, ours)
    producers = [
        f"{m.ir.producer_name or ''} {m.ir.producer_version or ''}".strip() for m in (a, b)
    ]
    _mapping(found, METADATA, {"producer": producers[0]}, {"producer": producers[1]})


def _mapping(found: Diff, kind: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> None:
    for key in dict.fromkeys((*a, *b)):
        if a.get(key) == b.get(key):
            continue
        what = "added" if key not in a else "removed" if key not in b else "changed"
        old, new = (quote(m[key]) if isinstance(m.get(key), str) else m.get(key) for m in (a, b))
        detail = (
            f"{new}" if what == "added" else f"{old}" if what == "removed" else f"{old} → {new}"
        )
        found.changes.append(Change(kind, key, what, detail))


def _interface(found: Diff, a: ir.Graph, b: ir.Graph) -> None:
    for side in ("input", "output"):
        old, new = (
            {f"{side} {quote(v.name)}": _Shown(_signature(v)) for v in getattr(g, f"{side}s")}
            for g in (a, b)
        )
        _mapping(found, INTERFACE, old, new)


@dataclass(frozen=True)
class _Shown:
    """A text that is shown without quotes."""

    text: str

    def __str__(self) -> str:
        return self.text


def _signature(value: ir.Value) -> str:
    kind = value.dtype.name.lower() if value.dtype is not None else str(value.type)
    dims = "?" if value.shape is None else ", ".join(str(d) for d in value.shape)
    return f"{kind}[{dims}]"


# -- nodes --------------------------------------------------------------------------------


def _graphs(
    found: Diff,
    a: ir.Graph,
    b: ir.Graph,
    inside: str,
    outer: Mapping[ir.Node, ir.Node] | None = None,
) -> None:
    pairs = _match(list(a), list(b), a, b)
    around = {**(outer or {}), **pairs}
    back = {new: old for old, new in pairs.items()}
    weights: dict[ir.Value, ir.Value] = {}
    for old, new in pairs.items():
        found.matched += 1
        found.renamed += (old.name or "") != (new.name or "")
        _node(found, old, new, around, weights, inside)
    for node in a:
        if node not in pairs:
            found.changes.append(Change(NODE, _label(node, inside), "removed", _reads(node)))
    for node in b:
        if node not in back:
            found.changes.append(Change(NODE, _label(node, inside), "added", _reads(node)))
    _weights(found, a, b, weights, inside)


def _label(node: ir.Node, inside: str) -> str:
    name = node.name or (node.outputs[0].name if node.outputs else "")
    return f"{inside}{node.op_type} {quote(name)}"


def _reads(node: ir.Node) -> str:
    names = ", ".join(quote(v.name) for v in node.inputs if v is not None)
    return f"reads {names}" if names else ""


def _match(
    a: list[ir.Node], b: list[ir.Node], ga: ir.Graph, gb: ir.Graph
) -> dict[ir.Node, ir.Node]:
    """Nodes of `a` → nodes of `b`: same computation, same name, same neighbours, same place."""
    pairs: dict[ir.Node, ir.Node] = {}
    taken: set[ir.Node] = set()

    def pair(old: ir.Node, new: ir.Node) -> None:
        pairs[old] = new
        taken.add(new)

    for keys in (_with_values, _upstream, _downstream):
        theirs, ours = keys(a, ga), keys(b, gb)
        free: dict[int, list[ir.Node]] = {}
        for node in b:
            if node not in taken:
                free.setdefault(ours[node], []).append(node)
        for node in a:
            alike = free.get(theirs[node], ())
            if node not in pairs and alike:
                chosen = next(
                    (n for n in alike if n.outputs[0].name == node.outputs[0].name), alike[0]
                )
                free[theirs[node]].remove(chosen)
                pair(node, chosen)
    for key in (lambda n: tuple(v.name for v in n.outputs), lambda n: n.name):
        free_by_name = {key(n): n for n in b if n not in taken and key(n)}
        for node in a:
            other = free_by_name.get(key(node))
            if node not in pairs and other is not None and other not in taken:
                pair(node, other)
    _by_neighbours(a, pairs, taken, pair)
    rest_a, rest_b = [n for n in a if n not in pairs], [n for n in b if n not in taken]
    matcher = difflib.SequenceMatcher(
        None, [n.op_type for n in rest_a], [n.op_type for n in rest_b], False
    )
    for i, j, size in matcher.get_matching_blocks():
        for step in range(size):
            pair(rest_a[i + step], rest_b[j + step])
    return {node: pairs[node] for node in a if node in pairs}


def _by_neighbours(
    a: Sequence[ir.Node], pairs: dict[ir.Node, ir.Node], taken: set[ir.Node], pair: Any
) -> None:
    """Match nodes of the same operator beside producers or readers that are matched."""
    changed = True
    while changed:
        changed = False
        for node in a:
            if node in pairs:
                continue
            near = [
                other
                for value in node.inputs
                if value is not None and (producer := value.producer()) in pairs
                for output in pairs[producer].outputs  # type: ignore[index]
                for other, _ in output.uses()
            ]
            near += [
                other
                for value in node.outputs
                for reader, place in value.uses()
                if reader in pairs and place < len(pairs[reader].inputs)
                for source in [pairs[reader].inputs[place]]
                if source is not None and (other := source.producer()) is not None
            ]
            for other in near:
                if other not in taken and other.op_type == node.op_type:
                    pair(node, other)
                    changed = True
                    break


def _with_values(nodes: list[ir.Node], graph: ir.Graph) -> dict[ir.Node, int]:
    """A number per node for what it computes from the graph's inputs with these very weights."""
    return _upstream(nodes, graph, contents=True)


def _upstream(nodes: list[ir.Node], graph: ir.Graph, contents: bool = False) -> dict[ir.Node, int]:
    """A number per node for what it computes from the inputs; weights count by type and shape."""
    values: dict[ir.Value, int] = {}
    for place, value in enumerate(graph.inputs):
        values[value] = hash(("input", place))
    found: dict[ir.Node, int] = {}
    for node in nodes:
        inputs = tuple(_value_key(v, values, contents) for v in node.inputs)
        found[node] = hash((node.domain, node.op_type, _attributes_key(node), inputs))
        for place, value in enumerate(node.outputs):
            values[value] = hash((found[node], place))
    return found


def _downstream(nodes: list[ir.Node], graph: ir.Graph) -> dict[ir.Node, int]:
    """A number per node for what becomes of its outputs."""
    outputs: dict[ir.Value, list[Any]] = {}
    for place, value in enumerate(graph.outputs):
        outputs.setdefault(value, []).append(("output", place))
    found: dict[ir.Node, int] = {}
    for node in reversed(nodes):
        after = []
        for value in node.outputs:
            uses = list(outputs.get(value, ()))
            uses += [(found[n], place) for n, place in value.uses() if n in found]
            after.append(tuple(sorted(map(hash, uses))))
        found[node] = hash((node.domain, node.op_type, tuple(after)))
    return found


def _value_key(value: ir.Value | None, values: Mapping[ir.Value, int], contents: bool) -> Any:
    if value is None:
        return None
    if value in values:
        return values[value]
    tensor = value.const_value
    if tensor is not None:
        digest = hash(tensor.tobytes()) if contents and tensor.dtype != ir.DataType.STRING else 0
        return ("weight", tensor.dtype.name, tuple(tensor.shape.numpy()), digest)
    return ("outside", value.name)


def _attributes_key(node: ir.Node) -> Any:
    return tuple(sorted((k, repr(v)) for k, v in _attributes(node).items()))


def _attributes(node: ir.Node) -> dict[str, Any]:
    """Attributes as plain values, those at their default left out; a body is just a word."""
    found: dict[str, Any] = {}
    for name, attr in node.attributes.items():
        if attr.is_ref():
            found[name] = f"@{attr.ref_attr_name}"
        elif attr.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            found[name] = "body"
        elif attr.type == ir.AttributeType.TENSOR:
            array = attr.value.numpy()
            found[name] = f"{array.dtype}{list(array.shape)} {hash(array.tobytes()) & 0xFFFFFF:06x}"
            if array.size == 1:
                found[name] = f"{array.dtype} {array.reshape(-1)[0]}"
        else:
            value = attr.value
            found[name] = tuple(value) if isinstance(value, (list, tuple)) else value
    _drop_implied(node, found)
    defaults = (
        opset.attribute_defaults(node.op_type, node.domain) if node.domain in opset.INSIDE else {}
    )
    for name, default in defaults.items():
        plain = tuple(default) if isinstance(default, (list, tuple)) else default
        if name in found and found[name] == plain:
            del found[name]
    return found


def _drop_implied(node: ir.Node, found: dict[str, Any]) -> None:
    """Leave out what says nothing: strides of 1, no padding, the shape of the kernel given."""
    for name, usual in (("strides", 1), ("dilations", 1), ("pads", 0), ("output_padding", 0)):
        if name in found and all(x == usual for x in found[name]):
            del found[name]
    kernel = node.inputs[1] if len(node.inputs) > 1 and "Conv" in node.op_type else None
    dims = tuple(kernel.shape)[2:] if kernel is not None and kernel.shape is not None else None
    if dims is not None and found.get("kernel_shape") == dims:
        del found["kernel_shape"]
    first = node.inputs[0] if node.inputs else None
    axis = found.get("axis")
    rank = len(first.shape) if first is not None and first.shape is not None else None
    if isinstance(axis, int) and rank is not None and axis == rank - 1:
        found["axis"] = -1


def _node(
    found: Diff,
    old: ir.Node,
    new: ir.Node,
    pairs: Mapping[ir.Node, ir.Node],
    weights: dict[ir.Value, ir.Value],
    inside: str,
) -> None:
    label = _label(new, inside)
    if (old.domain, old.op_type) != (new.domain, new.op_type):
        found.changes.append(Change(NODE, label, "replaced", f"{old.op_type} → {new.op_type}"))
    theirs, ours = _attributes(old), _attributes(new)
    for name in dict.fromkeys((*theirs, *ours)):
        if theirs.get(name) != ours.get(name):
            before, after = (_short(m.get(name, "default")) for m in (theirs, ours))
            found.changes.append(Change(NODE, label, "attribute", f"{name}: {before} → {after}"))
    count = max(len(old.inputs), len(new.inputs))
    for place in range(count):
        a, b = (n.inputs[place] if place < len(n.inputs) else None for n in (old, new))
        if a is not None and b is not None and _is_weight(a) and _is_weight(b) and not _moved(a, b):
            weights.setdefault(a, b)
        elif not _is_same_source(a, b, pairs):
            before, after = ("nothing" if v is None else quote(v.name) for v in (a, b))
            found.changes.append(
                Change(NODE, label, "rewired", f"input {place}: {before} → {after}")
            )
    for name, attr in old.attributes.items():
        other = new.attributes.get(name)
        if attr.type == ir.AttributeType.GRAPH and other is not None and not attr.is_ref():
            _graphs(found, attr.as_graph(), other.as_graph(), f"{label} / ", pairs)


def _short(value: Any) -> str:
    text = str(list(value)) if isinstance(value, tuple) else str(value)
    if isinstance(value, float):
        text = f"{value:g}"
    return text if len(text) <= 60 else text[:57] + "…"


def _is_weight(value: ir.Value) -> bool:
    return value.const_value is not None and value.producer() is None


def _moved(a: ir.Value, b: ir.Value) -> bool:
    """Whether the weight `a` is still there under its name, so that `b` is another one."""
    return a.name != b.name and b.graph is not None and a.name in b.graph.initializers


def _is_same_source(
    a: ir.Value | None, b: ir.Value | None, pairs: Mapping[ir.Node, ir.Node]
) -> bool:
    if a is None or b is None:
        return a is b
    producers = a.producer(), b.producer()
    if producers[0] is not None and producers[1] is not None:
        return pairs.get(producers[0]) is producers[1] and a.index() == b.index()
    if producers != (None, None):
        return False
    if _is_weight(a) and _is_weight(b):
        return not _moved(a, b)
    if a.is_graph_input() and b.is_graph_input() and a.graph is not None and b.graph is not None:
        return list(a.graph.inputs).index(a) == list(b.graph.inputs).index(b)
    return a.name == b.name


# -- weights --------------------------------------------------------------------------------


def _weights(
    found: Diff, a: ir.Graph, b: ir.Graph, pairs: dict[ir.Value, ir.Value], inside: str
) -> None:
    matched = dict(pairs)
    for name, value in a.initializers.items():
        if (
            value not in matched
            and name in b.initializers
            and b.initializers[name] not in matched.values()
        ):
            matched[value] = b.initializers[name]
    for old, new in matched.items():
        if old.graph is not a and new.graph is not b:
            continue  # it belongs outside of this body, where it is compared
        found.renamed += old.name != new.name
        change = _tensor_change(old.const_value, new.const_value)
        if change:
            found.changes.append(Change(WEIGHT, f"{inside}{quote(new.name)}", *change))
    kept, made = set(matched), set(matched.values())
    for value in a.initializers.values():
        if value not in kept:
            found.changes.append(
                Change(WEIGHT, f"{inside}{quote(value.name)}", "removed", _signature(value))
            )
    for value in b.initializers.values():
        if value not in made:
            found.changes.append(
                Change(WEIGHT, f"{inside}{quote(value.name)}", "added", _signature(value))
            )


def _tensor_change(
    old: ir.TensorProtocol | None, new: ir.TensorProtocol | None
) -> tuple[str, str] | None:
    """What happened to a tensor, in two words and in numbers; None if nothing did."""
    if old is None or new is None or old is new:
        return None
    x, y = old.numpy(), new.numpy()
    if x.shape != y.shape or x.dtype != y.dtype:
        text = f"{x.dtype}{list(x.shape)} → {y.dtype}{list(y.shape)}"
        if x.ndim == 2 and x.T.shape == y.shape and np.array_equal(x.T, y):
            return "transposed", text
        return ("retyped" if x.shape == y.shape else "reshaped"), text
    if x.dtype.kind in "OUS":
        count = int(np.sum(x != y))
        return ("changed", f"{count} of {x.size} texts") if count else None
    changed = (
        x.view(np.uint8).tobytes() != y.view(np.uint8).tobytes()
        if x.ndim
        else x.tobytes() != y.tobytes()
    )
    if not changed:
        return None
    if x.ndim == 2 and x.shape[0] == x.shape[1] and np.array_equal(x.T, y):
        return "transposed", f"{x.dtype}{list(x.shape)}"
    wide, other = x.astype(np.float64), y.astype(np.float64)
    with np.errstate(all="ignore"):
        apart = np.abs(other - wide)
        size = float(np.sqrt(np.mean(np.square(wide)))) or 1.0
    count, largest = int(np.sum(x != y)), float(np.max(apart, initial=0.0))
    return "changed", (
        f"{count} of {x.size} elements, at most {largest:.3g}, "
        f"{float(np.sqrt(np.mean(np.square(apart)))) / size:.3g} of its size"
    )


# -- functions and training -----------------------------------------------------------------


def _functions(found: Diff, a: Model, b: Model) -> None:
    theirs, ours = a.ir.functions, b.ir.functions
    for key in dict.fromkeys((*theirs, *ours)):
        label = quote("::".join(p for p in key if p))
        if key not in ours:
            found.changes.append(Change(FUNCTION, label, "removed"))
        elif key not in theirs:
            found.changes.append(Change(FUNCTION, label, "added"))
        else:
            _graphs(found, theirs[key].graph, ours[key].graph, f"function {label} / ")


def _training(found: Diff, a: Model, b: Model) -> None:
    if len(a.records) != len(b.records):
        detail = f"{len(a.records)} → {len(b.records)} records"
        found.changes.append(Change(TRAINING, "records", "changed", detail))
    for number, (old, new) in enumerate(zip(a.records, b.records)):
        for what, detail in _record_changes(old, new):
            found.changes.append(Change(TRAINING, f"record {number}", what, detail))


def _record_changes(old: Record, new: Record) -> Iterator[tuple[str, str]]:
    for title, theirs, ours in (
        ("updates", dict(old.update_binding), dict(new.update_binding)),
        ("initialization", dict(old.initialization_binding), dict(new.initialization_binding)),
    ):
        for name in dict.fromkeys((*theirs, *ours)):
            if (name in theirs) != (name in ours):
                yield title, f"{quote(name)} {'added' if name in ours else 'removed'}"
    for name in dict.fromkeys((*old.state, *new.state)):
        if name not in old.state or name not in new.state:
            yield "state", f"{quote(name)} {'added' if name in new.state else 'removed'}"
        elif change := _tensor_change(old.state[name], new.state[name]):
            yield "state", f"{quote(name)} {change[0]}: {change[1]}"
    for title, theirs_graph, ours_graph in (
        ("algorithm", old.algorithm, new.algorithm),
        ("initialization", old.initialization, new.initialization),
    ):
        before, after = (
            [n.SerializeToString() for n in g.node] for g in (theirs_graph, ours_graph)
        )
        if before != after:
            ratio = difflib.SequenceMatcher(None, before, after, False)
            same = sum(block.size for block in ratio.get_matching_blocks())
            yield title, f"{len(before)} → {len(after)} nodes, {same} of them alike"
