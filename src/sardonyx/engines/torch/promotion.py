"""Casts that torch's kernels do by themselves.

In mixed precision a narrow tensor is widened before it is added to a wide one. torch's elementwise
kernels read both types and compute in the wider one: the copy in between only takes time.
"""

from __future__ import annotations

from sardonyx.engines.torch.xp import torch

aten = torch.ops.aten
KERNELS = (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor)
HALVES = (torch.float16, torch.bfloat16)


def drop_casts(module: torch.fx.GraphModule) -> None:
    """Let kernels read halves that a graph widens for them; nodes still have their metadata."""
    for node in list(module.graph.nodes):
        if not _is_widening(node):
            continue
        for reader in list(node.users):
            others = [a for a in reader.args if isinstance(a, torch.fx.Node) and a is not node]
            if reader.target in KERNELS and others and all(_is_wide(a) for a in others):
                reader.replace_input_with(node, node.args[0])
        if not node.users:
            module.graph.erase_node(node)
    module.recompile()


def _is_widening(node: torch.fx.Node) -> bool:
    if node.target is not aten.to.dtype or node.args[1] is not torch.float32:
        return False
    source = node.args[0].meta.get("val")  # type: ignore[union-attr]
    return isinstance(source, torch.Tensor) and source.dtype in HALVES


def _is_wide(node: torch.fx.Node) -> bool:
    """Whether a kernel computes in single precision because of this operand: no scalar is."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype == torch.float32 and value.ndim > 0
