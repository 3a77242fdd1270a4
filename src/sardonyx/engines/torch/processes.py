"""One training in several processes, over `torch.distributed`.

Each process computes with its rows of a batch (`engines/rows`), so that losses, batch statistics
and masks are those of one device. The loss is a mean over the processes, each of which has all of
it: collective operations are differentiated as the sums that they are, and gradients are averaged,
as `DistributedDataParallel` does. With `shard="state"`, a process holds its part of every variable:
parameters are gathered for the forward pass and their gradients come back in parts, as in FSDP.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch.distributed as dist

from sardonyx.engines.rows.work import World
from sardonyx.engines.torch.xp import torch
from sardonyx.errors import ArgumentError, EngineError, TrainingStopped
from sardonyx.lower.custom_native import NATIVE
from sardonyx.lower.driver import lowering

SHARDS = ("auto", "replicate", "state")
PEER_TIMEOUT = datetime.timedelta(seconds=300)  # another process may still compile
BUCKET = 25 << 20  # bytes of gradients that are averaged at once


def join_processes(device: str | None) -> tuple[int, int]:
    """The number of this process and how many there are, as torchrun and the like tell it."""
    if not dist.is_initialized():
        # Its functions have the group of the moment of import as a default argument. Torch imports
        # it when a custom operator first runs: then they would keep the group open for ever.
        importlib.import_module("torch.distributed.nn.functional")
        # gloo for what is exchanged on the CPU beside the gradients: flags, settings, metrics
        cuda = device is not None and device.startswith("cuda")
        backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
        try:
            dist.init_process_group(backend, timeout=PEER_TIMEOUT, **_meeting_place())
        except (RuntimeError, ValueError) as error:
            raise EngineError(f"the processes of this training did not meet: {error}") from error
        # Left open, its threads may abort a process that ends: they let go of tensors when Python
        # is no longer there.
        atexit.register(_leave)
    return dist.get_rank(), dist.get_world_size()


def _meeting_place() -> dict[str, Any]:
    """Where the processes of one attempt meet, if torchrun has started them, perhaps again.

    torchrun keeps its store when it starts the processes again, and the addresses of those that
    have ended with it: each attempt has names of its own.
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT")
    if attempt is None or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return {}
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, world, is_master=False, timeout=PEER_TIMEOUT)
    named = dist.PrefixStore(f"sardonyx/attempt/{attempt}", store)
    return {"store": named, "rank": rank, "world_size": world}


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def local_device(device: str | None) -> str | None:
    """The device of this process: of several GPUs of a machine, each process has one."""
    return f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if device == "cuda" else device


def placement_of(devices: int | None, mesh: Mapping[str, int] | None, shard: str) -> Parts | None:
    """How state and batches are spread over the processes; None for one process."""
    if shard not in SHARDS:
        raise ArgumentError(f"shard is one of {', '.join(SHARDS)}, not {shard!r}")
    world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    sizes = {"data": devices or world, **(mesh or {})}
    if sizes.keys() != {"data"}:
        raise ArgumentError(
            "torch spreads a training over the axis data alone", hint='engine="jax" has model too'
        )
    count = sizes["data"]
    if (devices is not None and devices != count) or count != world:
        raise ArgumentError(
            f"{world} processes train on {world} devices, not {count}",
            hint=f"torchrun --nproc-per-node {count} -m sardonyx train … starts {count}",
        )
    if world == 1:
        if shard == "state":
            raise ArgumentError('shard="state" needs several processes', hint="start with torchrun")
        return None
    return Parts(World(dist.get_rank(), world), shard)


@dataclass
class Parts:
    """How the state is spread over the processes.

    parts -- inputs of which this process feeds its rows alone, and the axis of these rows
    """

    world: World
    shard: str
    parts: Mapping[str, int] | None = None

    def __str__(self) -> str:
        words = "state spread over them" if self.shard == "state" else "state on each"
        return f"{self.world.size} (data {self.world.size}), {words}"

    @property
    def pieces(self) -> int:
        return self.world.size

    @property
    def is_spread(self) -> bool:
        """Whether a process holds parts of the state only."""
        return self.shard == "state"

    def gathered(self, words: np.ndarray) -> np.ndarray:
        """Numbers of every process, which are as many in each: a row of them for each process."""
        own = torch.from_numpy(words.astype(np.int64))
        rows = [torch.empty_like(own) for _ in range(self.world.size)]
        with ended_processes_reported():
            dist.all_gather(rows, own)
        return torch.stack(rows).numpy().astype(np.uint32)

    def axis(self, shape: Sequence[int]) -> int | None:
        """Along which axis a variable is spread: the largest that divides."""
        fit = [i for i, n in enumerate(shape) if n and n % self.world.size == 0]
        return max(fit, key=lambda i: shape[i]) if self.shard == "state" and fit else None

    def own(self, tensor: Any, axis: int) -> Any:
        """The part of this process."""
        size = tensor.shape[axis] // self.world.size
        return tensor.narrow(axis, self.world.rank * size, size)


