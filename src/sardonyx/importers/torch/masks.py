"""Dropout in torch with the masks that the record of an imported model draws.

torch draws every mask with `bernoulli_`, in the order in which the graph has its Dropout nodes.
Inside `Masks`, these draws give the masks of the record, a hash of (seed, step, node, element): a
network then takes the same training steps in torch as everywhere else.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sardonyx.errors import ImportDiffers
from sardonyx.importers.torch.stochastic_depth import ALMOST_ONE
from sardonyx.model import Model
from sardonyx.record.describe import descriptions
from sardonyx.record.hash_random import GOLDEN, LAST_SHIFT, ROUNDS
from sardonyx.record.modes import mode_of

aten = torch.ops.aten


class Masks(TorchDispatchMode):
    """A context in which torch draws the masks of `sites`, the Dropout nodes of a model, in order.

    step   -- the number of steps before this one; it is counted up by `next_step`
    ratios -- of the nodes, where uniform numbers, one for each row, are masks too
    unread -- the places, among the draws of a step, of masks that nothing reads: no node has them
    """

    def __init__(
        self,
        sites: Sequence[str],
        seed: int = 0,
        step: int = 0,
        ratios: Mapping[str, float] | None = None,
        unread: Container[int] = (),
    ):
        super().__init__()
        self.ratios = dict(ratios or {})
        self.sites, self.seed, self.step = list(sites), seed, step
        self.draws, self.places, self.unread = 0, 0, unread
        self._by_state: dict[bytes, str | None] = {}

    def next_step(self) -> None:
        """Begin the next training step; the draws of this one must have been complete."""
        if self.draws != len(self.sites):
            raise ImportDiffers(
                f"torch draws {self.draws} masks in a training step, the model {len(self.sites)}"
            )
        self.step, self.draws, self.places = self.step + 1, 0, 0
        self._by_state.clear()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is aten.rand.default and self.ratios and _is_row(args[0]):
            site, numbers = self._site(), func(*args, **(kwargs or {}))
            return numbers if site is None else self._uniform(site, numbers)
        if func is not aten.bernoulli_.float:
            return func(*args, **(kwargs or {}))
        noise, keep = args[0], float(args[1]) if len(args) > 1 else 0.5
        site = self._site()
        result = func(*args, **(kwargs or {}))  # the generator moves on
        if site is None:
            return result
        mask = keep_mask(site, tuple(noise.shape), 1.0 - keep, self.seed, self.step)
        return noise.copy_(torch.from_numpy(mask))

    def _uniform(self, site: str, numbers: Any) -> Any:
        """Numbers that round down to the mask when the share that stays is added."""
        mask = keep_mask(site, tuple(numbers.shape), self.ratios[site], self.seed, self.step)
        return torch.from_numpy(mask).to(numbers.dtype) * ALMOST_ONE

    def _site(self) -> str | None:
        """The node of this draw, if it has one.

        `torch.utils.checkpoint` computes a part of the network again in the backward pass, and
        puts the state of the generator back for it: the same node again.
        """
        state = _state()
        if state not in self._by_state:
            self.places += 1
            if self.places - 1 in self.unread:
                self._by_state[state] = None
                return None
            if self.draws >= len(self.sites):
                raise ImportDiffers(
                    f"torch draws more than the {len(self.sites)} masks of the model",
                    hint="a part of the network is random in training mode only",
                )
            self._by_state[state] = self.sites[self.draws]
            self.draws += 1
        return self._by_state[state]


class _Turned(TorchDispatchMode):
    """One mask, by its place among the draws, drops what it keeps, and the reverse."""

    def __init__(self, place: int):
        super().__init__()
        self.place, self.states = place, dict[bytes, int]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is not aten.bernoulli_.float:
            return func(*args, **(kwargs or {}))
        place = self.states.setdefault(_state(), len(self.states))
        mask = func(*args, **(kwargs or {}))
        return mask.copy_(1 - mask) if place == self.place else mask


def unread_masks(run: Callable[[], Sequence[torch.Tensor]], count: int) -> frozenset[int]:
    """The places, among the draws of a run, of masks on which no result depends.

    The last layer of a network may have a dropout whose result nothing reads: torch draws its
    mask, and a graph has no node for it. None where there are not `count` masks besides.
    """

    def results(place: int) -> tuple[list[torch.Tensor], int]:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), _Turned(place) as masks:
            torch.manual_seed(0)
            return list(run()), len(masks.states)

    first, draws = results(-1)
    if draws <= count:
        return frozenset()
    unread = frozenset(p for p in range(draws) if all(map(_equal, results(p)[0], first)))
    return unread if draws - len(unread) == count else frozenset()


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())


def _state() -> bytes:
    return torch.get_rng_state().numpy().tobytes()


def dropouts(model: Model) -> list[ir.Node]:
    """The Dropout nodes of a model, in order; without those that its record keeps switched off."""
    described = descriptions(model)[-1:] or [{}]
    mode = described[0].get("arguments", {}).get("dropout", "train")
    nodes = [n for n in model.graph if n.op_type == "Dropout" and n.domain == ""]
    return [n for n in nodes if mode_of(n, mode) == "train"]


def sites_of(model: Model) -> list[str]:
    """The names by which the Dropout nodes of a model draw their masks, in order."""
    return [n.name or n.outputs[0].name or "dropout" for n in dropouts(model)]


def ratios_of(model: Model) -> dict[str, float]:
    """The ratios of the Dropout nodes of a model, by their names as in `sites_of`."""
    ratios = (ir.convenience.get_const_tensor(n.inputs[1]) for n in dropouts(model))  # type: ignore[arg-type]
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
