"""The program `sardonyx`: its list of commands and what happens when one of them fails.

Here is no command: each lives in a file of its own beside this one and is imported when it is
called, so that `sardonyx --help` stays quick and no command pays for another's imports.
Data goes to stdout, everything else to stderr. Exit codes: 0 done, 1 the answer is no
(verify: different; check: findings), 2 wrong usage or no answer, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from sardonyx import __version__
from sardonyx.cli import untrusted
from sardonyx.errors import SardonyxError

# name -> (module:function, one line of help), in the order in which a newcomer meets them
COMMANDS = {
    "inspect": ("inspect:inspect", "Show what a model is made of and what could be done with it."),
    "check": ("check:check", "List everything that is wrong with a model, without running it."),
    "train": ("train:train", "Train or fine-tune a model on data, or continue a stopped run."),
    "evaluate": ("evaluate:evaluate", "Measure a model on data."),
    "predict": ("predict:predict", "Run a model over data and save what comes out."),
    "trainable": ("trainable:trainable", "Write a model's training into its file."),
    "grad": ("grad:grad", "Write a model's gradient as an ONNX model."),
    "export-step": ("export_step:export_step", "Write the training step as plain ONNX files."),
    "convert": ("convert:convert", "Turn a model into PyTorch, JAX, TensorFlow or NumPy."),
    "verify": ("verify:verify", "Prove that two models give the same numbers, or name the node."),
    "diff": ("diff:diff", "Show what changed between two models."),
    "ops": ("ops:ops", "List the operators and what is known about each."),
    "score": ("score:score", "Run the official suite over the installed engines."),
}
INTERRUPTED = 130
CONFINED = "SARDONYX_CONFINED"  # set for the child of a command called with --untrusted
ARGUMENTS: list[str] = []  # those of the command that is called, its name first


class LazyGroup(TyperGroup):
    """A group that knows its commands by name and imports the one that is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, stub, rest = super().resolve_command(ctx, args)
        ARGUMENTS[:] = args
        return name, _load(name) if name and stub else stub, rest


def _load(name: str) -> Any:
    """Import the module of command `name` and wrap its function."""
    target, summary = COMMANDS[name]
    module, _, function = target.partition(":")
    command = typer.Typer(add_completion=False)
    called = getattr(import_module(f"sardonyx.cli.{module}"), function)
    if name in untrusted.COMMANDS:
        called = untrusted.confinable(called, list(ARGUMENTS))
    command.command(name, short_help=summary)(called)
    return typer.main.get_command(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sardonyx {__version__}")
        raise typer.Exit


def sardonyx(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show where in the code an error arose.")
    ] = False,
) -> None:
    """Train, convert and verify ONNX models."""
    if traceback:
        os.environ["SARDONYX_TRACEBACK"] = "1"


def program() -> Any:
    """Build the program with a light stand-in for every command."""
    app = typer.Typer(cls=LazyGroup, add_completion=False, no_args_is_help=True)
    app.callback()(sardonyx)
    group = typer.main.get_command(app)
    for name, (_, summary) in COMMANDS.items():
        group.add_command(TyperCommand(name, help=summary), name)  # type: ignore[attr-defined]
    return group


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit; a `SardonyxError` becomes a message on stderr."""
    try:
        if CONFINED in os.environ:
            from sardonyx.cli.subprocess_limits import enter

            enter()
        program()(arguments, prog_name="sardonyx")
    except SardonyxError as error:
        if os.environ.get("SARDONYX_TRACEBACK"):
            raise
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(2)
    except MemoryError:
        print("EngineError: there is not enough memory", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
