"""sardonyx on tensorflow: gradients by a tape, through the converted module."""

import numpy as np

import sardonyx
from sardonyx.engines.tensorflow import prepare, prepare_training
from sardonyx.engines.tensorflow.xp import tf
from sardonyx.score import ours
from sardonyx.score.ours import used  # noqa: F401  (the worker asks for it)


def version():
    return ours.version("tensorflow-cpu")


def run(model, inputs):
    return prepare(sardonyx.load(model), **ours.SETTINGS).run(inputs)


def gradient(model, inputs, seeds, wrt):
    module = sardonyx.to_tensorflow(model)
    tensors = {name: tf.convert_to_tensor(value) for name, value in inputs.items()}
    with tf.GradientTape() as tape:
        for name in wrt:
            tape.watch(tensors[name])
        outputs = module(*(tensors[name] for name in module.input_names))
        outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        by_name = dict(zip(module.output_names, outputs, strict=True))
        objective = sum(tf.reduce_sum(by_name[n] * seed) for n, seed in seeds.items())
    found = tape.gradient(
        objective,
        [tensors[name] for name in wrt],
        unconnected_gradients=tf.UnconnectedGradients.ZERO,
    )
    return {n: np.asarray(tf.convert_to_tensor(g)) for n, g in zip(wrt, found, strict=True)}


def train(model, batches):
    return ours.train(prepare_training, model, batches)
