"""Cross entropy of bfloat16 scores, row by row, against torch's loss of widened scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from sardonyx.engines.torch import narrow_loss  # noqa: E402

F = torch.nn.functional


def _scores(rows: int, classes: int) -> Any:
    torch.manual_seed(0)
    return (torch.randn(rows, classes) * 4).bfloat16()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("ignored", [0, 3])
@pytest.mark.parametrize("elements", [1, 70, 1 << 24])
def test_loss_and_gradient_are_those_of_wide_scores(
    reduction: str, ignored: int, elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(narrow_loss, "ROWS", elements)
    target = torch.randint(0, 23, (17,))
    target[:ignored] = -100
    narrow = _scores(17, 23).requires_grad_()
    wide = narrow.detach().double().requires_grad_()
    number = {"mean": narrow_loss.MEAN, "sum": narrow_loss.SUM}[reduction]
    loss = narrow_loss.cross_entropy(narrow, target, None, number)
    expected = F.cross_entropy(wide, target, reduction=reduction)
    assert loss.dtype == torch.float32
    np.testing.assert_allclose(loss.item(), expected.item(), rtol=1e-6)
    (3 * loss).backward()
    (3 * expected).backward()
    # twice rounded to eight bits: as the gradient is stored, and times the gradient of the loss
    np.testing.assert_allclose(narrow.grad.double(), wide.grad, rtol=2**-7, atol=1e-9)


def test_nothing_to_count_is_not_a_number_as_in_torch() -> None:
    target = torch.full((4,), -100)
    assert torch.isnan(narrow_loss.cross_entropy(_scores(4, 5), target))
    assert torch.isnan(F.cross_entropy(_scores(4, 5).float(), target))


@pytest.mark.parametrize("moved", [False, True])
def test_graphs_read_narrow_scores(moved: bool) -> None:
    target = torch.randint(0, 5, (6,))

    def loss(scores: Any) -> Any:
        wide = scores.to(torch.float32)
        wide = wide.reshape(2, 5, 3).permute(0, 2, 1).reshape(6, 5) if moved else wide
        return F.cross_entropy(wide, target)

    graph = torch.fx.experimental.proxy_tensor.make_fx(
        loss, tracing_mode="fake", pre_dispatch=True, _allow_non_fake_inputs=True
    )(_scores(6, 5))
    narrow_loss.narrow_losses(graph)
    targets = [node.target for node in graph.graph.nodes]
    assert narrow_loss.cross_entropy in targets
    assert torch.ops.aten.to.dtype not in targets
    np.testing.assert_allclose(graph(_scores(6, 5)), loss(_scores(6, 5)), rtol=1e-6)


def test_scores_that_something_else_reads_stay_wide() -> None:
    target = torch.randint(0, 5, (6,))

    def loss(scores: Any) -> Any:
        wide = scores.to(torch.float32)
        return F.cross_entropy(wide, target), wide.exp()

    graph = torch.fx.experimental.proxy_tensor.make_fx(
        loss, tracing_mode="fake", pre_dispatch=True, _allow_non_fake_inputs=True
    )(_scores(6, 5))
    narrow_loss.narrow_losses(graph)
    assert narrow_loss.cross_entropy not in [node.target for node in graph.graph.nodes]
