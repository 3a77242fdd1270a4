"""The training half of the ONNX backend interface: prepare_training, train_model, and what they
return.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.backend.base
import onnxruntime
import pytest

import sardonyx as sx
from sardonyx.engines import onnxruntime as engine
from sardonyx.engines.onnxruntime import Backend, TrainingRep
from sardonyx.errors import ArgumentError, RecordError

from .networks import mlp

torch = pytest.importorskip("torch")


def batches(count: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    return [
        {"x": rng.normal(size=(7, 6)).astype(np.float32), "label": rng.integers(0, 3, 7)}
        for _ in range(count)
    ]


def net() -> onnx.ModelProto:
    net = sx.trainable(
        mlp(),
        "cross_entropy",
        sx.optim.sgd(0.1, 0.9),
        initialize={"fc*.weight": "xavier", "*.bias": "zeros"},
    )
    return net.proto()


def torch_losses(count: int) -> list[float]:
    from .networks import torch_mlp

    parameters, forward = torch_mlp(mlp(dtype=np.float64))
    optimizer = torch.optim.SGD(list(parameters.values()), 0.1, 0.9)
    losses = []
    for batch in batches(count):
        scores = forward(torch.tensor(batch["x"].astype(np.float64)))
        loss = torch.nn.functional.cross_entropy(scores, torch.tensor(batch["label"]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_backend_is_one_of_onnx() -> None:
    assert issubclass(Backend, onnx.backend.base.Backend)
    assert Backend.supports_device("CPU")
    assert not Backend.supports_device("TPU")


def test_module_has_the_functions_of_a_backend() -> None:
    for name in ("prepare", "run_model", "supports_device", "prepare_training", "train_model"):
        assert callable(getattr(engine, name)), name


def test_prepare_training_takes_a_proto_bytes_path_and_model(tmp_path: Path) -> None:
    proto = net()
    onnx.save(proto, tmp_path / "net.onnx")
    batch = batches(1)[0]
    losses = set()
    for source in (proto, proto.SerializeToString(), tmp_path / "net.onnx", sx.load(proto)):
        rep = engine.prepare_training(source)
        assert isinstance(rep, TrainingRep)
        losses.add(float(rep.step(batch)["loss"]))
    assert len(losses) == 1


def test_step_returns_what_is_no_state() -> None:
    rep = engine.prepare_training(net())
    result = rep.step(batches(1)[0])
    assert list(result) == ["loss"]
    assert result["loss"].shape == ()
    assert result["loss"].dtype == np.float32


def test_train_model_is_training(tmp_path: Path) -> None:
    seen: list[tuple[int, float]] = []
    trained = engine.train_model(
        net(), batches(20), callback=lambda i, f: seen.append((i, float(f["loss"])))
    )
    assert [i for i, _ in seen] == list(range(20))
    np.testing.assert_allclose([loss for _, loss in seen], torch_losses(20), rtol=1e-4)
    assert isinstance(trained, onnx.ModelProto)
    assert len(trained.training_info) == 1, "the checkpoint is the model: it can be trained on"
    path = tmp_path / "trained.onnx"
    sx.save(sx.load(trained), path)
    x = batches(1)[0]["x"]
    (served,) = onnxruntime.InferenceSession(str(path)).run(None, {"x": x})
    rep = engine.prepare_training(trained)
    np.testing.assert_allclose(rep.run({"x": x})["scores"], served, rtol=1e-6)


def test_train_model_stops_after_the_steps_asked_for() -> None:
    drawn = []

    def endless():  # type: ignore[no-untyped-def]
        while True:
            drawn.append(1)
            yield batches(1)[0]

    seen: list[int] = []
    engine.train_model(net(), endless(), steps=3, callback=lambda i, f: seen.append(i))
    assert seen == [0, 1, 2]
    assert len(drawn) == 3, "no batch is drawn that is not trained on"


def test_train_model_can_start_afresh() -> None:
    trained = sx.load(engine.train_model(net(), [], initialize=True))
    bias, weight = (trained.initializer(f"fc0.{n}").numpy() for n in ("bias", "weight"))
    assert not bias.any()
    bound = np.sqrt(6 / 11)
    assert np.abs(weight).max() <= bound
    assert not np.array_equal(weight, mlp().initializer("fc0.weight").numpy())


def test_initialize_restores_the_optimizer() -> None:
    rep = engine.prepare_training(net())
    for batch in batches(3):
        rep.step(batch)
    assert rep.state()["fc0.weight/momentum"].any()
    rep.initialize(seed=1)
    state = rep.state()
    assert not state["fc0.weight/momentum"].any()
    rep.initialize(seed=1)
    assert all(np.array_equal(rep.state()[n], a) for n, a in state.items())


def test_state_is_a_copy_and_load_state_brings_it_back() -> None:
    rep = engine.prepare_training(net())
    first, second = batches(2)
    rep.step(first)
    kept = rep.state()
    loss = rep.step(second)["loss"]
    kept["fc0.bias"] += 0
    rep.load_state(kept)
    assert rep.step(second)["loss"] == loss
    rep.load_state({"fc0.bias": np.zeros(5, np.float32)})
    assert not rep.state()["fc0.bias"].any()


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"nothing": np.zeros(1)}, '"nothing".*is no state variable'),
        ({"fc0.bias": np.zeros(4, np.float32)}, r"\[5\] ← .*\[4\]"),
        ({"fc0.bias": np.zeros(5)}, "float32.*← float64"),
    ],
)
def test_state_that_does_not_fit_is_refused(state: dict[str, np.ndarray], message: str) -> None:
    rep = engine.prepare_training(net())
    before = rep.state()
    with pytest.raises(ArgumentError, match=message):
        rep.load_state({"fc1.bias": np.ones(3, np.float32), **state})
    assert all(np.array_equal(rep.state()[n], a) for n, a in before.items()), "all or nothing"


def test_run_changes_nothing() -> None:
    rep = engine.prepare_training(net())
    before = rep.state()
    x = batches(1)[0]["x"]
    a, b = rep.run({"x": x})["scores"], rep.run({"x": x})["scores"]
    assert np.array_equal(a, b)
    assert all(np.array_equal(rep.state()[n], v) for n, v in before.items())


def test_batches_of_different_sizes() -> None:
    rep = engine.prepare_training(net())
    rng = np.random.default_rng(0)
    for rows in (7, 3, 9, 1):
        batch = {
            "x": rng.normal(size=(rows, 6)).astype(np.float32),
            "label": rng.integers(0, 3, rows),
        }
        assert np.isfinite(rep.step(batch)["loss"])
        assert rep.run({"x": batch["x"]})["scores"].shape == (rows, 3)


def test_missing_inputs_and_broken_records_are_named() -> None:
    with pytest.raises(ArgumentError, match='needs the input "label"'):
        engine.prepare_training(net()).step({"x": batches(1)[0]["x"]})
    proto = net()
    proto.training_info[0].update_binding[0].key = "nowhere"
    with pytest.raises(RecordError, match="nowhere"):
        engine.prepare_training(proto)
    with pytest.raises(ArgumentError, match="no training record"):
        engine.train_model(mlp().proto(), [])


def test_training_operators_in_the_graph_itself_are_run() -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "ai.onnx.preview.training": 1]>
    g (float a, float b) => (float c, float da, float db) {
        c = Mul(a, b)
        da, db = ai.onnx.preview.training.Gradient<xs = ["a", "b"], y = "c">(a, b)
    }"""
    result = engine.run_model(onnx.parser.parse_model(text), [np.float32(3), np.float32(5)])
    assert [float(v) for v in result] == [15.0, 5.0, 3.0]
