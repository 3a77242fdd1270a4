"""Which node of one graph became which of another, whatever they are called and in which order.

In turn, each for what is left: the same computation from the inputs, weights included; the same
computation up to the outputs; weights that are alike, as after fine-tuning; the same name; the same
neighbours; the same structure, whatever the weights; the same place in the order. Only nodes of the
same operator are paired, until the end: what then makes a value of the same name was replaced.
"""

from __future__ import annotations

import difflib
import zlib
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import onnx_ir as ir

from sardonyx import opset
from sardonyx.build import array_bytes
from sardonyx.passes.nesting import bodies

ALIKE = 0.8  # correlation from which weights count as another version of the same
TELLING = 16  # elements; fewer correlate by chance
SAMPLED = 4096
HELD: dict[str, Any] = {"value": None, "value_float": np.float32, "value_floats": np.float32}
HELD |= {"value_int": np.int64, "value_ints": np.int64}

Nodes = Sequence[ir.Node]


@dataclass(frozen=True)
class Matching:
    """Which node became which, and which nodes of one graph compute the same."""

    pairs: dict[ir.Node, ir.Node]  # of the one graph → of the other, in the order of the one
    kinds: dict[ir.Node, Any]  # nodes of one graph that are of one kind compute the same
    twins: frozenset[tuple[Any, Any]]  # kinds of which nodes are paired

    def around(self, inner: Matching) -> Matching:
        """This one together with that of two bodies inside."""
        return Matching(
            self.pairs | inner.pairs, self.kinds | inner.kinds, self.twins | inner.twins
        )

    def is_same(self, old: ir.Node, new: ir.Node) -> bool:
        """Whether `new` is what became of `old`, or of a node that computes the same as `old`."""
        return (self.kinds.get(old), self.kinds.get(new)) in self.twins


def match(a: ir.Graph, b: ir.Graph) -> Matching:
    """Which node of `a` became which of `b`."""
    kinds: dict[ir.Node, Any] = {}
    computed = {graph: _computed(graph, contents=True) for graph in (a, b)}
    for graph, keys in computed.items():
        kinds |= {node: (id(graph), key) for node, key in keys.items()}
    pairs = _pairs(a, b, computed)
    return Matching(pairs, kinds, frozenset((kinds[x], kinds[y]) for x, y in pairs.items()))


def _pairs(
    a: ir.Graph, b: ir.Graph, computed: Mapping[ir.Graph, Mapping[ir.Node, int]]
) -> dict[ir.Node, ir.Node]:
    matcher = _Pairs(a, b)
    matcher.by_key(lambda graph: computed[graph])
    matcher.by_key(lambda graph: _consumed(graph, contents=True))
    matcher.add(_with_alike_weights(matcher.rest(a), matcher.rest(b)))
    matcher.by_name()
    matcher.by_neighbours()
    for keys in (_computed, _consumed):
        matcher.by_key(lambda graph, keys=keys: keys(graph, contents=False))  # type: ignore[misc]
    matcher.by_neighbours()
    matcher.by_order()
    matcher.replaced()
    return {node: matcher.pairs[node] for node in nodes_of(a) if node in matcher.pairs}


class _Pairs:
    """Pairs under construction; each step takes what the steps before left over."""

    def __init__(self, a: ir.Graph, b: ir.Graph):
        self.a, self.b = a, b
        self.pairs: dict[ir.Node, ir.Node] = {}
        self.free = set(nodes_of(b))  # the nodes of `b` that have no partner yet

    def rest(self, graph: ir.Graph) -> list[ir.Node]:
        if graph is self.a:
            return [node for node in nodes_of(graph) if node not in self.pairs]
        return [node for node in nodes_of(graph) if node in self.free]

    def add(self, pairs: Iterable[tuple[ir.Node, ir.Node]]) -> None:
        for old, new in pairs:
            if old not in self.pairs and new in self.free:
                self.pairs[old] = new
                self.free.remove(new)

    def by_key(self, keys: Callable[[ir.Graph], Mapping[ir.Node, int]]) -> None:
        """Nodes with the same key; among several the one whose output has the same name."""
        old_keys, new_keys = keys(self.a), keys(self.b)
        free: dict[int, list[ir.Node]] = {}
        for node in self.rest(self.b):
            free.setdefault(new_keys[node], []).append(node)
        for node in self.rest(self.a):
            alike = free.get(old_keys[node])
            if alike:
                name = node.outputs[0].name if node.outputs else None
                same = (n for n in alike if n.outputs and n.outputs[0].name == name)
                partner = next(same, alike[0])
                alike.remove(partner)
                self.add([(node, partner)])

    def by_name(self, *, replaced: bool = False) -> None:
        def key(node: ir.Node, name: Any) -> Any:
            return name if replaced else (node.domain, node.op_type, name)

        for name_of in (lambda n: n.name, lambda n: tuple(v.name for v in n.outputs)):
            free = {key(n, name_of(n)): n for n in self.rest(self.b) if name_of(n)}
            old = [n for n in self.rest(self.a) if name_of(n)]
            self.add((n, free[key(n, name_of(n))]) for n in old if key(n, name_of(n)) in free)

    def by_neighbours(self) -> None:
        """Nodes of the same operator beside producers or readers that are matched."""
        changed = True
        while changed:
            before = len(self.pairs)
            for node in self.rest(self.a):
                alike = [
                    other
                    for other in _beside(node, self.pairs)
                    if other in self.free and _op(other) == _op(node)
                ]
                if alike:
                    key = _attributes_key(node)
                    same = (n for n in alike if _attributes_key(n) == key)
                    self.add([(node, next(same, alike[0]))])
            changed = len(self.pairs) > before

    def by_order(self) -> None:
        old, new = self.rest(self.a), self.rest(self.b)
        matcher = difflib.SequenceMatcher(None, [*map(_op, old)], [*map(_op, new)], False)
        for i, j, size in matcher.get_matching_blocks():
            self.add(zip(old[i : i + size], new[j : j + size]))

    def replaced(self) -> None:
        """Another operator in the place of one: under its name, or between the same neighbours."""
        self.by_name(replaced=True)
        for node in self.rest(self.a):
            others = [n for n in _beside(node, self.pairs) if n in self.free]
            if others:
                self.add([(node, others[0])])


