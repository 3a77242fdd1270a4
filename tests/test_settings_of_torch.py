"""Several settings at once, on networks as torch exports them, train as torch trains.

A few combinations of the walk in sweeps/settings.py, which tries a thousand of them nightly.
"""

from __future__ import annotations

import dataclasses
import io
import warnings
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import sardonyx as sx
from sardonyx.engines.onnxruntime import prepare_training
from sardonyx.errors import ArgumentError
from sardonyx.record.describe import choices

torch = pytest.importorskip("torch")
nn = torch.nn

from tests.sweeps import settings  # noqa: E402
from tests.sweeps.settings import Combination, drawn, judge, theirs  # noqa: E402

PAIRS = [
    Combination("mlp", "script", "adam", "mse", accumulate=2, clip_norm=0.05),
    Combination("mlp", "script", "momentum", "cross_entropy", accumulate=3, schedule="step"),
    Combination(
        "mlp", "script", "nesterov", "huber", accumulate=2, clip_value=0.01, schedule="warm-up",
        groups={"*bias": {"lr": 0.02}}, ema=0.9, l1=1e-3,
    ),
    Combination("norms", "script", "sgd", "mse", ema=0.9),
    Combination("norms", "script training", "adamw", "mse", accumulate=2),
    Combination("norms", "script training", "adam", "cross_entropy", batch_norm="frozen"),
    Combination("twice", "script", "momentum", "mse", clip_norm=0.05),
    Combination("gru", "script", "adam", "cross_entropy", l2=1e-2),
    Combination("lstm", "script training", "adagrad", "mse", accumulate=2, schedule="cosine"),
    Combination("mlp", "script", "rmsprop", "mse", "torch", accumulate=2, schedule="exponential"),
]  # fmt: skip
DYNAMO = [
    Combination("gru", "dynamo optimized", "adam", "cross_entropy", accumulate=2),
    Combination("lstm", "dynamo optimized", "momentum", "mse", schedule="step"),
    Combination("norms", "dynamo", "adamw", "mse", accumulate=2, clip_norm=0.05, ema=0.9),
]


@pytest.mark.parametrize("combination", PAIRS, ids=str)
def test_pairs_of_settings(combination: Combination) -> None:
    assert judge(combination) == ""


@pytest.mark.slow
@pytest.mark.parametrize("combination", DYNAMO, ids=str)
def test_pairs_of_settings_of_the_newer_exporter(combination: Combination) -> None:
    assert judge(combination) == ""


@pytest.mark.slow
@pytest.mark.parametrize("index", range(30))
def test_drawn_settings(index: int) -> None:
    assert judge(drawn(1, index)) == ""


# In this combination clipped updates cancel: biases come back to zero but for rounding, whose sign
# the penalty l1 then follows.
AT_A_CORNER = Combination(
    "cnn", "script training", "sgd", "cross_entropy", "torch", "expanded", accumulate=2,
    clip_value=0.01, groups={"*weight*": {"lr": 0.003, "weight_decay": 0.3}}, l1=1e-3, l2=1e-2,
)  # fmt: skip


