"""Configuration files say what arguments would say; losses as ONNX graphs compute what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import sardonyx as sx
from sardonyx.engines.onnxruntime import prepare_training
from sardonyx.errors import ArgumentError, MissingExtra
from sardonyx.model import Model, record_proto
from sardonyx.record.describe import settings_of

from .networks import mlp

TOML = """
train = ["fc*"]
freeze = "fc0.bias"
clip_norm = 1.5
ema = 0.99
l2 = 1e-4
seed = 7

[loss]
name = "cross_entropy"
label_smoothing = 0.1
class_weight = [1.0, 2.0, 3.0]

[optimizer]
name = "adam"
lr = 1e-2
momentum_schedule = {name = "cosine", steps = 50, end = 0.9}
[optimizer.schedule]
name = "linear_warmup"
steps = 10
after = {name = "cosine", steps = 100}

[groups."*.bias"]
lr = 1e-3

[initialize]
"fc1.*" = "xavier"
"fc0.*" = {kind = "normal", scale = 0.1}
"""
YAML = """
train: ["fc*"]
freeze: fc0.bias
clip_norm: 1.5
ema: 0.99
l2: 1.0e-4
seed: 7
loss: {name: cross_entropy, label_smoothing: 0.1, class_weight: [1.0, 2.0, 3.0]}
optimizer:
  name: adam
  lr: 1.0e-2
  schedule: {name: linear_warmup, steps: 10, after: {name: cosine, steps: 100}}
  momentum_schedule: {name: cosine, steps: 50, end: 0.9}
groups: {"*.bias": {lr: 1.0e-3}}
initialize: {"fc1.*": xavier, "fc0.*": {kind: normal, scale: 0.1}}
"""


def by_hand() -> Model:
    warm = sx.schedule.linear_warmup(10, sx.schedule.cosine(100))
    cycled = sx.schedule.cosine(50, end=0.9)
    return sx.trainable(
        mlp(),
        sx.loss.cross_entropy(weight=[1.0, 2.0, 3.0], label_smoothing=0.1),
        sx.optim.adam(1e-2, schedule=warm, momentum_schedule=cycled),
        ["fc*"],
        freeze="fc0.bias",
        groups={"*.bias": {"lr": 1e-3}},
        clip_norm=1.5,
        ema=0.99,
        l2=1e-4,
        initialize={"fc1.*": "xavier_uniform", "fc0.*": sx.Initializer("normal", 0.1)},
        seed=7,
    )


def written(folder: Path, text: str, name: str = "train.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def same(a: Model, b: Model) -> bool:
    return [record_proto(r) for r in a.records] == [record_proto(r) for r in b.records]


@pytest.mark.parametrize(("name", "text"), [("train.toml", TOML), ("train.yaml", YAML)])
def test_file_and_arguments_write_the_same_record(tmp_path: Path, name: str, text: str) -> None:
    assert same(sx.trainable(mlp(), config=written(tmp_path, text, name)), by_hand())


def test_arguments_come_before_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, 'loss = "mse"\noptimizer = {name = "sgd", lr = 0.5}\nclip_norm = 3.0')
    result = sx.trainable(mlp(), loss="huber", config=path, clip_norm=1.0)
    assert same(result, sx.trainable(mlp(), "huber", sx.optim.sgd(0.5), clip_norm=1.0))
    assert not same(result, sx.trainable(mlp(), "mse", sx.optim.sgd(0.5), clip_norm=1.0))


def test_several_weighted_losses(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
        optimizer = "sgd"
        [[loss]]
        name = "mse"
        prediction = "scores"
        labels = ["target"]
        [[loss]]
        name = "l1"
        prediction = "a0"
        labels = ["hidden"]
        weight = 0.25
        """,
    )
    rep = prepare_training(sx.trainable(mlp(), config=path), threads=1)
    rng = np.random.default_rng(0)
    x, t, h = (rng.normal(size=(4, n)).astype(np.float32) for n in (6, 3, 5))
    w = rep.state()
    a = np.tanh(x @ w["fc0.weight"].T + w["fc0.bias"])
    z = a @ w["fc1.weight"].T + w["fc1.bias"]
    loss = rep.step({"x": x, "target": t, "hidden": h})["loss"]
    np.testing.assert_allclose(
        loss, np.mean((z - t) ** 2) + 0.25 * np.mean(np.abs(a - h)), rtol=1e-5
    )


