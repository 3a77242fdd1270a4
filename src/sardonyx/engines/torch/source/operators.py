"""How operators that compute are written in torch. Layout and indexing: `layout.py`."""

from __future__ import annotations

import functools
import math
import re
from typing import Any

import onnx_ir as ir

from sardonyx.engines.torch.source.expression import (
    BITS,
    COMPARISON,
    NOT,
    POWER,
    PRODUCT,
    SUM,
    UNARY,
    Expression,
    Literal,
    binary,
    build,
)
from sardonyx.engines.torch.source.functional import padded
from sardonyx.engines.torch.source.layers import even
from sardonyx.engines.torch.source.layout import TYPES
from sardonyx.engines.torch.source.reading import NATIVE, RULES, Reader, Unwritten, op

# -- one operand ----------------------------------------------------------------------

UNARY_TEXT = {
    "Identity": "{0}",
    "Relu": "F.relu({0})",
    "Sigmoid": "torch.sigmoid({0})",
    "Tanh": "torch.tanh({0})",
    "Exp": "torch.exp({0})",
    "Log": "torch.log({0})",
    "Sqrt": "torch.sqrt({0})",
    "Abs": "{0}.abs()",
    "Erf": "torch.erf({0})",
    "Floor": "torch.floor({0})",
    "Ceil": "torch.ceil({0})",
    "Round": "torch.round({0})",
    "Sign": "torch.sign({0})",
    "Sin": "torch.sin({0})",
    "Cos": "torch.cos({0})",
    "Tan": "torch.tan({0})",
    "Sinh": "torch.sinh({0})",
    "Cosh": "torch.cosh({0})",
    "Asin": "torch.asin({0})",
    "Acos": "torch.acos({0})",
    "Atan": "torch.atan({0})",
    "Asinh": "torch.asinh({0})",
    "Acosh": "torch.acosh({0})",
    "Atanh": "torch.atanh({0})",
    "Softplus": "F.softplus({0})",
    "Softsign": "F.softsign({0})",
    "HardSwish": "F.hardswish({0})",
    "Mish": "F.mish({0})",
    "IsNaN": "torch.isnan({0})",
    "Det": "torch.linalg.det({0})",
}


def _unary(text: str, reader: Reader, node: ir.Node, x: ir.Value, **_: Any) -> Expression:
    return build(text, x)


for _name, _text in UNARY_TEXT.items():
    RULES["", _name] = functools.partial(_unary, _text)


@op("Neg")
def neg(reader, node, x):
    return build("-{0:85}", x, rank=UNARY)


@op("Not", "BitwiseNot")
def not_(reader, node, x):
    if x in reader.conditions:
        reader.conditions.add(node.outputs[0])
        return build("not {0:50}", x, rank=NOT)
    return build("~{0:85}", x, rank=UNARY)


@op("Reciprocal")
def reciprocal(reader, node, x):
    return binary("/", Literal(1), x, PRODUCT)


@op("Gelu")
def gelu(reader, node, x, *, approximate):
    if approximate not in ("none", "tanh"):
        raise Unwritten("an approximation that torch lacks")
    return build("F.gelu({0})" if approximate == "none" else 'F.gelu({0}, approximate="tanh")', x)


@op("Swish")
def swish(reader, node, x, *, alpha):
    if alpha == 1:
        return build("F.silu({0})", x)
    return build("{0:80} * torch.sigmoid({1} * {0:81})", x, Literal(alpha, "alpha"), rank=PRODUCT)


@op("LeakyRelu")
def leaky_relu(reader, node, x, *, alpha):
    return build("F.leaky_relu({0}, {1})", x, Literal(alpha, "slope"))


@op("Elu", "Celu")
def elu(reader, node, x, *, alpha):
    return build(f"F.{node.op_type.lower()}({{0}}, {{1}})", x, Literal(alpha, "alpha"))


