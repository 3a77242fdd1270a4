"""Idioms: patterns of small operators that exporters write become one operator again, for which
frameworks have fused kernels.

The rewrites are mathematically exact, so that results agree up to rounding; only conversions to a
framework use them. Where ONNX has the operator (Gelu, Swish, Mish, LayerNormalization), it is used.
Others are in the domain `NATIVE`, lowered in `lower/custom_native.py`:

Linear(x, w, b?)                       x @ w + b, w two-dimensional, x of any rank; with the
                                       attribute `transposed`, w is outputs × inputs
Softmax(x)                             of which rows that are NaN have a gradient of zero
DotProductAttention(q, k, v, mask?)    softmax(q @ kᵀ * scale + mask) @ v; attribute is_causal
StandardScore(x, scale, b, mean, var)  BatchNormalization by statistics that the graph computes:
                                       they have gradients and are the same in training mode
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection

import numpy as np
import onnx_ir as ir

from sardonyx.build import FLOATS
from sardonyx.engines.ranges import ranges
from sardonyx.engines.splits import splits
from sardonyx.lower.custom_native import NATIVE
from sardonyx.lower.precompute import compute
from sardonyx.model import Model
from sardonyx.normalize import NormalizedModel, regular_copy
from sardonyx.passes.cse import merge_common
from sardonyx.passes.dead import remove_dead
from sardonyx.passes.folding import fold

FOLDED_ELEMENTS = 4096  # elements of a constant that may be folded
HIDDEN = -1e9  # added to a score, it leaves nothing of it


def recognize(model: Model, weights: Collection[str]) -> NormalizedModel:
    """A copy of a normalized model with its idioms as single nodes.

    weights -- names of initializers that must stay what they are, and of inputs that are weights
    """
    copy = regular_copy(model)
    graph = copy.graph
    _drop_identities(graph)
    fold(graph, keep=weights, elements=FOLDED_ELEMENTS, compute=compute)
    merge_common(graph)
    _drop_zero_biases(graph, weights)
    _computed_statistics(graph)
    _drop_buffers(graph)
    fed = {v for v in graph.inputs if v.name in weights}
    layer_norms, linears = (functools.partial(f, fed=fed) for f in (_layer_norms, _linears))
    for rewrite in (
        ranges,
        _unsqueezes,
        splits,
        _activations,
        layer_norms,
        _attentions,
        _softmaxes,
        linears,
    ):
        rewrite(graph)
        remove_dead(graph, keep=weights)
    merge_common(graph)
    copy.ir.opset_imports[NATIVE] = 1
    return NormalizedModel.of(copy)


# -- preparation --------------------------------------------------------------------


def _drop_identities(graph: ir.Graph) -> None:
    """Remove nodes that return their input unchanged; CastLike to a known type becomes Cast."""
    for node in list(graph):
        if node.op_type == "CastLike" and node.inputs[1] is not None and node.inputs[1].dtype:
            node.attributes.add(ir.AttrInt64("to", int(node.inputs[1].dtype)))
            node.op_type = "Cast"
            node.resize_inputs(1)
        if node.domain != "" or node.op_type not in ("Identity", "Cast"):
            continue
        (source,), (result,) = node.inputs[:1], node.outputs[:1]
        if source is None or result.is_graph_output():
            continue
        same = node.op_type == "Identity" or source.dtype == node.attributes["to"].value
        if same:
            result.replace_all_uses_with(source)
            graph.remove(node, safe=True)


def _drop_zero_biases(graph: ir.Graph, weights: Collection[str]) -> None:
    """torch's exporter writes zeros where a convolution has no bias."""
    for node in graph:
        if node.op_type in ("Conv", "ConvTranspose") and len(node.inputs) > 2:
            bias = node.inputs[2]
            array = constant(bias)
            is_weight = bias is not None and bias.name in weights
            if array is not None and not is_weight and not array.any():
                node.replace_input_with(2, None)