def test_the_walk_tells_rounding_at_a_corner(monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = []
    for seed in range(100, 106):
        noise = torch.Generator().manual_seed(seed)
        monkeypatch.setattr(settings, "ours", lambda c, noise=noise: theirs(c, noise))
        verdicts.append(judge(AT_A_CORNER))
    assert all(not v or v.startswith("rounding: ") for v in verdicts)
    assert any(verdicts)


@pytest.mark.parametrize("change", [{"l1": 1.01e-3}, {"clip_value": 0.0101}, {"accumulate": 1}])
def test_the_walk_tells_a_fault_at_a_corner(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    other = dataclasses.replace(AT_A_CORNER, **change)
    monkeypatch.setattr(settings, "ours", lambda c: theirs(other))
    assert "rounding explains" in judge(AT_A_CORNER)


# -- what an exporter makes of a network ------------------------------------------------


def exported(module: Any, *inputs: Any, **settings: Any) -> sx.Model:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, inputs, file, dynamo=False, input_names=["x"], **settings)
    return sx.load(onnx.load_from_string(file.getvalue()))


def test_statistics_of_a_fresh_network_are_separated_and_served() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.BatchNorm1d(8),
        nn.ReLU(), nn.Linear(8, 1),
    )  # fmt: skip
    rng = np.random.default_rng(0)
    x = rng.normal(2, 3, size=(32, 6)).astype(np.float32)
    y = x[:, :1].astype(np.float32)
    model = exported(module.eval(), torch.tensor(x))
    assert "1.running_mean" not in model.graph.initializers, "the exporter merged them"
    net = sx.trainable(model, "mse", sx.optim.sgd(0.02))
    said = {c.value: c.why for c in choices(net) if c.what == "separated"}
    assert any("4 running statistics" in value and "1.running_mean" in value for value in said)
    assert any("2 weights" in value and "4.weight" in value for value in said)
    rep = prepare_training(net, threads=1)
    optimizer = torch.optim.SGD(module.train().parameters(), 0.02)
    for _ in range(40):
        rep.step({"x": x, "label": y})
        optimizer.zero_grad()
        nn.functional.mse_loss(module(torch.tensor(x)), torch.tensor(y)).backward()
        optimizer.step()
    expected = module.eval()(torch.tensor(x)).detach().numpy()
    result = rep.run({"x": x})[net.outputs[0].name]
    np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-3)
    for name in ("1.running_mean", "4.running_var", "4.weight", "4.bias"):
        state = module.state_dict()[name].numpy()
        np.testing.assert_allclose(rep.state()[name], state, rtol=1e-3, atol=1e-4, err_msg=name)


def norm_network(second: list[str], **initializers: np.ndarray) -> sx.Model:
    """Two BatchNormalizations of two channels; the second reads what `second` names."""
    nodes = [
        helper.make_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["h"], "one"),
        helper.make_node("BatchNormalization", ["h", *second], ["y"], "two"),
    ]
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", 1, ["N", 2])],
        [helper.make_tensor_value_info("y", 1, ["N", 2])],
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in initializers.items()],
    )  # fmt: skip
    return sx.load(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    )


ZEROS, ONES = np.zeros(2), np.ones(2)
FRESH = {"s": ONES, "b": ZEROS, "m": ZEROS, "v": ONES}
SHARED = {
    "a weight and a statistic are one": (["s", "b", "b", "s"], FRESH),
    "a bias is shared": (
        ["s2", "b", "m2", "v2"],
        {**FRESH, "s2": ONES * 2, "m2": ZEROS, "v2": ONES},
    ),
    "the module is called twice": (
        ["s", "b", "m", "v"],
        {"s": ONES * 2, "b": ONES, "m": ZEROS + 0.5, "v": ONES * 3},
    ),
}


@pytest.mark.parametrize("case", SHARED)
def test_statistics_that_share_tensors(case: str) -> None:
    second, tensors = SHARED[case]
    net = sx.trainable(norm_network(second, **tensors), "mse", sx.optim.sgd(0.0), train=["s", "b"])
    rep = prepare_training(net, threads=1)
    norms = [nn.BatchNorm1d(2), nn.BatchNorm1d(2)]
    if case == "the module is called twice":
        norms[1] = norms[0]
    names = [["s", "b", "m", "v"], second]
    for norm, (s, b, m, v) in zip(norms, names, strict=True):
        for key, name in (("weight", s), ("bias", b), ("running_mean", m), ("running_var", v)):
            getattr(norm, key).data = torch.tensor(tensors[name], dtype=torch.float32)
    rng = np.random.default_rng(0)
    for _ in range(5):
        x = rng.normal(1, 4, size=(6, 2)).astype(np.float32)
        rep.step({"x": x, "label": x})
        with torch.no_grad():
            norms[1](norms[0](torch.tensor(x)))
    x = rng.normal(1, 4, size=(6, 2)).astype(np.float32)
    with torch.no_grad():
        expected = norms[1].eval()(norms[0].eval()(torch.tensor(x))).numpy()
    np.testing.assert_allclose(rep.run({"x": x})["y"], expected, rtol=1e-4, atol=1e-5)


class Recurrent(nn.Module):  # type: ignore[misc]
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.cell, self.head = kind(4, 5), nn.Linear(5, 2)

    def forward(self, x: Any) -> Any:
        return self.head(self.cell(x)[0])


