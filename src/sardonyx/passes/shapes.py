"""Types and shapes of every value: inferred, symbols kept, data-dependent sizes left unknown.

ONNX infers the whole graph in one pass, without its data propagation (which has no bound on
memory). Then one walk in Python carries what is known of integer tensors (`folding`) through the
shape arithmetic, and infers anew only those nodes that the new knowledge reaches. What a value is
known to hold is left on it: `const_value`, or `meta["content"]` where some elements are symbols.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import onnx
import onnx.shape_inference
import onnx_ir as ir

from sardonyx import build, opset
from sardonyx.limits import limits_of
from sardonyx.passes import folding
from sardonyx.passes.fold_rules import RULES, UNKNOWN
from sardonyx.passes.nesting import bodies, graphs
from sardonyx.values import infer_elementwise

MADE_UP = "unk__"
CRASHING = ("DictVectorizer", "LabelEncoder", "RegexFullMatch")

Dims = list[int | ir.SymbolicDim]


def infer_shapes(graph: ir.Graph, skeleton: Callable[[], onnx.ModelProto]) -> None:
    """Set the types and shapes of the values of `graph` and of its bodies.

    skeleton -- returns the same graph as a message, without large payloads
    """
    whole = _infer_elementwise(graph) or infer_types(graph, skeleton())
    _Walk(graph, everything=not whole).graph(graph)


def _infer_elementwise(graph: ir.Graph) -> bool:
    """Infer a graph that has elementwise operators only, without ONNX; whether it is one.

    ONNX invents symbols for sizes without a name: a graph with such inputs is left to it.
    """
    every_dim = (d for v in graph.inputs if v.shape is not None for d in v.shape.dims)
    if any(isinstance(d, ir.SymbolicDim) and _weight(d.value) < 2 for d in every_dim):
        return False
    return all(infer_elementwise(node) and node.outputs[0].type is not None for node in graph)


def refine_shapes(graph: ir.Graph) -> None:
    """Carry known integers through the shape arithmetic of a graph whose values have types."""
    _Walk(graph, everything=False).graph(graph)


Declared = list[tuple[ir.Value, ir.Shape]]
ONLY_DECLARED = "only_declared"  # on a value whose shape the file declares and nothing confirms


def forget_shapes(graph: ir.Graph) -> Declared:
    """Remove the declared shapes of all computed values: files declare wrong ones, unchecked."""
    declared = []
    for part in graphs(graph):
        for value in part.initializers.values():
            tensor = value.const_value
            if tensor is not None and value.shape is not None and value.shape != tensor.shape:
                value.shape = ir.Shape(
                    tensor.shape.numpy()
                )  # a file may declare an output's differently
        for node in part:
            for value in node.outputs:
                if value.shape is None or value.const_value is not None:
                    continue
                if "content" not in value.meta:
                    declared.append((value, value.shape))
                    value.shape = None
    return declared


def recall_shapes(declared: Declared) -> bool:
    """Restore declared shapes where inference found none; whether anything was added."""
    changed = False
    for value, shape in declared:
        if value.shape is None:
            value.shape = shape
            value.meta[ONLY_DECLARED] = True
            changed = True
        elif len(value.shape) == len(shape):
            dims = [
                d if isinstance(d, int) or _weight(d.value) == 2 else e
                for d, e in zip(value.shape, shape, strict=True)
            ]
            changed |= set_shape(value, dims)
    return changed


def infer_types(graph: ir.Graph, skeleton: onnx.ModelProto) -> bool:
    """Run ONNX's inference at the opset of the skeleton; whether it accepted the graph."""
    _hide_defaults(skeleton.graph)
    if crashes_inference(graph):
        return False
    try:
        inferred = onnx.shape_inference.infer_shapes(skeleton, check_type=False, strict_mode=False)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError, TypeError):
        return False  # one node that ONNX refuses must not cost the shapes of all others
    _copy_back(graph, inferred.graph)
    return True


def crashes_inference(graph: ir.Graph) -> bool:
    """Whether ONNX's inference may crash: it does where one of these reads a value without a type,
    which operators that it does not know leave behind (onnx 1.23).
    """
    nodes = [node for part in graphs(graph) for node in part]
    return any(n.op_type in CRASHING for n in nodes) and any(
        opset.schema(n.op_type, n.domain) is None for n in nodes
    )


