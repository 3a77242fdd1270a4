"""`sardonyx trainable`: add a training record to a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli import train as options


def trainable(
    model: options.Model,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Where to write the trainable model.")
    ],
    loss: options.Loss = None,
    prediction: options.Prediction = None,
    class_axis: options.ClassAxis = None,
    optimizer: options.Optimizer = None,
    lr: options.Rate = None,
    train: options.Train = None,
    freeze: options.Freeze = None,
    config: options.Config = None,
    expanded: Annotated[
        bool,
        typer.Option(
            "--expanded", help="Write the gradient in standard operators, not as Gradient nodes."
        ),
    ] = False,
    in_place: options.InPlace = False,
) -> None:
    """Add a training record (loss, optimizer, step) to a model; its inference does not change."""
    from sardonyx.errors import table
    from sardonyx.record.describe import choices
    from sardonyx.record.trainable import trainable as add_record
    from sardonyx.save import save
    from sardonyx.train.setup import check_output

    check_output(model, output, in_place)
    how = options.choices(loss, prediction, class_axis, optimizer, lr, train, freeze, config)
    net = add_record(model, form="expanded" if expanded else "symbolic", **how)
    save(net, output)
    rows = [["setting", "value", "why"], *([c.what, c.value, c.why] for c in choices(net))]
    for line in table(rows, None):
        typer.echo(line, err=True)
    print(output)
