"""One training in several processes: which of them this is, as torchrun and the like tell it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sardonyx.errors import ArgumentError
from sardonyx.train.fields import Link
from sardonyx.train.tables import Rows

JAX, TORCH = "jax", "torch"


@dataclass(frozen=True)
class Processes:
    """The number of this process, and how many there are.

    pieces -- into how many pieces the devices part the rows of a batch; 0: each process reads all
    """

    rank: int = 0
    count: int = 1
    pieces: int = 0

    @property
    def leads(self) -> bool:
        """Whether this process writes files and speaks."""
        return self.rank == 0

    def share(self, count: int) -> slice | None:
        """The rows of a batch that this process reads; None where all read the whole batch."""
        if self.count == 1 or not self.pieces or not count or count % self.pieces:
            return None
        rows = count // self.count
        return slice(self.rank * rows, (self.rank + 1) * rows)


class Part(dict[str, Any]):
    """What one of several processes feeds of a batch, by input.

    total    -- the number of rows in the whole batch
    is_whole -- whether it feeds all of them, as every other process does
    digest   -- of the whole batch, where this process has read all of it
    """

    total = 0
    is_whole = False
    digest: int | None = None

    def like(self, feeds: Rows) -> Part:
        """The same rows in other arrays."""
        part = Part(feeds)
        part.total, part.is_whole, part.digest = self.total, self.is_whole, self.digest
        return part


def are_several() -> bool:
    """Whether the environment names other processes of this training."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


def join(engine: str, device: str | None = None) -> Processes:
    """Meet the other processes of this training, where the environment names them."""
    if not are_several():
        return Processes()
    if engine == TORCH:
        from sardonyx.engines.torch import processes

        return Processes(*processes.join_processes(device))
    if engine != JAX:
        raise ArgumentError(
            f"the engine {engine!r} trains in one process, and WORLD_SIZE is "
            f"{os.environ['WORLD_SIZE']}",
            hint=f"--engine {JAX} and --engine {TORCH} train in several",
        )
    from sardonyx.engines.jax.mesh import join_processes

    return Processes(*join_processes())


def device_here(engine: str, device: str | None) -> str | None:
    """The device of this process: of several GPUs of a machine, each process has one."""
    if engine != TORCH or not are_several():
        return device
    from sardonyx.engines.torch.processes import local_device

    return local_device(device)


def check_mesh(
    engine: str, device: str | None, devices: Any, mesh: Mapping[str, int] | None, shard: str
) -> dict[str, Any]:
    """The options of the engine for several devices; an error if they are not there."""
    if devices is None and mesh is None and shard == "auto":
        return {}
    if engine not in (JAX, TORCH):
        raise ArgumentError(
            f"devices=, mesh= and shard= are for the engines {JAX} and {TORCH}, not {engine!r}",
            hint=f'--engine {JAX} (engine="{JAX}")',
        )
    if engine == TORCH:
        from sardonyx.engines.torch.processes import placement_of

        placement_of(devices, mesh, shard)
    else:
        from sardonyx.engines.jax.mesh import mesh_of

        mesh_of(devices, mesh, shard, device)
    return {"devices": devices, "mesh": mesh, "shard": shard}


def with_pieces(processes: Processes, rep: Any) -> Processes:
    """The processes with the number of pieces into which their devices part a batch."""
    placement = getattr(rep, "placement", None)
    if processes.count == 1 or placement is None:
        return processes
    return replace(processes, pieces=placement.pieces)


def staged(rep: Any, batch: Rows) -> Rows:
    """A batch as the engine reads it soonest: perhaps on its way to a device already."""
    arrays = rep.staged(batch)
    return batch.like(arrays) if isinstance(batch, Part) else arrays


@contextlib.contextmanager
def spread(rep: Any, batch: Any, links: list[Link]) -> Iterator[None]:
    """Around a step on several devices: which of its inputs are parts of a batch."""
    if not isinstance(batch, Part) or batch.is_whole:
        yield
        return
    rep.placement.parts = {item.input: item.axis for item in links if item.constant is None}
    try:
        yield
    finally:
        rep.placement.parts = None
