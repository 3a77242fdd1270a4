"""The layout plan on public networks: bytes that Transposes move, and the value of the cut.

    python bench/layout.py [files …]      a table; of the networks in the package onnx by default
    python bench/layout.py --picture      writes docs/images/layout-cut.svg

Every Transpose between the layouts that is in the rewritten graph is counted, whoever wrote it.
Greedy is the number that turning each convolution by itself would give.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import onnx
import onnx_ir as ir

import sardonyx as sx
from sardonyx.normalize import normalize
from sardonyx.passes.layout import LAST, Demands, lay_out, plan_layout
from sardonyx.passes.layout.axes import bytes_of, to_first, to_last

WINDOWS = frozenset(("Conv", "ConvTranspose", "MaxPool", "AveragePool"))
KERNELS = WINDOWS | {"BatchNormalization", "InstanceNormalization", "LRN"}
DEMANDS = Demands(LAST, WINDOWS, KERNELS, "channels.last")
PICTURE = Path(__file__).parent.parent / "docs" / "images" / "layout-cut.svg"
EXAMPLE = """<ir_version: 10, opset_import: ["": 21]>
g (float[1,3,32,32] x, float[16,3,3,3] w, float[16,16,3,3] v) => (float[1,16] y, float[1,16,1024] z)
{
  a = Conv <pads = [1, 1, 1, 1]> (x, w)
  b = Relu (a)
  c = Conv <pads = [1, 1, 1, 1]> (b, v)
  d = Add (c, b)
  p = GlobalAveragePool (d)
  y = Flatten (p)
  s = Constant <value = int64[3] {1, 16, -1}> ()
  z = Reshape (b, s)
}"""


def transposed(graph: ir.Graph, own: set[ir.Node]) -> tuple[int, int]:
    """How many Transposes between the layouts a graph has, and the bytes that they move.

    own -- Transposes of the model itself that read or give no image
    """
    count = total = 0
    for node in graph:
        if (
            node.op_type == "Transpose"
            and len(node.attributes["perm"].value) > 2
            and node not in own
        ):
            perm = list(node.attributes["perm"].value)
            if perm in (to_last(len(perm)), to_first(len(perm))):
                count, total = count + 1, total + bytes_of(node.inputs[0])
    return count, total


def greedy(graph: ir.Graph) -> int:
    nodes = [n for n in graph if n.domain == "" and n.op_type in WINDOWS]
    return sum(bytes_of(v) for n in nodes for v in (n.inputs[0], n.outputs[0]) if v is not None)


def row(path: Path) -> None:
    model = normalize(sx.load(path)).copy()
    before = greedy(model.graph)
    count = sum(1 for _ in model.graph)
    labels = plan_layout(model.graph, DEMANDS).labels
    turns_inside = [n for n in model.graph if n.op_type == "Transpose"]
    own = {n for n in turns_inside if n.inputs[0] not in labels or n.outputs[0] not in labels}
    started = time.perf_counter()
    plan = lay_out(model.graph, DEMANDS)
    seconds = time.perf_counter() - started
    turns, moved = transposed(model.graph, own)
    ratio = moved / plan.bytes if plan.bytes else 1.0 + moved
    print(
        f"{path.stem:<28} {count:>6} {turns:>6} {moved:>12,} {plan.bytes:>12,} {ratio:>6.2f} "
        f"{before:>14,} {seconds:>7.2f}"
    )


def picture() -> None:
    """The example with the side of every operator, and the tensors at the cut."""
    graph = normalize(sx.load(onnx.parser.parse_model(EXAMPLE))).copy().graph
    plan = plan_layout(graph, DEMANDS)
    places = {"a": (180, 60), "b": (300, 60), "c": (420, 60), "d": (540, 60), "p": (660, 60)}
    places |= {"x": (60, 190), "y": (780, 190), "z": (420, 190)}
    labels = {"x": "input x", "y": "Flatten → y", "z": "Reshape → z"}
    nodes = {n.outputs[0].name: n for n in graph}
    edges = [("x", "a", "a"), ("a", "b", ""), ("b", "c", ""), ("c", "d", ""), ("b", "d", "")]
    edges += [("d", "p", ""), ("p", "y", ""), ("b", "z", "")]
    first = {name for name in places if name in "xyz"}
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 260" font-family="sans-serif" '
        'font-size="13">',
        '<rect width="860" height="260" fill="#ffffff"/>',
        '<text x="16" y="24" fill="#0b6e4f">channels last (source)</text>',
        '<text x="16" y="246" fill="#8a3b12">channels first (sink)</text>',
        '<path d="M10 125 H850" stroke="#999" stroke-dasharray="6 5" fill="none"/>',
    ]
    for start, end, _ in edges:
        (x1, y1), (x2, y2) = places[start], places[end]
        value = graph.inputs[0] if start == "x" else nodes[start].outputs[0]
        crosses = (start in first) != (end in first)
        free = crosses and start == "p"
        color = "#888" if not crosses else "#2f855a" if free else "#c0392b"
        bend = (
            f"Q {(x1 + x2) / 2} {min(y1, y2) - 46} {x2} {y2}" if (start, end) == ("b", "d") else ""
        )
        path = f"M{x1} {y1} {bend or f'L {x2} {y2}'}"
        parts.append(f'<path d="{path}" stroke="{color}" stroke-width="2" fill="none"/>')
        if crosses:
            text = "0 bytes: 1 × 1 pixels" if free else f"{bytes_of(value):,} bytes"
            parts.append(f'<text x="{(x1 + x2) / 2 + 8}" y="128" fill="{color}">{text}</text>')
    for name, (x, y) in places.items():
        operator = nodes.get(name)
        text = labels.get(name) or (operator.op_type if operator is not None else name)
        text = {"GlobalAveragePool": "GlobalPool"}.get(text, text)
        side = LAST if operator is not None and plan.sides.get(operator) == LAST else "first"
        fill = "#d8f3dc" if side == LAST else "#fde2d2"
        box = f'x="{x - 46}" y="{y - 16}" width="92" height="32" rx="6"'
        parts.append(f'<rect {box} fill="{fill}" stroke="#555"/>')
        parts.append(f'<text x="{x}" y="{y + 5}" text-anchor="middle">{text}</text>')
    total = f"value of the cut: {plan.bytes:,} bytes"
    parts.append(f'<text x="844" y="24" text-anchor="end">{total}</text></svg>')
    PICTURE.write_text("\n".join(parts) + "\n")
    print(PICTURE, plan.bytes)


def main() -> None:
    if "--picture" in sys.argv:
        picture()
        return
    light = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    paths = [Path(p) for p in sys.argv[1:]] or sorted(light.glob("light_*.onnx"))
    print(
        f"{'network':<28} {'nodes':>6} {'turns':>6} {'moved':>12} {'cut':>12} {'ratio':>6} "
        f"{'greedy':>14} {'seconds':>7}"
    )
    for path in paths:
        row(path)


if __name__ == "__main__":
    main()
