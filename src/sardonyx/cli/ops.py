"""`sardonyx ops`: the operators and how each is supported."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from sardonyx import plugins
from sardonyx.errors import ArgumentError
from sardonyx.operator_support import GRADIENT, Coverage, coverage, markdown, summary


def ops(
    pattern: Annotated[
        str, typer.Argument(help="Only operators whose name matches, such as 'Reduce*'.")
    ] = "*",
    gradient: Annotated[
        str | None, typer.Option(help=f"Only those with this gradient: {', '.join(GRADIENT)}.")
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help=f"Show where each runs on an engine: {plugins.listed()}.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print a page for the docs.")
    ] = False,
) -> None:
    """List the operators, their families, and how each is differentiated."""
    if gradient is not None and gradient not in GRADIENT:
        raise ArgumentError(
            f"no gradient is called {gradient!r}", hint=f"one of: {', '.join(GRADIENT)}"
        )
    matching = coverage(pattern)
    if not matching:
        raise ArgumentError(f"no operator is called {pattern!r}")
    rows = [c for c in matching if gradient in (None, c.gradient)]
    if engine is not None:
        _show_engine(engine, rows, as_json)
        return
    if as_json:
        typer.echo(json.dumps([c.row() for c in rows], indent=2))
        return
    if as_markdown:
        typer.echo(markdown(rows), nl=False)
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD if sys.stdout.isatty() else None)
    table.add_column("operator", min_width=max((len(c.name) for c in rows), default=0))
    for column in ("family", "gradient", "tagged"):
        table.add_column(column)
    colour = {"rule": "green", "body": "green", "none": "dim", "missing": "red"}
    for c in rows:
        table.add_row(c.name, c.family, f"[{colour[c.gradient]}]{c.gradient}[/]", "yes" * c.tagged)
    console = Console()
    console.print(table)
    console.print(summary(rows), highlight=False)


def _show_engine(engine: str, rows: list[Coverage], as_json: bool) -> None:
    """Where each operator runs on an engine, as the engine declares it."""
    from sardonyx.engines.declared import MEANINGS, declared

    places = {c.name: declared(engine, c.operator, c.domain) for c in rows}
    if as_json:
        typer.echo(json.dumps(places, indent=2))
        return
    width = max((len(name) for name in places), default=0)
    for name, place in places.items():
        typer.echo(f"{name:<{width}}  {place}")
    counts = {kind: list(places.values()).count(kind) for kind in MEANINGS}
    for kind, count in counts.items():
        if count:
            typer.echo(f"{count} {kind}: {MEANINGS[kind]}", err=True)
