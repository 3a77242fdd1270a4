"""A training as its user holds it: `Run`, its settings, and the engine that carries it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx import html_page as html
from sardonyx.errors import counted
from sardonyx.model import Model, load
from sardonyx.train.checkpoint import Position, position_of, with_position
from sardonyx.train.fields import Link
from sardonyx.train.processes import Processes


def everything_is_read() -> None:
    """What is left to read of a run that is over: nothing."""


@dataclass(repr=False)
class Run:
    """A training: `run.model` is the model as it is now, `run.history` the metrics of each
    epoch.
    """

    rep: Any
    position: Position
    links: list[Link]
    settings: dict[str, Any]
    facts: list[tuple[str, str]] = field(default_factory=list)  # about the data, to display
    best: tuple[dict[str, np.ndarray], Position] | None = None
    best_file: Path | None = None
    file: Path | None = None  # the output
    metadata: dict[str, str] = field(default_factory=dict)  # about the data, for the model
    partial: dict[str, float] = field(default_factory=dict)  # metrics of an epoch cut short
    confusion: dict[tuple[int, int], int] = field(default_factory=dict)  # (label, class) → rows
    times: dict[str, float] = field(default_factory=dict)
    read_losses: array[float] = field(default_factory=lambda: array("d"))
    read_metrics: Callable[[], None] = everything_is_read
    stopped: str = ""
    processes: Processes = field(default_factory=Processes)
    whole: dict[str, np.ndarray] | None = None  # the state at the end, where processes have parts

    def __repr__(self) -> str:
        """What has been done, in one line: `Run(2 epochs, 40 steps, loss 0.31, on torch)`."""
        progress = f"{counted(self.position.epoch, 'epoch')}, {counted(self.position.step, 'step')}"
        loss = {**(self.history[-1] if self.history else {}), **self.partial}.get("loss")
        metrics = progress if loss is None else f"{progress}, loss {loss:.4g}"
        where = f", on {self.engine}" if self.engine else ""
        return f"Run({metrics}{where}{f', stopped: {self.stopped}' if self.stopped else ''})"

    def _repr_html_(self) -> str:
        """The summary and the metrics of each epoch, for a notebook."""
        names = list(dict.fromkeys(n for epoch in self.history for n in epoch))
        rows = [[f"{e[n]:.6g}" if n in e else "" for n in names] for e in self.history]
        table = html.table(names, rows) if rows else ""
        return f"<p><code>{html.text(repr(self))}</code></p>{table}"

    @property
    def engine(self) -> str:
        """The engine that trains; with `engine="auto"`, the one that was fastest."""
        rows = [row for row in self.settings.get("choices", []) if row[0] == "engine"]
        return str(rows[-1][1]) if rows else ""

    @property
    def losses(self) -> array[float]:
        """The loss of every step of this run; a GPU may have to finish steps for it."""
        self.read_metrics()
        return self.read_losses

    @property
    def model(self) -> Model:
        """A whole ONNX model: it serves, saves, and continues."""
        self.read_metrics()
        return self._model(self.whole, self.position)

    @property
    def state(self) -> dict[str, np.ndarray]:
        """All state by name, as it is now."""
        return self.rep.state() if self.whole is None else self.whole  # type: ignore[no-any-return]

    @property
    def is_spread(self) -> bool:
        """Whether reading the model takes all processes of the training."""
        several = self.processes.count > 1 and self.whole is None
        return several and bool(self.rep.placement.is_spread)

    def gather(self) -> None:
        """Hold the whole state: from now on, what a process reads concerns no other one."""
        if self.is_spread:
            self.whole = self.rep.state()

    @property
    def best_model(self) -> Model | None:
        """The model of the best epoch so far, also if that was before a resume."""
        if self.best is not None:
            return self._model(*self.best)
        if self.best_file is None or not self.best_file.exists():
            return None
        best = load(self.best_file)
        best_position = position_of(best)
        return (
            best if best_position and best_position.best_epoch == self.position.best_epoch else None
        )

    def _model(self, state: Any, position: Position) -> Model:
        model = with_position(self.rep.to_model(*([] if state is None else [state])), position)
        model.metadata.update(self.metadata)
        return model

    @property
    def history(self) -> list[dict[str, float]]:
        return self.position.history

    def stop(self, why: str) -> None:
        """Ask the loop to end after this step (for callbacks)."""
        self.stopped = why


# Called after every step; its method `end`, where it has one, is called when the run is over.
Callback = Callable[[Run], Any]


@dataclass
class RunSettings:
    """The settings of one training."""

    epochs: int | None
    steps: int | None
    metrics: Sequence[Any]
    patience: int | None
    watch: str
    lower: bool  # whether a lower metric is better
    every_steps: int | None
    every_minutes: float | None
    output: Path | None
    callbacks: Sequence[Callback]
    keep_best: bool
    may_stop: bool = False  # whether callbacks, which the first process has, may stop the run

    def total(self, count: int | None) -> int | None:
        """The number of steps of the run, where that is known; `count` is that of an epoch."""
        from_epochs = None if self.epochs is None or count is None else self.epochs * count
        lengths = [n for n in (from_epochs, self.steps) if n is not None]
        return (
            min(lengths) if lengths and (from_epochs is not None or self.epochs is None) else None
        )


def best_path(output: Path) -> Path:
    """`tuned.onnx` keeps its best epoch in `tuned.best.onnx`."""
    return output.with_name(f"{output.stem}.best{output.suffix}")
