"""Translations of torch operators that an exporter for inference would fold away.

In evaluation mode torch decomposes dropout into nothing, and normalization into arithmetic.
`mark` replaces such nodes of an exported program by operators of our own, which the exporter keeps,
and `TRANSLATIONS` says how they, attention and recurrent layers are written in ONNX.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnxscript import opset18 as op

from sardonyx.importers.torch import cross_entropy, recurrent
from sardonyx.importers.torch.numbers import number
from sardonyx.importers.torch.parts import write_slices

aten = torch.ops.aten
ALPHA = 1.7580993408473766  # the scale of SELU times its alpha
LIBRARY = torch.library.Library("sardonyx", "DEF")
LIBRARY.define("dropout(Tensor x, float p) -> Tensor")
LIBRARY.define("channel_dropout(Tensor x, float p) -> Tensor")
LIBRARY.define("alpha_dropout(Tensor x, float p) -> Tensor")
LIBRARY.define("channel_alpha_dropout(Tensor x, float p) -> Tensor")
LIBRARY.define("row_dropout(Tensor x, float p, bool scaled, bool per_row) -> Tensor")
LIBRARY.define("stop(Tensor x) -> Tensor")
LIBRARY.define(
    "batch_norm(Tensor x, Tensor? weight, Tensor? bias, Tensor mean, Tensor var, float momentum,"
    " float eps) -> Tensor"
)
LIBRARY.define("grouped_mm(Tensor x, Tensor weight, Tensor ends) -> Tensor")
LIBRARY.define(
    "cross_entropies(Tensor x, Tensor target, Tensor? weight, int ignore_index, float smoothing)"
    " -> Tensor"
)
STEPS = (
    "Tensor[] weights, bool has_biases, int num_layers, float dropout, bool train,"
    " bool bidirectional, bool batch_first"
)
LIBRARY.define(f"lstm(Tensor x, Tensor[] states, {STEPS}) -> (Tensor, Tensor, Tensor)")
for name in ("gru", "rnn_tanh", "rnn_relu"):
    LIBRARY.define(f"{name}(Tensor x, Tensor state, {STEPS}) -> (Tensor, Tensor)")


def _same(x: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(x)


def _in_inference(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    var: torch.Tensor,
    momentum: float,
    eps: float,
) -> torch.Tensor:
    return torch.nn.functional.batch_norm(x, mean, var, weight, bias, False, momentum, eps)


for name, kernel in (
    ("dropout", lambda x, p: x.clone()),
    ("channel_dropout", lambda x, p: x.clone()),
    ("alpha_dropout", lambda x, p: x.clone()),
    ("channel_alpha_dropout", lambda x, p: x.clone()),
    ("row_dropout", lambda x, p, scaled, per_row: x.clone()),
    ("stop", lambda x: x.clone()),
    ("batch_norm", _in_inference),
):
    LIBRARY.impl(name, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"sardonyx::{name}", _same, lib=LIBRARY)


def _products(x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[0], weight.shape[2])


def _losses(
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    ignore_index: int,
    smoothing: float,
) -> torch.Tensor:
    return x.new_empty([*x.shape[:1], *x.shape[2:]] if x.dim() > 1 else [])


def _states(
    x: torch.Tensor, states: Any, weights: Any, has_biases: bool, num_layers: int, dropout: float,
    train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """What a recurrent layer returns; torch runs it step by step, which fixes their number."""
    states = [states] if isinstance(states, torch.Tensor) else states
    width = states[0].shape[2] * (2 if bidirectional else 1)
    return x.new_empty(*x.shape[:2], width), *(torch.empty_like(state) for state in states)


for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
    torch.library.register_fake(f"sardonyx::{name}", _states, lib=LIBRARY)
torch.library.register_fake("sardonyx::grouped_mm", _products, lib=LIBRARY)
torch.library.register_fake("sardonyx::cross_entropies", _losses, lib=LIBRARY)


# -- marking ----------------------------------------------------------------------------


def mark(program: torch.export.ExportedProgram) -> list[torch.fx.Node]:
    """Replace dropout and batch normalization by operators that the exporter keeps.

    Returns the nodes that draw random numbers also in evaluation mode, which cannot be taken over.
    """
    always_random = []
    for node in _calls(program):
        if node.target in DROPOUTS:
            first = node.target._schema.arguments[0].name  # type: ignore[union-attr]
            x, p, train = _arguments(node, (first, "p", "train"))
            if train and p:
                always_random.append(node)
            _replace(node, DROPOUTS[node.target], (x, p))
        elif node.target is aten.batch_norm.default:
            names = ("input", "weight", "bias", "running_mean", "running_var")
            *tensors, training, momentum, eps, _ = _arguments(
                node, (*names, "training", "momentum", "eps", "cudnn_enabled")
            )
            if not training and tensors[3] is not None and tensors[4] is not None:
                marked = torch.ops.sardonyx.batch_norm.default
                _replace(node, marked, (*tensors, momentum, eps))
        elif node.target is aten.cross_entropy_loss.default:
            _keep_losses(node)
        elif node.target in (aten.chunk.default, aten.split.Tensor):
            write_slices(node)
        elif node.target in CONVERTED_FIRST:
            _convert_first(node)
        elif _begins_with_number(node):
            _as_tensor(node)
        elif node.target is aten.squeeze.default:
            # NOTE [one row]: torch has captured that a free size is not 1, and drops other axes.
            sizes = enumerate(node.args[0].meta["val"].shape)  # type: ignore[union-attr]
            axes = [axis for axis, size in sizes if isinstance(size, int) and size == 1]
            _replace(node, aten.squeeze.dims, (node.args[0], axes))
        elif node.target is aten.detach.default:
            _replace(node, torch.ops.sardonyx.stop.default, node.args[:1])
        elif node.target in READ_OUT and node.args[0].meta["val"].is_floating_point():  # type: ignore[union-attr]
            _stop_operand(node)
        elif node.target is torch.ops.higher_order.wrap_with_set_grad_enabled:
            if node.args[0] is False:
                _stop_outputs(node)
        elif node.target in RANDOM_DRAWS:
            always_random.append(node)
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            module.recompile()
    return [node for node in always_random if _reaches_output(node)]


def _keep_losses(node: torch.fx.Node) -> None:
    """Replace the cross entropy of each row, of which torch's exporter says that it is one number.

    It says so where the number of rows is free (torch 2.13), and leaves out sums of it.
    """
    names = ("self", "target", "weight", "reduction", "ignore_index", "label_smoothing")
    x, target, weight, reduction, *rest = _arguments(node, names)
    if reduction == 0:
        _replace(node, torch.ops.sardonyx.cross_entropies.default, (x, target, weight, *rest))


def _convert_first(node: torch.fx.Node) -> None:
    """Convert integers to the type of the result before a difference or a mean, not after it.

    Torch's exporter fails at a float minus integers, and computes means of integers as integers.
    """
    x, dtype = node.args[0], node.meta["val"].dtype
    if x.meta["val"].dtype == dtype:  # type: ignore[union-attr]
        return
    with node.graph.inserting_before(node):
        converted = node.graph.call_function(aten._to_copy.default, (x,), {"dtype": dtype})
        converted.meta = {**node.meta, "val": x.meta["val"].to(dtype)}  # type: ignore[union-attr]
    node.args = (converted, *node.args[1:])
    node.kwargs = {k: v for k, v in node.kwargs.items() if k != "dtype"}


def _begins_with_number(node: torch.fx.Node) -> bool:
    """Whether a number of Python's is where an operator takes a tensor first, as in `7 // x`."""
    if not isinstance(node.target, torch._ops.OpOverload) or not node.args:
        return False
    arguments = node.target._schema.arguments
    is_tensor = bool(arguments) and isinstance(arguments[0].type, torch.TensorType)
    return is_tensor and isinstance(node.args[0], (int, float))


