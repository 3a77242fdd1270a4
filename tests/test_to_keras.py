"""ONNX models as Keras models on the backend of this process: onnxruntime is the oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sardonyx as sx
from sardonyx.errors import ArgumentError
from sardonyx.record.info import state_names, state_tensor

keras = pytest.importorskip("keras")
torch = pytest.importorskip("torch")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


@pytest.fixture(scope="module")
def network() -> sx.Model:
    """A small network with batch normalization, whose record trains it."""
    torch.manual_seed(0)
    layers = torch.nn.Sequential(
        torch.nn.Linear(6, 5, bias=False),  # before a norm its gradient is noise
        torch.nn.BatchNorm1d(5),
        torch.nn.Tanh(),
        torch.nn.Linear(5, 3),
    )
    model = sx.from_torch(layers.eval(), torch.randn(2, 6))
    return sx.trainable(model, loss="cross_entropy", optimizer=sx.optim.adamw(1e-2))


def batches(count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [
        (rng.normal(size=(8, 6)).astype(np.float32), rng.integers(0, 3, 8)) for _ in range(count)
    ]


def names(model: sx.Model) -> list[str]:
    return [value.name or "" for value in sx.prepare_training(model).step_inputs]


def test_it_predicts_what_onnxruntime_does(network: sx.Model) -> None:
    x = batches(1)[0][0]
    (expected,) = sx.prepare_training(network).run({names(network)[0]: x}).values()
    actual = sx.to_keras(network).predict(x, verbose=0)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_its_steps_are_those_of_the_record_also_from_a_file(
    network: sx.Model, tmp_path: Path
) -> None:
    stock, model = sx.prepare_training(network), sx.to_keras(network)
    image, label = names(network)
    for index, (x, y) in enumerate(batches(4)):
        if index == 2:  # the optimizer goes on where it stopped
            model.save(tmp_path / "network.keras")
            model = keras.models.load_model(tmp_path / "network.keras")
        model.reset_metrics()
        loss = float(stock.step({image: x, label: y})["loss"])
        assert float(model.train_on_batch(x, y)) == pytest.approx(loss, rel=1e-5)
    back = sx.with_weights(network, model, optimizer=True)
    (record,) = back.records
    for name, expected in stock.state().items():
        tensor = state_tensor(back, record, name)
        assert tensor is not None
        actual = tensor.numpy()
        np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-5, err_msg=name)
    assert set(state_names(back, record)) == set(stock.state())


def test_frozen_weights_are_those_of_keras_also_from_a_file(tmp_path: Path) -> None:
    """What a record does not train is read from Keras's variables like everything else."""
    torch.manual_seed(1)
    layers = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    model = sx.from_torch(layers.eval(), torch.randn(2, 6))
    net = sx.trainable(model, loss="cross_entropy", optimizer=sx.optim.sgd(0.1), train="2.*")
    stock, network = sx.prepare_training(net), sx.to_keras(net)
    network.save(tmp_path / "network.keras")
    network = keras.models.load_model(tmp_path / "network.keras")
    image, label = names(net)
    for x, y in batches(3):
        network.reset_metrics()
        loss = float(stock.step({image: x, label: y})["loss"])
        assert float(network.train_on_batch(x, y)) == pytest.approx(loss, rel=1e-5)
    x, y = batches(1)[0]
    before = float(network.evaluate(x, y, verbose=0))
    frozen = network.layer.variables_by_name["0.weight"]
    frozen.assign(keras.ops.zeros_like(frozen))
    assert abs(float(network.evaluate(x, y, verbose=0)) - before) > 1e-3


@pytest.mark.parametrize("form", ["model", "file"])
def test_it_goes_back_to_onnx_with_its_state(form: str, network: sx.Model, tmp_path: Path) -> None:
    model, (x, y) = sx.to_keras(network), batches(1)[0]
    model.fit(x, y, epochs=2, verbose=0)
    model.save(tmp_path / "network.keras")
    back = sx.from_keras(model if form == "model" else tmp_path / "network.keras")
    stock = sx.prepare_training(back)
    image, label = names(back)
    model.reset_metrics()
    loss = float(stock.step({image: x, label: y})["loss"])
    assert float(model.train_on_batch(x, y)) == pytest.approx(loss, rel=1e-5)
    assert not sx.from_keras(model, training=False).records


def test_a_loss_of_keras_is_in_the_file_as_well(network: sx.Model, tmp_path: Path) -> None:
    model, (x, y) = sx.to_keras(network), batches(1)[0]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9), loss=loss)
    model.fit(x, y, epochs=2, verbose=0)
    model.save(tmp_path / "network.keras")
    again = keras.models.load_model(tmp_path / "network.keras")
    for _ in range(2):
        assert float(again.train_on_batch(x, y)) == pytest.approx(float(model.train_on_batch(x, y)))


def test_it_fits_evaluates_and_takes_another_loss(network: sx.Model) -> None:
    model = sx.to_keras(network)
    x, y = batches(1)[0]
    history = model.fit(x, y, epochs=3, batch_size=8, verbose=0).history["loss"]
    assert history[-1] < history[0]
    assert float(model.evaluate(x, y, verbose=0)) > 0
    model.optimizer.learning_rate = 0.0
    before = {n: keras.ops.convert_to_numpy(v) for n, v in model.layer.variables_by_name.items()}
    model.train_on_batch(x, y)
    for name, variable in model.layer.variables_by_name.items():
        if "running" not in name:
            np.testing.assert_array_equal(keras.ops.convert_to_numpy(variable), before[name])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="sgd", loss=loss, metrics=["accuracy"])
    history = model.fit(x, y, epochs=2, batch_size=8, verbose=0).history
    assert set(history) == {"loss", "accuracy"}
    assert history["loss"][1] < history["loss"][0]


def test_missing_labels_and_foreign_optimizers_are_refused(network: sx.Model) -> None:
    model = sx.to_keras(network)
    with pytest.raises(ArgumentError, match="needs these labels"):
        model._feeds((batches(1)[0][0],))
    model.compile(optimizer="adam", loss="mse")
    with pytest.raises(ArgumentError, match="does not fit the record"):
        sx.with_weights(network, model, optimizer=True)


def test_several_inputs_and_outputs_have_their_names() -> None:
    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(3))

        def forward(self, a: Any, b: Any) -> Any:
            return {"product": a * b * self.weight, "total": a + b}

    model = sx.from_torch(Two().eval(), (torch.randn(2, 3), torch.randn(2, 3)))
    inputs = [value.name or "" for value in model.inputs]
    feeds = {name: np.full((2, 3), 2.0, np.float32) for name in inputs}
    outputs = sx.to_keras(model).predict(feeds, verbose=0)
    assert set(outputs) == {value.name for value in model.outputs}
    np.testing.assert_allclose(outputs["total"], 4.0)
