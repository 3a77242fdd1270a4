"""Cross entropy of bfloat16 scores without a copy of them in single precision.

In mixed precision the scores of a large vocabulary are the largest tensor of a network, and the
loss is computed from them in single precision. A graph that widens them first keeps twice their
memory until its gradient is computed. Here what is kept is the gradient, in bfloat16: on an NVIDIA
GPU a kernel computes it with the loss; elsewhere rows are widened a few at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from sardonyx.engines.torch.fused_update import compile_for_gpu, current
from sardonyx.engines.torch.xp import torch

aten = torch.ops.aten
ROWS = 1 << 24  # elements that are widened at a time
THREADS = 512  # of a block
# Operations that leave every element as it is, of which the first argument is moved.
MOVES = (
    aten.movedim.int,
    aten.permute.default,
    aten.reshape.default,
    aten.transpose.int,
    aten.view.default,
)
MEAN, SUM = 1, 2  # torch's numbers of reductions


# A block of threads for each row: the logarithm of the sum of exponentials, around the largest
# score so far, then the loss of the row and its gradient.
SOURCE = """
__device__ __forceinline__ float wide(const unsigned short bits) {
  return __uint_as_float((unsigned)bits << 16);
}
__device__ __forceinline__ unsigned short narrow(const float x) {
  const unsigned bits = __float_as_uint(x);
  return x != x ? 0x7fc0 : (unsigned short)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
__device__ __forceinline__ void include(float& most, float& sum, const float m, const float s) {
  if (m > most) {
    sum = sum * expf(most - m) + s;
    most = m;
  } else if (m > -__int_as_float(0x7f800000)) {  // the others add nothing
    sum += s * expf(m - most);
  }
}
extern "C" __global__ void cross_entropy(
    const unsigned short* scores, const long long* target, const float* factor, float* losses,
    unsigned short* gradient, const int classes) {
  __shared__ float mosts[THREADS], sums[THREADS];
  const long long begin = (long long)blockIdx.x * classes;
  const unsigned short* row = scores + begin;
  const int thread = threadIdx.x;
  float most = -__int_as_float(0x7f800000), sum = 0;
  bool broken = false;
  for (int k = thread; k < classes; k += THREADS) {
    const float x = wide(row[k]);
    broken |= x != x;
    include(most, sum, x, 1);
  }
  mosts[thread] = most;
  sums[thread] = broken ? __int_as_float(0x7fc00000) : sum;
  __syncthreads();
  for (int half = THREADS / 2; half > 0; half /= 2) {
    if (thread < half) {
      const float s = sums[thread + half];
      if (s != s) sums[thread] = s;
      else include(mosts[thread], sums[thread], mosts[thread + half], s);
    }
    __syncthreads();
  }
  const float logarithm = mosts[0] + logf(sums[0]), scale = factor[blockIdx.x];
  const int label = (int)target[blockIdx.x];
  if (thread == 0) losses[blockIdx.x] = logarithm - wide(row[label]);
  for (int k = thread; k < classes; k += THREADS)
    gradient[begin + k] = narrow((expf(wide(row[k]) - logarithm) - (k == label)) * scale);
}
""".replace("THREADS", str(THREADS))


@functools.cache
def kernel(device: Any) -> Callable[..., Any] | None:
    """The kernel above, for a GPU; None where torch cannot compile it."""
    try:
        with current(device):
            return compile_for_gpu(SOURCE, "cross_entropy")
    except (AttributeError, RuntimeError, OSError, TypeError):
        return None


def by_kernel(scores: Any, index: Any, factor: Any, gradient: Any) -> Any:
    """The losses of rows; their gradient, times the factors of rows, is written."""
    losses = torch.empty(scores.shape[0], dtype=torch.float32, device=scores.device)
    arguments = [scores, index, factor, losses, gradient, scores.shape[1]]
    run = kernel(scores.device)
    assert run is not None
    with current(scores.device):
        run(grid=(scores.shape[0], 1, 1), block=(THREADS, 1, 1), args=arguments)
    return losses


def by_rows(scores: Any, index: Any, factor: Any, gradient: Any) -> Any:
    """The same by torch's operations, a few rows at a time; no gradient where it is None."""
    losses = torch.empty(scores.shape[0], dtype=torch.float32, device=scores.device)
    rows = max(1, ROWS // max(1, scores.shape[1]))
    for begin in range(0, scores.shape[0], rows):
        part = slice(begin, begin + rows)
        logarithms = torch.log_softmax(scores[part], 1, dtype=torch.float32)
        picked = logarithms.gather(1, index[part].unsqueeze(1))
        losses[part] = -picked.squeeze(1)
        if gradient is not None:
            probabilities = logarithms.exp_()
            probabilities.scatter_add_(1, index[part].unsqueeze(1), torch.full_like(picked, -1))
            torch.mul(probabilities, factor[part].unsqueeze(1), out=gradient[part])
    return losses


class CrossEntropy(torch.autograd.Function):
    """The loss of rows of scores by the numbers of their classes, with its gradient."""

    @staticmethod
    def forward(ctx: Any, scores: Any, target: Any, reduction: int, ignored: int) -> Any:
        counts = target != ignored
        index = torch.where(counts, target, 0)
        number = counts.sum() if reduction == MEAN else 1
        factor = (counts / number).float()  # of each row in the loss
        scores = scores.contiguous()
        gradient = torch.empty_like(scores) if ctx.needs_input_grad[0] else None
        on_gpu = scores.is_cuda and scores.numel() > 0 and gradient is not None
        on_gpu = on_gpu and kernel(scores.device) is not None
        losses = (by_kernel if on_gpu else by_rows)(scores, index, factor, gradient)
        ctx.gradient = gradient
        return torch.where(counts, losses, 0).sum() / number

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
    defaults: list[Any] = [None, MEAN, -100, 0.0]
    settings: list[Any] = list(node.args[2:])
    weight, reduction, _, smoothing = settings + defaults[len(settings) :]
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
