"""The report of a training: one HTML page with curves, settings and where each came from; PNG
beside it.
"""

from __future__ import annotations

import json
import platform
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx

from sardonyx import __version__, plugins
from sardonyx import html_page as html
from sardonyx.errors import counted
from sardonyx.inspection import stages
from sardonyx.picture import stage_table
from sardonyx.record import info
from sardonyx.record.builder import ROLE
from sardonyx.train.display import duration
from sardonyx.train.evaluation import CLASSES
from sardonyx.weights import weights

if TYPE_CHECKING:
    from sardonyx.train.fields import Link
    from sardonyx.train.run import Run

POINTS = 400
FEW = 30  # points that are marked one by one
GREY = "#7d8796"
MOST_CLASSES = 30  # of a confusion matrix that is shown
COUNTS = ("epoch", "step")
VALIDATED = ("val_loss", "val_accuracy")


def write_report(run: Run, path: str | Path) -> Path:
    """Write the report; where matplotlib is installed, the curves also as PNG files beside it.

    >>> import sardonyx as sx
    >>> run = sx.train("model.onnx", "data.npz", epochs=1)
    >>> sx.write_report(run, "report.html").name
    'report.html'
    """
    target = html.write(Path(path), _page(run))
    _pictures(run, target)
    return target


def _page(run: Run) -> str:
    position = run.position
    settings = run.settings.get("choices", [])
    overridden = html.table(["setting", "in the file", "now"], position.overrides)
    parts = [
        html.section("Curves", *_curves(run)),
        _stages(run),
        html.section("Settings", html.table(["setting", "value", "where it came from"], settings)),
        html.section("Overridden settings", overridden) if position.overrides else "",
        html.section(
            "Data",
            html.table(["input", "field", "type", "one row", "why"], _links(run)),
            html.table(["what", "of the data"], run.facts),
        ),
        _confusion(run),
        html.section(
            "Parameters",
            html.table(
                ["tensor", "shape", "numbers", "role", "why", "relative change"], _parameters(run)
            ),
        ),
        html.section("Epochs", _epochs(run)),
        html.section("Time", html.bar_chart("seconds by part", _times(run))),
        html.section("Versions", html.table(["what", "version"], _versions(run))),
    ]
    return html.page(
        f"Training of {run.rep.model.graph.name or 'a model'}",
        _subtitle(run),
        html.cards(_cards(run)),
        *parts,
    )


def _stages(run: Run) -> str:
    """What prepares the data and what is trained, where the model says so."""
    parts = stages(run.rep.model)
    return html.section("Stages", stage_table(parts)) if parts else ""


def _subtitle(run: Run) -> str:
    position = run.position
    state = run.stopped or ("finished" if position.finished else "not finished")
    file = f"{run.file.name}, " if run.file is not None else ""
    date = datetime.now().strftime("%Y-%m-%d %H:%M")
    return (
        f"{file}{date}: {state} after {counted(position.epoch, 'epoch')}, batch size "
        f"{position.batch_size:,}, seed {position.seed}"
    )


def _cards(run: Run) -> dict[str, object]:
    """The numbers at the top of the page: the last metrics, and those of the best epoch."""
    position = run.position
    last = {**(run.history[-1] if run.history else {}), **run.partial}
    numbers: dict[str, object] = {n: f"{v:.4f}" for n, v in last.items() if n not in COUNTS}
    best = next((h for h in run.history if h["epoch"] == position.best_epoch), None)
    if best is not None:
        numbers["best epoch"] = position.best_epoch
        numbers |= {f"{n} of the best epoch": f"{v:.4f}" for n, v in best.items() if n in VALIDATED}
    return numbers | {"steps": f"{position.step:,}", "time": duration(run.times.get("total", 0.0))}


def _confusion(run: Run) -> str:
    """Which classes of the validation data were taken for which, after the last epoch."""
    classes = sorted({c for pair in run.confusion for c in pair})
    if not classes or len(classes) > MOST_CLASSES:
        return ""
    names = json.loads(run.metadata.get(CLASSES, "[]"))
    label = {c: names[c] if c < len(names) else str(c) for c in classes}
    rows = [[label[a], *(run.confusion.get((a, b), 0) for b in classes)] for a in classes]
    header = ["label \\ predicted", *(label[c] for c in classes)]
    return html.section("Confusion matrix of the validation data", html.table(header, rows))