def _as_tensor(node: torch.fx.Node) -> None:
    value = node.meta["val"]
    settings = {"dtype": value.dtype}
    with node.graph.inserting_before(node):
        tensor = node.graph.call_function(aten.scalar_tensor.default, node.args[:1], settings)
        tensor.meta = {**node.meta, "val": value.new_empty(())}
    node.args = (tensor, *node.args[1:])


def _stop_operand(node: torch.fx.Node) -> None:
    """Let no gradient into a tensor that becomes a number of Python."""
    with node.graph.inserting_before(node):
        stopped = node.graph.call_function(torch.ops.sardonyx.stop.default, node.args[:1])
    stopped.meta = dict(node.args[0].meta)  # type: ignore[union-attr]
    node.args = (stopped, *node.args[1:])


def _stop_outputs(region: torch.fx.Node) -> None:
    """Let no gradient into a region of `torch.no_grad()`.

    A weight that it writes to in place stays one that gradients arrive at.
    """
    written = _written_arguments(region)
    for part in [u for u in region.users if u.target is operator.getitem]:
        value = part.meta.get("val")
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            continue
        if written.get(part.args[1]) == "placeholder":
            continue
        with part.graph.inserting_after(part):
            stopped = part.graph.call_function(torch.ops.sardonyx.stop.default, (part,))
        stopped.meta = dict(part.meta)
        part.replace_all_uses_with(stopped, lambda user, stop=stopped: user is not stop)


