"""How the update of a step runs on a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sardonyx.engines.torch.cpu_update import on_cpu
from sardonyx.engines.torch.foreach import Grouped
from sardonyx.engines.torch.fused_update import Fused, compile_for_gpu, current
from sardonyx.engines.torch.xp import torch


def fused(graph: torch.fx.GraphModule, over: Mapping[int, int], device: Any) -> Grouped:
    """The graph with kernels of its own on CPUs and NVIDIA GPUs; else by `_foreach_` functions."""
    if device.type == "cpu":
        return on_cpu(graph, over)
    if device.type != "cuda" or torch.version.cuda is None:
        return Grouped(graph)
    try:
        with current(device):
            return Fused(graph, over, compile_for_gpu)
    except (AttributeError, RuntimeError, OSError, TypeError):  # a torch without NVRTC
        return Grouped(graph)
