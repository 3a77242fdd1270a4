"""What the processes of one training must have alike: compared before the first step, and decided
by the first of them while they train. What each of them reads whole is compared as it is read.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from sardonyx.errors import ArgumentError, DataError
from sardonyx.model import Model
from sardonyx.train.fields import field_names
from sardonyx.train.processes import Part
from sardonyx.train.run import Run, RunSettings
from sardonyx.train.tables import Rows, Source, Stream

ENDED = 1 << 32  # where a batch has a digest, for there are no more


def refuse_disagreement(
    run: Run, net: Model, settings: RunSettings, source: Source, validation: Source | None
) -> None:
    """One error if processes start from other weights, steps, data or settings.

    Each would compute gradients of its own network on its own order of the rows, without a word.
    """
    if run.processes.count == 1:
        return
    position = run.position
    numbers = [position.step, position.length or 0]
    kept = asdict(position) | {"step": 0, "length": 0}
    parts: list[Iterable[bytes]] = [
        [json.dumps(kept, sort_keys=True).encode(), *_identity(source, run)],
        _contents(net),
        [_settings(settings).encode()],
        _identity(validation, run),
    ]
    words = np.array(numbers + [_digest(part) for part in parts], np.uint32)
    everyone = run.rep.placement.gathered(words)
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
    step, length, data, weights, settings, validation = first != other
    rows = []
    if step:
        rows.append(f"starts after {other[0]} steps, the first after {first[0]}")
    if length:
        rows.append(f"has {other[1]} rows of data, the first {first[1]}")
    if data and not step and not length:
        rows.append("has other data, or another order of it")
    if weights:
        rows.append("has other weights")
    if settings:
        rows.append("has other settings")
    if validation:
        rows.append("has other validation data")
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


def _identity(source: Source | None, run: Run) -> list[bytes]:
    """What data can be told by before it is read: of rows that are computed when they are asked
    for, perhaps anew each time, how many there are and the first labels.
    """
    if source is None or isinstance(source, Stream):
        return []
    fingerprint = source.fingerprint(field_names(run.links))
    labels = {n for term in run.settings.get("loss_terms", []) for n in term["labels"]}
    fields = [item.field for item in run.links if item.input in labels and item.constant is None]
    samples = [] if fingerprint else [source.sample(name) for name in sorted(fields)]
    first = [repr(sample[:64].tolist()) for sample in samples]
    return [f"{len(source)} {fingerprint} {first}".encode()]


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
    """Whether there are several processes, and a callback of the first has stopped the run."""
    if run.processes.count == 1:
        return False
    flag: Any = run.rep.placement.gathered(np.array([bool(run.stopped)], np.uint32))
    return bool(flag[0, 0])


def same_batches(run: Run, source: Source, batches: Iterable[Rows]) -> Iterator[Rows]:
    """The batches; one error where processes have read different ones, or other numbers of them.

    Each process has all rows of a stream, and of a batch that does not divide. Different ones would
    train as many networks, and a process with more of them would wait for the others in vain.
    """
    number = 0
    for number, batch in enumerate(batches, 1):
        if isinstance(batch, Part) and batch.digest is not None:
            _refuse_other_batch(run, source, number, batch.digest)
        yield batch
    if isinstance(source, Stream) and run.processes.count > 1:
        _refuse_other_batch(run, source, number + 1, ENDED)


def _refuse_other_batch(run: Run, source: Source, number: int, digest: int) -> None:
    first, *others = run.rep.placement.gathered(np.array(divmod(digest, ENDED), np.uint32))
    rows = []
    for rank, other in enumerate(others, 1):
        if (other != first).any():
            words = "has no more batches" if other[0] else "has other rows in it"
            words = words if not first[0] else "has more batches than the first"
            rows.append([f"process {rank}", words])
    if rows:
        raise DataError(
            f"batch {number:,} that the processes of this training read of {source.origin}, in "
            f"epoch {run.position.epoch + 1}, is not the same in all of them",
            rows,
            hint="give every process the same batches in the same order, without a sampler that "
            "parts them; of rows that change each time they are read, take batches that divide",
        )
