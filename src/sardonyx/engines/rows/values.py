"""Rules of operators that compute: along which axis their results are parted."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.engines.rows.work import (
    NeedsWhole,
    Work,
    after_output,
    aligned,
    axis_of,
    give,
    numbers,
    only_first,
    rank_of,
    replace,
)

# Along the attribute `axis` alone, by default the last.
ALONG = {"Softmax": -1, "LogSoftmax": -1, "Hardmax": -1, "LpNormalization": -1}
# Along `axis` and what follows it.
FROM = {"LayerNormalization": -1, "RMSNormalization": -1}


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