def _reaches_output(node: torch.fx.Node) -> bool:
    """Whether a result depends on a node; Hugging Face's layer drop draws what only training reads.

    A node that is written to in place counts as read.
    """
    stack, seen = [node], {node}
    while stack:
        for user in stack.pop().users:
            is_write = user.op == "call_function" and getattr(
                getattr(user.target, "_schema", None), "is_mutable", False
            )
            if user.op == "output" or is_write:
                return True
            if user not in seen:
                seen.add(user)
                stack.append(user)
    return False


def _written_arguments(region: torch.fx.Node) -> dict[Any, str]:
    """The results of a region that are arguments of it, written to in place: what those are."""
    _, name, *operands = region.args
    owner: Any = region.graph.owning_module
    inside: torch.fx.Graph = getattr(owner, name.target).graph  # type: ignore[union-attr]
    arguments = [n for n in inside.nodes if n.op == "placeholder"]
    table = {}
    for place, node in enumerate(inside.output_node().args[0]):  # type: ignore[arg-type, var-annotated]
        is_written = False
        while isinstance(node, torch.fx.Node) and _is_mutable(node):
            node, is_written = node.args[0], True
        if is_written and node in arguments:
            table[place] = operands[arguments.index(node)].op  # type: ignore[union-attr]
    return table


