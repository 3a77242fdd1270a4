"""OpenVINO, IREE and tract as engines: what they lack runs elsewhere, training steps agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx as sx
from sardonyx import plugins
from sardonyx.engines.segments import level_of_each

from .networks import cnn, mlp

nightly = pytest.mark.nightly


def model(text: str) -> sx.Model:
    return sx.load(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 22]>\n{text}'))


def test_levels_never_fall_along_an_edge() -> None:
    graph = model(
        "g (float[2] x) => (float[2] z, float[2] w)"
        "{a = Relu(x) b = Exp(a) c = Relu(b) d = Exp(x) z = Add(c, d) w = Neg(z)}"
    ).graph
    # Exp is elsewhere: odd
    levels = level_of_each(graph, {1, 3})
    assert levels == [0, 1, 2, 1, 2, 2]


def test_a_missing_package_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        import openvino  # noqa: F401
    except ImportError:
        with pytest.raises(sx.errors.MissingExtra, match="openvino is not installed"):
            sx.predict(mlp(), {"x": np.zeros((2, 4), np.float32)}, engine="openvino")
        report = sx.verify(mlp(), "openvino")  # names it, and judges what it can
        assert report.verdict == "could not tell" and "openvino is not installed" in str(report)
    else:
        pytest.skip("openvino is installed")


@pytest.fixture
def runner() -> type:
    pytest.importorskip("openvino")
    from sardonyx.engines.openvino import Runner

    return Runner


@nightly
@pytest.mark.parametrize("dtype", [np.int64, np.longlong])
def test_both_of_numpys_long_integers_are_taken(runner: type, dtype: type) -> None:
    text = "g (float[N,4] x, int64[M] i) => (float[M,4] y) {y = Gather(x, i)}"
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    indices = np.array([2, 0], dtype)
    (y,) = runner(model(text))({"x": x, "i": indices}).values()
    np.testing.assert_array_equal(y, x[[2, 0]])


@nightly
def test_integers_and_doubles_stay_exact(runner: type) -> None:
    text = """g (int64[3] i, double[3] d, float[3] x) => (int64[3] j, double[3] e, float[3] y)
    {j = Add(i, i) e = Exp(d) y = Relu(x)}"""
    i, d = np.array([2**40 + 1, -5, 2**35]), np.array([1e-12, 0.5, 3])
    x = np.array([-1, 0, 2], np.float32)
    run = runner(model(text))
    outputs = run({"i": i, "d": d, "x": x})
    np.testing.assert_array_equal(outputs["j"], i + i)
    np.testing.assert_allclose(outputs["e"], np.exp(d), rtol=1e-15)
    np.testing.assert_array_equal(outputs["y"], np.maximum(x, 0))
    assert {p.node.op_type for p in run.elsewhere} == {"Add", "Exp"}


@nightly
def test_outputs_that_are_inputs_are_values_of_their_own(runner: type) -> None:
    text = "g (float[2] x) => (float[2] y, float[2] z) {y = Identity(x) z = Identity(x)}"
    x = np.array([1.5, -2], np.float32)
    outputs = runner(model(text))({"x": x})
    x[0] = 9
    for value in outputs.values():
        np.testing.assert_array_equal(value, np.array([1.5, -2], np.float32))


@nightly
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("network", [mlp, cnn], ids=["mlp", "cnn"])
@pytest.mark.parametrize("engine", ["openvino", "iree", "tract"])
def test_training_agrees(engine: str, network: Callable[[], sx.Model], optimizer: str) -> None:
    pytest.importorskip(plugins.engine(engine).requires)
    net = sx.trainable(network(), "cross_entropy", optimizer=optimizer)
    assert sx.verify_training(net, engine, steps=3).verdict == "same"


@nightly
def test_batches_of_several_sizes() -> None:
    pytest.importorskip("openvino")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(22, 6)).astype(np.float32)
    data = {"x": x, "label": x[:, :3].argmax(1)}
    how = {"loss": "cross_entropy", "batch_size": 5, "epochs": 2}
    runs = [sx.train(mlp(), data, engine=e, **how) for e in ("openvino", "onnxruntime")]
    np.testing.assert_allclose(runs[0].losses, runs[1].losses, rtol=1e-5)


@nightly
def test_it_contends_for_the_fastest() -> None:
    pytest.importorskip("openvino")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 6)).astype(np.float32)
    data = {"x": x, "label": x[:, :3].argmax(1)}
    run = sx.train(mlp(), data, loss="cross_entropy", steps=2, engine="auto")
    (row,) = [row for row in run.settings["choices"] if row[0] == "engine"]
    assert "openvino" in row[2] and "openvino cannot" not in row[2]


@nightly
@pytest.mark.parametrize("slow", ["onnxruntime", "openvino"])
def test_the_faster_one_is_taken(slow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino")
    from sardonyx.train import auto

    trial = auto._trial

    def delayed(rep: Any, batch: Any) -> float:
        name = type(rep).__module__.split(".")[2]
        return trial(rep, batch) + 100 * (name == slow)

    monkeypatch.setattr(auto, "_trial", delayed)
    monkeypatch.setattr(plugins, "contenders", lambda: ["onnxruntime", "openvino"])
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 6)).astype(np.float32)
    data = {"x": x, "label": x[:, :3].argmax(1)}
    how = {"loss": "cross_entropy", "steps": 3}
    run = sx.train(mlp(), data, engine="auto", **how)
    assert run.engine == {"onnxruntime": "openvino", "openvino": "onnxruntime"}[slow]
    expected = sx.train(mlp(), data, engine="onnxruntime", **how)
    np.testing.assert_allclose(run.losses, expected.losses, rtol=1e-5)


@nightly
def test_placement_says_what_runs_elsewhere(runner: type) -> None:
    text = (
        """g (float[N,3] x) => (float[N,3] y, bool[N,3] n) {a = Exp(x) n = IsInf(a) y = Relu(a)}"""
    )
    placed = sx.placement(model(text), "openvino", sizes={"N": 4})
    assert (placed.stays, [row[0] for row in placed.nodes]) == (2, ["IsInf"])
    (part,) = placed.parts
    assert (part.engine, part.ins, part.outs) == ("onnxruntime", "48", "12")
