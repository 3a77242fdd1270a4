"""Untrained networks as torch exports them train as torch trains them.

A fresh network is full of equal tensors, which exporters merge, and of layers without weights, for
which they write constants. What is trained has to be what torch trains: no more, no less.
"""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx as sx
from sardonyx.engines.onnxruntime import prepare_training

torch = pytest.importorskip("torch")
nn = torch.nn


class Blocks(nn.Module):
    """Blocks one after the other, each added to what it reads."""

    def __init__(self, blocks: list[Any]) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(blocks), nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def block(bias: bool = True) -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 6, bias=bias), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 6, bias=bias)
    )


def copies(bias: bool = True) -> nn.Module:
    original = block(bias)
    return Blocks([copy.deepcopy(original) for _ in range(3)])


def shared() -> nn.Module:
    return Blocks([block()] * 3)


def image(*layers: Any) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Conv2d(3, 4, 3), *layers, nn.Flatten(), nn.Linear(64, 3))


def encoder() -> nn.Module:
    """The exporter leaves a bias of zeros out, so that torch must not train it either."""
    layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)
    module = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(not name.endswith("out_proj.bias"))
    return module


IMAGE = (3, 6, 6)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "GroupNorm twice": (image(nn.GroupNorm(2, 4), nn.ReLU(), nn.GroupNorm(2, 4)), IMAGE),
    "InstanceNorm without weights": (image(nn.InstanceNorm2d(4), nn.ReLU()), IMAGE),
    "LayerNorm without weights": (
        image(nn.LayerNorm([4, 4, 4], elementwise_affine=False), nn.ReLU()),
        IMAGE,
    ),
    "copies of a block": (copies, (6,)),
    "copies of a block, rows of rows": (lambda: copies(bias=False), (5, 6)),
    "one block, three times": (shared, (6,)),
    "one block, three times, rows of rows": (shared, (5, 6)),
    "encoder": (encoder, (5, 6)),
}


def exported(module: nn.Module, x: Any, newer: bool) -> sx.Model:
    module.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if newer:
            shapes = ({0: "batch"},)
            program = torch.onnx.export(module, (x,), dynamo=True, dynamic_shapes=shapes)
            return sx.load(program.model_proto)
        file = io.BytesIO()
        torch.onnx.export(module, (x,), file, dynamo=False, dynamic_axes={"x": {0: "batch"}},
                          input_names=["x"])  # fmt: skip
    return sx.load(onnx.load_from_string(file.getvalue()))


def check(name: str, newer: bool) -> None:
    """Losses of five steps and the numbers that are served after them."""
    torch.manual_seed(0)
    make, row = NETWORKS[name]
    module = make()
    if name == "encoder" and not newer:
        module.requires_grad_(True)
    x = torch.randn(4, *row)
    model = exported(module, x, newer)
    labels = torch.randn(module(x).shape)
    net = sx.trainable(model, "mse", sx.optim.sgd(0.02, momentum=0.9))
    rep = prepare_training(net, threads=1)
    parameters = [p for p in module.train().parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, 0.02, momentum=0.9)
    entry = model.inputs[0].name
    for step in range(5):
        loss = rep.step({entry: x.numpy(), "label": labels.numpy()})["loss"]
        optimizer.zero_grad()
        expected = nn.functional.mse_loss(module(x), labels)
        expected.backward()
        optimizer.step()
        np.testing.assert_allclose(loss, expected.item(), rtol=1e-4, err_msg=f"step {step}")
    served = rep.run({entry: x.numpy()})[net.outputs[0].name]
    expected = module.eval()(x).detach().numpy()
    np.testing.assert_allclose(served, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_older_exporter(name: str) -> None:
    check(name, newer=False)


@pytest.mark.parametrize("name", ["GroupNorm twice", "copies of a block"])
def test_the_newer_exporter(name: str) -> None:
    check(name, newer=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_from_the_newer_exporter(name: str) -> None:
    check(name, newer=True)


def test_a_copy_of_a_parameter_is_a_parameter() -> None:
    """torch's mark of a parameter stays with a tensor that is separated from another."""
    torch.manual_seed(0)
    net = sx.untie(exported(copies(), torch.randn(4, 6), newer=True), "*")
    kinds = {w.kind for w in sx.weights(net) if w.name.endswith((".weight", ".bias"))}
    assert kinds == {"weight"}
