"""Rules of random numbers: of the same distribution, with draws of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import tensorflow as tf

from sardonyx.build import constant
from sardonyx.importers.tensorflow.reader import Reader, dtype_of, importer
from sardonyx.importers.tensorflow.writer import Refusal, Writer

T = ir.DataType


def _drawn(op: Writer, kind: str, shape: ir.Value, dtype: ir.DataType, **ranges: float) -> ir.Value:
    zeros = op.ConstantOfShape(op.int64(shape), value=ir.tensor(np.zeros(1, np.float32)))
    y = op.call(f"Random{kind}Like", [zeros], {"dtype": int(T.FLOAT), **ranges})
    return op.cast(y, dtype)


@importer("RandomUniform")
def random_uniform(op: Writer, shape: ir.Value, *, dtype: tf.DType, reader: Reader) -> ir.Value:
    reader.random = True
    return _drawn(op, "Uniform", shape, dtype_of(dtype), low=0.0, high=1.0)  # type: ignore[arg-type]


@importer("RandomStandardNormal")
def random_standard_normal(
    op: Writer, shape: ir.Value, *, dtype: tf.DType, reader: Reader
) -> ir.Value:
    reader.random = True
    return _drawn(op, "Normal", shape, dtype_of(dtype), mean=0.0, scale=1.0)  # type: ignore[arg-type]


@importer("TruncatedNormal")
def truncated_normal(op: Writer, shape: ir.Value, *, dtype: tf.DType, reader: Reader) -> ir.Value:
    raise Refusal("ONNX has no truncated normal distribution")


@importer("RandomUniformInt")
def random_uniform_int(
    op: Writer, shape: ir.Value, low: ir.Value, high: ir.Value, *, reader: Reader
) -> ir.Value:
    reader.random = True
    unit = _drawn(op, "Uniform", shape, T.DOUBLE, low=0.0, high=1.0)
    a, b = op.cast(low, T.DOUBLE), op.cast(high, T.DOUBLE)
    y = op.Floor(op.Add(a, op.Mul(unit, op.Sub(b, a))))
    return op.cast(op.Min(y, op.Sub(b, op.like(1, b))), low.dtype)


@importer("Multinomial")
def multinomial(
    op: Writer, logits: ir.Value, samples: ir.Value, *, output_dtype: tf.DType, reader: Reader
) -> ir.Value:
    reader.random = True
    count = constant(samples)
    if count is None:
        raise Refusal("a number of samples that is computed")
    log = op.LogSoftmax(op.cast(logits, T.FLOAT), axis=-1)
    y = op.Multinomial(log, sample_size=int(count.reshape(-1)[0]), dtype=int(T.INT32))
    return op.cast(y, dtype_of(output_dtype))


@importer("RandomShuffle")
def random_shuffle(op: Writer, x: ir.Value, *, reader: Reader) -> ir.Value:
    reader.random = True
    count = op.dim_value(x, 0)
    keys = _drawn(op, "Uniform", count, T.FLOAT, low=0.0, high=1.0)
    _, order = op.TopK(keys, count, axis=0, outputs=2)
    return op.Gather(x, order, axis=0)


@importer("SampleDistortedBoundingBoxV2")
def sample_distorted_bounding_box_v2(op: Writer, *operands: Any, node: Any) -> list[ir.Value]:
    raise Refusal("boxes that are drawn at random")


@importer("RandomGamma", "RandomPoissonV2", "ParameterizedTruncatedNormal")
def other_distributions(op: Writer, *operands: Any) -> ir.Value:
    raise Refusal("ONNX has no such distribution")