def _op(node: ir.Node) -> tuple[str, str]:
    return node.domain, node.op_type


def _beside(node: ir.Node, pairs: Mapping[ir.Node, ir.Node]) -> Iterator[ir.Node]:
    """Where a node should be in the other graph, by what it reads and what reads it.

    These may be Constant nodes, or nodes of a body or of the graph around it: the caller takes
    only nodes of its own graph.
    """
    for place, value in enumerate(node.inputs):
        producer = value.producer() if value is not None else None
        if value is not None and producer is not None and producer in pairs:
            number = value.index() or 0
            for output in pairs[producer].outputs[number : number + 1]:
                yield from (other for other, at in output.uses() if at == place)
    for value in node.outputs:
        for reader, place in value.uses():
            if reader in pairs and place < len(pairs[reader].inputs):
                source = pairs[reader].inputs[place]
                producer_there = source.producer() if source is not None else None
                if producer_there is not None:
                    yield producer_there


# -- keys -----------------------------------------------------------------------------------


def _computed(graph: ir.Graph, contents: bool) -> dict[ir.Node, int]:
    """A number per node for what it computes from the inputs.

    contents -- with these very weights and bodies; else weights count by type and shape
    """
    return _computed_inside(graph, contents, {})[0]


def _computed_inside(
    graph: ir.Graph, contents: bool, outer: Mapping[ir.Value, int]
) -> tuple[dict[ir.Node, int], int]:
    """The same for a graph that reads values of an outer one; and a number for its outputs."""
    input_keys = {v: hash(("input", i)) for i, v in enumerate(graph.inputs)}
    values: ChainMap[ir.Value, int] = ChainMap(input_keys, cast(Any, outer))
    keys: dict[ir.Node, int] = {}
    for node in nodes_of(graph):
        inputs = tuple(_value_key(v, values, contents) for v in node.inputs)
        inner = [_computed_inside(g, contents, values)[1] for g in bodies(node) if contents]
        keys[node] = hash((_op(node), _attributes_key(node), inputs, *inner))
        for place, value in enumerate(node.outputs):
            values[value] = hash((keys[node], place))
    return keys, hash(tuple(_value_key(v, values, contents) for v in graph.outputs))


def _consumed(graph: ir.Graph, contents: bool) -> dict[ir.Node, int]:
    """A number per node for what becomes of its outputs."""
    ends: dict[ir.Value, list[Any]] = {}
    for place, value in enumerate(graph.outputs):
        ends.setdefault(value, []).append(("output", place))
    keys: dict[ir.Node, int] = {}
    for node in reversed(nodes_of(graph)):
        after = []
        for value in node.outputs:
            uses = list(ends.get(value, ()))
            uses += [(keys[n], place) for n, place in value.uses() if n in keys]
            after.append(tuple(sorted(map(hash, uses))))
        content: Any = ()
        if contents:
            weights = [v if v is None or tensor_of(v) is not None else None for v in node.inputs]
            content = (_attributes_key(node), *(_value_key(v, {}, True) for v in weights))
        keys[node] = hash((_op(node), content, tuple(after)))
    return keys


def _value_key(value: ir.Value | None, values: Mapping[ir.Value, int], contents: bool) -> Any:
    if value is None:
        return None
    if value in values:
        return values[value]
    return ("outside", value.name) if tensor_of(value) is None else weight_key(value, contents)


def weight_key(value: ir.Value, contents: bool = True) -> Any:
    """A key for a weight: its type and shape and, with `contents`, its elements."""
    tensor = tensor_of(value)
    if tensor is None:
        return ("no content", value.name)
    digest = hash(tensor.tobytes()) if contents and tensor.dtype != ir.DataType.STRING else 0
    return ("weight", tensor.dtype.name, tuple(tensor.shape.numpy()), digest)


# -- weights ----------------------------------------------------------------------------------


