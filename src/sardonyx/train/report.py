"""The report of a training: one HTML page with curves, settings and where each came from; PNG
beside it.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx

from sardonyx import __version__, html
from sardonyx.train import info
from sardonyx.train.program import ROLE
from sardonyx.weights import weights

if TYPE_CHECKING:
    from sardonyx.train.loop import Run

POINTS = 400


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
    model = run.rep.model
    last = run.history[-1] if run.history else {}
    figures: dict[str, object] = {
        n: f"{v:.4f}" for n, v in last.items() if n not in ("epoch", "step")
    }
    figures |= {"steps": f"{position.step:,}", "seconds": f"{run.times.get('total', 0.0):.1f}"}
    state = run.stopped or ("finished" if position.finished else "not finished")
    choices = run.settings.get("choices", [])
    return html.page(
        f"Training of {model.graph.name or 'a model'}",
        f"{state} after {position.epoch} epochs, batch size {position.batch_size}, seed "
        f"{position.seed}",
        html.cards(figures),
        html.section("Curves", *_curves(run)),
        html.section("Settings", html.table(["setting", "value", "where it came from"], choices)),
        html.section("Data", html.table(["input", "field", "type", "why"], _links(run))),
        html.section(
            "Parameters",
            html.table(
                ["tensor", "shape", "numbers", "role", "why", "changed by"], _parameters(run)
            ),
        ),
        html.section("Epochs", _epochs(run)),
        html.section("Time", html.bar_chart("seconds by part", _times(run))),
        html.section("Versions", html.table(["what", "version"], _versions(run))),
    )


def _curves(run: Run) -> list[str]:
    steps = thin([(float(i + 1), v) for i, v in enumerate(run.losses)])
    parts = [html.line_chart("loss of each step", {"loss": steps}, "step")]
    names = [n for n in (run.history[-1] if run.history else {}) if n not in ("epoch", "step")]
    for name in [n for n in names if not n.startswith("val_")] + [
        n for n in names if n.startswith("val_") and n[4:] not in names
    ]:
        series = {name: [(h["epoch"], h[name]) for h in run.history if name in h]}
        if f"val_{name}" in names:
            series[f"val_{name}"] = [(h["epoch"], h[f"val_{name}"]) for h in run.history]
        parts.append(html.line_chart(name, series, "epoch"))
    return parts


def thin(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most `POINTS` points: means of equal stretches, so that spikes are not picked or lost by
    chance.
    """
    if len(points) <= POINTS:
        return points
    parts = np.array_split(np.asarray(points), POINTS)
    return [(float(p[:, 0].mean()), float(p[:, 1].mean())) for p in parts]


def _links(run: Run) -> list[list[object]]:
    return [[item.input, item.field, str(item.dtype), item.why] for item in run.links]


def _parameters(run: Run) -> list[list[object]]:
    model, now = run.rep.model, run.rep.state()
    rows: list[list[object]] = []
    trained = {n for r in model.records for n in info.state_names(model, r)}
    for weight in weights(model):
        tensor = model.graph.initializers[weight.name].const_value
        role = model.metadata.get(
            f"{ROLE}{weight.name}", "trained" if weight.name in trained else "frozen"
        )
        moved = ""
        if weight.name in now and tensor is not None:
            before = tensor.numpy().astype(np.float64)
            size = float(np.linalg.norm(before)) or 1.0
            moved = f"{float(np.linalg.norm(now[weight.name] - before)) / size:.3%}"
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
        return "<p>none was completed</p>"
    names = list(run.history[-1])
    return html.table(names, [[h.get(n, "") for n in names] for h in run.history])


def _times(run: Run) -> list[tuple[str, float]]:
    total = run.times.get("total", 0.0)
    parts = {k: v for k, v in run.times.items() if k != "total"}
    return [*parts.items(), ("steps and the rest", max(total - sum(parts.values()), 0.0))]


def _versions(run: Run) -> list[list[object]]:
    engine = type(run.rep).__module__.split(".")[2]
    rows: list[list[object]] = [
        ["sardonyx", __version__],
        ["onnx", onnx.__version__],
        ["python", platform.python_version()],
    ]
    try:
        from importlib.metadata import version

        rows.append([f"engine: {engine}", version(engine)])
    except ImportError:
        rows.append(["engine", engine])
    return rows


def _pictures(run: Run, target: Path) -> None:
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(
        *zip(*thin([(i + 1.0, v) for i, v in enumerate(run.losses)]), strict=True)
        if run.losses
        else ([], [])
    )
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    figure.savefig(target.with_suffix(".loss.png"), dpi=120)