def _curves(run: Run) -> list[str]:
    return [
        html.line_chart("loss of each step" if across == "step" else name, series, across)
        for name, series, across in _series(run)
    ]


def _series(run: Run) -> list[tuple[str, dict[str, list[tuple[float, float]]], str]]:
    """Every chart: its name, its lines, and the name of its horizontal axis."""
    first = run.position.step - len(run.losses)
    steps = thin([(first + i + 1.0, v) for i, v in enumerate(run.losses)])
    charts = [("steps", {"loss": steps}, "step")] if steps else []
    names = [n for n in (run.history[-1] if run.history else {}) if n not in COUNTS]
    for name in dict.fromkeys(n.removeprefix("val_") for n in names):
        lines = {
            kind: [(h["epoch"], h[kind]) for h in run.history if kind in h]
            for kind in (name, f"val_{name}")
            if kind in names
        }
        charts.append((name.replace("/", "."), lines, "epoch"))
    return charts


def thin(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most `POINTS` points: means of equal stretches, so that spikes are not picked or lost by
    chance.
    """
    size = -(-len(points) // POINTS)
    if size <= 1:
        return points
    parts = (np.asarray(points[i : i + size]) for i in range(0, len(points), size))
    return [(float(p[-1, 0]), float(p[:, 1].mean())) for p in parts]


def _links(run: Run) -> list[list[object]]:
    return [
        [i.input, i.field or str(i.constant), str(i.dtype), _row_shape(i), i.why] for i in run.links
    ]


def _row_shape(item: Link) -> str:
    if item.shape is None:
        return "any"
    return " × ".join(map(str, item.shape)) or "one number"


def _parameters(run: Run) -> list[list[object]]:
    model, now = run.rep.model, run.state
    rows: list[list[object]] = []
    trained = {n for r in model.records for n in info.state_names(model, r)}
    for weight in weights(model):
        value = model.graph.initializers.get(weight.name)  # None: inside a local function
        tensor = None if value is None else value.const_value
        role = model.metadata.get(
            f"{ROLE}{weight.name}", "trained" if weight.name in trained else "frozen"
        )
        moved = ""
        if weight.name in now and tensor is not None:
            before = tensor.numpy().astype(np.float64)
            size = float(np.linalg.norm(before)) or 1.0
            moved = f"{float(np.linalg.norm(now[weight.name] - before)) / size:.3g}"
        rows.append(
            [
                weight.name,
                str(list(weight.shape)),
                int(np.prod(weight.shape)),
                role,
                weight.reason,
                moved,
            ]
        )
    return rows


def _epochs(run: Run) -> str:
    if not run.history:
        return "<p>No epoch was completed.</p>"
    names = list(run.history[-1])
    return html.table(names, [[h.get(n, "") for n in names] for h in run.history])


def _times(run: Run) -> list[tuple[str, float]]:
    total = run.times.get("total", 0.0)
    parts = {k: v for k, v in run.times.items() if k != "total"}
    return [*parts.items(), ("everything else", max(total - sum(parts.values()), 0.0))]


def _versions(run: Run) -> list[list[object]]:
    engine = plugins.engines().get(run.engine)
    rows: list[list[object]] = [
        ["sardonyx", __version__],
        ["onnx", onnx.__version__],
        ["python", platform.python_version()],
    ]
    if engine is not None and engine.version:
        rows.append([f"engine: {engine.name}", engine.version])
    else:
        rows.append(["engine", run.engine])
    return rows


def _pictures(run: Run, target: Path) -> None:
    """One picture for each metric; transparent, in colours that read on light and dark."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        return
    for name, series, across in _series(run):
        figure = Figure(figsize=(7, 3.2), layout="constrained")
        figure.patch.set_alpha(0.0)
        axes = figure.add_subplot(facecolor="none")
        for (label, points), colour in zip(series.items(), html.COLOURS, strict=False):
            xs, ys = zip(*points, strict=True) if points else ((), ())
            mark = "o" if len(points) < FEW else ""
            axes.plot(xs, ys, label=label, color=colour, linewidth=1.8, marker=mark, markersize=4)
        axes.set_xlabel(across, color=GREY)
        axes.set_ylabel(name, color=GREY)
        axes.tick_params(colors=GREY)
        axes.grid(axis="y", color=GREY, alpha=0.25)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(GREY)
        if len(series) > 1:
            axes.legend(frameon=False, labelcolor=GREY)
        figure.savefig(target.with_suffix(f".{name}.png"), dpi=120)
