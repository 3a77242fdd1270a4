"""Pairs of operations for which torch has one kernel: fewer passes over memory on a CPU.

A sum with a multiple, a product or a quotient is one pass instead of two or three. Such a kernel
may round once where two operations round twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from sardonyx.engines.torch.xp import torch

aten = torch.ops.aten
Node: TypeAlias = torch.fx.Node


def add_multiple(x: Any, a: Any, factor: float) -> Any:
    return torch.add(x, a, alpha=factor)


def add_product(x: Any, a: Any, b: Any) -> Any:
    return torch.addcmul(x, a, b)


def subtract_multiple(x: Any, a: Any, factor: Any) -> Any:
    return torch.sub(x, a, alpha=float(factor))


def subtract_quotient(x: Any, a: Any, b: Any, factor: Any) -> Any:
    return torch.addcdiv(x, a, b, value=-float(factor))


Lists = Callable[..., Any]
# Function of tensors → its kinds of operands, as `foreach.py` has them; the same of lists; and the
# same that replaces the first list.
MERGED: dict[Any, tuple[tuple[str, ...], Lists, Lists]] = {
    add_multiple: (
        ("TTs",),
        lambda x, a, factor: torch._foreach_add(x, a, alpha=factor),
        lambda x, a, factor: torch._foreach_add_(x, a, alpha=factor),
    ),
    add_product: (("TTT",), torch._foreach_addcmul, torch._foreach_addcmul_),
    subtract_multiple: (
        ("TT0", "TTs"),
        lambda x, a, factor: torch._foreach_sub(x, a, alpha=float(factor)),
        lambda x, a, factor: torch._foreach_sub_(x, a, alpha=float(factor)),
    ),
    subtract_quotient: (
        ("TTT0", "TTTs"),
        lambda x, a, b, factor: torch._foreach_addcdiv(x, a, b, value=-float(factor)),
        lambda x, a, b, factor: torch._foreach_addcdiv_(x, a, b, value=-float(factor)),
    ),
}


def merge_operations(module: torch.fx.GraphModule) -> None:
    """Merge sums and differences with the operation that makes one of their operands."""
    for node in list(module.graph.nodes):
        if not _is_elementwise(node) or len(node.args) != 2:
            continue
        if node.target is aten.add.Tensor:
            _merge_sum(node)
        elif node.target is aten.sub.Tensor:
            _merge_difference(node)
    module.graph.eliminate_dead_code()
    module.recompile()


def _merge_sum(node: Node) -> None:
    pairs = [node.args, node.args[::-1]]
    for x, product in pairs:
        if _is_alone(product, aten.mul.Tensor) and all(
            _is_like(v, node) for v in (x, *product.args)
        ):
            node.target, node.args = add_product, (x, *product.args)
            return
    for x, multiple in pairs:
        if _is_alone(multiple, aten.mul.Tensor) and _is_like(x, node):
            a, factor = multiple.args
            if _is_like(a, node) and isinstance(factor, float):
                node.target, node.args = add_multiple, (x, a, factor)
                return


def _merge_difference(node: Node) -> None:
    x, multiple = node.args
    if not _is_like(x, node) or not _is_alone(multiple, aten.mul.Tensor):
        return
    for a, factor in (multiple.args, multiple.args[::-1]):
        if not _is_like(a, node) or not _is_number(factor, node):
            continue
        if _is_alone(a, aten.div.Tensor) and all(_is_like(v, node) for v in a.args):
            node.target, node.args = subtract_quotient, (x, *a.args, factor)
        else:
            node.target, node.args = subtract_multiple, (x, a, factor)
        return


def _is_elementwise(node: Node) -> bool:
    value = node.meta.get("val")
    if node.op != "call_function" or node.kwargs or not isinstance(value, torch.Tensor):
        return False
    return value.ndim > 0 and value.is_floating_point()


def _is_alone(value: Any, target: Any) -> bool:
    """Whether a value is made by this operation, for one reader."""
    if not isinstance(value, torch.fx.Node) or value.target is not target:
        return False
    return len(value.users) == 1 and not value.kwargs and len(value.args) == 2


def _is_like(value: Any, node: Node) -> bool:
    tensor, result = getattr(value, "meta", {}).get("val"), node.meta["val"]
    if not isinstance(tensor, torch.Tensor):
        return False
    return bool(tensor.shape == result.shape and tensor.dtype == result.dtype)


def _is_number(value: Any, node: Node) -> bool:
    tensor = getattr(value, "meta", {}).get("val")
    if isinstance(tensor, torch.Tensor):
        return tensor.ndim == 0 and tensor.dtype == node.meta["val"].dtype
    return isinstance(value, float)
