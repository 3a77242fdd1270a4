"""A training step on stock onnxruntime against torch and JAX: one run, interleaved, medians.

    python bench/train.py [--networks mlp,cnn] [--optimizers adamw,sgd] [--seconds 6] [--minutes 8]
    python bench/train.py --threads 1,2,8,16 --runs 3       one table for each number of threads
    python bench/train.py --profile        where the time of a step goes, and its bound
    python bench/train.py --rewrites       the step over the step without one of its rewrites
    python bench/train.py --engines        records on torch, JAX and TensorFlow over each framework
    python bench/train.py --quick          two networks, no compilers: whether it runs at all

All contenders of a row start from the same weights and batch; their first losses must agree. A
ratio is the median time of sardonyx over that of the contender: below 1, sardonyx is faster; with
`--runs`, it is the median over so many measurements of `--seconds` each. Times are wall clock at
`--threads` threads, or with `--cpu` process CPU time at one thread, which a busy
machine disturbs less. torch.compile and JAX jit are compiled before the clock starts; the networks
of JAX are written in plain JAX (networks_jax.py). JAX has no setting for its threads: it is pinned
to as many cores as there are threads. Peak memory is that of four AdamW steps in a fresh process.
"recompute" is sardonyx with `recompute=True`: its time over that without, and its memory over
torch's. "bound" is what no recomputation gets below: the parameters, the two slots of AdamW and the
largest gradient, over torch's memory. Ends with the table as Markdown; `--json` keeps the figures
of several runs in one file and prints all of them. "--engines" measures records on the framework
engines instead: on torch over torch eager, on JAX over plain JAX, on TensorFlow over
`train_on_batch` of the same network in Keras (networks_keras.py); engines that are not installed
are left out.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TORCH_LOGS", "-all")

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))

from train_profile import SHARES, processor, profile

import sardonyx as sx
from networks import NETWORKS, Network, export
from sardonyx.engines.onnxruntime import prepare_training
from sardonyx.engines.onnxruntime.step_session import REWRITES

PEER = "torch.compile"
PAUSE = 0.05  # seconds: the threads of a pool keep a core busy for a while after their last work
FLOORS = {  # over the peer, on two cores
    "mlp": 0.75,
    "cnn": 0.95,
    "resnet18": 0.95,
    "transformer": 0.95,
    "gpt": 0.95,
    "lstm": 1.0,
    "separable": 1.1,
}
OURS = {"adamw": lambda: sx.optim.adamw(1e-3), "sgd": lambda: sx.optim.sgd(1e-2, 0.9)}
THEIRS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": lambda p, fused: torch.optim.AdamW(p, 1e-3, fused=fused or None),
    "sgd": lambda p, fused: torch.optim.SGD(p, 1e-2, 0.9, fused=fused or None),
}
ENGINES = {"torch": "torch", "jax": "jax", "tensorflow": "keras"}  # and what its peer needs
RECOMPUTED = ("cnn", "resnet18", "transformer", "gpt")
QUICK = {"networks": "mlp,lstm", "seconds": 0.2, "compile": False, "jax": False, "memory": False}
Step = Callable[[], float]


def trainable(network: Network, optimizer: str) -> sx.Model:
    file = export(network, network.module())
    return sx.trainable(sx.load(file), "cross_entropy", OURS[optimizer]())


def ours(network: Network, optimizer: str, threads: int, **settings: object) -> Step:
    net = trainable(network, optimizer)
    rep = prepare_training(net, threads=threads, **settings)
    x, y = network.batch()
    feeds = {net.inputs[0].name: x, "label": y}
    return lambda: float(rep.step(feeds)["loss"])


def theirs(network: Network, optimizer: str, fused: bool = False, compiled: bool = False) -> Step:
    module = network.module()
    update = THEIRS[optimizer](module.parameters(), fused)
    forward = torch.compile(module) if compiled else module
    x, y = (torch.tensor(a) for a in network.batch())

    def step() -> float:
        update.zero_grad()
        loss = torch.nn.functional.cross_entropy(forward(x), y)
        loss.backward()
        update.step()
        return loss.item()

    return step


def contenders(network: Network, optimizer: str, arguments: argparse.Namespace) -> dict[str, Step]:
    made = {
        "sardonyx": ours(network, optimizer, arguments.threads),
        "torch": theirs(network, optimizer),
        "torch fused": theirs(network, optimizer, fused=True),
    }
    if optimizer == "adamw" and network.name in RECOMPUTED:
        made["recompute"] = ours(network, optimizer, arguments.threads, recompute=True)
    if arguments.rewrites:
        for name in REWRITES:
            without = ours(network, optimizer, arguments.threads, without=[name])
            made[f"without {name}"] = without
    if arguments.jax:
        from networks_jax import step

        made["jax"] = step(network, optimizer)
    if arguments.compile and time.perf_counter() < arguments.end:
        made["torch.compile"] = theirs(network, optimizer, fused=True, compiled=True)
    return made


def on_engine(network: Network, optimizer: str, engine: str) -> Step:
    """A step of the record on a framework's engine, as `sx.train` would take it."""
    net = trainable(network, optimizer)
    rep = sx.prepare_training(net, engine)
    x, y = network.batch()
    feeds = {net.inputs[0].name: x, "label": y}
    return lambda: float(rep.step(feeds)["loss"])


