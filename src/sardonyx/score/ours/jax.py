"""sardonyx on jax: gradients by jax.grad, through the converted function."""

import numpy as np

import sardonyx
from sardonyx.engines.jax import prepare, prepare_training
from sardonyx.engines.jax.xp import jax
from sardonyx.errors import EngineError
from sardonyx.score import ours
from sardonyx.score.ours import used  # noqa: F401  (the worker asks for it)


def version():
    return ours.version("jax")


def run(model, inputs):
    return prepare(sardonyx.load(model), **ours.SETTINGS).run(inputs)


def gradient(model, inputs, seeds, wrt):
    loaded = sardonyx.load(model)
    apply, params = sardonyx.to_jax(loaded)
    outputs = [v.name for v in loaded.outputs]

    def objective(chosen):
        found = apply(params, **{**inputs, **chosen})
        found = dict(zip(outputs, found if isinstance(found, tuple) else (found,), strict=True))
        return sum(jax.numpy.sum(found[name] * seed) for name, seed in seeds.items())

    with jax.enable_x64(True):
        chosen = {name: jax.numpy.asarray(inputs[name]) for name in wrt}
        try:
            found = jax.jit(jax.grad(objective))(chosen)  # one compilation, not one per primitive
        except (EngineError, jax.errors.JAXTypeError):  # sizes that depend on values
            found = jax.grad(objective)(chosen)
        return {name: np.asarray(value) for name, value in found.items()}


def train(model, batches):
    return ours.train(prepare_training, model, batches)
