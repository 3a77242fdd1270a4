"""What the loop costs over the bare step, whether its memory grows, and data larger than memory.

    python bench/loop.py [--networks mlp,cnn] [--blocks 21] [--threads 2] [--steps 10000]
                         [--gigabytes 30]

Overhead is the time of `sx.train` on arrays over that of the same engine's step with its batches
already in hand. Both advance in turn within one process: after every block of the loop comes a
block of bare steps, so that a slow machine is slow for both. Printed are the medians of the blocks'
ratios, with the quarter of them on each side, for the wall clock and for CPU time, and the ratio of
the fastest blocks. CPU time counts the thread that prepares batches too, and where the engine has
several threads also those that wait by spinning: it is judged by one thread (`--threads 1`).
The last figure of a line is what the loop does by itself: the same run with a step that is empty,
its CPU time in blocks of 50 steps over that of the bare step in blocks of 5, the fastest of each.
Noise of the machine is as large as the figures asked for; this one is the least disturbed by it.
Memory is the resident set after 1,000 steps and at the end. The big file is sparse: reading takes
memory bandwidth and pages, writing it cost nothing.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import sardonyx as sx
from networks import NETWORKS, Network, export
from sardonyx.engines.onnxruntime import prepare_training
from sardonyx.train.batches import epoch_batches
from sardonyx.train.data import open_data
from sardonyx.train.fields import link
from sardonyx.train.run import Run

FLOORS = {"mlp": 0.03}
OTHERS = 0.01


def resident() -> float:
    """Megabytes of memory that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


Times = tuple[float, float]  # wall clock, CPU


class Turns:
    """A callback that lets the bare step take a block's turn after each block of the loop."""

    def __init__(self, bare: Callable[[], None], block: int):
        self.bare, self.block = bare, block
        self.loop: list[Times] = []
        self.alone: list[Times] = []
        self.begin: Times | None = None

    def __call__(self, run: Run) -> None:
        if run.position.step % self.block:
            return
        end = now()
        if self.begin is not None:  # not the first block, in which everything is compiled
            self.loop.append(passed(self.begin, end))
        begin = now()
        self.bare()
        self.alone.append(passed(begin, now()))
        self.begin = now()


def now() -> Times:
    return time.perf_counter(), time.process_time()


def passed(begin: Times, end: Times) -> Times:
    return end[0] - begin[0], end[1] - begin[1]


@dataclass
class Overhead:
    """Extra time of the loop as a share of the bare step's: the middle, its quarters, the best."""

    low: float
    median: float
    high: float
    best: float

    def __str__(self) -> str:
        return f"{self.median:+.1%} ({self.low:+.1%} … {self.high:+.1%}, best {self.best:+.1%})"


def block_of(network: Network, seconds: float, threads: int) -> int:
    """How many steps a block has: enough that three batches made ahead do not count."""
    net = sx.trainable(sx.load(export(network, network.module())), "cross_entropy")
    rep = prepare_training(net, threads=threads)
    x, label = network.batch()
    batch = {net.inputs[0].name: x, "label": label}
    rep.step(batch)
    begin = time.perf_counter()
    for _ in range(5):
        rep.step(batch)
    return max(20, round(seconds / ((time.perf_counter() - begin) / 5)))


def overhead(network: Network, blocks: int, block: int, threads: int) -> tuple[Overhead, Overhead]:
    """By the wall clock and by CPU time."""
    net = sx.trainable(
        sx.load(export(network, network.module())), "cross_entropy", sx.optim.adamw(1e-3)
    )
    x, label = network.batch()
    rows = len(label)
    # One epoch: what an epoch costs at its end is not a step's.
    name = net.inputs[0].name
    count = block * (blocks + 1)
    data = {name: np.tile(x, (count, *[1] * (x.ndim - 1))), "label": np.tile(label, count)}
    options = {"threads": threads}
    rep = prepare_training(net, **options)
    table = open_data(data)
    links = link(rep.wanted, ["label"], table.fields, None)
    some = epoch_batches(table, links, rows, seed=0, epoch=0)
    ready = list(itertools.islice(some, block))

    def bare() -> None:
        for batch in ready:
            rep.step(batch)

    turns = Turns(bare, block)
    bare()
    sx.train(
        net, data, steps=count, batch_size=rows, metrics=[], engine_options=options,
        callbacks=[turns],
    )  # fmt: skip
    found = []
    for clock in (0, 1):
        loop, alone = ([t[clock] for t in times] for times in (turns.loop, turns.alone[:-1]))
        ratios = [a / b - 1 for a, b in zip(loop, alone, strict=True)]
        low, median, high = statistics.quantiles(ratios, n=4)
        found.append(Overhead(low, median, high, min(loop) / min(alone) - 1))
    return found[0], found[1]


def alone(network: Network, steps: int = 1000) -> tuple[float, float]:
    """CPU seconds of the loop around one step that does nothing, and of one bare step."""
    net = sx.trainable(sx.load(export(network, network.module())), "cross_entropy")
    x, label = network.batch()
    steps = min(steps, int(3e8 / x.nbytes))
    name = net.inputs[0].name or ""
    data = {
        name: np.tile(x, (steps, *[1] * (x.ndim - 1))),
        "label": np.tile(label, (steps, *[1] * (label.ndim - 1))),
    }
    marks: list[float] = []

    def hollow(run: Run) -> None:
        if run.position.step == 1:
            figures = run.rep.step({name: x, "label": label})
            run.rep.step = lambda batch: figures
        if run.position.step % 50 == 0:
            marks.append(time.process_time())

    sx.train(net, data, steps=steps, batch_size=len(x), metrics=[], callbacks=[hollow])
    rep = prepare_training(net, threads=1)
    bare = []
    for _ in range(12):
        begin = time.process_time()
        for _ in range(5):
            rep.step({name: x, "label": label})
        bare.append(time.process_time() - begin)
    return min(b - a for a, b in itertools.pairwise(marks)) / 50, min(bare) / 5


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
    parser.add_argument("--networks", default=",".join(n.name for n in NETWORKS))
    parser.add_argument("--blocks", type=int, default=21)
    parser.add_argument("--seconds", type=float, default=0.3, help="of bare steps in a block")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--gigabytes", type=float, default=30.0)
    arguments = parser.parse_args()
    for network in NETWORKS:
        if network.name in arguments.networks.split(","):
            block = block_of(network, arguments.seconds, arguments.threads)
            wall, cpu = overhead(network, arguments.blocks, block, arguments.threads)
            floor = FLOORS.get(network.name, OTHERS)
            judged = cpu if arguments.threads == 1 else wall
            verdict = "met" if judged.median <= floor else "MISSED"
            own, bare = alone(network)
            print(
                f"{network.name:12} loop over bare step: wall {wall}  CPU {cpu}   "
                f"floor {floor:.0%}: {verdict}   "
                f"alone {own * 1e6:.0f} µs on {bare * 1e6:.0f} µs: {own / bare:+.2%}",
                flush=True,
            )
    if arguments.steps:
        found = memory(arguments.steps)
        print("  ".join(f"{n:,} steps: {size:.1f} MB" for n, size in found.items()), flush=True)
    if not arguments.gigabytes:
        return
    with tempfile.TemporaryDirectory() as folder:
        size, seconds, added = stream(arguments.gigabytes, Path(folder))
    print(f"{size:.1f} GB .npy: 50 steps of 64 rows in {seconds:.1f} s, {added:.0f} MB more memory")


if __name__ == "__main__":
    main()
