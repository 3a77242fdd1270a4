"""`sardonyx export-web`: a page that trains a model in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export_web(
    model: Annotated[Path, typer.Argument(help="An ONNX file with a training record.")],
    data: Annotated[
        Path | None, typer.Argument(help="Data that the page begins with: .npz, .csv, a folder.")
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder to write.")] = Path(
        "site"
    ),
    input: Annotated[
        str | None, typer.Option(help="How a user tries the model: draw, image, webcam, csv, text.")
    ] = None,
    target: Annotated[str, typer.Option(help="Where it computes: wasm or webgpu.")] = "auto",
    title: Annotated[str | None, typer.Option(help="The title of the page.")] = None,
    epochs: Annotated[int, typer.Option(min=1, help="The number of epochs at first.")] = 10,
    batch_size: Annotated[int, typer.Option(min=1, help="The batch size at first.")] = 32,
    validation: Annotated[
        float, typer.Option(help="The share of the rows that is held back.")
    ] = 0.2,
    seed: Annotated[int, typer.Option(help="The seed of the order of rows.")] = 0,
    runtime: Annotated[
        Path | None,
        typer.Option(help="A folder that holds onnxruntime-web; without it, npm installs it."),
    ] = None,
) -> None:
    """Write a page that trains the model in a browser, as static files."""
    from sardonyx.web.export import export_web as write

    path = write(
        model, output, data, input=input, target=target, title=title, epochs=epochs,
        batch_size=batch_size, validation=validation, seed=seed, runtime=runtime,
    )  # fmt: skip
    typer.echo(path)
    typer.echo(f"serve it: python -m http.server -d {path.parent}", err=True)
