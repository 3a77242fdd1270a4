"""sardonyx on numpy: gradients as ONNX models."""

import sardonyx
from sardonyx.engines.numpy import prepare, prepare_training
from sardonyx.score import ours
from sardonyx.score.ours import used  # noqa: F401  (the worker asks for it)


def version():
    return ours.version("numpy")


def run(model, inputs):
    return prepare(sardonyx.load(model), **ours.SETTINGS).run(inputs)


def gradient(model, inputs, seeds, wrt):
    return ours.onnx_gradient(prepare, model, inputs, seeds, wrt)


def train(model, batches):
    return ours.train(prepare_training, model, batches)
