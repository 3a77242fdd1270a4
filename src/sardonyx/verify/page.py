"""The report as one HTML page: verdict, table, histograms, replayed nodes, the culprit drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from sardonyx import html_page as html
from sardonyx.verify.culprit import Replay
from sardonyx.verify.noise import BINS, Measurement
from sardonyx.verify.report import Culprit, Report, shown

SHOWN = 200
CHARTS = 12  # of the worst outputs
TONES = {"same": "good", "different": "bad", "fails": "bad"}


def write_page(report: Report, path: Path) -> Path:
    """Write the page of a report."""
    names = " → ".join(s["name"] for s in report.subjects)
    parts = [
        _verdict(report),
        html.cards(
            {
                "largest ratio": shown(report.ratio),
                "runs": len(report.runs),
                "bands": f"{report.bands[0]:g}, {report.bands[1]:g}",
            }
        ),
        *(_culprit(c, report.replays.get(c.subject, [])) for c in report.culprits),
        html.section("Outputs", _outputs(report), _legend(report)),
        html.section(
            "Errors", *(_histogram(m) for m in report.rows()[:CHARTS] if any(m.histogram))
        ),
        *(
            html.section(f"Nodes of {label}", _replays(rows))
            for label, rows in report.replays.items()
        ),
        html.section("Notes", html.table(["note"], [[n] for n in report.notes]))
        if report.notes
        else "",
        html.section("How it was run", _settings(report)),
    ]
    return html.write(
        path, html.page(f"Verification of {names}", f"reference: {report.reference}", *parts)
    )


def fragment(report: Report) -> str:
    """The verdict and the worst outputs, for a notebook."""
    notes = "".join(f"<p>{html.text(note)}</p>" for note in (*report.notes, *report.culprits))
    return _verdict(report) + _outputs(report, report.rows()[:CHARTS]) + notes


def _verdict(report: Report) -> str:
    tone = TONES.get(report.verdict, "look")
    return f'<p class="{tone}"><b>{html.text(report.verdict)}</b></p>'


def _legend(report: Report) -> str:
    rows = [[word, text] for word, text in report.legend().items()]
    return f"<details><summary>Legend</summary>{html.table(['word', 'meaning'], rows)}</details>"


def _outputs(report: Report, measurements: Sequence[Measurement] = ()) -> str:
    header = ["subject", "output", "run", "shape", "type", "max abs", "peak", "ratio", "verdict"]
    rows = [
        [
            *(m.subject, m.output, m.run, str(m.shape), m.dtype, f"{m.peak_error:.2e}"),
            *(shown(m.peak), shown(m.ratio if m.forced is None else m.forced)),
            m.problem or m.verdict(report.bands),
        ]
        for m in measurements or sorted(report.measurements, key=lambda m: -m.ratio)
    ]
    return html.table(header, rows[:SHOWN])


def _histogram(m: Measurement) -> str:
    low, high = BINS
    names = ["exact"] + [f"1e{d} – 1e{d + 1}" for d in range(low, high)]
    bars = [(name, float(count)) for name, count in zip(names, m.histogram)]
    filled = [i for i, (_, count) in enumerate(bars) if count]
    bars = bars[filled[0] : filled[-1] + 1]
    where = f"{m.subject}, {m.output}, {m.run}"
    return html.bar_chart(f"{where}: elements by error, over the noise floor", bars)


def _replays(rows: list[Replay]) -> str:
    ranked = sorted(rows, key=lambda r: -r.ratio)[:SHOWN]
    header = ["node", "operator", "name", "inside", "ratio alone", "remark"]
    return html.table(
        header,
        [[r.index, r.op, r.node, " / ".join(r.path), shown(r.ratio), _remark(r)] for r in ranked],
    )


def _remark(replay: Replay) -> str:
    fused = f"{replay.fused} nodes fused" if replay.fused > 1 else ""
    doubt = "the exact references disagree" if replay.doubtful else ""
    return "; ".join(t for t in (replay.problem, fused, doubt) if t)


def _culprit(culprit: Culprit, rows: list[Replay]) -> str:
    """The culprit in words, and drawn: what it reads on the left, what reads it on the right."""
    target = culprit.replay
    before = [r for r in rows if set(r.outputs) & set(target.inputs) and r.path == target.path]
    producers = {name for r in before for name in r.outputs}
    loose = [name for name in target.inputs if name not in producers]
    left = [(r.op, r.node, r.ratio) for r in before] + [("value", n, 0.0) for n in loose]
    ratios = {r.node: r.ratio for r in rows if r.path == target.path}
    right = [(op, name, ratios.get(name, math.nan)) for op, name in target.readers]
    drawing = _drawing(left[:8], (target.op, target.node, target.ratio), right[:8])
    return html.section("Culprit", f"<p>{html.text(culprit)}</p>", drawing)


def _drawing(
    left: list[tuple[str, str, float]],
    middle: tuple[str, str, float],
    right: list[tuple[str, str, float]],
) -> str:
    rows = max(len(left), len(right), 1)
    height = 20 + 56 * rows
    centre = height / 2

    def box(x: int, y: float, item: tuple[str, str, float], bad: bool) -> str:
        op, name, ratio = item
        label = name if len(name) <= 26 else "…" + name[-25:]
        colour = "var(--bad)" if bad else "var(--line)"
        ratio_text = shown(ratio) if math.isfinite(ratio) else "wrong"
        tail = "" if op == "value" or math.isnan(ratio) else f" · {ratio_text}"
        return (
            f'<rect x="{x}" y="{y - 20:.0f}" width="190" height="40" rx="6" fill="var(--tint)" '
            f'stroke="{colour}" stroke-width="{2 if bad else 1}"/>'
            f'<text x="{x + 8}" y="{y - 3:.0f}">{html.text(op)}{tail}</text>'
            f'<text x="{x + 8}" y="{y + 13:.0f}">{html.text(label)}</text>'
        )

    def column(items: list[tuple[str, str, float]]) -> list[float]:
        step = height / (len(items) or 1)
        return [step * (i + 0.5) for i in range(len(items))]

    parts = [
        f'<svg viewBox="0 0 720 {height}" role="img" aria-label="the culprit and its neighbours">'
    ]
    for y, item in zip(column(left), left):
        parts.append(
            f'<line x1="200" y1="{y:.0f}" x2="265" y2="{centre:.0f}" stroke="var(--soft)"/>'
        )
        parts.append(box(10, y, item, False))
    for y, item in zip(column(right), right):
        parts.append(
            f'<line x1="455" y1="{centre:.0f}" x2="520" y2="{y:.0f}" stroke="var(--soft)"/>'
        )
        parts.append(box(520, y, item, False))
    parts.append(box(265, centre, middle, True))
    return f"<figure>{''.join(parts)}</svg><figcaption>operator · ratio alone</figcaption></figure>"


def _settings(report: Report) -> str:
    rows: list[list[object]] = [["reference", report.reference]]
    rows += [["subject", f"{s['name']} {s['version']} {s['sha256'][:16]}"] for s in report.subjects]
    rows += [["run", f"{r['name']} {r.get('shapes', '')}"] for r in report.runs]
    rows += [[name, version] for name, version in report.versions.items()]
    return html.table(["what", "value"], rows)
