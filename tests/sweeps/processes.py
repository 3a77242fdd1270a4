"""Networks trained in several processes of torch against one process: losses, state, file.

    python -m tests.sweeps.processes [--worlds 2,4] [--steps 100] [--networks mlp,cnn]

Each process first trains every network alone, then together with the others, with its rows of every
batch, with the state on each ("replicate") and spread over them ("state"). The losses must be those
of one process within 5e-6 in float32 and 1e-11 in float64, the state at the end within 1e-4 and
1e-9 (a step moves a weight by up to 1e-2). Every seventh batch has a number of rows that does not
divide. With the state spread, what a process holds must be at most 1.05 of its share, but for
variables of no size that divides.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import sardonyx as sx
from tests.networks import cnn, lstm, mlp, transformer

ROWS, ODD = 8, 7
Case = tuple[Callable[[], Any], dict[str, Any], tuple[int, ...], Any]
WORDS = {"loss": "cross_entropy"}
FLOAT, DOUBLE, INT = np.float32, np.float64, np.int64

# name: (network, arguments of trainable, shape of a row, type of the input)
CASES: dict[str, Case] = {
    "mlp": (lambda: mlp((8, 16, 4)), WORDS, (8,), FLOAT),
    "mlp of float64": (lambda: mlp((8, 16, 4), dtype=np.float64), WORDS, (8,), DOUBLE),
    "relu, momentum": (
        lambda: mlp((8, 16, 4), activation="Relu"),
        {**WORDS, "optimizer": sx.optim.sgd(1e-2, momentum=0.9)},
        (8,),
        FLOAT,
    ),
    "clipped": (lambda: mlp((8, 16, 4)), {**WORDS, "clip_norm": 0.1}, (8,), FLOAT),
    "accumulated": (lambda: mlp((8, 16, 4)), {**WORDS, "accumulate": 3}, (8,), FLOAT),
    "averaged": (lambda: mlp((8, 16, 4)), {**WORDS, "ema": 0.9}, (8,), FLOAT),
    "class weights": (
        lambda: mlp((8, 16, 4)),
        {"loss": sx.loss.cross_entropy(weight=[1.0, 2.0, 0.5, 1.5])},
        (8,),
        FLOAT,
    ),
    "smoothed labels": (
        lambda: mlp((8, 16, 4)),
        {"loss": sx.loss.cross_entropy(label_smoothing=0.1)},
        (8,),
        FLOAT,
    ),
    "cnn": (lambda: cnn(classes=4), WORDS, (3, 8, 8), FLOAT),
    "cnn, clipped, lamb": (
        lambda: cnn(classes=4),
        {**WORDS, "clip_norm": 1.0, "optimizer": sx.optim.lamb(1e-2)},
        (3, 8, 8),
        FLOAT,
    ),
    "lstm": (lambda: lstm(classes=4), WORDS, (5, 3), FLOAT),
    "transformer": (transformer, WORDS, (5,), INT),
}


def batches(name: str, steps: int, net: Any, shape: tuple[int, ...], kind: Any) -> list[Any]:
    """The whole batches, which every process makes by itself."""
    rng = np.random.default_rng(0)
    result = []
    for step in range(steps):
        rows = ODD if step % 7 == 6 else ROWS
        if kind is INT:
            x = rng.integers(0, 11, (rows, *shape))
        else:
            x = rng.normal(size=(rows, *shape)).astype(kind)
        labels = (rows, *shape) if kind is INT else rows  # one for each word
        result.append({net.inputs[0].name: x, "label": rng.integers(0, 3, labels)})
    return result


def train(rep: Any, every: list[Any], world: int, rank: int) -> list[float]:
    losses = []
    for batch in every:
        rows = len(batch["label"])
        if rep.placement is not None and rows % world == 0:
            rep.placement.parts = dict.fromkeys(batch, 0)
            size = rows // world
            batch = {n: a[rank * size : (rank + 1) * size] for n, a in batch.items()}
        losses.append(float(np.mean(rep.step(batch)["loss"])))
        if rep.placement is not None:
            rep.placement.parts = None
    return losses


def differences(a: Any, b: Any) -> float:
    """The largest, without the bias before batch normalization: rounding alone is its gradient."""
    names = [n for n in a if a[n].size and not n.startswith(("conv1.bias", "bn.mean"))]
    return max((float(np.abs(a[n] - b[n]).max()) for n in names), default=0.0)


def work(names: list[str], steps: int) -> list[dict[str, Any]]:
    """What one process does; rows of results."""
    alone, results = {}, []
    for name in names:
        make, how, shape, kind = CASES[name]
        net = sx.trainable(make(), **{"optimizer": sx.optim.adamw(1e-2), **how})
        every = batches(name, steps, net, shape, kind)
        rep = sx.prepare_training(net, "torch")
        alone[name] = net, every, train(rep, every, 1, 0), rep.state()
    from sardonyx.train.processes import join

    processes = join("torch")
    for name in names:
        net, every, expected, state = alone[name]
        for shard in ("replicate", "state"):
            rep = sx.prepare_training(net, "torch", shard=shard)
            losses = train(rep, every, processes.count, processes.rank)
            apart = float(np.abs(np.subtract(losses, expected)).max())
            held = sum(v.value.nbytes for v in rep.variables.values())
            share = sum(
                v.value.nbytes if rep.axis(n) is not None else v.value.nbytes / processes.count
                for n, v in rep.variables.items()
            )
            results.append(
                {"name": name, "shard": shard, "apart": apart, "held": held, "share": share,
                 "state": differences(rep.state(), state)}
            )  # fmt: skip
    return results if processes.leads else []


def launch(world: int, names: list[str], steps: int, port: int = 29931) -> list[dict[str, Any]]:
    """The results of a number of processes."""
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--nproc-per-node"]
    command += [str(world), "--master-port", str(port), "-m", "tests.sweeps.processes", "--work"]
    command += ["--networks", ",".join(names).replace(", ", ";"), "--steps", str(steps)]
    root = Path(__file__).parent.parent.parent
    paths = os.pathsep.join([str(root), *(p for p in sys.path if p)])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    done = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}\n{done.stderr[-4000:]}")
    lines = [line for line in done.stdout.splitlines() if line.startswith("[{")]
    return json.loads(lines[-1])  # type: ignore[no-any-return]


def problems(row: dict[str, Any], world: int) -> list[str]:
    of_losses, of_state = (1e-11, 1e-9) if "64" in row["name"] else (5e-6, 1e-4)
    wrong = [] if row["apart"] <= of_losses else [f"losses differ by {row['apart']:.1e}"]
    if row.get("state", 0.0) > of_state:
        wrong.append(f"the state differs by {row['state']:.1e}")
    if row["shard"] == "state" and row["held"] > 1.05 * row["share"] * world:
        wrong.append("more of the state than its share")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--worlds", default="2,4")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--networks", default=",".join(CASES).replace(", ", ";"))
    parser.add_argument("--work", action="store_true", help="be one of the processes")
    options = parser.parse_args()
    names = [n.replace(";", ", ") for n in options.networks.split(",")]
    if options.work:
        rows = work(names, options.steps)
        if rows:
            print(json.dumps(rows), flush=True)
        return
    failed = 0
    for number, world in enumerate(map(int, options.worlds.split(","))):
        for row in launch(world, names, options.steps, 29931 + number):
            wrong = problems(row, world)
            failed += bool(wrong)
            words = "; ".join(wrong) or "same"
            facts = f"losses {row['apart']:.1e}, state {row['state']:.1e}, {row['held']:,} bytes"
            print(f"{world}  {row['name']:20} {row['shard']:10} {facts}: {words}", flush=True)
    print(f"{failed} differ")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
