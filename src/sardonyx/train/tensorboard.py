"""TensorBoard event files: a callback that writes the metrics of every epoch and the loss of
every step.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sardonyx.errors import ArgumentError, MissingExtra, quote

if TYPE_CHECKING:
    from sardonyx.train.run import Run


def events(folder: str | Path) -> Events:
    """A callback for `train(callbacks=[…])` that writes event files into `folder`."""
    return Events(folder)


class Events:
    """Writes the loss of every step and the metrics of every epoch, the last one included."""

    def __init__(self, folder: str | Path):
        # tensorboard imports TensorFlow where there is one, and that talks to stderr.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise MissingExtra("tensorboard", "tensorboard") from error
        if Path(folder).exists() and not Path(folder).is_dir():
            raise ArgumentError(f"the events go to a folder, and {quote(folder)} is a file")
        self.event, self.summary = Event, Summary
        self.writer: Any = EventFileWriter(str(folder))
        self.seen = 0

    def __call__(self, run: Run) -> None:
        self._epochs(run)
        self._add(run.position.step, {"loss": run.losses[-1]})

    def end(self, run: Run) -> None:
        self._epochs(run)
        self.writer.close()

    def _epochs(self, run: Run) -> None:
        for epoch in run.history[self.seen :]:
            metrics = {f"epoch/{n}": v for n, v in epoch.items() if n not in ("epoch", "step")}
            self._add(int(epoch["step"]), metrics)
            self.writer.flush()
        self.seen = len(run.history)

    def _add(self, step: int, metrics: dict[str, float]) -> None:
        values = [self.summary.Value(tag=n, simple_value=v) for n, v in metrics.items()]
        event = self.event(wall_time=time.time(), step=step, summary=self.summary(value=values))
        self.writer.add_event(event)
