"""Seconds until the third compiled step: a training record against the same training in torch.

    PYTHONPATH=src python bench/gpu_first_steps.py [--models resnet,bert,gpt] [--tiny]
                                                   [--precision bf16] [--runs 1]

The networks, losses and optimizer of `bench/gpu_records.py`. Each contender runs in a process of
its own, with an empty cache of compiled kernels, so that neither profits from what the other one
has loaded or compiled. The clock starts when libraries are imported, the file or the module is
loaded, the data is on the device and one product has run there; for a record it includes
`sx.prepare_training`, which has a column of its own. The last column is what torch says that it
spent compiling.
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from gpu import DEVICE, MODELS, exported, first, synchronize
from gpu_records import DECAY, RATE, labels_of, loss_of

import sardonyx as sx

warnings.filterwarnings("ignore")
CONTENDERS = ("record", "torch")


def write_record(name: str, tiny: bool, path: Path) -> None:
    module, inputs, names = MODELS[name](tiny)
    model = sx.load(exported(module, inputs, names))
    optimizer = sx.optim.adamw(RATE, weight_decay=DECAY)
    how, _ = loss_of(name)
    net = sx.trainable(model, optimizer=optimizer, prediction=model.outputs[0].name, **how)
    sx.save(net, path)


def run_record(name: str, options: argparse.Namespace) -> list[float]:
    """Seconds of the preparation, and of three steps."""
    data = on_device(name, options)
    net = sx.load(options.record)
    begun = time.perf_counter()
    rep = sx.prepare_training(
        net, "torch", compile=True, precision=options.precision, device=DEVICE
    )
    prepared = time.perf_counter()
    for _ in range(3):
        float(rep.step(data)["loss"])
    return [prepared - begun, time.perf_counter() - prepared]


def run_torch(name: str, options: argparse.Namespace) -> list[float]:
    data = on_device(name, options)
    module, _, names = MODELS[name](options.tiny)
    module = module.to(DEVICE).train()
    _, loss = loss_of(name)
    begun = time.perf_counter()
    optimizer = torch.optim.AdamW(module.parameters(), RATE, weight_decay=DECAY, fused=True)
    forward = torch.compile(module)
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16, enabled=options.precision == "bf16"):
            value = loss(first(forward(*(data[n] for n in names))), data["label"])
        value.backward()
        optimizer.step()
        float(value)
    return [0.0, time.perf_counter() - begun]


def on_device(name: str, options: argparse.Namespace) -> dict[str, torch.Tensor]:
    module, inputs, names = MODELS[name](options.tiny)
    with torch.no_grad():
        one = first(module(*(x[:1] for x in inputs)))
    label = labels_of(name, one.expand(len(inputs[0]), *one.shape[1:]))
    product = torch.ones(64, 64, device=DEVICE) @ torch.ones(64, 64, device=DEVICE)
    float(product.sum())
    data = dict(zip([*names, "label"], (*inputs, label), strict=True))
    moved = {n: x.to(DEVICE) for n, x in data.items()}
    synchronize()
    return moved


def in_process(name: str, contender: str, record: Path, options: argparse.Namespace) -> list[float]:
    """One contender with empty caches."""
    command = [sys.executable, __file__, "--models", name, "--only", contender]
    command += ["--record", str(record), *(["--tiny"] if options.tiny else [])]
    command += ["--precision", options.precision] if options.precision else []
    with tempfile.TemporaryDirectory() as caches:
        own = {"TORCHINDUCTOR_CACHE_DIR": caches, "TRITON_CACHE_DIR": f"{caches}/triton"}
        done = subprocess.run(
            command, env={**os.environ, **own}, capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    prepared, steps, compiling = map(float, done.stdout.split()[-3:])
    return [prepared, steps, compiling]


def compiling() -> float:
    """What torch says that it spent on compiling, in seconds."""
    times = torch._dynamo.utils.compilation_time_metrics
    names = ("_compile.compile_inner", "compile_fx.<locals>.bw_compiler")
    return sum(sum(times.get(name, [])) for name in names)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--tiny", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--precision", choices=["bf16"], help="of products, in both")
    parser.add_argument("--runs", type=int, default=1, help="the shortest counts")
    parser.add_argument("--only", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--record", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        run = run_record if options.only == "record" else run_torch
        print(*run(options.models, options), compiling())
        return
    place = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
    print(f"{datetime.date.today()}, {place}, torch {torch.__version__}.\n")
    head = ["network", "", "torch, s", "record, s", "ratio", "prepared, s", "compiling: both, s"]
    print(f"| {' | '.join(head)} |")
    print("|---|---|---|---|---|---|---|")
    for name in options.models.split(","):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "net.onnx")
            write_record(name, options.tiny, path)
            ours, theirs = (
                min((in_process(name, c, path, options) for _ in range(options.runs)), key=sum)
                for c in CONTENDERS
            )
        total = ours[0] + ours[1]
        row = [name, options.precision or "float32", f"{theirs[1]:.1f}", f"{total:.1f}"]
        row += [f"{total / theirs[1]:.2f}", f"{ours[0]:.1f}", f"{theirs[2]:.1f}/{ours[2]:.1f}"]
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
