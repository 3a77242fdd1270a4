"""No command replaces a file that it reads: one check for all of them, before any work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

from sardonyx.errors import ArgumentError, quote

# Options that name a file to write.
OUTPUTS = ("output", "report", "html", "save", "trained")
# Commands check this pair themselves: --in-place and --resume allow it.
BY_CONSENT = ("model", "output")


def refuse_replacing_inputs(parameters: Mapping[str, Any]) -> None:
    """Refuse an output that is one of the files that the other arguments name, or two outputs that
    are one file.
    """
    named = {option: Path(parameters[option]) for option in OUTPUTS if parameters.get(option)}
    for (first, path), (second, other) in combinations(named.items(), 2):
        if path.absolute() == other.absolute():
            raise ArgumentError(
                f"--{first} and --{second} name one file, {quote(path.name)}",
                hint=f"choose another file for --{second}",
            )
    for option in OUTPUTS:
        output = parameters.get(option)
        if not output or not Path(output).is_file():
            continue
        for name, path in _files(parameters):
            consent = "in_place" in parameters and (name, option) == BY_CONSENT
            if not consent and Path(output).samefile(path):
                raise ArgumentError(
                    f"the {option} {quote(Path(output).name)} is the {name} itself",
                    hint=f"choose another file for --{option}",
                )


def _files(parameters: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    """The existing files that arguments name, also as name=file."""
    for name, value in parameters.items():
        if name in OUTPUTS:
            continue
        for item in value if isinstance(value, (list, tuple)) else [value]:
            if not isinstance(item, (str, Path)):
                continue
            for text in (str(item), str(item).partition("=")[2]):
                if text and _is_file(text):
                    yield name, Path(text)


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long for a name, or with a null character
        return False
