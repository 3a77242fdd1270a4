"""What the loop costs over the bare step, whether its memory grows, and data larger than memory.

    python bench/loop.py [--networks mlp,cnn] [--seconds 60] [--threads 2] [--steps 10000]
                         [--gigabytes 30]

Overhead is what a step of `sx.train` on data in memory takes beyond a bare step: the same object,
with a batch that lies ready. What is asked for, a hundredth of a step, is far below what a machine
changes from second to second, so totals of two runs cannot show it. Bare and loop steps therefore
alternate one by one: each difference is between neighbours in time. Pairs in which the system put a
thread of ours aside for another process are left out, if enough others remain. Of the differences
the largest and the smallest tenth are left out too, the mean of the rest over that of the bare
steps is the overhead. Its interval is a bootstrap's, 95 %, over blocks of neighbouring pairs, since
neighbours are alike.

A floor is `met` where the whole interval is below it, `missed` where the whole is above, and `not
resolved` otherwise: then the machine was not quiet enough, or the run too short. Beside it stand
the mean of all pairs, nothing left out, and the share of time that the loop waited for data. First
steps of an epoch are no pairs. What an epoch's end costs is not a step's, nor is saving, which is
asked for in minutes.

Three clocks: the wall's is what users wait for, on a machine that has nothing else to do. CPU time
of the loop's own thread hardly cares for other processes; with `--threads 1` the engine computes in
that thread, and it is what users wait for where another core prepares the batches. CPU time of the
process counts that preparation too: what they wait for on a single core. With more threads CPU
times also count those that wait by spinning, and say little.

The last figure is what the loop does by itself: the same run with a step that is empty, its CPU
time in blocks of 10 steps over that of the bare step in blocks of 5, the fastest of each.
Memory is the resident set after 1,000 steps and at the end. The big file is sparse: reading takes
memory bandwidth and pages, writing it cost nothing.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import sys
import tempfile
import time
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import sardonyx as sx
from networks import NETWORKS, Network, export
from sardonyx.engines.onnxruntime import prepare_training
from sardonyx.train.run import Run

FLOORS = {"mlp": 0.03}
OTHERS = 0.01
WARM = 10  # steps before the first pair
LEAST = 100  # pairs
BLOCKS, DRAWN = 50, 1000
DATA = 2e8  # bytes of data in memory


def resident() -> float:
    """Megabytes of memory that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


CLOCKS = {
    "wall": time.perf_counter,
    "thread": time.thread_time,
    "CPU": time.process_time,
}


ROW = 2 * (len(CLOCKS) + 1)


def now() -> list[float]:
    """Every clock, and how often a thread of this process was put aside so far."""
    aside = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    return [*(clock() for clock in CLOCKS.values()), aside]


class Pairs:
    """A callback that makes a bare step after each step of the loop, and times both."""

    def __init__(self, ready: list[dict[str, np.ndarray]], seconds: float):
        self.ready = itertools.cycle(ready)
        self.until = time.perf_counter() + seconds
        # Both ends of each step, by each clock; lists would make the garbage collector run.
        self.loop, self.bare = array("d"), array("d")
        self.begin: list[float] | None = None

    def __call__(self, run: Run) -> None:
        end = now()
        batch = next(self.ready)
        before = now()
        run.rep.step(batch)
        after = now()
        if self.begin is not None and run.position.batch > 1 and run.position.step > WARM:
            self.loop.extend([*self.begin, *end])
            self.bare.extend([*before, *after])
        if time.perf_counter() > self.until and len(self.loop) >= LEAST * ROW:
            run.stop("enough")
        self.begin = now()


@dataclass
class Overhead:
    """The loop's extra time as a share of the bare step's: what is likely, and its interval."""

    pairs: int
    step: float  # seconds of a bare step
    share: float
    low: float
    high: float
    mean: float = 0.0  # of all pairs

    @classmethod
    def of(cls, loop: np.ndarray, bare: np.ndarray) -> Overhead:
        share = trimmed(loop - bare) / trimmed(bare)
        return cls(len(loop), trimmed(bare), share, *interval(loop, bare))

    def verdict(self, floor: float) -> str:
        if self.high <= floor:
            return "met"
        return "MISSED" if self.low > floor else "not resolved"

    def __str__(self) -> str:
        return (
            f"{self.share:+.2%} ({self.low:+.2%} … {self.high:+.2%}) of {self.step * 1e3:.2f} ms, "
            f"all pairs {self.mean:+.2%}"
        )


def trimmed(values: np.ndarray) -> float:
    """The mean without the largest and the smallest tenth."""
    cut = len(values) // 10
    return float(np.sort(values)[cut : len(values) - cut].mean())


def interval(loop: np.ndarray, bare: np.ndarray) -> tuple[float, float]:
    """The middle 95 % of overheads over blocks of pairs that are drawn again and again."""
    rng = np.random.default_rng(0)
    blocks = np.array_split(np.arange(len(loop)), BLOCKS)
    result = []
    for _ in range(DRAWN):
        chosen = np.concatenate([blocks[i] for i in rng.integers(0, BLOCKS, BLOCKS)])
        result.append(trimmed((loop - bare)[chosen]) / trimmed(bare[chosen]))
    low, high = np.quantile(result, (0.025, 0.975))
    return float(low), float(high)