@op("Selu")
def selu(reader, node, x, *, alpha, gamma):
    if abs(alpha - 1.67326319) > 1e-6 or abs(gamma - 1.05070102) > 1e-6:
        raise Unwritten("numbers that torch does not take")
    return build("F.selu({0})", x)


@op("HardSigmoid")
def hard_sigmoid(reader, node, x, *, alpha, beta):
    if abs(alpha - 1 / 6) < 1e-6 and beta == 0.5:
        return build("F.hardsigmoid({0})", x)
    return build("({0:80} * {1} + {2}).clamp(0, 1)", x, Literal(alpha), Literal(beta))


@op("PRelu")
def prelu(reader, node, x, slope):
    return build("torch.where({0:51} < 0, {0:80} * {1:81}, {0})", x, reader.operand(slope))


@op("Clip")
def clip(reader, node, x, min=None, max=None):
    if min is None and max is None:
        return build("{0}", x)
    if max is None:
        return build("{0}.clamp(min={1})", x, reader.operand(min))
    if min is None:
        return build("{0}.clamp(max={1})", x, reader.operand(max))
    return build("{0}.clamp({1}, {2})", x, reader.operand(min), reader.operand(max))


@op("Dropout")
def dropout(reader, node, x, ratio=None, mode=None, *, seed):
    share = 0.5 if ratio is None else reader.number(ratio)
    return build("F.dropout({0}, {1}, self.training)", x, Literal(share, "dropout"))


@op("Softmax", "LogSoftmax")
def softmax(reader, node, x, *, axis):
    name = {"Softmax": "softmax", "LogSoftmax": "log_softmax"}[node.op_type]
    return build(f"F.{name}({{0}}, dim={{1}})", x, Literal(reader.last_or_front(x, axis), "dim"))


# -- two operands and more --------------------------------------------------------------

SIGNS = {
    "Add": ("+", SUM),
    "Sub": ("-", SUM),
    "Mul": ("*", PRODUCT),
    "MatMul": ("@", PRODUCT),
    "And": ("&", BITS),
    "Or": ("|", BITS),
    "Xor": ("^", BITS),
    "BitwiseAnd": ("&", BITS),
    "BitwiseOr": ("|", BITS),
    "BitwiseXor": ("^", BITS),
    "Equal": ("==", COMPARISON),
    "Greater": (">", COMPARISON),
    "GreaterOrEqual": (">=", COMPARISON),
    "Less": ("<", COMPARISON),
    "LessOrEqual": ("<=", COMPARISON),
}


@op(*SIGNS)
def infix(reader, node, a, b):
    sign, rank = SIGNS[node.op_type]
    if rank == COMPARISON and reader.is_condition(node, a, b):
        return binary(sign, reader.operand(a), reader.operand(b), rank)
    left, right = reader.operands(a, b)
    number = right.value if isinstance(right, Literal) and sign == "+" else 0
    if isinstance(number, (int, float)) and number < 0:
        return binary("-", left, Literal(-number, right.hint), SUM)
    if rank == BITS and sign != "|":
        rank = BITS + 1  # `&` binds tighter than `|`; written with parentheses between them
    return binary(sign, left, right, rank)


@op("Div")
def div(reader, node, a, b):
    left, right = reader.operands(a, b)
    if reader.is_float(node.outputs[0]):
        return binary("/", left, right, PRODUCT)
    return build('torch.div({0}, {1}, rounding_mode="trunc")', left, right)


@op("Mod")
def mod(reader, node, a, b, *, fmod):
    name = "fmod" if fmod else "remainder"
    return build(f"torch.{name}({{0}}, {{1}})", *reader.operands(a, b))


@op("Pow")
def power(reader, node, a, b):
    exponent = reader.operand(b)
    if isinstance(exponent, Literal) and float(exponent.value).is_integer():
        exponent = Literal(int(exponent.value), "power")
    raised = build("{0:100} ** {1:90}", reader.operand(a), exponent, rank=POWER)
    if not reader.is_float(a) and reader.is_float(b):
        return build(f"{{0:100}}.to({TYPES[a.dtype][0]})", raised)  # type: ignore[index]
    return raised


