"""Gradients of max pooling and of convolutions in compiled kernels, against torch and without."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.parser import parse_model

import sardonyx as sx
from sardonyx.engines import c_library
from sardonyx.engines.onnxruntime import prepare_training, step_session
from sardonyx.engines.onnxruntime.kernels import fusion, images, library
from sardonyx.engines.onnxruntime.kernels.program import DOMAIN, Programs
from sardonyx.engines.onnxruntime.session import open_session

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(c_library.find_compiler() is None, reason="no C compiler")
F = torch.nn.functional


def noise(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def run_node(op_type: str, name: str, settings: Any, **feeds: np.ndarray) -> np.ndarray:
    ends = [helper.make_tensor_value_info(n, 1, [None] * v.ndim) for n, v in feeds.items()]
    node = helper.make_node(op_type, list(feeds), ["y"], domain=DOMAIN, **{name: list(settings)})
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", ends, [result])
    versions = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)]
    data = helper.make_model(graph, opset_imports=versions, ir_version=10).SerializeToString()
    path = library.library(Programs().source())
    assert path is not None
    (array,) = open_session(data, threads=2, libraries=[path]).run(None, feeds)
    return array


def pool_gradient(x: np.ndarray, g: np.ndarray, *settings: int) -> np.ndarray:
    return run_node("PoolGradient", "pool", settings, x=x, g=g)


@pytest.mark.parametrize(
    ("window", "stride", "padding"),
    [(2, 2, 0), (3, 3, 0), (3, 2, 1), ((2, 3), (1, 2), (1, 0)), (2, 1, 0), (5, 3, 2), (1, 1, 0)],
)
@pytest.mark.parametrize("size", [(8, 8), (9, 7), (5, 34), (6, 150)])
@pytest.mark.parametrize("ties", [False, True])
def test_a_gradient_of_max_pooling_is_torchs(
    window: Any, stride: Any, padding: Any, size: tuple[int, int], ties: bool
) -> None:
    x = noise(0, 3, 5, *size)
    if ties:
        x = np.maximum(np.round(x), 0)
    image = torch.tensor(x, requires_grad=True)
    y = F.max_pool2d(image, window, stride, padding)
    g = noise(1, *y.shape)
    y.backward(torch.tensor(g))
    pairs = [v if isinstance(v, tuple) else (v, v) for v in (window, stride, padding)]
    settings = [n for pair in pairs for n in pair]
    result, expected = pool_gradient(x, g, *settings, 0), image.grad.numpy()
    # where windows overlap, the order of a sum is not torch's
    np.testing.assert_allclose(result, expected, rtol=0, atol=9 * 2**-22)
    if ties:
        masked = pool_gradient(x, g, *settings, 1)
        np.testing.assert_allclose(masked, expected * (x != 0), rtol=0, atol=9 * 2**-22)


@pytest.mark.parametrize("window", [2, 3])
def test_what_is_not_a_number_is_the_largest(window: int) -> None:
    x = noise(2, 1, 2, 6, 6)
    x[0, 0, 1, 1] = x[0, 1, 4, 3] = np.nan
    image = torch.tensor(x, requires_grad=True)
    y = F.max_pool2d(image, window)
    g = noise(3, *y.shape)
    y.backward(torch.tensor(g))
    result = pool_gradient(x, g, *[window] * 4, 0, 0, 0)
    np.testing.assert_array_equal(result, image.grad.numpy())


CONVOLUTIONS = [  # images, channels in, out, size, kernel, stride, padding, dilation
    (1, 16, 16, (6, 6), (3, 3), (1, 1), (1, 1), (1, 1)),
    (3, 17, 19, (9, 7), (3, 3), (1, 1), (1, 1), (1, 1)),
    (2, 32, 8, (11, 13), (5, 3), (2, 1), (2, 0), (1, 1)),
    (2, 40, 33, (12, 9), (3, 3), (1, 2), (2, 2), (2, 2)),
    (2, 16, 16, (10, 10), (1, 1), (3, 3), (0, 0), (1, 1)),
    (2, 5, 3, (16, 65), (2, 2), (1, 1), (0, 0), (1, 1)),
    (1, 16, 130, (70, 40), (7, 7), (2, 2), (3, 3), (1, 1)),
    (2, 16, 16, (4, 400), (1, 3), (1, 1), (0, 1), (1, 1)),
]


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_a_gradient_of_a_kernel_is_torchs(case: Any) -> None:
    n, into, out, size, kernel, stride, padding, dilation = case
    x = noise(0, n, into, *size)
    w = torch.zeros(out, into, *kernel, dtype=torch.float64, requires_grad=True)
    y = F.conv2d(torch.tensor(x, dtype=torch.float64), w, None, stride, padding, dilation)
    g = noise(1, *y.shape)
    y.backward(torch.tensor(g, dtype=torch.float64))
    settings = (*kernel, *stride, *dilation, *padding)
    result = run_node("KernelGradient", "kernel", settings, x=x, g=g)
    # of m random products partial sums reach a few √m, and m roundings of them add up like √m
    bound = 8 * 2**-24 * g[:, 0].size
    np.testing.assert_allclose(result, w.grad.numpy(), rtol=0, atol=bound)


def test_no_images() -> None:
    x, g = np.zeros((0, 16, 6, 6), np.float32), np.zeros((0, 8, 6, 6), np.float32)
    result = run_node("KernelGradient", "kernel", (3, 3, 1, 1, 1, 1, 1, 1), x=x, g=g)
    np.testing.assert_array_equal(result, np.zeros((8, 16, 3, 3), np.float32))
    pooled = np.zeros((0, 16, 3, 3), np.float32)
    assert pool_gradient(x, pooled, 2, 2, 2, 2, 0, 0, 0).shape == x.shape


def test_sizes_that_do_not_match_are_an_error() -> None:
    x, g = noise(0, 2, 16, 6, 6), noise(1, 3, 8, 6, 6)
    with pytest.raises(Exception, match="do not fit"):
        run_node("KernelGradient", "kernel", (3, 3, 1, 1, 1, 1, 1, 1), x=x, g=g)
    with pytest.raises(Exception, match="do not fit"):
        pool_gradient(x, g, 2, 2, 2, 2, 0, 0, 0)


class Network(torch.nn.Module):
    def __init__(self, pool: dict[str, Any]) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 32, 3, padding=1)
        self.second = torch.nn.Conv2d(32, 32, 3, padding=1)
        self.pool, self.head = pool, torch.nn.LazyLinear(5)

    def forward(self, x: Any) -> Any:
        x = F.max_pool2d(F.relu(self.first(x)), **self.pool)
        return self.head(F.relu(self.second(x)).flatten(1))


POOLS = [{"kernel_size": 2}, {"kernel_size": 3, "stride": 2, "padding": 1}, {"kernel_size": 3}]


@pytest.mark.parametrize("pool", POOLS, ids=str)
@pytest.mark.parametrize("size", [16, 19])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_training_is_the_same(
    monkeypatch: pytest.MonkeyPatch, pool: dict[str, Any], size: int, threads: int
) -> None:
    monkeypatch.setattr(fusion, "LEAST_SAVED", 0)
    monkeypatch.setattr(images, "LEAST", 0)
    monkeypatch.setattr(images, "FEWEST_PIXELS", 1)
    torch.manual_seed(0)
    network, batch = Network(pool), 5
    x, labels = noise(0, batch, 3, size, size), np.arange(batch) % 5
    network(torch.tensor(x))
    model = sx.from_torch(network, (torch.tensor(x),), verify=False)
    net = sx.trainable(model, "cross_entropy", optimizer="sgd", lr=0.05)
    feeds = {net.inputs[0].name: x, "label": labels}
    found: list[bytes] = []

    def spied(data: bytes, **settings: Any) -> Any:
        found.append(data)
        return open_session(data, **settings)

    monkeypatch.setattr(step_session, "open_session", spied)
    reps = [prepare_training(net, threads=threads, without=w) for w in ([], ["kernels"])]
    assert b"PoolGradient" in found[0] and b"KernelGradient" in found[0]
    assert b"PoolGradient" not in found[1]
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    for _ in range(4):
        ours, plain = (float(rep.step(feeds)["loss"]) for rep in reps)
        loss = F.cross_entropy(network(torch.tensor(x)), torch.tensor(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert ours == pytest.approx(plain, rel=2e-5)
        assert ours == pytest.approx(float(loss.detach()), rel=2e-5)


@pytest.mark.parametrize("base, order", [(0.0, 0), (1.5, 0), (0.0, 1)])
def test_a_network_that_scatters_what_it_has_pooled(
    monkeypatch: pytest.MonkeyPatch, base: float, order: int
) -> None:
    """It looks like a gradient of pooling, which starts from zeros and goes row by row."""
    monkeypatch.setattr(fusion, "LEAST_SAVED", 0)
    monkeypatch.setattr(images, "LEAST", 0)
    text = f"""<ir_version: 8, opset_import: ["": 18]>
