"""Large weights that are not trained: bound to a session once, over the mapped file."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

import sardonyx as sx
from sardonyx.engines.onnxruntime import prepare_training

from .test_lora import close, network, normal


def wide() -> sx.Model:
    """An embedding, a transposed and a plain product, all of them larger than a page of memory."""
    return network(
        [
            ("MatMul", ["x", "w1"], ["a"]),
            ("Tanh", ["a"], ["b"]),
            ("Transpose", ["w2"], ["t"], {"perm": [1, 0]}),
            ("MatMul", ["b", "t"], ["c"]),
            ("Tanh", ["c"], ["d"]),
            ("Gemm", ["d", "w3", "b3"], ["y"], {"transB": 1}),
        ],
        {
            "w1": normal(160, 160) / 12,
            "w2": normal(160, 160) / 12,
            "w3": normal(160, 160) / 12,
            "b3": normal(160),
        },
        ["N", 160],
    )


def test_a_bound_weight_is_the_mapped_file(tmp_path: Path) -> None:
    path = sx.save(wide(), tmp_path / "wide.onnx", external=True)
    model = sx.load(path)
    rep = prepare_training(sx.trainable(sx.lora(model, rank=2), "cross_entropy"))
    assert rep.constants.keys() == {"w1", "w2", "w3"}
    for name, value in rep.constants.items():
        assert value.data_ptr() == model.initializer(name).numpy().ctypes.data


def test_losses_are_those_of_torch_and_of_constants() -> None:
    model = sx.freeze(wide(), ["w1", "w2"])
    arrays = {n: v.const_value.numpy().copy() for n, v in model.graph.initializers.items()}  # type: ignore[union-attr]
    x, labels = normal(6, 160), np.arange(6)
    net = sx.trainable(model, "cross_entropy", sx.optim.sgd(0.1))
    rep = prepare_training(net)
    assert rep.constants.keys() == {"w1", "w2"}
    w = {n: torch.tensor(a) for n, a in arrays.items()}
    trained = [w["w3"].requires_grad_(), w["b3"].requires_grad_()]
    optimizer = torch.optim.SGD(trained, 0.1)
    for _ in range(5):
        hidden = torch.tanh(torch.tanh(torch.tensor(x) @ w["w1"]) @ w["w2"].T)
        loss = torch.nn.functional.cross_entropy(hidden @ w["w3"].T + w["b3"], torch.tensor(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ours = rep.step({"x": x, "label": labels})["loss"]
        np.testing.assert_allclose(ours, loss.item(), rtol=1e-5)
    with torch.no_grad():
        hidden = torch.tanh(torch.tanh(torch.tensor(x) @ w["w1"]) @ w["w2"].T)
        expected = (hidden @ w["w3"].T + w["b3"]).numpy()
    close(np.asarray(rep.run({"x": x})["y"]), expected, 1e-5)


@pytest.mark.parametrize("recompute", [False, True])
def test_a_run_validates_and_says_where_it_is_not_finite(recompute: bool) -> None:
    model = sx.lora(wide(), rank=2)
    data = {"x": normal(32, 160), "label": np.arange(32)}
    options = {"loss": "cross_entropy", "display": "quiet", "epochs": 1, "recompute": recompute}
    run = sx.train(model, data, validation=0.25, **options)
    assert np.isfinite(run.history[-1]["val_loss"])
    rep = prepare_training(sx.trainable(model, "cross_entropy"), recompute=recompute)
    data["x"][5, 5] = np.nan
    assert np.isnan(rep.step(data)["loss"])
    assert "MatMul" in rep.first_not_finite(data)[0][1]


@pytest.mark.parametrize("kind", ["int4", "uint4"])
def test_weights_of_four_bits_are_bound(kind: str) -> None:
    """Two numbers a byte; an odd number of them leaves half a byte."""
    dtype = np.dtype(getattr(ml_dtypes, kind))
    low = -8 if kind == "int4" else 0
    levels = np.random.default_rng(0).integers(low, low + 16, (361, 381))
    scale = np.full((), 0.01, np.float32)
    nodes = [("DequantizeLinear", ["w", "s"], ["d"]), ("MatMul", ["x", "d"], ["y"])]
    model = network(nodes, {"w": levels.astype(dtype), "s": scale}, ["N", 361])
    adapted = sx.lora(model, rank=2)
    rep = prepare_training(sx.trainable(adapted, "mse", sx.optim.sgd(0.1)))
    assert rep.constants.keys() == {"w"}
    x = normal(5, 361)
    expected = x @ (levels * scale).astype(np.float32)
    close(np.asarray(rep.run({"x": x})["y"]), expected, 1e-5)
    target = expected + 1
    a = torch.tensor(adapted.initializer("w.lora_A").numpy(), requires_grad=True)
    b = torch.zeros(2, 381, requires_grad=True)
    optimizer = torch.optim.SGD([a, b], 0.1)
    for _ in range(3):
        result = torch.tensor(expected) + torch.tensor(x) @ a * 8 @ b
        loss = torch.nn.functional.mse_loss(result, torch.tensor(target))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ours = rep.step({"x": x, "label": target})["loss"]
        np.testing.assert_allclose(ours, loss.item(), rtol=1e-5)
    x[2, 3] = np.nan
    assert np.isnan(rep.step({"x": x, "label": target})["loss"])
    assert "MatMul" in rep.first_not_finite({"x": x, "label": target})[0][1]
