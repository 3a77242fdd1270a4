"""Rules of texts."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import tensorflow as tf

from sardonyx.build import rank
from sardonyx.importers.tensorflow.reader import dtype_of, importer
from sardonyx.importers.tensorflow.writer import Refusal, Writer

T = ir.DataType


@importer("StringJoin")
def string_join(op: Writer, *texts: ir.Value, separator: str) -> ir.Value:
    y = texts[0]
    for text in texts[1:]:
        if separator:
            y = op.StringConcat(y, op.const(np.array(separator.encode())))
        y = op.StringConcat(y, text)
    return y


@importer("StringLower")
def string_lower(op: Writer, x: ir.Value, *, encoding: str) -> ir.Value:
    return _cased(op, x, "LOWER", encoding)


@importer("StringUpper")
def string_upper(op: Writer, x: ir.Value, *, encoding: str) -> ir.Value:
    return _cased(op, x, "UPPER", encoding)


def _cased(op: Writer, x: ir.Value, action: str, encoding: str) -> ir.Value:
    """StringNormalizer takes a vector; in the locale C it changes ASCII letters, as TensorFlow."""
    if encoding:
        raise Refusal("letters beyond ASCII, for which runtimes need a locale")
    flat = x if rank(x) == 1 else op.Reshape(x, [-1])
    y = op.StringNormalizer(flat, case_change_action=action, locale="C")
    y.shape = flat.shape
    return y if rank(x) == 1 else op.Reshape(y, op.shape(x))


@importer("StringToNumber")
def string_to_number(op: Writer, x: ir.Value, *, out_type: tf.DType) -> ir.Value:
    return op.Cast(x, to=int(dtype_of(out_type)))  # type: ignore[arg-type]


@importer("AsString")
def as_string(
    op: Writer,
    x: ir.Value,
    *,
    precision: int,
    scientific: bool,
    shortest: bool,
    width: int,
    fill: str,
) -> ir.Value:
    if not x.dtype.is_integer() or width > 0:  # type: ignore[union-attr]
        raise Refusal("texts of numbers other than integers: ONNX has no formats")
    return op.Cast(x, to=int(T.STRING))


@importer("StaticRegexFullMatch")
def static_regex_full_match(op: Writer, x: ir.Value, *, pattern: str) -> ir.Value:
    return op.RegexFullMatch(x, pattern=pattern)


@importer("RegexFullMatch")
def regex_full_match(op: Writer, x: ir.Value, pattern: ir.Value) -> ir.Value:
    text = op.known(pattern, "a pattern").reshape(-1)[0]
    return op.RegexFullMatch(x, pattern=text.decode() if isinstance(text, bytes) else str(text))


@importer("StringSplitV2", "StringSplit")
def string_split(op: Writer, x: ir.Value, separator: ir.Value, *, node: Any) -> list[ir.Value]:
    """Indices, values and shape of the sparse tensor of words."""
    if node.type == "StringSplit" or node.get_attr("maxsplit") >= 0:
        raise Refusal("a limited number of splits")
    text = op.known(separator, "a separator").reshape(-1)[0]
    mark = text.decode() if isinstance(text, bytes) else str(text)
    words, counts = op.StringSplit(x, delimiter=mark or None, outputs=2)
    columns = op.dim_value(words, 1)
    number = op.Unsqueeze(op.count(columns), [0])
    inside = op.Less(number, op.Unsqueeze(counts, [1]))
    places = op.Transpose(op.NonZero(inside), perm=[1, 0])
    longest = op.ReduceMax(counts, keepdims=1)
    shape = op.Concat(op.dim_value(x, 0), longest, axis=0)
    return [places, op.GatherND(words, places), shape]


@importer("ReduceJoin")
def reduce_join(
    op: Writer, x: ir.Value, axes: ir.Value, *, keep_dims: bool, separator: str
) -> ir.Value:
    where = op.known(axes, "axes").reshape(-1)
    n = rank(x)
    if where.size == 0:
        where = np.arange(n)[::-1]
    y = x
    for axis in [int(a) % n for a in where]:
        size = x.shape[axis]  # type: ignore[index]
        if not isinstance(size, int) or size == 0:
            raise Refusal("texts of a free number")
        parts = [op.part(y, axis, i, i + 1) for i in range(size)]
        y = string_join(op, *parts, separator=separator)
    return y if keep_dims else op.Squeeze(y, [int(a) % n for a in where])
