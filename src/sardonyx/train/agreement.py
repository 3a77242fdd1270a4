"""What the processes of one training must have alike: compared before the first step, and decided
by the first of them while they train.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from sardonyx.errors import ArgumentError
from sardonyx.model import Model
from sardonyx.train.run import Run, RunSettings


def refuse_disagreement(run: Run, net: Model, settings: RunSettings) -> None:
    """One error if processes start from other weights, steps, data or settings.

    Each would compute gradients of its own network on its own order of the rows, without a word.
    """
    if run.processes.count == 1:
        return
    position = run.position
    numbers = [position.step, position.length or 0]
    kept = asdict(position) | {"step": 0, "length": 0}
    digests = [_digest([json.dumps(kept, sort_keys=True).encode()])]
    digests += [_digest(_contents(net)), _digest([_settings(settings).encode()])]
    everyone = run.rep.placement.gathered(np.array(numbers + digests, np.uint32))
    rows = [row for rank in range(1, len(everyone)) for row in _differences(rank, everyone)]
    if rows:
        raise ArgumentError(
            "the processes of this training do not agree",
            rows,
            hint="all processes read the same model, data and output, from a file system that they "
            "share; a model that has its record (sardonyx trainable) is the same for all of them",
        )


def _differences(rank: int, everyone: np.ndarray) -> list[list[str]]:
    first, other = everyone[0], everyone[rank]
    step, length, position, weights, settings = first != other
    rows = []
    if step:
        rows.append(f"starts after {other[0]} steps, the first after {first[0]}")
    if length:
        rows.append(f"has {other[1]} rows of data, the first {first[1]}")
    if position and not step and not length:
        rows.append("has other data, or another order of it")
    if weights:
        rows.append("has other weights")
    if settings:
        rows.append("has other settings")
    return [[f"process {rank}", words] for words in rows]


def _contents(net: Model) -> Iterable[bytes]:
    """The numbers of a model, and what computes with them."""
    for value in net.graph.initializers.values():
        if value.const_value is not None:
            yield f"{value.name} {value.const_value.shape}".encode()
            yield value.const_value.tobytes()
    for record in net.records:
        for name, tensor in record.state.items():
            yield name.encode()
            yield tensor.tobytes()
        yield " ".join(node.op_type for node in record.algorithm).encode()
    yield " ".join(node.op_type for node in net.graph).encode()


def _settings(settings: RunSettings) -> str:
    numbers = (settings.epochs, settings.steps, settings.patience, settings.every_steps)
    metrics = [m if isinstance(m, str) else getattr(m, "__name__", "") for m in settings.metrics]
    writes = settings.output is not None
    return repr((numbers, metrics, settings.watch, settings.keep_best, settings.may_stop, writes))


def _digest(parts: Iterable[bytes]) -> int:
    digest = 0
    for part in parts:
        digest = zlib.crc32(part, digest)
    return digest


def of_the_first(run: Run, values: Mapping[str, float]) -> dict[str, float]:
    """Numbers as the first process has them: what depends on them happens in all or in none."""
    if run.processes.count == 1 or not values:
        return dict(values)
    words = np.array(list(values.values()), np.float64).view(np.uint32)
    numbers = np.ascontiguousarray(run.rep.placement.gathered(words)[0]).view(np.float64)
    return dict(zip(values, map(float, numbers), strict=True))


def stopped_by_the_first(run: Run) -> bool:
    """Whether a callback of the first process has stopped the run."""
    flag: Any = run.rep.placement.gathered(np.array([bool(run.stopped)], np.uint32))
    return bool(flag[0, 0])
