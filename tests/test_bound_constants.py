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


def test_kernels_beside_adapters_are_bound_and_others_stay_constants() -> None:
    """Losses are those of convolutions in torch, whose kernel is W + alpha / rank · B·A."""
    model = network(
        [
            ("Conv", ["x", "k1"], ["a"], {"pads": [1, 1, 1, 1]}),
            ("Relu", ["a"], ["b"]),
            ("Conv", ["b", "k2"], ["c"], {"pads": [1, 1, 1, 1]}),
            ("Tanh", ["c"], ["d"]),
            ("Conv", ["d", "k3"], ["e"], {"strides": [2, 2]}),
            ("GlobalAveragePool", ["e"], ["p"]),
            ("Flatten", ["p"], ["y"]),
        ],
        {
            "k1": normal(64, 32, 3, 3) / 17,
            "k2": normal(64, 64, 3, 3) / 24,
            "k3": normal(64, 64, 3, 3) / 24,
        },
        ["N", 32, 8, 8],
    )
    arrays = {n: model.initializer(n).numpy().copy() for n in ("k1", "k2", "k3")}  # type: ignore[union-attr]
    adapted = sx.lora(model, rank=4, targets="k2|k3")
    rep = prepare_training(sx.trainable(adapted, "cross_entropy", sx.optim.sgd(0.1)))
    assert rep.constants.keys() == {"k2", "k3"}
    frozen = {n: torch.tensor(a) for n, a in arrays.items()}
    factors = {
        n: (
            torch.tensor(adapted.initializer(f"{n}.lora_A").numpy(), requires_grad=True),  # type: ignore[union-attr]
            torch.zeros(64, 4, 1, 1, requires_grad=True),
        )
        for n in ("k2", "k3")
    }
    kernels = torch.nn.functional
    optimizer = torch.optim.SGD([f for pair in factors.values() for f in pair], 0.1)
    x, labels = normal(8, 32, 8, 8), np.arange(8)
    for _ in range(5):
        whole = {
            n: frozen[n] + 4 * torch.einsum("orij,rchw->ochw", b, a)
            for n, (a, b) in factors.items()
        }
        hidden = torch.relu(kernels.conv2d(torch.tensor(x), frozen["k1"], padding=1))
        hidden = torch.tanh(kernels.conv2d(hidden, whole["k2"], padding=1))
        scores = kernels.conv2d(hidden, whole["k3"], stride=2).mean((2, 3))
        loss = kernels.cross_entropy(scores, torch.tensor(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        np.testing.assert_allclose(
            rep.step({"x": x, "label": labels})["loss"], loss.item(), rtol=1e-5
        )