def _computed_statistics(graph: ir.Graph) -> None:
    """Keras writes LayerNormalization as a BatchNormalization by statistics of the example."""
    for node in graph.all_nodes():
        if node.op_type != "BatchNormalization" or node.domain != "":
            continue
        statistics = [v for v in node.inputs[3:5] if v is not None]
        is_served = not node.attributes.get_int("training_mode", 0)
        if is_served and any(v.producer() is not None for v in statistics):
            node.op_type, node.domain = "StandardScore", NATIVE
            node.attributes.pop("momentum", None)
            node.attributes.pop("training_mode", None)


def _drop_buffers(graph: ir.Graph) -> None:
    """Buffers of running statistics that are not read: with momentum 0, any will do."""
    for node in graph:
        if node.op_type != "BatchNormalization" or node.domain != "":
            continue
        trains = node.attributes.get_int("training_mode", 0) == 1
        if trains and node.attributes.get_float("momentum", 0.9) == 0.0:
            for place in (3, 4):
                node.replace_input_with(place, node.inputs[1])


def _unsqueezes(graph: ir.Graph) -> None:
    """Axes added one after the other are added at once."""
    for node in list(graph):
        before = made_by(node.inputs[0], "Unsqueeze") if node.op_type == "Unsqueeze" else None
        if before is None or not is_single(node.inputs[0]):
            continue
        outer, inner = axes_of(node), axes_of(before)
        rank = len(node.outputs[0].shape or ())
        if outer is None or inner is None or not rank:
            continue
        added = {a % rank for a in outer}
        rest = [a for a in range(rank) if a not in added]
        added |= {rest[a % len(rest)] for a in inner}
        name = f"{node.outputs[0].name}/axes"
        array = np.array(sorted(added), np.int64)
        axes = ir.Value(name=name, type=ir.TensorType(ir.DataType.INT64))
        axes.shape, axes.const_value = ir.Shape(array.shape), ir.Tensor(array, name=name)
        graph.register_initializer(axes)
        put(graph, node, ir.Node("", "Unsqueeze", [before.inputs[0], axes]))


# -- words of the patterns ----------------------------------------------------------


def constant(value: ir.Value | None) -> np.ndarray | None:
    """The array of a small constant."""
    if value is None or value.is_graph_input() or value.const_value is None:
        return None
    return value.const_value.numpy() if value.const_value.size <= FOLDED_ELEMENTS else None


def scalar(value: ir.Value | None) -> float | None:
    """The number of a constant that is one."""
    array = constant(value)
    return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None


def made_by(value: ir.Value | None, *ops: str) -> ir.Node | None:
    """The node that makes a value, if it is one of `ops`."""
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type in ops and node.domain == "" else None


def is_single(value: ir.Value | None) -> bool:
    """Whether a value is read once, and by no caller."""
    return value is not None and len(value.uses()) == 1 and not value.is_graph_output()


def axes_of(node: ir.Node) -> list[int] | None:
    array = constant(node.inputs[1]) if len(node.inputs) > 1 else None
    return None if array is None else [int(a) for a in array.reshape(-1)]


def dims_of(value: ir.Value) -> list[int | str] | None:
    return (
        None if value.shape is None else [d if isinstance(d, int) else str(d) for d in value.shape]
    )


def either_way(node: ir.Node) -> list[tuple[ir.Value, ir.Value]]:
    a, b = node.inputs
    assert a is not None and b is not None
    return [(a, b), (b, a)]


def put(graph: ir.Graph, at: ir.Node, new: ir.Node) -> None:
    """`new` in the place of `at`, whose only output it gives from now on."""
    (old,), (output,) = at.outputs[:1], new.outputs
    output.type, output.shape = old.type, old.shape
    new.name = at.name
    new.metadata_props.update(at.metadata_props)
    name = old.name
    graph.insert_before(at, new)
    old.replace_all_uses_with(output, replace_graph_outputs=True)
    graph.remove(at, safe=True)
    output.name = name


# -- activations --------------------------------------------------------------------

