"""The options about data that `train`, `evaluate` and `predict` share, and how they are read."""

from __future__ import annotations

from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer

from sardonyx.errors import ArgumentError, quote

Data = Annotated[
    Path, typer.Argument(help="A .npz, .npy, .csv or .parquet file, or a folder of images.")
]
Device = Annotated[
    str | None,
    typer.Option(help="Where the engine computes: cpu, cuda, cuda:1, mps (default: its own)."),
]
Columns = Annotated[
    str | None, typer.Option(help="The columns or fields to use, the label last: a,b,label.")
]
Fields = Annotated[
    list[str] | None,
    typer.Option("--field", help="input=field: which field feeds an input, if the names differ."),
]
Constants = Annotated[
    list[str] | None,
    typer.Option(
        "--constant", help="input=value: one value for all rows, such as sr=16000 or a .npy file."
    ),
]
BatchAxes = Annotated[
    list[str] | None,
    typer.Option(
        "--batch-axis",
        help="input=axis: the batch axis of an input, if not 0. In the data, rows are "
        "always on axis 0.",
    ),
]
Preprocess = Annotated[
    list[str] | None,
    typer.Option(
        help="How images become numbers: imagenet, or scale=1/255, mean=…, std=…, crop=0.875, "
        "order=BGR, size=224."
    ),
]


def data_arguments(
    columns: str | None,
    fields: list[str] | None,
    constants: list[str] | None,
    batch_axes: list[str] | None,
    preprocess: list[str] | None,
) -> dict[str, Any]:
    """The arguments of `sx.train`, `sx.evaluate` and `sx.predict` that the options describe."""
    arguments = {
        "columns": columns.split(",") if columns else None,
        "fields": dict(_pair(text, "field") for text in fields or []),
        "constants": {n: _constant(v) for n, v in (_pair(t, "constant") for t in constants or [])},
        "batch_axes": {n: _axis(v) for n, v in (_pair(t, "batch-axis") for t in batch_axes or [])},
        "preprocess": _preprocessing(preprocess or []),
    }
    return {name: value or None for name, value in arguments.items()}


def _pair(text: str, option: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not (sign and name and value):
        raise ArgumentError(f"--{option} takes name=value, not {quote(text)}")
    return name, value


def _constant(text: str) -> Any:
    if text.endswith(".npy"):
        import numpy as np

        try:
            return np.load(text, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise ArgumentError(f"cannot read the constant {quote(text)}: {error}") from error
    numbers = [_number(part, "constant") for part in text.split(",")]
    return numbers[0] if len(numbers) == 1 else numbers


def _number(text: str, option: str) -> int | float:
    for kind in (int, float, Fraction):
        try:
            number = kind(text)
        except (ValueError, ZeroDivisionError):
            continue
        return float(number) if isinstance(number, Fraction) else number  # type: ignore[return-value]
    raise ArgumentError(f"--{option} takes numbers, not {quote(text)}")


def _axis(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ArgumentError(f"--batch-axis takes input=number, not {quote(text)}") from None


def _preprocessing(texts: list[str]) -> dict[str, Any]:
    """The settings of a preset, if one is named, with those given by name in their place."""
    from sardonyx.train.images import as_preprocessing

    settings: dict[str, Any] = {}
    for text in texts:
        if "=" not in text:
            settings = {**asdict(as_preprocessing(text)), **settings}
            continue
        name, value = _pair(text, "preprocess")
        if name == "order":
            settings[name] = value
        else:
            numbers = [_number(part, "preprocess") for part in value.split(",")]
            settings[name] = numbers[0] if len(numbers) == 1 else numbers
    return settings
