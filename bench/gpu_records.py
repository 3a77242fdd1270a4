"""A training record on a GPU against the same training written in torch, in one run.

    PYTHONPATH=src python bench/gpu_records.py [--models resnet,bert,gpt] [--tiny] [--seconds 3]
                                               [--compiled] [--jax] [--precision bf16] [--profile]
                                               [--fused]

Random weights, published sizes, float32 (TF32 off) or, with --precision, products in bfloat16 or
TF32: in torch by `torch.autocast`. AdamW. The network is exported by torch.onnx,
gets its record from `sx.trainable` and takes steps with `sx.prepare_training(engine="torch")`;
beside it the original module with torch's loss and torch.optim.AdamW, as torch chooses its kernels
(foreach on a GPU), or, with --fused, in its fused kernel. Losses of the first steps are compared
before anything is timed. Both take turns; ratios are of medians, below 1 the record is faster.
Memory is the peak of one step. On a machine without a GPU everything runs on the CPU: a check only.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import gc
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))

from gpu import DEVICE, MODELS, exported, first, medians, synchronize

import sardonyx as sx

warnings.filterwarnings("ignore")
F = torch.nn.functional
RATE, DECAY = 1e-3, 1e-2


def labels_of(name: str, output: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    if name == "bert":
        return torch.randn(output.shape, generator=generator)
    return torch.randint(0, output.shape[-1], output.shape[:-1], generator=generator)


def loss_of(name: str) -> tuple[dict[str, Any], Callable[..., torch.Tensor]]:
    """The loss as `trainable` takes it, and as torch computes it."""
    if name == "bert":
        return {"loss": "mse"}, F.mse_loss
    how: dict[str, Any] = {"loss": "cross_entropy"}
    if name == "gpt":
        how["class_axis"] = -1
    return how, lambda scores, y: F.cross_entropy(scores.flatten(0, -2), y.flatten())


def peak(run: Callable[[], Any], state: int) -> float:
    """The most memory that a step takes, in MB: its state, and what it allocates beside it.

    Both contenders are on the GPU; what the other one holds does not count.
    """
    if DEVICE != "cuda":
        return float("nan")
    synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    synchronize()
    return (torch.cuda.max_memory_allocated() - before + state) / 1e6


def profile(run: Callable[[], Any]) -> str:
    """Where the time of three steps goes."""
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as record:
        for _ in range(3):
            run()
        synchronize()
    order = "self_cuda_time_total" if DEVICE == "cuda" else "self_cpu_time_total"
    return record.key_averages().table(sort_by=order, row_limit=22, max_name_column_width=60)


def measure(name: str, options: argparse.Namespace) -> list[list[str]]:
    module, inputs, names = MODELS[name](options.tiny)
    model = sx.load(exported(module, inputs, names))
    with torch.no_grad():
        one = first(module(*(x[:1] for x in inputs)))
    label = labels_of(name, one.expand(len(inputs[0]), *one.shape[1:]))
    how, loss = loss_of(name)
    optimizer = sx.optim.adamw(RATE, weight_decay=DECAY)
    net = sx.trainable(model, optimizer=optimizer, prediction=model.outputs[0].name, **how)
    data = dict(zip([*names, "label"], (*inputs, label), strict=True))
    rows = []
    for engine in ["torch", *(["jax"] if options.jax else [])]:
        rows += compared(name, engine, module, net, data, loss, names, options)
    return rows


def compared(
    name: str, engine: str, module: Any, net: Any, data: dict[str, torch.Tensor], loss: Any,
    names: list[str], options: argparse.Namespace,
) -> list[list[str]]:  # fmt: skip
    ours_options: dict[str, Any] = {"compile": options.compiled} if engine == "torch" else {}
    ours_options |= {"precision": options.precision, "device": DEVICE}
    begun = time.perf_counter()
    rep = sx.prepare_training(net, engine, **ours_options)
    prepared = time.perf_counter() - begun
    labels = [n for n in (v.name for v in rep.step_inputs) if n not in names]
    on_device = {n: x.to(DEVICE) for n, x in data.items()}
    if engine == "torch":
        feeds = {**{n: on_device[n] for n in names}, labels[0]: on_device["label"]}
    else:
        import jax

        feeds = {n: jax.device_put(x.numpy()) for n, x in data.items()}
        feeds[labels[0]] = feeds.pop("label")
    theirs = copy.deepcopy(module).to(DEVICE).train()
    optimizer = torch.optim.AdamW(
        theirs.parameters(), RATE, weight_decay=DECAY, fused=options.fused or None
    )
    forward = torch.compile(theirs) if options.compiled else theirs

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16, enabled=options.precision == "bf16"):
            value = loss(first(forward(*(on_device[n] for n in names))), on_device["label"])
        value.backward()
        optimizer.step()
        return value

    begun = time.perf_counter()
    ours_losses = [float(rep.step(feeds)["loss"]) for _ in range(3)]
    ours_first = time.perf_counter() - begun
    begun = time.perf_counter()
    their_losses = [float(step()) for _ in range(3)]
    their_first = time.perf_counter() - begun
    difference = max(abs(a - b) / abs(b) for a, b in zip(ours_losses, their_losses, strict=True))
    times = medians({"ours": lambda: rep.step(feeds), "torch": step}, options.seconds)
    optimizer.zero_grad()
    state = 3 * sum(
        p.numel() * p.element_size() for p in theirs.parameters()
    )  # AdamW has two slots
    memory = peak(lambda: rep.step(feeds), state), peak(step, state)
    ratio = times["ours"] / times["torch"]
    kind = f"{engine}{' compiled' if options.compiled else ''} {options.precision or ''}".strip()
    row = [name, kind, rep.ways[0][:40]]
    if options.profile:
        for label, run in (("torch", step), ("record", lambda: rep.step(feeds))):
            print(f"{name}, {label}", profile(run), sep="\n", flush=True)
    row += [f"{times['torch']:.2f}", f"{times['ours']:.2f}", f"{ratio:.3f}", f"{difference:.1e}"]
    row += [
        f"{memory[1]:.0f}",
        f"{memory[0]:.0f}",
        f"{prepared + ours_first:.1f}/{their_first:.1f}",
    ]
    print("  ".join(row), flush=True)
    gc.collect()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()
    return [row]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--tiny", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--seconds", type=float, default=3.0, help="of timing for each row")
    parser.add_argument("--compiled", action="store_true", help="both through torch.compile")
    parser.add_argument("--precision", choices=["bf16", "tf32"], help="of products, in both")
    parser.add_argument("--fused", action="store_true", help="torch's fused AdamW beside it")
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    parser.add_argument("--jax", action="store_true", help="the record on the jax engine as well")
    options = parser.parse_args()
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if options.precision == "tf32":
        torch.set_float32_matmul_precision("high")
    place = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
    head = ["model", "engine", "how", "torch, ms", "record, ms", "ratio", "losses differ by"]
    head += ["torch, MB", "record, MB", "first 3 steps, s"]
    lines = [f"{datetime.date.today()}, {place}, torch {torch.__version__}.", ""]
    lines += [" | ".join(["", *head, ""]).strip(), "|" + "---|" * len(head)]
    for name in options.models.split(","):
        for row in measure(name, options):
            lines.append(f"| {' | '.join(row)} |")
    text = "\n".join(lines)
    print(text)
    if "OUT" in os.environ:
        Path(os.environ["OUT"], "gpu_records.md").write_text(text + "\n")


if __name__ == "__main__":
    main()
