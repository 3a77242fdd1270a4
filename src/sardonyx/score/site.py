"""A score as static pages: overview, matrix, a page per operator, history; no network, no assets.

Every page holds all that it shows; `site.js` filters it. The JSON that the pages were made from
lies beside them.
"""

from __future__ import annotations

import inspect
import re
import urllib.parse
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from sardonyx import html_page as html
from sardonyx import opset
from sardonyx.html_page import text
from sardonyx.score import operators
from sardonyx.score.judge import CLASSES, Cell
from sardonyx.score.operators import NETWORKS
from sardonyx.score.score import Column, Score, load
from sardonyx.score.suite import unexpanded

HERE = Path(__file__).parent
PAGES = {"index.html": "Overview", "matrix.html": "Operators", "history.html": "History"}
AXES = {"forward": "values", "gradient": "gradients"}


def write(score: Score, folder: Path, history: Path | None = None) -> Path:
    """Write the pages of a score into a folder; `history` holds older scores as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    score.save(folder / "score.json")
    older = _older(history, score)
    subjects = operators.subjects(score)
    html.write(folder / "index.html", overview(score, subjects))
    html.write(folder / "matrix.html", matrix(score, subjects))
    html.write(folder / "history.html", history_page(older))
    for name, cases in subjects.items():
        html.write(folder / "op" / f"{slug(name)}.html", operator(score, name, cases))
    return folder / "index.html"


def slug(name: str) -> str:
    """A name as that of a file."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name)


def _page(current: str, title: str, subtitle: str, *parts: str, up: str = "") -> str:
    links = "".join(
        f'<a href="{up}{file}"{" aria-current=page" if file == current else ""}>{label}</a>'
        for file, label in PAGES.items()
    )
    nav = f'<nav>{links}<a href="{up}score.json">JSON</a></nav>'
    script = f"<script>{(HERE / 'site.js').read_text()}</script>"
    return html.page(title, subtitle, nav, *parts, script, style=(HERE / "site.css").read_text())


def _colour(kind: str) -> str:
    return f"var(--k-{kind.replace(' ', '-')})"


def _key(kind: str) -> str:
    return f'<i class="key" style="background:{_colour(kind)}"></i>'


# -- overview -----------------------------------------------------------------------------


