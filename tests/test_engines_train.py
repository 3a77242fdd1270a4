"""Training on every engine: the same record from the same file gives the same losses.

The oracle is stock onnxruntime, an independent implementation of every operator of a step.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import sardonyx as sx
from sardonyx import plugins
from sardonyx.engines.prepare import prepare_training
from sardonyx.errors import ArgumentError, EngineError, TrainingStopped
from sardonyx.model import Model
from sardonyx.record.describe import settings_of
from sardonyx.train.auto import fastest
from tests.networks import cnn, lstm, mlp, network, transformer

ENGINES = ["numpy", "torch", "jax", "tensorflow"]
STEPS = 100
NETWORKS = {
    "mlp": (lambda: mlp((6, 8, 3)), (6,), np.float32),
    "cnn": (cnn, (3, 8, 8), np.float32),
    "transformer": (transformer, (5,), np.int64),
    "lstm": (lstm, (4, 3), np.float32),
}


def batches(name: str, steps: int, seed: int = 0) -> Iterator[dict[str, np.ndarray]]:
    """Random rows with a rule to learn; the last batch is shorter, as an epoch's last one is."""
    rng = np.random.default_rng(seed)
    _, shape, kind = NETWORKS[name]
    for step in range(steps):
        rows = 4 if step < steps - 1 else 3
        if kind is np.int64:
            ids = rng.integers(0, 11, (rows, *shape))
            yield {"ids": ids, "label": (ids + 3) % 11}
        else:
            x = rng.normal(size=(rows, *shape)).astype(kind)
            yield {"x": x, "label": (x.reshape(rows, -1)[:, :3]).argmax(1)}


def trained(name: str) -> Model:
    model = NETWORKS[name][0]()
    options = {"axis": 2} if name == "transformer" else {}
    loss = sx.loss.cross_entropy(**options)
    return sx.trainable(model, loss, sx.optim.adamw(3e-3), seed=7)


def losses(rep: object, name: str, steps: int) -> np.ndarray:
    return np.array([float(rep.step(b)["loss"]) for b in batches(name, steps)])  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def wanted() -> dict[str, tuple[np.ndarray, dict[str, np.ndarray]]]:
    """The losses and the final state of each network on onnxruntime."""
    result = {}
    for name in NETWORKS:
        rep = prepare_training(trained(name))
        result[name] = losses(rep, name, STEPS), rep.state()
    return result


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("engine", ENGINES)
def test_losses_agree_over_100_steps(engine: str, name: str, wanted: dict) -> None:
    pytest.importorskip(engine)
    rep = prepare_training(trained(name), engine)
    expected, state = wanted[name]
    np.testing.assert_allclose(losses(rep, name, STEPS), expected, rtol=2e-4, atol=2e-5)
    final = rep.state()
    assert final.keys() == state.keys()
    assert int(final["train/step"]) == STEPS
    assert {n: a.dtype for n, a in final.items()} == {n: a.dtype for n, a in state.items()}


def test_losses_fall(wanted: dict) -> None:
    for name, (result, _) in wanted.items():
        assert result[-20:].mean() < result[:20].mean(), name


@pytest.mark.parametrize("engine", ENGINES)
def test_dropout_masks_are_bit_equal(engine: str) -> None:
    pytest.importorskip(engine)
    text = """mask (float[N,64] x) => (float[N,64] y) { d = Dropout (x, ratio)  y = Mul (d, w) }"""
    model = network(text, {"ratio": np.asarray(0.5), "w": np.ones(64)})
    net = sx.trainable(model, "mse", sx.optim.sgd(1.0), seed=3)
    batch = {"x": np.ones((1, 64), np.float32), "label": np.zeros((1, 64), np.float32)}
    result = []
    for name in ("onnxruntime", engine):
        rep = prepare_training(net, name)
        for _ in range(3):
            rep.step(batch)
        result.append(rep.state()["w"])
    # the gradient of an element is 0 exactly where it was dropped, in each of three steps
    np.testing.assert_allclose(result[1], result[0], rtol=1e-6)
    assert len(np.unique(result[0].round(6))) == 4


