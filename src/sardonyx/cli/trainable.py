"""`sardonyx trainable`: write a model's training into its file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli import train as options


def trainable(
    model: options.Model,
    output: Annotated[Path, typer.Option("-o", "--output", help="Where the trainable model goes.")],
    loss: options.Loss = None,
    prediction: options.Prediction = None,
    class_axis: options.ClassAxis = None,
    optimizer: options.Optimizer = None,
    lr: options.Rate = None,
    train: options.Train = None,
    freeze: options.Freeze = None,
    config: options.Config = None,
    expanded: Annotated[bool, typer.Option("--expanded", help="Plain operators only.")] = False,
    in_place: options.InPlace = False,
) -> None:
    """Write a model's training into its file; it still serves inference as before."""
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
