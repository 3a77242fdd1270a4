"""Quantization-aware training: gradients as in torch, integers that give the same numbers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

import sardonyx as sx
from sardonyx.engines.onnxruntime import Runner
from sardonyx.errors import ArgumentError, ModelError
from sardonyx.quantize.ranges import LEVELS, rounded, weight_scale
from sardonyx.quantize.report import left_as_floats
from tests.networks import cnn, lstm, mlp, network, parse, transformer

torch = pytest.importorskip("torch")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 6)).astype(np.float32)
TABLE = {"x": X, "label": (X[:, 0] > 0).astype(np.int64) + (X[:, 1] > 0.5)}
PIXELS = {"x": RNG.normal(size=(40, 3, 8, 8)).astype(np.float32), "label": np.arange(40) % 3}
SETTINGS = [
    {"weights": w, "activations": a, "per_channel": p, "learn_scales": s}
    for w, a, p, s in [
        ("int8", "uint8", True, True),
        ("int4", None, True, True),
        ("int8", "int16", False, True),
        ("int4", "uint8", False, False),
    ]
]


# -- gradients ---------------------------------------------------------------------------------


def fake_quantized(levels: str, axis: int | None, shape: tuple[int, ...]) -> sx.Model:
    """y = x rounded to levels, in ONNX's text form."""
    dims = ",".join(map(str, shape))
    size = "" if axis is None else f"[{shape[axis]}]"
    attribute = "" if axis is None else f"<axis = {axis}>"
    return parse(
        f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[{dims}] x, float{size} s, {levels}{size} z) => (float[{dims}] y) {{
            q = QuantizeLinear {attribute} (x, s, z)
            y = DequantizeLinear {attribute} (q, s, z)
        }}"""
    )


@pytest.mark.parametrize("axis", [None, 0, 1], ids=["tensor", "rows", "columns"])
@pytest.mark.parametrize("levels,zero", [("int8", 0), ("uint8", 77), ("int16", 0), ("int8", -3)])
def test_gradients_are_those_of_torch(levels: str, zero: int, axis: int | None) -> None:
    """Also of numbers between the last level and the next one, which torch does not cut off."""
    rng = np.random.default_rng(1)
    low, high = LEVELS[levels].low, LEVELS[levels].high
    shape = (5, 7)
    scale = rng.uniform(0.01, 0.05, () if axis is None else shape[axis]).astype(np.float32)
    wide = scale if axis is None else np.expand_dims(scale, 1 - axis)
    x = (rng.uniform(1.2 * low - 5, 1.2 * high + 5, shape) * wide).astype(np.float32)
    x[0, :4] = np.broadcast_to(wide, shape)[0, :4] * np.array(
        [high + 0.4, high + 0.6, low - 0.4, low - 0.6]
    )
    x[0, :4] -= np.broadcast_to(wide, shape)[0, :4] * zero
    g = rng.normal(size=shape).astype(np.float32)
    model = fake_quantized(levels, axis, shape)
    z = np.full(scale.shape, zero, levels)
    run = Runner(_weighted(model, shape))
    outputs = run({"x": x, "s": scale, "z": z, "g": g})
    tx, ts = torch.tensor(x, requires_grad=True), torch.tensor(scale, requires_grad=True)
    if axis is None:
        zeros = torch.tensor([float(zero)])
        y = torch._fake_quantize_learnable_per_tensor_affine(
            tx, ts.reshape(1), zeros, low, high, 1.0
        )
        plain = torch.fake_quantize_per_tensor_affine(tx, float(scale), zero, low, high)
    else:
        zeros = torch.full([shape[axis]], float(zero))
        y = torch._fake_quantize_learnable_per_channel_affine(tx, ts, zeros, axis, low, high, 1.0)
        integers = zeros.to(torch.int32)
        plain = torch.fake_quantize_per_channel_affine(tx, ts.detach(), integers, axis, low, high)
    (dx_plain,) = torch.autograd.grad((plain * torch.tensor(g)).sum(), tx)
    dx, ds = torch.autograd.grad((y * torch.tensor(g)).sum(), (tx, ts))
    if zero < 0:  # the learnable one takes -3 for -2
        dx = dx_plain
    for theirs in (dx_plain.numpy(), dx.numpy()):
        np.testing.assert_array_equal(outputs["grad/x"] == 0, theirs == 0)
        # g · scale / scale: half a unit in the last place each
        np.testing.assert_allclose(outputs["grad/x"], theirs, rtol=2.5e-7)
    if zero >= 0:
        # x / scale has the rounding error of numbers as large as the levels
        np.testing.assert_allclose(outputs["grad/s"], ds.numpy(), rtol=1e-5, atol=6e-7 * high)


def _weighted(model: sx.Model, shape: tuple[int, ...]) -> sx.Model:
    """The gradients of the sum of y · g by x and by the scale."""
    proto = model.proto()
    proto.graph.node.append(onnx.helper.make_node("Mul", ["y", "g"], ["yg"]))
    proto.graph.node.append(onnx.helper.make_node("ReduceSum", ["yg"], ["loss"], keepdims=0))
    proto.graph.input.append(onnx.helper.make_tensor_value_info("g", 1, shape))
    proto.graph.output.append(onnx.helper.make_tensor_value_info("loss", 1, []))
    return sx.grad(sx.load(proto), of="loss", wrt=["x", "s"])


def test_a_training_follows_torch() -> None:
    """Twenty steps of SGD over one layer whose weights, inputs and both scales are learned."""
    model = network(
        "g (float[N,6] x) => (float[N,3] scores) {scores = Gemm <transB = 1> (x, fc.weight)}",
        {"fc.weight": np.random.default_rng(0).normal(size=(3, 6)) / 2},
    )
    net = sx.quantize_aware(model, TABLE, weights="int4", activations="uint8")
    start = {n: v.const_value.numpy() for n, v in net.graph.initializers.items()}
    run = sx.train(
        net, TABLE, steps=20, batch_size=64, shuffle=False, optimizer=sx.optim.sgd(0.1),
        loss="cross_entropy",
    )  # fmt: skip
    weight = torch.tensor(start["fc.weight"], requires_grad=True)
    factors = [
        torch.ones(start[f"{n}/scale"].shape or (1,), requires_grad=True)
        for n in ("fc.weight", "x")
    ]
    update = torch.optim.SGD([weight, *factors], 0.1)
    losses = []
    for _ in range(20):
        scales = [
            torch.tensor(start[f"{n}/scale"]) * f
            for n, f in zip(("fc.weight", "x"), factors, strict=True)
        ]
        w = torch._fake_quantize_learnable_per_channel_affine(
            weight, scales[0], torch.zeros(3), 0, -8, 7, 1.0
        )
        zero = torch.tensor([float(start["x/zero_point"])])
        x = torch._fake_quantize_learnable_per_tensor_affine(
            torch.tensor(X), scales[1], zero, 0, 255, 1.0
        )
        loss = torch.nn.functional.cross_entropy(x @ w.T, torch.tensor(TABLE["label"]))
        update.zero_grad()
        loss.backward()
        update.step()
        losses.append(loss.item())
    np.testing.assert_allclose(list(run.losses), losses, rtol=2e-4)
    state = run.rep.state()
    np.testing.assert_allclose(state["fc.weight"], weight.detach().numpy(), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(state["x/scale_factor"], factors[1].item(), rtol=1e-3)


# -- integers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: "-".join(map(str, s.values())))
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_integers_give_the_numbers_of_the_trained_model(
    tmp_path: Path, name: str, settings: Any
) -> None:
    model, data = {"mlp": (mlp(), TABLE), "cnn": (cnn(), PIXELS)}[name]
    net = sx.quantize_aware(model, data, **settings)
    run = sx.train(net, data, epochs=2, batch_size=16)
    factors = [n for n in run.rep.state() if n.endswith("scale_factor")]
    assert bool(factors) == settings["learn_scales"]
    sx.save(run.model, tmp_path / "trained.onnx")
    small = sx.save(sx.to_integers(run.model), tmp_path / "small.onnx")
    onnx.checker.check_model(small, full_check=True)
    trained, integers = (
        ort.InferenceSession(tmp_path / f).run(None, {"x": data["x"]})[0]
        for f in ("trained.onnx", "small.onnx")
    )
    np.testing.assert_array_equal(integers, trained)
    report = sx.verify(tmp_path / "trained.onnx", small)
    assert report.verdict == "same", report
    stored = {t.name: t.data_type for t in onnx.load(small).graph.initializer}
    kind = {"int8": onnx.TensorProto.INT8, "int4": onnx.TensorProto.INT4}[settings["weights"]]
    quantized = [n for n in stored if n.endswith("_quantized")]
    assert len(quantized) == {"mlp": 2, "cnn": 3}[name]
    assert {stored[n] for n in quantized} == {kind}


@pytest.mark.parametrize(
    ("weights", "activations", "scales"), [("int8", "uint8", ()), ("int8", None, (4,))]
)
def test_a_stack_of_matrices_runs_in_onnxruntime(
    tmp_path: Path, weights: Any, activations: Any, scales: tuple[int, ...]
) -> None:
    """Its integer product of uint8 and int8 takes one scale for a stack."""
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
    g (float[N,2,3,5] x) => (float[N,2,3,4] y) { y = MatMul(x, w) }""")
    stack = rng.normal(size=(2, 5, 4)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(stack, "w"))
    x = rng.normal(size=(9, 2, 3, 5)).astype(np.float32)
    net = sx.quantize_aware(model, {"x": x}, weights=weights, activations=activations)
    assert sx.load(net).initializer("w/scale").shape == scales
    small = sx.save(sx.to_integers(net), tmp_path / "small.onnx")
    (y,) = ort.InferenceSession(small).run(None, {"x": x})
    np.testing.assert_allclose(y, x @ stack, atol=0.1)


