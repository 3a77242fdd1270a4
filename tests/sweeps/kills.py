"""Random kills of a process of a training that torchrun brings back: `--max-restarts`.

    python -m tests.sweeps.kills [--kills 20] [--engines torch,jax] [--worlds 2] [--seed 0]

Each run trains a convolutional network with batch statistics in several processes, with a
checkpoint every few steps. At a random moment after the first checkpoint a random process gets
SIGKILL. torchrun must start all processes again within `LIMIT` seconds, counted from the kill until
the first of them says from which step it continues; the run must end, with the losses of every
epoch and the bytes of the file of a run that nobody disturbed.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import sardonyx as sx
from sardonyx.train.checkpoint import position_of
from tests.networks import cnn

LIMIT = 20.0
ROWS, BATCH, EVERY = 100, 16, 20
PATIENCE = 300.0  # seconds for a whole run
PORT = 29760


def prepare(folder: Path) -> None:
    """The model and the data of every run."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 3, 8, 8)).astype(np.float32)
    np.savez(folder / "data.npz", x=x, label=rng.integers(0, 3, ROWS))
    sx.save(sx.trainable(cnn(), "cross_entropy", sx.optim.adamw(1e-2)), folder / "net.onnx")


@dataclass
class Running:
    """A training under torchrun, whose events come with the time at which they were printed."""

    process: Any
    events: queue.Queue[tuple[float, dict[str, Any]]] = field(default_factory=queue.Queue)

    @classmethod
    def start(
        cls, folder: Path, engine: str, world: int, port: int, output: str, epochs: int
    ) -> Running:
        launch = ["torch.distributed.run", "--nproc-per-node", str(world), "--max-restarts", "3"]
        launch += ["--master-port", str(port), "-m"]
        program = ["sardonyx", "train", "net.onnx", "data.npz", "-o", output, "--json", "--resume"]
        program += ["--engine", engine, "--epochs", str(epochs), "--batch-size", str(BATCH)]
        program += ["--every-steps", str(EVERY)]
        paths = os.pathsep.join(p for p in sys.path if p)
        settings = {"OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu", "PYTHONPATH": paths}
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", *launch, *program],
            cwd=folder, env={**os.environ, **settings}, text=True,
            stdout=subprocess.PIPE, stderr=(folder / f"{output}.log").open("w"),
        )  # fmt: skip
        running = cls(process)
        threading.Thread(target=running._listen, daemon=True).start()
        return running

    def _listen(self) -> None:
        for line in self.process.stdout:
            if line.startswith("{"):
                self.events.put((time.monotonic(), json.loads(line)))

    def kill_one(self, generator: random.Random) -> float:
        """Kill a random process; when that was."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        workers = [int(pid) for pid in path.read_text().split()]
        os.kill(generator.choice(workers), signal.SIGKILL)
        return time.monotonic()

    def wait(self) -> None:
        try:
            self.process.wait(PATIENCE)
        finally:
            self.process.kill()

    def history(self) -> list[tuple[float, dict[str, Any]]]:
        return list(self.events.queue)


def losses(path: Path) -> list[float]:
    position = position_of(sx.load(path))
    assert position is not None and position.finished, "the run is not finished"
    return [epoch["loss"] for epoch in position.history]


def state(path: Path) -> dict[str, bytes]:
    model = sx.load(path)
    arrays = {n: v.const_value for n, v in model.graph.initializers.items()}
    arrays.update(model.records[0].state)
    return {n: t.tobytes() for n, t in arrays.items() if t is not None}


def killed(
    folder: Path, engine: str, world: int, number: int, generator: random.Random, epochs: int
) -> dict[str, Any]:
    """One run with a kill: what came of it."""
    output = f"{engine}-{world}-{number}.onnx"
    running = Running.start(folder, engine, world, PORT + 4 * (number % 40), output, epochs)
    try:
        begin = time.monotonic()
        while not (folder / output).exists():
            if running.process.poll() is not None or time.monotonic() - begin > PATIENCE:
                return {
                    "problem": "no checkpoint: " + (folder / f"{output}.log").read_text()[-800:]
                }
            time.sleep(0.01)
        time.sleep(generator.uniform(0.0, 1.0))
        if running.process.poll() is not None:
            return {"problem": "the run was over before the kill"}
        moment = running.kill_one(generator)
        running.wait()
    finally:
        if running.process.poll() is None:
            running.process.kill()
    if running.process.returncode:
        return {"problem": "not recovered: " + (folder / f"{output}.log").read_text()[-800:]}
    later = [(t, e) for t, e in running.history() if t > moment and e["event"] == "begin"]
    if not later:
        return {"problem": "nothing was started again"}
    when, event = later[0]
    return {"output": folder / output, "seconds": when - moment, "step": event["step"]}


def problems(row: dict[str, Any], whole: Path) -> list[str]:
    if "problem" in row:
        return [row["problem"]]
    wrong = [] if row["seconds"] <= LIMIT else [f"came back after {row['seconds']:.1f} s"]
    apart = float(np.abs(np.subtract(losses(row["output"]), losses(whole))).max())
    wrong += [f"losses differ by {apart:.1e}"] if apart > 5e-6 else []
    wrong += [] if state(row["output"]) == state(whole) else ["other bytes in the file"]
    return wrong


def sweep(
    kills: int, engines: list[str], worlds: list[int], seed: int, epochs: int = 60
) -> list[dict[str, Any]]:
    """Runs with a kill each, over engines and numbers of processes in turn; their results."""
    generator = random.Random(seed)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        cases = [(engine, world) for engine in engines for world in worlds]
        for number, (engine, world) in enumerate(cases):
            alone = Running.start(
                folder, engine, world, PORT - 4 - 4 * number, f"{engine}-{world}.onnx", epochs
            )
            alone.wait()
        for number in range(kills):
            engine, world = cases[number % len(cases)]
            row = killed(folder, engine, world, number, generator, epochs)
            wrong = problems(row, folder / f"{engine}-{world}.onnx")
            row |= {"engine": engine, "world": world, "wrong": wrong}
            rows.append(row)
            words = "; ".join(wrong) or "recovered"
            facts = f"{row.get('seconds', 0.0):5.1f} s, from step {row.get('step')}"
            print(f"{number + 1:3} {engine:6} {world}  {facts}: {words}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--engines", default="torch,jax")
    parser.add_argument("--worlds", default="2")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    worlds = [int(n) for n in chosen.worlds.split(",")]
    engines = chosen.engines.split(",")
    rows = sweep(chosen.kills, engines, worlds, chosen.seed, chosen.epochs)
    failed = sum(bool(row["wrong"]) for row in rows)
    slowest = max((row.get("seconds", 0.0) for row in rows), default=0.0)
    print(f"{len(rows) - failed} of {len(rows)} recovered; the slowest after {slowest:.1f} s")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
