"""sardonyx on torch: gradients by torch's own autograd, through the converted module."""

import numpy as np

import sardonyx
from sardonyx.engines.torch.xp import arrays, torch
from sardonyx.score import ours
from sardonyx.score.ours import used  # noqa: F401  (the worker asks for it)

torch.set_num_threads(1)
XP = arrays("cpu")
version, run, train = ours.functions("torch")


def gradient(model, inputs, seeds, wrt):
    tensors = {name: XP.asarray(value) for name, value in inputs.items()}
    for name in wrt:
        tensors[name].requires_grad_()
    outputs = ours.outputs_of(sardonyx.to_torch(model), tensors)
    connected = {name: seed for name, seed in seeds.items() if outputs[name].requires_grad}
    gradients = torch.autograd.grad(
        [outputs[name] for name in connected],
        [tensors[name] for name in wrt],
        [XP.asarray(seed) for seed in connected.values()],
        allow_unused=True,
    )
    return {
        name: np.zeros_like(inputs[name]) if g is None else XP.to_numpy(g, inputs[name].dtype)
        for name, g in zip(wrt, gradients, strict=True)
    }
