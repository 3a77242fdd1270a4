"""A whole training in one ONNX file against the step-wise loop: CPU time a step and peak memory.

    python bench/whole.py [--networks mlp,cnn] [--steps 24] [--rounds 3] [--compiled]

Both train the same batches at one thread, each in a process of its own; their losses must be equal
to the bit. Times are process CPU time of the steps alone: the file by the difference between runs
of one and of several epochs, the loop by the clock around its steps. Memory is the peak of the
whole process above what it has after its imports. "file" is the session with the options of
`sx.run_training`, called without sardonyx.

The loop is that of `shuffle="hash"`, which computes what the file computes. `--compiled` takes the
loop of `shuffle=True`: another order of the rows, and kernels that a file cannot have.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))

import sardonyx as sx
from networks import NETWORKS, Decoder, Network, export

BATCHES = 6  # of an epoch
START = """
import json, pathlib, sys, time
import numpy as np
def status(key):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return int(next(l for l in lines if l.startswith(key)).split()[1]) / 1024
def begin():
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")
data = dict(np.load("data.npz"))
size, epochs = int(sys.argv[1]), int(sys.argv[2])
"""
LOOP = """
import sardonyx as sx
sx.train, sx.trainable
from sardonyx.engines import onnxruntime
times = []
class Clock(sx.train.__globals__["TrainingLoop"]):
    def _step(self, batch):
        started = time.process_time()
        super()._step(batch)
        times.append(time.process_time() - started)
sx.train.__globals__["TrainingLoop"] = Clock
base = begin()
run = sx.train("trainable.onnx", data, shuffle="hash", batch_size=size, epochs=epochs, seed=0,
               engine_options={"threads": 1})
skip = len(times) // epochs
cpu = sum(times[skip:]) / max(len(times) - skip, 1)
print(json.dumps({"cpu": cpu, "memory": status("VmHWM") - base, "losses": list(run.losses)}))
"""
FILE = """
import onnxruntime
base = begin()
options = onnxruntime.SessionOptions()
options.log_severity_level, options.intra_op_num_threads = 3, 1
options.enable_mem_pattern = options.enable_mem_reuse = False
level = pathlib.Path("level").read_text()
options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
session = onnxruntime.InferenceSession("whole.onnx", options)
names = [v.name for v in session.get_outputs()]
def train(epochs):
    numbers = {"epochs": epochs, "batch_size": size, "seed": 0}
    started = time.process_time()
    outputs = session.run(None, {**data, **{n: np.array(v) for n, v in numbers.items()}})
    return time.process_time() - started, outputs[names.index("losses")].ravel().tolist()
short, _ = train(1) if epochs > 1 else (0.0, [])
long, losses = train(epochs)
steps = len(losses) * (epochs - 1) / epochs if epochs > 1 else len(losses)
cpu = (long - short) / steps
print(json.dumps({"cpu": cpu, "memory": status("VmHWM") - base, "losses": losses}))
"""


class Tokens(Decoder):
    """The decoder with a row of scores for every token, so that a row has its labels."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.layers(self.token(x) + self.place)))


def written(network: Network, folder: Path) -> int:
    """Write the model, its whole training and the data; the size of a batch."""
    if network.name == "gpt":
        network.make = Tokens
    model = sx.load(export(network, network.module()))
    net = sx.trainable(model, "cross_entropy", sx.optim.adamw(1e-3))
    sx.save(net, folder / "trainable.onnx")
    whole = sx.export_training(net, folder / "whole.onnx")
    described = json.loads(sx.load(whole).metadata["sardonyx.whole"])
    (folder / "level").write_text(described["optimization"])
    batches = [network.batch(seed) for seed in range(BATCHES)]
    x, y = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    label = y.reshape(len(x), -1) if len(y) != len(x) else y
    np.savez(folder / "data.npz", **{model.inputs[0].name: x, "label": label})
    return len(batches[0][0])


def run(code: str, folder: Path, size: int, epochs: int) -> dict[str, object]:
    command = [sys.executable, "-c", START + code, str(size), str(epochs)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--networks", default=",".join(n.name for n in NETWORKS))
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compiled", action="store_true")
    arguments = parser.parse_args()
    loop_code = LOOP.replace('"hash"', "True") if arguments.compiled else LOOP
    epochs = max(arguments.steps // BATCHES, 2)
    print("| network | loop, ms a step | file, ms a step | ratio | loop, MB | file, MB | ratio |")
    print("|---|---|---|---|---|---|---|")
    for network in (n for n in NETWORKS if n.name in arguments.networks.split(",")):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            size = written(network, folder)
            rows = [
                (run(loop_code, folder, size, epochs), run(FILE, folder, size, epochs))
                for _ in range(arguments.rounds)
            ]
        differ = any(loop["losses"] != file["losses"] for loop, file in rows)
        if differ and not arguments.compiled:
            raise SystemExit(f"{network.name}: the losses differ")
        loop, file = (
            {k: statistics.median(r[i][k] for r in rows) for k in ("cpu", "memory")} for i in (0, 1)
        )
        cells = [f"{1e3 * r['cpu']:.2f}" for r in (loop, file)] + [
            f"{file['cpu'] / loop['cpu']:.2f}"
        ]
        cells += [f"{r['memory']:.0f}" for r in (loop, file)]
        cells.append(f"{file['memory'] / loop['memory']:.2f}")
        print(f"| {network.name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
