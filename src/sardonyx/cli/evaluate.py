"""`sardonyx evaluate`: the loss and metrics of a model on data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from sardonyx import plugins
from sardonyx.cli import data_options as options


def evaluate(
    model: Annotated[Path, typer.Argument(help="The ONNX model.")],
    data: options.Data,
    metrics: Annotated[
        list[str] | None,
        typer.Option("--metric", help="What to measure: accuracy, top5, f1, auc, mae, …"),
    ] = None,
    loss: Annotated[
        str | None, typer.Option(help="The loss of a model that has no training record.")
    ] = None,
    prediction: Annotated[
        str | None, typer.Option(help="The tensor that the loss compares with the label.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows at a time (default 256).")] = None,
    engine: Annotated[str, typer.Option(help=f"Run on {plugins.listed()}.")] = "onnxruntime",
    device: options.Device = None,
    columns: options.Columns = None,
    fields: options.Fields = None,
    constants: options.Constants = None,
    batch_axes: options.BatchAxes = None,
    preprocess: options.Preprocess = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure a model on data."""
    from sardonyx.train.evaluation import evaluate as measure

    how: dict[str, Any] = {"loss": loss, "prediction": prediction}
    values = measure(
        model,
        data,
        metrics=metrics or None,
        batch_size=batch_size,
        engine=engine,
        device=device,
        **options.data_arguments(columns, fields, constants, batch_axes, preprocess),
        **{name: value for name, value in how.items() if value is not None},
    )
    if as_json:
        print(json.dumps(values))
        return
    for name, value in values.items():
        print(f"{name:12} {value:.6g}")
