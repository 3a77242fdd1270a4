"""Our matrix product inside onnxruntime against onnxruntime's own and torch's, in GFLOP/s.

    python bench/products.py [--threads 1] [--seconds 0.3]

The kernel is `engines/onnxruntime/kernels/product.h`; `products.py` beside it decides by this table
which products of a step it computes. Sizes are those of the networks of bench/train.py. All three
take turns; each figure is of the fastest run, in CPU time with one thread, otherwise wall
clock. "T" marks a transposed matrix. A result that differs by more than rounding ends the run.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch
from onnx import TensorProto, helper

sys.path.insert(0, str(Path(__file__).parent))

from train_profile import processor

from sardonyx.engines.onnxruntime.kernels.library import library
from sardonyx.engines.onnxruntime.kernels.program import DOMAIN, Programs

SIZES = (
    (1024, 1024, 256), (1024, 256, 1024), (1024, 768, 256), (256, 1024, 1024), (512, 784, 64),
    (64, 512, 784), (2048, 1024, 64), (1024, 8000, 384), (1000, 1000, 1000),
    (8, 3072, 768), (32, 3072, 768), (32, 768, 3072), (128, 3072, 768),
)  # fmt: skip
FORMS = {"A B": (0, 0), "A Bᵀ": (0, 1), "Aᵀ B": (1, 0)}


def session(form: tuple[int, int], path: str, ours: bool, threads: int) -> ort.InferenceSession:
    ends = {n: helper.make_tensor_value_info(n, TensorProto.FLOAT, [None, None]) for n in "abc"}
    if ours:
        node = helper.make_node("Product", ["a", "b"], ["c"], domain=DOMAIN, product=(*form, 0))
    else:
        node = helper.make_node("Gemm", ["a", "b"], ["c"], transA=form[0], transB=form[1])
    graph = helper.make_graph([node], "g", [ends["a"], ends["b"]], [ends["c"]])
    versions = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)]
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    options.register_custom_ops_library(path)
    data = helper.make_model(graph, opset_imports=versions, ir_version=10).SerializeToString()
    return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def rates(size: tuple[int, int, int], form: tuple[int, int], arguments: argparse.Namespace) -> list:
    """GFLOP/s of onnxruntime, ours and torch."""
    rows, columns, depth = size
    rng = np.random.default_rng(0)
    a = rng.normal(size=(depth, rows) if form[0] else (rows, depth)).astype(np.float32)
    b = rng.normal(size=(columns, depth) if form[1] else (depth, columns)).astype(np.float32)
    left = torch.tensor(a).t() if form[0] else torch.tensor(a)
    right = torch.tensor(b).t() if form[1] else torch.tensor(b)
    result = torch.empty(rows, columns)
    calls = [lambda: torch.mm(left, right, out=result)]
    arrays = []
    for ours in (True, False):
        array = np.empty((rows, columns), np.float32)
        runner = session(form, arguments.path, ours, arguments.threads)
        binding = runner.io_binding()
        binding.bind_cpu_input("a", a)
        binding.bind_cpu_input("b", b)
        binding.bind_ortvalue_output("c", ort.OrtValue.ortvalue_from_numpy(array))
        arrays.append(array)
        calls.insert(0, lambda r=runner, i=binding: r.run_with_iobinding(i))
    clock = time.process_time if arguments.threads == 1 else time.perf_counter
    best = [float("inf")] * 3
    end = time.perf_counter() + arguments.seconds
    while time.perf_counter() < end or best[0] == float("inf"):
        for i, call in enumerate(calls):
            begin = clock()
            call()
            best[i] = min(best[i], clock() - begin)
    for array in arrays:
        if np.abs(array - result.numpy()).max() > 1e-5 * depth:
            raise SystemExit(f"{size} {form}: results differ")
    return [2e-9 * rows * columns * depth / seconds for seconds in best]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.3)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    arguments.path = library(Programs().source())
    if arguments.path is None:
        raise SystemExit("there is no C compiler here")
    versions = [f"{n} {importlib.metadata.version(n)}" for n in ("onnxruntime", "torch")]
    print(f"{processor()}, threads: {arguments.threads}, {', '.join(versions)}\n")
    print("| rows × columns × depth | form | onnxruntime | ours | torch | ours / onnxruntime |")
    print("|---|---|---|---|---|---|")
    for size in SIZES:
        for name, form in FORMS.items():
            theirs, ours, peer = rates(size, form, arguments)
            text = " × ".join(map(str, size))
            row = [text, name, *(f"{rate:.0f}" for rate in (theirs, ours, peer))]
            print(f"| {' | '.join(row)} | {ours / theirs:.2f} |")


if __name__ == "__main__":
    main()