def prepared(network: Network) -> tuple[sx.Model, list[dict[str, np.ndarray]], Any]:
    """The network with a record, batches of its own, and those as data for the loop."""
    module = network.module()
    net = sx.trainable(sx.load(export(network, module)), "cross_entropy", sx.optim.adamw(1e-3))
    count = max(20, min(1000, int(DATA / network.batch()[0].nbytes)))
    name = net.inputs[0].name or ""
    made = (network.batch(seed) for seed in range(count))
    some = [{name: x, "label": label} for x, label in made]
    if len(some[0][name]) != len(some[0]["label"]):
        return net, some, some  # labels of every token: batches as they are, not rows
    return net, some, {k: np.concatenate([batch[k] for batch in some]) for k in some[0]}


Measured = tuple[dict[str, Overhead], int, float]


def overhead(network: Network, seconds: float, threads: int) -> Measured:
    """What the loop adds to a step, by each clock; pairs in all; the share of time it waited."""
    net, some, data = prepared(network)
    callback = Pairs(some, seconds)
    run = sx.train(
        net, data, epochs=10_000, batch_size=len(network.batch()[0]), metrics=[],
        callbacks=[callback], engine_options={"threads": threads},
    )  # fmt: skip
    sides = (np.array(side).reshape(-1, 2, ROW // 2) for side in (callback.loop, callback.bare))
    loop, bare = (side[:, 1] - side[:, 0] for side in sides)
    calm = (loop[:, -1] == 0) & (bare[:, -1] == 0)
    if calm.sum() < LEAST:
        calm[:] = True
    result = {c: Overhead.of(loop[calm, i], bare[calm, i]) for i, c in enumerate(CLOCKS)}
    for i, clock in enumerate(CLOCKS):
        result[clock].mean = float(loop[:, i].mean() / bare[:, i].mean() - 1)
    return result, len(loop), run.times["waiting for data"] / run.times["steps"]


def alone(network: Network) -> tuple[float, float]:
    """CPU seconds of the loop around one step that does nothing, and of one bare step."""
    net, some, data = prepared(network)
    marks: list[float] = []

    def hollow(run: Run) -> None:
        if run.position.step == 1:
            figures = run.rep.step(some[0])
            run.rep.step = lambda batch: figures
        if run.position.batch % 10 == 0:
            marks.append(time.process_time())

    sx.train(
        net, data, epochs=1, batch_size=len(network.batch()[0]), metrics=[], callbacks=[hollow]
    )
    rep = prepare_training(net, threads=1)
    bare = []
    for _ in range(12):
        begin = time.process_time()
        for batch in some[:5]:
            rep.step(batch)
        bare.append(time.process_time() - begin)
    return min(b - a for a, b in itertools.pairwise(marks)) / 10, min(bare) / 5


def memory(steps: int) -> dict[int, float]:
    """Resident megabytes at 1,000 steps and at the end of a run on a small network."""
    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=(2048, 32)).astype("f"), "label": rng.integers(0, 4, 2048)}
    result: dict[int, float] = {}

    def note(run: Run) -> None:
        if run.position.step in (min(1000, steps), steps):
            result[run.position.step] = resident()

    sx.train(small(rng, 32, 4), data, steps=steps, callbacks=[note], validation=0.1)
    return result


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


def show(network: Network, seconds: float, threads: int) -> None:
    floor = FLOORS.get(network.name, OTHERS)
    result, total, waited = overhead(network, seconds, threads)
    for clock, share in result.items():
        print(
            f"{network.name:12} loop over bare step, {clock:6} {share}   "
            f"floor {floor:.0%}: {share.verdict(floor)}"
        )
    own, bare = alone(network)
    print(
        f"{'':12} {result['wall'].pairs} of {total} pairs, {threads} threads; "
        f"waited for data {waited:.2%}; "
        f"the loop alone {own * 1e6:.0f} µs on {bare * 1e6:.0f} µs: {own / bare:+.2%}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--networks", default=",".join(n.name for n in NETWORKS))
    parser.add_argument("--seconds", type=float, default=60.0, help="for each network")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--gigabytes", type=float, default=30.0)
    arguments = parser.parse_args()
    for network in NETWORKS:
        if network.name in arguments.networks.split(","):
            show(network, arguments.seconds, arguments.threads)
    if arguments.steps:
        sizes = memory(arguments.steps)
        print("  ".join(f"{n:,} steps: {size:.1f} MB" for n, size in sizes.items()), flush=True)
    if not arguments.gigabytes:
        return
    with tempfile.TemporaryDirectory() as folder:
        size, seconds, added = stream(arguments.gigabytes, Path(folder))
    print(f"{size:.1f} GB .npy: 50 steps of 64 rows in {seconds:.1f} s, {added:.0f} MB more memory")


if __name__ == "__main__":
    main()
