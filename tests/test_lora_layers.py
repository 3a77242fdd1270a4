"""Adapters of layers whose weights an exporter had made one: each layer has its own."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from torch import nn

import sardonyx as sx
from tests.test_fresh_networks import exported
from tests.test_lora import close, network, normal, run, with_values


def layers() -> nn.Module:
    """Two copies of a layer, as nn.TransformerEncoder makes them."""
    torch.manual_seed(0)
    first = nn.Linear(6, 6)
    return nn.Sequential(first, nn.Tanh(), copy.deepcopy(first), nn.Tanh(), nn.Linear(6, 3)).eval()


def stock(model: sx.Model, folder: Path, x: np.ndarray) -> np.ndarray:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    path = sx.save(model, folder / "model.onnx")
    (y,) = ort.InferenceSession(path, options).run(None, {model.inputs[0].name: x})
    return y


@pytest.mark.parametrize("newer", [False, True], ids=["older exporter", "newer exporter"])
def test_equal_layers_have_an_adapter_each(newer: bool, tmp_path: Path) -> None:
    model = exported(layers(), torch.randn(4, 6), newer=newer)
    rng = np.random.default_rng(0)
    data: Any = {model.inputs[0].name: rng.normal(size=(24, 6)).astype(np.float32)}
    x = next(iter(data.values()))
    adapted = sx.lora(model, rank=2)
    assert sum("lora_A" in name for name in adapted.graph.initializers) == 3
    how = {"loss": "cross_entropy", "lr": 5e-2, "epochs": 3, "batch_size": 8}
    tuned = sx.train(adapted, data | {"label": np.arange(24) % 3}, **how).model
    factors = [t.const_value.numpy() for n, t in tuned.graph.initializers.items() if "lora_B" in n]
    assert not np.array_equal(factors[0], factors[1])
    expected = stock(tuned, tmp_path, x)
    assert np.abs(expected - stock(adapted, tmp_path, x)).max() > 1e-2
    merged = stock(sx.merge_lora(tuned), tmp_path, x)
    close(merged, expected)
    sx.save_adapter(tuned, tmp_path / "task.safetensors")
    again = sx.load_adapter(model, tmp_path / "task.safetensors")
    np.testing.assert_array_equal(stock(again, tmp_path, x), expected)


def test_an_adapter_beside_two_weights_is_merged_into_both() -> None:
    """Products that shared a weight when they got their adapter, and have two by now."""
    shared = [("MatMul", ["x", "w"], ["a"]), ("Relu", ["a"], ["r"]), ("MatMul", ["r", "w"], ["y"])]
    adapted, arrays = with_values(sx.lora(network(shared, {"w": normal(6, 6)}, ["N", 6]), rank=2))
    assert sorted(arrays) == ["w.lora_A", "w.lora_B"]
    weight = adapted.graph.initializers["w"]
    other = ir.Value(name="other", type=weight.type, shape=weight.shape)
    other.const_value = ir.Tensor(normal(6, 6), name="other")
    adapted.graph.register_initializer(other)
    reader = next(n for n in adapted.graph if n.op_type == "MatMul" and n.inputs[0].name == "r")
    reader.replace_input_with(1, other)
    x = normal(5, 6)
    close(run(sx.merge_lora(adapted), x), run(adapted, x))
