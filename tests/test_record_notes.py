"""What an export has done to a network is said when its record is written, and parted if asked."""

from __future__ import annotations

import io
import warnings

import numpy as np
import pytest
from onnx import helper, numpy_helper

import sardonyx as sx
from sardonyx.engines.onnxruntime import Runner
from sardonyx.model import Model
from sardonyx.record.describe import choices

from .networks import mlp, parse


def notes(net: Model) -> list[str]:
    return [f"{c.value}: {c.why}" for c in choices(net) if c.what == "note"]


def exported(module: object, *inputs: object, **settings: object) -> Model:
    import onnx
    import torch

    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, inputs, file, dynamo=False, **settings)  # type: ignore[arg-type]
    return sx.load(onnx.load_from_string(file.getvalue()))


X = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)
SHARED = """<ir_version: 8, opset_import: ["": 17]>
shared (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1, 2, 3, 4}>
{ a = MatMul(x, w)  b = MatMul(a, w)  c = MatMul(w, w)  y = MatMul(b, c) }"""


def test_nothing_is_said_where_nothing_happened() -> None:
    assert notes(sx.trainable(mlp())) == []


def test_equal_scales_that_became_one_are_separated_and_said() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(6, 6), torch.nn.LayerNorm(6), torch.nn.Linear(6, 6), torch.nn.LayerNorm(6)
    )
    x, label = torch.randn(8, 6), torch.randn(8, 6)
    model = exported(module, x)
    net = sx.trainable(model, "mse", sx.optim.sgd(0.5))
    (said,) = [c.value for c in choices(net) if c.what == "separated"]
    assert "2 weights" in said and "3.weight" in said and "3.bias" in said
    assert notes(net) == []
    assert notes(sx.trainable(sx.untie(model), "mse")) == []
    data = {model.inputs[0].name or "": x.numpy(), "label": label.numpy()}
    tuned = sx.train(net, data, steps=1, batch_size=8).model
    optimizer = torch.optim.SGD(module.parameters(), 0.5)
    torch.nn.functional.mse_loss(module(x), label).backward()
    optimizer.step()
    for ours, theirs in (("1.weight", module[1].weight), ("3.weight", module[3].weight)):
        result = tuned.initializer(ours).numpy()
        np.testing.assert_allclose(result, theirs.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_a_weight_that_layers_share_is_said() -> None:
    (said,) = notes(sx.trainable(parse(SHARED), "mse"))
    assert "1 weight shared by several nodes" in said and '"w"' in said


def test_every_reader_gets_its_own_copy() -> None:
    model = parse(SHARED)
    before = Runner(model)({"x": X})["y"]
    parted = sx.untie(model, "w")
    assert list(parted.graph.initializers) == ["w", "w.2", "w.3"]
    np.testing.assert_array_equal(Runner(parted)({"x": X})["y"], before)


def test_batch_normalization_that_was_folded_is_said() -> None:
    torch = pytest.importorskip("torch")
    layers = [
        part
        for width in (3, 4)
        for part in (torch.nn.Conv2d(width, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    ]
    module = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(4 * 4 * 4, 5)).eval()
    said = notes(sx.trainable(exported(module, torch.randn(2, 3, 8, 8)), "cross_entropy"))
    assert any("BatchNormalization was folded into 2 Conv layers" in s for s in said)
    assert any("4 weights without a name of the network" in s for s in said)
    plain = [p for p in layers if not isinstance(p, torch.nn.BatchNorm2d)]
    never = torch.nn.Sequential(*plain, torch.nn.Flatten(), torch.nn.Linear(64, 5)).eval()
    (unsure,) = notes(sx.trainable(exported(never, torch.randn(2, 3, 8, 8)), "cross_entropy"))
    assert "no normalization beside 2 Conv layers" in unsure and "if the network had" in unsure
    kept = exported(
        module.train(), torch.randn(2, 3, 8, 8), training=torch.onnx.TrainingMode.TRAINING
    )
    assert not any("fold" in s for s in notes(sx.trainable(kept, "cross_entropy")))


def test_batch_normalization_that_the_newer_exporter_folded_is_said() -> None:
    """Also into products, into one layer alone, and beside normalization of another kind."""
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(
        torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Tanh(), torch.nn.LayerNorm(6)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(module.eval(), (torch.randn(3, 4),), dynamo=True)
    (note,) = notes(sx.trainable(program.model_proto, "mse"))
    assert "BatchNormalization was folded into 1 Gemm layer" in note


def test_quantized_weights_are_said() -> None:
    weights = {
        "w": np.array([[1, 2], [3, 4]], np.int8),
        "s": np.float32(0.5),
        "z": np.int8(0),
        "v": np.ones((2, 3), np.float32),
    }
    graph = helper.make_graph(
        [
            helper.make_node("DequantizeLinear", ["w", "s", "z"], ["d"]),
            helper.make_node("MatMul", ["x", "d"], ["h"]),
            helper.make_node("MatMul", ["h", "v"], ["y"]),
        ],
        "quantized",
        [helper.make_tensor_value_info("x", 1, ["N", 2])],
        [helper.make_tensor_value_info("y", 1, ["N", 3])],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (said,) = notes(sx.trainable(sx.load(proto), "cross_entropy"))
    assert '1 quantized tensor: "w": integers are not trained' in said


def test_tensors_of_no_layer_may_be_buffers_and_are_said() -> None:
    """torch's older exporter writes parameters and buffers alike."""
    torch = pytest.importorskip("torch")

    class Standardized(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.randn(6))
            self.register_buffer("table", torch.randn(1, 9, 6))
            self.norm, self.head = torch.nn.LayerNorm(6), torch.nn.Linear(6, 3)

        def forward(self, x):  # type: ignore[no-untyped-def]
            return self.head(self.norm(x - self.mean + self.table[:, : x.shape[1]]))

    model = exported(
        Standardized(), torch.randn(4, 5, 6), training=torch.onnx.TrainingMode.TRAINING,
        do_constant_folding=False, dynamic_axes={"x": [0, 1]}, input_names=["x"], opset_version=16,
    )  # fmt: skip
    net = sx.trainable(model, "mse")
    (said,) = [n for n in notes(net) if "outside of layers" in n]
    assert '2 tensors outside of layers trained: "mean", "table"' in said and "freeze" in said
    frozen = sx.trainable(model, "mse", freeze=["mean", "table"])
    assert not [n for n in notes(frozen) if "outside of layers" in n]


@pytest.mark.parametrize("learned", [True, False])
def test_a_tensor_that_was_computed_from_a_parameter_is_said(learned: bool) -> None:
    """torch's newer exporter replaces a slice of a table by its numbers."""
    torch = pytest.importorskip("torch")

    class Table(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            table = torch.randn(1, 9, 6)
            if learned:
                self.table = torch.nn.Parameter(table)
            self.head = torch.nn.Linear(6, 3)

        def forward(self, x):  # type: ignore[no-untyped-def]
            shift = self.table[:, : x.shape[1]] if learned else torch.full((5, 6), 2.5)
            return self.head(torch.tanh(x + shift).masked_fill(x > 2.0, 0.25))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(Table(), (torch.randn(4, 5, 6),), dynamo=True, verbose=False)
    net = sx.trainable(program.model_proto, "mse")
    said = [n for n in notes(net) if "computed not trained" in n]
    assert len(said) == learned
    if learned:
        assert "optimize=False" in said[0]
        name = said[0].split('"')[1]
        assert "not trained" in said[0]
        every = sx.trainable(program.model_proto, "mse", train=[name])
        assert not [n for n in notes(every) if "computed not trained" in n]
