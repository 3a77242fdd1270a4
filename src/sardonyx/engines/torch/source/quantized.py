"""How the integer arithmetic of quantized models is written: conversions, products, convolutions.

torch has few integer kernels: products are computed in 32-bit integers, convolutions in double
precision, which is exact for them.
"""

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
from sardonyx.engines.torch.source.functional import conv
from sardonyx.engines.torch.source.layout import TYPES
from sardonyx.engines.torch.source.reading import Reader, Unwritten, op

RANGES = {
    ir.DataType.INT8: (-128, 127),
    ir.DataType.UINT8: (0, 255),
    ir.DataType.INT16: (-(2**15), 2**15 - 1),
}


def along_axis(reader: Reader, x: ir.Value, values: ir.Value, axis: int) -> Any:
    """Numbers for each index of an axis, shaped to broadcast along it; a single one as it is."""
    if reader.rank(values) == 0 or reader.sizes(values) == [1]:
        number = reader.array(values).reshape(-1)[0].item() if values in reader.known else None
        return reader.operand(values) if number is None else Literal(number, "scale")
    if reader.rank(values) != 1:
        raise Unwritten("scales of blocks")
    after = reader.rank(x) - 1 - axis % reader.rank(x)
    return build(f"{{0}}[:{', None' * after}]", values) if after else build("{0}", values)


@op("DequantizeLinear")
def dequantize(
    reader, node, x, scale, zero = None, *, axis,
    block_size, output_dtype
):  # fmt: skip
    if x.dtype not in (*RANGES, ir.DataType.INT32) or scale.dtype != ir.DataType.FLOAT:
        raise Unwritten("a type that torch lacks")
    whole: Any = build("{0}.float()", x)
    shift = None if zero is None else along_axis(reader, x, zero, axis)
    if shift is not None and not (isinstance(shift, Literal) and shift.value == 0):
        whole = binary("-", whole, shift, SUM)
    return binary("*", whole, along_axis(reader, x, scale, axis), PRODUCT)


@op("QuantizeLinear")
def quantize(reader, node, x, scale, zero=None, **attributes):
    kind = node.outputs[0].dtype
    if kind is None or kind not in RANGES or x.dtype != ir.DataType.FLOAT:
        raise Unwritten("a type that torch lacks")
    divided = binary("/", x, along_axis(reader, x, scale, attributes["axis"]), PRODUCT)
    whole = build("torch.round({0})", divided)
    shift = None if zero is None else along_axis(reader, x, zero, attributes["axis"])
    if shift is not None and not (isinstance(shift, Literal) and shift.value == 0):
        whole = binary("+", whole, shift, SUM)
    low, high = RANGES[kind]
    return build(f"{{0:100}}.clamp({low}, {high}).to({TYPES[kind][0]})", whole)


@op("MatMulInteger")
def matmul_integer(reader, node, a, b, a_zero=None, b_zero=None):
    if a_zero is not None and not _is_single(reader, a_zero):
        raise Unwritten("a zero point for each row")
    left, right = _shifted(reader, a, a_zero, "int"), _shifted(reader, b, b_zero, "int")
    return binary("@", left, right, PRODUCT)


@op("ConvInteger")
def conv_integer(
    reader, node, x, w, x_zero = None, w_zero = None,
    **attributes
):  # fmt: skip
    if w_zero is not None and not _is_single(reader, w_zero):
        raise Unwritten("a zero point for each filter")
    data, filters = (_shifted(reader, v, zero, "double") for v, zero in ((x, x_zero), (w, w_zero)))
    return build(
        "{0}.int()", conv(reader, node, data, filters, rank=reader.rank(w) - 2, **attributes)
    )


@op("QLinearMatMul")
def qlinear_matmul(
    reader, node, a, a_scale, a_zero, b,
    b_scale, b_zero, y_scale, y_zero
):  # fmt: skip
    if not all(_is_single(reader, v) for v in (a_scale, a_zero, y_scale, y_zero)):
        raise Unwritten("a scale for each row")
    left, right = _shifted(reader, a, a_zero, "double"), _shifted(reader, b, b_zero, "double")
    factor = along_axis(reader, b, b_scale, reader.rank(b) - 1)
    return _requantized(reader, node, binary("@", left, right, PRODUCT), factor, a_scale, y_scale,
                        y_zero)  # fmt: skip


@op("QLinearConv")
def qlinear_conv(
    reader, node, x, x_scale, x_zero, w,
    w_scale, w_zero, y_scale, y_zero, b = None,
    **attributes
):  # fmt: skip
    if not _is_single(reader, w_zero) and (
        w_zero not in reader.known or reader.array(w_zero).any()
    ):
        raise Unwritten("a zero point for each filter")
    shift = w_zero if _is_single(reader, w_zero) else None
    data, filters = _shifted(reader, x, x_zero, "double"), _shifted(reader, w, shift, "double")
    total = conv(reader, node, data, filters, rank=reader.rank(w) - 2, **attributes)
    if b is not None:
        total = binary("+", total, along_axis(reader, x, b, 1), SUM)
    factor = along_axis(reader, x, w_scale, 1)
    return _requantized(reader, node, total, factor, x_scale, y_scale, y_zero)


def _requantized(
    reader: Reader, node: ir.Node, total: Any, factor: Any, scale: ir.Value, y_scale: ir.Value,
    y_zero: ir.Value,
) -> Expression:  # fmt: skip
    """Sums of products of integers, in units of `factor` times `scale`, as integers again."""
    kind = node.outputs[0].dtype
    if kind is None or kind not in RANGES or scale.dtype != ir.DataType.FLOAT:
        raise Unwritten("a type that torch lacks")
    for number in (factor, reader.operand(scale)):
        total = binary("*", total, number, PRODUCT)
    level = build("torch.round({0})", binary("/", total, reader.operand(y_scale), PRODUCT))
    zero = reader.operand(y_zero)
    if not (isinstance(zero, Literal) and zero.value == 0):
        level = binary("+", level, zero, SUM)
    low, high = RANGES[kind]
    return build(f"{{0:100}}.clamp({low}, {high}).to({TYPES[kind][0]})", level)


def _is_single(reader: Reader, values: ir.Value) -> bool:
    return reader.rank(values) == 0 or reader.sizes(values) == [1]


def _shifted(reader: Reader, x: ir.Value, zero: Any, kind: str) -> Expression:
    """Integers without their zero point, in a type that torch computes with."""
    wide = build(f"{{0}}.{kind}()", x)
    shift = None if zero is None else reader.operand(zero)
    if shift is None or (isinstance(shift, Literal) and shift.value == 0):
        return wide
    shift = build(f"{{0}}.{kind}()", shift) if isinstance(shift, ir.Value) else shift
    return binary("-", wide, shift, SUM)