def overview(score: Score, subjects: dict[str, list[str]]) -> str:
    """How many cases each engine passes, in one table."""
    count = len(score.cases.get("forward", ()))
    counts = {
        "official cases": count,
        "operators": sum(name not in NETWORKS for name in subjects),
        "engines": len(score.columns),
        "cases with a derivative": len(score.cases.get("gradient", ())),
        "training records": len(score.cases.get("training", ())),
    }
    head = ["engine", "version", "", *COLUMNS]
    cells = "".join(f"<th{' class=r' if i > 2 else ''}>{h}</th>" for i, h in enumerate(head))
    body = "".join(_engine_row(score, column, subjects) for column in score.columns)
    table = (
        f'<div class="scroll"><table class="stack"><thead><tr>{cells}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
    subtitle = f"onnx {score.onnx}, scored on {score.date} by sardonyx {score.sardonyx}"
    subtitle += f"; a sample, one case in {score.sample}" if score.sample > 1 else ""
    return _page(
        "index.html",
        "What ONNX engines can do",
        subtitle,
        html.cards({label: n for label, n in counts.items() if n}),
        html.section("Engines", table, legend()),
        html.section("How to read this", f"<p>{ADVICE}</p>"),
        *_training(score),
    )


ADVICE = (
    "A wrong answer is worse than a refusal, so wrong answers come first. An operator is whole if "
    "none of its official cases fails; the number of cases that pass says less, since Cast has "
    "hundreds of them and most operators one or two. "
    "Every case of the official suite runs on every engine, each in processes of its own; where "
    "only a part was run, the row says so. A case that "
    "fails is run again in other forms to tell why, so that a refusal is not an error of numbers "
    "and a file that is labelled too new is not a missing operator. An engine whose simplest "
    "cases fail is shown as broken, not as zero. Gradients are held against differences of the "
    "model itself, training against float64 of an independent implementation."
)


def _training(score: Score) -> list[str]:
    """Every training record on every engine that trains."""
    columns = [c for c in score.columns if c.cells.get("training")]
    if not columns:
        return []
    rows = []
    for case in score.cases["training"]:
        cells = [(c, c.cells["training"].get(case)) for c in columns]
        shown = "".join(
            f'<td><span class="cell" style="background:{_colour(cell.kind)}" '
            f'title="{text(c.title)}: {text(cell.message or cell.kind)}">{cell.kind}</span></td>'
            if cell
            else "<td></td>"
            for c, cell in cells
        )
        rows.append(f'<tr><th scope="row"><code>{text(case)}</code></th>{shown}</tr>')
    return [html.section("Training records", _matrix_frame(columns, rows))]


def _matrix_frame(columns: Sequence[Column], rows: Sequence[str], axis: str = "") -> str:
    heads = "".join(f"<th><span>{text(c.title)}</span></th>" for c in columns)
    data = f' data-axis="{axis}"' if axis else ""
    return (
        f'<div class="frame"{data}><table class="matrix"><thead><tr><th></th>{heads}'
        f"</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


# The columns of the overview: what misleads least comes first.
COLUMNS = ("wrong", "whole operators", "pass", "unsupported", "gradients", "training")


def _engine_row(score: Score, column: Column, subjects: dict[str, list[str]]) -> str:
    sampled = score.sampled(column)
    note = f" <small>a sample: {text(sampled)}</small>" if sampled else ""
    title = f"<td>{text(column.title)}{note}</td>"
    version = f'<td data-label="version">{text(column.version)}</td>'
    if column.canary:
        return (
            f'<tr>{title}{version}<td class="wide" colspan="{len(COLUMNS) + 1}">'
            f'<b class="bad">broken</b> '
            f"{text(column.canary)}</td></tr>"
        )
    counts = column.count()
    ran = "forward" in column.cells
    wrong = counts["wrong numbers"]
    mark = f'<b class="{"bad" if wrong else "good"}">{wrong}</b>'
    if wrong:
        mark = _filtered(column, "wrong numbers", mark)
    numbers = (
        mark if ran else "–",
        "{} of {}".format(*operators.whole(column, subjects)) if ran and not sampled else "–",
        str(counts["pass"]) if ran else "–",
        _filtered(column, "unsupported", str(counts["unsupported"])) if ran else "–",
        column.share("gradient"),
        column.share("training"),
    )
    cells = "".join(
        f'<td class="r" data-label="{label}">{n}</td>'
        for label, n in zip(COLUMNS, numbers, strict=True)
    )
    return f'<tr>{title}{version}<td class="wide">{_bar(counts)}</td>{cells}</tr>'


def _filtered(column: Column, kind: str, label: str) -> str:
    """A count that links to the operators behind it."""
    query = urllib.parse.urlencode({"engine": column.name, "kind": kind})
    return f'<a href="matrix.html?{text(query)}">{label}</a>'


def _bar(counts: Counter[str]) -> str:
    total = counts.total()
    if not total:
        return ""
    parts = "".join(
        f'<i style="width:{100 * counts[kind] / total:.2f}%;background:{_colour(kind)}" '
        f'title="{counts[kind]} {kind}"></i>'
        for kind in CLASSES
        if counts[kind]
    )
    return f'<div class="bar">{parts}</div>'


def legend() -> str:
    """The classes, each with its colour and meaning."""
    rows = "".join(
        f"<li>{_key(kind)}<div>{text(kind)} <span>{text(meaning)}</span></div></li>"
        for kind, (_, meaning) in CLASSES.items()
    )
    return f'<ul class="legend">{rows}</ul>'


# -- matrix -------------------------------------------------------------------------------


def matrix(score: Score, subjects: dict[str, list[str]]) -> str:
    """Engine × operator: how many cases pass, coloured by what the others are."""
    axes = [axis for axis in AXES if any(axis in c.cells for c in score.columns)]
    families = sorted({_family(name) for name in subjects})
    controls = _controls(
        _search("Search operators"),
        _choice("family", "Family", [("", "all"), *((f, f) for f in families)]),
        _choice("kind", "Shows", [("", "everything"), ("any", "what does not pass"), *_kinds()]),
        _choice("engine", "Engine", [("", "any"), *((c.name, c.title) for c in score.columns)]),
        _choice("axis", "Axis", [(axis, AXES[axis]) for axis in axes]),
    )
    tables = "".join(_matrix_table(score, subjects, axis) for axis in axes)
    return _page(
        "matrix.html",
        "Engines × operators",
        "Cases that pass, of all about the operator; the colour is the worst class among them.",
        controls,
        '<p class="count" data-unit="operators" role="status"></p>',
        tables,
        legend(),
    )


def _kinds() -> list[tuple[str, str]]:
    return [(kind, kind) for kind in CLASSES if kind != "pass"]


def _matrix_table(score: Score, subjects: dict[str, list[str]], axis: str) -> str:
    columns = [c for c in score.columns if axis in c.cells]
    rows = []
    for name, cases in subjects.items():
        cells = [_matrix_cell(c, axis, name, cases) for c in columns]
        if any(cells):
            rows.append(
                f'<tr data-row="{text(name)}" data-family="{text(_family(name))}">'
                f'<th scope="row"><a href="op/{slug(name)}.html">{_shown(name)}</a></th>'
                + "".join(cell or "<td></td>" for cell in cells)
                + "</tr>"
            )
    return _matrix_frame(columns, rows, axis)


def _shown(name: str) -> str:
    """The operator first, by which the rows are sorted; its domain after it."""
    domain, _, op = name.rpartition("::")
    return text(op) + (f" <small>{text(domain)}</small>" if domain else "")


def _matrix_cell(column: Column, axis: str, name: str, cases: list[str]) -> str:
    cells = [column.cells[axis][case] for case in cases if case in column.cells[axis]]
    if not cells:
        return ""
    counts = Counter(cell.kind for cell in cells)
    tip = ", ".join(f"{counts[kind]} {kind}" for kind in CLASSES if counts[kind])
    kinds = ",".join(kind for kind in CLASSES if counts[kind])
    return (
        f'<td data-engine="{text(column.name)}" data-kinds="{kinds}">'
        f'<span class="cell" style="background:{_colour(_worst(counts))}" '
        f'title="{text(column.title)}, {text(name)}: {tip}">'
        f"{counts['pass']}/{len(cells)}</span></td>"
    )


def _worst(kinds: Iterable[str]) -> str:
    return max(kinds, key=lambda kind: (CLASSES[kind][0], kind != "pass"))


def _family(name: str) -> str:
    if name in NETWORKS:
        return "networks"
    domain, _, op = name.rpartition("::")
    return opset.family(op, domain)


# -- controls -----------------------------------------------------------------------------


def _controls(*parts: str) -> str:
    return f'<div class="controls">{"".join(parts)}</div>'


def _search(label: str) -> str:
    return (
        f'<label>{label}<input type="search" data-control="search" autocomplete="off" '
        'spellcheck="false"></label>'
    )


def _choice(name: str, label: str, options: Sequence[tuple[str, str]]) -> str:
    items = "".join(f'<option value="{text(v)}">{text(caption)}</option>' for v, caption in options)
    attributes = f'data-control="{name}" data-default="{text(options[0][0]) if options else ""}"'
    return f"<label>{label}<select {attributes}>{items}</select></label>"


# -- one operator -------------------------------------------------------------------------


def operator(score: Score, name: str, cases: list[str]) -> str:
    """What an operator does, its versions, and which engine passes which case, or why not."""
    domain, _, op = name.rpartition("::")
    controls = _controls(
        _search("Search cases"),
        _choice("kind", "Shows", [("", "everything"), ("any", "what does not pass"), *_kinds()]),
        _choice("engine", "Engine", [("", "any"), *((c.name, c.title) for c in score.columns)]),
    )
    return _page(
        "",
        name,
        f"{len(cases)} official cases, family {_family(name)}",
        *_definition(name, op, domain),
        html.section("Who passes what", _by_engine(score, cases)),
        html.section(
            "Cases",
            controls,
            '<p class="count" data-unit="cases" role="status"></p>',
            *(_case(score, case) for case in cases),
            legend(),
        ),
        up="../",
    )


def _definition(name: str, op: str, domain: str) -> list[str]:
    if name in NETWORKS:
        return [f"<p>{NETWORKS[name]}</p>"]
    versions = opset.history(op, domain)
    if not versions:
        return []
    latest = versions[-1]
    doc = f'<div class="doc">{_lines(latest.doc or "ONNX says nothing about it.")}</div>'
    since = ", ".join(str(v.since_version) for v in versions)
    facts = [
        ["versions", since + (" (deprecated)" if latest.deprecated else "")],
        ["inputs", ", ".join(i.name for i in latest.inputs) or "none"],
        ["outputs", ", ".join(o.name for o in latest.outputs) or "none"],
        ["attributes", ", ".join(latest.attributes) or "none"],
        ["defined by a body", "yes" if opset.has_body(op, domain) else "no"],
    ]
    return [html.section("What it does", doc, html.table(["", ""], facts))]


def _lines(doc: str) -> str:
    """ONNX's text: its sentences flow, what is laid out by hand stays, code is set as code."""
    lines: list[str] = []
    fenced = flowing = False
    for line in inspect.cleandoc(doc.replace('\\"', '"')).splitlines():
        if line.lstrip().startswith("```"):
            fenced, flowing = not fenced, False
            continue
        is_prose = not fenced and re.match(r"[A-Za-z`(\"]", line) is not None
        content = text(line.strip() if is_prose else line.rstrip())
        code = r"<code>\1</code>"
        content = f"<code>{content}</code>" if fenced else re.sub("``?([^`]+)``?", code, content)
        if is_prose and flowing:
            lines[-1] += " " + content
        else:
            lines.append(content)
        flowing = is_prose
    return "\n".join(lines)


def _by_engine(score: Score, cases: list[str]) -> str:
    rows = []
    for column in score.columns:
        if column.canary:
            continue
        row = f"<td>{text(column.title)}</td>"
        for axis, label in AXES.items():
            cells = column.cells.get(axis, {})
            counts = Counter(cells[case].kind for case in cases if case in cells)
            count = f"{counts['pass']} of {counts.total()}" if counts else ""
            row += f'<td class="r" data-label="{label}">{count}</td>'
            row += f'<td class="wide">{_bar(counts)}</td>'
        rows.append(f"<tr>{row}</tr>")
    head = "<th>engine</th><th class=r>values</th><th></th><th class=r>gradients</th><th></th>"
    return (
        f'<div class="scroll"><table class="stack"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _case(score: Score, case: str) -> str:
    dots, rows = [], []
    for column in score.columns:
        for axis, label in AXES.items():
            cell = column.cells.get(axis, {}).get(case)
            if cell is None:
                continue
            dots.append(
                f'<i class="{axis}" data-engine="{text(column.name)}" data-kinds="{cell.kind}" '
                f'style="background:{_colour(cell.kind)}" '
                f'title="{text(column.title)}, {label}: {cell.kind}"></i>'
            )
            why = text(cell.message) + _rescue(column, axis, case, cell)
            rows.append(
                f'<tr><td>{text(column.title)}</td><td data-label="axis">{label}</td>'
                f'<td class="what" data-label="class"><span>{_key(cell.kind)}{cell.kind}</span>'
                f'</td><td class="why wide">{why}</td></tr>'
            )
    head = "<th>engine</th><th>axis</th><th>class</th><th>why</th>"
    return (
        f'<details class="case" id="{text(case)}" data-row="{text(case)}"><summary>'
        f'<code>{text(case)}</code><span class="dots">{"".join(dots)}</span></summary><div>'
        f'<div class="scroll"><table class="stack"><thead><tr>{head}</tr></thead><tbody>'
        f"{''.join(rows)}</tbody></table></div>"
        f"<p>Again: <code>sardonyx score --case {text(case)}$ --engine all --verbose</code></p>"
        "</div></details>"
    )


def _rescue(column: Column, axis: str, case: str, cell: Cell) -> str:
    """A note where the operator fails and the function that defines it works."""
    if cell.kind in ("pass", "nondeterministic") or unexpanded(case) != case:
        return ""
    twins = [
        result.kind
        for other, result in column.cells[axis].items()
        if other != case and unexpanded(other) == case
    ]
    return " <b>passes when expanded to its body</b>" if "pass" in twins else ""


# -- history ------------------------------------------------------------------------------


def _older(folder: Path | None, score: Score) -> list[Score]:
    scores = [load(path) for path in sorted(folder.glob("*.json"))] if folder else []
    return sorted([*scores, score], key=lambda s: s.date)


def history_page(scores: Sequence[Score]) -> str:
    """How engines changed from score to score, and every version that was scored."""
    names = list(dict.fromkeys(c.name for s in reversed(scores) for c in s.columns))
    trends, rows = [], []
    for name in names:
        columns = [(s, c) for s in scores if (c := s.column(name)) and "forward" in c.cells]
        if len(columns) > 1:
            trends.append(_trend([c for _, c in columns]))
        for s, c in reversed(columns):
            counts = c.count()
            scored = (c.title, c.version, s.date, f"onnx {s.onnx}")
            found_now = (counts.total(), counts["pass"], counts["wrong numbers"])
            rows.append([*scored, *found_now, f"{_percent(c):.1f} %"])
    head = ["engine", "version", "scored", "suite", "cases", "pass", "wrong", "share"]
    changes = "<p>This is the first score; older ones will show here.</p>"
    if trends:
        heads = "<th>engine</th><th>share of cases that pass</th><th class=r>now</th>"
        heads += "<th class=r>since the last</th><th class=r>wrong</th><th class=r>since</th>"
        changes = (
            f'<div class="scroll"><table class="stack"><thead><tr>{heads}</tr></thead>'
            f"<tbody>{''.join(trends)}</tbody></table></div>"
        )
    return _page(
        "history.html",
        "History by version",
        "What changed between scores, and one row per engine and score, newest first.",
        html.section("Changes", changes),
        html.section("Scores", html.table(head, rows)),
    )


def _trend(columns: Sequence[Column]) -> str:
    """One engine: its share as a small curve from 0 to 100 %, and what changed at the end."""
    before, now = columns[-2:]
    wrong = [c.count()["wrong numbers"] for c in (before, now)]
    step = TREND[0] / (len(columns) - 1)
    points = " ".join(
        f"{i * step:.1f},{TREND[1] * (1 - _percent(c) / 100):.1f}" for i, c in enumerate(columns)
    )
    curve = (
        f'<svg class="trend" viewBox="-2 -2 {TREND[0] + 4} {TREND[1] + 4}" role="img" '
        f'aria-label="{", ".join(f"{_percent(c):.1f} %" for c in columns)}">'
        f'<polyline points="{points}"/></svg>'
    )
    numbers = {
        "now": f"{_percent(now):.1f} %",
        "since the last": f"{_percent(now) - _percent(before):+.1f}",
        "wrong": str(wrong[1]),
        "since": f"{wrong[1] - wrong[0]:+d}",
    }
    cells = "".join(f'<td class="r" data-label="{k}">{v}</td>' for k, v in numbers.items())
    return f'<tr><td>{text(now.title)}</td><td class="wide">{curve}</td>{cells}</tr>'


TREND = (160, 24)  # the size of a curve, in its own units


def _percent(column: Column) -> float:
    counts = column.count()
    return 100 * counts["pass"] / max(counts.total(), 1)
