"""The main job in a minute: an ONNX file goes in, is trained on stock onnxruntime, and an ONNX file
comes out.

Handwritten digits (scikit-learn's), a small convolutional network that exists only as ONNX, and at
the end a plain `onnxruntime.InferenceSession` that knows nothing of sardonyx.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits

import sardonyx as sx

OUT = Path("out/demo")


def network(seed: int = 0) -> onnx.ModelProto:
    """Two convolutions with batch normalization, a pool and a linear layer, for 8×8 images."""
    rng = np.random.default_rng(seed)
    tensors: list[onnx.TensorProto] = []
    nodes: list[onnx.NodeProto] = []

    def weight(name: str, *shape: int) -> str:
        fan = int(np.prod(shape[1:]))
        tensors.append(
            numpy_helper.from_array(
                (rng.normal(size=shape) * np.sqrt(2 / fan)).astype(np.float32), name
            )
        )
        return name

    def vector(name: str, size: int, value: float) -> str:
        tensors.append(numpy_helper.from_array(np.full(size, value, np.float32), name))
        return name

    x, channels = "image", 1
    for i, width in enumerate((16, 32)):
        name = f"conv{i}"
        nodes.append(
            helper.make_node(
                "Conv",
                [x, weight(f"{name}.weight", width, channels, 3, 3)],
                [name],
                name,
                pads=[1] * 4,
            )
        )
        statistics = [
            vector(f"bn{i}.{kind}", width, kind in ("scale", "var"))
            for kind in ("scale", "bias", "mean", "var")
        ]
        nodes.append(
            helper.make_node("BatchNormalization", [name, *statistics], [f"bn{i}"], f"bn{i}")
        )
        nodes.append(helper.make_node("Relu", [f"bn{i}"], [f"relu{i}"], f"relu{i}"))
        x, channels = f"relu{i}", width
    nodes += [
        helper.make_node("MaxPool", [x], ["pool"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["pool"], ["flat"], "flat"),
        helper.make_node(
            "Gemm",
            ["flat", weight("head.weight", 10, 512), vector("head.bias", 10, 0.0)],
            ["scores"],
            "head",
            transB=1,
        ),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 10])],
        tensors,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    digits = load_digits()
    images = (digits.images[:, None] / 16).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(images))
    train, test = order[:1437], order[1437:]
    onnx.save(network(), OUT / "digits.onnx")
    print(f"1. an inference model: {OUT / 'digits.onnx'} (opset 17, untrained)")

    run = sx.train(
        OUT / "digits.onnx",
        {"image": images[train], "label": digits.target[train]},
        epochs=12,
        validation=0.1,
        optimizer=sx.optim.adamw(3e-3),
        output=OUT / "tuned.onnx",
        display="auto",
    )
    report = sx.write_report(run, OUT / "report.html")
    print(
        f"2. trained on stock onnxruntime {ort.__version__}: {run.position.step} steps in "
        f"{run.times['total']:.1f} s"
    )

    session = ort.InferenceSession(str(OUT / "tuned.onnx"))
    (scores,) = session.run(None, {"image": images[test]})
    accuracy = float((scores.argmax(1) == digits.target[test]).mean())
    print(
        f"3. served by a plain onnxruntime.InferenceSession: {accuracy:.1%} of {len(test)} unseen "
        f"digits right"
    )
    print(f"4. the report: {report}")
    print(
        f"next: sardonyx inspect {OUT / 'tuned.onnx'}, or sardonyx train your.onnx your.npz -o "
        f"tuned.onnx"
    )
    if accuracy <= 0.97:
        sys.exit(f"expected more than 97 %, got {accuracy:.1%}")


if __name__ == "__main__":
    main()
