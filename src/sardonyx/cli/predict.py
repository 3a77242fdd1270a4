"""`sardonyx predict`: run a model over data and save its outputs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from sardonyx import plugins
from sardonyx.cli import data_options as options


def predict(
    model: Annotated[Path, typer.Argument(help="The ONNX model.")],
    data: options.Data,
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", help="An .npz file for all outputs, or a .csv with a line per row."
        ),
    ],
    batch_size: Annotated[int | None, typer.Option(help="Rows at a time (default 256).")] = None,
    engine: Annotated[str, typer.Option(help=f"Run on {plugins.listed()}.")] = "onnxruntime",
    device: options.Device = None,
    columns: options.Columns = None,
    fields: options.Fields = None,
    constants: options.Constants = None,
    batch_axes: options.BatchAxes = None,
    preprocess: options.Preprocess = None,
) -> None:
    """Run a model over data and save its outputs.

    A .csv file has the file name or number of each row; of a classifier the predicted class and its
    probability, of other models the numbers that they put out.
    """
    from sardonyx.model import load
    from sardonyx.train.evaluation import Place, predictions
    from sardonyx.train.fields import Feeding
    from sardonyx.train.predictions import check_target, rows_without_numbers, write_predictions
    from sardonyx.train.setup import refuse_overwriting

    check_target(output)
    refuse_overwriting(data, output, "the data")
    chosen = options.data_arguments(columns, fields, constants, batch_axes, preprocess)
    feeding = Feeding(chosen["fields"] or {}, chosen["constants"] or {}, chosen["batch_axes"] or {})
    place = Place(engine, device)
    loaded = load(model)
    result = predictions(
        loaded, data, batch_size, feeding, chosen["columns"], chosen["preprocess"], place
    )
    write_predictions(result, loaded, output)
    if rows := rows_without_numbers(result):
        text = f"{len(rows):,} row{'s' * (len(rows) > 1)}, the first is {rows[0]}"
        print(f"note: outputs hold NaN in {text}: is a value missing there?", file=sys.stderr)
    for name, value in result.outputs.items():
        print(f"{name}  {value.dtype}  {list(value.shape)}")
