"""`sardonyx evaluate`: the loss and metrics of a model on data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer


def evaluate(
    model: Annotated[Path, typer.Argument(help="The ONNX model.")],
    data: Annotated[
        Path, typer.Argument(help="A .npz, .npy, .csv or .parquet file, or a folder of images.")
    ],
    metrics: Annotated[
        list[str] | None, typer.Option("--metric", help="accuracy, top5, f1, auc, mae, …")
    ] = None,
    loss: Annotated[str | None, typer.Option(help="For a model without a record.")] = None,
    batch_size: Annotated[int, typer.Option(help="Rows at a time.")] = 256,
    columns: Annotated[str | None, typer.Option(help="Columns of a table, the label last.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout.")] = False,
) -> None:
    """Measure a model on data."""
    from sardonyx.train.evaluation import evaluate as measure

    how: dict[str, Any] = {} if loss is None else {"loss": loss}
    found = measure(
        model,
        data,
        metrics=metrics,
        batch_size=batch_size,
        columns=columns.split(",") if columns else None,
        **how,
    )
    if as_json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:12} {value:.6g}")
