"""Converted modules on a GPU against the modules that they were exported from; JAX beside them.

    PYTHONPATH=src python bench/gpu.py [--models resnet,bert,gpt] [--tiny] [--seconds 2] [--eager]

Random weights, published sizes: ResNet-50-like, BERT-base-like, GPT-2-small-like. The original is
exported by torch.onnx, loaded by sardonyx and converted with `to_torch`. Eager and torch.compile,
inference and a training step (forward, backward, AdamW fused), float32 (TF32 off, torch's default)
and bfloat16. Both contenders take turns in one run; ratios are of medians, below 1 the converted
one is faster. Values are compared before anything is timed. The table is printed, and written to
$OUT/gpu.md where OUT is set. On a machine without a GPU everything runs on the CPU: a check only.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import gc
import io
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.architectures import Bert, Gpt, ResNet

import sardonyx as sx

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
warnings.filterwarnings("ignore")
Made = tuple[torch.nn.Module, tuple[torch.Tensor, ...], list[str]]


def resnet(tiny: bool) -> Made:
    torch.manual_seed(0)
    module = ResNet((1, 1), 8, 10) if tiny else ResNet()
    x = torch.randn(4 if tiny else 64, 3, 32 if tiny else 224, 32 if tiny else 224)
    return module, (x,), ["x"]


def bert(tiny: bool) -> Made:
    torch.manual_seed(0)
    module = Bert(32, 2, 2, 100, 32, fused=True) if tiny else Bert(fused=True)
    ids = torch.randint(0, 100, (4, 16) if tiny else (32, 256))
    return module, (ids, torch.ones_like(ids)), ["input_ids", "attention_mask"]


def gpt(tiny: bool) -> Made:
    torch.manual_seed(0)
    module = Gpt(32, 2, 2, 100, 32, fused=True) if tiny else Gpt(fused=True)
    ids = torch.randint(0, 100, (4, 16) if tiny else (8, 1024))
    return module, (ids,), ["idx"]


MODELS: dict[str, Callable[[bool], Made]] = {"resnet": resnet, "bert": bert, "gpt": gpt}


def exported(module: torch.nn.Module, inputs: tuple, names: list[str]) -> onnx.ModelProto:
    """The module as torch's exporter writes it, batch normalization kept, sizes free."""
    axes = tuple({0: torch.export.Dim.DYNAMIC} for _ in inputs)
    program = torch.onnx.export(
        module.eval(), tuple(x[:4] for x in inputs), dynamo=True, optimize=False, verbose=False,
        input_names=names, dynamic_shapes=axes,
    )  # fmt: skip
    buffer = io.BytesIO()
    program.save(buffer)
    return onnx.load_from_string(buffer.getvalue())


def first(found: Any) -> torch.Tensor:
    return found[0] if isinstance(found, (tuple, list)) else found


def agree(a: Callable[..., Any], b: Callable[..., Any], inputs: tuple) -> float:
    """The largest difference of two modules' first outputs, relative to the largest value."""
    with torch.no_grad():
        x, y = first(a(*inputs)).float(), first(b(*inputs)).float()
    return float((x - y).abs().max() / y.abs().max())


def inference(module: Callable[..., Any], inputs: tuple) -> Callable[[], None]:
    def run() -> None:
        with torch.no_grad():
            module(*inputs)

    return run


def training(
    module: Callable[..., Any], owner: torch.nn.Module, inputs: tuple
) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(owner.parameters(), 1e-5, fused=True)

    def run() -> None:
        optimizer.zero_grad()
        first(module(*inputs)).float().square().mean().backward()
        optimizer.step()

    return run


def synchronize() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def medians(contenders: dict[str, Callable[[], None]], seconds: float) -> dict[str, float]:
    """Milliseconds of each, taking turns."""
    for run in contenders.values():
        for _ in range(3):
            run()
    synchronize()
    times: dict[str, list[float]] = {name: [] for name in contenders}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(next(iter(times.values()))) < 5:
        for name, run in contenders.items():
            synchronize()
            begun = time.perf_counter()
            run()
            synchronize()
            times[name].append(1e3 * (time.perf_counter() - begun))
    return {name: statistics.median(values) for name, values in times.items()}


