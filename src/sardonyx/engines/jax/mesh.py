"""Many devices: where the state of a training and the rows of a batch are.

jax computes with whole arrays, wherever their parts are, so that losses, batch statistics and masks
are those of one device. This module only decides on placements: rows of a batch are spread over the
axis "data" of a mesh; parameters and slots are copies on all devices ("replicate"), or spread over
"data" ("state") or over the axis "model", if the mesh has one.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sardonyx.engines.jax.xp import jax
from sardonyx.errors import ArgumentError, EngineError, TrainingStopped
from sardonyx.lower.devices import kind_and_index

SHARDS = ("auto", "replicate", "state")
AXES = ("data", "model")
HEARTBEAT = 10  # seconds after which a process that does not answer is taken for ended
PartitionSpec, NamedSharding = jax.sharding.PartitionSpec, jax.sharding.NamedSharding


def mesh_of(
    devices: int | None, mesh: Mapping[str, int] | None, shard: str, device: str | None
) -> Placement | None:
    """The placement that a user asks for; None for one device."""
    if shard not in SHARDS:
        raise ArgumentError(f"shard is one of {', '.join(SHARDS)}, not {shard!r}")
    several = jax.process_count() > 1
    if devices is None and mesh is None and not several:
        if shard != "auto":
            raise ArgumentError(f'shard="{shard}" needs several devices', hint="devices=2, or more")
        return None
    everything = _devices(device)
    sizes = dict(mesh or {})
    wrong = [n for n, size in sizes.items() if n not in AXES or not _is_count(size)]
    if wrong or (devices is not None and not _is_count(devices)):
        raise ArgumentError(
            "devices is a number from 1, and mesh has numbers from 1 for "
            f"{' and '.join(AXES)}, not {wrong[0] if wrong else devices!r}"
        )
    count = devices or (math.prod(sizes.values()) if sizes else len(everything))
    sizes = sizes or {"data": count}
    if math.prod(sizes.values()) != count:
        raise ArgumentError(
            f"the mesh {sizes} has {math.prod(sizes.values())} devices, not {count}"
        )
    if count > len(everything) or (several and count != len(everything)):
        raise EngineError(
            f"jax has {len(everything)} devices here, not {count}",
            hint="on CPUs, XLA_FLAGS=--xla_force_host_platform_device_count=N makes N of them",
        )
    places = np.array(everything[:count]).reshape(tuple(sizes.values()))
    return Placement(jax.sharding.Mesh(places, tuple(sizes)), shard)


def _devices(device: str | None) -> list[Any]:
    kind = None if device is None else kind_and_index(device)[0]
    return list(jax.devices(kind))


def _is_count(value: Any) -> bool:
    is_whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return is_whole and bool(value >= 1)


@dataclass
class Placement:
    """A mesh of devices, and how the state is spread over it.

    parts -- inputs of which this process feeds its rows alone, and the axis of these rows
    """

    mesh: Any
    shard: str
    parts: Mapping[str, int] | None = None

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} {size}" for name, size in self.mesh.shape.items())
        spread = {"replicate": "state on each", "state": "state spread over them"}
        words = spread.get(self.shard, "state spread over model" if self._model > 1 else "")
        return f"{self.mesh.size} ({sizes})" + (f", {words}" if words else "")

    @property
    def _data(self) -> int:
        return int(self.mesh.shape.get("data", 1))

    @property
    def _model(self) -> int:
        return int(self.mesh.shape.get("model", 1))

    @property
    def pieces(self) -> int:
        """Into how many pieces the rows of a batch are parted; 0 where processes share rows."""
        return self._data if self._model == 1 else 0

    @property
    def is_spread(self) -> bool:
        """Whether a process may hold parts of the state only."""
        return self.shard == "state" or (self._model > 1 and self.shard != "replicate")

    def gathered(self, words: np.ndarray) -> np.ndarray:
        """Numbers of every process, which are as many in each: a row of them for each process."""
        from jax.experimental import multihost_utils

        with ended_processes_reported():
            rows = multihost_utils.process_allgather(words.astype(np.uint32))
        return np.asarray(rows).reshape(jax.process_count(), -1)

    def of_state(self, shape: tuple[int, ...]) -> Any:
        """Where a variable of this shape is."""
        axis, size = None, 1
        if self._model > 1 and self.shard != "replicate":
            axis, size = "model", self._model
        names: list[Any] = [None] * len(shape)
        if axis is not None:
            _spread(names, shape, axis, size)
        if self.shard == "state" and self._data > 1:
            _spread(names, shape, "data", self._data)
        return NamedSharding(self.mesh, PartitionSpec(*names))

    def of_rows(self, ndim: int, axis: int = 0) -> Any:
        names: list[Any] = [None] * ndim
        if self._data > 1:
            names[axis] = "data"
        return NamedSharding(self.mesh, PartitionSpec(*names))

    @property
    def everywhere(self) -> Any:
        return NamedSharding(self.mesh, PartitionSpec())

    def state(self, array: Any) -> Any:
        """A variable in its place."""
        return self._put(np.asarray(array), self.of_state(np.shape(array)))

    def feed(self, name: str, value: Any) -> Any:
        """An input of a step in its place: rows over the axis "data", if they divide."""
        axis = (self.parts or {}).get(name)
        if axis is not None:
            array = np.asarray(value)
            return jax.make_array_from_process_local_data(self.of_rows(array.ndim, axis), array)
        if jax.process_count() > 1:
            return self._put(np.asarray(value), self.everywhere)
        divides = np.ndim(value) > 0 and value.shape[0] and value.shape[0] % self._data == 0
        return jax.device_put(value, self.of_rows(np.ndim(value)) if divides else self.everywhere)

    def _put(self, array: np.ndarray, sharding: Any) -> Any:
        if jax.process_count() == 1:
            return jax.device_put(array, sharding)
        return jax.make_array_from_callback(array.shape, sharding, lambda part: array[part])

    def read(self, value: Any) -> Any:
        """An array with all its parts; every process takes part."""
        if value.is_fully_addressable or value.is_fully_replicated:
            return value
        from jax.experimental import multihost_utils

        return multihost_utils.process_allgather(value, tiled=True)

    def constrained(self, function: Any) -> Any:
        """A step whose new state stays where the old one was."""

        def placed(state: Mapping[str, Any], feeds: Mapping[str, Any]) -> Any:
            metrics, updates = function(state, feeds)
            constrain = jax.lax.with_sharding_constraint
            return (
                {n: constrain(v, self.everywhere) for n, v in metrics.items()},
                {n: constrain(v, self.of_state(v.shape)) for n, v in updates.items()},
            )

        return placed

    def jit(self, function: Any) -> Any:
        """A step compiled for the mesh."""
        compiled = jax.jit(self.constrained(function))

        def call(state: Mapping[str, Any], feeds: Mapping[str, Any]) -> Any:
            with ended_processes_reported():
                result = compiled(state, {n: self.feed(n, v) for n, v in feeds.items()})
                return jax.block_until_ready(result) if jax.process_count() > 1 else result

        return call


def _spread(names: list[Any], shape: tuple[int, ...], axis: str, size: int) -> None:
    """Spread the largest free dimension that divides over an axis of the mesh."""
    fit = [i for i, n in enumerate(shape) if n and n % size == 0 and names[i] is None]
    if fit:
        names[max(fit, key=lambda i: shape[i])] = axis


# -- processes ----------------------------------------------------------------------------------


def join_processes() -> tuple[int, int]:
    """The number of this process and how many there are, as torchrun and the like tell it."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1 or jax.distributed.is_initialized():
        return jax.process_index(), jax.process_count()
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    with contextlib.suppress(AttributeError, ValueError):
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(
            f"{address}:{port + 1 if port < 65535 else port - 1}",
            world,
            int(os.environ["RANK"]),
            heartbeat_timeout_seconds=HEARTBEAT,
        )
    except RuntimeError as error:
        raise EngineError(f"the processes of this training did not meet: {error}") from error
    return jax.process_index(), jax.process_count()


@contextlib.contextmanager
def ended_processes_reported() -> Iterator[None]:
    """Turn what jax says of a process that has ended into one line."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        if jax.process_count() == 1:
            raise
        raise TrainingStopped(
            f"another process of this training has ended: {str(error).splitlines()[0][:200]}",
            hint="start all processes again with --resume; torchrun --max-restarts does so",
        ) from error