@op("Max", "Min")
def extreme(reader, node, *xs):
    name = {"Max": "maximum", "Min": "minimum"}[node.op_type]
    side = {"Max": "min", "Min": "max"}[node.op_type]
    operands = reader.operands(*xs)
    numbers = [v for v in operands if not isinstance(v, ir.Value)]
    tensors = [v for v in operands if isinstance(v, ir.Value)]
    largest = build("{0}", tensors[0])
    for other in tensors[1:]:
        largest = build(f"torch.{name}({{0}}, {{1}})", largest, other)
    for number in numbers:
        largest = build(f"{{0}}.clamp({side}={{1}})", largest, number)
    return largest


@op("Sum", "Mean")
def total(reader, node, *xs):
    summed: Any = reader.operand(xs[0])
    for x in xs[1:]:
        summed = binary("+", summed, reader.operand(x), SUM)
    if node.op_type == "Mean":
        return binary("/", summed, Literal(len(xs)), PRODUCT)
    return summed if isinstance(summed, Expression) else build("{0}", summed)


@op("Where")
def where(reader, node, c, a, b):
    yes, no = reader.operand(a), reader.operand(b)
    numbers = not isinstance(yes, ir.Value) and not isinstance(no, ir.Value)
    if numbers and b.dtype not in (ir.DataType.FLOAT, ir.DataType.INT64):
        raise Unwritten("numbers of a type that torch does not give by itself")
    return build("torch.where({0}, {1}, {2})", c, yes, no)


@op("Linear", domain=NATIVE)
def linear(reader, node, x, w, b=None, *, transposed):
    product = binary("@", x, build("{0}.T", w) if transposed else w, PRODUCT)
    return product if b is None else binary("+", product, reader.operand(b), SUM)


@op("Gemm")
def gemm(
    reader, node, a, b, c = None, *, alpha,
    beta, transA, transB
):  # fmt: skip
    left: Any = build("{0}.T", a) if transA else a
    right: Any = build("{0}.T", b) if transB else b
    product = binary("@", left, right, PRODUCT)
    if alpha != 1:
        product = binary("*", product, Literal(alpha, "alpha"), PRODUCT)
    if c is None:
        return product
    bias = reader.operand(c)
    bias = bias if beta == 1 else binary("*", bias, Literal(beta, "beta"), PRODUCT)
    return binary("+", product, bias, SUM)


@op("Einsum")
def einsum(reader, node, *xs, equation):
    if not re.fullmatch(r"[A-Za-z.,> -]{1,200}", equation):
        raise Unwritten("an equation that torch does not take")
    places = ", ".join(f"{{{i}}}" for i in range(len(xs)))
    return build(f'torch.einsum("{equation}", {places})', *(reader.operand(x) for x in xs))


@op("DotProductAttention", domain=NATIVE)
def attention(
    reader, node, q, k, v, mask = None, *,
    scale, is_causal
):  # fmt: skip
    text = "F.scaled_dot_product_attention({0}, {1}, {2}"
    if mask is not None and reader.rank(mask) < 2:
        raise Unwritten("a mask of fewer than two axes")
    if mask is not None:
        text += ", attn_mask={3}"
    if is_causal:
        text += ", is_causal=True"
    width = reader.sizes(q)[-1]
    usual = isinstance(width, int) and abs(scale * width**0.5 - 1) < 1e-6
    if not usual:
        text += ", scale={4}"
    return build(text + ")", q, k, v, mask, Literal(scale, "scale"))


# -- reductions -------------------------------------------------------------------------

REDUCTIONS = {
    "ReduceMean": "mean",
    "ReduceSum": "sum",
    "ReduceMax": "amax",
    "ReduceMin": "amin",
    "ReduceLogSumExp": "logsumexp",
}


