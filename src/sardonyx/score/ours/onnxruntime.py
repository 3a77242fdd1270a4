"""sardonyx on onnxruntime: gradients as ONNX models."""

import sardonyx
from sardonyx.engines.onnxruntime import prepare, prepare_training
from sardonyx.score import ours
from sardonyx.score.ours import used  # noqa: F401  (the worker asks for it)


def version():
    return ours.version("onnxruntime")


def run(model, inputs):
    return prepare(sardonyx.load(model)).run(inputs)


def gradient(model, inputs, seeds, wrt):
    return ours.onnx_gradient(prepare, model, inputs, seeds, wrt)


def train(model, batches):
    return ours.train(prepare_training, model, batches)
