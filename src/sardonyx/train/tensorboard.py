"""TensorBoard event files: a callback that writes the figures of every epoch and the loss of
every step.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sardonyx.errors import MissingExtra

if TYPE_CHECKING:
    from sardonyx.train.loop import Callback, Run


def events(folder: str | Path) -> Callback:
    """A callback for `train(callbacks=[…])` that writes event files into `folder`."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as error:
        raise MissingExtra("tensorboard", "tensorboard") from error
    writer = EventFileWriter(str(folder))
    seen = 0

    def note(run: Run) -> None:
        nonlocal seen
        figures = {"loss": run.losses[-1]} if run.losses else {}
        for epoch in run.history[seen:]:
            figures |= {f"epoch/{n}": v for n, v in epoch.items() if n not in ("epoch", "step")}
        seen = len(run.history)
        values = [Summary.Value(tag=n, simple_value=v) for n, v in figures.items()]
        writer.add_event(Event(step=run.position.step, summary=Summary(value=values)))
        writer.flush()

    return note
