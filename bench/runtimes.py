"""Milliseconds of a training step on the engines that are installed: `python bench/runtimes.py`.

The same record, the same batch; the best of 20 steps after two that compile. `engine="auto"` takes
the fastest of them in the same way.
"""

from __future__ import annotations

import time
import warnings

import numpy as np
from onnx import parser

import sardonyx as sx
from sardonyx import plugins

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


def milliseconds(model: sx.Model, engine: str, batch: dict[str, np.ndarray]) -> float:
    rep = sx.prepare_training(model, engine)
    times = []
    for _ in range(22):
        started = time.perf_counter()
        rep.step(batch)
        times.append(time.perf_counter() - started)
    return min(times[2:]) * 1e3


def main() -> None:
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(1)
    engines = [name for name in plugins.usual() if name != "numpy"]
    print("| network | " + " | ".join(engines) + " |")
    print("|---|" + "---:|" * len(engines))
    for name, (taken, _, _) in NETWORKS.items():
        net = sx.trainable(network(name), "cross_entropy", optimizer=sx.optim.adamw(1e-3))
        labels = rng.integers(0, 10, BATCH)
        batch = {"x": rng.normal(size=(BATCH, *taken)).astype(np.float32), "label": labels}
        times = [milliseconds(net, engine, batch) for engine in engines]
        print(f"| {name} | " + " | ".join(f"{t:.2f}" for t in times) + " |")


if __name__ == "__main__":
    main()
