"""Recurrent layers that JAX and TensorFlow differentiate, against torch's gradients."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import onnx
import pytest
import torch

import sardonyx as sx

nn = torch.nn


class Recurrent(nn.Module):
    """Layers one after the other; the first state of the first one is a parameter."""

    def __init__(self, make: Callable[..., Any], **settings: Any) -> None:
        super().__init__()
        self.first = make(6, 5, batch_first=True, **settings)
        self.second = make(5 * (1 + self.first.bidirectional), 7, batch_first=True)
        self.head = nn.Linear(7, 3)
        count = self.first.num_layers * (1 + self.first.bidirectional)
        self.state = nn.Parameter(torch.randn(count, 1, 5))

    def forward(self, x: Any) -> Any:
        state = self.state.expand(-1, x.shape[0], -1).contiguous()
        states = (state, 0.5 * state) if isinstance(self.first, nn.LSTM) else state
        y, (last, *_) = self.second(self.first(x, states)[0])
        return self.head(y.mean(1) + last.reshape(-1, 7)[-x.shape[0] :])


LAYERS: dict[str, Callable[[], Recurrent]] = {
    "LSTM": lambda: Recurrent(nn.LSTM),
    "LSTM, both ways, two layers": lambda: Recurrent(nn.LSTM, bidirectional=True, num_layers=2),
    "RNN, both ways": lambda: Recurrent(nn.RNN, bidirectional=True, nonlinearity="relu"),
    "GRU": lambda: Recurrent(nn.GRU),
}


def exported(module: nn.Module, x: Any) -> sx.Model:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (x,), file, dynamo=False, input_names=["x"],
                          dynamic_axes={"x": {0: "batch"}})  # fmt: skip
    return sx.load(onnx.load_from_string(file.getvalue()))


@pytest.mark.parametrize("engine", ["jax", "tensorflow"])
@pytest.mark.parametrize("name", LAYERS)
def test_gradients(name: str, engine: str) -> None:
    torch.manual_seed(0)
    module = LAYERS[name]()
    x, labels = torch.randn(4, 9, 6), torch.randn(4, 3)
    net = sx.trainable(exported(module, x), "mse", sx.optim.sgd(1.0))
    rep = sx.prepare_training(net, engine)
    assert rep.ways == ["the framework differentiates the forward part"]
    before = rep.state()
    rep.step({"x": x.numpy(), "label": labels.numpy()})
    change = {n: before[n] - value for n, value in rep.state().items()}
    nn.functional.mse_loss(module(x), labels).backward()
    gradients = {n: p.grad.numpy() for n, p in module.named_parameters()}
    # the exporter orders gates otherwise: the weights of a layer under names of its own
    for key in ("state", "head.weight", "head.bias"):
        np.testing.assert_allclose(change[key], gradients[key], rtol=1e-3, atol=1e-6, err_msg=key)
    ours, theirs = (
        sum(float((v.astype(np.float64) ** 2).sum()) for v in values.values())
        for values in (change, gradients)
    )
    assert ours == pytest.approx(theirs, rel=1e-4)


def test_the_gradient_of_the_matrix_is_no_sum_over_steps() -> None:
    from sardonyx.engines.jax.backend import TrainingRep

    module = nn.LSTM(6, 5, batch_first=True)
    model = exported(module, torch.randn(4, 90, 6))
    net = sx.trainable(model, "mse", sx.optim.sgd(1.0), prediction=model.outputs[0].name)
    rep = TrainingRep(net)
    (step,) = rep.steps
    feeds = {"x": np.zeros((4, 90, 6), np.float32), "label": np.zeros((4, 90, 5), np.float32)}
    with rep.context():
        state = {n: rep.variables[n].value for n in step.graph.state}
        program = jax.make_jaxpr(step.function)(state, {**step.hyper, **feeds})
    added = re.findall(r"f32\[([\d,]+)\] = add_any", str(program))
    assert added and "5,20" not in added