def _hide_defaults(graph: onnx.GraphProto) -> None:
    """An initializer that is also an input may be overridden: its value decides no shape."""
    inputs = {info.name for info in graph.input}
    constants = [tensor for tensor in graph.initializer if tensor.name not in inputs]
    if len(constants) < len(graph.initializer):
        graph.ClearField("initializer")
        graph.initializer.extend(constants)


def _copy_back(graph: ir.Graph, proto: onnx.GraphProto, shapes: Shapes | None = None) -> None:
    """Types by name, graph by graph: two branches may use one name for different values."""
    types = {info.name: info.type for info in (*proto.value_info, *proto.output)}
    shapes = {} if shapes is None else shapes
    for node, node_proto in zip(graph, proto.node, strict=True):
        for value in node.outputs:
            if value.name in types:
                _merge(value, types[value.name], shapes)
        if inner := bodies(node):
            protos = [
                g for a in node_proto.attribute for g in ([a.g] if a.HasField("g") else a.graphs)
            ]
            for body, body_proto in zip(inner, protos, strict=True):
                for value, info in zip(body.inputs, body_proto.input, strict=True):
                    _merge(value, info.type, shapes)
                _copy_back(body, body_proto, shapes)


# Types that were read before, by their bytes: most values of a model share a few.
Shapes = dict[bytes, tuple[ir.TypeProtocol | None, list[Any] | None]]


def _merge(value: ir.Value, proto: onnx.TypeProto, shapes: Shapes) -> None:
    """Add to what is known of `value`."""
    key = proto.SerializeToString()
    if key not in shapes:
        shape = None if opset.holds_map(proto) else ir.serde.deserialize_type_proto_for_shape(proto)
        kind = None if opset.holds_map(proto) else ir.serde.deserialize_type_proto_for_type(proto)
        shapes[key] = kind, None if shape is None else list(shape)
    kind, dims = shapes[key]
    if value.type is None:
        value.type = kind
    if dims is not None:
        set_shape(value, dims)


def set_shape(value: ir.Value, dims: Sequence[Any]) -> bool:
    """Refine the shape of `value` by `dims`: numbers win over names, names over nothing."""
    if value.shape is None:
        value.shape = ir.Shape(dims)
        return True
    before = list(value.shape)
    if len(before) != len(dims):
        return False
    merged = [_finer(a, b) for a, b in zip(before, dims, strict=True)]
    if all(a is b or (isinstance(a, int) and a == b) for a, b in zip(before, merged, strict=True)):
        return False
    value.shape = ir.Shape(merged)
    return True


def _finer(current: Any, new: Any) -> Any:
    if isinstance(current, int) or isinstance(new, int):
        return current if isinstance(current, int) else new
    return new if _weight(new.value) > _weight(current.value) else current


def _weight(symbol: str | None) -> int:
    """A user's symbol is worth more than one that ONNX generated, and that more than none."""
    return 0 if symbol is None else 1 if symbol.startswith(MADE_UP) else 2


