"""`sardonyx adapter`: merge low-rank adapters into a model, extract them, or list them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sardonyx.errors import ArgumentError, table


def adapter(
    action: Annotated[str, typer.Argument(help="merge, extract or inspect.")],
    file: Annotated[
        Path, typer.Argument(help="A model; for inspect, also a .safetensors adapter file.")
    ],
    adapter_file: Annotated[
        Path | None,
        typer.Option("--adapter", help="Load this adapter file into the model before merging."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="The merged model, or the .safetensors or .onnx_adapter file to write.",
        ),
    ] = None,
) -> None:
    """Merge low-rank adapters into a model, extract them to a file, or list them."""
    actions = {"merge": _merge, "extract": _extract}
    if action == "inspect":
        _inspect(file)
        return
    if action not in actions:
        raise ArgumentError(f"an action is merge, extract or inspect, not {action!r}")
    if output is None:
        raise ArgumentError(f"adapter {action} writes a file", hint="name it with -o")
    typer.echo(actions[action](file, adapter_file, output))


def _merge(file: Path, adapter_file: Path | None, output: Path) -> Path:
    from sardonyx.edit.lora import merge_lora
    from sardonyx.engines.adapters import load_adapter
    from sardonyx.save import save
    from sardonyx.train.setup import refuse_overwriting

    refuse_overwriting(file, output)
    return save(
        merge_lora(file if adapter_file is None else load_adapter(file, adapter_file)), output
    )


def _extract(file: Path, adapter_file: Path | None, output: Path) -> Path:
    from sardonyx.engines.adapters import save_adapter

    if adapter_file is not None:
        raise ArgumentError("adapter extract reads the adapters of the model: omit --adapter")
    return save_adapter(file, output)


def _inspect(file: Path) -> None:
    from sardonyx.edit.lora import FIRST, SECOND, adapter_tensors, require_adapters
    from sardonyx.engines.adapters import ONNXRUNTIME, SAFETENSORS, read
    from sardonyx.model import load

    if file.suffix == ONNXRUNTIME:
        raise ArgumentError(f"{file.name} does not describe its adapters; inspect the model")
    if file.suffix == SAFETENSORS:
        arrays, listed = read(file)
        shapes = {n: a.shape for n, a in arrays.items()}
    else:
        model = load(file)
        listed = require_adapters(model)
        tensors = {n: v.const_value for n, v in adapter_tensors(model).items()}
        shapes = {n: tuple(t.shape.numpy()) for n, t in tensors.items() if t is not None}
    rows = [["weight", "operator", "rank", "alpha", "A", "B"]]
    rows += [
        [n, a.operator, str(a.rank), f"{a.alpha:g}"]
        + [str(list(shapes[n + end])) for end in (FIRST, SECOND)]
        for n, a in listed.items()
    ]
    factors = {n + end for n in listed for end in (FIRST, SECOND)}
    rows += [
        [n, "trained beside", "", "", str(list(s))] for n, s in shapes.items() if n not in factors
    ]
    typer.echo("\n".join(table(rows, limit=None)))
