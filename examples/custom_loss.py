"""A loss of your own: as a Python function, as an ONNX function, as an ONNX file; and classes that
weigh more.

The data is lopsided: one row in twenty belongs to the class that matters. Plain cross entropy
mostly answers with the common classes; weights, or the focal loss written here, find the rare one.
The focal loss is the same numbers in all three forms.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

import sardonyx as sx

OUT = Path("out/custom_loss")
CLASSES, RARE = 3, 2
WEIGHTS = [1.0, 1.0, 10.0]

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
net (float[N, 2] x) => (float[N, 3] scores)
<float[2, 3] w = {0, 0, 0, 0, 0, 0}, float[3] b = {0, 0, 0}>
{ scores = Gemm(x, w, b) }"""

FOCAL = """<domain: "example", opset_import: ["" : 17]>
focal (z, y) => (loss)
{
  shape = Constant <value_ints = [3]> ()
  pair = Constant <value = float[2] {0, 1}> ()
  classes = OneHot <axis = 1> (y, shape, pair)
  logp = LogSoftmax <axis = 1> (z)
  picked = Mul(classes, logp)
  last = Constant <value_ints = [1]> ()
  log = ReduceSum <keepdims = 0> (picked, last)
  p = Exp(log)
  one = Constant <value = float {1}> ()
  miss = Sub(one, p)
  square = Mul(miss, miss)
  part = Mul(square, log)
  mean = ReduceMean <keepdims = 0> (part)
  loss = Neg(mean)
}"""

FOCAL_FILE = """<ir_version: 8, opset_import: ["" : 17]>
focal (float[N, 3] z, int64[N] y) => (float loss)
""" + FOCAL[FOCAL.index("{") :]

LABEL = [sx.loss.Label("classes")]  # integers, one for each row


def focal(op, z, y):
    """-(1 - p)² log p of the right class: what is nearly right counts little."""
    with op:
        picked = op.OneHot(y, [CLASSES], op.const(np.array([0, 1], np.float32)), axis=1)
        log = op.ReduceSum(picked * op.LogSoftmax(z, axis=1), [1], keepdims=0)
        miss = 1.0 - op.Exp(log)
        return op.Neg(op.ReduceMean(miss * miss * log, keepdims=0))


def data(rows: int, seed: int) -> dict[str, np.ndarray]:
    """Three overlapping clouds, the last of them small."""
    rng = np.random.default_rng(seed)
    label = rng.choice(CLASSES, rows, p=[0.475, 0.475, 0.05])
    centres = np.array([[-1.0, 0.0], [1.0, 0.0], [0.0, 1.2]])
    return {"x": (centres[label] + rng.normal(size=(rows, 2)) * 0.6).astype("f"), "label": label}


def found(model: sx.Model, rows: dict[str, np.ndarray]) -> float:
    """The share of the rare class that the model finds."""
    answers = sx.predict(model, {"x": rows["x"]})["scores"].argmax(1)
    rare = rows["label"] == RARE
    return float((answers[rare] == RARE).mean())


def main() -> tuple[dict[str, float], dict[str, list[float]]]:
    OUT.mkdir(parents=True, exist_ok=True)
    onnx.save(onnx.parser.parse_model(FOCAL_FILE), OUT / "focal.onnx")
    losses = {
        "cross entropy": "cross_entropy",
        "weights per class": sx.loss.cross_entropy(weight=WEIGHTS),
        "focal, Python": sx.loss.custom(focal, labels=LABEL),
        "focal, ONNX function": sx.loss.graph(onnx.parser.parse_function(FOCAL), labels=LABEL),
        "focal, ONNX file": OUT / "focal.onnx",
    }
    model = sx.load(onnx.parser.parse_model(MODEL))
    shares, curves = {}, {}
    for name, loss in losses.items():
        net = sx.trainable(model, loss, sx.optim.sgd(0.3, momentum=0.9), labels=["label"])
        run = sx.train(net, data(2000, 0), epochs=4)
        shares[name], curves[name] = found(run.model, data(2000, 1)), run.losses
        print(f"{name:22} finds {shares[name]:4.0%} of the rare class")
    return shares, curves


if __name__ == "__main__":
    main()
