"""`sardonyx train`: from a model and data to a tuned model."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sardonyx import plugins
from sardonyx.cli import data_options as options
from sardonyx.errors import ArgumentError, quote

Model = Annotated[Path, typer.Argument(help="The ONNX model.")]
Loss = Annotated[
    str | None,
    typer.Option(help="The loss: cross_entropy, mse, … (default: chosen from the model)."),
]
Prediction = Annotated[
    str | None, typer.Option(help="The tensor that the loss compares with the label.")
]
ClassAxis = Annotated[
    int | None, typer.Option(help="The axis of the classes, for cross_entropy (default: inferred).")
]
Optimizer = Annotated[str | None, typer.Option(help="The optimizer: adamw (default), sgd, …")]
Rate = Annotated[float | None, typer.Option(help="The learning rate.")]
Train = Annotated[
    list[str] | None, typer.Option("--train", help="Train only parameters that match: 'head.*'.")
]
Freeze = Annotated[list[str] | None, typer.Option(help="Freeze parameters that match.")]
Config = Annotated[Path | None, typer.Option(help="A TOML or YAML file with these settings.")]
InPlace = Annotated[
    bool, typer.Option("--in-place", help="Allow the output to replace the model's own file.")
]


def train(
    model: Model,
    data: options.Data,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Where to write the trained model.")
    ],
    epochs: Annotated[int | None, typer.Option(help="Passes over the data (default 3).")] = None,
    steps: Annotated[
        int | None, typer.Option(help="The number of steps, instead of --epochs.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows per step (default 32).")] = None,
    validation: Annotated[
        str | None,
        typer.Option(help="Validation data: a file, or a share of the rows such as 0.1."),
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            "--metric", help="Measured on the validation data: accuracy, top5, f1, auc, mae, …"
        ),
    ] = None,
    loss: Loss = None,
    prediction: Prediction = None,
    class_axis: ClassAxis = None,
    optimizer: Optimizer = None,
    lr: Rate = None,
    train_only: Train = None,
    freeze: Freeze = None,
    replace_head: Annotated[
        int | None, typer.Option(help="Give the model a new last layer with this many classes.")
    ] = None,
    lora: Annotated[
        int | None, typer.Option(help="Train low-rank adapters of this rank, not the weights.")
    ] = None,
    lora_alpha: Annotated[
        float | None,
        typer.Option(help="The adapters are scaled by this, divided by their rank (default 16)."),
    ] = None,
    lora_targets: Annotated[
        str | None,
        typer.Option(
            help="Operators, or patterns of weights, that get an adapter "
            "(default 'MatMul|Gemm|Conv')."
        ),
    ] = None,
    config: Config = None,
    seed: Annotated[
        int | None, typer.Option(help="The seed of shuffling, splitting and dropout (default 0).")
    ] = None,
    shuffle: Annotated[
        str | None,
        typer.Option(
            help="The order of the rows: yes (default), no, or hash (the same in every language)."
        ),
    ] = None,
    no_shuffle: Annotated[
        bool, typer.Option("--no-shuffle", help="Do not shuffle the rows: --shuffle no.")
    ] = False,
    drop_last: Annotated[
        bool | None,
        typer.Option("--drop-last/--no-drop-last", help="Skip the last batch if it is not full."),
    ] = None,
    columns: options.Columns = None,
    fields: options.Fields = None,
    constants: options.Constants = None,
    batch_axes: options.BatchAxes = None,
    preprocess: options.Preprocess = None,
    engine: Annotated[
        str,
        typer.Option(help=f"Train on {plugins.listed('or', ['auto (the fastest)'])}."),
    ] = "onnxruntime",
    device: options.Device = None,
    place: Annotated[
        list[str] | None,
        typer.Option(
            help="Run nodes on another engine, by name or operator: 'Erf=onnxruntime' "
            "(torch, jax, tensorflow, numpy)."
        ),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help="Compute products in bf16, fp16 or tf32; weights stay float32 (torch, jax)."
        ),
    ] = None,
    devices: Annotated[
        int | None, typer.Option(help="Train on this many devices (jax, torch).")
    ] = None,
    mesh: Annotated[
        str | None, typer.Option(help="How they are arranged: data=4,model=2 (jax).")
    ] = None,
    shard: Annotated[
        str, typer.Option(help="Where the state is: replicate, state (spread) or auto.")
    ] = "auto",
    recompute: Annotated[
        bool,
        typer.Option(
            "--recompute", help="Recompute activations: less memory, more time (onnxruntime only)."
        ),
    ] = False,
    in_place: InPlace = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run that --output holds.")
    ] = False,
    every_steps: Annotated[
        int | None, typer.Option(help="Save a checkpoint every this many steps.")
    ] = None,
    every_minutes: Annotated[
        float, typer.Option(help="Save a checkpoint every this many minutes.")
    ] = 5.0,
    patience: Annotated[
        int | None, typer.Option(help="Stop after this many epochs without improvement.")
    ] = None,
    watch: Annotated[
        str | None,
        typer.Option(help="The metric that decides the best epoch, such as val_accuracy."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write an HTML report (and PNG curves) here.")
    ] = None,
    tensorboard: Annotated[
        Path | None, typer.Option(help="Write TensorBoard events into this folder.")
    ] = None,
    json_lines: Annotated[
        bool, typer.Option("--json", help="Print the progress as JSON lines.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Train or fine-tune a model on data, or continue a stopped run."""
    from sardonyx.cli.convert import pairs
    from sardonyx.train.loop import train as run_training
    from sardonyx.train.setup import refuse_overwriting

    how = choices(loss, prediction, class_axis, optimizer, lr, train_only, freeze, config)
    _check_report(report)
    adapters = _adapters(lora, lora_alpha, lora_targets)
    if not (in_place or resume):
        refuse_overwriting(model, output)
    edited: Any = model
    if not (resume and output.exists()):  # a run that is continued has been edited already
        edited = model if replace_head is None else _with_head(model, replace_head, quiet)
        if adapters is not None:
            edited, how = _with_adapters(edited, how, **adapters)
            seed = how.pop("seed", None) if seed is None else seed
    run = run_training(
        edited,
        data,
        epochs=epochs,
        steps=steps,
        batch_size=batch_size,
        validation=_validation(validation),
        metrics=metrics or None,
        engine=engine,
        device=device,
        place=pairs(place, "place") or None,
        precision=precision,
        devices=devices,
        mesh=_mesh(mesh),
        shard=shard,
        recompute=recompute,
        seed=seed,
        shuffle=_shuffle("no" if no_shuffle and shuffle is None else shuffle),
        drop_last=drop_last,
        output=output,
        in_place=in_place,
        resume=resume,
        every_steps=every_steps,
        every_minutes=every_minutes,
        patience=patience,
        watch=watch,
        callbacks=_callbacks(tensorboard),
        display="json" if json_lines else "quiet" if quiet else "auto",
        **options.data_arguments(columns, fields, constants, batch_axes, preprocess),
        **how,
    )
    leads = run.processes.leads  # it speaks and writes for all processes
    if report is not None and leads:
        from sardonyx.train.report import write_report

        write_report(run, report)
    if run.stopped == "interrupted":
        if leads:
            print(f"interrupted; {_continued(output)}", file=sys.stderr)
        raise typer.Exit(130)
    if leads and not (quiet or json_lines):
        print(output)


