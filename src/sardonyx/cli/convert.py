"""`sardonyx convert`: write a model for another framework, and prove that it is the same."""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from sardonyx.errors import ArgumentError

# framework -> the ending of what is written; "" is a folder
TARGETS = {"torch": ".pt2", "jax": "", "tensorflow": "", "numpy": ".npz"}


def convert(
    model: Annotated[Path, typer.Argument(help="The ONNX model.")],
    to: Annotated[str, typer.Option(help="torch, jax, tensorflow or numpy.")],
    output: Annotated[
        Path,
        typer.Option("-o", "--output", help="A .pt2 or .npz file, or a folder (jax, tensorflow)."),
    ],
    seeds: Annotated[int, typer.Option(help="How many random inputs verify it; 0: none.")] = 3,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show nothing.")] = False,
) -> None:
    """Turn a model into PyTorch, JAX, TensorFlow or NumPy, and verify what was written.

    Exit with 0 if it gives the same numbers, 1 if they differ, 2 if that is unclear.
    """
    if to not in TARGETS:
        raise ArgumentError(f"cannot convert to {to!r}", hint=f"one of {', '.join(TARGETS)}")
    ending = TARGETS[to]
    if output.suffix != ending and ending:
        raise ArgumentError(f"{to} is written to a {ending} file, not to {output.name!r}")

    def say(what: str, value: str) -> None:
        if not quiet:
            print(f"{what:<16} {value}", file=sys.stderr, flush=True)

    from sardonyx.model import load

    loaded = load(model)
    begun = time.monotonic()
    say("converting", f"{model} to {to}")
    stored = importlib.import_module(f"sardonyx.engines.{to}.convert").store(loaded, output)
    say("written", f"{output} ({size(output):,} bytes, {time.monotonic() - begun:.1f} s)")
    for what, value in stored.rows:
        say(what, value)
    code = 0
    if seeds:
        from sardonyx.verify import verify

        report = verify(loaded, stored.function, seeds=seeds, culprit=False)
        say("verified", f"{report.verdict} on {seeds} random inputs, read back from the file")
        code = report.exit_code
    print(output)
    raise typer.Exit(code)


def size(path: Path) -> int:
    """The bytes of a file, or of all files in a folder."""
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    return sum(p.stat().st_size for p in files)
