"""`sardonyx predict`: run a model over data and save what comes out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def predict(
    model: Annotated[Path, typer.Argument(help="The ONNX model.")],
    data: Annotated[
        Path, typer.Argument(help="A .npz, .npy, .csv or .parquet file, or a folder of images.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="A .npz file for the outputs.")],
    batch_size: Annotated[int, typer.Option(help="Rows at a time.")] = 256,
    columns: Annotated[str | None, typer.Option(help="Columns of a table.")] = None,
) -> None:
    """Run a model over data and save what comes out."""
    import numpy as np

    from sardonyx.train.evaluation import predict as run

    found = run(model, data, batch_size=batch_size, columns=columns.split(",") if columns else None)
    np.savez(output, **found)  # type: ignore[arg-type]
    for name, value in found.items():
        print(f"{name}  {value.dtype}  {list(value.shape)}")
