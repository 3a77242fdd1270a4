"""What torch's kernels do by themselves: promotion of types; layouts of gradients; embeddings."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from sardonyx.engines.torch.backend import laid_out_like  # noqa: E402
from sardonyx.engines.torch.promotion import drop_casts  # noqa: E402
from sardonyx.engines.torch.xp import arrays  # noqa: E402

WIDE, NARROW = torch.randn(3, 4), torch.randn(3, 4).bfloat16()


def casts(graph: Any) -> int:
    return sum(n.target is torch.ops.aten.to.dtype for n in graph.graph.nodes)


@pytest.mark.parametrize(
    "function, first, left",
    [
        (lambda x, y: x + y.to(torch.float32), WIDE, 0),
        (lambda x, y: y.to(torch.float32) * x, WIDE, 0),
        (lambda x, y: x - y.to(torch.float32).exp(), WIDE, 1),  # computed in single precision
        (lambda x, y: x + y.to(torch.float32), torch.tensor(0.1), 1),  # a scalar promotes nothing
        (lambda x, y: y.to(torch.float32) * y.to(torch.float32), WIDE, 1),
    ],
    ids=["sum", "product", "exponential", "scalar", "one of two"],
)
def test_casts_that_kernels_do(function: Any, first: Any, left: int) -> None:
    graph = make_fx(function, tracing_mode="fake", pre_dispatch=True)(first, NARROW)
    expected = function(first, NARROW)
    drop_casts(graph)
    assert casts(graph) == left
    result = graph(first, NARROW)
    assert result.dtype == expected.dtype and torch.equal(result, expected)


def test_gradients_get_the_layout_of_their_variables() -> None:
    variable = torch.randn(4, 3, 2, 2)
    turned = torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)
    result = laid_out_like(variable, turned)
    assert result.stride() == variable.stride() and torch.equal(result, turned)
    assert laid_out_like(turned, turned) is turned
    assert laid_out_like(variable, None).abs().sum() == 0


def test_rows_of_a_matrix_are_an_embedding() -> None:
    """Its gradient adds up in a fixed order; `index_select` does not on GPUs."""
    weight = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    index = torch.tensor([[0, 4], [4, 2]])
    rows = arrays("cpu").take(weight, index, 0)
    assert torch.equal(rows, weight[index]) and "Embedding" in str(rows.grad_fn)
    (gradient,) = torch.autograd.grad((rows * rows).sum(), [weight])
    (expected,) = torch.autograd.grad((weight[index] ** 2).sum(), [weight])
    torch.testing.assert_close(gradient, expected)