def test_rounding_is_that_of_onnxruntime() -> None:
    """Also of halves, which go to the even number, and of what lies outside."""
    x = np.concatenate([np.arange(-40, 40) / 2, RNG.normal(size=500) * 9]).astype(np.float32)
    for levels in ("int8", "int4", "int16"):
        model = fake_quantized(levels, None, x.shape)
        kind = LEVELS[levels].numpy
        for scale in (np.float32(1), np.float32(0.3)):
            z = np.zeros((), kind)
            y = Runner(model)({"x": x, "s": np.asarray(scale), "z": z})["y"]
            np.testing.assert_array_equal(rounded(x, scale, LEVELS[levels], None) * scale, y)


def test_scales_have_the_least_error() -> None:
    array = RNG.normal(size=(4, 100)).astype(np.float32)
    array[1] = 0
    for axis in (None, 0):
        scale = weight_scale(array, LEVELS["int4"], axis)
        assert (scale > 0).all() and scale.shape == (() if axis is None else (4,))
        wide = scale if axis is None else scale[:, None]
        error = np.square(rounded(array, scale, LEVELS["int4"], axis) * wide - array).sum()
        largest = np.abs(array).max(axis=None if axis is None else 1, keepdims=axis is not None)
        naive = np.where(largest > 0, largest, 1) / 7
        clipped = np.clip(np.rint(array / naive), -8, 7) * naive
        assert error <= np.square(clipped - array).sum()


