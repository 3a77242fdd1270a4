"""Gradients and training steps compared: engines, frameworks' own gradients, trajectories."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import sardonyx as sx
from sardonyx.errors import ArgumentError, DataError
from sardonyx.verify.exact import Reference
from sardonyx.verify.gradients import gradient_model
from sardonyx.verify.noise import DIFFERENT, SAME, UNKNOWN
from tests.mutants import NETWORKS
from tests.networks import mlp, network, parse


def test_gradients_of_two_engines() -> None:
    model = mlp()
    assert sx.verify(model, "numpy", gradients=True, seeds=2).verdict == SAME
    wrong = model.copy()
    wrong.graph.node("act0").op_type = "Softsign"
    report = sx.verify(model, wrong, gradients=True, seeds=1, culprit=False)
    assert report.verdict == DIFFERENT
    assert report.bands == (10, 50)
    # What plain numpy returns is differentiated by nobody: no verdict.
    report = sx.verify(model, lambda x: x[:, :3], gradients=True, seeds=1)
    assert (report.verdict, report.exit_code) == (UNKNOWN, 5)
    assert "no framework differentiates a function that returns a ndarray" in "".join(report.notes)


def test_softmax_is_differentiated_where_it_shows() -> None:
    """The plain sum of a softmax is constant: its gradient would be 0 whatever is wrong."""
    text = """<ir_version: 9, opset_import: ["": 20]> g (float[N,4] x) => (float[N,4] y)
    { y = Softmax %s (x) }"""
    right, wrong = parse(text % ""), parse(text % "<axis: int = 0>")
    report = sx.verify(right, wrong, gradients=True, inputs={"x": SQUARE}, culprit=False)
    assert report.verdict == DIFFERENT
    weight = (np.arange(16) * 7 % 61 - 30) / 32
    p = np.exp(SQUARE.astype(np.float64))
    p /= p.sum(1, keepdims=True)
    g = weight.reshape(4, 4)
    by_hand = p * (g - (p * g).sum(1, keepdims=True))
    (result,) = Reference(gradient_model(right, []), exact=True)({"x": SQUARE}).values()
    np.testing.assert_allclose(result, by_hand, rtol=1e-12)


SQUARE = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)


@pytest.mark.parametrize("convert", ["to_torch", pytest.param("to_jax", marks=pytest.mark.slow)])
@pytest.mark.parametrize("network", ["cnn", "transformer"])
def test_gradients_of_a_framework_are_ours(network: str, convert: str) -> None:
    """The framework differentiates the conversion by itself: an oracle that shares no rule."""
    model = sx.load(NETWORKS[network]())
    report = sx.verify(model, getattr(sx, convert)(model), gradients=True, seeds=1)
    assert report.verdict == SAME, str(report)
    names = {m.output for m in report.measurements}
    expected = {"cnn": {"grad/x", "grad/w1", "grad/bn2.scale"}}.get(network, {"grad/mask"})
    assert expected <= names and len(names) >= 10


@pytest.mark.slow
@pytest.mark.parametrize("convert", ["to_tensorflow", "to_jax", "to_torch"])
def test_a_gradient_that_is_off_is_found(convert: str) -> None:
    model = mlp()
    other = model.copy()
    tensor = other.initializer("fc0.weight").numpy() * np.float32(1.001)
    other.graph.initializers["fc0.weight"].const_value = ir.tensor(tensor, name="fc0.weight")
    report = sx.verify(model, getattr(sx, convert)(other), gradients=True, seeds=1)
    assert report.verdict == DIFFERENT


def test_gradients_of_a_module_of_others_are_compared_by_inputs() -> None:
    import torch

    model = mlp()
    module = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    weights = {n: v.const_value.numpy() for n, v in model.graph.initializers.items()}
    with torch.no_grad():
        for place, layer in ((0, "fc0"), (2, "fc1")):
            module[place].weight.copy_(torch.tensor(weights[f"{layer}.weight"]))
            module[place].bias.copy_(torch.tensor(weights[f"{layer}.bias"]))
    report = sx.verify(model, module, gradients=True, seeds=2)
    assert report.verdict == SAME, str(report)
    assert {m.output for m in report.measurements} == {"grad/x"}
    with torch.no_grad():
        module[0].bias += 0.01
    assert sx.verify(model, module, gradients=True, seeds=2).verdict == DIFFERENT


def trained(**settings: float) -> sx.Model:
    optimizer = sx.optim.adam(1e-2, **settings)
    return sx.trainable(mlp(activation="Tanh"), loss="cross_entropy", optimizer=optimizer)


def test_training_on_several_engines_is_the_same() -> None:
    result = sx.verify_training(trained(), "onnxruntime", "numpy", "torch", steps=6)
    assert result.verdict == SAME, str(result)
    assert result.exit_code == 0
    assert [part.label for part in result.parts] == ["onnxruntime", "numpy", "torch"]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["jax", "tensorflow"])
def test_training_on_the_other_engines_is_the_same(engine: str) -> None:
    assert sx.verify_training(trained(), engine, steps=6).verdict == SAME


@pytest.mark.parametrize("engine", ["numpy", "torch"])
def test_a_file_that_trains_otherwise_parts_on_any_engine(engine: str) -> None:
    """Another rate of learning: every parameter leaves at the first step, the moments do not."""
    other = sx.trainable(mlp(), loss="cross_entropy", optimizer=sx.optim.adam(1.01e-2))
    (result,) = sx.verify_training(trained(), (other, engine), steps=3).parts
    assert result.verdict == DIFFERENT and result.parted is not None
    assert result.parted[0] == 1 and "adam" not in result.parted[1]


# Another epsilon acts at once; another beta2 only when there is a second moment to decay.
@pytest.mark.parametrize(
    ("settings", "first"), [({"eps": 1e-5}, 1), ({"b2": 0.9991}, 2)], ids=["epsilon", "beta2"]
)
def test_training_that_differs_names_step_and_variable(
    settings: dict[str, float], first: int
) -> None:
    (result,) = sx.verify_training(trained(), trained(**settings), steps=6).parts
    assert (result.verdict, result.exit_code) == (DIFFERENT, 1)
    assert result.parted is not None
    step, variable = result.parted
    assert step == first
    assert variable.endswith("adam_v") == ("b2" in settings)


def test_training_needs_a_record_and_data_that_fits() -> None:
    with pytest.raises(ArgumentError, match="no training record"):
        sx.verify_training(mlp())
    with pytest.raises(DataError, match="lacks"):
        sx.verify_training(trained(), "numpy", data={"x": np.ones((4, 6), np.float32)})


class Moved:
    """A training whose steps end with one weight moved by `steps` of Lion."""

    def __init__(self, net: sx.Model, place: int, steps: float):
        self.rep, self.place, self.move = sx.prepare_training(net), place, steps * RATE
        self.moved = False

    def step(self, inputs: dict[str, np.ndarray]) -> None:
        self.rep.step(inputs)
        self.moved = True

    def state(self) -> dict[str, np.ndarray]:
        values = {n: np.array(a) for n, a in self.rep.state().items()}
        if self.moved:
            values["w"][self.place] += np.float32(self.move)
        return values

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        self.rep.load_state(state)
        self.moved = False


RATE = 0.01


@pytest.mark.parametrize(
    ("place", "steps", "verdict"),
    [(0, 1.0, SAME), (0, -1.0, SAME), (0, 1.5, DIFFERENT), (1, 2.0, DIFFERENT), (0, 0.0, SAME)],
)
def test_a_sign_that_rounding_decides_is_no_difference(
    place: int, steps: float, verdict: str
) -> None:
    """The gradient of weight 0 cancels: any sign may be that of a rounding error.

    The numbers are small fractions, so that no rounding hides a difference in the noise.
    """
    text = """<ir_version: 9, opset_import: ["": 20]> g (float[N,3] x) => (float[N,1] y)
    <float[3,1] w = {0, 0, 0}> { y = MatMul (x, w) }"""
    net = sx.trainable(parse(text), loss="mse", optimizer=sx.optim.lion(RATE))
    rng = np.random.default_rng(0)
    x, label = rng.integers(-8, 9, (8, 3)) / 8, rng.integers(-8, 9, (8, 1)) / 8
    x[4:, 0], label[4:] = x[:4, 0], -label[:4]
    data = [{"x": x.astype(np.float32), "label": label.astype(np.float32)}]
    report = sx.verify_training(net, Moved(net, place, steps), data=data, steps=1)
    assert report.verdict == verdict, str(report)


class Rounded(Moved):
    """A training whose steps leave `rest` where a gradient cancels, and go by its sign."""

    def __init__(self, net: sx.Model, rest: float):
        super().__init__(net, 0, 1.0)
        self.rest = rest

    def state(self) -> dict[str, np.ndarray]:
        values = super().state()
        slot = next(n for n in values if "lion" in n)
        return {**values, slot: values[slot] + np.float32(self.rest if self.moved else 0.0)}


@pytest.mark.parametrize(("rest", "verdict"), [(1e-10, SAME), (1e-5, DIFFERENT)])
def test_a_gradient_that_cancels_up_to_rounding_is_the_same(rest: float, verdict: str) -> None:
    """The numbers are small fractions that NumPy adds up to 0 without any rounding."""
    text = """<ir_version: 9, opset_import: ["": 20]> g (float[N,1] x) => (float[N,1] y)
    <float[1,1] w = {0}> { y = MatMul (x, w) }"""
    net = sx.trainable(parse(text), loss="mse", optimizer=sx.optim.lion(RATE))
    rng = np.random.default_rng(0)
    x, label = rng.integers(-8, 9, (8, 1)) / 8, rng.integers(-8, 9, (8, 1)) / 8
    x[4:], label[4:] = x[:4], -label[:4]
    data = [{"x": x.astype(np.float32), "label": label.astype(np.float32)}]
    report = sx.verify_training(net, Rounded(net, rest), data=data, steps=1)
    assert report.verdict == verdict, str(report)


def _tied_relu(offset: float) -> sx.Model:
    """A layer in which one number before the Relu is zero up to rounding, off by `offset` of the
    other sign; NumPy, which tells how much noise there is, has its sign right.
    """
    x = _tied_batch()["x"]
    for seed in range(50):
        rng = np.random.default_rng(seed)
        weight = rng.normal(size=(256, 8)).astype(np.float32)
        bias = np.zeros(8, np.float32)
        bias[0] = -(x[0].astype(np.float64) @ weight[:, 0])
        exact = (x[0].astype(np.float64) @ weight + bias)[0]
        if exact * (x @ weight + bias)[0, 0] > 0:
            break
    arrays = {"weight": weight, "bias": bias, "last": rng.normal(size=(8, 3))}
    arrays["offset"] = np.full(8, -np.sign(exact) * offset)
    text = """g (float[N,256] x) => (float[N,3] y)
        { p = MatMul(x, weight) q = Add(p, bias) s = Add(q, offset) h = Relu(s)
          y = MatMul(h, last) }"""
    model = network(text, arrays)
    return sx.trainable(model, "mse", optimizer="sgd", lr=0.1, train=["weight", "bias", "last"])


def _tied_batch() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(4)
    x = rng.normal(size=(4, 256)).astype(np.float32)
    return {"x": x, "label": rng.normal(size=(4, 3)).astype(np.float32)}


def test_a_relu_whose_side_rounding_decides_is_no_difference() -> None:
    """The offset is of the size of the rounding of what is added up, or much larger."""
    batch, model = [_tied_batch()], _tied_relu(0.0)
    report = sx.verify_training(model, _tied_relu(4e-6), data=batch, steps=1)
    assert report.verdict == SAME, str(report)
    report = sx.verify_training(model, _tied_relu(1e-2), data=batch, steps=1)
    assert report.verdict == DIFFERENT
