"""What a training on many devices moves between them, and the weak scaling that follows.

    XLA_FLAGS=--xla_force_host_platform_device_count=4 PYTHONPATH=src python bench/scaling.py
        [--devices 4] [--shard replicate] [--bandwidth 50e9] [--latency 5e-6] [--step 0.1]

The step of a record is compiled by jax for several devices of a CPU, and the bytes of collective
operations are read from the compiled HLO. Expected weak scaling at 8, 64 and 512 devices, under
these assumptions: every device computes for `--step` seconds, whatever their number; the gradients
are reduced in a ring, which moves 2 (n - 1) / n of their bytes over each link and waits 2 (n - 1)
times for the latency; nothing overlaps. Real runs overlap, and are faster.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.networks import mlp

import sardonyx as sx

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
SIZES = {"f32": 4, "f64": 8, "bf16": 2, "f16": 2, "s32": 4, "s64": 8, "u32": 4, "pred": 1}
TENSOR = re.compile(r"(\w+)\[([\d,]*)\]")


def collective_bytes(text: str) -> dict[str, int]:
    """The bytes that each kind of collective operation gives, in the text of an HLO module."""
    totals: dict[str, int] = {}
    for line in text.splitlines():
        match = re.search(rf"= (.*?) ({'|'.join(COLLECTIVES)})(?:-start)?\(", line)
        if match is None:
            continue
        shapes = TENSOR.findall(match[1])
        size = sum(SIZES.get(kind, 0) * _count(dims) for kind, dims in shapes)
        totals[match[2]] = totals.get(match[2], 0) + size
    return totals


def _count(dims: str) -> int:
    return int(np.prod([int(d) for d in dims.split(",") if d], dtype=np.int64))


def compiled_text(net: Any, feeds: dict[str, np.ndarray], devices: int, shard: str) -> str:
    """The HLO of one step on several devices."""
    rep: Any = sx.prepare_training(net, "jax", devices=devices, shard=shard)
    (step,) = rep.steps
    with rep.context():
        state = {n: rep.variables[n].value for n in step.graph.state}
        arrays = {n: rep.placement.feed(n, v) for n, v in {**feeds, **step.hyper}.items()}
        return str(jax.jit(rep.placement.constrained(step.function)).lower(
            state, arrays
        ).compile().as_text())  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--devices", type=int, default=len(jax.devices()))
    parser.add_argument("--shard", default="replicate")
    parser.add_argument("--bandwidth", type=float, default=50e9, help="bytes a second of a link")
    parser.add_argument("--latency", type=float, default=5e-6, help="seconds")
    parser.add_argument("--step", type=float, default=0.1, help="seconds of computing in a step")
    options = parser.parse_args()
    net = sx.trainable(mlp((256, 1024, 1024, 16)), "cross_entropy", sx.optim.adamw(1e-3))
    rows = 8 * options.devices
    feeds = {"x": np.zeros((rows, 256), np.float32), "label": np.zeros(rows, np.int64)}
    moved = collective_bytes(compiled_text(net, feeds, options.devices, options.shard))
    weights = sum(v.const_value.nbytes for v in net.graph.initializers.values() if v.const_value)
    print(f"{options.devices} devices, shard={options.shard}: gradients {weights:,} bytes")
    for kind, size in moved.items():
        print(f"  {kind:20} {size:>12,} bytes  {size / weights:.3f} of the gradients")
    total = sum(moved.values())
    link = f"{options.bandwidth:.3g} B/s, {options.latency:.3g} s"
    print(f"weak scaling at {link}, {options.step} s a step")
    for count in (8, 64, 512):
        wait = 2 * (count - 1) * (total / count / options.bandwidth + options.latency)
        print(f"  {count:4} devices  {options.step / (options.step + wait):.1%}")


if __name__ == "__main__":
    main()