g (float[2,3,8,6] x) => (float[2,3,8,6] y)
<float[3,1,1] w = {{0.5, 1.0, 2.0}}, int64[1] flat = {{-1}},
 int64[4] size = {{2, 3, 8, 6}}, int64[1] all = {{288}}>
{{ h = Mul(x, w)
   m, places = MaxPool<kernel_shape=[3, 3], strides=[2, 2], storage_order={order}>(h)
   to = Reshape(places, flat)
   added = Reshape(m, flat)
   start = ConstantOfShape<value = float[1] {{{base}}}>(all)
   z = ScatterElements<axis=0, reduction="add">(start, to, added)
   y = Reshape(z, size) }}"""
    model = sx.load(parse_model(text))
    x = noise(0, 2, 3, 8, 6)
    label = noise(1, 2, 3, 8, 6)
    (served,) = open_session(model.proto().SerializeToString()).run(None, {"x": x})
    expected = ((served - label) ** 2).mean()
    net = sx.trainable(model, "mse", sx.optim.sgd(1e-3))
    losses = [
        float(prepare_training(net, without=w).step({"x": x, "label": label})["loss"])
        for w in ([], ["kernels"])
    ]
    assert losses == pytest.approx([float(expected)] * 2, rel=1e-5)


def test_without_a_compiler_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion, "library", lambda *sources: None)
    monkeypatch.setattr(fusion, "LEAST_SAVED", 0)
    network = Network(POOLS[0])
    x = noise(0, 2, 3, 16, 16)
    network(torch.tensor(x))
    model = sx.from_torch(network, (torch.tensor(x),), verify=False)
    net = sx.trainable(model, "cross_entropy", optimizer="sgd", lr=0.05)
    feeds = {net.inputs[0].name: x, "label": np.array([0, 1])}
    losses = [prepare_training(net, without=w).step(feeds)["loss"] for w in ([], ["kernels"])]
    assert losses[0] == losses[1]
