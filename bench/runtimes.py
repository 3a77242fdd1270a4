"""Milliseconds of a training step on the engines that are installed: `python bench/runtimes.py`.

The same record, the same batch; the best of 20 steps after two that compile, and in brackets the
processor's time of a step, all threads together, which other work on the machine changes less.
The last column is what `engine="auto"` takes, after a trial of its own.

--engines onnxruntime,openvino    only these
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np
from onnx import parser

import sardonyx as sx
from sardonyx import plugins
from sardonyx.train.auto import fastest

BATCH = 32
# input, weights, nodes
NETWORKS = {
    "MLP": (
        (64,),
        {"a": (64, 256), "b": (256, 256), "c": (256, 10)},
        "h = MatMul(x, a) i = Relu(h) j = MatMul(i, b) k = Relu(j) y = MatMul(k, c)",
    ),
    "CNN": (
        (3, 32, 32),
        {"a": (16, 3, 3, 3), "b": (32, 16, 3, 3), "c": (32, 10)},
        "h = Conv<pads=[1,1,1,1]>(x, a) i = Relu(h) "
        "j = MaxPool<kernel_shape=[2,2], strides=[2,2]>(i) k = Conv<pads=[1,1,1,1]>(j, b) "
        "l = Relu(k) m = GlobalAveragePool(l) n = Flatten(m) y = MatMul(n, c)",
    ),
    "CNN, 5 x 5 with strides": (
        (3, 48, 48),
        {"a": (24, 3, 5, 5), "b": (48, 24, 5, 5), "c": (48, 10)},
        "h = Conv<strides=[2,2], pads=[2,2,2,2]>(x, a) i = Relu(h) "
        "k = Conv<strides=[2,2], pads=[2,2,2,2]>(i, b) l = Relu(k) "
        "m = GlobalAveragePool(l) n = Flatten(m) y = MatMul(n, c)",
    ),
    "transposed convolutions": (
        (8, 16, 16),
        {"a": (8, 8, 4, 4), "b": (8, 8, 4, 4), "c": (8, 10)},
        "h = ConvTranspose<strides=[2,2], pads=[1,1,1,1]>(x, a) i = Relu(h) "
        "k = ConvTranspose<strides=[2,2], pads=[1,1,1,1]>(i, b) l = Relu(k) "
        "m = GlobalAveragePool(l) n = Flatten(m) y = MatMul(n, c)",
    ),
}


def sizes(shape: tuple[int, ...]) -> str:
    return ",".join(map(str, shape))


def network(name: str) -> sx.Model:
    """A network with random weights."""
    rng = np.random.default_rng(0)
    taken, weights, nodes = NETWORKS[name]
    values = []
    for weight, shape in weights.items():
        numbers = ",".join(f"{x:.4g}" for x in rng.normal(scale=0.1, size=shape).reshape(-1))
        values.append(f"float[{sizes(shape)}] {weight} = {{{numbers}}}")
    ends = f"g (float[N,{sizes(taken)}] x) => (float[N,10] y) <{', '.join(values)}>"
    text = f'<ir_version: 8, opset_import: ["": 17]>\n{ends} {{{nodes}}}'
    return sx.load(parser.parse_model(text))


def milliseconds(model: sx.Model, engine: str, batch: dict[str, np.ndarray]) -> str:
    rep = sx.prepare_training(model, engine)
    for _ in range(2):
        rep.step(batch)
    times, processor = [], time.process_time()
    for _ in range(20):
        started = time.perf_counter()
        rep.step(batch)
        times.append(time.perf_counter() - started)
    each = (time.process_time() - processor) / len(times)
    return f"{min(times) * 1e3:.2f} ({each * 1e3:.2f})"


def main() -> None:
    warnings.simplefilter("ignore")
    parser_of_options = argparse.ArgumentParser(description=__doc__)
    parser_of_options.add_argument("--engines", default="")
    chosen = parser_of_options.parse_args().engines
    rng = np.random.default_rng(1)
    usual = [name for name in plugins.usual() if name != "numpy"]
    engines = chosen.split(",") if chosen else usual
    print("| network | " + " | ".join(engines) + ' | `"auto"` |')
    print("|---|" + "---:|" * len(engines) + "---|")
    for name, (taken, _, _) in NETWORKS.items():
        net = sx.trainable(network(name), "cross_entropy", optimizer=sx.optim.sgd(1e-3))
        labels = rng.integers(0, 10, BATCH)
        batch = {"x": rng.normal(size=(BATCH, *taken)).astype(np.float32), "label": labels}
        times = [milliseconds(net, engine, batch) for engine in engines]
        _, (_, best, _) = fastest(net, batch, engines)
        print(f"| {name} | " + " | ".join(times) + f" | {best} |", flush=True)


if __name__ == "__main__":
    main()