@op(*REDUCTIONS)
def reduce(
    reader, node, x, axes = None, *, keepdims,
    noop_with_empty_axes
):  # fmt: skip
    return _reduced(reader, build("{0}", x), x, REDUCTIONS[node.op_type], axes, keepdims)


@op("ReduceL2", "ReduceSumSquare", "ReduceL1")
def reduce_of(
    reader, node, x, axes = None, *, keepdims,
    noop_with_empty_axes
):  # fmt: skip
    inner = build("{0}.abs()" if node.op_type == "ReduceL1" else "{0}.square()", x)
    reduced = _reduced(reader, inner, x, "sum", axes, keepdims)
    return build("{0}.sqrt()", reduced) if node.op_type == "ReduceL2" else reduced


def _reduced(
    reader: Reader, inner: Expression, x: ir.Value, name: str, axes: Any, keepdims: int
) -> Expression:
    named = range(reader.rank(x)) if axes is None else reader.axes(x, reader.integers(axes))
    listed = sorted(set(named))
    if not listed:
        raise Unwritten("no axes")
    dim: Any = tuple(listed) if len(listed) > 1 else reader.last_or_front(x, listed[0])
    keep = ", keepdim=True" if keepdims else ""
    return build(f"{{0}}.{name}(dim={{1}}{keep})", inner, Literal(dim, "dim"))


@op("ArgMax", "ArgMin")
def argument(reader, node, x, *, axis, keepdims, select_last_index):
    if select_last_index:
        raise Unwritten("the last of equal extremes")
    keep = ", keepdim=True" if keepdims else ""
    dim = Literal(reader.last_or_front(x, axis), "dim")
    return build(f"{{0}}.{node.op_type.lower()}(dim={{1}}{keep})", x, dim)


@op("CumSum")
def cumsum(reader, node, x, axis, *, exclusive, reverse):
    if exclusive or reverse:
        raise Unwritten("a sum from the end, or without the element itself")
    return build("{0}.cumsum(dim={1})", x, Literal(reader.number(axis), "dim"))


@op("TopK")
def top_k(reader, node, x, k, *, axis, largest, sorted):
    count = Literal(int(reader.number(k)), "k")
    small = "" if largest else ", largest=False"
    dim = Literal(reader.last_or_front(x, axis), "dim")
    return [build(f"torch.topk({{0}}, {{1}}, dim={{2}}{small})", x, count, dim)]


# -- windows ------------------------------------------------------------------------------


@op("MaxPool", "AveragePool")
def pool(reader, node, x, **attributes):
    kernel = [int(k) for k in attributes["kernel_shape"]]
    rank = len(kernel)
    pads = [int(p) for p in attributes["pads"] or [0] * 2 * rank]
    strides = [int(s) for s in attributes["strides"] or [1] * rank]
    if rank > 3 or (attributes["auto_pad"] or "NOTSET") != "NOTSET":
        raise Unwritten("a rank that torch lacks, or padding that depends on sizes")
    data: Any = x
    if pads[:rank] != pads[rank:]:
        is_max = node.op_type == "MaxPool" and reader.is_float(x)
        if (not is_max and not attributes["count_include_pad"]) or attributes["ceil_mode"]:
            raise Unwritten("padding that differs between the ends")
        data, begin = padded(x, pads, rank, -math.inf if is_max else None)
        pads = [*begin, *begin]
    if any(2 * p > k for p, k in zip(pads, kernel)):
        raise Unwritten("more padding than half of the window")
    name = "max_pool" if node.op_type == "MaxPool" else "avg_pool"
    options = [("stride", even(strides), even(kernel)), ("padding", even(pads[:rank]), 0)]
    options.append(("ceil_mode", bool(attributes["ceil_mode"]), False))
    dilations = even([int(d) for d in attributes["dilations"] or [1] * rank])
    if name == "max_pool":
        options.append(("dilation", dilations, 1))
    elif dilations != 1:
        raise Unwritten("a mean over a dilated window")
    elif any(pads):
        options.append(("count_include_pad", bool(attributes["count_include_pad"]), True))
    used = [(n, v) for n, v, usual in options if v != usual]
    text = "".join(f", {n}={{{i}}}" for i, (n, _) in enumerate(used, 2))
    numbers = [Literal(v, n) for n, v in used]
    return build(
        f"F.{name}{rank}d({{0}}, {{1}}{text})", data, Literal(even(kernel), "kernel_size"), *numbers
    )


