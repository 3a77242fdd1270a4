"""`sardonyx convert`: write a model for another framework, and prove that it is the same."""

from __future__ import annotations

import contextlib
import importlib
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from sardonyx import plugins
from sardonyx.errors import ArgumentError, did_you_mean, quote
from sardonyx.save import full_disk_reported

# target -> the suffixes that its output may have; "" is a folder
TARGETS = {
    "torch": (".pt2",), "torch-source": ("",), "jax": ("",), "tensorflow": ("",),
    "keras": (".keras",), "numpy": ("", ".npz"), "tflite": (".tflite",), "matlab": ("",),
}  # fmt: skip
# target -> the module of sardonyx.engines that writes it, if not <target>.convert
MODULES = {"torch-source": "torch.source.write", "matlab": "matlab.octave"}


def convert(
    model: Annotated[Path, typer.Argument(help="The ONNX model.")],
    to: Annotated[
        str,
        typer.Option(
            help="The target: torch, torch-source, jax, tensorflow, keras, tflite, matlab or numpy."
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="A .pt2 (torch), .keras, .tflite or .npz (numpy) file, or a folder.",
        ),
    ] = None,
    place: Annotated[
        list[str] | None,
        typer.Option(
            help="Run nodes on another engine, by name or operator: 'Conv*=onnxruntime'. "
            f"Engines: {plugins.listed('and')}."
        ),
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(help="A number for a free size, such as N=8: tflite, or to count bytes."),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Only show where each node would run and what would be copied."
        ),
    ] = False,
    seeds: Annotated[
        int, typer.Option(help="The number of random inputs to verify with; 0: do not verify.")
    ] = 3,
    inputs: Annotated[
        Path | None,
        typer.Option(help="Inputs to verify with: an .npz file, or a test_data_set_* folder."),
    ] = None,
    quantize: Annotated[
        str | None, typer.Option(help="For tflite: dynamic, float16 or int8.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="For tflite and int8: typical inputs, an .npz file.")
    ] = None,
    layout: Annotated[
        str, typer.Option(help="For tflite: nhwc takes images with their channels last.")
    ] = "nchw",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Convert a model to PyTorch, JAX, TensorFlow, Keras, LiteRT, MATLAB or NumPy, and verify it.

    torch writes an exported program (.pt2), torch-source a folder with readable Python, jax a
    folder with jax.export files, tensorflow a SavedModel. All of them run without sardonyx.
    keras writes a .keras file, with the training record compiled in, which needs sardonyx.
    tflite writes a file for LiteRT, after comparing it there. matlab writes a folder with readable
    code, which GNU Octave verifies if it is installed. numpy writes a folder with a module
    that needs sardonyx, or an .npz file of the weights.

    Exit codes are those of `verify`: 0 same, 1 different, 4 look (more than rounding usually
    does), 5 could not tell, 6 the converted model fails.
    """
    if to not in TARGETS:
        raise ArgumentError(f"cannot convert to {to!r}", hint=did_you_mean(to, TARGETS))
    if dry_run:
        from sardonyx.engines.placement import placement

        sizes = {name: int(number) for name, number in pairs(size, "size").items()}
        print(placement(model, to, place=pairs(place, "place"), sizes=sizes))
        return
    if place or (size and to != "tflite"):
        raise ArgumentError(
            "--place and --size need --dry-run: an exported file runs on one framework",
            hint="in Python, sardonyx.to_torch(model, place={…}) runs nodes elsewhere",
        )
    if output is None:
        raise ArgumentError("no output is given", hint="-o names the file or folder to write")
    endings = TARGETS[to]
    if "" not in endings and output.suffix not in endings:
        raise ArgumentError(f"{to} is written to a {endings[0]} file, not to {output.name!r}")

    if to == "tflite":
        from sardonyx.deploy import to_tflite

        sizes = {name: int(number) for name, number in pairs(size, "size").items()}
        settings: dict[str, Any] = {"quantize": quantize, "data": data, "inputs": layout}
        file = to_tflite(model, output, sizes=sizes, seeds=max(seeds, 1), **settings)
        if not quiet:
            print(file, file=sys.stderr, flush=True)
        print(output)
        raise typer.Exit(file.report.exit_code)
    if quantize or data or layout != "nchw":
        raise ArgumentError("--quantize, --data and --layout are for --to tflite")

    def show(label: str, value: str) -> None:
        if not quiet:
            print(f"{label:<16} {value}", file=sys.stderr, flush=True)

    if output.exists() and output.is_dir() != _is_folder(output, to):
        kind = "a folder" if output.is_dir() else "a file"
        raise ArgumentError(f"{quote(output)} is {kind} already", hint="name another --output")
    if not output.name:
        raise ArgumentError(f"--output names a file or a folder to write, not {quote(output)}")
    from sardonyx.model import load

    loaded = load(model)
    if not loaded.outputs:
        raise ArgumentError("the model has no outputs: there is nothing to convert")
    started = time.monotonic()
    show("converting", f"{model} to {to}")
    module = MODULES.get(to, f"{to}.convert")
    with _moved_once_verified(output) as draft:
        with full_disk_reported(output.parent):
            stored = importlib.import_module(f"sardonyx.engines.{module}").store(loaded, draft)
        seconds = time.monotonic() - started
        show("written", f"{output} ({bytes_in(draft):,} bytes, {seconds:.1f} s)")
        for label, value in stored.rows:
            show(label, value.replace(str(draft), str(output)))
        code = 0
        if (seeds or inputs is not None) and stored.function is None:
            show("not verified", stored.unverified)
            code = 5
        elif seeds or inputs is not None:
            from sardonyx.verify import verify

            at = (stored.sizes or None) if inputs is None else None
            report = verify(
                loaded, stored.function, seeds=seeds, inputs=inputs, sizes=at, culprit=False
            )
            source = f"{seeds} random inputs" if inputs is None else f"the inputs of {inputs}"
            show("verified", f"{report.verdict} on {source}, read back from the file")
            for problem in dict.fromkeys(m.problem for m in report.measurements if m.problem):
                show("", problem)
            if report.verdict in ("different", "look"):
                worst = max(report.measurements, key=lambda m: m.ratio)
                show("", f"output {quote(worst.output)}: {worst.ratio:.3g} × the noise of rounding")
            code = report.exit_code
    print(output)
    raise typer.Exit(code)


def _is_folder(output: Path, to: str) -> bool:
    """Whether a target writes a folder under this name."""
    return "" in TARGETS[to] and (not output.suffix or output.suffix not in TARGETS[to])


@contextlib.contextmanager
def _moved_once_verified(path: Path) -> Iterator[Path]:
    """Where to write what becomes `path` once it is verified.

    Until then it lies in a folder of its own beside it: neither an error nor a process that is
    killed leaves anything unverified at `path`, or takes away what was there before. A verdict is
    no error: what was written is moved.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".sardonyx-", dir=path.parent))
    try:
        yield scratch / path.name
        _move(scratch / path.name, path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _move(source: Path, target: Path) -> None:
    """Rename a file or folder; the files of a folder that is there already are replaced."""
    if not (source.is_dir() and target.is_dir()):
        source.replace(target)
        return
    for part in source.iterdir():
        _move(part, target / part.name)


def pairs(texts: list[str] | None, option: str) -> dict[str, str]:
    """Options of the form name=value, as a dictionary."""
    split = {text: text.rpartition("=") for text in texts or ()}
    wrong = [[repr(text)] for text, (name, _, value) in split.items() if not name or not value]
    if wrong:
        raise ArgumentError(f"--{option} takes name=value", wrong)
    return {name: value for name, _, value in split.values()}


def bytes_in(path: Path) -> int:
    """The bytes of a file, or of all files in a folder."""
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    return sum(p.stat().st_size for p in files)
