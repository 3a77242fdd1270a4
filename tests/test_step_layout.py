"""Convolutions of a step in onnxruntime's blocked layout, against torch and the plain step.

Sums are taken in another order than in the plain step: values agree to rounding, and the whole
training to the noise of float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import pytest
from onnx.parser import parse_model

import sardonyx as sx
from sardonyx.engines.onnxruntime import dense, depthwise, prepare_training, step_session
from sardonyx.engines.onnxruntime.session import open_session

torch = pytest.importorskip("torch")

CHANNELS = 32


@pytest.fixture(autouse=True)
def all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "PIXELS", 1)


@pytest.fixture
def arranged_models(monkeypatch: pytest.MonkeyPatch) -> list[onnx.ModelProto]:
    """The models that arranged sessions hand to onnxruntime."""
    seen: list[onnx.ModelProto] = []

    def spied(data: bytes, **settings: Any) -> Any:
        seen.append(onnx.load_from_string(data))
        return open_session(data, **settings)

    monkeypatch.setattr(step_session, "open_session", spied)
    return seen


def network(
    group: int, sizes: tuple[int, int], kernel: tuple[int, int], bias: bool, **how: list[int]
) -> onnx.ModelProto:
    """A convolution, so that the images need a gradient, the one that is tested, and a mean."""
    rng = np.random.default_rng(0)
    attributes = "".join(f", {name} = {items}" for name, items in how.items())
    model = parse_model(
        f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[3,{CHANNELS},{sizes[0]},{sizes[1]}] x) => (float[3,{CHANNELS}] y) {{
        a = Conv<kernel_shape = [1, 1]>(x, first)
        t = Tanh(a)
        c = Conv<group = {group}, kernel_shape = {list(kernel)}{attributes}>(t, w{", b" * bias})
        s = Sigmoid(c)
        m = GlobalAveragePool(s)
        y = Flatten(m)
        }}"""
    )
    shapes = {"first": (CHANNELS, CHANNELS, 1, 1), "w": (CHANNELS, CHANNELS // group, *kernel)}
    shapes |= {"b": (CHANNELS,)} if bias else {}
    for name, shape in shapes.items():
        array = (3 * rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


CASES: dict[str, tuple[tuple[int, int], tuple[int, int], dict[str, list[int]]]] = {
    "3×3, padded": ((7, 9), (3, 3), {"pads": [1, 1, 1, 1]}),
    "no pads": ((7, 6), (3, 3), {}),
    "one pixel": ((1, 1), (3, 3), {"pads": [1, 1, 1, 1]}),
    "stride 2": ((8, 9), (3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
    "strides 3 and 1": ((11, 6), (3, 3), {"pads": [0, 1, 0, 1], "strides": [3, 1]}),
    "dilated": ((9, 8), (3, 3), {"pads": [2, 2, 2, 2], "dilations": [2, 2]}),
    "dilated and strided": ((12, 11), (3, 3), {"strides": [2, 2], "dilations": [2, 3]}),
    "5×3, uneven pads": ((9, 7), (5, 3), {"pads": [2, 0, 1, 2]}),
    "pads beyond the kernel": ((5, 5), (2, 2), {"pads": [2, 2, 2, 2]}),
}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("group", [1, CHANNELS])
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_torch(
    case: str, group: int, bias: bool, arranged_models: list[onnx.ModelProto]
) -> None:
    sizes, kernel, how = CASES[case]
    model = network(group, sizes, kernel, bias, **how)
    net = sx.trainable(model, "mse", sx.optim.sgd(1.0))
    rng = np.random.default_rng(1)
    feeds = {
        "x": rng.normal(size=(3, CHANNELS, *sizes)).astype(np.float32),
        "label": rng.normal(size=(3, CHANNELS)).astype(np.float32),
    }
    rep = prepare_training(net, without=["kernels"])  # some of which replace blocks
    domains = {n.domain for m in arranged_models for n in m.graph.node}
    assert depthwise.DOMAIN in domains, "the case is in blocks"
    before = rep.state()
    loss = float(rep.step(feeds)["loss"])
    after = rep.state()
    expected_loss, expected = of_torch(before, feeds, group, how)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    for name, gradient in expected.items():
        found = before[name].astype(np.float64) - after[name]
        bound = 2e-6 * max(1.0, float(np.abs(before[name]).max()))
        np.testing.assert_allclose(found, gradient, rtol=1e-4, atol=bound, err_msg=name)


def of_torch(
    weights: dict[str, np.ndarray], feeds: dict[str, np.ndarray], group: int, how: dict[str, Any]
) -> tuple[float, dict[str, np.ndarray]]:
    """The loss and the gradients, in float64."""
    names = [n for n in ("first", "w", "b") if n in weights]
    given = {n: torch.tensor(weights[n], dtype=torch.float64, requires_grad=True) for n in names}
    top, left, bottom, right = how.get("pads", [0] * 4)
    h = torch.tanh(torch.nn.functional.conv2d(torch.tensor(feeds["x"]).double(), given["first"]))
    h = torch.nn.functional.pad(h, (left, right, top, bottom))
    h = torch.nn.functional.conv2d(
        h, given["w"], given.get("b"), how.get("strides", 1), 0, how.get("dilations", 1), group
    )
    y = torch.sigmoid(h).mean((2, 3))
    loss = torch.nn.functional.mse_loss(y, torch.tensor(feeds["label"]).double())
    loss.backward()
    return loss.item(), {n: v.grad.numpy() for n, v in given.items()}


def test_channels_that_fill_no_block_stay_as_they_are(
    arranged_models: list[onnx.ModelProto], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(depthwise, "block_size", lambda: CHANNELS + 1)
    monkeypatch.setattr(dense, "block_size", lambda: CHANNELS + 1)
    for group in (1, CHANNELS):
        prepare_training(sx.trainable(network(group, (5, 5), (3, 3), True), "mse"))
    assert depthwise.DOMAIN not in {n.domain for m in arranged_models for n in m.graph.node}


def test_without_the_kernels_nothing_is_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depthwise, "_session", lambda model: 1 / 0)
    depthwise.block_size.cache_clear()
    assert depthwise.block_size() == 0
    depthwise.block_size.cache_clear()


@pytest.mark.parametrize("rewrite", ["dense", "depthwise"])
def test_a_rewrite_can_be_left_out(rewrite: str, arranged_models: list[onnx.ModelProto]) -> None:
    group = CHANNELS if rewrite == "depthwise" else 1
    net = sx.trainable(network(group, (5, 5), (3, 3), False), "mse")
    prepare_training(net, without=[rewrite])
    assert depthwise.DOMAIN not in {n.domain for m in arranged_models for n in m.graph.node}


@pytest.mark.parametrize("group", [1, CHANNELS])
@pytest.mark.parametrize("how", [{}, {"recompute": True}])
def test_a_training_is_that_of_the_plain_step(group: int, how: dict[str, bool]) -> None:
    model = network(group, (8, 8), (3, 3), True, pads=[1, 1, 1, 1])
    net = sx.trainable(model, "mse", sx.optim.sgd(0.5, 0.9), ema=0.9, clip_norm=1.0)
    rng = np.random.default_rng(2)
    feeds = {
        "x": rng.normal(size=(3, CHANNELS, 8, 8)).astype(np.float32),
        "label": rng.normal(size=(3, CHANNELS)).astype(np.float32),
    }
    rep, plain = (prepare_training(net, **how, without=w) for w in ([], ["dense", "depthwise"]))
    for _ in range(5):
        assert float(rep.step(feeds)["loss"]) == pytest.approx(
            float(plain.step(feeds)["loss"]), rel=1e-5
        )
    for name, value in plain.state().items():
        np.testing.assert_allclose(rep.state()[name], value, rtol=1e-3, atol=1e-5, err_msg=name)
