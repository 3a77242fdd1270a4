"""Cross entropy of bfloat16 scores without a copy of them in single precision.

In mixed precision the scores of a large vocabulary are the largest tensor of a network, and the
loss is computed from them in single precision. A graph that widens them first keeps twice their
memory until its gradient is computed. Here rows are widened a few at a time, and what is kept is
the gradient, in bfloat16.
"""

from __future__ import annotations

from typing import Any

from sardonyx.engines.torch.xp import torch

aten = torch.ops.aten
ROWS = 1 << 24  # elements that are widened at a time
# Operations that leave every element as it is, of which the first argument is moved.
MOVES = (
    aten.movedim.int,
    aten.permute.default,
    aten.reshape.default,
    aten.transpose.int,
    aten.view.default,
)
MEAN, SUM = 1, 2  # torch's numbers of reductions


class CrossEntropy(torch.autograd.Function):
    """The loss of rows of scores by the numbers of their classes, with its gradient."""

    @staticmethod
    def forward(ctx: Any, scores: Any, target: Any, reduction: int, ignored: int) -> Any:
        counts = target != ignored
        index = torch.where(counts, target, 0).unsqueeze(1)
        number = counts.sum() if reduction == MEAN else 1
        factor = (counts / number).unsqueeze(1)  # of each row in the loss
        gradient = torch.empty_like(scores) if ctx.needs_input_grad[0] else None
        total = torch.zeros((), dtype=torch.float32, device=scores.device)
        rows = max(1, ROWS // max(1, scores.shape[1]))
        for begin in range(0, scores.shape[0], rows):
            part = slice(begin, begin + rows)
            logarithms = torch.log_softmax(scores[part], 1, dtype=torch.float32)
            picked = logarithms.gather(1, index[part])
            total -= torch.where(counts[part].unsqueeze(1), picked, 0).sum()
            if gradient is not None:
                probabilities = logarithms.exp_()
                probabilities.scatter_add_(1, index[part], torch.full_like(picked, -1))
                torch.mul(probabilities, factor[part], out=gradient[part])
        ctx.gradient = gradient
        return total / number

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Any) -> tuple[Any, None, None, None]:
        gradient, ctx.gradient = ctx.gradient, None
        return gradient.mul_(g), None, None, None


def cross_entropy(
    scores: Any, target: Any, weight: None = None, reduction: int = MEAN, ignored: int = -100
) -> Any:
    """`aten.cross_entropy_loss` of bfloat16 scores, in single precision."""
    return CrossEntropy.apply(scores, target, reduction, ignored)


def narrow_losses(module: torch.fx.GraphModule) -> None:
    """Let cross entropy read bfloat16 scores that a graph widens for it alone."""
    for node in list(module.graph.nodes):
        if node.target is not aten.cross_entropy_loss.default or not _is_plain(node):
            continue
        widening, reader = _widening(node)
        if widening is None:
            continue
        reader.replace_input_with(widening, widening.args[0])
        node.target = cross_entropy
        module.graph.erase_node(widening)
    module.recompile()


def _is_plain(node: Any) -> bool:
    """Whether it is the loss of rows by classes: no weights, no smoothing, one number."""
    defaults = (None, MEAN, -100, 0.0)
    weight, reduction, _, smoothing = (*node.args[2:], *defaults[len(node.args) - 2 :])
    scores, target = (a.meta.get("val") for a in node.args[:2])
    if scores.ndim != 2 or target.ndim != 1 or target.is_floating_point() or node.kwargs:
        return False
    return weight is None and not smoothing and reduction in (MEAN, SUM)


def _widening(node: Any) -> tuple[Any, Any]:
    """The cast from bfloat16 behind the scores of a loss, and what reads it; None, None."""
    reader, value = node, node.args[0]
    while value.target in MOVES and len(value.users) == 1:
        reader, value = value, value.args[0]
    source = value.args[0].meta.get("val") if value.target is aten.to.dtype else None
    narrow = isinstance(source, torch.Tensor) and source.dtype == torch.bfloat16
    if not narrow or value.args[1] is not torch.float32 or len(value.users) != 1:
        return None, None
    return value, reader
