"""`sardonyx check`: everything that is wrong with a model, without running it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer


def check(
    model: Annotated[Path, typer.Argument(help="The ONNX model.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    untrusted: Annotated[
        bool, typer.Option("--untrusted", help="No effect: this command never runs a model.")
    ] = False,
) -> None:
    """List all defects of a model, without running it; exit with 1 if there are any."""
    from sardonyx.checking import check as gather

    result = gather(model)
    if as_json:
        print(json.dumps([asdict(p) for p in result.problems], indent=1))
        for note in result.notes:
            typer.echo(f"note: {note}", err=True)
    else:
        print(result if result.problems or result.notes else "nothing found")
    if not result:
        raise typer.Exit(1)