def _continued(output: Path) -> str:
    """How an interrupted run goes on; processes that hold parts of the state do not save it."""
    return f"continue with --resume -o {output}" if output.exists() else "nothing was saved"


def choices(
    loss: str | None,
    prediction: str | None,
    class_axis: int | None,
    optimizer: str | None,
    lr: float | None,
    train: list[str] | None,
    freeze: list[str] | None,
    config: Path | None,
) -> dict[str, Any]:
    """The arguments of `trainable` that the options name."""
    arguments = {
        "config": config,
        "loss": loss,
        "prediction": prediction,
        "class_axis": class_axis,
        "optimizer": optimizer,
        "lr": lr,
        "train": train,
        "freeze": freeze,
    }
    return {k: v for k, v in arguments.items() if v is not None and v != []}


def _adapters(rank: int | None, alpha: float | None, targets: str | None) -> dict[str, Any] | None:
    """The settings of adapters that the options name; those without --lora are refused."""
    settings = {k: v for k, v in (("alpha", alpha), ("targets", targets)) if v is not None}
    if rank is None and settings:
        options = " and ".join(f"--lora-{name}" for name in settings)
        raise ArgumentError(f"{options} without --lora", hint="--lora 8 trains adapters of rank 8")
    return None if rank is None else {"rank": rank, **settings}


def _with_adapters(source: Any, how: dict[str, Any], **settings: Any) -> tuple[Any, dict[str, Any]]:
    """The model with adapters, and how they are trained: as its record says, but for what it says
    of the weights.
    """
    from sardonyx.edit.lora import lora
    from sardonyx.model import load
    from sardonyx.record.override import of_record

    model = load(source).copy()
    of_weights = {"train", "freeze", "groups", "initialize"} - how.keys()
    how = {k: v for k, v in of_record(model, how).items() if k not in of_weights}
    model.records = []
    return lora(model, **settings), how


def _with_head(path: Path, classes: int, quiet: bool) -> Any:
    """The model with a new last layer."""
    from sardonyx.edit.surgery import replace_head
    from sardonyx.model import load

    model = load(path).copy()
    if model.records and not quiet:
        print(f"{path.name}: its record is dropped, the new head needs another", file=sys.stderr)
    model.records = []
    return replace_head(model, classes=classes)


def _mesh(text: str | None) -> dict[str, int] | None:
    """`data=4,model=2` as numbers by axis."""
    if text is None:
        return None
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(name and size.isdigit() for name, _, size in pairs):
        raise ArgumentError(f"--mesh takes axis=number,…, not {quote(text)}")
    return {name: int(size) for name, _, size in pairs}


def _validation(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        return Path(text)


def _shuffle(word: str | None) -> bool | str | None:
    if word is None or word == "hash":
        return word
    if word not in ("yes", "no"):
        raise ArgumentError(f"--shuffle is yes, no or hash, not {quote(word)}")
    return word == "yes"


def _check_report(path: Path | None) -> None:
    """Refuse a report that could not be written, before training."""
    if path is None:
        return
    above = next(p for p in path.absolute().parents if p.exists())
    if path.is_dir() or not above.is_dir() or not os.access(above, os.W_OK):
        what = "is a folder" if path.is_dir() else "cannot be written"
        raise ArgumentError(f"the report {quote(str(path))} {what}")


def _callbacks(folder: Path | None) -> list[Any]:
    if folder is None:
        return []
    from sardonyx.train.tensorboard import events

    return [events(folder)]