# -- models ------------------------------------------------------------------------------------


def test_batch_normalization_is_folded() -> None:
    net = sx.quantize_aware(cnn(), PIXELS, weights="int8", activations="int16")
    assert "BatchNormalization" not in {node.op_type for node in net.graph}
    exact, close = (Runner(m)({"x": PIXELS["x"]})["scores"] for m in (cnn(), net))
    np.testing.assert_allclose(close, exact, atol=0.02 * np.abs(exact).max())
    before = {v.name for v in cnn().graph.initializers.values() if "bn" in v.name}
    assert before and not before & net.graph.initializers.keys()


def test_what_reads_a_weight_twice_rounds_it_once() -> None:
    net = sx.quantize_aware(
        network(
            """g (float[N,4] x) => (float[N,4] y) {
            h = MatMul (x, shared.weight) r = Relu (h) y = MatMul (r, shared.weight) }""",
            {"shared.weight": RNG.normal(size=(4, 4))},
        ),
        {"x": X[:, :4]},
    )
    kinds = [node.op_type for node in net.graph]
    assert kinds.count("QuantizeLinear") == 3  # the weight, and the two activations
    small = sx.to_integers(net)
    names = [n for n in small.graph.initializers if n.endswith("_quantized")]
    assert names == ["shared.weight_quantized"]


