"""`sardonyx verify`: whether two programs give the same numbers; if not, which node."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sardonyx import plugins
from sardonyx.errors import ArgumentError, quote

if TYPE_CHECKING:
    from sardonyx.verify.report import Report


def verify(
    subjects: Annotated[
        list[str],
        typer.Argument(
            help="An ONNX file and what to compare with it: other ONNX files, engines or "
            "saved outputs. Or a saved report.json, to show it again."
        ),
    ],
    engine: Annotated[
        list[str] | None,
        typer.Option(help=f"Run the first model on this engine as well: {plugins.listed()}."),
    ] = None,
    inputs: Annotated[
        Path | None, typer.Option(help="Inputs to use: an .npz file, or a test_data_set_* folder.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="The number of random inputs.")] = 3,
    size: Annotated[
        list[str] | None, typer.Option(help="A number for a symbolic dimension, such as batch=8.")
    ] = None,
    bands: Annotated[
        str,
        typer.Option(help="Noise ratios: same up to the first, different above the second: 3,10."),
    ] = "",
    rtol: Annotated[
        float | None, typer.Option(help="Judge by this relative tolerance, not by the noise ratio.")
    ] = None,
    atol: Annotated[
        float | None, typer.Option(help="Judge by this absolute tolerance, not by the noise ratio.")
    ] = None,
    gradients: Annotated[
        bool, typer.Option("--gradients", help="Compare gradients, not outputs.")
    ] = False,
    sliced: Annotated[
        bool, typer.Option("--sliced", help="Compare node by node, in bounded memory.")
    ] = False,
    seconds: Annotated[
        float, typer.Option(help="A time budget; the report lists what it left out.")
    ] = 300.0,
    training: Annotated[int, typer.Option(help="Compare this many training steps.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a report as one HTML page.")] = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Write the report, the inputs and a repro of the faulty node here."),
    ] = None,
) -> None:
    """Prove that two models give the same numbers, or name the node that differs.

    Exit codes: 0 same, 1 different, 2 wrong usage, 4 look (more than rounding usually does),
    5 could not tell, 6 a program fails, 7 not comparable (other inputs or outputs).
    """
    judged_by = _bands(bands)
    first = Path(subjects[0])
    if first.suffix == ".json":
        from sardonyx.verify.report import Report

        report = Report.from_json(first.read_text(encoding="utf-8"), judged_by)
    elif training:
        raise typer.Exit(_training(subjects, engine or [], inputs, training, judged_by, as_json))
    else:
        from sardonyx.verify import verify as compare

        report = compare(
            first,
            *subjects[1:],
            engine=engine,
            inputs=inputs,
            seeds=seeds,
            rtol=rtol,
            atol=atol,
            bands=judged_by,
            sizes=_sizes(size or []),
            gradients=gradients,
            sliced=sliced,
            seconds=seconds,
            progress=_progress(),
        )
    _finish(report, as_json, html, save)


def _finish(report: Report, as_json: bool, html: Path | None, save: Path | None) -> None:
    typer.echo(report.to_json() if as_json else str(report))
    paths: list[Path] = []
    if html is not None:
        paths.append(report.to_html(html))
    if save is not None:
        paths += report.save(save)
    for path in paths:
        print(f"saved     {path}", file=sys.stderr)
    raise typer.Exit(report.exit_code)


def _training(
    subjects: list[str],
    engines: list[str],
    inputs: Path | None,
    steps: int,
    bands: Any,
    as_json: bool,
) -> int:
    import json

    from sardonyx.verify.training import verify_training

    others = [*subjects[1:], *engines]
    trajectories = verify_training(
        subjects[0], *(others or ["onnxruntime"]), data=inputs, steps=steps, bands=bands
    )
    typer.echo(json.dumps(trajectories.as_dict(), indent=1) if as_json else str(trajectories))
    return trajectories.exit_code


def _bands(text: str) -> tuple[float, float] | None:
    if not text:
        return None
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError as error:
        raise ArgumentError(f"cannot read the bands {quote(text)}", hint="--bands 3,10") from error
    return low, high


def _sizes(texts: list[str]) -> dict[str, int]:
    sizes = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        if not name or not number.isdecimal() or int(number) < 1:
            raise ArgumentError(f"cannot read the size {quote(text)}", hint="--size batch=8")
        sizes[name] = int(number)
    return sizes


def _progress() -> Any:
    """One line that renews itself, on a terminal only."""
    if not sys.stderr.isatty():
        return None
    return lambda text: print(f"\r{text[:78]:<78}", end="\r", file=sys.stderr, flush=True)
