"""`sardonyx quantize`: a model with integer weights, with or without training."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sardonyx.cli import data_options as options
from sardonyx.cli import train as training
from sardonyx.errors import ArgumentError


def quantize(
    model: training.Model,
    data: options.Data,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Where to write the integer model.")
    ],
    weights: Annotated[str, typer.Option(help="int8 or int4.")] = "int8",
    activations: Annotated[
        str, typer.Option(help="uint8, int16, or none to leave activations as they are.")
    ] = "uint8",
    per_tensor: Annotated[
        bool, typer.Option("--per-tensor", help="One scale per weight, not per channel.")
    ] = False,
    fixed_scales: Annotated[
        bool, typer.Option("--fixed-scales", help="Keep the scales as they are calibrated.")
    ] = False,
    skip: Annotated[
        list[str] | None, typer.Option(help="Leave weights that match as they are: 'head.*'.")
    ] = None,
    epochs: Annotated[
        int, typer.Option(help="Passes over the data with rounding in the graph (default 0).")
    ] = 0,
    batch_size: Annotated[int | None, typer.Option(help="Rows per step (default 32).")] = None,
    test: Annotated[
        Path | None, typer.Option(help="Data that the report measures on (default: the data).")
    ] = None,
    trained: Annotated[
        Path | None, typer.Option(help="Also keep the float model that was trained, to go on.")
    ] = None,
    loss: training.Loss = None,
    prediction: training.Prediction = None,
    class_axis: training.ClassAxis = None,
    optimizer: training.Optimizer = None,
    lr: training.Rate = None,
    config: training.Config = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no report.")] = False,
) -> None:
    """Round a model to integers; with --epochs, train it to bear that. Prints a report."""
    from sardonyx.model import load
    from sardonyx.quantize.aware import quantize_aware
    from sardonyx.quantize.integers import to_integers
    from sardonyx.quantize.report import compared, left_as_floats
    from sardonyx.record.describe import descriptions
    from sardonyx.record.override import of_record
    from sardonyx.save import save
    from sardonyx.train.loop import train
    from sardonyx.train.setup import refuse_overwriting

    how = training.choices(loss, prediction, class_axis, optimizer, lr, None, None, config)
    refuse_overwriting(model, output)
    if trained is not None and not epochs:
        raise ArgumentError("--trained keeps a model that was trained", hint="--epochs trains it")
    source = load(model).copy()
    if epochs or all("arguments" in d for d in descriptions(source)):
        how = of_record(source, how)
    source.records = []
    rounded = quantize_aware(
        source,
        data,
        weights=weights,  # type: ignore[arg-type]
        activations=None if activations == "none" else activations,  # type: ignore[arg-type]
        per_channel=not per_tensor,
        learn_scales=not fixed_scales,
        skip=skip or (),
    )
    integers = to_integers(rounded)
    models: dict[str, Any] = {"float": (source, source), "rounded": (rounded, integers)}
    if epochs:
        display = "quiet" if quiet else "auto"
        run = train(rounded, data, epochs=epochs, batch_size=batch_size, display=display, **how)
        integers = to_integers(run.model)
        models["trained"] = (run.model, integers)
        if trained is not None:
            save(run.model, trained)
    save(integers, output)
    if not quiet:
        of_loss = {k: v for k, v in how.items() if k in ("loss", "prediction", "class_axis")}
        print(compared(models, test or data, **of_loss), file=sys.stderr)
        for row in left_as_floats(rounded):
            print("still floats:", *row, file=sys.stderr)
    typer.echo(output)