@pytest.mark.parametrize(
    ("first", "second"),
    [("onnxruntime", "torch"), ("torch", "jax"), ("jax", "tensorflow"), ("tensorflow", "numpy")],
)
def test_checkpoint_of_one_engine_is_continued_by_another(
    first: str, second: str, tmp_path: Path
) -> None:
    for engine in (first, second):
        pytest.importorskip(engine)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 6)).astype(np.float32)
    data = {"x": x, "label": x[:, :3].argmax(1)}
    settings = {"loss": "cross_entropy", "optimizer": sx.optim.adamw(1e-2), "batch_size": 8}
    whole = sx.train(mlp(), data, steps=12, **settings)
    kept = tmp_path / "kept.onnx"
    sx.train(mlp(), data, steps=5, engine=first, output=kept, **settings)
    run = sx.train(kept, data, steps=12, engine=second, output=kept, resume=True)
    np.testing.assert_allclose(run.losses, whole.losses[5:], rtol=1e-5)
    for name, value in whole.model.graph.initializers.items():
        ours = sx.load(kept).initializer(name).numpy()
        np.testing.assert_allclose(ours, value.const_value.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_inference_and_evaluation_use_the_state(engine: str) -> None:
    pytest.importorskip(engine)
    # Not Adam: the bias before the norm has no gradient but noise, which Adam would scale up.
    net = sx.trainable(cnn(), "cross_entropy", sx.optim.sgd(0.05), seed=7)
    forward = settings_of(net)["forward"]
    reps = [prepare_training(net, name) for name in ("onnxruntime", engine)]
    (batch,) = batches("cnn", 1)
    for rep in reps:
        rep.step(batch)
    theirs, ours = (rep.run({"x": batch["x"]})["scores"] for rep in reps)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    theirs, ours = (rep.evaluate(batch, forward, ["scores"]) for rep in reps)
    np.testing.assert_allclose(ours["loss"], theirs["loss"], rtol=1e-5)
    assert [v.name for v in reps[1].step_inputs] == [v.name for v in reps[0].step_inputs]


@pytest.mark.parametrize("engine", ENGINES)
def test_backend_trains(engine: str) -> None:
    pytest.importorskip(engine)
    room = importlib.import_module(f"sardonyx.engines.{engine}")
    net = trained("mlp")
    seen: list[float] = []
    proto = room.Backend.train_model(
        net.proto(), batches("mlp", 6), steps=4, callback=lambda i, f: seen.append(float(f["loss"]))
    )
    expected = losses(prepare_training(net), "mlp", 6)[:4]
    np.testing.assert_allclose(seen, expected, rtol=1e-5)
    tuned = sx.load(proto)
    assert tuned.records and tuned.initializer("fc0.weight").numpy().dtype == np.float32


@pytest.mark.parametrize("engine", ENGINES)
def test_wrong_feeds_are_named(engine: str) -> None:
    pytest.importorskip(engine)
    rep = prepare_training(trained("mlp"), engine)
    (batch,) = batches("mlp", 1)
    with pytest.raises(ArgumentError, match="float64, not float32"):
        rep.step({**batch, "x": batch["x"].astype(np.float64)})
    with pytest.raises(ArgumentError, match='needs the input "label"'):
        rep.step({"x": batch["x"]})
    with pytest.raises(ArgumentError, match="is state"):
        rep.step({**batch, "fc0.weight": np.zeros((8, 6), np.float32)})
    with pytest.raises(ArgumentError, match="float32 \\[8, 6\\] ← float32 \\[2\\]"):
        rep.load_state({"fc0.weight": np.zeros(2, np.float32)})


@pytest.mark.parametrize("engine", ENGINES)
def test_first_tensor_that_is_not_finite_is_named(engine: str) -> None:
    pytest.importorskip(engine)
    text = "log (float[N,2] x) => (float[N,2] y) { z = Mul (x, w)  y = Log (z) }"
    net = sx.trainable(network(text, {"w": np.ones(2)}), "mse", sx.optim.sgd(0.1))
    rows = np.array([[1.0, -1.0]], np.float32)
    with pytest.raises(TrainingStopped, match='tensor "y"'):
        sx.train(net, {"x": rows, "label": rows}, steps=1, engine=engine)


def test_initialization_starts_again() -> None:
    net = sx.trainable(mlp(), "cross_entropy", initialize={"fc0.weight": "kaiming"})
    rep = prepare_training(net, "numpy")
    before = rep.state()
    rep.initialize(seed=1)
    after = rep.state()
    assert not np.array_equal(before["fc0.weight"], after["fc0.weight"])
    np.testing.assert_array_equal(before["fc1.weight"], after["fc1.weight"])


def test_auto_picks_an_engine_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 6)).astype(np.float32)
    data = {"x": x, "label": x[:, :3].argmax(1)}
    (batch,) = batches("mlp", 1)
    rep, (what, name, why) = fastest(trained("mlp"), batch, ["numpy", "onnxruntime"])
    assert what == "engine" and name in why and "numpy" in why and "onnxruntime" in why
    assert type(rep).__module__.startswith(f"sardonyx.engines.{name}.")
    assert int(rep.state()["train/step"]) == 0
    expected = sx.train(mlp(), data, steps=3, loss="cross_entropy", batch_size=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plugins, "contenders", lambda: ["numpy", "onnxruntime"])
        run = sx.train(
            mlp(), data, steps=3, loss="cross_entropy", batch_size=4, engine="auto", display="lines"
        )
    assert "fastest in a trial" in capsys.readouterr().err
    np.testing.assert_allclose(run.losses, expected.losses, rtol=1e-5)


def test_auto_passes_over_an_engine_that_cannot() -> None:
    (batch,) = batches("mlp", 1)
    with pytest.raises(EngineError, match="no installed engine can train"):
        fastest(trained("mlp"), {"x": batch["x"]}, ["numpy"])


@pytest.mark.parametrize("name", NETWORKS)
def test_torch_steps_can_be_traced_for_its_compiler(
    name: str, monkeypatch: pytest.MonkeyPatch, wanted: dict
) -> None:
    torch = pytest.importorskip("torch")
    inputs = []
    monkeypatch.setattr(torch, "compile", lambda graph: inputs.append(graph) or graph)
    rep = prepare_training(trained(name), "torch", compile=True)
    result = [float(rep.step(b)["loss"]) for b, _ in zip(batches(name, STEPS), range(5))]
    np.testing.assert_allclose(result, wanted[name][0][:5], rtol=1e-4, atol=1e-5)
    assert len(inputs) == 1  # the forward half, for all batches of one size; the update is not
    assert all(isinstance(graph, torch.fx.GraphModule) for graph in inputs)


def test_one_function_prepares_every_engine() -> None:
    net = trained("mlp")
    assert type(sx.prepare_training(net)).__module__.startswith("sardonyx.engines.onnxruntime")
    assert (
        type(sx.prepare_training(net.proto(), "numpy")).__module__
        == "sardonyx.engines.numpy.backend"
    )
    with pytest.raises(sx.errors.ArgumentError, match="no engine called 'abacus'"):
        sx.prepare_training(net, "abacus")
    with pytest.raises(sx.errors.ArgumentError, match="has no option 'speed'"):
        sx.prepare_training(net, "numpy", speed=2)
    with pytest.raises(sx.errors.EngineError, match="no device"):
        sx.prepare_training(net, device="ABACUS")
