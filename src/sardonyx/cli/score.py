"""`sardonyx score`: the official ONNX test suite, run on engines."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sardonyx import plugins
from sardonyx.errors import ArgumentError, SardonyxError, quote

if TYPE_CHECKING:
    from sardonyx.score.score import Score


def score(
    engine: Annotated[
        list[str] | None,
        typer.Option(
            help=f"An engine ({plugins.listed()}), `ours` (Sardonyx), `peers` (others), `all`, or "
            "a .py file with run()."
        ),
    ] = None,
    op: Annotated[list[str] | None, typer.Option(help="Only cases that use this operator.")] = None,
    case: Annotated[
        str, typer.Option(help="Only cases whose name matches this regular expression.")
    ] = "",
    sample: Annotated[int, typer.Option(help="Only every n-th case, always the same ones.")] = 1,
    axis: Annotated[
        str,
        typer.Option(
            help="What to score: forward, gradient, training; separated by commas.",
            show_default="all whose cases are installed",
        ),
    ] = "",
    jobs: Annotated[
        int,
        typer.Option(help="The number of parallel processes; 0: one per core.", show_default="0"),
    ] = 0,
    seconds: Annotated[float, typer.Option(help="The time limit of a case.")] = 60.0,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Run every case again, ignoring stored results.")
    ] = False,
    known: Annotated[
        bool, typer.Option("--known", help="Run nothing, show the stored results.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="List every case that does not pass.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the table as Markdown.")
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Write HTML pages into this folder.")] = None,
    history: Annotated[
        Path | None, typer.Option(help="A folder of older scores, for the history page of --html.")
    ] = None,
    load: Annotated[
        list[Path] | None,
        typer.Option(help="Run nothing, show these saved scores merged into one."),
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Write the score as JSON.")] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="An older score: exit with 1 if anything became worse.")
    ] = None,
    setup: Annotated[
        str, typer.Option(help="Install a peer (another converter or runtime) or `all`, then stop.")
    ] = "",
    records: Annotated[
        Path | None, typer.Option(help="Write the training cases into this folder, then stop.")
    ] = None,
) -> None:
    """Run the official ONNX test suite on engines and show which cases pass."""
    if setup:
        raise typer.Exit(_set_up(setup))
    if records is not None:
        from sardonyx.score.records import export

        print(f"saved     {export(records)}", file=sys.stderr)
        return
    if load:
        from sardonyx.score import score as scores

        result = scores.together([scores.load(path) for path in load])
    else:
        selection = {"ops": op or (), "case": case, "sample": sample, "jobs": jobs}
        storing = {"seconds": seconds, "fresh": fresh, "known": known}
        result = _run(axis, *(engine or ()), **selection, **storing)
    _show(result, as_json, as_markdown, verbose)
    if save is not None:
        print(f"saved     {result.save(save)}", file=sys.stderr)
    if html is not None:
        from sardonyx.score.site import write

        print(f"saved     {write(result, html, history)}", file=sys.stderr)
    if baseline is not None:
        raise typer.Exit(_compare(result, baseline))


def _run(axis: str, *engines: str, **selection: Any) -> Score:
    from sardonyx.score import suite
    from sardonyx.score.scoreboard import available_axes
    from sardonyx.score.scoreboard import score as run

    if not suite.is_made():
        print("the first run writes out the cases: some minutes", file=sys.stderr)
    axes = axis.split(",") if axis else available_axes()
    if not axis and "training" not in axes:
        print(
            "the training cases are not installed; `--axis training` says where they are",
            file=sys.stderr,
        )
    return run(*engines, axes=axes, progress=_progress(), **selection)


def _show(result: Score, as_json: bool, as_markdown: bool, verbose: bool) -> None:
    from sardonyx.score import table

    if as_json:
        typer.echo(result.to_json())
        return
    if verbose:
        typer.echo("\n".join(table.failures(result)))
    typer.echo(table.markdown(result) if as_markdown else table.text(result))


def _compare(result: Score, baseline: Path) -> int:
    from sardonyx.score import score as scores
    from sardonyx.score import table

    changed = list(scores.changes(result, scores.compared_with(baseline, result)))
    for line in table.changed(changed):
        print(line, file=sys.stderr)
    worse = sum(change.is_worse for change in changed)
    print(f"{worse} worse, {len(changed) - worse} better than {baseline}", file=sys.stderr)
    return int(worse > 0)


def _set_up(name: str) -> int:
    from sardonyx.score import environments

    if name != "all" and name not in environments.PEERS:
        rows = [[peer] for peer in environments.PEERS]
        raise ArgumentError(f"there is no peer {quote(name)}", rows)
    failed = 0
    for peer in environments.PEERS if name == "all" else [name]:
        print(f"setting up {peer}", file=sys.stderr)
        try:
            print(f"ready     {environments.set_up(peer)}", file=sys.stderr)
        except SardonyxError as error:
            failed += 1
            print(error, file=sys.stderr)
    return int(failed > 0)


def _progress() -> Any:
    """One line that renews itself, on a terminal only."""
    if not sys.stderr.isatty():
        return lambda engine, done, total: None
    return lambda engine, done, total: print(
        f"\r{engine}: {done} of {total}".ljust(60), end="\r", file=sys.stderr, flush=True
    )
