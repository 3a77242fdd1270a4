"""The program `sardonyx`: its list of commands and what happens when one of them fails.

Each command lives in a file of its own beside this one and is imported when it is called, so that
`sardonyx --help` stays quick and no command pays for another's imports.
Data goes to stdout, everything else to stderr. Exit codes: 0 done, 1 the answer is no
(verify: different; check: findings), 2 wrong usage or no answer, 3 an unexpected error (a defect),
4 to 7 the other verdicts of verify, 130 interrupted.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from sardonyx import __version__
from sardonyx.cli import untrusted
from sardonyx.cli.overwriting import refuse_replacing_inputs
from sardonyx.errors import SardonyxError, missing_extra, printable, quote

# name -> (module:function, one line of help), in the order in which a newcomer meets them
COMMANDS = {
    "inspect": (
        "inspect_model:inspect_model",
        "Show what a model is made of and what could be done with it.",
    ),
    "check": ("check:check", "List everything that is wrong with a model, without running it."),
    "train": ("train:train", "Train or fine-tune a model on data, or continue a stopped run."),
    "evaluate": ("evaluate:evaluate", "Measure a model on data."),
    "predict": ("predict:predict", "Run a model over data and save its outputs."),
    "trainable": (
        "trainable:trainable",
        "Add a training record (loss, optimizer, step) to a model.",
    ),
    "adapter": (
        "adapter:adapter",
        "Merge low-rank adapters into a model, extract or list them.",
    ),
    "quantize": (
        "quantize:quantize",
        "Store the weights of a model as integers, with or without training.",
    ),
    "grad": ("grad:grad", "Write a model's gradient as an ONNX model."),
    "export-step": ("export_step:export_step", "Write the training step as plain ONNX files."),
    "export-training": (
        "export_training:export_training",
        "Write a whole training as one ONNX file.",
    ),
    "export-web": ("export_web:export_web", "Write a page that trains a model in the browser."),
    "import": (
        "import_model:import_model",
        "Turn a model of another framework or format into ONNX.",
    ),
    "convert": (
        "convert:convert",
        "Turn a model into PyTorch, JAX, TensorFlow, Keras, TFLite, MATLAB or NumPy.",
    ),
    "verify": ("verify:verify", "Prove that two models agree, or name the node that differs."),
    "diff": ("diff:diff", "Show what changed between two models."),
    "ops": ("ops:ops", "List the ONNX operators and how each is supported."),
    "score": ("score:score", "Run the official ONNX test suite on the installed engines."),
}
# Processes that read a model and end: collecting garbage would take a quarter of their time.
UNCOLLECTED = (["inspect"], ["check"])
FAILED, UNEXPECTED, INTERRUPTED = 2, 3, 130
LIMITS = "SARDONYX_SUBPROCESS_LIMITS"  # set for the child of a command called with --untrusted
TRACEBACK = "SARDONYX_TRACEBACK"  # set by --traceback
ARGUMENTS: list[str] = []  # those of the command that is called, its name first


def _plain_flags(options: list[Any]) -> list[Any]:
    """A switch takes no value, so its help shows no type; an option of many takes one at a time."""
    for option in options:
        if getattr(option, "is_flag", False):
            option.metavar = ""
        elif getattr(option, "multiple", False) and option.metavar is None:
            option.metavar = "<text> …"
    return options


class Command(TyperCommand):
    """A command whose help shows `--flag` without a type, and that replaces nothing it reads."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _plain_flags(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        refuse_replacing_inputs(ctx.params)
        return super().invoke(ctx)


class LazyGroup(TyperGroup):
    """A group that knows its commands by name and imports the one that is called."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _plain_flags(super().get_params(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, stub, rest = super().resolve_command(ctx, args)
        ARGUMENTS[:] = args
        return name, _load(name) if name and stub else stub, rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # typer would exit without a word
            print("interrupted", file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None


def _load(name: str) -> Any:
    """Import the module of command `name` and wrap its function."""
    target, summary = COMMANDS[name]
    module, _, function = target.partition(":")
    command = typer.Typer(add_completion=False)
    called = getattr(import_module(f"sardonyx.cli.{module}"), function)
    if name in untrusted.COMMANDS:
        called = untrusted.with_limits(called, list(ARGUMENTS))
    command.command(name, cls=Command, short_help=summary)(called)
    return typer.main.get_command(command)


def _print_version(requested: bool) -> None:
    if requested:
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


def program() -> Any:
    """Build the program with a light placeholder for every command."""
    app = typer.Typer(
        cls=LazyGroup,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(sardonyx)
    group = typer.main.get_command(app)
    for name, (_, summary) in COMMANDS.items():
        group.add_command(TyperCommand(name, help=summary), name)  # type: ignore[attr-defined]
    return group


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit; every exception becomes a message on stderr and a code."""
    if arguments is None and sys.argv[1:2] in UNCOLLECTED:
        gc.disable()
        atexit.register(gc.freeze)
    arguments = _take_traceback(sys.argv[1:] if arguments is None else arguments)
    try:
        if LIMITS in os.environ:
            from sardonyx.cli.subprocess_limits import enter

            enter()
        program()(arguments, prog_name="sardonyx")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except Exception as error:
        if os.environ.get(TRACEBACK):
            raise
        message, code = _message(error)
        print(message, file=sys.stderr)
        sys.exit(code)


def _take_traceback(arguments: list[str]) -> list[str]:
    """The arguments without `--traceback`, which may stand anywhere in front of a `--`."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    if "--traceback" in arguments[:end]:
        os.environ[TRACEBACK] = "1"
    return [a for a in arguments[:end] if a != "--traceback"] + arguments[end:]


def _message(error: Exception) -> tuple[str, int]:
    """What to print for an exception, and the exit code."""
    error = missing_extra(error) or error
    if isinstance(error, SardonyxError):
        return f"{type(error).__name__}: {error}", FAILED
    if isinstance(error, OSError) and error.strerror:
        where = f": {quote(error.filename)}" if error.filename is not None else ""
        return f"{type(error).__name__}: {error.strerror}{where}", FAILED
    if isinstance(error, MemoryError):
        return "EngineError: there is not enough memory", FAILED
    first = printable((str(error).splitlines() or [""])[0])
    kind = type(error).__name__
    words = f"unexpected error: {kind}{f': {first}' if first else ''}"
    return f"{words} (this is a defect; use --traceback to see where it arose)", UNEXPECTED


if __name__ == "__main__":
    main()
