"""`sardonyx ops`: the operators and how each is supported."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from sardonyx.errors import ArgumentError
from sardonyx.operator_support import GRADIENT, coverage, markdown, summary


def ops(
    pattern: Annotated[
        str, typer.Argument(help="Only operators whose name matches, such as 'Reduce*'.")
    ] = "*",
    gradient: Annotated[
        str | None, typer.Option(help=f"Only those with this gradient: {', '.join(GRADIENT)}.")
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
    rows = [c for c in coverage(pattern) if gradient in (None, c.gradient)]
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