def measure(name: str, options: argparse.Namespace) -> list[list[str]]:
    module, inputs, names = MODELS[name](options.tiny)
    begun = time.perf_counter()
    model = sx.load(exported(module, inputs, names))
    exported_in = time.perf_counter() - begun
    begun = time.perf_counter()
    converted = sx.to_torch(model)
    print(
        f"{name}: exported in {exported_in:.1f} s, converted in {time.perf_counter() - begun:.1f} s"
        f"{', NOT TRACED ' + converted.untraced[:200] if converted.untraced else ''}",
        flush=True,
    )
    module, converted = module.to(DEVICE), converted.to(DEVICE)
    inputs = tuple(x.to(DEVICE) for x in inputs)
    starts = [(m, copy.deepcopy(m.state_dict())) for m in (module, converted)]
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        for trained, start in starts:  # training has led them apart
            trained.load_state_dict(start)
        module, converted = module.to(dtype), converted.to(dtype)
        cast = tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)
        difference = agree(converted.eval(), module.eval(), cast)
        limit = 1e-4 if dtype == torch.float32 else 5e-2
        if difference > limit:
            rows.append([name, str(dtype)[6:], "", "", f"WRONG: differs by {difference:.1e}"])
            continue
        for compiled in (False, True)[: 1 if options.eager else 2]:
            rows += timed(name, module, converted, cast, dtype, compiled, options.seconds)
    if not options.no_jax:
        rows += jax_rows(name, model, inputs, options.seconds)
    return rows


def timed(
    name: str, module: Any, converted: Any, inputs: tuple, dtype: torch.dtype, compiled: bool,
    seconds: float,
) -> list[list[str]]:  # fmt: skip
    torch._dynamo.reset()
    wrap: Callable[..., Any] = torch.compile if compiled else (lambda m: m)
    rows = []
    for mode in ("inference", "training"):
        for m in (module, converted):
            m.train(mode == "training")
        pair = {"original": (wrap(module), module), "converted": (wrap(converted), converted)}
        if mode == "inference":
            runs = {k: inference(run, inputs) for k, (run, _) in pair.items()}
        else:
            runs = {k: training(run, owner, inputs) for k, (run, owner) in pair.items()}
        result = medians(runs, seconds)
        ratio = result["converted"] / result["original"]
        way = "torch.compile" if compiled else "eager"
        row = [name, str(dtype)[6:], way, mode]
        row += [f"{result['original']:.2f}", f"{result['converted']:.2f}", f"{ratio:.3f}"]
        print("  ".join(row), flush=True)
        rows.append(row)
        for m in (module, converted):
            m.zero_grad(set_to_none=True)
        gc.collect()
    return rows


def jax_rows(name: str, model: Any, inputs: tuple, seconds: float) -> list[list[str]]:
    """The function of `to_jax`, jitted, in float32: inference and gradients with an SGD update."""
    try:
        import jax
    except ImportError:
        return []
    apply, params = sx.to_jax(model)
    params = jax.device_put(params)
    arguments = [jax.device_put(x.cpu().numpy()) for x in inputs]
    serve = jax.jit(apply)

    def loss(weights: Any, *xs: Any) -> Any:
        result = apply(weights, *xs)
        result = result[0] if isinstance(result, tuple) else result
        return (result**2).mean()

    @jax.jit
    def step(weights: Any, *xs: Any) -> Any:
        slopes = jax.grad(loss)(weights, *xs)
        return jax.tree.map(lambda w, g: w - 1e-5 * g, weights, slopes)

    rows = []
    for mode, run in (("inference", serve), ("training", step)):
        for _ in range(2):
            jax.block_until_ready(run(params, *arguments))
        times = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(times) < 5:
            begun = time.perf_counter()
            jax.block_until_ready(run(params, *arguments))
            times.append(1e3 * (time.perf_counter() - begun))
        row = [name, "float32", "jax.jit of to_jax", mode, "", f"{np.median(times):.2f}", ""]
        print("  ".join(row), flush=True)
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--tiny", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--seconds", type=float, default=2.0, help="of timing for each row")
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--no-jax", action="store_true")
    options = parser.parse_args()
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    place = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
    lines = [
        f"{datetime.date.today()}, {place}, torch {torch.__version__}{jax_version(options)}.",
        "",
    ]
    head = ["model", "type", "", "", "original, ms", "converted, ms", "ratio"]
    lines += [" | ".join(["", *head, ""]).strip(), "|" + "---|" * len(head)]
    for name in options.models.split(","):
        for row in measure(name, options):
            lines.append(f"| {' | '.join(row)} |")
    text = "\n".join(lines)
    print(text)
    if "OUT" in os.environ:
        Path(os.environ["OUT"], "gpu.md").write_text(text + "\n")


def jax_version(options: argparse.Namespace) -> str:
    if options.no_jax:
        return ""
    try:
        import jax
    except ImportError:
        return ""
    return f", jax {jax.__version__}"


if __name__ == "__main__":
    main()
