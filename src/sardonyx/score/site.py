"""A score as static pages: overview, matrix, a page per operator, history; no network, no assets.

Every page holds all that it shows; `site.js` filters it. The JSON that the pages were made from
lies beside them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from sardonyx import html, opset
from sardonyx.html import text
from sardonyx.score import suite
from sardonyx.score.judge import CLASSES, Cell
from sardonyx.score.score import Column, Score, load
from sardonyx.score.suite import unexpanded

HERE = Path(__file__).parent
PAGES = {"index.html": "Overview", "matrix.html": "Operators", "history.html": "History"}
AXES = {"forward": "values", "gradient": "gradients"}
NETWORKS = {
    "simple": "Small models of the suite, of several operators each.",
    "pytorch-converted": "Layers that were exported from PyTorch.",
    "pytorch-operator": "Operators that were exported from PyTorch.",
    "real": "Networks of the model zoo, with weights that are made up.",
    "node": "Cases of several operators.",
}


def write(score: Score, folder: Path, history: Path | None = None) -> Path:
    """Write the pages of a score into a folder; `history` holds older scores as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    score.save(folder / "score.json")
    older = _older(history, score)
    subjects = _subjects(score)
    html.write(folder / "index.html", overview(score, subjects))
    html.write(folder / "matrix.html", matrix(score, subjects))
    html.write(folder / "history.html", history_page(older))
    for name, cases in subjects.items():
        html.write(folder / "op" / f"{slug(name)}.html", operator(score, name, cases))
    return folder / "index.html"


