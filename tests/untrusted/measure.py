"""Runs one file through one command in this process, and prints what came of it and what it cost.

    python -m tests.untrusted.measure COMMAND EMPTY_MODEL MODEL...

Cost is above that of the same command on the empty model: the modules it imports are paid for.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sardonyx
from sardonyx.errors import SardonyxError


def peak_kilobytes() -> int:
    status = Path("/proc/self/status").read_text().split()
    return int(status[status.index("VmHWM:") + 1])


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def load(path: str) -> None:
    sardonyx.load(path)


def inspect(path: str) -> None:
    from sardonyx.cli.inspect_model import inspect_model as command

    with contextlib.redirect_stdout(io.StringIO()):
        command(Path(path))


def check(path: str) -> None:
    problems = sardonyx.check(path).problems
    if any(p.stage == "load" for p in problems):
        raise sardonyx.errors.ModelError(problems[0].problem)


def convert(path: str) -> None:
    sardonyx.to_numpy(path)


def convert_torch(path: str) -> None:
    sardonyx.to_torch(path)


def save(path: str) -> None:
    sardonyx.save(sardonyx.load(path), Path(path).with_suffix(".saved"), opset=18)


def grad(path: str) -> None:
    model = sardonyx.load(path)
    sardonyx.grad(model, wrt=[v.name for v in model.inputs][:1])


def normalize(path: str) -> None:
    sardonyx.normalize(sardonyx.load(path))


def trainable(path: str) -> None:
    sardonyx.trainable(path, loss="mse", optimizer="sgd")


def source(path: str) -> None:
    sardonyx.to_torch_source(path, Path(path).with_suffix(".source"))


def convert_jax(path: str) -> None:
    sardonyx.to_jax(path)


def convert_tensorflow(path: str) -> None:
    sardonyx.to_tensorflow(path)


COMMANDS: dict[str, Callable[[str], Any]] = {
    f.__name__: f
    for f in (
        *(load, normalize, inspect, check, convert, convert_torch, convert_jax, source),
        *(save, grad, trainable, convert_tensorflow),
    )
}


def measure(command: Callable[[str], Any], path: str) -> dict[str, Any]:
    forget_peak()
    before, start = peak_kilobytes(), time.process_time()
    try:
        command(path)
        outcome, message = "done", ""
    except SardonyxError as error:
        outcome, message = type(error).__name__, str(error)
    except BaseException as error:
        outcome, message = f"foreign {type(error).__name__}", str(error)
    seconds = time.process_time() - start
    megabytes = (peak_kilobytes() - before) / 1000
    name = Path(path).name
    return {"name": name, "outcome": outcome, "message": message, "s": seconds, "MB": megabytes}


def main() -> None:
    command = COMMANDS[sys.argv[1]]
    with contextlib.suppress(SardonyxError):
        command(sys.argv[2])
    for path in sys.argv[3:]:
        print(json.dumps(measure(command, path)), flush=True)


if __name__ == "__main__":
    main()
