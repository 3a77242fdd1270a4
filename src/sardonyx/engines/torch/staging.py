"""Copies between this machine and a GPU that nothing waits for: batches ahead, metrics behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sardonyx.engines.torch.xp import DTYPES, Torch, torch
from sardonyx.lower.program import to_numpy
from sardonyx.lower.xp import BFLOAT16

STEPS_AHEAD = 4  # of the device: its queue is never empty, and little memory is held
COPIED = {t for t in DTYPES if t not in (BFLOAT16, *Torch.carried)}


class Staging:
    """Copies batches to a GPU on a stream of their own, from memory that the GPU reads itself."""

    def __init__(self, device: torch.device):
        self.device = device
        self.stream = torch.cuda.Stream(device)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The batch on the GPU; what torch has no type for stays as it is."""
        with torch.cuda.stream(self.stream):
            staged = {n: self._copied(a) for n, a in batch.items()}
            event = self.stream.record_event()
        for name, value in staged.items():
            if isinstance(value, torch.Tensor):
                staged[name] = Staged(value, event)
        return staged

    def _copied(self, array: Any) -> Any:
        if not isinstance(array, np.ndarray) or array.dtype not in COPIED:
            return array
        pinned = torch.empty(array.shape, dtype=DTYPES[array.dtype], pin_memory=True)
        pinned.numpy()[...] = array
        return pinned.to(self.device, non_blocking=True)


class Staged:
    """A tensor that is on its way to a GPU."""

    def __init__(self, tensor: torch.Tensor, event: torch.cuda.Event):
        self.tensor, self.event = tensor, event
        self.shape = tuple(tensor.shape)

    def arrived(self) -> torch.Tensor:
        """The tensor, for which what is computed next will wait; not this thread."""
        stream = torch.cuda.current_stream(self.tensor.device)
        stream.wait_event(self.event)
        self.tensor.record_stream(stream)
        return self.tensor


def read_later(
    xp: Torch, values: Mapping[str, Any], types: Mapping[str, Any]
) -> Callable[[], dict[str, np.ndarray]]:
    """Start copies of results to this machine's memory; the call that reads them waits for these
    copies, not for what the GPU computes after them.
    """
    copies = dict(values)
    for name, value in values.items():
        if isinstance(value, torch.Tensor) and value.is_cuda:
            copies[name] = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
            copies[name].copy_(value, non_blocking=True)
    event = torch.cuda.current_stream(xp.device).record_event()

    def read() -> dict[str, np.ndarray]:
        event.synchronize()
        return {n: np.array(to_numpy(xp, v, types.get(n))) for n, v in copies.items()}

    return read
