"""What a training shows while it runs: a live table on a terminal, lines elsewhere, JSON, or
nothing.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any, TextIO

from sardonyx.errors import ArgumentError, quote

if TYPE_CHECKING:
    from sardonyx.model import Model
    from sardonyx.train.data import Source
    from sardonyx.train.loop import Plan, Run

REFRESH = 0.2
LINE_EVERY = 10.0


class Display:
    """Shows nothing; the others override what they show."""

    def begin(
        self, run: Run, model: Model, source: Source, held: Source | None, plan: Plan
    ) -> None:
        """Before the first step: what was decided, how the data feeds the model."""

    def step(self, run: Run, count: int | None) -> None:
        """After every step; must be quick."""

    def epoch(self, run: Run) -> None:
        """After every epoch."""

    def end(self, run: Run) -> None:
        """After the last step."""


class Lines(Display):
    """Plain lines on stderr: the set-up, then one line per epoch, and one every ten seconds
    between.
    """

    def __init__(self, stream: TextIO | None = None):
        self.stream = stream or sys.stderr
        self.shown = time.monotonic()
        self.begun = self.shown
        self.first_step = 0

    def begin(
        self, run: Run, model: Model, source: Source, held: Source | None, plan: Plan
    ) -> None:
        for choice in run.settings.get("choices", []):
            self._print(f"{choice[0]}: {choice[1]} ({choice[2]})")
        for item in run.links:
            self._print(
                f"data: input {quote(item.input)} from field {quote(item.field)} ({item.why})"
            )
        if run.position.step:
            self._print(f"continuing at step {run.position.step}, epoch {run.position.epoch}")
        self.first_step = run.position.step
        self.begun = time.monotonic()

    def step(self, run: Run, count: int | None) -> None:
        now = time.monotonic()
        if now - self.shown >= LINE_EVERY:
            self.shown = now
            self._print(
                progress_text(run, count, run.position.step - self.first_step, now - self.begun)
            )

    def epoch(self, run: Run) -> None:
        self.shown = time.monotonic()
        self._print(history_text(run.history[-1]))

    def end(self, run: Run) -> None:
        self._print(end_text(run))

    def _print(self, text: str) -> None:
        print(text, file=self.stream, flush=True)


class Json(Display):
    """One JSON object per line on stdout, for machines."""

    def __init__(self, stream: TextIO | None = None):
        self.stream = stream or sys.stdout

    def _write(self, **entry: Any) -> None:
        print(json.dumps(entry, sort_keys=True), file=self.stream, flush=True)

    def begin(
        self, run: Run, model: Model, source: Source, held: Source | None, plan: Plan
    ) -> None:
        links = {item.input: item.field for item in run.links}
        self._write(
            event="begin",
            choices=run.settings.get("choices", []),
            fields=links,
            step=run.position.step,
        )

    def epoch(self, run: Run) -> None:
        self._write(event="epoch", **run.history[-1])

    def end(self, run: Run) -> None:
        self._write(
            event="end", step=run.position.step, finished=run.position.finished, stopped=run.stopped
        )


class Live(Lines):
    """A terminal: tables first, then a bar with loss, speed and time left, redrawn in place."""

    def __init__(self) -> None:
        from rich.console import Console

        super().__init__()
        self.console = Console(stderr=True)
        self.bar: Any = None
        self.task: Any = None

    def begin(
        self, run: Run, model: Model, source: Source, held: Source | None, plan: Plan
    ) -> None:
        from rich.markup import escape
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.table import Table as RichTable

        if run.settings.get("choices"):
            table = RichTable("setting", "value", "why", title="training")
            for what, value, why in run.settings["choices"]:
                table.add_row(escape(what), escape(value), escape(why))
            self.console.print(table)
        table = RichTable("input", "field", "type", "why", title="data")
        for item in run.links:
            table.add_row(escape(item.input), escape(item.field), str(item.dtype), escape(item.why))
        self.console.print(table)
        self.bar = Progress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(),
            TextColumn(
                "{task.completed}/{task.total}  loss {task.fields[loss]:.4f}  "
                "{task.fields[speed]:.0f} steps/s"
            ),
            TimeRemainingColumn(),
            console=self.console,
            refresh_per_second=5,
        )
        self.bar.start()
        self.task = self.bar.add_task(
            "train", total=None, epoch=run.position.epoch, loss=0.0, speed=0.0
        )
        self.first_step = run.position.step
        self.begun = self.shown = time.monotonic()

    def step(self, run: Run, count: int | None) -> None:
        now = time.monotonic()
        if now - self.shown < REFRESH:
            return
        self.shown = now
        position = run.position
        speed = (position.step - self.first_step) / max(now - self.begun, 1e-9)
        self.bar.update(
            self.task,
            total=count,
            completed=position.batch,
            epoch=position.epoch,
            loss=run.losses[-1],
            speed=speed,
        )

    def epoch(self, run: Run) -> None:
        self.bar.console.print(history_text(run.history[-1]), highlight=False)

    def end(self, run: Run) -> None:
        self.bar.stop()
        self.console.print(end_text(run), highlight=False)


def progress_text(run: Run, count: int | None, steps: int, seconds: float) -> str:
    position = run.position
    speed = steps / max(seconds, 1e-9)
    where = f"batch {position.batch}" + (f"/{count}" if count else "")
    return f"epoch {position.epoch} {where}  loss {run.losses[-1]:.4f}  {speed:.0f} steps/s"


def history_text(figures: dict[str, float]) -> str:
    rest = "  ".join(f"{n} {v:.4f}" for n, v in figures.items() if n not in ("epoch", "step"))
    return f"epoch {int(figures['epoch'])}  {rest}"


def end_text(run: Run) -> str:
    position = run.position
    why = f"stopped: {run.stopped}" if run.stopped else "done"
    best = "" if position.best_epoch is None else f", best epoch {position.best_epoch}"
    seconds = run.times.get("total", 0.0)
    done = f"{position.step} steps, {position.epoch} epochs"
    return f"{why} after {done}{best}, {seconds:.1f} s"


def make_display(name: str) -> Display:
    """ "auto" (a terminal gets a live table, a file gets lines), "live", "lines", "json" or
    "quiet".
    """
    if name == "auto":
        name = "live" if sys.stderr.isatty() else "lines"
    kinds = {"live": Live, "lines": Lines, "json": Json, "quiet": Display}
    if name not in kinds:
        raise ArgumentError(
            f"no display is called {name!r}", hint=f"one of auto, {', '.join(kinds)}"
        )
    return kinds[name]()
