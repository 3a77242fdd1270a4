"""Self-contained HTML pages: one style for all reports, light and dark, printable, no network.

Small functions that return HTML text; everything that comes from a model or a person goes through
`text`. Charts are inline SVG, drawn here.
"""

from __future__ import annotations

import contextlib
import html
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from sardonyx.errors import SardonyxError, quote

COLOURS = ("#2f6fde", "#d9622b", "#2a9d5c", "#8e5bd0", "#b5832a", "#c23b6b")
CSS = """
:root{--ink:#1d2430;--soft:#5c6675;--line:#dde2ea;--paper:#fff;--tint:#f5f7fa;--accent:#a4432f;
--good:#1e7f4f;--bad:#b3261e;--look:#9a6700;color-scheme:light dark}
@media(prefers-color-scheme:dark){:root{--ink:#e4e8ee;--soft:#9aa5b4;--line:#333b47;--paper:#14181e;
--tint:#1c222b;--accent:#e58a72;--good:#5ccb92;--bad:#ff8b80;--look:#e0b252}}
*{box-sizing:border-box}
body{margin:0 auto;padding:2rem 1.2rem 4rem;max-width:68rem;font:15px/1.55 system-ui,sans-serif;
color:var(--ink);background:var(--paper)}
h1{font-size:1.6rem;margin:0 0 .2rem}h2{font-size:1.15rem;margin:2.2rem 0 .6rem}
.sub{color:var(--soft);margin:0 0 1.4rem}
.cards{display:flex;flex-wrap:wrap;gap:.8rem;margin:1.2rem 0}
.card{background:var(--tint);border:1px solid var(--line);border-radius:.5rem;
padding:.7rem 1rem;min-width:8rem}
.card b{display:block;font-size:1.35rem;font-variant-numeric:tabular-nums}
.card span{color:var(--soft);font-size:.85rem}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.9rem}
th,td{text-align:left;padding:.35rem .7rem .35rem 0;
border-bottom:1px solid var(--line);vertical-align:top}
th{color:var(--soft);font-weight:600}td.n{font-variant-numeric:tabular-nums;white-space:nowrap}
code{font:.86em ui-monospace,monospace;overflow-wrap:anywhere}
figure{margin:0 0 1.2rem}figcaption{color:var(--soft);font-size:.85rem}
svg{width:100%;height:auto;display:block}svg text{fill:var(--soft);font:11px system-ui,sans-serif}
.good{color:var(--good)}.bad{color:var(--bad)}.look{color:var(--look)}
@media print{body{max-width:none;padding:0}h2{break-after:avoid}figure,table{break-inside:avoid}}
"""


def text(value: object) -> str:
    """Any value as HTML text: markup, control characters and directional marks made harmless."""
    visible = "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(value)
    )
    return html.escape(visible)


