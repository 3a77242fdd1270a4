"""What the loop of `sx.train` costs on a GPU over the bare step of GPT-2 small.

    PYTHONPATH=src python bench/gpu_loop.py [--precision bf16] [--steps 60] [--rounds 3] [--tiny]

Bare: the same record, one batch that is on the GPU already, steps that nobody waits for. Loop:
`sx.train` on rows in this machine's memory, with its preparation of batches, its copies and its
metrics. Both are timed over `--steps` steps after a warm-up, in turns, up to the moment at which
the GPU is done; the overhead is the difference of the medians over that of the bare steps.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))

from gpu import DEVICE, MODELS, exported, synchronize

import sardonyx as sx

WARM = 8


class Timer:
    """A callback: the seconds from step WARM to the last one."""

    def __init__(self, steps: int):
        self.steps, self.begin, self.seconds = steps, 0.0, 0.0

    def __call__(self, run: Any) -> None:
        if run.position.step == WARM:
            synchronize()
            self.begin = time.perf_counter()
        if run.position.step == WARM + self.steps:
            synchronize()
            self.seconds = time.perf_counter() - self.begin


def bare(rep: Any, feeds: dict[str, Any], steps: int) -> float:
    for step in range(WARM + steps):
        if step == WARM:
            synchronize()
            begin = time.perf_counter()
        rep.start_step(feeds)
    synchronize()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tiny", action="store_true")
    chosen = parser.parse_args()
    module, (ids,), names = MODELS["gpt"](chosen.tiny)
    model = sx.load(exported(module, (ids,), names))
    net = sx.trainable(
        model, "cross_entropy", sx.optim.adamw(1e-3), prediction=model.outputs[0].name,
        class_axis=-1,
    )  # fmt: skip
    precision = chosen.precision if chosen.precision != "float32" else None
    rep = sx.prepare_training(net, "torch", device=DEVICE, precision=precision)
    (label,) = [v.name for v in rep.step_inputs if v.name not in names]
    # one epoch is longer than the run: at its end, the state of the best epoch is kept
    rows = np.concatenate([ids.numpy()] * (WARM + chosen.steps + 8))
    data = {names[0]: rows, label: np.roll(rows, -1, 1)}
    feeds = {n: torch.tensor(a[: len(ids)], device=DEVICE) for n, a in data.items()}
    times: dict[str, list[float]] = {"bare": [], "loop": []}
    for _ in range(chosen.rounds):
        times["bare"].append(bare(rep, feeds, chosen.steps))
        timer = Timer(chosen.steps)
        sx.train(
            net, data, steps=WARM + chosen.steps, batch_size=len(ids), engine="torch",
            device=DEVICE, precision=precision, callbacks=[timer], metrics=[],
        )  # fmt: skip
        times["loop"].append(timer.seconds)
    alone, whole = (1e3 * statistics.median(t) / chosen.steps for t in times.values())
    print(f"bare {alone:.2f} ms, loop {whole:.2f} ms a step: {whole / alone - 1:+.2%}; all {times}")


if __name__ == "__main__":
    main()
