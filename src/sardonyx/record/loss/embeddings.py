"""Losses of distributions and of embeddings: divergence, cosine, pairs and triplets."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.build import Builder, rank
from sardonyx.errors import ArgumentError
from sardonyx.record.loss.kinds import Label, Loss, reduce


def kl_divergence(log_target: bool = False, reduction: str = "batchmean") -> Loss:
    """Kullback-Leibler divergence; the prediction is log-probabilities, the label probabilities."""

    def compute(op: Builder, z: ir.Value, y: ir.Value) -> ir.Value:
        with op:
            if log_target:
                each = op.Exp(y) * (y - z)
            else:
                positive = op.Greater(y, 0.0)
                # log of a positive stand-in: 0 log 0 is 0, and its derivative stays finite
                each = y * op.Log(op.Where(positive, y, 1.0)) - y * z
            if reduction != "batchmean":
                return reduce(op, each, reduction)
            rows = op.cast(op.Shape(z, start=0, end=1), z.dtype)  # type: ignore[arg-type]
            return op.ReduceSum(each, keepdims=0) / op.Squeeze(rows, [0])

    settings = {"log_target": log_target, "reduction": reduction}
    return Loss("kl_divergence", compute, settings=settings)


def cosine(reduction: str = "mean", eps: float = 1e-8) -> Loss:
    """One minus the cosine between prediction and label along the last axis."""

    def compute(op: Builder, z: ir.Value, y: ir.Value) -> ir.Value:
        with op:
            dot = op.total(z * y, [-1])
            norms = op.total(z * z, [-1]) * op.total(y * y, [-1])
            return reduce(op, 1.0 - dot / op.Sqrt(op.Max(norms, eps * eps)), reduction)

    return Loss("cosine", compute, settings={"reduction": reduction, "eps": eps})


def contrastive(margin: float = 1.0, reduction: str = "mean") -> Loss:
    """Pairs: rows 2i and 2i+1 of the prediction; label 1 draws them together, 0 pushes them
    apart.
    """

    def compute(op: Builder, z: ir.Value, y: ir.Value) -> ir.Value:
        with op:
            pairs = op.Reshape(z, [-1, 2, *_width(z)])
            a, b = op.Split(pairs, [1, 1], axis=1, outputs=2)
            squared = op.total((a - b) * (a - b), [1, 2])
            away = op.Relu(margin - op.Sqrt(squared + 1e-12))
            return reduce(op, y * squared + (1.0 - y) * away * away, reduction)

    settings = {"margin": margin, "reduction": reduction}
    return Loss("contrastive", compute, (Label("pairs"),), settings=settings)


def triplet(margin: float = 1.0, reduction: str = "mean") -> Loss:
    """Triplets: rows 3i, 3i+1, 3i+2 are anchor, positive, negative; there is no label."""

    def compute(op: Builder, z: ir.Value) -> ir.Value:
        with op:
            triples = op.Reshape(z, [-1, 3, *_width(z)])
            a, p, n = op.Split(triples, [1, 1, 1], axis=1, outputs=3)
            near = op.Sqrt(op.total((a - p) * (a - p), [1, 2]) + 1e-12)
            far = op.Sqrt(op.total((a - n) * (a - n), [1, 2]) + 1e-12)
            return reduce(op, op.Relu(near - far + margin), reduction)

    return Loss("triplet", compute, (), settings={"margin": margin, "reduction": reduction})


def _width(z: ir.Value) -> list[int]:
    if rank(z) != 2 or not isinstance(z.shape[1], int):  # type: ignore[index]
        raise ArgumentError("embeddings are rows of a matrix with a known width")
    return [z.shape[1]]  # type: ignore[index]
