"""A region that runs on another engine, as one operator of torch.

Autograd, torch.compile and torch.export all handle it.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from sardonyx.engines import callout
from sardonyx.engines.torch.xp import DTYPES, arrays, torch
from sardonyx.errors import EngineError
from sardonyx.lower.partition import Region

# An operator takes tensors and plain values only, so a region is passed as a key: a hash of its
# content, under which equal regions are one.
REGIONS: dict[str, Region] = {}


def key_of(region: Region) -> str:
    if "key" not in region.cache:
        content = region.model.proto().SerializeToString(deterministic=True)
        digest = hashlib.sha256(region.engine.encode() + content).hexdigest()[:16]
        region.cache["key"] = f"{region.label} on {region.engine} ({digest})"
    key: str = region.cache["key"]
    REGIONS.setdefault(key, region)
    return key


def call_out(region: Region, tensors: list[Any]) -> tuple[Any, ...]:
    """The outputs of a region, as part of torch's graph."""
    return tuple(_call_out(tensors, key_of(region)))


@torch.library.custom_op("sardonyx::call_out", mutates_args=())
def _call_out(xs: list[torch.Tensor], region: str) -> list[torch.Tensor]:
    placed = REGIONS[region]
    xp = arrays("cpu")
    arrays_in = [xp.to_numpy(x, dtype) for x, dtype in zip(xs, placed.input_types, strict=True)]
    results = callout.run(placed, arrays_in)
    device = xs[0].device if xs else "cpu"
    types = zip(results, placed.output_types, strict=True)
    return [xp.asarray(np.asarray(v, dtype)).to(device) for v, dtype in types]


@_call_out.register_fake
def _shapes(xs: list[torch.Tensor], region: str) -> list[torch.Tensor]:
    placed = REGIONS[region]
    xp = arrays("cpu")
    outputs = []
    for sizes, dtype in zip(placed.sizes([x.shape for x in xs]), placed.output_types, strict=True):
        if sizes is None or dtype is None:
            raise EngineError("the rank or type of a region's output is unknown", [[region]])
        shape = [_new_size() if d is None else d for d in sizes]
        device = xs[0].device if xs else "cpu"
        outputs.append(torch.empty(shape, dtype=DTYPES[xp.storage(dtype)], device=device))
    return outputs


def _new_size() -> Any:
    return torch.library.get_ctx().new_dynamic_size()


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    xs, ctx.region = inputs
    ctx.save_for_backward(*xs)


def _pull(ctx: Any, grads: list[Any]) -> Any:
    region, xs = REGIONS[ctx.region], ctx.saved_tensors
    gradients: list[Any] = [None] * len(xs)
    backward = callout.gradient(region)
    if backward is None:
        return gradients, None
    graph = region.model.graph
    output_positions, input_positions = region.floats(graph.outputs), region.floats(graph.inputs)
    types = region.output_types
    seeds = [_seed(region, xs, grads[i], i, DTYPES[types[i]]) for i in output_positions]  # type: ignore[index]
    computed = call_out(backward, [*xs, *seeds])
    for position, dx in zip(input_positions, computed, strict=True):
        gradients[position] = dx
    return gradients, None


def _seed(region: Region, xs: Any, grad: Any, position: int, dtype: Any) -> Any:
    """The cotangent of one output; zeros where autograd has none."""
    if grad is not None:
        return grad
    outputs = _call_out(list(xs), key_of(region))
    return torch.zeros_like(outputs[position], dtype=dtype)


_call_out.register_autograd(_pull, setup_context=_keep)

__all__ = ["call_out"]
