"""Example labels for the losses of `torch.nn`, where the caller has passed none."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from sardonyx.errors import ArgumentError, quote
from sardonyx.importers.torch.capture import evaluation_mode, quiet
from sardonyx.importers.torch.source import Source

CLASSES = (nn.CrossEntropyLoss, nn.NLLLoss, nn.MultiMarginLoss)
LIKE = (
    nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCELoss, nn.BCEWithLogitsLoss,
    nn.KLDivLoss, nn.PoissonNLLLoss, nn.MultiLabelSoftMarginLoss, nn.SoftMarginLoss,
    nn.HingeEmbeddingLoss,
)  # fmt: skip


def example_labels(source: Source) -> Any:
    """Labels of the kind that a loss of `torch.nn` takes; of other losses they must be given."""
    with evaluation_mode(source.module), torch.no_grad(), quiet():
        result = source.call(source.module)
    if isinstance(result, torch.Tensor) and isinstance(source.loss, CLASSES):
        count = result.shape[1] if result.dim() > 1 else result.shape[0]
        shape = result.shape[:1] + result.shape[2:] if result.dim() > 1 else ()
        generator = torch.Generator().manual_seed(0)
        return torch.randint(0, count, tuple(shape), generator=generator)
    if isinstance(result, torch.Tensor) and isinstance(source.loss, LIKE):
        generator = torch.Generator().manual_seed(0)
        return torch.rand(result.shape, generator=generator, dtype=torch.float64).to(result.dtype)
    name = getattr(source.loss, "__name__", type(source.loss).__name__)
    raise ArgumentError(
        f"the loss {quote(name)} needs example labels", hint="pass labels=, as the loss takes them"
    )