def test_all_unknown_settings_are_reported_at_once(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
        [loss]
        name = "cross_entropy"
        smoothing = 0.1
        [optimizer]
        name = "adamw"
        learning_rate = 1e-3
        schedule = {name = "cosin", steps = 3}
        [groups."*.bias"]
        decay = 0.0
        [initialize]
        "fc*" = "glorot"
        """,
    )
    with pytest.raises(ArgumentError) as caught:
        sx.trainable(mlp(), config=path)
    text = str(caught.value)
    assert "5 settings" in text
    for word in ("smoothing", "learning_rate", "did you mean cosine", "decay", "glorot"):
        assert word in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lose = 'mse'", "did you mean loss"),
        ("clip_norm = 'much'", "is a number"),
        ("loss = 'mse", "cannot be read"),
        ("[loss]\nname = 'mse'\nweight = [1.0, 2.0]", "class_weight"),
        ("[loss]\nlabel_smoothing = 0.1", "either a name or a graph"),
        ("optimizer = 'adamx'", "did you mean adam"),
        ("output = 'scores'", "called prediction"),
        ("[loss]\nname = 'mse'\noutput = 'scores'", "called prediction"),
    ],
)
def test_what_a_file_cannot_say(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        sx.trainable(mlp(), config=written(tmp_path, text))


def test_yaml_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "yaml", None)
    with pytest.raises(MissingExtra, match=r"sardonyx\[yaml\]"):
        sx.trainable(mlp(), config=written(tmp_path, "loss: mse", "train.yaml"))


# -- losses as ONNX graphs -----------------------------------------------------------------

LOG_COSH = """<ir_version: 8, opset_import: ["": 13]>
log_cosh (float[M,C] z, float[M,C] wanted) => (float loss) {
    d = Sub(z, wanted)
    c = Cosh(d)
    l = Log(c)
    loss = ReduceMean<keepdims = 0>(l)
}"""
FUNCTION = """<domain: "my", opset_import: ["": 17]>
log_cosh (z, wanted) => (loss) {
    d = Sub(z, wanted)
    c = Cosh(d)
    l = Log(c)
    loss = ReduceMean<keepdims = 0>(l)
}"""


def graph_losses(folder: Path) -> dict[str, object]:
    model = onnx.parser.parse_model(LOG_COSH)
    path = folder / "log_cosh.onnx"
    onnx.save(model, path)
    return {
        "ModelProto": model,
        "path": path,
        "text path": str(path),
        "FunctionProto": onnx.parser.parse_function(FUNCTION),
        "Python": lambda op, z, y: op.ReduceMean(op.Log(op.Cosh(op.Sub(z, y))), keepdims=0),
    }


@pytest.mark.parametrize("kind", ["ModelProto", "path", "text path", "FunctionProto", "Python"])
def test_own_loss_trains_as_in_torch(tmp_path: Path, kind: str) -> None:
    torch = pytest.importorskip("torch")
    net = sx.trainable(mlp(), graph_losses(tmp_path)[kind], sx.optim.sgd(0.5))  # type: ignore[arg-type]
    label = "label" if kind == "Python" else "wanted"
    rep = prepare_training(net, threads=1)
    w = {
        n: torch.tensor(a, dtype=torch.float64, requires_grad=True)
        for n, a in rep.state().items()
        if n.startswith("fc")
    }
    optimizer = torch.optim.SGD(w.values(), 0.5)
    rng = np.random.default_rng(0)
    for _ in range(5):
        x, y = rng.normal(size=(4, 6)), rng.normal(size=(4, 3))
        result = rep.step({"x": x.astype(np.float32), label: y.astype(np.float32)})["loss"]
        h = torch.tanh(torch.tensor(x) @ w["fc0.weight"].T + w["fc0.bias"])
        z = h @ w["fc1.weight"].T + w["fc1.bias"]
        loss = torch.log(torch.cosh(z - torch.tensor(y))).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        np.testing.assert_allclose(result, loss.item(), rtol=1e-5)


def test_graph_with_integer_labels_and_constants_in_a_file(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 13]>
    picked (float[M,C] z, int64[M] chosen) => (float loss) <int64[1] last = {-1}> {
        i = Unsqueeze(chosen, last)
        p = GatherElements<axis = 1>(z, i)
        m = ReduceMean<keepdims = 0>(p)
        loss = Neg(m)
    }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "picked.onnx")
    path = written(tmp_path, 'optimizer = "sgd"\n[loss]\ngraph = "picked.onnx"')
    net = sx.trainable(mlp(), config=path)
    chosen = next(i for i in net.records[0].algorithm.inputs if i.name == "chosen")
    assert chosen.dtype == ir.DataType.INT64
    rep = prepare_training(net, threads=1)
    x = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    y = np.array([0, 2, 1, 2])
    z = rep.run({"x": x})["scores"]
    loss = rep.step({"x": x, "chosen": y})["loss"]
    np.testing.assert_allclose(loss, -z[np.arange(4), y].mean(), rtol=1e-5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("l (float[M,9] z) => (float o) {o = ReduceSum<keepdims=0>(z)}", "of shape"),
        ("l (double[M,3] z) => (double o) {o = ReduceSum<keepdims=0>(z)}", "DOUBLE"),
        ("l (float[M,3] z, float[M,3] y) => (float[M,3] o) {o = Sub(z, y)}", "not one number"),
        ("l (float[M,3] z) => (float o, float q) {o = ReduceSum(z) q = Neg(o)}", "2 outputs"),
    ],
)  # fmt: skip
def test_graph_that_is_no_loss_here(text: str, message: str) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 13]> {text}')
    with pytest.raises(ArgumentError, match=message):
        sx.trainable(mlp(), model)


def test_unknown_arguments_are_named_and_the_old_one_says_its_new_name() -> None:
    with pytest.raises(ArgumentError) as caught:
        sx.trainable(mlp(), output="scores", batchnorm="frozen")  # type: ignore[arg-type]
    assert "2 arguments" in str(caught.value)
    assert "called prediction" in str(caught.value)
    assert "did you mean batch_norm" in str(caught.value)
    net = sx.trainable(mlp(), "mse", prediction="a0")
    assert [term["prediction"] for term in settings_of(net)["loss_terms"]] == ["a0"]
    with pytest.raises(ArgumentError, match="did you mean cross_entropy"):
        sx.trainable(mlp(), "cross_entrpy")
    with pytest.raises(ArgumentError, match="did you mean cross_entropy"):
        sx.trainable(mlp(), "cros")
    with pytest.raises(ArgumentError, match="did you mean adamw"):
        sx.trainable(mlp(), "mse", "adamww")


def test_train_takes_a_tensor_and_a_file_by_two_names(tmp_path: Path) -> None:
    """`prediction` names a tensor and `output` a file; errors name the function that was called."""
    data = {"x": np.ones((4, 6), np.float32), "goal": np.ones((4, 5), np.float32)}
    settings: dict[str, Any] = {
        "steps": 1,
        "batch_size": 4,
        "train": "fc0.*",
        "output": tmp_path / "tuned.onnx",
    }
    run = sx.train(mlp(), data, loss="mse", prediction="a0", labels="goal", **settings)
    (term,) = settings_of(run.model)["loss_terms"]
    assert (term["prediction"], term["labels"]) == ("a0", ["goal"])
    assert (tmp_path / "tuned.onnx").is_file()
    with pytest.raises(ArgumentError, match=r"^train got 1 argument that it does not have"):
        sx.train(mlp(), data, loss="mse", batchnorm="frozen", **settings)
    with pytest.raises(ArgumentError, match="mse takes 1 label, not 2"):
        sx.train(mlp(), data, loss="mse", labels=["goal", "other"], **settings)
