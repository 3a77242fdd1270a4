"""Every exception that sardonyx raises on purpose.

    SardonyxError
    ├── ModelError               the file or graph is malformed, hostile or inconsistent
    │   ├── LimitExceeded        a budget of `Limits` would be exceeded
    │   ├── ExternalDataError    external data is missing, outside the folder, or does not fit
    │   └── RecordError          a training record (TrainingInfoProto) breaks a rule
    ├── UnsupportedOp            an operator has no rule for the operation requested
    ├── ArgumentError            the caller's arguments do not fit the model
    │   └── DataError            the caller's data does not fit the model
    ├── VersionError             the target runtime cannot take this model
    ├── ImportRefused            a source has parts that cannot become ONNX faithfully
    ├── ImportDiffers            an imported model gives other numbers than its source
    ├── EngineError              an engine refused or failed to run the model
    ├── TrainingStopped          training cannot go on (a loss that is not finite, a lost lock)
    └── MissingExtra             an optional package is not installed

Each error has what went wrong, where, and a hint; all problems of one kind are reported at once.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

SHOWN = 20
NAME_WIDTH = 96


def quote(name: object, width: int = NAME_WIDTH) -> str:
    """Return a model's name in double quotes, escaped and shortened, safe for any terminal.

    >>> print(quote("conv1\\x1b[31m"))
    "conv1\\x1b[31m"
    """
    if isinstance(name, bytes):
        text = name.decode("utf-8", "backslashreplace")
    else:
        text = str(name)
    if len(text) > width:
        text = f"{text[: width - 24]}…({len(text)} characters)"
    if '"' in text or "\\" in text or not text.isprintable():
        text = "".join(_escape(c) for c in text)
    return f'"{text}"'


def _escape(char: str) -> str:
    if char in '"\\':
        return "\\" + char
    if char == "…" or char.isprintable():
        return char
    return char.encode("unicode_escape", "backslashreplace").decode("ascii")


def printable(text: str) -> str:
    """Text in which nothing but line breaks can move a terminal's cursor, or hide."""
    if text.isprintable():
        return text
    return "".join(c if c == "\n" or c.isprintable() else _escape(c) for c in text)


def counted(number: int, noun: str) -> str:
    """A number with its noun: "1 epoch", "1,204 steps".

    >>> counted(1204, "step")
    '1,204 steps'
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def table(rows: Iterable[Sequence[object]], limit: int | None = SHOWN) -> list[str]:
    """Lay out `rows` as indented, aligned columns; at most `limit` of them, then a count."""
    cells = [[str(c) for c in row] for row in rows]
    if not cells:
        return []
    visible = cells[:limit]
    columns = max(len(row) for row in visible)
    widths = [
        max((len(row[i]) for row in visible if i < len(row)), default=0) for i in range(columns)
    ]
    lines = [
        "  " + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=False)).rstrip()
        for row in visible
    ]
    if len(cells) > len(visible):
        lines.append(f"  … and {len(cells) - len(visible)} more")
    return lines


def did_you_mean(name: str, options: Iterable[str]) -> str:
    """A hint for a name that does not exist: the closest of `options`, or all of them.

    >>> did_you_mean("adamm", ["sgd", "adam"])
    'did you mean adam?'
    """
    options = sorted(set(options))
    longer = [option for option in options if len(name) > 1 and option.startswith(name)]
    close = longer or difflib.get_close_matches(name, options, 1)
    return f"did you mean {close[0]}?" if close else f"one of {', '.join(options)}"


class SardonyxError(Exception):
    """What went wrong (one line), where (rows of a table), and a hint.

    >>> print(SardonyxError("2 tensors are missing", [['"a"'], ['"b"']], hint="give both"))
    2 tensors are missing
      "a"
      "b"
    <BLANKLINE>
    hint: give both
    """

    def __init__(self, what: str, where: Iterable[Sequence[object]] = (), hint: str | None = None):
        self.what = what
        self.where = [list(row) for row in where]
        self.hint = hint
        lines = [what, *table(self.where)]
        if hint:
            lines += ["", f"hint: {hint}"]
        super().__init__(printable("\n".join(lines)))


class ModelError(SardonyxError):
    """The file or graph is malformed, hostile or inconsistent."""


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn any other library's exception into a `ModelError`, with the original as its cause.

    >>> with translated("the model cannot be read"):
    ...     raise ValueError("odd")
    Traceback (most recent call last):
    ...
    sardonyx.errors.ModelError: the model cannot be read: ValueError: "odd"
    """
    try:
        yield
    except (SardonyxError, Warning):
        raise
    except (RecursionError, MemoryError) as error:
        raise ModelError(
            f"{what}: it needs too much memory or stack ({type(error).__name__})"
        ) from error
    except Exception as error:
        raise ModelError(f"{what}: {type(error).__name__}: {quote(error)}") from error


class LimitExceeded(ModelError):
    """A budget of `Limits` would be exceeded; the message names the field to raise."""


class ExternalDataError(ModelError):
    """External data is missing, lies outside the model's folder, or does not fit its tensor."""


class RecordError(ModelError):
    """A training record breaks a rule of the standard."""


class UnsupportedOp(SardonyxError):
    """An operator has no rule for the operation requested."""


class ArgumentError(SardonyxError):
    """The caller's arguments do not fit the model."""


class DataError(ArgumentError):
    """The caller's data does not fit the model."""


class VersionError(SardonyxError):
    """The target runtime cannot take this model."""


class ImportRefused(SardonyxError):
    """A source has parts that cannot become ONNX faithfully; every one of them is named."""


class ImportDiffers(SardonyxError):
    """An imported model gives other numbers than its source: nothing is returned."""


class EngineError(SardonyxError):
    """An engine refused or failed to run the model."""


class TrainingStopped(SardonyxError):
    """Training cannot go on."""


class MissingExtra(SardonyxError):
    """An optional package is not installed."""

    def __init__(self, package: str, extra: str):
        self.package, self.extra = package, extra
        super().__init__(f"{package} is not installed", hint=f'pip install "sardonyx[{extra}]"')


# The extra of sardonyx that brings an optional package, by the name under which it is imported.
EXTRAS = {
    "onnxruntime": "cpu", "torch": "torch", "safetensors": "torch", "jax": "jax", "jaxlib": "jax",
    "flax": "flax", "tensorflow": "tensorflow", "keras": "tensorflow", "tensorboard": "tensorboard",
    "pyarrow": "parquet", "PIL": "images", "yaml": "yaml", "matplotlib": "plots",
    "pandas": "pandas", "ai_edge_litert": "tflite", "openvino": "openvino",
    "iree": "iree", "tract": "tract",
}  # fmt: skip


def missing_extra(error: BaseException) -> MissingExtra | None:
    """The error to show for a failed import, where an optional package is what is missing."""
    if isinstance(error, MissingExtra) or not isinstance(error, ImportError):
        return error if isinstance(error, MissingExtra) else None
    package = (error.name or "").partition(".")[0]
    return MissingExtra(package, EXTRAS[package]) if package in EXTRAS else None