@op("GlobalAveragePool")
def global_average_pool(reader, node, x):
    rank = reader.rank(x) - 2
    return build(f"F.adaptive_avg_pool{rank}d({{0}}, 1)", x)


@op("GlobalMaxPool")
def global_max_pool(reader, node, x):
    dims = tuple(range(2, reader.rank(x)))
    return build("{0}.amax(dim={1}, keepdim=True)", x, Literal(dims, "dim"))


@op("Resize")
def resize(
    reader, node, x, roi = None, scales = None,
    sizes = None, **attributes
):  # fmt: skip
    mode, place = attributes["mode"], attributes["coordinate_transformation_mode"]
    rank = reader.rank(x) - 2
    corners = place == "align_corners"
    fits = (
        (mode == "nearest" and place == "asymmetric" and attributes["nearest_mode"] == "floor")
        or (mode == "linear" and place in ("half_pixel", "pytorch_half_pixel", "align_corners"))
        or (mode == "cubic" and place in ("half_pixel", "align_corners") and rank == 2)
    )
    if (
        not fits
        or attributes["antialias"]
        or attributes["exclude_outside"]
        or rank not in (1, 2, 3)
    ):
        raise Unwritten(f"{mode} with {place}")
    kind = {1: "linear", 2: "bilinear", 3: "trilinear"}[rank] if mode == "linear" else mode
    kind = "bicubic" if mode == "cubic" else kind
    options = f', mode="{kind}"' + (", align_corners=True" if corners else "")
    axes = list(attributes["axes"] or range(rank + 2))
    if sizes is not None:
        if sizes not in reader.known:
            raise Unwritten("a size that depends on data")
        numbers = reader.listed(sizes)
        targets = [numbers[axes.index(a)] for a in range(2, rank + 2)]
        if place == "pytorch_half_pixel" and 1 in targets:
            raise Unwritten("one pixel with pytorch_half_pixel")
        parts = ", ".join(f"{{{i}}}" for i in range(1, rank + 1))
        return build(f"F.interpolate({{0}}, size=({parts},){options})", x, *targets)
    factors = [float(v) for v in reader.array(scales).reshape(-1)]
    wanted_scales = [factors[axes.index(a)] for a in range(2, rank + 2)]
    same = len(set(wanted_scales)) == 1
    number = Literal(wanted_scales[0] if same else tuple(wanted_scales), "scale")
    return build(f"F.interpolate({{0}}, scale_factor={{1}}{options})", x, number)


# -- operators that few models have --------------------------------------------------


@op("IsInf")
def is_inf(reader, node, x, *, detect_negative, detect_positive):
    if not detect_negative and not detect_positive:
        return build("torch.zeros_like({0}, dtype=torch.bool)", x)
    name = "isinf" if detect_negative and detect_positive else "isposinf"
    return build(f"torch.{name if detect_positive else 'isneginf'}({{0}})", x)


@op("ReduceProd")
def product(
    reader, node, x, axes = None, *, keepdims,
    noop_with_empty_axes
):  # fmt: skip
    rank = reader.rank(x)
    listed = list(range(rank)) if axes is None else reader.integers(axes)
    if len(listed) != 1:
        raise Unwritten("a product over other than one axis")
    keep = ", keepdim=True" if keepdims else ""
    return build(
        f"{{0}}.prod(dim={{1}}{keep})", x, Literal(reader.last_or_front(x, listed[0]), "dim")
    )


