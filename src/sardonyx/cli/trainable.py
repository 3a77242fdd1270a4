"""`sardonyx trainable`: write a model's training into its file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli.train import choices as chosen


def trainable(
    model: Annotated[Path, typer.Argument(help="The ONNX model.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where the trainable model goes.")],
    loss: Annotated[
        str | None, typer.Option(help="cross_entropy, mse, …; guessed if not given.")
    ] = None,
    class_axis: Annotated[
        int | None, typer.Option(help="Axis of the classes (cross_entropy); inferred if not given.")
    ] = None,
    optimizer: Annotated[str | None, typer.Option(help="adamw, sgd, …")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    train: Annotated[list[str] | None, typer.Option(help="Pattern of parameters to train.")] = None,
    freeze: Annotated[
        list[str] | None, typer.Option(help="Pattern of parameters to leave.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A TOML or YAML file with all of this.")
    ] = None,
    expanded: Annotated[bool, typer.Option("--expanded", help="Plain operators only.")] = False,
) -> None:
    """Write a model's training into its file; it still serves inference as before."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from sardonyx.record.describe import choices
    from sardonyx.record.trainable import trainable as make
    from sardonyx.save import save

    how = chosen(loss, optimizer, lr, train, freeze, config, class_axis)
    net = make(model, form="expanded" if expanded else "symbolic", **how)
    save(net, output)
    table = Table("setting", "value", "why")
    for choice in choices(net):
        table.add_row(escape(choice.what), escape(choice.value), escape(choice.why))
    Console(stderr=True).print(table)
    print(output)
