"""`sardonyx grad`: write a model's gradient as an ONNX model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def grad(
    model: Annotated[Path, typer.Argument(help="The ONNX model.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Where to write the gradient model.")
    ],
    of: Annotated[
        list[str] | None, typer.Option(help="A tensor to differentiate (default: all outputs).")
    ] = None,
    wrt: Annotated[
        list[str] | None,
        typer.Option(help="Differentiate with respect to this (default: all inputs)."),
    ] = None,
    stop: Annotated[list[str] | None, typer.Option(help="A tensor to treat as a constant.")] = None,
    seeds: Annotated[
        bool, typer.Option("--seeds", help="Add inputs for the gradients of the outputs.")
    ] = False,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Allow the output to replace the model's own file.")
    ] = False,
) -> None:
    """Write a model's gradient as an ONNX model of standard operators."""
    from sardonyx.grad import grad as differentiate
    from sardonyx.model import load
    from sardonyx.save import save
    from sardonyx.train.setup import check_output

    check_output(model, output, in_place)
    result = differentiate(
        load(model), of or None, wrt or None, seeds="input" if seeds else None, stop=stop or ()
    )
    save(result, output)
    for value in result.outputs:
        print(f"{value.name}  {value.dtype}  {value.shape}")