@op("LpNormalization")
def normalize(reader, node, x, *, axis, p):
    order = Literal(p, "p", ", p=", 2)
    dim = Literal(reader.last_or_front(x, axis), "dim")
    return build("F.normalize({0}{1}, dim={2})", x, order, dim)


@op("LRN")
def local_response_norm(reader, node, x, *, alpha, beta, bias, size):
    if size % 2 == 0:
        raise Unwritten("a window of an even number of channels")
    numbers = [Literal(size, "size"), Literal(alpha, "alpha"), Literal(beta, "beta")]
    numbers.append(Literal(bias, "k"))
    return build("F.local_response_norm({0}, {1}, alpha={2}, beta={3}, k={4})", x, *numbers)


@op("GridSample")
def grid_sample(
    reader, node, x, grid, *, align_corners, mode,
    padding_mode
):  # fmt: skip
    names = {"linear": "bilinear", "bilinear": "bilinear", "nearest": "nearest"}
    names |= {"cubic": "bicubic", "bicubic": "bicubic"}
    if mode not in names or padding_mode not in ("zeros", "border", "reflection"):
        raise Unwritten("a mode that torch lacks")
    if reader.rank(x) not in (4, 5) or (reader.rank(x) == 5 and names[mode] == "bicubic"):
        raise Unwritten("a rank that torch lacks")
    text = f'mode="{names[mode]}", padding_mode="{padding_mode}"'
    return build(
        f"F.grid_sample({{0}}, {{1}}, {text}, align_corners={bool(align_corners)})", x, grid
    )


# -- indices ------------------------------------------------------------------------------


def _columns(reader: Reader, ids: ir.Value) -> str:
    """The columns of an array of places, as indices of a tensor's axes."""
    depth = reader.sizes(ids)[-1]
    if not isinstance(depth, int) or not 1 <= depth <= 4:
        raise Unwritten("places of an unknown number of axes")
    return ", ".join(f"{{1}}[..., {i}]" for i in range(depth))


@op("GatherND")
def gather_nd(reader, node, x, ids, *, batch_dims):
    if batch_dims:
        raise Unwritten("places of each row on its own")
    return build(f"{{0}}[{_columns(reader, ids)}]", x, ids)


@op("ScatterND")
def scatter_nd(reader, node, x, ids, updates, *, reduction):
    if reduction not in ("none", "add"):
        raise Unwritten(f"the reduction {reduction}")
    columns = _columns(reader, ids)
    comma = "," if columns.count("[") == 1 else ""
    added = ", accumulate=True" if reduction == "add" else ""
    return build(f"{{0}}.index_put(({columns}{comma}), {{2}}{added})", x, ids, updates)


SCATTERED = {
    "none": "{0}.scatter({1}, {2}, {3})",
    "add": "{0}.scatter_add({1}, {2}, {3})",
    "mul": '{0}.scatter_reduce({1}, {2}, {3}, reduce="prod")',
    "max": '{0}.scatter_reduce({1}, {2}, {3}, reduce="amax")',
    "min": '{0}.scatter_reduce({1}, {2}, {3}, reduce="amin")',
}


@op("ScatterElements")
def scatter_elements(
    reader, node, x, ids, updates, *, axis,
    reduction
):  # fmt: skip
    dim = Literal(reader.last_or_front(x, axis), "dim")
    return build(SCATTERED[reduction], x, dim, ids, updates)


@op("Scaler", domain="ai.onnx.ml")
def scaler(reader, node, x, *, offset=(), scale=()):
    data: Any = build("{0}" if x.dtype == ir.DataType.FLOAT else "{0}.float()", x)
    for sign, numbers, rank in (("-", offset, SUM), ("*", scale, PRODUCT)):
        if len(numbers or ()) == 1:
            data = binary(sign, data, Literal(numbers[0], "value"), rank)
        elif numbers:
            row = build("{0}.new_tensor({1}, dtype=torch.float32)", x, Literal(tuple(numbers)))
            data = binary(sign, data, row, rank)
    return data
