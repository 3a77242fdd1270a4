"""Training records as another tool would write them: texts, and how to run them in tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper
from onnx.parser import parse_graph, parse_model

from sardonyx.engines.onnxruntime import prepare_training
from sardonyx.model import Model, from_proto

SERVED = """<ir_version: 8, opset_import: ["": 17, "ai.onnx.preview.training": 1]>
served (float[N,2] x) => (float[N,1] y) <float[2,1] w = {0.5, -1}> { y = MatMul(x, w) }"""
STEP = """train (float[N,1] label, float rate) => (float loss, float[2,1] w_new)
<float rate = {0.1}> {
    d = Sub(y, label)
    s = Mul(d, d)
    loss = ReduceMean<keepdims = 0>(s)
    [grad] g = ai.onnx.preview.training.Gradient<xs = ["w"], y = "loss">(w)
    u = Mul(g, rate)
    w_new = Sub(w, u)
}"""
START = "start () => (float[2,1] w0) { w0 = RandomNormal<shape = [2, 1], scale = 2.0>() }"
TRAIN = "ai.onnx.preview.training"


def made(
    algorithm: str = STEP,
    updates: Sequence[tuple[str, str]] = (("w", "w_new"),),
    start: str | None = None,
    starts: Sequence[tuple[str, str]] = (),
    served: str = SERVED,
) -> onnx.ModelProto:
    """A model with one record, by `onnx.helper.make_training_info`."""
    model = parse_model(served)
    add(model, algorithm, updates, start, starts)
    return model


def add(
    model: onnx.ModelProto,
    algorithm: str,
    updates: Sequence[tuple[str, str]],
    start: str | None = None,
    starts: Sequence[tuple[str, str]] = (),
) -> None:
    model.training_info.append(
        helper.make_training_info(
            parse_graph(algorithm),
            list(updates),
            parse_graph(start) if start else onnx.GraphProto(name="none"),
            list(starts),
        )
    )


X = np.array([[1, 2], [3, -1], [0.5, 4]], np.float32)
Y = np.array([[1], [0], [2]], np.float32)
BATCH = {"x": X, "label": Y}
W = np.array([[0.5], [-1]], np.float32)


def gradient(w: np.ndarray, x: np.ndarray = X, y: np.ndarray = Y) -> np.ndarray:
    """d mean((x w - y)²) / dw, in float64."""
    x, y, w = (a.astype(np.float64) for a in (x, y, w))
    return 2 * x.T @ (x @ w - y) / len(x)


def steps(
    model: onnx.ModelProto | Model, count: int = 1, **feeds: np.ndarray
) -> dict[str, np.ndarray]:
    rep = prepare_training(model, threads=1)
    for _ in range(count):
        rep.step({**BATCH, **feeds})
    return rep.state()


def info_of(model: onnx.ModelProto) -> onnx.TrainingInfoProto:
    return model.training_info[0]


def node(model: onnx.ModelProto, name: str) -> onnx.NodeProto:
    return next(n for n in info_of(model).algorithm.node if n.name == name)


def swap(m: onnx.ModelProto) -> None:
    pair = info_of(m).update_binding[0]
    pair.key, pair.value = pair.value, pair.key


def start_reads_w(m: onnx.ModelProto) -> None:
    graph = "start () => (float[2,1] w0) { w0 = RandomNormalLike(w) }"
    info_of(m).initialization.CopyFrom(parse_graph(graph))


def unscanned(model: onnx.ModelProto) -> Model:
    """The model without the scan of `sx.load`, which finds some of the defects itself."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return from_proto(copy)
