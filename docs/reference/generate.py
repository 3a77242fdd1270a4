"""Writes the reference pages when the site is built: nothing public is listed twice by hand.

`reference/api.md` comes from the docstrings of the public names, `reference/cli.md` from the help
of the commands. mkdocs calls `on_files`.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from typing import Any

from mkdocs.structure.files import File, Files

import sardonyx
from sardonyx.cli.__main__ import program


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages to those found on disk."""
    for name, content in {"api": api_page(), "cli": command_page()}.items():
        files.append(File.generated(config, f"reference/{name}.md", content=content))
    return files


def api_page() -> str:
    """Every public name with its signature and docstring, grouped by task."""
    parts = ["# Python", "Everything here is reached as `sx.<name>` after `import sardonyx as sx`."]
    for task, names in sardonyx._TASKS.items():
        parts.append(f"## {task}")
        for name in names:
            parts += [f"### {name}", *_entry(name, getattr(sardonyx, name))]
            if name == "train":
                parts += ["### Callbacks", _callbacks()]
    parts.append("## Modules")
    for name in sardonyx._MODULES:
        module = getattr(sardonyx, name)
        parts += [f"### {name}", *_entry(name, module)]
        for member in sorted(getattr(module, "__all__", ())):
            parts += [f"#### {name}.{member}", *_entry(member, getattr(module, member))]
    return "\n\n".join(parts) + "\n"


def _callbacks() -> str:
    return (
        "A callback is a function that gets the `Run` after every step: "
        "`sx.train(..., callbacks=[lambda run: print(run.position.step)])`. "
        '`run.stop("reason")` ends the training after this step. A callback with a method `end` is '
        "told when the run is over."
    )


def command_page() -> str:
    """The help text of the program and of each command."""
    parts = ["# Command line", _fenced("text", _help())]
    for name in program().commands:
        parts += [f"## sardonyx {name}", _fenced("text", _help(name))]
    return "\n\n".join(parts) + "\n"


def _help(*command: str) -> str:
    call = [sys.executable, "-m", "sardonyx", *command, "--help"]
    environment = {**os.environ, "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "96"}
    return subprocess.run(call, capture_output=True, text=True, check=True, env=environment).stdout


def _entry(name: str, thing: Any) -> list[str]:
    parts = []
    if callable(thing):
        parts.append(_fenced("python", f"{name}{inspect.signature(thing)}"))
    documentation = inspect.getdoc(thing) or ""
    text, _, example = documentation.partition(">>>")
    # The docstrings are laid out for the terminal; as literal text they stay so.
    summary, _, rest = text.partition("\n")
    parts.append(summary.strip())
    if rest.strip():
        parts.append(_fenced("text", rest.strip("\n")))
    if example:
        parts.append(_fenced("pycon", f">>>{example}"))
    return parts


def _fenced(language: str, text: str) -> str:
    return f"```{language}\n{text.strip(chr(10))}\n```"
