"""Functions that `torch.export` cannot capture, because they look at values, in others that it can.

Inside `Replacing`, calls of these functions run the versions here. The checks of values that are
left out raise errors in torch; the results are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch.nn import functional
from torch.nn.modules import transformer
from torch.overrides import TorchFunctionMode

from sardonyx.importers.torch.plain import PLAIN

NEVER = -1e30  # the log of "impossible": finite, so that differences of such numbers are not NaN


def gaussian_nll_loss(
    input: Any,
    target: Any,
    var: Any,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Any:
    if isinstance(var, float):
        var = var * torch.ones_like(input)
    elif var.shape != input.shape and input.shape[:-1] == var.shape:
        var = var.unsqueeze(-1)
    with torch.no_grad():
        floor = torch.clamp(eps - var, min=0.0)
    safe = var + floor  # clamped without cutting the gradient, as torch does
    loss = 0.5 * (torch.log(safe) + (input - target) ** 2 / safe)
    if full:
        loss = loss + 0.5 * torch.log(torch.tensor(2 * torch.pi)).to(loss.dtype)
    return _reduced(loss, reduction)


def multilabel_margin_loss(
    input: Any,
    target: Any,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
) -> Any:
    x, labels = (input, target) if input.dim() == 2 else (input[None], target[None])
    count = x.shape[1]
    listed = torch.cumsum((labels < 0).to(torch.int64), dim=1) == 0  # up to the first -1
    places = torch.where(listed, labels, 0)
    classes = torch.arange(count, device=x.device)
    hits = (places[:, :, None] == classes) & listed[:, :, None]
    is_target = hits.any(dim=1)
    margins = 1.0 - (x.gather(1, places)[:, :, None] - x[:, None, :])
    counted = listed[:, :, None] & ~is_target[:, None, :]
    terms = torch.where(counted, margins.clamp(min=0.0), torch.zeros_like(margins))
    each = terms.sum(dim=(1, 2)) / count
    return _reduced(each if input.dim() == 2 else each[0], reduction)


def linear_cross_entropy(
    input: Any,
    linear_weight: Any,
    target: Any,
    *,
    linear_bias: Any = None,
    weight: Any = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    options: Any = None,
) -> Any:
    if linear_weight.dim() != 2:
        raise NotImplementedError("linear_cross_entropy with out_features has no translation")
    scores = functional.linear(input, linear_weight, linear_bias)
    ignored = -100 if ignore_index is None else ignore_index
    settings: dict[str, Any] = {"ignore_index": ignored, "label_smoothing": label_smoothing}
    return functional.cross_entropy(scores, target, weight, reduction=reduction, **settings)


def ctc_loss(
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Any:
    if targets.dim() != 2 or log_probs.dim() != 3:
        raise NotImplementedError("CTC needs a batch, and targets padded to one length each")
    frames, batch, _ = log_probs.shape
    input_lengths = _lengths(input_lengths, log_probs)
    target_lengths = _lengths(target_lengths, log_probs)
    blanks = torch.full_like(targets, blank)
    states = torch.stack([targets, blanks], dim=2).flatten(1)
    states = functional.pad(states, (1, 0), value=blank)
    differs = (states[:, 2:] != states[:, :-2]) & (states[:, 2:] != blank)
    skip = functional.pad(differs.to(log_probs.dtype), (2, 0))
    penalty = (1.0 - skip) * NEVER
    is_start = torch.arange(states.shape[1], device=targets.device) == 0
    alpha = torch.where(is_start, 0.0, NEVER).to(log_probs.dtype).expand(batch, -1)
    for frame in range(frames):
        emitted = log_probs[frame].gather(1, states)
        one = functional.pad(alpha[:, :-1], (1, 0), value=NEVER)
        two = functional.pad(alpha[:, :-2], (2, 0), value=NEVER) + penalty
        moved = torch.logsumexp(torch.stack([alpha, one, two]), dim=0) + emitted
        alpha = torch.where((frame < input_lengths)[:, None], moved.clamp(min=NEVER), alpha)
    last = target_lengths[:, None] * 2
    ends = torch.cat([last, (last - 1).clamp(min=0)], dim=1)
    is_empty = target_lengths == 0  # an empty target has one end, not two
    twice = torch.stack([torch.zeros_like(is_empty), is_empty], dim=1)
    each = -torch.logsumexp(torch.where(twice, NEVER, alpha.gather(1, ends)), dim=1)
    if zero_infinity:
        each = torch.where(each > -NEVER / 2, torch.zeros_like(each), each)
    if reduction == "mean":
        return (each / target_lengths.clamp(min=1).to(each.dtype)).mean()
    return _reduced(each, reduction)


def embedding(
    input: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    """Rows that are longer than `max_norm` are shortened as they are read; torch writes them."""
    rows = functional.embedding(
        input, weight, padding_idx, None, norm_type, scale_grad_by_freq, sparse
    )
    if max_norm is None:
        return rows
    norms = torch.linalg.vector_norm(rows, norm_type, -1, keepdim=True)
    return rows * torch.where(norms > max_norm, max_norm / (norms + 1e-7), 1.0)


def embedding_bag(
    input: Any,
    weight: Any,
    offsets: Any = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any:
    if max_norm is not None or scale_grad_by_freq:
        raise NotImplementedError("embedding_bag with max_norm or scale_grad_by_freq")
    rows = functional.embedding(input, weight)
    counted = torch.ones_like(input, dtype=torch.bool)
    if padding_idx is not None:
        counted = input != padding_idx % weight.shape[0]
    if input.dim() == 2:
        rows, counted = rows.flatten(0, 1), counted.flatten()
        width = torch.tensor(input.shape[1], device=input.device)
        bags = torch.arange(input.shape[0] * input.shape[1], device=input.device) // width
        count = input.shape[0]
        if per_sample_weights is not None:
            per_sample_weights = per_sample_weights.flatten()
    else:
        places = torch.arange(input.shape[0], device=input.device)
        count = offsets.shape[0] - int(include_last_offset)
        bags = (places[:, None] >= offsets[None, :count]).sum(1) - 1
    return _bags(rows, counted, bags, count, mode, per_sample_weights)


def _bags(rows: Any, counted: Any, bags: Any, count: Any, mode: str, weights: Any) -> Any:
    """The rows of each bag, summed, averaged, or the largest; of an empty bag zero."""
    if mode == "max":
        low = torch.full_like(rows, torch.finfo(rows.dtype).min)
        rows = torch.where(counted[:, None], rows, low)
        start = torch.full((count, rows.shape[1]), torch.finfo(rows.dtype).min, dtype=rows.dtype)
        index = bags[:, None].expand(-1, rows.shape[1])
        largest = start.scatter_reduce(0, index, rows, "amax", include_self=True)
        return torch.where(largest == start, torch.zeros_like(largest), largest)
    share = counted.to(rows.dtype)
    if weights is not None:
        share = share * weights
    start = torch.zeros((count, rows.shape[1]), dtype=rows.dtype, device=rows.device)
    sums = start.index_add(0, bags, rows * share[:, None])
    if mode == "sum":
        return sums
    sizes = torch.zeros(count, dtype=rows.dtype).index_add(0, bags, counted.to(rows.dtype))
    return sums / sizes.clamp(min=1.0)[:, None]


def cdist(x1: Any, x2: Any, p: float = 2.0, compute_mode: str = "") -> Any:
    apart = (x1[..., :, None, :] - x2[..., None, :, :]).abs()
    if p == 1:
        return apart.sum(-1)
    if p == float("inf"):
        return apart.amax(-1)
    if p == 0:
        return (apart != 0).to(apart.dtype).sum(-1)
    # Equal points have the gradient 0, as in torch; a root would make it infinite.
    powers = apart.square() if p == 2 else torch.where(apart > 0, apart, 1.0) ** p * (apart > 0)
    total = powers.sum(-1)
    safe = torch.where(total > 0, total, torch.ones_like(total))
    root = safe.sqrt() if p == 2 else safe ** (1.0 / p)
    return torch.where(total > 0, root, torch.zeros_like(root))


def _adaptive_max_pool(axes: int) -> Callable[..., Any]:
    pool = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)[axes - 1]

    def run(input: Any, output_size: Any, return_indices: bool = False) -> Any:
        targets = [output_size] * axes if isinstance(output_size, int) else list(output_size)
        sizes = list(input.shape[-axes:])
        counts = [s if w is None else w for s, w in zip(sizes, targets, strict=True)]
        if all(s % c == 0 for s, c in zip(sizes, counts, strict=True)):
            return pool(input, [s // c for s, c in zip(sizes, counts, strict=True)])
        for axis, (size, count) in enumerate(zip(sizes, counts, strict=True), -axes):
            bounds = [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]
            bins = [input.narrow(axis, a, b - a).amax(axis, keepdim=True) for a, b in bounds]
            input = torch.cat(bins, axis)
        return input

    return run


def rrelu(
    input: Any,
    lower: float = 1.0 / 8,
    upper: float = 1.0 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Any:
    if training:
        return functional.rrelu(input, lower, upper, training)
    return functional.leaky_relu(input, (lower + upper) / 2)


def multi_head_attention_forward(*args: Any, **kwargs: Any) -> Any:
    """In evaluation mode, with the dropout of training mode as dropout that is switched off."""
    if kwargs.get("training", True):
        return functional.multi_head_attention_forward(*args, **kwargs)
    drop, attend = functional.dropout, functional.scaled_dot_product_attention

    def off(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        return drop(x, p, training=False)

    def attention(query: Any, key: Any, value: Any, mask: Any, p: float, *more: Any) -> Any:
        return attend(query, key, value, mask, 0.0, *more)

    with (
        mock.patch.object(functional, "dropout", off),
        mock.patch.object(functional, "scaled_dot_product_attention", attention),
    ):
        return functional.multi_head_attention_forward(*args, **{**kwargs, "training": True})


def is_causal(mask: Any, hint: bool | None = None, size: Any = None) -> bool:
    """Whether a mask may be left out; looking at its numbers saves time, not more."""
    return hint is True


def grouped_mm(
    mat_a: Any, mat_b: Any, *, offs: Any = None, bias: Any = None, out_dtype: Any = None
) -> Any:
    if offs is None or mat_a.dim() != 2 or mat_b.dim() != 3:
        return torch._grouped_mm(mat_a, mat_b, offs=offs, bias=bias, out_dtype=out_dtype)
    result = torch.ops.sardonyx.grouped_mm(mat_a, mat_b, offs)
    return result if bias is None else result + bias


def _recurrent(name: str) -> Callable[..., Any]:
    """A recurrent layer over any number of steps; one over packed sequences as it is."""

    def run(x: Any, states: Any, weights: Any, has_biases: Any, *settings: Any) -> Any:
        is_packed = not isinstance(has_biases, bool)
        layer = getattr(torch if is_packed else torch.ops.sardonyx, name)
        return layer(x, states, weights, has_biases, *settings)

    return run


def _lengths(lengths: Any, like: Any) -> Any:
    if isinstance(lengths, torch.Tensor):
        return lengths.to(torch.int64)
    return torch.tensor(lengths, dtype=torch.int64, device=like.device)


def _reduced(loss: Any, reduction: str) -> Any:
    return {"mean": torch.mean, "sum": torch.sum}.get(reduction, lambda x: x)(loss)


REPLACEMENTS: dict[Any, Callable[..., Any]] = {
    **PLAIN,
    functional.gaussian_nll_loss: gaussian_nll_loss,
    functional.multilabel_margin_loss: multilabel_margin_loss,
    functional.ctc_loss: ctc_loss,
    functional.embedding: embedding,
    functional.embedding_bag: embedding_bag,
    functional.rrelu: rrelu,
    functional.adaptive_max_pool1d: _adaptive_max_pool(1),
    functional.adaptive_max_pool2d: _adaptive_max_pool(2),
    functional.adaptive_max_pool3d: _adaptive_max_pool(3),
    torch.cdist: cdist,
    functional.multi_head_attention_forward: multi_head_attention_forward,
}
for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
    REPLACEMENTS[getattr(torch, name)] = _recurrent(name)
if hasattr(torch, "_grouped_mm"):
    REPLACEMENTS[torch._grouped_mm] = grouped_mm
if hasattr(functional, "linear_cross_entropy"):  # since torch 2.13
    REPLACEMENTS[functional.linear_cross_entropy] = linear_cross_entropy


class Replacing(TorchFunctionMode):
    """Inside, torch calls the replacements."""

    def __enter__(self) -> Replacing:
        self.masks = mock.patch.object(transformer, "_detect_is_causal_mask", is_causal)
        self.masks.start()
        return super().__enter__()  # type: ignore[no-any-return, no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        self.masks.stop()
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return REPLACEMENTS.get(func, func)(*args, **(kwargs or {}))
