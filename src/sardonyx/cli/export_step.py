"""`sardonyx export-step`: the training step as plain ONNX files, for any runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sardonyx.record.export import export_step as write


def export_step(
    model: Annotated[Path, typer.Argument(help="A model with a training record.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The folder to write into.")
    ] = Path("step"),
    current: Annotated[
        bool, typer.Option("--current", help="Start from the current weights and optimizer state.")
    ] = False,
    runtime: Annotated[
        str, typer.Option(help="The oldest runtime that must accept the files.")
    ] = "onnxruntime==1.21",
    plain: Annotated[
        bool,
        typer.Option(
            "--plain",
            help="Replace losses and other function operators by the operators that define them.",
        ),
    ] = False,
    batch: Annotated[
        int | None, typer.Option(help="The rows of every batch, instead of a free size.")
    ] = None,
) -> None:
    """Write train.onnx, evaluate.onnx, initialize.onnx, infer.onnx and step.json."""
    typer.echo(write(model, output, current=current, runtime=runtime, plain=plain, batch=batch))
