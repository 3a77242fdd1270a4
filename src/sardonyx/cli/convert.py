"""`sardonyx convert`: write a model for another framework, and prove that it is the same."""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from sardonyx.errors import ArgumentError

# framework -> the endings of what is written; "" is a folder
TARGETS = {
    "torch": (".pt2",), "torch-source": ("",), "jax": ("",), "tensorflow": ("",),
    "numpy": ("", ".npz"),
}  # fmt: skip
# the module of sardonyx.engines that writes a target, if not the engine's own `convert`
MODULES = {"torch-source": "torch.source.write"}


def convert(
    model: Annotated[Path, typer.Argument(help="The ONNX model.")],
    to: Annotated[
        str,
        typer.Option(help="torch, torch-source, jax, tensorflow, or numpy."),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", help="A folder; for torch a .pt2 file; an .npz has the weights alone."
        ),
    ] = None,
    place: Annotated[
        list[str] | None,
        typer.Option(help="'Conv*=onnxruntime': nodes by name or operator, and their engine."),
    ] = None,
    size: Annotated[
        list[str] | None, typer.Option(help="'N=8': a free size, for the bytes of a dry run.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say which nodes run where, and what crosses.")
    ] = False,
    seeds: Annotated[int, typer.Option(help="How many random inputs verify it; 0: none.")] = 3,
    inputs: Annotated[
        Path | None,
        typer.Option(help="Verify it on these: an .npz, or a folder in the model zoo's form."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show nothing.")] = False,
) -> None:
    """Turn a model into PyTorch (a program or source), JAX or TensorFlow, and verify it.

    torch is an exported program (.pt2), torch-source a folder with readable Python, jax and
    tensorflow are folders with what jax.export and SavedModel write: they run without sardonyx.
    NumPy has no form of a program: its folder has a module that runs the model on sardonyx's
    NumPy engine, and an .npz file has the weights by their names and nothing that runs.

    Exit codes are those of `verify`: 0 same, 1 different, 4 look, 5 could not tell, 6 fails.
    """
    if to not in TARGETS:
        raise ArgumentError(f"cannot convert to {to!r}", hint=f"one of {', '.join(TARGETS)}")
    if dry_run:
        from sardonyx.engines.placement import placement

        sizes = {name: int(number) for name, number in pairs(size, "size").items()}
        print(placement(model, to, place=pairs(place, "place"), sizes=sizes))
        return
    if place or size:
        raise ArgumentError(
            "--place and --size need --dry-run: an exported file runs on one framework",
            hint="in Python, sardonyx.to_torch(model, place={…}) runs nodes elsewhere",
        )
    if output is None:
        raise ArgumentError("where to? -o names the file or folder")
    endings = TARGETS[to]
    if "" not in endings and output.suffix not in endings:
        raise ArgumentError(f"{to} is written to a {endings[0]} file, not to {output.name!r}")

    def say(what: str, value: str) -> None:
        if not quiet:
            print(f"{what:<16} {value}", file=sys.stderr, flush=True)

    from sardonyx.model import load

    loaded = load(model)
    begun = time.monotonic()
    say("converting", f"{model} to {to}")
    writer = MODULES.get(to, f"{to}.convert")
    stored = importlib.import_module(f"sardonyx.engines.{writer}").store(loaded, output)
    say("written", f"{output} ({bytes_in(output):,} bytes, {time.monotonic() - begun:.1f} s)")
    for what, value in stored.rows:
        say(what, value)
    code = 0
    if seeds or inputs is not None:
        from sardonyx.verify import verify

        report = verify(loaded, stored.function, seeds=seeds, inputs=inputs, culprit=False)
        source = f"{seeds} random inputs" if inputs is None else f"the inputs of {inputs}"
        say("verified", f"{report.verdict} on {source}, read back from the file")
        for problem in dict.fromkeys(m.problem for m in report.measurements if m.problem):
            say("", problem)
        code = report.exit_code
    print(output)
    raise typer.Exit(code)


def pairs(texts: list[str] | None, option: str) -> dict[str, str]:
    """Options of the form name=value."""
    split = {text: text.rpartition("=") for text in texts or ()}
    wrong = [[repr(text)] for text, (name, _, value) in split.items() if not name or not value]
    if wrong:
        raise ArgumentError(f"--{option} takes name=value", wrong)
    return {name: value for name, _, value in split.values()}


def bytes_in(path: Path) -> int:
    """The bytes of a file, or of all files in a folder."""
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    return sum(p.stat().st_size for p in files)