def page(title: str, subtitle: str, *parts: str, style: str = "") -> str:
    """A whole page out of its parts; `style` is CSS beyond the common style."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{text(title)}</title><style>{CSS}{style}</style></head>\n"
        f'<body><h1>{text(title)}</h1><p class="sub">{text(subtitle)}</p>\n'
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def write(path: Path, content: str) -> Path:
    """Write a page in one piece, UTF-8, its folder made where needed."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(content, encoding="utf-8", errors="backslashreplace")
        draft.replace(path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise SardonyxError(f"cannot write the page {quote(path)}: {reason}") from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
    return path


def section(title: str, *parts: str) -> str:
    return f"<section><h2>{text(title)}</h2>\n" + "\n".join(parts) + "</section>"


def cards(numbers: Mapping[str, object]) -> str:
    """The few numbers that a reader wants first."""
    items = "".join(
        f'<div class="card"><b>{text(v)}</b><span>{text(k)}</span></div>'
        for k, v in numbers.items()
    )
    return f'<div class="cards">{items}</div>'


def table(header: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    """A table; numbers are set in columns of equal digits."""
    head = "".join(f"<th>{text(h)}</th>" for h in header)
    body = "".join("<tr>" + "".join(_cell(c) for c in row) + "</tr>" for row in rows)
    inner = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="scroll"><table>{inner}</table></div>'


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f'<td class="n">{value:.6g}</td>'
    if isinstance(value, int):
        return f'<td class="n">{value:,}</td>'
    return f"<td>{text(value)}</td>"


def line_chart(
    title: str, series: Mapping[str, Sequence[tuple[float, float]]], x_label: str = ""
) -> str:
    """Lines over a common axis; points that are not finite leave gaps."""
    points = [p for s in series.values() for p in s if math.isfinite(p[1])]
    if not points:
        return ""
    width, height, left, bottom, top = 720, 260, 56, 30, 24
    x0, x1 = min(p[0] for p in points), max(p[0] for p in points)
    y0, y1 = min(p[1] for p in points), max(p[1] for p in points)
    y0, y1 = (y0 - 0.5, y1 + 0.5) if y0 == y1 else (y0, y1)
    x1 = x1 if x1 > x0 else x0 + 1

    def at(x: float, y: float) -> tuple[float, float]:
        across = left + (x - x0) / (x1 - x0) * (width - left - 12)
        return across, top + (y1 - y) / (y1 - y0) * (height - top - bottom)

    parts = [f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{text(title)}">']
    for tick in ticks(y0, y1):
        _, y = at(x0, tick)
        parts.append(
            f'<line x1="{left}" x2="{width - 12}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--line)"/>'
        )
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:.4g}</text>')
    for tick in ticks(x0, x1, whole=all(float(p[0]).is_integer() for p in points)):
        x, _ = at(tick, y0)
        parts.append(f'<text x="{x:.1f}" y="{height - 10}" text-anchor="middle">{tick:.6g}</text>')
    for index, (name, values) in enumerate(series.items()):
        colour = COLOURS[index % len(COLOURS)]
        path = " ".join(
            f"{x:.1f},{y:.1f}" for x, y in (at(*p) for p in values if math.isfinite(p[1]))
        )
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>'
        )
        parts.append(
            f'<circle cx="{left + 8 + 150 * index}" cy="10" r="4" fill="{colour}"/>'
            f'<text x="{left + 17 + 150 * index}" y="14">{text(name)}</text>'
        )
    parts.append("</svg>")
    caption = f"{title}" + (f", by {x_label}" if x_label else "")
    return f"<figure>{''.join(parts)}<figcaption>{text(caption)}</figcaption></figure>"


def bar_chart(title: str, bars: Sequence[tuple[str, float]]) -> str:
    """Horizontal bars with their values; for histograms and shares of time."""
    if not bars:
        return ""
    top = max(v for _, v in bars) or 1.0
    rows = []
    for index, (name, value) in enumerate(bars):
        y = 8 + 22 * index
        rows.append(
            f'<text x="150" y="{y + 12}" text-anchor="end">{text(name)}</text>'
            f'<rect x="158" y="{y}" width="{max(value / top * 460, 0.5):.1f}" height="15" rx="2" '
            f'fill="{COLOURS[0]}"/>'
            f'<text x="{164 + value / top * 460:.1f}" y="{y + 12}">{value:.4g}</text>'
        )
    height = 16 + 22 * len(bars)
    content = "".join(rows)
    label = text(title)
    chart = f'<svg viewBox="0 0 720 {height}" role="img" aria-label="{label}">{content}</svg>'
    return f"<figure>{chart}<figcaption>{text(title)}</figcaption></figure>"


def ticks(low: float, high: float, count: int = 5, whole: bool = False) -> list[float]:
    """Round numbers between `low` and `high`; only whole ones if asked."""
    raw = (high - low) / count
    if whole:
        raw = max(math.ceil(raw), 1)
    size = 10.0 ** math.floor(math.log10(raw)) if raw > 0 else 1.0
    sizes = (1, 2, 5, 10) if whole else (1, 2, 2.5, 5, 10)
    step = next(size * m for m in sizes if size * m >= raw)
    first = math.ceil(low / step - 1e-9)
    return [
        round((first + i) * step, 12) for i in range(int((high - first * step) / step + 1e-9) + 1)
    ]