@pytest.mark.parametrize("per_channel", [True, False])
def test_a_weight_behind_a_transpose_is_rounded_where_it_is_stored(per_channel: bool) -> None:
    weight = RNG.normal(size=(5, 4))
    networks = [
        network(
            "g (float[N,4] x) => (float[N,5] y) {" + body + "}",
            {"w": array},
        )
        for body, array in (
            ("y = MatMul (x, w)", weight.T),
            ("t = Transpose <perm = [1, 0]> (w) i = Identity (t) y = MatMul (x, i)", weight),
        )
    ]
    data = {"x": X[:, :4], "label": np.arange(len(X)) % 5}
    plain, moved = (
        sx.train(
            sx.quantize_aware(m, data, weights="int4", per_channel=per_channel),
            data, loss="cross_entropy", epochs=2, batch_size=16, display="quiet",
        )
        for m in networks
    )  # fmt: skip
    np.testing.assert_allclose(moved.losses, plain.losses, rtol=1e-6)
    small = [sx.to_integers(r.model) for r in (plain, moved)]
    stored = [m.initializer("w_quantized").numpy().astype(int) for m in small]
    np.testing.assert_array_equal(stored[1], stored[0].T)
    outputs = [Runner(m)({"x": data["x"]})["y"] for m in (small[1], moved.model)]
    np.testing.assert_array_equal(*outputs)


def test_one_fixed_scale_behind_a_transpose_is_trained(tmp_path: Path) -> None:
    """onnxruntime refuses what its own optimizer makes of such a pair of nodes."""
    body = "t = Transpose <perm = [1, 0]> (w) y = MatMul (x, t)"
    text = f"g (float[N,4] x) => (float[N,5] y) {{{body}}}"
    data = {"x": X[:, :4], "label": np.arange(len(X)) % 5}
    model = network(text, {"w": RNG.normal(size=(5, 4))})
    how = {"weights": "int8", "activations": "int16", "per_channel": False, "learn_scales": False}
    net = sx.quantize_aware(model, data, **how)  # type: ignore[arg-type]
    settings = {"epochs": 2, "batch_size": 16, "display": "quiet"}
    run = sx.train(net, data, loss="cross_entropy", shuffle="hash", **settings)
    outputs = [Runner(m)({"x": data["x"]})["y"] for m in (run.model, sx.to_integers(run.model))]
    np.testing.assert_array_equal(*outputs)
    whole = sx.export_training(net, tmp_path / "whole.onnx", loss="cross_entropy")
    assert sx.run_training(whole, data, **settings).losses == run.losses


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_adapters_read_the_activations_that_their_products_read(dropout: float) -> None:
    net = sx.quantize_aware(sx.lora(mlp(), rank=2, dropout=dropout), TABLE)
    run = sx.train(net, TABLE, epochs=2, batch_size=16, loss="cross_entropy", lr=1e-2)
    small = sx.to_integers(run.model)
    models = run.model, small, sx.merge_lora(small)
    trained, integers, merged = (Runner(m)({"x": X})["scores"] for m in models)
    np.testing.assert_array_equal(integers, trained)
    np.testing.assert_allclose(merged, trained, atol=2e-6 * np.abs(trained).max())
    with pytest.raises(ModelError, match="to_integers"):
        sx.merge_lora(run.model)
    with pytest.raises(ArgumentError, match="to_integers"):
        sx.lora(sx.quantize_aware(mlp(), TABLE), rank=2)


def test_a_transformer_is_quantized_and_trained() -> None:
    ids = RNG.integers(0, 11, (32, 5))
    data = {"ids": ids, "label": np.roll(ids, -1, 1)}
    net = sx.quantize_aware(transformer(), data, weights="int8", activations="uint8")
    run = sx.train(net, data, epochs=2, batch_size=8, loss="cross_entropy")
    small = sx.to_integers(run.model)
    outputs = [Runner(m)({"ids": ids})["scores"] for m in (run.model, small)]
    np.testing.assert_array_equal(*outputs)
    assert small.initializer("up.weight_quantized").dtype.name == "INT8"
    assert "embed.weight" in small.graph.initializers  # read by Gather: it stays as it is