def _is_constant(node: ir.Node) -> bool:
    if node.op_type != "Constant" or node.domain != "" or len(node.attributes) != 1:
        return False
    (attr,) = node.attributes.values()
    return not attr.is_ref() and attr.name in HELD


def nodes_of(graph: ir.Graph) -> list[ir.Node]:
    """The nodes that compute something; a Constant is a weight, wherever a file keeps it."""
    return [node for node in graph if not _is_constant(node)]


def stored(graph: ir.Graph) -> list[ir.Value]:
    """The weights of a graph: initializers and what its Constant nodes hold."""
    return [
        *graph.initializers.values(),
        *(node.outputs[0] for node in graph if _is_constant(node)),
    ]


def tensor_of(value: ir.Value) -> ir.TensorProtocol | None:
    """The content of a weight; None where a value is given or computed."""
    node = value.producer()
    if node is None:
        return value.const_value
    if not _is_constant(node):
        return None
    (attr,) = node.attributes.values()
    return attr.value if attr.name == "value" else ir.tensor(np.array(attr.value, HELD[attr.name]))


# -- weights that are alike -----------------------------------------------------------------


def _with_alike_weights(a: Nodes, b: Nodes) -> Iterator[tuple[ir.Node, ir.Node]]:
    """Pairs of nodes whose weights are each other's best match, and a good one."""
    groups: dict[Any, tuple[list[ir.Node], list[ir.Node]]] = {}
    for side, nodes in enumerate((a, b)):
        for node in nodes:
            shapes = tuple(tuple(t.shape.numpy()) for t in _float_weights(node))
            if sum(int(np.prod(s)) for s in shapes) >= TELLING:
                groups.setdefault((_op(node), shapes), ([], []))[side].append(node)
    for old, new in groups.values():
        if old and new:
            apart = np.stack([*map(_fingerprint, old)]) @ np.stack([*map(_fingerprint, new)]).T
            best_new, best_old = apart.argmax(1), apart.argmax(0)
            for i, j in enumerate(best_new):
                if best_old[j] == i and apart[i, j] > ALIKE:
                    yield old[i], new[j]


def _float_weights(node: ir.Node) -> list[ir.TensorProtocol]:
    return [
        t
        for v in node.inputs
        if v is not None and (t := tensor_of(v)) is not None and t.dtype.is_floating_point()
    ]


def _fingerprint(node: ir.Node) -> np.ndarray:
    """The weights of a node around their mean, in unit length: products are correlations."""
    parts = []
    for tensor in _float_weights(node):
        flat = tensor.numpy().reshape(-1)
        flat = flat[:: max(1, flat.size // SAMPLED)].astype(np.float64)
        parts.append(flat - flat.mean() if flat.size else flat)
    joined = np.nan_to_num(np.concatenate(parts), posinf=0.0, neginf=0.0)
    length = float(np.sqrt(np.sum(joined**2)))
    return joined / length if length else joined


# -- attributes -----------------------------------------------------------------------------


def _attributes_key(node: ir.Node) -> Any:
    return tuple(sorted((k, repr(v)) for k, v in attributes(node).items()))


def attributes(node: ir.Node) -> dict[str, Any]:
    """Attributes as plain values, those at their default left out; a body is just a word."""
    values: dict[str, Any] = {}
    for name, attr in node.attributes.items():
        if attr.is_ref():
            values[name] = f"@{attr.ref_attr_name}"
        elif attr.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            values[name] = "body"
        elif attr.type == ir.AttributeType.TENSOR:
            array = attr.value.numpy()
            values[name] = f"{array.dtype}{list(array.shape)} {zlib.crc32(array_bytes(array)):08x}"
            if array.size == 1:
                values[name] = f"{array.dtype} {array.reshape(-1)[0]}"
        else:
            value = attr.value
            values[name] = tuple(value) if isinstance(value, (list, tuple)) else value
    _drop_implied(node, values)
    defaults = (
        opset.attribute_defaults(node.op_type, node.domain) if node.domain in opset.INSIDE else {}
    )
    for name, default in defaults.items():
        plain = tuple(default) if isinstance(default, (list, tuple)) else default
        if name in values and values[name] == plain:
            del values[name]
    return values


def _drop_implied(node: ir.Node, values: dict[str, Any]) -> None:
    """Leave out what says nothing: strides of 1, no padding, the shape of the kernel given."""
    for name, usual in (("strides", 1), ("dilations", 1), ("pads", 0), ("output_padding", 0)):
        if name in values and all(x == usual for x in values[name]):
            del values[name]
    kernel = node.inputs[1] if len(node.inputs) > 1 and "Conv" in node.op_type else None
    tensor = tensor_of(kernel) if kernel is not None else None
    shape = tensor.shape if tensor is not None else kernel.shape if kernel is not None else None
    dims = tuple(shape)[2:] if shape is not None else None
    if dims is not None and values.get("kernel_shape") == dims:
        del values["kernel_shape"]
    first = node.inputs[0] if node.inputs else None
    axis = values.get("axis")
    rank = len(first.shape) if first is not None and first.shape is not None else None
    if isinstance(axis, int) and rank is not None and axis == rank - 1:
        values["axis"] = -1
