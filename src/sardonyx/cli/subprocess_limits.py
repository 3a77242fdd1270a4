"""Running an untrusted model: a command starts itself again as a child process with limits.

The child does all of the work, engine included, under limits of the operating system (memory,
processor time) and of sardonyx's own interpreter (nodes, trips of loops). The parent watches time
and memory and does nothing with the model, so that a crash, an endless loop or a flood of memory
ends as one clear error. Only an exit code comes back; results are the files that it writes.

This bounds the resources that a model uses. It is no sandbox: against a defect in a runtime that
lets a model run code, put one around the whole program.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from sardonyx.errors import ArgumentError, EngineError, quote

try:
    import resource
except ImportError:  # Windows: only time and memory in use are watched
    resource = None  # type: ignore[assignment]

LIMITS = "SARDONYX_SUBPROCESS_LIMITS"  # also read in `cli/__main__.py`
POLL_SECONDS = 0.05
GRACE_SECONDS = 10.0
GIGABYTE = 10**9


@dataclass(frozen=True, kw_only=True)
class SubprocessLimits:
    """What a command in a limited process may use; each field is a `--limit name=number`."""

    memory: float = 8.0
    """Gigabytes of memory."""
    seconds: float = 3600.0
    """Seconds from start to end."""
    processor: float = 3600.0
    """Seconds of one processor."""
    trips: float = 10_000_000
    """Trips of all loops together, in our own interpreter."""
    nodes: float = 1_000_000_000
    """Nodes run, in our own interpreter."""


def read_limits(texts: Sequence[str] = ()) -> SubprocessLimits:
    """Limits from texts such as `memory=4`.

    >>> read_limits(["memory=4", "seconds=60"]).seconds
    60.0
    """
    names = [f.name for f in fields(SubprocessLimits)]
    limits: dict[str, float] = {}
    for text in texts:
        name, _, number = text.partition("=")
        try:
            limits[name] = float(number)
        except ValueError:
            limits[name] = 0.0
        if name not in names or not 0 < limits[name] < float("inf"):
            hint = f"--limit NAME=NUMBER with one of {', '.join(names)}"
            raise ArgumentError(f"cannot read the limit {quote(text)}", hint=hint)
    return SubprocessLimits(**limits)


def is_inside() -> bool:
    """Whether this process is a child with limits."""
    return LIMITS in os.environ


def enter() -> None:
    """In the child: apply the limits that the parent set."""
    limits = SubprocessLimits(**json.loads(os.environ[LIMITS]))
    if resource is not None:
        _lower(resource.RLIMIT_CORE, 0)
        # Memory that is written to; weights mapped from a file do not count.
        _lower(resource.RLIMIT_DATA, int(limits.memory * GIGABYTE))
        _lower(resource.RLIMIT_CPU, max(int(limits.processor), 1))
    from sardonyx.lower.run_limits import run_limits

    # It holds until the process ends.
    contextlib.ExitStack().enter_context(
        run_limits(nodes=int(limits.nodes), trips=int(limits.trips))
    )


def _lower(resource_id: int, limit: int) -> None:
    hard = resource.getrlimit(resource_id)[1]
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(
        resource_id, (limit, limit if resource_id != resource.RLIMIT_CPU else limit + 5)
    )


def run_again(arguments: Sequence[str], limits: SubprocessLimits) -> int:
    """Run `sardonyx` with these arguments as a child under limits; its exit code.

    Raises an `EngineError` where the child did not end by itself.
    """
    command = [sys.executable, "-m", "sardonyx", *arguments]
    environment = {**os.environ, LIMITS: json.dumps(asdict(limits))}
    child = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True
    )
    try:
        stopped = _watch(child, limits)
    except KeyboardInterrupt:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(signal.SIGINT)  # a training saves what it has
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(GRACE_SECONDS)
        raise
    finally:
        _kill(child)
    if stopped:
        raise _stopped(stopped, limits)
    if child.returncode < 0:
        raise _crashed(-child.returncode, limits)
    return child.returncode


def _watch(child: subprocess.Popen[bytes], limits: SubprocessLimits) -> str:
    """Wait for the child; the name of the limit that it exceeded, if any."""
    end = time.monotonic() + limits.seconds
    while True:
        try:
            child.wait(POLL_SECONDS)
            return ""
        except subprocess.TimeoutExpired:
            if time.monotonic() > end:
                return "seconds"
            if _resident(child.pid) > limits.memory * GIGABYTE:
                return "memory"


def _resident(process: int) -> int:
    """Bytes of memory that a process holds; 0 where that cannot be seen."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _kill(child: subprocess.Popen[bytes]) -> None:
    """End the child and whatever it started."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    else:
        child.kill()
    child.wait()


def _stopped(name: str, limits: SubprocessLimits) -> EngineError:
    unit = {"memory": "GB of memory", "seconds": "s", "processor": "s of processor time"}[name]
    return EngineError(
        f"the run was stopped: it took more than {getattr(limits, name):g} {unit}",
        hint=f"--limit {name}=... allows more",
    )


def _crashed(number: int, limits: SubprocessLimits) -> EngineError:
    name = signal.Signals(number).name if number in set(signal.Signals) else str(number)
    if name == "SIGXCPU":
        return _stopped("processor", limits)
    return EngineError(
        f"the run crashed ({name}) in its own process; there is no result",
        hint="if memory ran out, --limit memory=... gives it more",
    )
