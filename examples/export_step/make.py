"""Make a small classifier trainable, export its step, and write the batches that both trainers use.

python make.py FOLDER
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnx

import sardonyx as sx

BATCHES, ROWS = 60, 32


def model() -> onnx.ModelProto:
    """Two layers, with dropout between them while training."""
    rng = np.random.default_rng(0)
    weights = {
        "fc0.weight": rng.normal(size=(32, 2)) / np.sqrt(2),
        "fc0.bias": np.zeros(32),
        "fc1.weight": rng.normal(size=(2, 32)) / np.sqrt(32),
        "fc1.bias": np.zeros(2),
        "ratio": np.asarray(0.1),
    }
    make = onnx.helper.make_node
    graph = onnx.helper.make_graph(
        [
            make("Gemm", ["x", "fc0.weight", "fc0.bias"], ["h"], transB=1),
            make("Tanh", ["h"], ["a"]),
            make("Dropout", ["a", "ratio"], ["d"]),
            make("Gemm", ["d", "fc1.weight", "fc1.bias"], ["scores"], transB=1),
        ],
        "two_moons",
        [onnx.helper.make_tensor_value_info("x", 1, ["N", 2])],
        [onnx.helper.make_tensor_value_info("scores", 1, ["N", 2])],
        [onnx.numpy_helper.from_array(a.astype(np.float32), n) for n, a in weights.items()],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])


def batches() -> list[dict[str, dict[str, list]]]:
    """Two half-circles, one per class, as plain numbers that any language reads."""
    rng = np.random.default_rng(1)
    made = []
    for _ in range(BATCHES):
        label = rng.integers(0, 2, ROWS)
        angle = rng.uniform(0, np.pi, ROWS) + np.pi * label
        x = (
            np.stack([np.cos(angle) + label, np.sin(angle) + label / 2], 1)
            + rng.normal(size=(ROWS, 2)) / 10
        )
        x = x.astype(np.float32)
        made.append(
            {
                "x": {"shape": list(x.shape), "data": x.ravel().tolist()},
                "label": {"shape": [ROWS], "data": label.tolist()},
            }
        )
    return made


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    net = sx.trainable(sx.load(model()), "cross_entropy", sx.optim.adamw(0.03))
    print(sx.export_step(net, folder))
    (folder / "batches.json").write_text(json.dumps(batches()))
    sx.save(net, folder / "trainable.onnx")
