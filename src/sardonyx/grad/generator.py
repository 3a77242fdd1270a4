"""Gradients of ONNX's `generator` family: Range; everything else is a source."""

from __future__ import annotations

from sardonyx.grad.driver import gradient_rule, no_gradient

no_gradient("Constant", "ConstantOfShape", "EyeLike")
# Samples: what is drawn does not depend smoothly on what it is drawn from.
no_gradient(
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
)


@gradient_rule("Range")
def range_(op, g, start, limit, delta, *, stash_type):
    """The limit only decides how many elements there are."""
    n = op.dim(g, 0)
    count = n if isinstance(n, int) else op.Squeeze(n, [0])
    steps = op.cast(op.Range(0, count, 1), g.dtype)
    return op.total(g), None, op.total(g * steps)
