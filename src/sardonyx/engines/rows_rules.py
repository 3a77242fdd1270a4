"""How operators compute with parts of tensors: along which axis their results are parted.

`parted` either settles a node (its outputs get their axes in `work.axes`, or are whole), or raises
`NeedsWhole` before it has changed anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.build import constant
from sardonyx.engines.rows import NeedsWhole, Work
from sardonyx.lower.custom_native import NATIVE

Rule = Callable[[Work, ir.Node], None]

# Computed element by element, with broadcasting.
ELEMENTWISE = frozenset([
    "Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitShift",
    "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "CastLike", "Ceil", "Celu",
    "Clip", "Cos", "Cosh", "Div", "Elu", "Equal", "Erf", "Exp", "Floor", "Gelu", "Greater",
    "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN", "LeakyRelu", "Less",
    "LessOrEqual", "Log", "Max", "Mean", "Min", "Mish", "Mod", "Mul", "Neg", "Not", "Or", "PRelu",
    "Pow", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh",
    "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Swish", "Tan", "Tanh", "ThresholdedRelu",
    "Where", "Xor",
])  # fmt: skip
# One image or sequence after the other, along the first axis.
IMAGES = frozenset([
    "AveragePool", "Conv", "ConvTranspose", "DepthToSpace", "GlobalAveragePool", "GlobalLpPool",
    "GlobalMaxPool", "GroupNormalization", "InstanceNormalization", "LRN", "LpPool", "MaxPool",
    "SpaceToDepth",
])  # fmt: skip
# Along the attribute `axis` alone, by default the last.
ALONG = {"Softmax": -1, "LogSoftmax": -1, "Hardmax": -1, "LpNormalization": -1}
# Along `axis` and what follows it.
FROM = {"LayerNormalization": -1, "RMSNormalization": -1}


def parted(work: Work, node: ir.Node) -> None:
    """Settle a node of which some inputs are parted."""
    if node.domain == NATIVE:
        rule = NATIVE_RULES.get(node.op_type)
    elif node.domain == "" and node.op_type in ELEMENTWISE:
        rule = elementwise
    elif node.domain == "" and node.op_type in IMAGES:
        rule = first_axis
    else:
        rule = RULES.get(node.op_type) if node.domain == "" else None
    if rule is None:
        raise NeedsWhole
    rule(work, node)


# -- words of the rules ---------------------------------------------------------------


def rank_of(value: ir.Value | None) -> int:
    if value is None or value.shape is None:
        raise NeedsWhole
    return len(value.shape)


def axis_of(work: Work, value: ir.Value | None) -> int | None:
    return None if value is None else work.axes.get(value)


def give(work: Work, node: ir.Node, axis: int) -> None:
    for value in node.outputs:
        work.axes[value] = axis


def only_first(work: Work, node: ir.Node) -> int:
    """The axis of the first input, where no other is parted."""
    axis = axis_of(work, node.inputs[0])
    if axis is None or any(axis_of(work, v) is not None for v in node.inputs[1:]):
        raise NeedsWhole
    return axis


def numbers(value: ir.Value | None) -> list[int]:
    array = None if value is None else constant(value)
    if array is None:
        raise NeedsWhole
    return [int(n) for n in array.reshape(-1)]


def replace(work: Work, node: ir.Node, place: int, value: ir.Value) -> None:
    work.insert(node)
    node.replace_input_with(place, value)


def aligned(work: Work, node: ir.Node, places: Sequence[int]) -> int:
    """Broadcast inputs against each other: where they are parted, counted from the last axis.

    Inputs that are whole and have that axis give their part of it.
    """
    present = [i for i in places if i < len(node.inputs) and node.inputs[i] is not None]
    backs = set()
    for i in present:
        axis = axis_of(work, node.inputs[i])
        if axis is not None:
            backs.add(axis - rank_of(node.inputs[i]))
    if len(backs) != 1:
        raise NeedsWhole
    (back,) = backs
    ranks = {i: rank_of(node.inputs[i]) for i in present}
    for i in present:
        value = node.inputs[i]
        assert value is not None and value.shape is not None
        if value in work.axes or ranks[i] < -back or value.shape[back] == 1:
            continue
        replace(work, node, i, work.own(value, ranks[i] + back))
    return back


def after_output(work: Work, node: ir.Node, change: Callable[[ir.Value], ir.Value]) -> None:
    """Let everything that reads the first output of a node read a function of it."""
    value = node.outputs[0]
    uses = list(value.uses())
    is_output = value.is_graph_output()
    result = change(value)
    result.type, result.shape = value.type, value.shape
    for use in uses:
        use.node.replace_input_with(use.idx, result)
    if is_output:
        places = [i for i, v in enumerate(work.graph.outputs) if v is value]
        name, value.name = value.name, work.op.fresh(f"{value.name}/part")
        result.name = name
        for place in places:
            work.graph.outputs[place] = result


# -- element by element, row by row -----------------------------------------------------


def elementwise(work: Work, node: ir.Node) -> None:
    back = aligned(work, node, range(len(node.inputs)))
    give(work, node, rank_of(node.outputs[0]) + back)


def first_axis(work: Work, node: ir.Node) -> None:
    if only_first(work, node) != 0:
        raise NeedsWhole
    give(work, node, 0)


def along(work: Work, node: ir.Node) -> None:
    axis, rank = only_first(work, node), rank_of(node.inputs[0])
    changed = node.attributes.get_int("axis", ALONG[node.op_type]) % rank
    if axis == changed:
        raise NeedsWhole
    give(work, node, axis)


def layer_norm(work: Work, node: ir.Node) -> None:
    axis, rank = only_first(work, node), rank_of(node.inputs[0])
    if axis >= node.attributes.get_int("axis", -1) % rank:
        raise NeedsWhole
    give(work, node, axis)


def cumulative(work: Work, node: ir.Node) -> None:
    axis, rank = only_first(work, node), rank_of(node.inputs[0])
    if numbers(node.inputs[1])[0] % rank == axis:
        raise NeedsWhole
    give(work, node, axis)


def arg_max(work: Work, node: ir.Node) -> None:
    axis, rank = only_first(work, node), rank_of(node.inputs[0])
    changed = node.attributes.get_int("axis", 0) % rank
    if axis == changed:
        raise NeedsWhole
    keeps = node.attributes.get_int("keepdims", 1)
    give(work, node, axis if keeps or axis < changed else axis - 1)


def one_hot(work: Work, node: ir.Node) -> None:
    axis, rank = only_first(work, node), rank_of(node.inputs[0])
    new = node.attributes.get_int("axis", -1) % (rank + 1)
    give(work, node, axis if axis < new else axis + 1)


def batch_norm(work: Work, node: ir.Node) -> None:
    if axis_of(work, node.inputs[0]) != 0:
        raise NeedsWhole
    if not node.attributes.get_int("training_mode", 0):
        return first_axis(work, node)
    if node.attributes.get_float("momentum", 0.9) != 0.0:
        raise NeedsWhole
    x, scale, bias = node.inputs[:3]
    assert x is not None and scale is not None and bias is not None
    if any(v in work.axes for v in (scale, bias)):
        raise NeedsWhole
    op, rank = work.op, rank_of(x)
    axes = [a for a in range(rank) if a != 1]
    columns = list(range(1, rank - 1))

    def column(value: ir.Value) -> ir.Value:
        return op.Unsqueeze(value, columns) if columns else value  # type: ignore[no-any-return]

    epsilon = node.attributes.get_float("epsilon", 1e-5)
    image = x if x.dtype == scale.dtype else op.cast(x, scale.dtype)
    mean = work.all_mean(op.ReduceMean(image, axes, keepdims=0))
    away = op.Sub(image, column(mean))
    variance = work.all_mean(op.ReduceMean(op.Mul(away, away), axes, keepdims=0))
    small = op.const(epsilon, scale.dtype)
    factor = op.Div(scale, op.Sqrt(op.Add(variance, small)))
    y = op.Add(op.Mul(away, column(factor)), column(bias))
    y = y if x.dtype == scale.dtype else op.cast(y, x.dtype)
    work.insert(node)
    results = (y, mean, variance)[: len(node.outputs)]
    for old, new in zip(node.outputs, results, strict=True):
        substitute(work, old, new)
    work.axes[y] = 0
    work.graph.remove(node, safe=True)
    return None


def substitute(work: Work, old: ir.Value, new: ir.Value) -> None:
    """`new` in the place of `old`, which has its name from now on."""
    name = old.name
    new.type, new.shape = old.type, old.shape
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    old.name = work.op.fresh(f"{name}/before")
    new.name = name


def recurrent(work: Work, node: ir.Node) -> None:
    """X is time × rows; initial states are directions × rows."""
    if node.attributes.get_int("layout", 0) or axis_of(work, node.inputs[0]) != 1:
        raise NeedsWhole
    states = {4: 0, 5: 1, 6: 1}
    for place, value in enumerate(node.inputs):
        axis = axis_of(work, value)
        if place and axis is not None and axis != states.get(place):
            raise NeedsWhole
    for place, axis in states.items():
        value = node.inputs[place] if place < len(node.inputs) else None
        if value is not None and value not in work.axes:
            replace(work, node, place, work.own(value, axis))
    for value, axis in zip(node.outputs, (2, 1, 1), strict=False):
        work.axes[value] = axis


# -- products ---------------------------------------------------------------------------


def matmul(work: Work, node: ir.Node) -> None:
    x, w = node.inputs
    ranks = rank_of(x), rank_of(w)
    axes = axis_of(work, x), axis_of(work, w)
    if min(ranks) < 2:
        raise NeedsWhole
    out = rank_of(node.outputs[0])
    if axes[1] is None and axes[0] == ranks[0] - 2:
        return give(work, node, out - 2)
    if axes[0] is None and axes[1] == ranks[1] - 1:
        return give(work, node, out - 1)
    if any(a is not None and a >= r - 2 for a, r in zip(axes, ranks, strict=True)):
        raise NeedsWhole
    return give(work, node, out + aligned(work, node, (0, 1)))


def gemm(work: Work, node: ir.Node) -> None:
    x, w = node.inputs[:2]
    if node.attributes.get_int("transA", 0) or axis_of(work, x) != 0 or w in work.axes:
        raise NeedsWhole
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is not None and rank_of(bias) == 2 and bias.shape[0] != 1 and bias not in work.axes:  # type: ignore[index]
        replace(work, node, 2, work.own(bias, 0))
    give(work, node, 0)


def linear(work: Work, node: ir.Node) -> None:
    axis = only_first(work, node)
    if axis == rank_of(node.inputs[0]) - 1:
        raise NeedsWhole
    give(work, node, axis)


def attention(work: Work, node: ir.Node) -> None:
    q, k, v = node.inputs[:3]
    axes, ranks = {axis_of(work, x) for x in (q, k, v)}, {rank_of(x) for x in (q, k, v)}
    if len(axes) != 1 or len(ranks) != 1 or None in axes:
        raise NeedsWhole
    (axis,), (rank,) = axes, ranks
    assert axis is not None
    if axis >= rank - 2:
        raise NeedsWhole
    aligned(work, node, range(len(node.inputs)))
    give(work, node, axis)


def einsum(work: Work, node: ir.Node) -> None:
    equation = node.attributes["equation"].value.replace(" ", "")
    if "." in equation or "->" not in equation:
        raise NeedsWhole
    sources, result = equation.split("->")
    terms = sources.split(",")
    letters = {t[a] for t, v in zip(terms, node.inputs) if (a := axis_of(work, v)) is not None}
    if len(letters) != 1 or not letters <= set(result):
        raise NeedsWhole
    (letter,) = letters
    places = {i: t.index(letter) for i, t in enumerate(terms) if letter in t}
    if any(t.count(letter) > 1 for t in terms):
        raise NeedsWhole
    for place, axis in places.items():
        value = node.inputs[place]
        assert value is not None
        if value not in work.axes:
            replace(work, node, place, work.own(value, axis))
    give(work, node, result.index(letter))


# -- sums over rows ---------------------------------------------------------------------

SUMS = ("ReduceSum", "ReduceSumSquare", "ReduceL1")
REDUCTIONS = (*SUMS, "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2",
              "ReduceLogSum", "ReduceLogSumExp")  # fmt: skip


def reduction(work: Work, node: ir.Node) -> None:
    axis, rank = only_first(work, node), rank_of(node.inputs[0])
    has_axes = len(node.inputs) > 1 and node.inputs[1] is not None
    axes = {a % rank for a in numbers(node.inputs[1])} if has_axes else set()
    if not axes:
        if node.attributes.get_int("noop_with_empty_axes", 0):
            raise NeedsWhole
        axes = set(range(rank))
    keeps = node.attributes.get_int("keepdims", 1)
    if axis not in axes:
        return give(work, node, axis if keeps else axis - sum(a < axis for a in axes))
    if node.op_type in SUMS:
        return after_output(work, node, work.all_sum)
    if node.op_type != "ReduceMean":
        raise NeedsWhole
    return after_output(work, node, work.all_mean)


def cross_entropy(work: Work, node: ir.Node) -> None:
    scores, labels = node.inputs[:2]
    if axis_of(work, scores) != 0 or axis_of(work, labels) != 0 or len(node.inputs) > 3:
        raise NeedsWhole
    weight = node.inputs[2] if len(node.inputs) > 2 else None
    if weight in work.axes:
        raise NeedsWhole
    assert labels is not None and scores is not None
    reduction = node.attributes.get_string("reduction", "mean")
    for value in node.outputs[1:]:
        work.axes[value] = 0
    if reduction == "none":
        return give(work, node, 0)
    ignored = node.attributes.get("ignore_index")
    if reduction == "sum":
        return after_output(work, node, work.all_sum)
    if weight is None and ignored is None:
        return after_output(work, node, work.all_mean)
    node.attributes.add(ir.AttrString("reduction", "sum"))
    share = _weights_of_labels(work, labels, weight, ignored, scores.dtype)
    return after_output(work, node, lambda y: work.op.Div(work.all_sum(y), share))


def _weights_of_labels(
    work: Work,
    labels: ir.Value,
    weight: ir.Value | None,
    ignored: ir.Attr | None,
    dtype: ir.DataType | None,
) -> ir.Value:
    """The sum of the weights of all labels that count."""
    op = work.op
    counts = None
    if ignored is not None:
        counts = op.Not(op.Equal(labels, op.const(ignored.value, labels.dtype)))
        labels = op.Where(counts, labels, op.const(0, labels.dtype))
    factors = [] if counts is None else [op.cast(counts, dtype)]
    if weight is not None:
        factors.append(op.Gather(weight, labels, axis=0))
    each = factors[0] if len(factors) == 1 else op.Mul(*factors)
    return work.all_sum(op.ReduceSum(each, keepdims=0))


# -- sizes and shapes -------------------------------------------------------------------


def shape(work: Work, node: ir.Node) -> None:
    """The sizes of the whole tensor."""
    axis, rank = only_first(work, node), rank_of(node.inputs[0])
    start = node.attributes.get_int("start", 0)
    end = node.attributes.get_int("end", rank)
    factors = [work.world.size if a == axis else 1 for a in range(rank)][start:end]
    if any(f > 1 for f in factors):
        times = work.op.const(np.array(factors, np.int64))
        after_output(work, node, lambda y: work.op.Mul(y, times))


def size(work: Work, node: ir.Node) -> None:
    only_first(work, node)
    times = work.op.const(np.int64(work.world.size))

    def change(value: ir.Value) -> ir.Value:
        result = work.op.Mul(value, times)
        work.counts.add(result)
        return result  # type: ignore[no-any-return]

    after_output(work, node, change)


def number_rows(work: Work, node: ir.Node) -> None:
    """Range over the elements of a parted tensor: those of this part."""
    start, limit, step = node.inputs
    if limit not in work.counts or numbers(start) != [0] or numbers(step) != [1]:
        raise NeedsWhole
    op, world = work.op, work.world
    each = op.Div(limit, op.const(np.int64(world.size)))
    first = op.Mul(each, op.const(np.int64(world.rank)))
    replace(work, node, 0, first)
    replace(work, node, 1, op.Add(first, each))
    work.insert(node)
    give(work, node, 0)


def reshape(work: Work, node: ir.Node) -> None:
    x, sizes = node.inputs
    axis, new = only_first(work, node), node.outputs[0]
    before, after = dims(x), dims(new)
    place = _reshaped_axis(before, axis, after, work.world.size)
    _local_size(work, node, 1, sizes, place, keeps_zero=place == axis)
    give(work, node, place)


def _reshaped_axis(
    before: list[int | str | None], axis: int, after: list[int | str | None], parts: int
) -> int:
    """Where the parts are in a tensor of another shape: they are of consecutive elements."""
    if any(d != 1 for d in before[:axis]):
        same = before[:axis] == after[:axis] and None not in before[:axis]
        if same and len(after) > axis and after[axis] == before[axis] is not None:
            return axis
        raise NeedsWhole
    for place, dim in enumerate(after):
        if dim == 1:
            continue
        if isinstance(dim, int) and dim % parts:
            raise NeedsWhole
        return place
    raise NeedsWhole


def _local_size(
    work: Work, node: ir.Node, place: int, sizes: ir.Value | None, axis: int, keeps_zero: bool
) -> None:
    """Divide one of the sizes that a node is given by the number of parts."""
    if sizes is None:
        raise NeedsWhole
    parts, array = work.world.size, constant(sizes)
    if array is not None:
        number = int(array[axis])
        if number == -1 or (number == 0 and keeps_zero):
            return
        if number <= 0 or number % parts:
            raise NeedsWhole
        local = array.copy()
        local[axis] = number // parts
        replace(work, node, place, work.op.const(local))
        return
    piece = _piece(sizes, axis)
    known = None if piece is None else constant(piece)
    if known is not None:
        number = int(known.reshape(-1)[0])
        if number == -1 or (number == 0 and keeps_zero):
            return
        if number <= 0 or number % parts:
            raise NeedsWhole
    elif piece is None and sizes.producer() is not None and not _has_sizes(sizes):
        raise NeedsWhole
    length = dims(sizes)[0]
    if not isinstance(length, int):
        raise NeedsWhole
    factors = np.ones(length, np.int64)
    factors[axis] = parts
    replace(work, node, place, work.op.Div(sizes, work.op.const(factors)))


def _piece(sizes: ir.Value, axis: int) -> ir.Value | None:
    """The part of a Concat that has the size of an axis, where each part has one."""
    node = sizes.producer()
    if node is None or node.op_type != "Concat":
        return None
    parts = list(node.inputs)
    if any(v is None or dims(v) != [1] for v in parts) or axis >= len(parts):
        return None
    return parts[axis]


def _has_sizes(sizes: ir.Value) -> bool:
    """Whether a vector is that of a shape, in which no number has another meaning."""
    node = sizes.producer()
    while node is not None and node.op_type in ("Mul", "Identity"):
        first = node.inputs[0]
        node = None if first is None else first.producer()
    return node is not None and node.op_type == "Shape"


def dims(value: ir.Value | None) -> list[int | str | None]:
    if value is None or value.shape is None:
        raise NeedsWhole
    return [d if isinstance(d, int) else d.value for d in value.shape]


def flatten(work: Work, node: ir.Node) -> None:
    axis, rank = only_first(work, node), rank_of(node.inputs[0])
    at = node.attributes.get_int("axis", 1) % (rank + 1)
    before = dims(node.inputs[0])
    if axis < at:
        if any(d != 1 for d in before[:axis]):
            raise NeedsWhole
        return give(work, node, 0)
    if any(d != 1 for d in before[at:axis]):
        raise NeedsWhole
    return give(work, node, 1)


def transpose(work: Work, node: ir.Node) -> None:
    axis, rank = only_first(work, node), rank_of(node.inputs[0])
    perm = node.attributes.get("perm")
    order = list(perm.value) if perm is not None else list(range(rank))[::-1]
    give(work, node, order.index(axis))


def unsqueeze(work: Work, node: ir.Node) -> None:
    axis, rank = only_first(work, node), rank_of(node.outputs[0])
    new = {a % rank for a in numbers(node.inputs[1])}
    give(work, node, [a for a in range(rank) if a not in new][axis])


def squeeze(work: Work, node: ir.Node) -> None:
    axis, rank = only_first(work, node), rank_of(node.inputs[0])
    gone = {a % rank for a in numbers(node.inputs[1] if len(node.inputs) > 1 else None)}
    if axis in gone:
        raise NeedsWhole
    give(work, node, axis - sum(a < axis for a in gone))


def expand(work: Work, node: ir.Node) -> None:
    x, sizes = node.inputs
    axis, rank, out = only_first(work, node), rank_of(x), rank_of(node.outputs[0])
    place = axis - rank + out
    (length,) = dims(sizes)
    if not isinstance(length, int):
        raise NeedsWhole
    if place - out + length >= 0:
        known = constant(sizes) if sizes is not None else None
        at = place - out + length
        if known is None or int(known[at]) != 1:
            _local_size(work, node, 1, sizes, at, keeps_zero=False)
    give(work, node, place)


def tile(work: Work, node: ir.Node) -> None:
    axis = only_first(work, node)
    if numbers(node.inputs[1])[axis] != 1:
        raise NeedsWhole
    give(work, node, axis)


def concat(work: Work, node: ir.Node) -> None:
    rank = rank_of(node.outputs[0])
    axes = {a for v in node.inputs if (a := axis_of(work, v)) is not None}
    if len(axes) != 1 or node.attributes.get_int("axis", 0) % rank in axes:
        raise NeedsWhole
    (axis,) = axes
    for place, value in enumerate(node.inputs):
        if value is not None and value not in work.axes:
            replace(work, node, place, work.own(value, axis))
    give(work, node, axis)


def split(work: Work, node: ir.Node) -> None:
    axis, rank = only_first(work, node), rank_of(node.inputs[0])
    if node.attributes.get_int("axis", 0) % rank == axis:
        raise NeedsWhole
    give(work, node, axis)


def slice_(work: Work, node: ir.Node) -> None:
    axis, rank = only_first(work, node), rank_of(node.inputs[0])
    given = node.inputs[3] if len(node.inputs) > 3 else None
    axes = numbers(given) if given is not None else list(range(len(numbers(node.inputs[1]))))
    if axis in {a % rank for a in axes}:
        raise NeedsWhole
    give(work, node, axis)


def pad(work: Work, node: ir.Node) -> None:
    axis, rank = only_first(work, node), rank_of(node.inputs[0])
    given = node.inputs[3] if len(node.inputs) > 3 else None
    axes = [a % rank for a in numbers(given)] if given is not None else list(range(rank))
    pads = numbers(node.inputs[1])
    if axis in axes and any(pads[axes.index(axis) + k * len(axes)] for k in (0, 1)):
        raise NeedsWhole
    give(work, node, axis)


def gather(work: Work, node: ir.Node) -> None:
    data, indices = node.inputs
    rank = rank_of(data)
    along = node.attributes.get_int("axis", 0) % rank
    of_data, of_indices = axis_of(work, data), axis_of(work, indices)
    if of_data is None and of_indices is not None:
        return give(work, node, along + of_indices)
    if of_indices is not None or of_data is None or of_data == along:
        raise NeedsWhole
    return give(work, node, of_data if of_data < along else of_data + rank_of(indices) - 1)


def gather_elements(work: Work, node: ir.Node) -> None:
    data, indices = node.inputs
    axes = {axis_of(work, data), axis_of(work, indices)}
    if len(axes) != 1 or None in axes:
        raise NeedsWhole
    (axis,) = axes
    assert axis is not None
    if node.attributes.get_int("axis", 0) % rank_of(data) == axis:
        raise NeedsWhole
    give(work, node, axis)


RULES: dict[str, Rule] = {
    **dict.fromkeys(ALONG, along),
    **dict.fromkeys(FROM, layer_norm),
    **dict.fromkeys(REDUCTIONS, reduction),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), recurrent),
    **dict.fromkeys(("ArgMax", "ArgMin"), arg_max),
    **dict.fromkeys(("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"), cross_entropy),
    "BatchNormalization": batch_norm,
    "Concat": concat,
    "CumSum": cumulative,
    "Einsum": einsum,
    "Expand": expand,
    "Flatten": flatten,
    "Gather": gather,
    "GatherElements": gather_elements,
    "Gemm": gemm,
    "MatMul": matmul,
    "OneHot": one_hot,
    "Pad": pad,
    "Range": number_rows,
    "Reshape": reshape,
    "Shape": shape,
    "Size": size,
    "Slice": slice_,
    "Split": split,
    "Squeeze": squeeze,
    "Tile": tile,
    "Transpose": transpose,
    "Unsqueeze": unsqueeze,
}
NATIVE_RULES: dict[str, Rule] = {
    "Linear": linear,
    "DotProductAttention": attention,
    "Softmax": along,
}