ANCHORS = ("Erf", "Tanh", "Sigmoid")
ELEMENTWISE: dict[str, Callable[..., np.ndarray]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Pow": np.power,
    "Tanh": np.tanh,
    "Erf": np.vectorize(math.erf),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Softplus": lambda x: np.log1p(np.exp(x)),
}
POINTS = np.linspace(-6.0, 6.0, 49)
KNOWN: list[tuple[str, dict[str, object], Callable[[np.ndarray], np.ndarray]]] = [
    ("Gelu", {"approximate": "none"}, lambda x: x / 2 * (1 + ELEMENTWISE["Erf"](x / 2**0.5))),
    (
        "Gelu",
        {"approximate": "tanh"},
        lambda x: x / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))),
    ),
    ("Swish", {"alpha": 1.0}, lambda x: x / (1 + np.exp(-x))),
    ("Swish", {"alpha": 1.702}, lambda x: x / (1 + np.exp(-1.702 * x))),
    ("Mish", {}, lambda x: x * np.tanh(np.log1p(np.exp(x)))),
]


def _activations(graph: ir.Graph) -> None:
    """Expressions of one tensor and numbers whose values are those of a known function."""
    for node in list(graph):
        if node.graph is None or node.op_type not in ANCHORS or node.domain != "":
            continue
        match = _activation(node)
        if match is not None:
            root, x, (op, settings, _) = match
            attrs = [ir.Attr(n, *_typed(v)) for n, v in settings.items()]
            put(graph, root, ir.Node("", op, [x], attrs))


def _typed(value: object) -> tuple[ir.AttributeType, object]:
    kind = ir.AttributeType.FLOAT if isinstance(value, float) else ir.AttributeType.STRING
    return kind, value


def _activation(anchor: ir.Node) -> tuple[ir.Node, ir.Value, tuple] | None:
    below = [v for v in _upwards(anchor.inputs[0], 6) if v.dtype in FLOATS]
    root: ir.Node | None = anchor
    for _ in range(4):  # products and sums between the anchor and the result
        root = _only_reader(root)
        if root is None:
            return None
        if root.op_type != "Mul":
            continue
        for x in below:
            y = _values(root.outputs[0], x, 0)
            if y is None:
                continue
            for formula in KNOWN:
                if np.abs(y - formula[2](POINTS)).max() < 2e-6:
                    return root, x, formula
    return None


def _upwards(value: ir.Value | None, depth: int) -> list[ir.Value]:
    """A value and those that it was computed from with numbers, nearest first."""
    chain: list[ir.Value] = []
    while value is not None and depth:
        chain.append(value)
        node = made_by(value, *ELEMENTWISE)
        rest = (
            [] if node is None else [v for v in node.inputs if v is not None and scalar(v) is None]
        )
        value, depth = (rest[0] if rest else None), depth - 1
    return chain


def _only_reader(node: ir.Node | None) -> ir.Node | None:
    if node is None or not is_single(node.outputs[0]):
        return None
    (use,) = node.outputs[0].uses()
    return use.node if use.node.domain == "" and use.node.op_type in ELEMENTWISE else None


def _values(value: ir.Value | None, x: ir.Value, depth: int) -> np.ndarray | None:
    """The values of an expression at `POINTS` of `x`; None where it reads anything else."""
    if value is x:
        return POINTS
    number = scalar(value)
    if number is not None:
        return np.full(POINTS.shape, number)
    node = made_by(value, *ELEMENTWISE)
    if node is None or depth > 10:
        return None
    parts = [_values(v, x, depth + 1) for v in node.inputs]
    if any(p is None for p in parts):
        return None
    with np.errstate(all="ignore"):
        return ELEMENTWISE[node.op_type](*parts)


# -- normalization ------------------------------------------------------------------


def _layer_norms(graph: ir.Graph, fed: Collection[ir.Value]) -> None:
    """(x - mean) / sqrt(mean((x - mean)²) + ε) * weight + bias, over the last axis.

    fed -- inputs that are weights
    """
    for node in list(graph):
        if node.graph is None or node.op_type != "Add" or node.domain != "":
            continue
        for scaled, bias in either_way(node):
            product = made_by(scaled, "Mul")
            if product is None or not is_single(scaled) or not _is_vector(bias, fed):
                continue
            for normal, weight in either_way(product):
                match = _standardized(normal) if _is_vector(weight, fed) else None
                if match is not None:
                    x, epsilon = match
                    attrs = [ir.AttrInt64("axis", len(x.shape or ()) - 1)]
                    attrs += [ir.AttrFloat32("epsilon", epsilon), ir.AttrInt64("stash_type", 1)]
                    put(graph, node, ir.Node("", "LayerNormalization", [x, weight, bias], attrs))
                    break
            if node.graph is None:
                break