# -- collective operations, which torch can trace and differentiate ----------------------------


@contextlib.contextmanager
def ended_processes_reported() -> Iterator[None]:
    """Turn what torch says of a process that has ended into one line."""
    try:
        yield
    except RuntimeError as error:
        raise TrainingStopped(
            f"another process of this training has ended: {str(error).splitlines()[0][:200]}",
            hint="start all processes again with --resume; torchrun --max-restarts does so",
        ) from error


@torch.library.custom_op("sardonyx::all_sum", mutates_args=())
def all_sum(x: torch.Tensor) -> torch.Tensor:
    total = x.clone(memory_format=torch.contiguous_format)
    with ended_processes_reported():
        dist.all_reduce(total)
    return total


@all_sum.register_fake
def _(x):  # type: ignore[no-untyped-def]
    return torch.empty_like(x, memory_format=torch.contiguous_format)


all_sum.register_autograd(lambda context, g: all_sum(g))


@torch.library.custom_op("sardonyx::all_rows", mutates_args=())
def all_rows(x: torch.Tensor, axis: int, count: int) -> torch.Tensor:
    rows = x.movedim(axis, 0).contiguous()
    pieces = [torch.empty_like(rows) for _ in range(count)]
    with ended_processes_reported():
        dist.all_gather(pieces, rows)
    return torch.cat(pieces).movedim(0, axis).contiguous()


@all_rows.register_fake
def _(x, axis, count):  # type: ignore[no-untyped-def]
    sizes = list(x.shape)
    sizes[axis] = sizes[axis] * count
    return x.new_empty(sizes)


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.axis, ctx.count = inputs[1], inputs[2]


def _own_sum(ctx: Any, g: Any) -> tuple[Any, None, None]:
    total, size = all_sum(g), g.shape[ctx.axis] // ctx.count
    return total.narrow(ctx.axis, dist.get_rank() * size, size).contiguous(), None, None


all_rows.register_autograd(_own_sum, setup_context=_save)


@lowering("AllSum", domain=NATIVE, only="torch")
def lower_all_sum(xp, x):
    return all_sum(x)


@lowering("AllRows", domain=NATIVE, only="torch")
def lower_all_rows(xp, x, *, axis):
    return all_rows(x, axis, dist.get_world_size())


@lowering("OwnRows", domain=NATIVE, only="torch")
def lower_own_rows(xp, x, *, axis):
    if x.shape[axis] == 1:
        return x
    size = x.shape[axis] // dist.get_world_size()
    return x.narrow(axis, dist.get_rank() * size, size)


# -- gradients ----------------------------------------------------------------------------------


def averaged(gradients: Sequence[Any], spread: Sequence[bool]) -> list[Any]:
    """The means of gradients over the processes.

    spread -- which of them are sums already, of the part that this process holds
    """
    count = dist.get_world_size()
    results = [g / count if is_part else g for g, is_part in zip(gradients, spread, strict=True)]
    whole = [i for i, is_part in enumerate(spread) if not is_part]
    with ended_processes_reported():
        waiting = [_reduced(results, places) for places in _buckets(results, whole)]
        for places, flat, work in waiting:
            work.wait()
            flat /= count
            sizes = [results[i].numel() for i in places]
            for i, piece in zip(places, flat.split(sizes), strict=True):
                results[i] = piece.view(results[i].shape)
    return results


def _buckets(gradients: Sequence[Any], places: Sequence[int]) -> Iterator[list[int]]:
    """Gradients of one type, a few megabytes at once."""
    bucket: list[int] = []
    total = 0
    for i in sorted(places, key=lambda i: str(gradients[i].dtype)):
        is_other = bucket and gradients[i].dtype != gradients[bucket[0]].dtype
        if bucket and (is_other or total >= BUCKET):
            yield bucket
            bucket, total = [], 0
        bucket.append(i)
        total += gradients[i].nbytes
    if bucket:
        yield bucket


def _reduced(gradients: Sequence[Any], places: list[int]) -> tuple[list[int], Any, Any]:
    flat = torch.cat([gradients[i].reshape(-1) for i in places])
    return places, flat, dist.all_reduce(flat, async_op=True)


def any_of(flag: bool) -> bool:
    """Whether it is so in one of the processes."""
    number = torch.tensor(float(flag))
    with ended_processes_reported():
        dist.all_reduce(number)
    return bool(number.item())
