"""onnx2torch: the model as a module of torch; gradients by torch's autograd."""

from importlib.metadata import version as version_of

import ml_dtypes
import numpy
import onnx
import onnx2torch
import torch

torch.set_num_threads(1)


def version():
    return version_of("onnx2torch")


def run(model, inputs):
    with torch.no_grad():
        return _plain(onnx2torch.convert(model).eval()(*map(_tensor, inputs.values())))


def gradient(model, inputs, seeds, wrt):
    tensors = {name: _tensor(value) for name, value in inputs.items()}
    for name in wrt:
        tensors[name].requires_grad_()
    outputs = onnx2torch.convert(model).eval()(*tensors.values())
    outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    names = [output.name for output in onnx.load(model).graph.output]
    variables = [
        (value, seeds[name])
        for name, value in zip(names, outputs)
        if name in seeds and value.requires_grad
    ]
    gradients = torch.autograd.grad(
        [value for value, _ in variables],
        [tensors[name] for name in wrt],
        [_tensor(seed) for _, seed in variables],
        allow_unused=True,
    )
    zeros = (torch.zeros_like(tensors[name]) for name in wrt)
    return {n: _plain(z if g is None else g) for n, g, z in zip(wrt, gradients, zeros)}


def _tensor(value):
    if isinstance(value, list):
        return [_tensor(v) for v in value]
    if value.dtype.name == "bfloat16":
        return torch.tensor(value.astype(numpy.float32)).to(torch.bfloat16)
    return torch.tensor(value)


def _plain(thing):
    if isinstance(thing, (list, tuple)):
        return [_plain(value) for value in thing]
    if isinstance(thing, torch.Tensor) and thing.dtype == torch.bfloat16:
        return thing.float().numpy().astype(ml_dtypes.bfloat16)
    return thing.numpy() if isinstance(thing, torch.Tensor) else numpy.asarray(thing)