def framework_step(network: Network, optimizer: str, engine: str) -> Step:
    """The same training written in the framework itself."""
    if engine == "torch":
        return theirs(network, optimizer)
    if engine == "jax":
        from networks_jax import step
    else:
        from networks_keras import step
    return step(network, optimizer)


def engine_times(
    network: Network, optimizer: str, arguments: argparse.Namespace
) -> dict[str, object]:
    """Records on the framework engines, each over its framework."""
    clock = time.process_time if arguments.cpu else time.perf_counter
    cells: dict[str, object] = {"network": network.name, "optimizer": optimizer}
    for engine, package in ENGINES.items():
        if importlib.util.find_spec(package) is None:
            continue
        steps = {"record": on_engine(network, optimizer, engine)}
        steps["framework"] = framework_step(network, optimizer, engine)
        check(steps)
        runs = [measure(steps, arguments.seconds, clock) for _ in range(arguments.runs)]
        ratio = statistics.median(r["record"] / r["framework"] for r in runs)
        cells[f"{engine}, ms"] = statistics.median(r["record"] for r in runs) * 1e3
        cells[f"/ {engine}"] = ratio
    return cells


def check(steps: dict[str, Step]) -> None:
    """Every contender computes the same: the first losses agree."""
    losses = {name: [step() for _ in range(3)] for name, step in steps.items()}
    first = next(iter(losses.values()))
    for name, result in losses.items():
        if not np.allclose(result, first, rtol=2e-3, atol=2e-3):
            raise SystemExit(f"{name} computes something else: {result} against {first}")


def measure(steps: dict[str, Step], seconds: float, clock: Callable[[], float]) -> dict[str, float]:
    """Median seconds of a step, from short interleaved blocks in changing order.

    A block is two steps after a pause, of which the second counts: without the pause, waiting
    threads of the contender before would take a core from this one.
    """
    times: dict[str, list[float]] = {name: [] for name in steps}
    order = list(steps)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[order[0]]) < 5:
        for name in order:
            time.sleep(PAUSE)
            steps[name]()  # fills the caches that the others have used
            begin = clock()
            steps[name]()
            times[name].append(clock() - begin)
        order = order[1:] + order[:1]
    return {name: statistics.median(result) for name, result in times.items()}


PEAK = """
import pathlib, sys
def status(key):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return int(next(l for l in lines if l.startswith(key)).split()[1])
def measured(step):
    [step() for _ in range(4)]
    print((status("VmHWM") - base) / 1024)
"""
PEAK_OURS = """
import numpy as np, sardonyx as sx
from sardonyx.engines.onnxruntime import prepare_training
sx.train, sx.trainable, sx.optim
batch = np.load("batch.npz")
pathlib.Path("/proc/self/clear_refs").write_text("5")
base = status("VmRSS")
net = sx.trainable("net.onnx", "cross_entropy", {optimizer})
feeds = {{net.inputs[0].name: batch["x"], "label": batch["y"]}}
rep = prepare_training(net, threads=2, recompute={recompute})
del net
measured(lambda: rep.step(feeds))
"""
PEAK_THEIRS = """
import numpy as np, torch
sys.path.insert(0, {folder!r})
import train, networks
network = next(n for n in networks.NETWORKS if n.name == {network!r})
torch.set_num_threads(2)
pathlib.Path("/proc/self/clear_refs").write_text("5")
base = status("VmRSS")
measured(train.theirs(network, {optimizer!r}))
"""


