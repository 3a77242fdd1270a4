"""`sardonyx inspect`: what a model is made of, as a table or as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sardonyx.errors import ArgumentError, printable, quote

if TYPE_CHECKING:
    from rich.console import Console

    from sardonyx.inspection import Inspection, Tensor

SHOWN = 20  # rows of a table, without --weights
PIPED_NAME = 2000  # characters of a name in an output that is not a terminal
UNWRAPPED = 1 << 20  # the width of an output that is not a terminal


def inspect_model(
    model: Annotated[Path, typer.Argument(help="An ONNX file.")],
    size: Annotated[
        list[str] | None,
        typer.Option(help="A number for a symbolic dimension, such as batch=8; may be repeated."),
    ] = None,
    weights: Annotated[
        bool,
        typer.Option("--weights", help="List every weight and constant, not only the largest."),
    ] = False,
    nodes: Annotated[
        bool, typer.Option("--nodes", help="List every node with its inputs and outputs.")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(help="Write an HTML page with a picture of the graph; it works offline."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a model is made of, what a run costs, and what would stop it from training."""
    from sardonyx.inspection import inspect as gather

    inspection = gather(model, _sizes(size or []), nodes=nodes or html is not None)
    if html is not None:
        from sardonyx.html_page import write
        from sardonyx.picture import inspection_page

        typer.echo(f"wrote {write(html, inspection_page(inspection, model.name))}", err=True)
    if as_json:
        typer.echo(json.dumps(inspection.as_dict(), indent=2))
        return
    _show(_console(), model, inspection, None if weights else SHOWN)
    if nodes:
        _nodes(_console(), inspection)


def _console() -> Console:
    """A console that wraps long names in a terminal only: piped output has one line per row."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=UNWRAPPED)


def _sizes(texts: list[str]) -> dict[str, int]:
    sizes = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        if not name or not number.isdecimal() or int(number) < 1:
            raise ArgumentError(f"cannot read the size {quote(text)}", hint="--size batch=8")
        sizes[name] = int(number)
    return sizes


def _show(console: Console, path: Path, inspection: Inspection, limit: int | None) -> None:
    from rich.markup import escape

    opsets = ", ".join(f"{quote(d)[1:-1]} {v}" for d, v in inspection.opsets.items())
    producer = f", made by {quote(inspection.producer)[1:-1]}" if inspection.producer else ""
    versions = f"IR {inspection.ir_version}, {opsets}{producer}"
    console.print(f"[bold]{escape(quote(path.name)[1:-1])}[/]  {escape(versions)}")
    _tensors(console, "inputs", inspection.inputs)
    _tensors(console, "outputs", inspection.outputs)
    _stages(console, inspection)
    _operators(console, inspection)
    _weights(console, inspection, limit)
    _cost(console, inspection)
    _training(console, inspection)
    _frozen(console, inspection, limit)
    _blockers(console, inspection)
    _unconvertible(console, inspection)


def _training(console: Console, inspection: Inspection) -> None:
    from rich.markup import escape

    for number, record in enumerate(inspection.training):
        parts = [f"loss {record.loss}"] if record.loss else []
        parts += [f"optimizer {record.optimizer}"] if record.optimizer else []
        parts += [f"{plural(record.step, 'step')} made"] if record.step is not None else []
        parts += [
            f"updates {plural(len(record.updated), 'tensor')}",
            f"{plural(len(record.state), 'state tensor')} of {amount(record.state_bytes)}B",
            plural(sum(record.operators.values()), "node"),
        ]
        line = escape(printable(", ".join(parts)))
        console.print(f"\n[bold]training record {number}[/]  {line}")


def _stages(console: Console, inspection: Inspection) -> None:
    """Which part prepares the data, which is the model, and the tensors between them."""
    from rich.markup import escape

    if not inspection.stages:
        return
    table = _table("stage", "nodes", "reads", "gives")
    for stage in inspection.stages:
        cells = (printable(stage.name), f"{stage.nodes:,}", _some(stage.reads), _some(stage.gives))
        table.add_row(*map(escape, cells))
    console.print(table)


def _some(names: list[str]) -> str:
    """The first names of a list, and how many more there are."""
    more = f", … {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(_name(name)[1:-1] for name in names[:SHOWN]) + more


def _frozen(console: Console, inspection: Inspection, limit: int | None) -> None:
    """What the data preparation took from its training frame."""
    from rich.markup import escape

    if not inspection.frozen:
        return
    table = _table("frozen", "value", "line", "code")
    for row in inspection.frozen[:limit]:
        value = json.dumps(row["value"], ensure_ascii=False)
        cells = (row["call"], value[:60] + "…" * (len(value) > 60), str(row["line"]), row["code"])
        table.add_row(*(escape(printable(str(cell))) for cell in cells))
    console.print(table)


def _nodes(console: Console, inspection: Inspection) -> None:
    from rich.markup import escape

    from sardonyx.inspection import shape_text

    table = _table("node", "operator", "inputs", "outputs", "shapes")
    for node in inspection.graph:
        cells = (
            "  " * node.depth + _name(node.name),
            quote(node.operator)[1:-1],
            ", ".join(_name(name)[1:-1] for name in node.inputs),
            ", ".join(_name(name)[1:-1] for name in node.outputs),
            quote(", ".join(map(shape_text, node.shapes)))[1:-1],
        )
        table.add_row(*map(escape, cells))
    console.print(table)


def plural(count: int, noun: str) -> str:
    """A count with its noun: 1 node, 1,024 nodes."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _table(*columns: str) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD if sys.stdout.isatty() else None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _tensors(console: Console, title: str, tensors: list[Tensor]) -> None:
    from rich.markup import escape

    table = _table(title, "type", "shape")
    for tensor in tensors:
        shape = "unknown" if tensor.shape is None else ", ".join(_dim(d) for d in tensor.shape)
        table.add_row(escape(_name(tensor.name)), escape(tensor.type), escape(f"[{shape}]"))
    console.print(table)