class _Walk:
    """One pass in order over a graph and its bodies."""

    def __init__(self, root: ir.Graph, everything: bool):
        self.limits = limits_of(root)
        self.everything = everything
        self.changed: set[ir.Value] = set()
        self.depth = 0

    def graph(self, graph: ir.Graph) -> None:
        for node in graph:
            if node.attributes.data:
                if node.op_type == "Scan" and node.domain == "":
                    self._enter_scan(node)
                self.depth += 1
                for body in bodies(node):
                    self.graph(body)
                self.depth -= 1
            self.node(node)

    def node(self, node: ir.Node) -> None:
        # ONNX does not see the constants of an outer graph from within a body.
        is_open = any(v.type is None or (self.depth and v.shape is None) for v in node.outputs)
        if self.everything or is_open or (self.changed and self._is_reached(node)):
            self._infer(node)
        if (node.domain, node.op_type) in RANKS and node.outputs[0].shape is None:
            self._rank(node)
        most = self.limits.propagated_elements
        dims = _from_content(node, most) if node.op_type in FROM_CONTENT else None
        if dims is not None and set_shape(node.outputs[0], dims):
            self.changed.add(node.outputs[0])
        if node.op_type in SIZES and _carries_sizes(node, most):
            array = folding.evaluate(node, self.limits.fold_tensor_bytes)
            if array is not None and array.size <= most:
                folding.remember(node.outputs[0], array)
                self.changed.add(node.outputs[0])

    def _is_reached(self, node: ir.Node) -> bool:
        read = (*node.inputs, *(v for body in bodies(node) for v in body.outputs))
        return any(v in self.changed for v in read) and not all(
            build.is_static(v) for v in node.outputs
        )

    def _infer(self, node: ir.Node) -> None:
        if bodies(node):
            if node.op_type == "If" and node.domain == "":
                self._infer_if(node)
            elif node.op_type == "Scan" and node.domain == "":
                self._infer_scan(node)
            return
        before = [(v.type, v.shape) for v in node.outputs]
        for value in node.outputs:
            value.shape = None
        try:
            build.infer(node)
        finally:
            for value, (kind, shape) in zip(node.outputs, before, strict=True):
                inferred, value.shape = value.shape, shape
                grew = inferred is not None and set_shape(value, list(inferred))
                if grew or (kind is None and value.type is not None):
                    self.changed.add(value)

    def _rank(self, node: ir.Node) -> None:
        """The output of an operator whose shape ONNX does not infer, from its first input."""
        x = node.inputs[0] if node.inputs else None
        dims = None
        if x is not None and x.shape is not None:
            dims = RANKS[node.domain, node.op_type](list(x.shape))
        if dims is not None and set_shape(node.outputs[0], dims):
            self.changed.add(node.outputs[0])

    def _infer_if(self, node: ir.Node) -> None:
        """An output of If has the dimensions in which both branches agree."""
        then, other = (
            node.attributes[k].as_graph().outputs for k in ("then_branch", "else_branch")
        )
        for value, a, b in zip(node.outputs, then, other, strict=False):
            if value.type is None:
                value.type = a.type
            if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
                continue
            pairs = zip(a.shape, b.shape, strict=True)
            dims = [x if build.same_dim(x, y) else ir.SymbolicDim(None) for x, y in pairs]
            if set_shape(value, dims):
                self.changed.add(value)

    def _enter_scan(self, node: ir.Node) -> None:
        """A state keeps its shape, an element lacks the axis along which it is taken."""
        states = len(node.inputs) - node.attributes.get_int("num_scan_inputs", 0)
        for i, inner in enumerate(inner for body in bodies(node) for inner in body.inputs):
            outer = node.inputs[i] if i < len(node.inputs) else None
            if outer is None or outer.shape is None:
                continue
            dims = list(outer.shape)
            if i >= states:
                axis = _scan_axis(node, "scan_input_axes", i - states)
                if not -len(dims) <= axis < len(dims):
                    continue
                del dims[axis]
            if set_shape(inner, dims):
                self.changed.add(inner)

    def _infer_scan(self, node: ir.Node) -> None:
        """A state keeps its shape, elements are stacked."""
        states = len(node.inputs) - node.attributes.get_int("num_scan_inputs", 0)
        body_outputs = [value for body in bodies(node) for value in body.outputs]
        for i, (outer, inner) in enumerate(zip(node.outputs, body_outputs, strict=False)):
            if inner.shape is None:
                continue
            dims: Dims = list(inner.shape)
            if i >= states:
                axis = _scan_axis(node, "scan_output_axes", i - states)
                dims.insert(axis % (len(dims) + 1), _scan_length(node, states))
            if set_shape(outer, dims):
                self.changed.add(outer)


def _scan_axis(node: ir.Node, attribute: str, position: int) -> int:
    axes = node.attributes.get_ints(attribute, [])
    return axes[position] if position < len(axes) else 0


def _scan_length(node: ir.Node, states: int) -> int | ir.SymbolicDim:
    """How many elements the first scanned input has."""
    first = node.inputs[states] if 0 <= states < len(node.inputs) else None
    axis = _scan_axis(node, "scan_input_axes", 0)
    if first is None or first.shape is None or not -len(first.shape) <= axis < len(first.shape):
        return UNKNOWN
    return first.shape[axis]


SIZES = frozenset(["Shape", "Size", *RULES])  # operators that may compute with sizes
INTEGERS = (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL)


def _carries_sizes(node: ir.Node, most: int) -> bool:
    """Whether the output is a small integer tensor whose value may decide a shape later."""
    if node.domain != "" or len(node.outputs) != 1:
        return False
    (out,) = node.outputs
    if out.const_value is not None or (out.dtype not in INTEGERS):
        return False
    if node.op_type in ("Shape", "Size"):
        return True
    if build.is_static(out) and math.prod(build.static(out)) > most:
        return False
    return all(_is_small(v, most) for v in node.inputs if v is not None)


