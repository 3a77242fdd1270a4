"""`--untrusted`, for every command that runs a model: it runs in a child with limits.

Here are the two options and how a command gets them; `cli/subprocess_limits.py` does the work.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

COMMANDS = frozenset({"verify", "train", "predict", "evaluate", "convert", "score"})
"""The commands that run a model."""

OPTIONS = {
    "untrusted": (
        Annotated[
            bool,
            typer.Option(
                "--untrusted",
                help="Do not trust the model: run it in a process with resource limits.",
            ),
        ],
        False,
    ),
    "limit": (
        Annotated[
            list[str] | None,
            typer.Option(
                help="With --untrusted: memory=8 (GB), seconds=3600, processor, trips, nodes."
            ),
        ],
        None,
    ),
}


def with_limits(function: Callable[..., None], arguments: list[str]) -> Callable[..., None]:
    """A command with the options of `OPTIONS`; `arguments` is the whole command line."""
    signature = inspect.signature(function, eval_str=True)
    if "untrusted" in signature.parameters:
        return function

    @functools.wraps(function)
    def command(**options: Any) -> None:
        untrusted, limit = options.pop("untrusted"), options.pop("limit")
        if untrusted:
            from sardonyx.cli import subprocess_limits

            if not subprocess_limits.is_inside():
                limits = subprocess_limits.read_limits(limit or ())
                raise typer.Exit(subprocess_limits.run_again(arguments, limits))
        function(**options)

    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in OPTIONS.items()
    ]
    every = [*signature.parameters.values(), *added]
    command.__signature__ = signature.replace(parameters=every)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in every}
    return command
