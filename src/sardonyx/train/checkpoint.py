"""The checkpoint is the model: state in the record, the position of the loop in the metadata.

Everything that decides how training goes on is in the file, and nothing that differs between two
runs of the same training (no times, no paths): an interrupted and an uninterrupted run end in the
same bytes.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from sardonyx.errors import ArgumentError, SardonyxError, TrainingStopped, quote
from sardonyx.model import Model
from sardonyx.save import save

try:
    import fcntl
except ImportError:  # Windows has no flock: one run per output is up to the user
    fcntl = None  # type: ignore[assignment]

LOOP = "sardonyx.loop"


@dataclass
class Position:
    """How far a training has come, and its metrics so far."""

    seed: int = 0
    batch_size: int = 32
    shuffle: bool | str = True  # "hash": in the order of `record/hash_order.py`
    drop_last: bool = False
    share: float | None = None  # of the rows that is held back for validation
    epochs: int | None = None  # how long the run is to be
    steps: int | None = None
    length: int | None = None  # rows of the data, where it has rows
    fingerprint: str = ""  # of the contents of the data, where it has one
    overrides: list[list[str]] = field(default_factory=list)  # settings, in the file, and now
    epoch: int = 0  # completed
    batch: int = 0  # of the epoch that is under way, completed
    step: int = 0  # completed
    rows: int = 0  # seen in this epoch
    sums: dict[str, float] = field(default_factory=dict)  # metrics of this epoch, weighted by rows
    history: list[dict[str, float]] = field(default_factory=list)
    best: float | None = None
    best_epoch: int | None = None  # the first epoch is 1
    waited: int = 0  # epochs without improvement
    finished: bool = False


def with_position(model: Model, position: Position) -> Model:
    """The model with the position written into its metadata (the model itself is changed)."""
    model.metadata[LOOP] = json.dumps(asdict(position), sort_keys=True)
    return model


def position_of(model: Model) -> Position | None:
    """Where the training of this model stands, if it was written by a training."""
    stored = model.metadata.get(LOOP)
    if stored is None:
        return None
    try:
        return Position(**json.loads(stored))
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"the loop state of this model cannot be read: {error}") from error


def write(model: Model, path: Path) -> None:
    """Write a checkpoint in one piece: whoever reads the path sees the old or the new model,
    whole.
    """
    try:
        save(model, path)
    except SardonyxError as error:
        if not isinstance(error.__cause__, OSError):
            raise
        raise TrainingStopped(
            error.what,
            hint="what was saved before is whole; free the disk or choose another output, then "
            "--resume",
        ) from error


class Lock:
    """One training per output file; the system drops the lock when the process ends, however it
    ends.

    Whoever holds the lock of the file that is at the path holds the lock: the file is removed only
    under its lock, and who locks a file that is no longer there tries again with the next one.
    """

    def __init__(self, path: Path):
        self.path = path.with_name(f".{path.name}.lock")
        self.file: Any = None

    def __enter__(self) -> Lock:
        while True:
            self.file = self._open()
            try:
                _lock(self.file)
            except OSError as error:
                os.close(self.file)
                raise TrainingStopped(
                    f"another run is training into {quote(str(self.path.name[1:-5]))}",
                    hint="wait for it, or choose another output",
                ) from error
            if self._is_at_path():
                return self
            os.close(self.file)

    def _open(self) -> int:
        try:
            return os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise TrainingStopped(
                f"cannot write into {quote(str(self.path.parent))}: {error.strerror}",
                hint="choose an output in a folder that you may write to",
            ) from error

    def _is_at_path(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self.file), self.path.stat())
        except FileNotFoundError:
            return False

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if fcntl is not None:  # the lock is still held: no other process can use this file
            self.path.unlink(missing_ok=True)
        os.close(self.file)


def _lock(file: int) -> None:
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
