"""Where the time of a training step goes, as onnxruntime's profiler sees it (`train.py --profile`).

Every kernel of a step belongs to one share: the optimizer, convolutions, matrix products, layout
(transposes, slices, copies) or elementwise operators and reductions. What is left of a step is
overhead: the session around its kernels, the binding, Python. The bound is the time that the
convolutions and products of the step would take at the rate of a large product, measured in the
same process: no arrangement of the same arithmetic is faster. Kernels of our own count as what they
compute; a convolution in tiles counts the multiplications that it needs, 16 of 36.
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx.parser import parse_model

SHARES = ("optimizer", "convolution", "products", "elementwise", "layout", "overhead")
CONVOLUTIONS = ("Conv", "ConvTranspose", "FusedConv", "Winograd", "KernelGradient")
PRODUCTS = ("MatMul", "Gemm", "FusedMatMul", "FusedGemm", "Einsum", "Product")
RECURRENT = ("LSTM", "GRU", "RNN", "Recurrence")
LAYOUT = (
    *("Transpose", "Slice", "Concat", "Split", "Pad", "Reshape", "Squeeze", "Unsqueeze", "Expand"),
    *("Identity", "ReorderInput", "ReorderOutput", "Shape", "Tile", "Flatten"),
)
OPTIMIZER = ("train/adamw/", "train/sgd/", "train/step/", "sardonyx/blocks/", "sardonyx/wait")
SIZE, REPEATS = 1024, 7  # of the product whose rate is measured
STEPS = 8


def profile(make: Callable[[dict[str, Any]], Any], feeds: dict[str, Any], threads: int) -> dict:
    """Milliseconds of a step by share, and the bound.

    make -- a model in training, with these options of its sessions
    """
    plain = make({})
    with tempfile.TemporaryDirectory() as folder:
        prefix = str(Path(folder) / "step")
        rep = make({"enable_profiling": True, "profile_file_prefix": prefix})
        # the profiler costs time itself: a step is measured without it, in turns
        step = _median(lambda: plain.step(feeds), between=lambda: rep.step(feeds)) * 1e3
        file = Path(rep.steps[0].session.session.end_profiling())
        events = json.loads(file.read_text())
    kernels, operations = _kernels(events)
    shares = {share: kernels[share] for share in SHARES[:-1]}
    shares["overhead"] = max(step - sum(shares.values()), 0.0)
    rate = product_rate(threads)
    return {"ms": step, **shares, "bound": operations / rate * 1e3, "GFLOP/s": rate / 1e9}


def _median(
    step: Callable[[], Any], count: int = STEPS, between: Callable[[], Any] = lambda: None
) -> float:
    times = []
    for _ in range(count + 2):
        between()
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[2:])


def _kernels(events: list[dict[str, Any]]) -> tuple[dict[str, float], float]:
    """Milliseconds of a step by share in the median over steps, and its operations."""
    runs = sorted(e["ts"] for e in events if e.get("name") == "model_run")[2:]
    steps = [Counter[str]() for _ in runs]
    operations = 0.0
    for event in events:
        if event.get("cat") != "Node" or not event["name"].endswith("_kernel_time"):
            continue
        index = sum(event["ts"] >= begin for begin in runs) - 1
        # a kernel that runs a body counts as what is in the body
        if index < 0 or event["args"]["op_name"] in ("Scan", "Loop", "If"):
            continue
        steps[index][_share(event)] += event["dur"] / 1e3
        if index == 0:
            operations += _operations(event["args"])
    return {s: statistics.median(c[s] for c in steps) for s in SHARES}, operations


def _share(event: dict[str, Any]) -> str:
    name, op_type = event["name"], event["args"]["op_name"]
    if name.startswith(OPTIMIZER):
        return "optimizer"
    if op_type in CONVOLUTIONS:
        return "convolution"
    if op_type in (*PRODUCTS, *RECURRENT):
        return "products"
    return "layout" if op_type in LAYOUT else "elementwise"


def _operations(event: dict[str, Any]) -> float:
    """Floating-point operations of a convolution or a product, from the sizes that it saw."""
    inputs, outputs = (_sizes(event[key]) for key in ("input_type_shape", "output_type_shape"))
    op_type = event["op_name"]
    if op_type == "Winograd":
        images, channels, high, wide = outputs[0]
        tiles = images * math.ceil(high / 2) * math.ceil(wide / 2)
        return 2.0 * 16 * tiles * channels * inputs[0][1]
    if op_type == "KernelGradient":
        plain = 2.0 * math.prod(outputs[0]) * math.prod(inputs[1]) / inputs[1][1]
        # without steps, results are smaller than images by less than the kernel
        tiled = outputs[0][2:] == [3, 3] and inputs[1][2] >= inputs[0][2] - 2
        return plain * 16 / 36 if tiled else plain
    if op_type == "Recurrence":
        steps, rows, _ = next(size for size in inputs if len(size) == 3)
        return 2.0 * steps * rows * sum(math.prod(size) for size in inputs if len(size) == 1)
    if op_type in CONVOLUTIONS:
        # every element of the smaller side meets a kernel of all channels of one group
        pixels = inputs[0] if op_type == "ConvTranspose" else outputs[0]
        return 2.0 * math.prod(pixels) * math.prod(inputs[1][1:])
    if op_type in PRODUCTS and len(inputs) > 1:
        count = math.prod(outputs[0])
        # (a, k) by (k, b) gives (a, b): abk is the root of ak · kb · ab, whatever is transposed
        left, right = math.prod(inputs[0]), math.prod(inputs[1])
        batches = math.prod(outputs[0][:-2]) if len(inputs[1]) > 2 else 1
        return 2.0 * math.sqrt(left * right * count / max(batches, 1))
    return 0.0


def _sizes(tensors: list[dict[str, list[int]]]) -> list[list[int]]:
    return [next(iter(t.values()), []) for t in tensors]


def product_rate(threads: int) -> float:
    """Floating-point operations per second of a large product in onnxruntime."""
    model = parse_model(
        f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[{SIZE},{SIZE}] a, float[{SIZE},{SIZE}] b) => (float[{SIZE},{SIZE}] c) {{
        c = MatMul(a, b)
        }}"""
    )
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    a = np.random.default_rng(0).normal(size=(SIZE, SIZE)).astype(np.float32)
    return 2.0 * SIZE**3 / _median(lambda: session.run(None, {"a": a, "b": a}), REPEATS)


def processor() -> str:
    """The name of the processor, and the widest instructions that it has."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    pairs = [line.split(":", 1) for line in text.splitlines() if ":" in line]
    values = {key.strip(): value.strip() for key, value in pairs}
    flags = values.get("flags", "").split()
    names = {"amx_tile": "AMX", "avx512f": "AVX-512", "avx2": "AVX2"}
    wide = [text for flag, text in names.items() if flag in flags][:2]
    name = values.get("model name", "unknown processor")
    if not any(c.isdigit() for c in name) and "cpu family" in values:  # a virtual machine hides it
        name += f", family {values['cpu family']}"
    return f"{name} ({', '.join(wide)})" if wide else name