def _is_vector(value: ir.Value, fed: Collection[ir.Value]) -> bool:
    return _is_weight(value, fed) and value.shape is not None and len(value.shape) == 1


def _is_weight(value: ir.Value, fed: Collection[ir.Value]) -> bool:
    return value.const_value is not None or value in fed


def _standardized(value: ir.Value) -> tuple[ir.Value, float] | None:
    division = made_by(value, "Div")
    root = made_by(division.inputs[1], "Sqrt") if division is not None else None
    shifted = made_by(root.inputs[0], "Add") if root is not None else None
    if division is None or shifted is None:
        return None
    centered = made_by(division.inputs[0], "Sub")
    for variance, small in either_way(shifted):
        epsilon = scalar(small)
        mean = made_by(variance, "ReduceMean")
        square = made_by(mean.inputs[0], "Pow", "Mul") if mean is not None else None
        if epsilon is None or mean is None or square is None or centered is None:
            continue
        x, middle = centered.inputs
        first = made_by(middle, "ReduceMean")
        if x is None or x.shape is None or first is None or first.inputs[0] is not x:
            continue
        is_square = square.op_type == "Mul" or scalar(square.inputs[1]) == 2.0
        same = all(v is centered.outputs[0] for v in square.inputs[: 1 + (square.op_type == "Mul")])
        last = [len(x.shape) - 1]
        keeps_rank = all(n.attributes.get_int("keepdims", 1) for n in (first, mean))
        if is_square and same and keeps_rank and axes_of(first) == last == axes_of(mean):
            return x, epsilon
    return None


# -- attention ----------------------------------------------------------------------


def _attentions(graph: ir.Graph) -> None:
    for node in list(graph):
        if node.graph is None or node.op_type != "MatMul" or node.domain != "":
            continue
        _attention(graph, node)


def _attention(graph: ir.Graph, node: ir.Node) -> None:
    share, v = node.inputs
    softmax = made_by(share, "Softmax")
    if softmax is None or not is_single(share) or v is None or v.shape is None:
        return
    rank = len(v.shape)
    if rank not in (3, 4) or softmax.attributes.get_int("axis", -1) not in (rank - 1, -1):
        return
    scores, mask = _unmasked(softmax.inputs[0])
    scores, scale = _unscaled(scores)
    product = made_by(scores, "MatMul")
    if product is None or not is_single(scores):
        return
    q, by_q = _unscaled(product.inputs[0])
    turned, by_k = _unscaled(product.inputs[1])
    k = _turned_back(graph, node, turned)
    if q is None or k is None or q.shape is None or len(q.shape) != rank:
        return
    if mask is not None and (mask.shape is None or mask.dtype != q.dtype):
        return
    causal = mask is not None and _is_causal(mask, q, k, turned)
    inputs = [q, k, v, *([mask] if mask is not None and not causal else [])]
    attrs = [
        ir.AttrFloat32("scale", _exact(scale * by_q * by_k, q.shape[-1])),
        ir.AttrInt64("is_causal", int(causal)),
    ]
    put(graph, node, ir.Node(NATIVE, "DotProductAttention", inputs, attrs))


def _exact(scale: float, width: int | ir.SymbolicDim) -> float:
    """1/√width, for a scale that is that but for the rounding of its parts."""
    usual = width**-0.5 if isinstance(width, int) and width else 0.0
    return usual if math.isclose(scale, usual, rel_tol=1e-6) else scale


def _unscaled(value: ir.Value | None) -> tuple[ir.Value | None, float]:
    """What a value is a multiple of, and the number."""
    node = made_by(value, "Mul", "Div")
    if node is None:
        return value, 1.0
    a, b = node.inputs
    factor = scalar(b)
    if factor is not None and factor:
        return a, 1 / factor if node.op_type == "Div" else factor
    factor = scalar(a)
    return (b, factor) if factor is not None and node.op_type == "Mul" else (value, 1.0)