def _is_small(value: ir.Value, most: int) -> bool:
    if value.const_value is not None:
        return value.const_value.size <= most
    return "content" in value.meta


# -- shapes that symbols decide -------------------------------------------------------


def _from_content(node: ir.Node, most: int) -> Dims | None:
    """The output shape of a node whose shape input is known, at least in part."""
    rule = FROM_CONTENT.get(node.op_type) if node.domain == "" else None
    if rule is None or any(a.is_ref() for a in node.attributes.values()):
        return None
    position, compute = rule
    target = node.inputs[position] if len(node.inputs) > position else None
    if target is None:
        return None
    array = folding.contents(target)
    if array is not None and array.size <= most:
        sizes: Dims = [v if isinstance(v, ir.SymbolicDim) else int(v) for v in array.flat]
        dims = compute(node, sizes)
        return None if dims is None or any(isinstance(d, int) and d < 0 for d in dims) else dims
    if node.op_type == "Expand" or target.shape is None or len(target.shape) != 1:
        return None
    length = target.shape[0]
    if not isinstance(length, int) or length > most:
        return None
    return [UNKNOWN] * length


def _reshape(node: ir.Node, target: Dims) -> Dims | None:
    x = node.inputs[0]
    source = list(x.shape) if x is not None and x.shape is not None else None
    if not node.attributes.get_int("allowzero", 0):
        copied: Dims = []
        for axis, size in enumerate(target):
            if isinstance(size, int) and size == 0:
                size = source[axis] if source is not None and axis < len(source) else UNKNOWN
            copied.append(size)
        target = copied
    if -1 in target:
        axis = target.index(-1)
        rest = target[:axis] + target[axis + 1 :]
        target[axis] = UNKNOWN if source is None else quotient(source, rest)
    return target


def quotient(above: Dims, below: Dims) -> int | ir.SymbolicDim:
    """The product of `above` over that of `below`, where symbols cancel; unknown if they do not."""
    symbols = [d.value for d in above if isinstance(d, ir.SymbolicDim)]
    for size in below:
        if isinstance(size, ir.SymbolicDim):
            if size.value is None or size.value not in symbols:
                return UNKNOWN
            symbols.remove(size.value)
    top = math.prod(d for d in above if isinstance(d, int))
    bottom = math.prod(d for d in below if isinstance(d, int))
    if bottom <= 0 or top % bottom:
        return UNKNOWN
    if not symbols:
        return top // bottom
    if len(symbols) == 1 and symbols[0] is not None and top == bottom:
        return ir.SymbolicDim(symbols[0])
    return UNKNOWN


def _expand(node: ir.Node, target: Dims) -> Dims | None:
    x = node.inputs[0]
    if x is None or x.shape is None:
        return None
    return broadcast(list(x.shape), target)


def broadcast(a: Dims, b: Dims) -> Dims:
    """The dimensions of two shapes broadcast together."""
    rank = max(len(a), len(b))
    left: Dims = [*[1] * (rank - len(a)), *a]
    right: Dims = [*[1] * (rank - len(b)), *b]
    return [_broadcast_dim(x, y) for x, y in zip(left, right, strict=True)]


def _broadcast_dim(a: Any, b: Any) -> Any:
    if build.same_dim(a, b):
        return a
    for one, other in ((a, b), (b, a)):
        if isinstance(one, int):
            return other if one == 1 else one
    return UNKNOWN


def _sizes(node: ir.Node, target: Dims) -> Dims:
    return target


def _resize(node: ir.Node, target: Dims) -> Dims | None:
    policy = node.attributes.get_string("keep_aspect_ratio_policy", "stretch")
    return None if "axes" in node.attributes or policy != "stretch" or not target else target


def _spectra(signal: Sequence[Any]) -> Dims:
    """Exporters leave out the last axis of a signal, which runtimes take and ONNX does not."""
    return [signal[0], UNKNOWN, UNKNOWN, 2]


def _rows(x: Sequence[Any]) -> Dims | None:
    return list(x) if len(x) > 1 else None


RANKS: dict[tuple[str, str], Callable[[Sequence[Any]], Dims | None]] = {
    ("", "STFT"): _spectra,
    ("ai.onnx.ml", "Normalizer"): _rows,
    ("ai.onnx.ml", "Scaler"): _rows,
}
FROM_CONTENT = {
    "Reshape": (1, _reshape),
    "Expand": (1, _expand),
    "ConstantOfShape": (0, _sizes),
    "Resize": (3, _resize),
}