def slug(name: str) -> str:
    """A name as that of a file."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name)


def _subjects(score: Score) -> dict[str, list[str]]:
    """Operators, and parts of the suite without one, with their cases that were run."""
    ran = set(score.cases.get("forward", ())) | set(score.cases.get("gradient", ()))
    found = {
        name: [case.name for case in cases if case.name in ran]
        for name, cases in suite.operators().items()
    }
    return dict(sorted(((n, c) for n, c in found.items() if c), key=_in_order))


def _in_order(item: tuple[str, object]) -> tuple[bool, str]:
    name = item[0]
    return name in NETWORKS, name.rpartition("::")[2].lower()


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
    """Who can do how much, in one table."""
    count = len(score.cases.get("forward", ()))
    figures = {
        "official cases": count,
        "operators": sum(name not in NETWORKS for name in subjects),
        "engines": len(score.columns),
        "cases with a derivative": len(score.cases.get("gradient", ())),
        "training records": len(score.cases.get("training", ())),
    }
    head = ["engine", "version", "", "pass", "wrong", "unsupported", "gradients", "training"]
    cells = "".join(f"<th{' class=r' if i > 2 else ''}>{h}</th>" for i, h in enumerate(head))
    body = "".join(_engine_row(column) for column in score.columns)
    table = (
        f'<div class="scroll"><table class="stack"><thead><tr>{cells}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
    subtitle = f"onnx {score.onnx}, scored on {score.date} by sardonyx {score.sardonyx}"
    return _page(
        "index.html",
        "What ONNX engines can do",
        subtitle,
        html.cards({label: n for label, n in figures.items() if n}),
        html.section("Engines", table, legend()),
        *_training(score),
        html.section("How to read this", f"<p>{ADVICE}</p>"),
    )


ADVICE = (
    "Every case of the official suite runs on every engine, in a process of its own. A case that "
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
            f'<td data-label="{text(c.title)}" title="{text(cell.message)}">'
            f"<span>{_key(cell.kind)}{cell.kind}</span></td>"
            if cell
            else "<td></td>"
            for c, cell in cells
        )
        rows.append(f"<tr><td><code>{text(case)}</code></td>{shown}</tr>")
    heads = "".join(f"<th>{text(c.title)}</th>" for c in columns)
    table = (
        f'<div class="scroll"><table class="stack"><thead><tr><th>record</th>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
    return [html.section("Training records", table)]


def _engine_row(column: Column) -> str:
    title = f"<td>{text(column.title)}</td>"
    version = f'<td data-label="version">{text(column.version)}</td>'
    if column.canary:
        return (
            f'<tr>{title}{version}<td class="wide" colspan="6"><b class="bad">broken</b> '
            f"{text(column.canary)}</td></tr>"
        )
    counts = column.count()
    numbers = {
        "pass": counts["pass"] if "forward" in column.cells else "–",
        "wrong": counts["wrong numbers"] or "",
        "unsupported": counts["unsupported"] or "",
        "gradients": _share(column, "gradient"),
        "training": _share(column, "training"),
    }
    shown = "".join(
        f'<td class="r" data-label="{label}">{text(n)}</td>' for label, n in numbers.items()
    )
    return f'<tr>{title}{version}<td class="wide">{_bar(counts)}</td>{shown}</tr>'


def _share(column: Column, axis: str) -> str:
    cells = column.cells.get(axis)
    return "" if not cells else f"{column.count(axis)['pass']} of {len(cells)}"


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
    heads = "".join(f"<th><span>{text(c.title)}</span></th>" for c in columns)
    rows = []
    for name, cases in subjects.items():
        cells = [_matrix_cell(c, axis, name, cases) for c in columns]
        if any(cells):
            rows.append(
                f'<tr data-row="{text(name)}" data-family="{text(_family(name))}">'
                f'<th scope="row"><a href="op/{slug(name)}.html">{text(name)}</a></th>'
                + "".join(cell or "<td></td>" for cell in cells)
                + "</tr>"
            )
    return (
        f'<div class="frame" data-axis="{axis}"><table class="matrix"><thead><tr><th></th>{heads}'
        f"</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


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
    made = "".join(f'<option value="{text(v)}">{text(shown)}</option>' for v, shown in options)
    given = f'data-control="{name}" data-default="{text(options[0][0]) if options else ""}"'
    return f"<label>{label}<select {given}>{made}</select></label>"


# -- one operator -------------------------------------------------------------------------


def operator(score: Score, name: str, cases: list[str]) -> str:
    """What an operator does, its versions, who passes what, and why not."""
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
    return "\n".join(text(line.rstrip()) for line in doc.strip().splitlines())


def _by_engine(score: Score, cases: list[str]) -> str:
    rows = []
    for column in score.columns:
        if column.canary:
            continue
        row = f"<td>{text(column.title)}</td>"
        for axis, label in AXES.items():
            found = column.cells.get(axis, {})
            counts = Counter(found[case].kind for case in cases if case in found)
            shown = f"{counts['pass']} of {counts.total()}" if counts else ""
            row += f'<td class="r" data-label="{label}">{shown}</td>'
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
    """A word where the operator fails and the body that defines it works."""
    if cell.kind in ("pass", "nondeterministic") or unexpanded(case) != case:
        return ""
    twins = [
        found.kind
        for other, found in column.cells[axis].items()
        if other != case and unexpanded(other) == case
    ]
    return " <b>passes when expanded to its body</b>" if "pass" in twins else ""


# -- history ------------------------------------------------------------------------------


def _older(folder: Path | None, score: Score) -> list[Score]:
    found = [load(path) for path in sorted(folder.glob("*.json"))] if folder else []
    return sorted([*found, score], key=lambda s: s.date)


def history_page(scores: Sequence[Score]) -> str:
    """How the share of passes changed, by engine, and every version that was scored."""
    names = list(dict.fromkeys(c.name for s in scores for c in s.columns))
    parts, rows = [], []
    for name in names:
        found = [(s, c) for s in scores if (c := s.column(name)) and "forward" in c.cells]
        points = [(float(i), _percent(c)) for i, (_, c) in enumerate(found)]
        if len(points) > 1:
            title = f"{found[-1][1].title}: cases that pass, in percent"
            parts.append(html.line_chart(title, {name: points}, "score"))
        for s, c in reversed(found):
            counts = c.count()
            scored = (c.title, c.version, s.date, f"onnx {s.onnx}")
            found_now = (counts.total(), counts["pass"], counts["wrong numbers"])
            rows.append([*scored, *found_now, f"{_percent(c):.1f} %"])
    head = ["engine", "version", "scored", "suite", "cases", "pass", "wrong", "share"]
    note = "" if len(scores) > 1 else "<p>This is the first score; older ones will show here.</p>"
    return _page(
        "history.html",
        "History by version",
        "One row per engine and score, newest first.",
        note,
        *parts,
        html.section("Scores", html.table(head, rows)),
    )


def _percent(column: Column) -> float:
    counts = column.count()
    return 100 * counts["pass"] / max(counts.total(), 1)
