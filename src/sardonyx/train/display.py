"""What a training shows while it runs: a live table on a terminal, lines elsewhere, JSON, or
nothing. Epochs and steps count from 1.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any, TextIO

from sardonyx.errors import ArgumentError, counted, did_you_mean, quote

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sardonyx.train.run import Run, RunSettings

REFRESH = 0.2
NAMES = ("setting", "input", "field", "type")  # columns that are never wrapped
LINE_EVERY = 10.0


class Display:
    """Shows nothing; the others override what they show.

    total -- steps of the whole run, where that is known; the loop sets it
    """

    total: int | None = None

    def preparing(self, what: str) -> None:
        """Before work that may take a while, such as compiling the step."""

    def prepared(self) -> None:
        """After that work, whether it succeeded or not."""

    def begin(self, run: Run, settings: RunSettings) -> None:
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
        self.refreshed = self.started = time.monotonic()
        self.first_step = 0

    def preparing(self, what: str) -> None:
        self._print(f"{what} …")

    def begin(self, run: Run, settings: RunSettings) -> None:
        for what, value, why in run.settings.get("choices", []):
            self._print(f"{what}: {value}" + (f" ({why})" if why else ""))
        for name, before, now in run.position.overrides:
            self._print(f"overrides the file: {name}: {before} → {now}")
        for item in run.links:
            origin = f"field {quote(item.field)} ({item.why})" if item.field else "a constant"
            self._print(f"data: input {quote(item.input)} from {origin}")
        for name, fact in run.facts:
            self._print(f"data: {name}: {fact}")
        if run.position.step:
            self._print(
                f"continuing after {counted(run.position.step, 'step')}, in epoch "
                f"{run.position.epoch + 1:,}"
            )
        self._start(run)

    def _start(self, run: Run) -> None:
        self.first_step = run.position.step
        self.started = self.refreshed = time.monotonic()

    def step(self, run: Run, count: int | None) -> None:
        now = time.monotonic()
        if now - self.refreshed >= LINE_EVERY:
            self.refreshed = now
            position = run.position
            where = f"batch {position.batch:,}" + (f"/{count:,}" if count else "")
            speed = self.speed(run, now)
            left = "" if (text := self.left(run, speed)) == "" else f"  {text} left"
            self._print(
                f"epoch {position.epoch + 1} {where}  loss {run.losses[-1]:.4f}  "
                f"{speed_text(speed)}{left}"
            )

    def speed(self, run: Run, now: float) -> float:
        """Steps a second since this run began."""
        return (run.position.step - self.first_step) / max(now - self.started, 1e-9)

    def left(self, run: Run, speed: float) -> str:
        """How long the rest of the run takes, where its length is known."""
        if self.total is None or speed <= 0.0:
            return ""
        return duration(max(self.total - run.position.step, 0) / speed)

    def epoch(self, run: Run) -> None:
        self.refreshed = time.monotonic()
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

    def begin(self, run: Run, settings: RunSettings) -> None:
        self._write(
            event="begin",
            choices=run.settings.get("choices", []),
            overrides=run.position.overrides,
            fields={item.input: item.field for item in run.links if item.field},
            step=run.position.step,
            steps=self.total,
        )

    def epoch(self, run: Run) -> None:
        self._write(event="epoch", **run.history[-1])

    def end(self, run: Run) -> None:
        self._write(
            event="end",
            step=run.position.step,
            finished=run.position.finished,
            stopped=run.stopped,
            **run.partial,
        )


class Live(Lines):
    """A terminal: tables first, then a bar with loss, metrics, speed and time left, redrawn in
    place.
    """

    def __init__(self) -> None:
        from rich.console import Console

        super().__init__()
        self.console = Console(stderr=True)
        self.bar: Any = None
        self.task: Any = None
        self.status: Any = None

    def preparing(self, what: str) -> None:
        self.status = self.console.status(f"{what} …")
        self.status.start()

    def prepared(self) -> None:
        self.status.stop()

    def begin(self, run: Run, settings: RunSettings) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        self._table("training", ["setting", "value", "why"], run.settings.get("choices", []))
        rows = run.position.overrides
        self._table("overridden", ["setting", "in the file", "now"], rows)
        links = [[i.input, i.field or str(i.constant), str(i.dtype), i.why] for i in run.links]
        self._table("data", ["input", "field", "type", "why"], links)
        for name, fact in run.facts:
            self.console.print(f"{name}: {fact}", highlight=False, markup=False)
        words = "[bold]epoch {task.fields[epoch]}[/]"
        self.bar = Progress(
            TextColumn(words),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[words]}"),
            console=self.console,
            refresh_per_second=5,
        )
        self.bar.start()
        self.task = self.bar.add_task("train", total=None, epoch=run.position.epoch + 1, words="")
        self._start(run)

    def _table(self, title: str, header: list[str], rows: Sequence[Sequence[str]]) -> None:
        from rich import box
        from rich.markup import escape
        from rich.table import Table

        if not rows:
            return
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
        for column in header:
            table.add_column(column, no_wrap=column in NAMES, overflow="fold")
        for row in rows:
            table.add_row(*(escape(cell) for cell in row))
        self.console.print(table)

    def step(self, run: Run, count: int | None) -> None:
        now = time.monotonic()
        if now - self.refreshed < REFRESH:
            return
        self.refreshed = now
        speed = self.speed(run, now)
        words = [f"loss {run.losses[-1]:.4f}"]
        if run.history:
            validation = {n: v for n, v in run.history[-1].items() if n.startswith("val_")}
            words += [f"{n} {v:.4f}" for n, v in list(validation.items())[:2]]
        left = self.left(run, speed)
        words += [speed_text(speed), f"{left} left" if left else f"step {run.position.step:,}"]
        self.bar.update(
            self.task,
            total=self.total,
            completed=run.position.step,
            epoch=run.position.epoch + 1,
            words="  ".join(words),
        )

    def epoch(self, run: Run) -> None:
        self.bar.console.print(history_text(run.history[-1]), highlight=False)

    def end(self, run: Run) -> None:
        self.bar.update(self.task, visible=False)
        self.bar.stop()
        self.console.print(end_text(run), highlight=False)


def speed_text(speed: float) -> str:
    """Steps a second, or seconds a step where that reads better."""
    return f"{speed:,.0f} steps/s" if speed >= 10 else f"{1 / max(speed, 1e-9):.2g} s/step"


def duration(seconds: float) -> str:
    """A length of time in two units at most."""
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60} s"
    return f"{total // 3600} h {total % 3600 // 60} min"


def history_text(metrics: dict[str, float]) -> str:
    return f"epoch {int(metrics['epoch'])}  {_metrics_text(metrics)}"


def _metrics_text(metrics: dict[str, float]) -> str:
    return "  ".join(f"{n} {v:.4f}" for n, v in metrics.items() if n not in ("epoch", "step"))


def end_text(run: Run) -> str:
    position = run.position
    progress = f"{counted(position.step, 'step')}, {counted(position.epoch, 'epoch')}"
    if not run.losses and not run.stopped:
        return f"nothing left to do: the run was complete after {progress}"
    why = f"stopped: {run.stopped}" if run.stopped else "done"
    best = "" if position.best_epoch is None else f", best epoch {position.best_epoch}"
    seconds = run.times.get("total", 0.0)
    partial = f"  {_metrics_text(run.partial)}" if run.partial else ""
    return f"{why} after {progress}{best}, {seconds:.1f} s{partial}"


def make_display(name: str | None) -> Display:
    """The display called "live", "lines", "json" or "quiet".

    "auto" is live on a terminal and lines elsewhere; None is live on a terminal, lines in a
    notebook and quiet elsewhere.
    """
    if name is None and _in_notebook():
        return Lines(sys.stdout)
    if name in (None, "auto"):
        name = "live" if sys.stderr.isatty() else "lines" if name else "quiet"
    kinds = {"live": Live, "lines": Lines, "json": Json, "quiet": Display}
    if name not in kinds:
        hint = did_you_mean(str(name), ("auto", *kinds))
        raise ArgumentError(f"no display is called {name!r}", hint=hint)
    return kinds[name]()


def _in_notebook() -> bool:
    """Whether a Jupyter kernel runs this."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and "IPKernelApp" in shell.config