def _name(name: str) -> str:
    """A name in quotes; whole, up to any sensible length, where a program may read it."""
    return quote(name) if sys.stdout.isatty() else quote(name, PIPED_NAME)


def _dim(dim: int | str | None) -> str:
    return "?" if dim is None else str(dim) if isinstance(dim, int) else quote(dim)[1:-1]


def _operators(console: Console, inspection: Inspection) -> None:
    from rich.markup import escape

    rows = list(inspection.operators.items())
    listed = ", ".join(f"{quote(op)[1:-1]} {count:,}" for op, count in rows[:SHOWN])
    more = f", … and {len(rows) - SHOWN:,} more" if len(rows) > SHOWN else ""
    functions = f", {plural(inspection.functions, 'function')}" if inspection.functions else ""
    console.print(
        f"[bold]{plural(inspection.nodes, 'node')}{functions}[/]  {escape(listed + more)}\n"
    )


def _weights(console: Console, inspection: Inspection, limit: int | None) -> None:
    from rich.markup import escape

    order = {"weight": 0, "statistic": 1, "constant": 2}
    rows = sorted(inspection.tensors, key=lambda w: (order[w.kind], -w.size))
    table = _table("tensor", "kind", "type", "shape", "why")
    for row in rows[:limit]:
        shape = ", ".join(map(str, row.shape))
        table.add_row(
            escape(_name(row.name)),
            row.kind,
            row.dtype.name.lower(),
            escape(f"[{shape}]"),
            escape(row.reason),
        )
    console.print(table)
    if limit is not None and len(rows) > limit:
        console.print(f"  … and {len(rows) - limit:,} more: --weights lists them")
    counts = ", ".join(
        plural(sum(w.kind == kind for w in rows), kind)
        for kind in order
        if any(w.kind == kind for w in rows)
    )
    console.print(
        f"[bold]{plural(inspection.parameters, 'parameter')}[/] "
        f"({amount(inspection.parameter_bytes)}B); {counts}"
    )


def _cost(console: Console, inspection: Inspection) -> None:
    from rich.markup import escape

    cost = inspection.cost
    sizes = ", ".join(f"{quote(name)[1:-1]}={size}" for name, size in cost.sizes.items())
    console.print(
        f"[bold]{amount(cost.flops)}FLOP[/] per run, "
        f"activations {amount(cost.activation_bytes)}B in all, "
        f"{amount(cost.peak_bytes)}B at the peak" + (f"  (with {escape(sizes)})" if sizes else "")
    )
    if cost.unknown_nodes:
        unknown = plural(cost.unknown_nodes, "node")
        console.print(f"  {unknown} not counted: shapes that depend on data")


def _blockers(console: Console, inspection: Inspection) -> None:
    from rich.markup import escape

    if not inspection.blockers:
        verdict = (
            "nothing stops it from training" if inspection.parameters else "it has nothing to train"
        )
        console.print(f"\n{verdict}")
        return
    table = _table("stops training", "node", "why")
    for blocker in inspection.blockers:
        table.add_row(
            escape(quote(blocker.operator)[1:-1]), escape(_name(blocker.node)), blocker.reason
        )
    console.print()
    console.print(table)


def _unconvertible(console: Console, inspection: Inspection) -> None:
    from rich.markup import escape

    if not inspection.unconvertible:
        console.print("nothing stops it from converting")
        return
    table = _table("stops converting", "node", "why")
    for blocker in inspection.unconvertible[:SHOWN]:
        name = escape(quote(blocker.operator)[1:-1])
        table.add_row(name, escape(_name(blocker.node)), blocker.reason)
    console.print(table)


def amount(number: float) -> str:
    """A number with three digits and a unit prefix: `1.23 M`."""
    for prefix in ("", "k", "M", "G", "T"):
        if number < 1000 or prefix == "T":
            digits = f"{number:.3g}" if prefix else str(int(number))
            return f"{digits} {prefix}"
        number /= 1000
    raise AssertionError
