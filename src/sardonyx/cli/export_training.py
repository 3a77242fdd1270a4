"""`sardonyx export-training`: a whole training as one ONNX file, for any runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli import data_options as options
from sardonyx.cli import train as training


def export_training(
    model: training.Model,
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write.")] = Path(
        "whole.onnx"
    ),
    validation: Annotated[
        float | None, typer.Option(help="The share of the rows that is held back, such as 0.2.")
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option("--metric", help="Measured on the rows held back: accuracy, top5, mae."),
    ] = None,
    patience: Annotated[
        int | None, typer.Option(help="Stop after this many epochs without improvement.")
    ] = None,
    watch: Annotated[
        str | None,
        typer.Option(help="The metric that decides the best epoch, such as val_accuracy."),
    ] = None,
    standardize: Annotated[
        bool,
        typer.Option("--standardize", help="Bring the columns to mean 0 and deviation 1."),
    ] = False,
    no_shuffle: Annotated[
        bool, typer.Option("--no-shuffle", help="Take the rows in the order of the data.")
    ] = False,
    drop_last: Annotated[
        bool, typer.Option("--drop-last", help="Skip the last batch if it is not full.")
    ] = False,
    loss: training.Loss = None,
    prediction: training.Prediction = None,
    class_axis: training.ClassAxis = None,
    optimizer: training.Optimizer = None,
    lr: training.Rate = None,
    train_only: training.Train = None,
    freeze: training.Freeze = None,
    config: training.Config = None,
    constants: options.Constants = None,
    batch_axes: options.BatchAxes = None,
    all_inputs: Annotated[
        bool,
        typer.Option(
            "--all-inputs",
            help="All inputs must be fed, as onnxruntime-web needs it: also rates and state.",
        ),
    ] = False,
    runtime: Annotated[
        str, typer.Option(help="The oldest runtime that must accept the file.")
    ] = "onnxruntime==1.21",
) -> None:
    """Write a whole training as one ONNX file: data in, trained weights out."""
    from sardonyx.train.whole.export import export_training as write

    how = training.choices(loss, prediction, class_axis, optimizer, lr, train_only, freeze, config)
    feeding = options.data_arguments(None, None, constants, batch_axes, None)
    path = write(
        model,
        output,
        validation=validation,
        metrics=metrics or None,
        patience=patience,
        watch=watch,
        standardize=standardize,
        shuffle=not no_shuffle,
        drop_last=drop_last,
        constants=feeding["constants"],
        batch_axes=feeding["batch_axes"],
        defaults=not all_inputs,
        runtime=runtime,
        **how,
    )
    typer.echo(path)