def _unmasked(value: ir.Value | None) -> tuple[ir.Value | None, ir.Value | None]:
    """The scores of a softmax, and what is added to them."""
    node = made_by(value, "Add", "Where")
    if node is None or not is_single(value):
        return value, None
    if node.op_type == "Add":
        for scores, mask in either_way(node):
            inner, _ = _unscaled(scores)
            if made_by(inner, "MatMul") is not None and mask.const_value is None:
                return scores, mask
        for scores, mask in either_way(node):
            if made_by(_unscaled(scores)[0], "MatMul") is not None:
                return scores, mask
        return value, None
    hidden, low, unmasked = node.inputs
    number = scalar(low)
    if number is None or number > HIDDEN or unmasked is None or hidden is None or low is None:
        return value, None
    zero = ir.Value(name=f"{node.outputs[0].name}/zero", type=low.type, shape=ir.Shape([]))
    zero.const_value = ir.Tensor(np.zeros((), low.dtype.numpy()), name=zero.name)  # type: ignore[union-attr]
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    if zero.name not in graph.initializers:
        graph.register_initializer(zero)
    added = ir.Node("", "Where", [hidden, low, graph.initializers[zero.name or ""]])
    added.outputs[0].type, added.outputs[0].shape = low.type, hidden.shape
    added.outputs[0].name = f"{node.outputs[0].name}/mask"
    added.name = node.name
    added.metadata_props.update(node.metadata_props)
    graph.insert_before(node, added)
    return unmasked, added.outputs[0]


def _turned_back(graph: ir.Graph, at: ir.Node, value: ir.Value | None) -> ir.Value | None:
    """The keys, of keys whose last two axes are swapped."""
    turn = made_by(value, "Transpose")
    if turn is not None and value is not None:
        perm = [int(p) for p in turn.attributes["perm"].value]
        perm[-2:] = perm[:-3:-1]
        source = turn.inputs[0]
        assert source is not None
        if perm == sorted(perm):
            return source
        transpose = ir.Node("", "Transpose", [source], [ir.AttrInt64s("perm", perm)])
        out = transpose.outputs[0]
        out.name, out.type = f"{value.name}/keys", value.type
        if value.shape is not None:
            out.shape = ir.Shape([*value.shape[:-2], value.shape[-1], value.shape[-2]])
        transpose.name = turn.name
        transpose.metadata_props.update(turn.metadata_props)
        graph.insert_after(turn, transpose)
        return out
    # torch's exporter joins the leading axes before it swaps the last two
    last = made_by(value, "Reshape")
    turn = made_by(last.inputs[0], "Transpose") if last is not None else None
    first = made_by(turn.inputs[0], "Reshape") if turn is not None else None
    if (
        first is None
        or turn is None
        or value is None
        or list(turn.attributes["perm"].value) != [0, 2, 1]
    ):
        return None
    source, joined = first.inputs[0], first.outputs[0]
    dims, middle, final = (None if v is None else dims_of(v) for v in (source, joined, value))
    if dims is None or middle is None or final is None or len(dims) != len(final):
        return None
    swapped = [*dims[:-2], dims[-1], dims[-2]]
    return source if middle[-2:] == dims[-2:] and final == swapped else None


