"""Processes that run an engine, case by case: what crashes or hangs costs one case."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from sardonyx.score.engines import Engine
from sardonyx.score.worker import pack, unpack

WORKER = Path(__file__).with_name("worker.py")
START_LIMIT = 300.0  # seconds: frameworks take long to import on a busy machine


class Refused(Exception):
    """The engine raised: `kind` is the class of its error."""

    def __init__(self, kind: str, message: str, where: str = ""):
        super().__init__(message)
        self.kind, self.where = kind, where


class Crashed(Exception):
    """The process of the engine ended."""


class TimedOut(Exception):
    """The engine did not answer in time."""


class Worker:
    """One process of an engine; it is started again where a case ended it."""

    def __init__(self, engine: Engine, limit: float):
        self.engine, self.limit = engine, limit
        self.folder = tempfile.TemporaryDirectory(prefix="sardonyx-score-")
        self.process: subprocess.Popen[bytes] | None = None
        self.version = ""
        self.able: list[str] = []
        self.used: set[str] = set()  # operators whose rules our engines looked up

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.folder.cleanup()

    # -- requests

    def hello(self) -> None:
        """Import the engine: its version, and what it is able to do."""
        reply = self._ask({"do": "hello"}, START_LIMIT)
        self.version, self.able = reply["version"], reply["able"]

    def run(self, model: Path | str, data: Path | str, limit: float | None = None) -> list[Any]:
        """The outputs of a model in their order; `data` is a file of packed inputs."""
        request = {"do": "run", "model": str(model), "data": str(data)}
        return list(self._values(request, limit).values())

    def gradient(self, model: Path | str, feeds: dict[str, Any]) -> dict[str, Any]:
        request = {"do": "gradient", "model": str(model), "data": self.write("point", feeds)}
        return self._values(request)

    def train(self, model: Path | str, batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
        data = self.write("batches", {"batches": batches})
        return list(self._values({"do": "train", "model": str(model), "data": data}).values())

    def write(self, name: str, values: dict[str, Any] | bytes) -> str:
        """Values, or a model, as a file that the process can read."""
        path = Path(self.folder.name) / name
        path.write_bytes(values if isinstance(values, bytes) else pack(values))
        return str(path)

    # -- the process

    def _values(self, request: dict[str, Any], limit: float | None = None) -> dict[str, Any]:
        answer = Path(self.folder.name) / "answer"
        # A copy: some engines write into the file that they are given.
        model = Path(self.folder.name) / "model.onnx"
        shutil.copyfile(request["model"], model)
        if self.process is None:
            self.hello()
        reply = self._ask({**request, "model": str(model), "to": str(answer)}, limit or self.limit)
        self.used.update(reply["used"])
        return unpack(answer.read_bytes())

    def _ask(self, request: dict[str, Any], limit: float) -> dict[str, Any]:
        if self.process is None:
            self._start()
        assert self.process is not None and self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
            line = self._line(limit)
        except (BrokenPipeError, TimedOut, Crashed):
            message = self._last_words()
            hung = self.process.poll() is None
            self.stop()
            if hung:
                raise TimedOut(f"no answer in {limit:.0f} s") from None
            raise Crashed(message) from None
        reply = json.loads(line)
        if "error" in reply:
            raise Refused(reply["error"], reply["message"], reply["where"])
        return reply

    def _line(self, limit: float) -> bytes:
        assert self.process is not None and self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        ends, line = time.monotonic() + limit, b""
        with selectors.DefaultSelector() as waiting:
            waiting.register(descriptor, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                seconds_left = ends - time.monotonic()
                if seconds_left <= 0 or not waiting.select(seconds_left):
                    raise TimedOut
                part = os.read(descriptor, 1 << 16)
                if not part:
                    self.process.wait()
                    raise Crashed
                line += part
        return line

    def _start(self) -> None:
        self.errors = open(Path(self.folder.name) / "errors", "w+b")  # noqa: SIM115
        self.process = subprocess.Popen(
            [str(self.engine.python), str(WORKER), str(self.engine.adapter)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            cwd=self.folder.name,
            env=self.engine.variables(),
            start_new_session=True,
        )

    def _last_words(self) -> str:
        assert self.process is not None
        code = self.process.poll()
        name = f"exit code {code}"
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                name = signal.Signals(-code).name
        self.errors.seek(0, os.SEEK_END)
        self.errors.seek(max(0, self.errors.tell() - 600))
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        return f"{name}: {lines[-1]}" if lines else name

    def stop(self) -> None:
        """End the process and what it started."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self.errors.close()
        self.process = None