def test_skipped_weights_stay_floats() -> None:
    net = sx.quantize_aware(mlp(), TABLE, skip="fc1.*")
    assert "fc0.weight/scale" in net.graph.initializers
    assert "fc1.weight/scale" not in net.graph.initializers


def test_what_cannot_be_quantized_is_refused() -> None:
    with pytest.raises(ArgumentError, match="cannot be quantized to") as caught:
        sx.quantize_aware(mlp(), weights="int2", activations="int9")
    assert "int2" in str(caught.value) and "int9" in str(caught.value)
    with pytest.raises(ArgumentError, match="cannot be quantized to") as caught:
        sx.quantize_aware(mlp(), TABLE, rows=0, skip=3)  # type: ignore[arg-type]
    assert "rows" in str(caught.value) and "skip" in str(caught.value)
    with pytest.raises(ArgumentError, match="cannot be quantized to") as caught:
        sx.quantize_aware(mlp(), TABLE, per_channel="yes", learn_scales=None)  # type: ignore[arg-type]
    assert "per_channel" in str(caught.value) and "learn_scales" in str(caught.value)
    bad = np.where(np.eye(6, 8), np.nan, 1).astype(np.float32)
    broken = sx.with_weights(mlp((6, 8, 3)), {"fc0.weight": bad.reshape(8, 6)}, partial=True)
    with pytest.raises(ArgumentError, match="not finite"):
        sx.quantize_aware(broken, activations=None)
    assert sx.quantize_aware(broken, activations=None, skip="fc0.*")
    with pytest.raises(ArgumentError, match="no weight that could be quantized matches"):
        sx.quantize_aware(mlp(), TABLE, skip="head.*")
    with pytest.raises(ArgumentError, match="no product with a float32 weight"):
        sx.quantize_aware(mlp(dtype=np.float64), {"x": X.astype(np.float64)})
    with pytest.raises(ArgumentError, match="no weight of this model is rounded"):
        sx.to_integers(mlp())
    with pytest.raises(ArgumentError, match="training record"):
        sx.quantize_aware(sx.trainable(mlp()), TABLE)
    broken = sx.quantize_aware(mlp(), TABLE)
    factor = broken.graph.initializers["fc0.weight/scale_factor"]
    factor.const_value = ir.tensor(-np.ones(5, np.float32))
    with pytest.raises(ArgumentError, match="above 0"):
        sx.to_integers(broken)


def test_what_stays_float_is_listed() -> None:
    series = {"x": RNG.normal(size=(8, 4, 3)).astype(np.float32)}
    rows = left_as_floats(sx.quantize_aware(lstm(), series))
    assert rows and {readers for _, _, readers in rows} == {"LSTM"}
    assert left_as_floats(sx.quantize_aware(mlp(), TABLE)) == []


# -- the command -------------------------------------------------------------------------------


@pytest.mark.parametrize("epochs", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_the_command_prints_a_report(tmp_path: Path, epochs: int) -> None:
    sx.save(mlp(), tmp_path / "model.onnx")
    np.savez(tmp_path / "data.npz", **TABLE)
    words = "quantize model.onnx data.npz -o small.onnx --weights int4 --activations none"
    more = ["--epochs", "2", "--lr", "0.01", "--trained", "float.onnx"] if epochs else []
    command = [sys.executable, "-m", "sardonyx", *words.split(), *more]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "small.onnx"
    lines = [line.split()[0] for line in done.stderr.splitlines()[-(3 + bool(epochs)) :]]
    assert lines == ["model", "float", "rounded", *(["trained"] if epochs else [])]
    small = sx.load(tmp_path / "small.onnx")
    assert small.initializer("fc0.weight_quantized").dtype.name == "INT4"
    if epochs:
        models = [sx.load(tmp_path / "float.onnx"), small]
        np.testing.assert_array_equal(*[Runner(m)({"x": X})["scores"] for m in models])
