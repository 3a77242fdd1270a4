"""A training as its user holds it: `Run`, its settings, and the engine that carries it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx.model import Model, load
from sardonyx.train.checkpoint import Position, position_of, with_position
from sardonyx.train.fields import Link


@dataclass(repr=False)
class Run:
    """A training: `run.model` is the model as it is now, `run.history` the metrics of each
    epoch.
    """

    rep: Any
    position: Position
    links: list[Link]
    settings: dict[str, Any]
    facts: list[tuple[str, str]] = field(default_factory=list)  # about the data, for people
    best: tuple[dict[str, np.ndarray], Position] | None = None
    best_file: Path | None = None
    times: dict[str, float] = field(default_factory=dict)
    losses: array[float] = field(default_factory=lambda: array("d"))
    stopped: str = ""

    def __repr__(self) -> str:
        """What has been done, in one line: `Run(2 epochs, 40 steps, loss 0.31, on torch)`."""
        done = f"{len(self.history)} epochs, {self.position.step} steps"
        loss = self.history[-1].get("loss") if self.history else None
        metrics = done if loss is None else f"{done}, loss {loss:.4g}"
        where = f", on {self.engine}" if self.engine else ""
        return f"Run({metrics}{where}{f', stopped: {self.stopped}' if self.stopped else ''})"

    @property
    def engine(self) -> str:
        """The engine that trains; with `engine="auto"`, the one that was fastest."""
        rows = [row for row in self.settings.get("choices", []) if row[0] == "engine"]
        return str(rows[-1][1]) if rows else ""

    @property
    def model(self) -> Model:
        """A whole ONNX model: it serves, saves, and continues."""
        return with_position(self.rep.to_model(), self.position)

    @property
    def best_model(self) -> Model | None:
        """The model of the best epoch so far, also if that was before a resume."""
        if self.best is not None:
            state, position = self.best
            return with_position(self.rep.to_model(state), position)
        if self.best_file is None or not self.best_file.exists():
            return None
        best = load(self.best_file)
        best_position = position_of(best)
        return (
            best if best_position and best_position.best_epoch == self.position.best_epoch else None
        )

    @property
    def history(self) -> list[dict[str, float]]:
        return self.position.history

    def stop(self, why: str) -> None:
        """Ask the loop to end after this step (for callbacks)."""
        self.stopped = why


# Called after every step; one that has a method `end` is told when the run is over.
Callback = Callable[[Run], Any]


@dataclass
class RunSettings:
    """The settings of one training, as asked for."""

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

    def total(self, count: int | None) -> int | None:
        """How many steps the run has, where that is known; `count` is those of an epoch."""
        from_epochs = None if self.epochs is None or count is None else self.epochs * count
        lengths = [n for n in (from_epochs, self.steps) if n is not None]
        return (
            min(lengths) if lengths and (from_epochs is not None or self.epochs is None) else None
        )


def best_path(output: Path) -> Path:
    """`tuned.onnx` keeps its best epoch in `tuned.best.onnx`."""
    return output.with_name(f"{output.stem}.best{output.suffix}")
