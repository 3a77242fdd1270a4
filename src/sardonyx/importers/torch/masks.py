"""Dropout in torch with the masks that the record of an imported model draws.

torch draws every mask with `bernoulli_`, in the order in which the graph has its Dropout nodes.
Inside `Masks`, these draws give the masks of the record, a hash of (seed, step, node, element): a
network then takes the same training steps in torch as everywhere else.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sardonyx.errors import ImportDiffers
from sardonyx.importers.torch.stochastic_depth import ALMOST_ONE
from sardonyx.model import Model
from sardonyx.record.hash_random import GOLDEN, LAST_SHIFT, ROUNDS

aten = torch.ops.aten


class Masks(TorchDispatchMode):
    """A context in which torch draws the masks of `sites`, the Dropout nodes of a model, in order.

    step   -- the number of steps before this one; it is counted up by `next_step`
    ratios -- of the nodes, where uniform numbers, one for each row, are masks too
    """

    def __init__(
        self,
        sites: Sequence[str],
        seed: int = 0,
        step: int = 0,
        ratios: Mapping[str, float] | None = None,
    ):
        super().__init__()
        self.ratios = dict(ratios or {})
        self.sites, self.seed, self.step = list(sites), seed, step
        self.draws = 0
        self._by_state: dict[bytes, str] = {}

    def next_step(self) -> None:
        """Begin the next training step; the draws of this one must have been complete."""
        if self.draws != len(self.sites):
            raise ImportDiffers(
                f"torch draws {self.draws} masks in a training step, the model {len(self.sites)}"
            )
        self.step, self.draws = self.step + 1, 0
        self._by_state.clear()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is aten.rand.default and self.ratios and _is_row(args[0]):
            site = self._site()
            return self._uniform(site, func(*args, **(kwargs or {})))
        if func is not aten.bernoulli_.float:
            return func(*args, **(kwargs or {}))
        noise, keep = args[0], float(args[1]) if len(args) > 1 else 0.5
        site = self._site()
        func(*args, **(kwargs or {}))  # the generator moves on
        mask = keep_mask(site, tuple(noise.shape), 1.0 - keep, self.seed, self.step)
        return noise.copy_(torch.from_numpy(mask))

    def _uniform(self, site: str, numbers: Any) -> Any:
        """Numbers that round down to the mask when the share that stays is added."""
        mask = keep_mask(site, tuple(numbers.shape), self.ratios[site], self.seed, self.step)
        return torch.from_numpy(mask).to(numbers.dtype) * ALMOST_ONE

    def _site(self) -> str:
        """The node of this draw. `torch.utils.checkpoint` computes a part of the network again in
        the backward pass, and puts the state of the generator back for it: the same node again.
        """
        state = torch.get_rng_state().numpy().tobytes()
        if state not in self._by_state:
            if self.draws >= len(self.sites):
                raise ImportDiffers(
                    f"torch draws more than the {len(self.sites)} masks of the model",
                    hint="a part of the network is random in training mode only",
                )
            self._by_state[state] = self.sites[self.draws]
            self.draws += 1
        return self._by_state[state]


def sites_of(model: Model) -> list[str]:
    """The names by which the Dropout nodes of a model draw their masks, in order."""
    nodes = [n for n in model.graph if n.op_type == "Dropout" and n.domain == ""]
    return [n.name or n.outputs[0].name or "dropout" for n in nodes]


def ratios_of(model: Model) -> dict[str, float]:
    """The ratios of the Dropout nodes of a model, by their names as in `sites_of`."""
    nodes = [n for n in model.graph if n.op_type == "Dropout" and n.domain == ""]
    ratios = (ir.convenience.get_const_tensor(n.inputs[1]) for n in nodes)  # type: ignore[arg-type]
    return {
        site: float(ratio.numpy()) if ratio is not None else 0.0
        for site, ratio in zip(sites_of(model), ratios, strict=True)
    }


def _is_row(shape: Sequence[Any]) -> bool:
    return len(shape) > 1 and all(size == 1 for size in shape[1:])


def keep_mask(
    site: str, shape: tuple[int, ...], ratio: float, seed: int = 0, step: int = 0
) -> np.ndarray:
    """Which elements stay: the mask that the record draws at a node (`record/hash_random.py`)."""
    golden = np.uint32(GOLDEN)
    with np.errstate(over="ignore"):
        key = np.uint32(seed & 0xFFFFFFFF) * golden
        key = _mix(key + np.uint32(step & 0xFFFFFFFF))
        key = _mix(key ^ np.uint32(zlib.crc32(site.encode())))
        index = np.arange(math.prod(shape), dtype=np.int64).astype(np.uint32).reshape(shape)
        bits = _mix((index * golden) ^ key)
    threshold = np.float32(ratio) * np.float32(1 << 24)
    return (bits >> np.uint32(8)).astype(np.float32) >= threshold


def _mix(x: Any) -> Any:
    for shift, factor in ROUNDS:
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
    return x ^ (x >> np.uint32(LAST_SHIFT))
