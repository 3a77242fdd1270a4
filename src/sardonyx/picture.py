"""An inspection as a page of HTML with a picture of the graph.

The picture is inline SVG: nodes in rows by their distance from the inputs, edges between them. The
page needs no network. Large graphs are drawn as far as `DRAWN` nodes, and the page says so.
"""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.html_page import COLOURS, page, section, table, text
from sardonyx.inspection import Inspection, Node, Stage, Tensor, shape_text

DRAWN = 400
WIDTH, HEIGHT, GAP_X, GAP_Y = 150, 30, 18, 26
LABEL = 20
STYLE = """.graph{overflow:auto;max-height:80vh;border:1px solid var(--line)}
.graph svg{width:auto;height:auto}.graph path{fill:none;stroke:var(--soft);stroke-opacity:.55}"""


def inspection_page(inspection: Inspection, title: str) -> str:
    """The whole page; the inspection must have been made with `nodes=True`."""
    versions = ", ".join(f"{domain} {version}" for domain, version in inspection.opsets.items())
    records = [
        [r.loss or "unknown", r.optimizer or "unknown", "unknown" if r.step is None else r.step]
        for r in inspection.training
    ]
    parts = [inspection._repr_html_()]
    if inspection.stages:
        parts.append(section("Stages", stage_table(inspection.stages)))
    if records:
        parts.append(section("Training", table(["loss", "optimizer", "steps made"], records)))
    blockers = [[b.operator, b.node, b.reason] for b in inspection.blockers]
    if blockers:
        parts.append(section("Stops training", table(["operator", "node", "why"], blockers)))
    parts.append(section("Graph", drawing(inspection.graph, inspection.inputs, inspection.outputs)))
    tensors = [[w.name, w.kind, shape_text(w.shape), w.reason] for w in inspection.tensors]
    parts.append(section("Tensors", table(["name", "kind", "shape", "why"], tensors)))
    return page(title, f"IR {inspection.ir_version}, {versions}", *parts, style=STYLE)


def stage_table(stages: Sequence[Stage]) -> str:
    """What prepares the data, the model proper and what follows, with the tensors between them."""
    rows = [[s.name, s.nodes, ", ".join(s.reads), ", ".join(s.gives)] for s in stages]
    return table(["stage", "nodes", "reads", "gives"], rows)


def drawing(nodes: Sequence[Node], inputs: Sequence[Tensor], outputs: Sequence[Tensor] = ()) -> str:
    """The outermost graph as SVG."""
    outer = [node for node in nodes if node.depth == 0]
    visible = outer[:DRAWN]
    rows, places = _layout(visible, inputs)
    ends = [tensor for tensor in outputs if tensor.name in places]
    rows.append([tensor.name for tensor in ends])
    width = max((len(row) for row in rows), default=1) * (WIDTH + GAP_X) + GAP_X
    height = len(rows) * (HEIGHT + GAP_Y) + GAP_Y
    parts = [*_edges(visible, places), *_boxes(visible, inputs, places)]
    for column, tensor in enumerate(ends):
        place = (column, len(rows) - 1)
        parts.append(_edge(tensor.name, places[tensor.name], place))
        parts.append(_box(place, tensor.name, shape_text(tensor.shape), "var(--soft)"))
    svg = (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="the graph of the model">{"".join(parts)}</svg>'
    )
    more = len(outer) - len(visible)
    note = f"<p>The first {len(visible):,} nodes; {more:,} more are not drawn.</p>" if more else ""
    return f'{note}<div class="graph">{svg}</div>'


def _layout(
    nodes: Sequence[Node], inputs: Sequence[Tensor]
) -> tuple[list[list[str]], dict[str, tuple[int, int]]]:
    """Rows of boxes, and the place (column, row) of the box that makes each value."""
    levels = {tensor.name: 0 for tensor in inputs}
    rows: list[list[str]] = [[t.name for t in inputs]]
    places = {t.name: (column, 0) for column, t in enumerate(inputs)}
    for node in nodes:
        level = 1 + max((levels[name] for name in node.inputs if name in levels), default=0)
        while len(rows) <= level:
            rows.append([])
        rows[level].append(node.name)
        for name in node.outputs:
            levels[name] = level
            places[name] = (len(rows[level]) - 1, level)
    return rows, places


def _corner(place: tuple[int, int]) -> tuple[int, int]:
    column, row = place
    return GAP_X + column * (WIDTH + GAP_X), GAP_Y + row * (HEIGHT + GAP_Y)


def _edges(nodes: Sequence[Node], places: dict[str, tuple[int, int]]) -> list[str]:
    lines = []
    for node in nodes:
        if not node.outputs or node.outputs[0] not in places:
            continue
        end = places[node.outputs[0]]
        lines += [_edge(name, places[name], end) for name in node.inputs if name in places]
    return lines


def _edge(name: str, source: tuple[int, int], target: tuple[int, int]) -> str:
    """The line from the box that makes a value to one that reads it."""
    (a, b), (x, y) = _corner(source), _corner(target)
    start, end, middle = a + WIDTH // 2, x + WIDTH // 2, (b + HEIGHT + y) // 2
    curve = f"M{start} {b + HEIGHT}C{start} {middle} {end} {middle} {end} {y}"
    return f'<path d="{curve}"><title>{text(name)}</title></path>'


def _boxes(
    nodes: Sequence[Node], inputs: Sequence[Tensor], places: dict[str, tuple[int, int]]
) -> list[str]:
    boxes = [_box(places[t.name], t.name, shape_text(t.shape), "var(--soft)") for t in inputs]
    operators = list(dict.fromkeys(node.operator for node in nodes))
    for node in nodes:
        if node.outputs and node.outputs[0] in places:
            colour = COLOURS[operators.index(node.operator) % len(COLOURS)]
            shapes = ", ".join(map(shape_text, node.shapes))
            place = places[node.outputs[0]]
            boxes.append(_box(place, node.operator, f"{node.name} → {shapes}", colour))
    return boxes


def _box(place: tuple[int, int], label: str, title: str, colour: str) -> str:
    x, y = _corner(place)
    short = label if len(label) <= LABEL else f"{label[: LABEL - 1]}…"
    return (
        f'<g><title>{text(title)}</title><rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" '
        f'rx="5" fill="var(--tint)" stroke="{colour}"/><text x="{x + WIDTH // 2}" '
        f'y="{y + HEIGHT // 2 + 4}" text-anchor="middle">{text(short)}</text></g>'
    )
