"""What the loop costs over the bare step, whether its memory grows, and data larger than memory.

    python bench/loop.py [--networks mlp,cnn] [--blocks 9] [--steps 10000] [--gigabytes 30] [--cpu]

Overhead is process CPU time and wall clock of `sx.train` on arrays, over that of calling the step
of the same engine with the same batches already in hand, in interleaved blocks; the median of the
blocks' ratios is printed. Memory is the resident set after 1,000 and after `--steps` steps. The big
file is sparse: reading it costs memory bandwidth and pages, writing it cost nothing.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import sardonyx as sx
from networks import NETWORKS, Network, export
from sardonyx.engines.onnxruntime import prepare_training
from sardonyx.train.batches import epoch_batches
from sardonyx.train.data import open_data
from sardonyx.train.fields import link
from sardonyx.train.loop import Run

FLOORS = {"mlp": 0.03}
OTHERS = 0.01


def resident() -> float:
    """Megabytes of memory that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def overhead(network: Network, blocks: int, steps: int) -> tuple[float, float]:
    """Extra wall-clock and CPU time of the loop, as shares of the bare step's."""
    net = sx.trainable(
        sx.load(export(network, network.module())), "cross_entropy", sx.optim.adamw(1e-3)
    )
    x, label = network.batch()
    rows = len(label)
    times = steps + 1  # one epoch: what an epoch costs at its end is not a step's
    data = {
        net.inputs[0].name: np.tile(x, (times, *[1] * (x.ndim - 1))),
        "label": np.tile(label, times),
    }
    bare = prepare_training(net, threads=1)
    table = open_data(data)
    links = link(bare.wanted, ["label"], table.fields, None)
    ready = list(epoch_batches(table, links, rows, seed=0, epoch=0))

    def steps_alone() -> None:
        for i in range(steps):
            bare.step(ready[i % len(ready)])

    def whole_loop() -> None:
        timed = Clock()
        sx.train(
            net,
            data,
            steps=steps + 1,
            batch_size=rows,
            metrics=[],
            engine_options={"threads": 1},
            callbacks=[timed],
        )
        found.append(timed.passed())

    found: list[tuple[float, float]] = []
    ratios = []
    steps_alone()
    for _ in range(blocks):
        begin = now()
        steps_alone()
        alone = [b - a for a, b in zip(begin, now(), strict=True)]
        whole_loop()
        ratios.append([loop / own - 1 for loop, own in zip(found[-1], alone, strict=True)])
    wall, cpu = (statistics.median(column) for column in zip(*ratios, strict=True))
    return wall, cpu


def now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


class Clock:
    """Times a loop from the end of its first step, when everything is compiled."""

    def __init__(self) -> None:
        self.begin: tuple[float, float] | None = None
        self.end = now()

    def __call__(self, run: Run) -> None:
        self.end = now()
        self.begin = self.begin or self.end

    def passed(self) -> tuple[float, float]:
        assert self.begin is not None
        return self.end[0] - self.begin[0], self.end[1] - self.begin[1]


def memory(steps: int) -> dict[int, float]:
    """Resident megabytes at 1,000 steps and at the end of a run on a small network."""
    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=(2048, 32)).astype("f"), "label": rng.integers(0, 4, 2048)}
    found: dict[int, float] = {}

    def note(run: Run) -> None:
        if run.position.step in (min(1000, steps), steps):
            found[run.position.step] = resident()

    sx.train(small(rng, 32, 4), data, steps=steps, callbacks=[note], validation=0.1)
    return found


def small(rng: np.random.Generator, width: int, classes: int) -> sx.Model:
    import onnx
    from onnx import helper, numpy_helper

    weights = {"w0": (width, 64), "b0": (64,), "w1": (64, classes), "b1": (classes,)}
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["x", "w0", "b0"], ["h"]),
            helper.make_node("Relu", ["h"], ["a"]),
            helper.make_node("Gemm", ["a", "w1", "b1"], ["y"]),
        ],
        "small",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", width])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", classes])],
        [
            numpy_helper.from_array((rng.normal(size=s) * 0.1).astype("f"), n)
            for n, s in weights.items()
        ],
    )
    opset = [helper.make_opsetid("", 17)]
    return sx.load(helper.make_model(graph, opset_imports=opset, ir_version=8))


def stream(gigabytes: float, folder: Path, steps: int = 50) -> tuple[float, float, float]:
    """A sparse .npy of that size: its gigabytes, the seconds of some steps, megabytes added."""
    width = 4096
    rows = int(gigabytes * 1e9 / (width * 4))
    np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (rows, width)).flush()
    np.lib.format.open_memmap(folder / "label.npy", "w+", np.int64, (rows,)).flush()
    size = (folder / "x.npy").stat().st_size / 1e9
    model = small(np.random.default_rng(0), width, 4)
    before, begin = resident(), time.perf_counter()
    sx.train(model, folder / "x.npy", steps=steps, batch_size=64)
    return size, time.perf_counter() - begin, resident() - before


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--networks", default="mlp,cnn")
    parser.add_argument("--blocks", type=int, default=9)
    parser.add_argument("--block-steps", type=int, default=100)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--gigabytes", type=float, default=30.0)
    parser.add_argument("--cpu", action="store_true", help="judge by CPU time: on a busy machine")
    arguments = parser.parse_args()
    for network in NETWORKS:
        if network.name in arguments.networks.split(","):
            wall, cpu = overhead(network, arguments.blocks, arguments.block_steps)
            floor = FLOORS.get(network.name, OTHERS)
            verdict = "met" if (cpu if arguments.cpu else wall) <= floor else "MISSED"
            print(
                f"{network.name:12} loop over bare step: wall {wall:+.1%}  CPU {cpu:+.1%}   "
                f"floor {floor:.0%}: {verdict}",
                flush=True,
            )
    found = memory(arguments.steps)
    print("  ".join(f"{step:,} steps: {size:.1f} MB" for step, size in found.items()), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        size, seconds, added = stream(arguments.gigabytes, Path(folder))
    print(f"{size:.1f} GB .npy: 50 steps of 64 rows in {seconds:.1f} s, {added:.0f} MB more memory")


if __name__ == "__main__":
    main()
