"""Write the whole training of a small classifier as one file, and the rows to train on.

python make.py FOLDER
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnx

import sardonyx as sx

ROWS = 500


def model() -> onnx.ModelProto:
    """Two layers over two numbers."""
    rng = np.random.default_rng(0)
    weights = {
        "fc0.weight": rng.normal(size=(32, 2)) / np.sqrt(2),
        "fc0.bias": np.zeros(32),
        "fc1.weight": rng.normal(size=(2, 32)) / np.sqrt(32),
        "fc1.bias": np.zeros(2),
    }
    make = onnx.helper.make_node
    graph = onnx.helper.make_graph(
        [
            make("Gemm", ["x", "fc0.weight", "fc0.bias"], ["h"], transB=1),
            make("Tanh", ["h"], ["a"]),
            make("Gemm", ["a", "fc1.weight", "fc1.bias"], ["scores"], transB=1),
        ],
        "two_moons",
        [onnx.helper.make_tensor_value_info("x", 1, ["N", 2])],
        [onnx.helper.make_tensor_value_info("scores", 1, ["N", 2])],
        [onnx.numpy_helper.from_array(a.astype(np.float32), n) for n, a in weights.items()],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])


def rows() -> dict[str, np.ndarray]:
    """Two half-circles, one per class."""
    rng = np.random.default_rng(1)
    label = rng.integers(0, 2, ROWS)
    angle = rng.uniform(0, np.pi, ROWS) + np.pi * label
    x = np.stack([np.cos(angle) + label, np.sin(angle) + label / 2], 1)
    return {"x": (x + rng.normal(size=x.shape) / 10).astype(np.float32), "label": label}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    settings = {"validation": 0.2, "patience": 3, "standardize": True}
    how = {"loss": "cross_entropy", "optimizer": sx.optim.adamw(0.03)}
    print(sx.export_training(model(), folder / "whole.onnx", **settings, **how))
    # onnxruntime-web has no inputs that may be left out
    print(sx.export_training(model(), folder / "web.onnx", defaults=False, **settings, **how))
    data = rows()
    np.savez(folder / "data.npz", **data)
    plain = {"x": data["x"].ravel().tolist(), "label": data["label"].tolist()}
    (folder / "data.json").write_text(json.dumps(plain))
    # for languages without a reader of either: all numbers of x, then all labels
    data["x"].tofile(folder / "x.bin")
    data["label"].astype(np.int64).tofile(folder / "label.bin")
