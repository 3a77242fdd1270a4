"""`sardonyx train`: from a model and data to a tuned model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sardonyx.errors import ArgumentError


def train(
    model: Annotated[Path, typer.Argument(help="The ONNX model.")],
    data: Annotated[
        Path, typer.Argument(help="A .npz, .npy, .csv or .parquet file, or a folder of images.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where the tuned model goes.")],
    epochs: Annotated[
        int | None, typer.Option(help="How many times over the data (default 3).")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="How many steps, instead of epochs.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows per step (default 32).")] = None,
    validation: Annotated[str | None, typer.Option(help="A share such as 0.1, or a file.")] = None,
    metrics: Annotated[
        list[str] | None, typer.Option("--metric", help="accuracy, top5, f1, auc, mae, …")
    ] = None,
    loss: Annotated[
        str | None, typer.Option(help="cross_entropy, mse, …; guessed if not given.")
    ] = None,
    class_axis: Annotated[
        int | None, typer.Option(help="Axis of the classes (cross_entropy); inferred if not given.")
    ] = None,
    optimizer: Annotated[str | None, typer.Option(help="adamw, sgd, …")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    train_only: Annotated[
        list[str] | None, typer.Option("--train", help="Pattern of parameters to train.")
    ] = None,
    freeze: Annotated[
        list[str] | None, typer.Option(help="Pattern of parameters to leave.")
    ] = None,
    replace_head: Annotated[
        int | None, typer.Option(help="Give the model a new last layer for so many classes.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A TOML or YAML file with all of this.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of shuffling, splitting and dropout (default 0).")
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="Columns of a table, the label last: a,b,label.")
    ] = None,
    fields: Annotated[
        list[str] | None, typer.Option("--field", help="input=field, where names differ.")
    ] = None,
    engine: Annotated[
        str, typer.Option(help="onnxruntime, torch, jax, tensorflow or auto.")
    ] = "onnxruntime",
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Less memory, more time (onnxruntime).")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the output where it stopped.")
    ] = False,
    every_steps: Annotated[int | None, typer.Option(help="Save every so many steps.")] = None,
    every_minutes: Annotated[float, typer.Option(help="Save every so many minutes.")] = 5.0,
    patience: Annotated[
        int | None, typer.Option(help="Stop after so many epochs without improvement.")
    ] = None,
    watch: Annotated[str | None, typer.Option(help="The metric that has to improve.")] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write an HTML report (and PNG curves) here.")
    ] = None,
    tensorboard: Annotated[
        Path | None, typer.Option(help="Write TensorBoard events into this folder.")
    ] = None,
    json_lines: Annotated[bool, typer.Option("--json", help="JSON lines on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show nothing.")] = False,
) -> None:
    """Train or fine-tune a model on data, or continue a stopped run."""
    from sardonyx.train.loop import train as run_training

    how = choices(loss, optimizer, lr, train_only, freeze, config, class_axis)
    source: Any = model
    if replace_head is not None and not (resume and output.exists()):
        from sardonyx.edit.surgery import replace_head as new_head

        source = new_head(_without_records(model, quiet), classes=replace_head)
    run = run_training(
        source,
        data,
        epochs=epochs,
        steps=steps,
        batch_size=batch_size,
        validation=_validation(validation),
        metrics=metrics,
        engine=engine,
        recompute=recompute,
        seed=seed,
        columns=columns.split(",") if columns else None,
        fields=dict(_pair(f) for f in fields or []) or None,
        output=output,
        resume=resume,
        every_steps=every_steps,
        every_minutes=every_minutes,
        patience=patience,
        watch=watch,
        callbacks=_callbacks(tensorboard),
        display="json" if json_lines else "quiet" if quiet else "auto",
        **how,
    )
    if report is not None:
        from sardonyx.train.report import write_report

        write_report(run, report)
    if run.stopped == "interrupted":
        print(f"interrupted; continue with --resume -o {output}", file=sys.stderr)
        raise typer.Exit(130)
    if not (quiet or json_lines):
        print(output)


def choices(
    loss: str | None,
    optimizer: str | None,
    lr: float | None,
    train: list[str] | None,
    freeze: list[str] | None,
    config: Path | None,
    class_axis: int | None = None,
) -> dict[str, Any]:
    """The arguments of `trainable` that the options name."""
    given = {
        "config": config,
        "loss": loss,
        "class_axis": class_axis,
        "optimizer": optimizer,
        "lr": lr,
        "train": train,
        "freeze": freeze,
    }
    return {k: v for k, v in given.items() if v is not None and v != []}


def _without_records(path: Path, quiet: bool) -> Any:
    """The model for surgery: a record describes the graph as it was."""
    from sardonyx.model import load

    model = load(path).copy()
    if model.records and not quiet:
        words = "its training record is dropped: the new head needs one of its own"
        print(f"{path.name}: {words}", file=sys.stderr)
    model.records = []
    return model


def _validation(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        return Path(text)


def _pair(text: str) -> tuple[str, str]:
    name, sign, field = text.partition("=")
    if not sign:
        raise ArgumentError(f"--field takes input=field, not {text!r}")
    return name, field


def _callbacks(folder: Path | None) -> list[Any]:
    if folder is None:
        return []
    from sardonyx.train.tensorboard import events

    return [events(folder)]