def peak_memory(network: Network, optimizer: str, contender: str) -> float:
    """Megabytes that four steps add to a fresh process: imports are not counted, the model is."""
    chosen = {"adamw": "sx.optim.adamw(1e-3)", "sgd": "sx.optim.sgd(1e-2, 0.9)"}[optimizer]
    folder = str(Path(__file__).parent)
    with tempfile.TemporaryDirectory() as work:
        if contender == "torch":
            code = PEAK + PEAK_THEIRS.format(
                folder=folder, network=network.name, optimizer=optimizer
            )
        else:
            (Path(work) / "net.onnx").write_bytes(
                export(network, network.module()).SerializeToString()
            )
            x, y = network.batch()
            np.savez(Path(work) / "batch.npz", x=x, y=y)
            again = contender == "recompute"
            code = PEAK + PEAK_OURS.format(optimizer=chosen, recompute=again)
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=work, capture_output=True, text=True, check=True
        )
    return float(done.stdout.split()[-1])


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    yes_or_no = argparse.BooleanOptionalAction
    parser.add_argument("--networks", default=",".join(n.name for n in NETWORKS))
    parser.add_argument("--optimizers", default="adamw,sgd")
    parser.add_argument("--seconds", type=float, default=6.0, help="of measuring, per row")
    parser.add_argument("--minutes", type=float, default=8.0, help="torch.compile until then")
    parser.add_argument("--runs", type=int, default=1, help="measurements of a row: their median")
    parser.add_argument("--threads", default="2", help="a number, or several: 1,2,8,16")
    parser.add_argument("--profile", action="store_true", help="the shares of a step, its bound")
    parser.add_argument("--rewrites", action="store_true", help="without each rewrite too")
    parser.add_argument("--engines", action="store_true", help="records on framework engines")
    parser.add_argument("--cpu", action="store_true", help="process CPU time at one thread")
    parser.add_argument("--compile", action=yes_or_no, default=True, help="torch.compile too")
    parser.add_argument("--jax", action=yes_or_no, default=True, help="JAX jit too")
    parser.add_argument("--time", action=yes_or_no, default=True, help="the time of a step")
    parser.add_argument("--memory", action=yes_or_no, default=True, help="peak memory too")
    parser.add_argument("--quick", action="store_true", help="whether it runs at all")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    if arguments.quick:
        vars(arguments).update(QUICK)
    arguments.threads = "1" if arguments.cpu else arguments.threads
    arguments.end = time.perf_counter() + 60 * arguments.minutes
    if arguments.compile and shutil.which("g++") is None:
        print("torch.compile is left out: it needs a C++ compiler")
        arguments.compile = False
    return arguments


def main() -> None:
    arguments = parsed()
    counts = [int(n) for n in arguments.threads.split(",")]
    if len(counts) > 1:
        each_number_of_threads(counts)
        return
    arguments.threads = counts[0]
    torch.set_num_threads(arguments.threads)
    # before JAX starts: its pool has a thread per core that the process may use
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.threads])
    kept = arguments.json
    rows = json.loads(kept.read_text()) if kept is not None and kept.exists() else []
    for network in NETWORKS:
        if network.name not in arguments.networks.split(","):
            continue
        for optimizer in arguments.optimizers.split(","):
            make = shares if arguments.profile else engine_times if arguments.engines else row
            cells = make(network, optimizer, arguments)
            show(cells)
            key = (network.name, optimizer)
            rows = [r for r in rows if (r["network"], r["optimizer"]) != key] + [cells]
            if kept is not None:
                kept.write_text(json.dumps(rows, indent=1))
    table(rows, arguments)


def each_number_of_threads(counts: list[int]) -> None:
    """A process for each number of threads that this machine has cores for."""
    cores = len(os.sched_getaffinity(0))
    for count in counts:
        if count > cores:
            print(f"threads {count}: left out, there are {cores} cores")
            continue
        # the last of an option that is given twice counts
        subprocess.run([sys.executable, *sys.argv, "--threads", str(count)], check=True)


