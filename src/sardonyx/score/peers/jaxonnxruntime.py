"""jaxonnxruntime: the model as a function of jax; gradients by jax.vjp."""

from importlib.metadata import version as version_of

import jax
import numpy
import onnx
from jaxonnxruntime import call_onnx, config

# As in the project's own run of the official suite.
config.update("jaxort_only_allow_initializers_as_static_args", False)
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "allow")


def version():
    return version_of("jaxonnxruntime")


def run(model, inputs):
    arguments = list(inputs.values())
    function, params = call_onnx.call_onnx_model(onnx.load(model), arguments)
    return [_plain(value) for value in function(params, arguments)]


def _plain(value):
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if value is None else numpy.asarray(value)


def gradient(model, inputs, seeds, wrt):
    proto = onnx.load(model)
    outputs = [output.name for output in proto.graph.output]
    function, params = call_onnx.call_onnx_model(proto, list(inputs.values()))

    def objective(*variables):
        feeds = {**inputs, **dict(zip(wrt, variables))}
        results = dict(zip(outputs, function(params, list(feeds.values()))))
        return sum(jax.numpy.sum(results[name] * seed) for name, seed in seeds.items())

    places = tuple(range(len(wrt)))
    gradients = jax.grad(objective, places)(*(jax.numpy.asarray(inputs[n]) for n in wrt))
    return {name: numpy.asarray(value) for name, value in zip(wrt, gradients)}