@pytest.mark.parametrize("folded", [True, False], ids=["folded", "with their names"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_every_parameter_of_a_recurrent_network_is_a_weight(kind: str, folded: bool) -> None:
    module = Recurrent(getattr(nn, kind)).eval()
    model = exported(module, torch.randn(3, 2, 4), do_constant_folding=folded)
    weights = [w for w in sx.weights(model) if w.kind == "weight"]
    assert sum(w.size for w in weights) == sum(p.numel() for p in module.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("optimized", [True, False])
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_every_parameter_is_a_weight_by_the_newer_exporter(kind: str, optimized: bool) -> None:
    module = Recurrent(getattr(nn, kind)).eval()
    program = torch.onnx.export(
        module, (torch.randn(3, 2, 4),), dynamo=True, verbose=False, optimize=optimized
    )
    weights = [w for w in sx.weights(sx.load(program.model_proto)) if w.kind == "weight"]
    assert sum(w.size for w in weights) == sum(p.numel() for p in module.parameters())


FOLDED = """<ir_version: 8, opset_import: ["": 17]>
g (float[2,3] x) => (float[2,3] y)
<float[3,3] w = {1, 0, 2, 0, 1, 1, 2, 1, 0}, float[3] b = {1, 2, 3},
 float[2,3] first = {1, 2, 3, 1, 2, 3}>
{ h = Tanh(first)  m = MatMul(h, w)  a = Add(m, b)  y = Mul(a, x) }"""


def test_a_bias_that_the_exporter_repeated_is_restored() -> None:
    model = sx.load(onnx.parser.parse_model(FOLDED))
    net = sx.trainable(model, "mse", sx.optim.sgd(0.1))
    assert any(c.what == "restored" and '"first" from "b"' in c.value for c in choices(net))
    rep = prepare_training(net, threads=1)
    w = torch.tensor([[1.0, 0, 2], [0, 1, 1], [2, 1, 0]], requires_grad=True)
    b = torch.tensor([1.0, 2, 3], requires_grad=True)
    optimizer = torch.optim.SGD([w, b], 0.1)
    x = torch.tensor([[0.5, -1.0, 0.3], [0.1, 0.2, -0.4]])
    for _ in range(5):
        optimizer.zero_grad()
        loss = ((torch.tanh(b) @ w + b) * x).square().mean()
        loss.backward()
        optimizer.step()
        result = rep.step({"x": x.numpy(), "label": np.zeros((2, 3), np.float32)})["loss"]
        np.testing.assert_allclose(result, loss.item(), rtol=1e-5)


@pytest.mark.parametrize(("number", "restored"), [("0.7342915", True), ("0.5", False)])
def test_one_number_is_restored_where_it_is_no_round_one(number: str, restored: bool) -> None:
    """A hidden size of one: a half may be a half for many reasons, a number drawn at random not."""
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[2,1] x) => (float[2,1] y)
    <float[1,1] w = {{1.5}}, float[1] b = {{{number}}}, float[2,1] first = {{{number}, {number}}}>
    {{ h = Tanh(first)  m = MatMul(h, w)  a = Add(m, b)  y = Mul(a, x) }}"""
    net = sx.trainable(sx.load(onnx.parser.parse_model(text)), "mse", sx.optim.sgd(0.1))
    notes = [c for c in choices(net) if c.what == "restored" and '"first" from "b"' in c.value]
    assert bool(notes) == restored


@pytest.mark.slow
def test_an_rnn_of_the_newer_exporter_follows_torch() -> None:
    """Its first step was computed ahead: the state is 0, and what is left is the bias."""
    torch.manual_seed(0)
    module = Recurrent(nn.RNN)
    x, y = torch.randn(3, 2, 4), torch.randn(3, 2, 2)
    program = torch.onnx.export(module.eval(), (x,), dynamo=True, verbose=False)
    net = sx.trainable(sx.load(program.model_proto), "mse", sx.optim.sgd(0.1))
    rep = prepare_training(net, threads=1)
    optimizer = torch.optim.SGD(module.train().parameters(), 0.1)
    for _ in range(20):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(module(x), y)
        loss.backward()
        optimizer.step()
        result = rep.step({net.inputs[0].name: x.numpy(), "label": y.numpy()})["loss"]
        np.testing.assert_allclose(result, loss.item(), rtol=1e-5)


def test_frozen_normalization_of_a_training_export_uses_running_statistics() -> None:
    module = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    module.train()
    x, y = torch.randn(6, 5), torch.randn(6, 2)
    mode = torch.onnx.TrainingMode.TRAINING
    model = exported(module, x, training=mode, do_constant_folding=False)
    net = sx.trainable(model, "mse", sx.optim.sgd(0.1), batch_norm="frozen", dropout="frozen")
    assert any(c.what == "served" and "BatchNormalization" in c.value for c in choices(net))
    rep = prepare_training(net, threads=1)
    module.eval()
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for _ in range(5):
        loss = nn.functional.mse_loss(module(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        result = rep.step({"x": x.numpy(), "label": y.numpy()})["loss"]
        np.testing.assert_allclose(result, loss.item(), rtol=1e-4)
    served = rep.run({"x": x.numpy()})[net.outputs[0].name]
    np.testing.assert_allclose(served, module(x).detach().numpy(), rtol=1e-3, atol=1e-4)


TRAINING = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,2] x) => (float[N,2] y, float[2] rm)
<float[2] s = {1, 2}, float[2] b = {0, 1}, float[2] m = {3, 4}, float[2] v = {5, 6}>
{ y, rm, rv = BatchNormalization <training_mode = 1> (x, s, b, m, v) }"""


def test_frozen_normalization_whose_statistics_are_an_output() -> None:
    """The served graph has to stay in training mode, the record does not."""
    model = sx.load(onnx.parser.parse_model(TRAINING))
    net = sx.trainable(model, "mse", sx.optim.sgd(0.1), batch_norm="frozen")
    x = np.array([[1, 2], [3, 4], [5, 7]], np.float32)
    m, v, s, b = np.array([3, 4]), np.array([5, 6]), np.array([1, 2]), np.array([0, 1])
    expected = np.mean(((x - m) / np.sqrt(v + 1e-5) * s + b - 1) ** 2)
    loss = prepare_training(net, threads=1).step({"x": x, "label": np.ones_like(x)})["loss"]
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_statistics_that_are_computed_freeze_their_node_and_say_so() -> None:
    text = TRAINING.replace("<training_mode = 1>", "").replace("y, rm, rv", "w = Mul(v, v) y")
    text = text.replace("(x, s, b, m, v)", "(x, s, b, m, w)").replace(", float[2] rm", "")
    net = sx.trainable(sx.load(onnx.parser.parse_model(text)), "mse")
    (said,) = [c.value for c in choices(net) if c.what == "BatchNormalization"]
    assert "frozen: its statistics are computed" in said


def test_patterns_do_not_train_statistics() -> None:
    model = norm_network(["s2", "b", "m2", "v2"], **SHARED["a bias is shared"][1])
    net = sx.trainable(model, "mse", sx.optim.sgd(0.1), train="*")
    rep = prepare_training(net, threads=1)
    x = np.random.default_rng(0).normal(5, 1, size=(6, 2)).astype(np.float32)
    rep.step({"x": x, "label": x})
    np.testing.assert_allclose(rep.state()["m"], 0.1 * x.mean(0), rtol=1e-4)


def test_statistics_are_either_updated_or_trained() -> None:
    model = norm_network(["s2", "b", "m2", "v2"], **SHARED["a bias is shared"][1])
    with pytest.raises(ArgumentError, match="running statistics are updated from the data"):
        sx.trainable(model, "mse", train=["s", "m"])
    net = sx.trainable(model, "mse", train=["s", "m"], batch_norm="frozen")
    assert {k for k, _ in net.records[0].update_binding} >= {"s", "m"}


INSIDE = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,2] x, bool c) => (float[N,2] y)
<float[2,2] w = {1, 2, 3, 4}, float[2] s = {1, 2}, float[2] b = {0, 1}, float[2] m = {3, 4},
 float[2] v = {5, 6}>
{
    h = MatMul(x, w)
    y = If (c) <
        then_branch = t () => (float[N,2] p) { p = BatchNormalization(h, s, b, m, v) },
        else_branch = e () => (float[N,2] q) { q = Identity(h) }
    >
}"""


def test_normalization_inside_a_body_is_said_to_be_frozen() -> None:
    net = sx.trainable(sx.load(onnx.parser.parse_model(INSIDE)), "mse")
    (said,) = [c.value for c in choices(net) if c.what == "BatchNormalization"]
    assert "frozen: it is inside a body of If" in said
