"""`sardonyx diff`: what changed between two models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def diff(
    a: Annotated[Path, typer.Argument(help="The older model.")],
    b: Annotated[Path, typer.Argument(help="The newer model.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what changed between two models; exit with 1 if anything did."""
    from sardonyx.diff import diff as compare

    result = compare(a, b)
    typer.echo(json.dumps(result.as_dict(), indent=2) if as_json else str(result))
    if result:
        raise typer.Exit(1)