def _is_causal(mask: ir.Value, q: ir.Value, k: ir.Value, turned: ir.Value | None) -> bool:
    """Whether a mask is what torch writes for `is_causal`: a triangle of the sizes of q and k."""
    array = constant(mask)
    if array is not None:
        return _is_triangle(array, [(dims_of(v) or [0] * 2)[-2] for v in (q, k)])
    where = made_by(mask, "Where")
    equal = made_by(where.inputs[0], "Equal") if where is not None else None
    if where is None or equal is None or scalar(equal.inputs[1]) != 0.0:
        return False
    low, rest = scalar(where.inputs[1]), scalar(where.inputs[2])
    triangle = made_by(equal.inputs[0], "Trilu")
    full = made_by(triangle.inputs[0], "Expand") if triangle is not None else None
    if low is None or low > HIDDEN or rest != 0.0 or triangle is None or full is None:
        return False
    plain = len(triangle.inputs) < 2 or scalar(triangle.inputs[1]) == 0.0
    if triangle.attributes.get_int("upper", 1) or not plain or scalar(full.inputs[0]) != 1.0:
        return False
    sizes = made_by(full.inputs[1], "Concat")
    if sizes is None:
        fixed = constant(full.inputs[1])
        return fixed is not None and fixed.tolist() == [(dims_of(v) or [0] * 2)[-2] for v in (q, k)]
    if len(sizes.inputs) != 2:
        return False
    sources = [_length_of(v) for v in sizes.inputs]
    return all(s is not None and (s is v or _same_rows(s, v)) for s, v in zip(sources, (q, k)))


def _is_triangle(array: np.ndarray, sizes: list[int | str]) -> bool:
    """Whether a constant mask hides what is above the diagonal, and nothing else."""
    if list(array.shape) != sizes:
        return False
    below = np.tril(np.ones(array.shape, bool))
    return not array[below].any() and bool((array[~below] <= HIDDEN).all())


def _same_rows(a: ir.Value, b: ir.Value) -> bool:
    """Whether two tensors are the same heads: transposed alike from the same tensor."""
    one, two = made_by(a, "Transpose"), made_by(b, "Transpose")
    if one is None or two is None or one.inputs[0] is not two.inputs[0]:
        return False
    return list(one.attributes["perm"].value)[-2] == list(two.attributes["perm"].value)[-2]


def _length_of(value: ir.Value | None) -> ir.Value | None:
    """The tensor whose last but one size a value is."""
    node = made_by(value, "Slice")
    shape = made_by(node.inputs[0], "Shape") if node is not None else None
    if node is None or shape is None or shape.inputs[0] is None:
        return None
    bounds = [scalar(v) for v in node.inputs[1:3]]
    rank = len(shape.inputs[0].shape or ())
    allowed = ([-2.0, -1.0], [float(rank - 2), float(rank - 1)])
    return shape.inputs[0] if bounds in allowed else None


def _softmaxes(graph: ir.Graph) -> None:
    """Softmax of which rows are replaced afterwards, those that are NaN because all is masked."""
    for node in list(graph):
        if node.op_type != "Softmax" or node.domain != "":
            continue
        readers = [use.node for use in node.outputs[0].uses()]
        casts = [n for n in readers if n.op_type == "Cast"]
        readers += [use.node for n in casts for use in n.outputs[0].uses()]
        if any(n.op_type in ("Where", "IsNaN") and n.domain == "" for n in readers):
            put(graph, node, ir.Node(NATIVE, "Softmax", node.inputs, node.attributes.values()))


# -- products with a weight -----------------------------------------------------------


def _linears(graph: ir.Graph, fed: Collection[ir.Value]) -> None:
    """MatMul with a constant matrix, or with one that is transposed, and the bias added to it."""
    for node in list(graph):
        if node.graph is None or node.op_type != "MatMul" or node.domain != "":
            continue
        x, w = node.inputs
        turn = made_by(w, "Transpose")
        w = turn.inputs[0] if turn is not None else w
        is_matrix = w is not None and _is_weight(w, fed) and len(w.shape or ()) == 2
        if not is_matrix or w is None or x is None or x.const_value is not None:
            continue
        if x.dtype not in FLOATS or x.shape is None or len(x.shape) < 2:
            continue
        (y,) = node.outputs
        end, inputs = node, [x, w]
        reader = _only_reader(node)
        if reader is not None and reader.op_type == "Add":
            (bias,) = (v for v in reader.inputs if v is not y)
            width = w.shape[0 if turn is not None else 1]  # type: ignore[index]
            if bias is not None and _is_vector(bias, fed) and bias.shape[0] == width:  # type: ignore[index]
                end, inputs = reader, [x, w, bias]
        attrs = [ir.AttrInt64("transposed", int(turn is not None))]
        put(graph, end, ir.Node(NATIVE, "Linear", inputs, attrs))
