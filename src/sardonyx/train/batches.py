"""Batches of an epoch, in an order that depends only on (seed, epoch), prepared ahead."""

from __future__ import annotations

import queue
import threading
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from sardonyx.record.hash_order import hash_order
from sardonyx.train.fields import Link, convert, feeds, field_names, special_links
from sardonyx.train.processes import Part, Processes
from sardonyx.train.tables import Rows, Source, Stream, Table

AHEAD = 3
BLOCK = 1 << 22  # bytes of rows in memory that are gathered at once


def batch_count(source: Source, batch_size: int, drop_last: bool) -> int | None:
    """The number of batches in an epoch; None for a stream of unknown length."""
    if isinstance(source, Stream):
        return source.length
    full_batches, remainder = divmod(len(source), batch_size)
    return max(full_batches + bool(remainder and not drop_last), 1)


def epoch_blocks(
    source: Source,
    links: list[Link],
    batch_size: int,
    *,
    seed: int | None,
    epoch: int,
    start: int = 0,
    drop_last: bool = False,
    by_hash: bool = False,
    processes: Processes | None = None,
) -> Iterator[list[Rows]]:
    """The batches of one epoch from number `start` on, a few at once where rows are small;
    shuffled where `seed` is given, by NumPy or, the same in every language, by a hash.

    processes -- of a training in several: each feeds its rows alone of every batch that divides,
                 and reads no others of a table
    """
    special = special_links(links)
    several = processes if processes is not None and processes.count > 1 else None
    if isinstance(source, Stream):
        for index, batch in enumerate(source.batches(batch_size)):
            if index >= start:
                rows = convert(batch, links)
                yield [feeds(rows, special) if several is None else _part(rows, links, several)]
        return
    if several is not None:
        order = _order(len(source), seed, epoch, by_hash)
        for number in range(start, batch_count(source, batch_size, drop_last) or 0):
            numbers = order[number * batch_size : (number + 1) * batch_size]
            yield [_share(source, links, numbers, several)]
        return
    order = _order(len(source), seed, epoch, by_hash)
    fields = field_names(links)
    count = batch_count(source, batch_size, drop_last) or 0
    batches_per_block = _batches_at_once(source, fields, batch_size)
    for first in range(start, count, batches_per_block):
        block_rows = order[first * batch_size : min(first + batches_per_block, count) * batch_size]
        rows = convert(source.take(block_rows, fields), links)
        yield [
            feeds(
                {name: array[begin : begin + batch_size] for name, array in rows.items()}, special
            )
            for begin in range(0, len(block_rows), batch_size)
        ]


def _share(source: Table, links: list[Link], numbers: np.ndarray, processes: Processes) -> Part:
    """The rows of a batch that one of several processes feeds."""
    share = processes.share(len(numbers))
    chosen = numbers if share is None else numbers[share]
    rows = convert(source.take(chosen, field_names(links)), links)
    if share is None:
        return _part(rows, links, processes)
    return _fed(rows, links, len(numbers))


def _part(rows: Rows, links: list[Link], processes: Processes) -> Part:
    """The rows of a batch that one of several processes feeds, of all that it has read."""
    total = len(next(iter(rows.values())))
    share = processes.share(total)
    part = _fed(rows if share is None else {n: a[share] for n, a in rows.items()}, links, total)
    part.is_whole, part.digest = share is None, _digest(rows)
    return part


def _fed(rows: Rows, links: list[Link], total: int) -> Part:
    """Rows as they are fed; a constant has all rows of the batch in every process."""
    special = special_links(links)
    part = Part(feeds(rows, [item for item in special if item.constant is None]))
    part |= {i.input: i.filled(total) for i in special if i.constant is not None}
    part.total = total
    return part


def _digest(rows: Rows) -> int:
    digest = 0
    for name, array in sorted(rows.items()):
        text = array.dtype.kind in "OUS"
        digest = zlib.crc32(f"{name} {array.dtype} {array.shape}".encode(), digest)
        numbers = repr(array.tolist()).encode() if text else np.ascontiguousarray(array).tobytes()
        digest = zlib.crc32(numbers, digest)
    return digest


def _order(count: int, seed: int | None, epoch: int, by_hash: bool) -> np.ndarray:
    if seed is None:
        return np.arange(count)
    if by_hash:
        return hash_order(seed, epoch, count)
    return np.random.default_rng([seed, epoch]).permutation(count)


def _batches_at_once(source: Table, fields: set[str], batch_size: int) -> int:
    """Gathering a batch of small rows costs less than waking a thread for it: many share one."""
    row_bytes = source.row_bytes(fields)
    return 1 if row_bytes is None else max(BLOCK // max(row_bytes * batch_size, 1), 1)


class Prefetch:
    """Runs an iterator in a thread, a few items ahead; errors come out where the item would
    have.

    Two queues in C, one of items and one of free places, because a step can be shorter than what
    `queue.Queue` costs.
    """

    def __init__(self, items: Iterator[Any]):
        self.items = items
        self.ready: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self.places: queue.SimpleQueue[bool] = queue.SimpleQueue()
        for _ in range(AHEAD):
            self.places.put(True)
        self.stopped = False
        self.thread = threading.Thread(target=self._work, daemon=True, name="sardonyx-data")
        self.thread.start()

    def _work(self) -> None:
        try:
            for item in self.items:
                self.places.get()
                if self.stopped:
                    return
                self.ready.put(("item", item))
            self.ready.put(("end", None))
        except BaseException as error:  # handed over to the caller's thread
            self.ready.put(("error", error))

    def __iter__(self) -> Iterator[Any]:
        try:
            while True:
                kind, item = self.ready.get()
                if kind == "error":
                    raise item
                if kind == "end":
                    return
                self.places.put(True)
                yield item
        finally:
            self.close()

    def close(self) -> None:
        self.stopped = True
        self.places.put(True)
        self.thread.join(timeout=5)
