"""How operators that few models have are written in torch: scattering, sampling, quantization."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from sardonyx.engines.torch.source.expression import (
    PRODUCT,
    SUM,
    Expression,
    Literal,
    binary,
    build,
)
from sardonyx.engines.torch.source.layout import TYPES
from sardonyx.engines.torch.source.operators import from_end
from sardonyx.engines.torch.source.reading import Reader, Unwritten, op


@op("IsInf")
def is_inf(
    reader: Reader, node: ir.Node, x: ir.Value, *, detect_negative: int, detect_positive: int
) -> Expression:
    if not detect_negative and not detect_positive:
        return build("torch.zeros_like({0}, dtype=torch.bool)", x)
    name = "isinf" if detect_negative and detect_positive else "isposinf"
    return build(f"torch.{name if detect_positive else 'isneginf'}({{0}})", x)


@op("ReduceProd")
def product(
    reader: Reader, node: ir.Node, x: ir.Value, axes: Any = None, *, keepdims: int,
    noop_with_empty_axes: int,
) -> Expression:  # fmt: skip
    rank = reader.rank(x)
    listed = list(range(rank)) if axes is None else reader.integers(axes)
    if len(listed) != 1:
        raise Unwritten("a product over other than one axis")
    keep = ", keepdim=True" if keepdims else ""
    return build(f"{{0}}.prod(dim={{1}}{keep})", x, Literal(from_end(reader, x, listed[0]), "dim"))


@op("LpNormalization")
def normalize(reader: Reader, node: ir.Node, x: ir.Value, *, axis: int, p: int) -> Expression:
    order = Literal(p, "p", ", p=", 2)
    dim = Literal(from_end(reader, x, axis), "dim")
    return build("F.normalize({0}{1}, dim={2})", x, order, dim)


@op("LRN")
def local_response_norm(
    reader: Reader, node: ir.Node, x: ir.Value, *, alpha: float, beta: float, bias: float, size: int
) -> Expression:
    if size % 2 == 0:
        raise Unwritten("a window of an even number of channels")
    numbers = [Literal(size, "size"), Literal(alpha, "alpha"), Literal(beta, "beta")]
    numbers.append(Literal(bias, "k"))
    return build("F.local_response_norm({0}, {1}, alpha={2}, beta={3}, k={4})", x, *numbers)


@op("GridSample")
def grid_sample(
    reader: Reader, node: ir.Node, x: ir.Value, grid: ir.Value, *, align_corners: int, mode: str,
    padding_mode: str,
) -> Expression:  # fmt: skip
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
def gather_nd(
    reader: Reader, node: ir.Node, x: ir.Value, ids: ir.Value, *, batch_dims: int
) -> Expression:
    if batch_dims:
        raise Unwritten("places of each row on its own")
    return build(f"{{0}}[{_columns(reader, ids)}]", x, ids)


@op("ScatterND")
def scatter_nd(
    reader: Reader, node: ir.Node, x: ir.Value, ids: ir.Value, updates: ir.Value, *, reduction: str
) -> Expression:
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
    reader: Reader, node: ir.Node, x: ir.Value, ids: ir.Value, updates: ir.Value, *, axis: int,
    reduction: str,
) -> Expression:  # fmt: skip
    dim = Literal(from_end(reader, x, axis), "dim")
    return build(SCATTERED[reduction], x, dim, ids, updates)


# -- quantization -------------------------------------------------------------------------

RANGES = {
    ir.DataType.INT8: (-128, 127),
    ir.DataType.UINT8: (0, 255),
    ir.DataType.INT16: (-(2**15), 2**15 - 1),
}


def _spread(reader: Reader, x: ir.Value, values: ir.Value, axis: int) -> Any:
    """Numbers for each index of an axis, so that they meet it; one number as it is."""
    if reader.rank(values) == 0 or reader.sizes(values) == [1]:
        number = reader.array(values).reshape(-1)[0].item() if values in reader.known else None
        return reader.operand(values) if number is None else Literal(number, "scale")
    if reader.rank(values) != 1:
        raise Unwritten("scales of blocks")
    after = reader.rank(x) - 1 - axis % reader.rank(x)
    return build(f"{{0}}[:{', None' * after}]", values) if after else build("{0}", values)


@op("DequantizeLinear")
def dequantize(
    reader: Reader, node: ir.Node, x: ir.Value, scale: ir.Value, zero: Any = None, *, axis: int,
    block_size: int, output_dtype: int,
) -> Expression:  # fmt: skip
    if x.dtype not in (*RANGES, ir.DataType.INT32) or scale.dtype != ir.DataType.FLOAT:
        raise Unwritten("a type that torch lacks")
    whole: Any = build("{0}.float()", x)
    shift = None if zero is None else _spread(reader, x, zero, axis)
    if shift is not None and not (isinstance(shift, Literal) and shift.value == 0):
        whole = binary("-", whole, shift, SUM)
    return binary("*", whole, _spread(reader, x, scale, axis), PRODUCT)


@op("QuantizeLinear")
def quantize(
    reader: Reader, node: ir.Node, x: ir.Value, scale: ir.Value, zero: Any = None, **given: Any
) -> Expression:
    kind = node.outputs[0].dtype
    if kind is None or kind not in RANGES or x.dtype != ir.DataType.FLOAT:
        raise Unwritten("a type that torch lacks")
    divided = binary("/", x, _spread(reader, x, scale, given["axis"]), PRODUCT)
    whole = build("torch.round({0})", divided)
    shift = None if zero is None else _spread(reader, x, zero, given["axis"])
    if shift is not None and not (isinstance(shift, Literal) and shift.value == 0):
        whole = binary("+", whole, shift, SUM)
    low, high = RANGES[kind]
    return build(f"{{0:100}}.clamp({low}, {high}).to({TYPES[kind][0]})", whole)