def _is_mutable(node: torch.fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def mark_attention(program: torch.export.ExportedProgram, ratios: Sequence[float]) -> list[float]:
    """Give each attention the dropout that it has in training mode, in the order of calls.

    Returns the ratios that have found no place.
    """
    nodes = [n for n in _calls(program) if n.target is aten.scaled_dot_product_attention.default]
    if len(nodes) != len(ratios):
        return [r for r in ratios if r]
    for node, ratio in zip(nodes, ratios, strict=True):
        if ratio:
            names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
            query, key, value, mask, _, causal = _arguments(node, names)
            kwargs = {k: v for k, v in node.kwargs.items() if k in ("scale", "enable_gqa")}
            node.args, node.kwargs = (query, key, value, mask, ratio, causal), kwargs
    return []


def _calls(program: torch.export.ExportedProgram) -> Iterator[torch.fx.Node]:
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            yield from [n for n in module.graph.nodes if n.op == "call_function"]


def _arguments(node: torch.fx.Node, names: Sequence[str]) -> list[Any]:
    """The arguments of a call by position, however they were passed."""
    schema = {a.name: a for a in node.target._schema.arguments}  # type: ignore[union-attr]
    values = dict(zip(schema, node.args, strict=False)) | dict(node.kwargs)
    return [values.get(n, schema[n].default_value if n in schema else None) for n in names]


def _replace(node: torch.fx.Node, target: Any, arguments: tuple[Any, ...]) -> None:
    if node.target._schema.is_mutable:  # type: ignore[union-attr]
        # Written in place: every later reader of the input reads the result.
        order = {n: i for i, n in enumerate(node.graph.nodes)}
        arguments[0].replace_all_uses_with(node, lambda user: order[user] > order[node])
    node.target, node.args, node.kwargs = target, arguments, {}


DROPOUTS = {
    aten.dropout.default: torch.ops.sardonyx.dropout.default,
    aten.dropout_.default: torch.ops.sardonyx.dropout.default,
    aten.feature_dropout.default: torch.ops.sardonyx.channel_dropout.default,
    aten.feature_dropout_.default: torch.ops.sardonyx.channel_dropout.default,
    aten.alpha_dropout.default: torch.ops.sardonyx.alpha_dropout.default,
    aten.alpha_dropout_.default: torch.ops.sardonyx.alpha_dropout.default,
    aten.feature_alpha_dropout.default: torch.ops.sardonyx.channel_alpha_dropout.default,
    aten.feature_alpha_dropout_.default: torch.ops.sardonyx.channel_alpha_dropout.default,
}
CONVERTED_FIRST = {aten.rsub.Scalar, aten.mean.dim, aten.mean.default}
READ_OUT = {aten.item.default, aten._local_scalar_dense.default}
RANDOM_DRAWS = {
    aten.rand.default, aten.randn.default, aten.rand_like.default, aten.randn_like.default,
    aten.bernoulli.default, aten.bernoulli.p, aten.bernoulli_.float, aten.normal_.default,
    aten.uniform_.default, aten.randint.default, aten.randint.low, aten.randperm.default,
    aten.multinomial.default, aten.normal.Tensor_Tensor, aten.normal.float_Tensor,
    aten.normal.Tensor_float,
}  # fmt: skip


# -- translations -----------------------------------------------------------------------


def dropout(x: Any, p: float) -> Any:
    return recurrent.dropped(x, p)


def channel_dropout(x: Any, p: float) -> Any:
    """Whole channels are dropped together: one number for each, multiplied with the channel."""
    if not p:
        return op.Identity(x)
    return op.Mul(x, recurrent.dropped(_ones(x, per_channel=True), p))


def row_dropout(x: Any, p: float, scaled: bool, per_row: bool) -> Any:
    """Whole rows are dropped together, each by itself or all of them."""
    rank = len(x.shape)
    one = number(1.0, x)
    sizes = op.Constant(value_ints=[1] * rank)
    if per_row:
        sizes = op.Concat(
            op.Shape(x, start=0, end=1), op.Constant(value_ints=[1] * (rank - 1)), axis=0
        )
    mask = recurrent.dropped(op.Expand(one, sizes), p)
    return op.Mul(x, mask if scaled else op.Min(mask, one))


def _ones(x: Any, per_channel: bool) -> Any:
    """Ones in the shape of `x`, or one for each of its channels."""
    one = number(1.0, x)
    if not per_channel:
        return op.Expand(one, op.Shape(x))
    rest = op.Constant(value_ints=[1] * (len(x.shape) - 2))
    return op.Expand(one, op.Concat(op.Shape(x, start=0, end=2), rest, axis=0))


def alpha_dropout(x: Any, p: float) -> Any:
    return _alpha_dropped(x, p, per_channel=False)


def channel_alpha_dropout(x: Any, p: float) -> Any:
    return _alpha_dropped(x, p, per_channel=True)


def _alpha_dropped(x: Any, p: float, per_channel: bool) -> Any:
    """A mask is 0 or more than 1 in training, and 1 in inference, where `x` stays as it is."""
    if not p:
        return op.Identity(x)
    mask = recurrent.dropped(_ones(x, per_channel), p)
    a = 1.0 / math.sqrt((ALPHA * ALPHA * p + 1.0) * (1.0 - p)) if p < 1.0 else 0.0
    zero, one, scale, kept, lost = (
        number(value, x) for value in (0.0, 1.0, a, ALPHA * a * p, ALPHA * a * (p - 1.0))
    )
    trained = op.Where(op.Greater(mask, zero), op.Add(op.Mul(x, scale), kept), lost)
    return op.Where(op.Equal(mask, one), x, trained)


def cross_entropies(x: Any, target: Any, weight: Any, ignore_index: int, smoothing: float) -> Any:
    return cross_entropy.cross_entropy(x, target, weight, 0, ignore_index, smoothing)


def stop(x: Any) -> Any:
    return recurrent.stopped(x)


def embedding(
    weight: Any,
    indices: Any,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    rows = op.Gather(weight, indices, axis=0)
    if scale_grad_by_freq:
        rows = _shared_gradient(rows, weight, indices)
    if padding_idx < 0:
        return rows
    # The padding's row gets no gradient from here.
    is_padding = op.Equal(indices, op.CastLike(op.Constant(value_int=padding_idx), indices))
    last = op.Unsqueeze(is_padding, op.Constant(value_ints=[-1]))
    return op.Where(last, recurrent.stopped(rows), rows)


def _shared_gradient(rows: Any, weight: Any, indices: Any) -> Any:
    """The same rows, with gradients divided by how often a call reads each of them."""
    flat = op.Reshape(indices, op.Constant(value_ints=[-1]))
    ones = op.Expand(number(1.0, weight), op.Shape(flat))
    zeros = op.Expand(number(0.0, weight), op.Shape(weight, start=0, end=1))
    counts = op.ScatterElements(zeros, flat, ones, axis=0, reduction="add")
    counts = op.Unsqueeze(op.Gather(counts, indices, axis=0), op.Constant(value_ints=[-1]))
    fixed = recurrent.stopped(rows)
    return op.Add(fixed, op.Div(op.Sub(rows, fixed), counts))


def batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> Any:
    if weight is None:
        ones = op.Expand(op.Constant(value_float=1.0), op.Shape(mean))
        weight = op.CastLike(ones, mean)
    if bias is None:
        bias = op.CastLike(op.Expand(op.Constant(value_float=0.0), op.Shape(mean)), mean)
    # Rounded as a user writes it: 1 - 0.1 is 0.9, not 0.90000000000000002.
    share = float(f"{1.0 - momentum:.12g}")
    return op.BatchNormalization(x, weight, bias, mean, var, epsilon=eps, momentum=share)


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    rank = len(query.shape)
    if enable_gqa:
        key, value = (_repeated_heads(x, query) for x in (key, value))
    if scale is None:
        scale = 1.0 / math.sqrt(query.shape[-1])
    factor = _factor(scale, query)
    turned = op.Transpose(key, perm=[*range(rank - 2), rank - 1, rank - 2])
    scores = op.MatMul(op.Mul(query, factor), turned)
    zero = number(0.0, query)
    lowest = number(_lowest(query), query)
    if is_causal:
        attn_mask = _causal(query, key)
    if attn_mask is None:
        weights = op.Softmax(scores, axis=-1)
    else:
        # A row without any key has the weights 0, as in torch; infinities would make it NaN.
        dtype = attn_mask.dtype
        is_bool = is_causal or (dtype is not None and dtype.name == "BOOL")
        if is_bool:
            allowed, scores = attn_mask, op.Where(attn_mask, scores, lowest)
        else:
            floor = number(-math.inf, attn_mask)
            allowed = op.Greater(attn_mask, floor)
            scores = op.Add(scores, op.Where(allowed, attn_mask, lowest))
        weights = op.Where(allowed, op.Softmax(scores, axis=-1), zero)
    if dropout_p:
        weights = recurrent.dropped(weights, dropout_p)
    return op.MatMul(weights, value)


def _factor(scale: float, query: Any) -> Any:
    """The scale of attention, in float64 as one number for each column.

    onnxruntime makes a single number an attribute of the product that follows, which has 32 bits.
    """
    is_double = query.dtype is not None and query.dtype.name == "DOUBLE"
    if not is_double or not isinstance(query.shape[-1], int):
        return number(scale, query)
    column = ir.tensor(np.full(query.shape[-1], scale))
    return op.Constant(value=ir.serde.serialize_tensor(column))


def _lowest(query: Any) -> float:
    return -65504.0 if query.dtype is not None and query.dtype.name == "FLOAT16" else -3.0e38


def _causal(query: Any, key: Any) -> Any:
    """True where a key is not after its query."""
    zero, one = op.Constant(value_int=0), op.Constant(value_int=1)
    rows = op.Range(zero, op.Squeeze(op.Shape(query, start=-2, end=-1)), one)
    columns = op.Range(zero, op.Squeeze(op.Shape(key, start=-2, end=-1)), one)
    last = op.Constant(value_ints=[1])
    return op.LessOrEqual(
        op.Unsqueeze(columns, op.Constant(value_ints=[0])), op.Unsqueeze(rows, last)
    )


def _repeated_heads(x: Any, query: Any) -> Any:
    """Each head of keys or values as often as queries share it."""
    rank, heads = len(x.shape), x.shape[-3]
    times = query.shape[-3] // heads
    if times == 1:
        return x
    wide = op.Expand(
        op.Unsqueeze(x, op.Constant(value_ints=[rank - 2])),
        op.Constant(value_ints=[times, 1, 1]),
    )
    shape = [0] * (rank - 3) + [heads * times, -1, x.shape[-1]]
    return op.Reshape(wide, op.Constant(value_ints=shape))


TRANSLATIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.sardonyx.dropout.default: dropout,
    torch.ops.sardonyx.channel_dropout.default: channel_dropout,
    torch.ops.sardonyx.alpha_dropout.default: alpha_dropout,
    torch.ops.sardonyx.channel_alpha_dropout.default: channel_alpha_dropout,
    torch.ops.sardonyx.row_dropout.default: row_dropout,
    torch.ops.sardonyx.batch_norm.default: batch_norm,
    torch.ops.sardonyx.stop.default: stop,
    aten.embedding.default: embedding,
    aten.scaled_dot_product_attention.default: attention,
    aten.cross_entropy_loss.default: cross_entropy.cross_entropy,
    torch.ops.sardonyx.cross_entropies.default: cross_entropies,
    aten.lstm.input: recurrent.lstm,
    aten.gru.input: recurrent.gru,
    aten.rnn_tanh.input: recurrent.rnn_tanh,
    aten.rnn_relu.input: recurrent.rnn_relu,
    torch.ops.sardonyx.lstm.default: recurrent.lstm,
    torch.ops.sardonyx.gru.default: recurrent.gru,
    torch.ops.sardonyx.rnn_tanh.default: recurrent.rnn_tanh,
    torch.ops.sardonyx.rnn_relu.default: recurrent.rnn_relu,
}