def table(rows: list[dict[str, object]], arguments: argparse.Namespace) -> None:
    """All rows as Markdown."""
    order = [n.name for n in NETWORKS]
    rows = sorted(rows, key=lambda r: (r["optimizer"] != "adamw", order.index(str(r["network"]))))
    names = list(dict.fromkeys(name for cells in rows for name in cells))
    packages = ["onnxruntime", "torch", *(["jax"] if arguments.jax else [])]
    versions = [f"{p} {importlib.metadata.version(p)}" for p in packages]
    how = "process CPU time" if arguments.cpu else "wall clock"
    threads = f"threads: {arguments.threads}"
    print(f"\n{time.strftime('%Y-%m-%d')}, {processor()}, {threads}, {how}, {', '.join(versions)}, "
          f"Python {platform.python_version()}.\n")  # fmt: skip
    print(f"| {' | '.join(names)} |\n|{'---|' * len(names)}")
    for cells in rows:
        texts = [cells.get(name, "") for name in names]
        print(f"| {' | '.join(f'{t:.2f}' if isinstance(t, float) else str(t) for t in texts)} |")


def row(network: Network, optimizer: str, arguments: argparse.Namespace) -> dict[str, object]:
    cells: dict[str, object] = {"network": network.name, "optimizer": optimizer}
    if arguments.time:
        cells |= times(network, optimizer, arguments)
    if arguments.memory and optimizer == "adamw":
        cells |= memory(network, optimizer)
    return cells


def times(network: Network, optimizer: str, arguments: argparse.Namespace) -> dict[str, object]:
    clock = time.process_time if arguments.cpu else time.perf_counter
    steps = contenders(network, optimizer, arguments)
    check(steps)
    runs = [measure(steps, arguments.seconds, clock) for _ in range(arguments.runs)]
    ratios = {n: statistics.median(r["sardonyx"] / r[n] for r in runs) for n in steps}
    result = {n: statistics.median(r["sardonyx"] for r in runs) / q for n, q in ratios.items()}
    mine, again = result.pop("sardonyx"), result.pop("recompute", None)
    cells: dict[str, object] = {"ms": mine * 1e3}
    cells |= {f"/ {name}": mine / other for name, other in result.items()}
    if arguments.compile and "torch.compile" not in result:
        cells["torch.compile"] = "left out: out of time"
    if again is not None:
        cells["recompute time"] = again / mine
    return cells


def shares(network: Network, optimizer: str, arguments: argparse.Namespace) -> dict[str, object]:
    """Where the time of a step goes: per cent by share, and the bound over the whole step."""
    net = trainable(network, optimizer)
    x, y = network.batch()
    feeds = {net.inputs[0].name: x, "label": y}
    result = profile(
        lambda options: prepare_training(net, threads=arguments.threads, options=options),
        feeds,
        arguments.threads,
    )
    cells: dict[str, object] = {"network": network.name, "optimizer": optimizer, "ms": result["ms"]}
    cells |= {f"{share}, %": 100 * result[share] / result["ms"] for share in SHARES}
    return {**cells, "bound, ms": result["bound"], "GFLOP/s": result["GFLOP/s"]}


def memory(network: Network, optimizer: str) -> dict[str, object]:
    own, theirs = (peak_memory(network, optimizer, c) for c in ("sardonyx", "torch"))
    cells: dict[str, object] = {"MB": own, "MB / torch": own / theirs}
    if network.name in RECOMPUTED:
        cells["recompute MB / torch"] = peak_memory(network, optimizer, "recompute") / theirs
        cells["bound"] = least_memory(network) / theirs
    return cells


def least_memory(network: Network) -> float:
    """Megabytes of the parameters, two slots each, and the largest gradient."""
    sizes = [p.nbytes for p in network.module().parameters()]
    return (3 * sum(sizes) + max(sizes)) / 2**20


def show(cells: dict[str, object]) -> None:
    floor = FLOORS[str(cells["network"])] if cells["optimizer"] == "adamw" else None
    text = [
        f"{k} {v:.2f}" if isinstance(v, float) else f"{k} {v}"
        for k, v in cells.items()
        if k not in ("network", "optimizer")
    ]
    if floor is not None and f"/ {PEER}" in cells:
        met = float(str(cells[f"/ {PEER}"])) <= floor
        text.append(f" floor {floor}: {'met' if met else 'MISSED'}")
    print(f"{cells['network']:12} {cells['optimizer']:6} {'  '.join(text)}", flush=True)


if __name__ == "__main__":
    main()
