"""Convolutions by kernels of three by three in compiled kernels (winograd.h), against torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import sardonyx as sx
from sardonyx.engines import c_library
from sardonyx.engines.onnxruntime import prepare_training, step_session
from sardonyx.engines.onnxruntime.kernels import convolutions, fusion, library
from sardonyx.engines.onnxruntime.kernels.program import DOMAIN, Programs
from sardonyx.engines.onnxruntime.session import open_session

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(c_library.find_compiler() is None, reason="no C compiler")
F = torch.nn.functional
NATIVE = c_library.NATIVE
NARROWER = (("-march=x86-64-v3",), ("-march=x86-64",))  # vectors of eight and of four numbers


def noise(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def run_node(
    op_type: str, name: str, settings: Any, threads: int = 1, **feeds: np.ndarray
) -> np.ndarray:
    ends = [helper.make_tensor_value_info(n, 1, [None] * v.ndim) for n, v in feeds.items()]
    node = helper.make_node(op_type, list(feeds), ["y"], domain=DOMAIN, **{name: list(settings)})
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", ends, [result])
    versions = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)]
    data = helper.make_model(graph, opset_imports=versions, ir_version=10).SerializeToString()
    path = library.library(Programs().source())
    assert path is not None
    (array,) = open_session(data, threads=threads, libraries=[path]).run(None, feeds)
    return array


def expected(x: np.ndarray, w: np.ndarray, pads: Any, turned: bool, b: Any) -> np.ndarray:
    """The convolution in double; `pads` as ONNX has them."""
    top, left, bottom, right = pads
    image = F.pad(torch.tensor(x, dtype=torch.float64), (left, right, top, bottom))
    kernel = torch.tensor(w, dtype=torch.float64)
    if turned:
        kernel = kernel.flip(2, 3).transpose(0, 1)
    bias = None if b is None else torch.tensor(b, dtype=torch.float64)
    return F.conv2d(image, kernel, bias).numpy()


CASES = [  # images, channels of images and of results, rows, columns
    (1, 1, 1, 1, 1),
    (2, 3, 5, 4, 4),
    (1, 16, 32, 2, 2),
    (3, 17, 33, 5, 7),
    (2, 40, 20, 9, 1),
    (5, 64, 48, 13, 31),
    (3, 32, 130, 8, 30),
    (40, 16, 16, 1, 3),
]
PADS = [(1, 1, 1, 1), (2, 0, 1, 2), (1, 3, 4, 0)]


@pytest.mark.parametrize("native", [*NATIVE[:1], *((a,) for (a,) in NARROWER)], ids=str)
@pytest.mark.parametrize("turned", [False, True])
def test_a_convolution_is_torchs(
    native: tuple[str, ...], turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(c_library, "NATIVE", (native, *NATIVE))
    monkeypatch.setattr(
        c_library, "FLAGS", (*c_library.FLAGS, f"-DCASE={native[0].encode().hex()}")
    )
    for n, into, out, rows, columns in CASES:
        x, b = noise(0, n, into, rows, columns), noise(2, out)
        w = noise(1, *((into, out) if turned else (out, into)), 3, 3)
        for pads in PADS:
            if rows + pads[0] + pads[2] < 3 or columns + pads[1] + pads[3] < 3:
                continue
            for threads, bias in ((1, None), (3, b)):
                feeds = {"x": x, "w": w, **({} if bias is None else {"b": bias})}
                settings = (int(turned), *pads, threads)
                result = run_node("Winograd", "winograd", settings, threads, **feeds)
                truth = expected(x, w, pads, turned, bias)
                assert result.shape == truth.shape
                # sums of 9 · channels products of a few units, whose terms are sums themselves
                bound = 16 * 2**-24 * 3 * into
                np.testing.assert_allclose(result, truth, rtol=0, atol=bound)


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_a_gradient_of_a_kernel_is_torchs(threads: int) -> None:
    for n, into, out, rows, columns in [
        (32, 32, 16, 2, 2),
        (5, 64, 130, 13, 31),
        (9, 40, 33, 6, 9),
    ]:
        x = noise(0, n, into, rows, columns)
        w = torch.zeros(out, into, 3, 3, dtype=torch.float64, requires_grad=True)
        y = F.conv2d(torch.tensor(x, dtype=torch.float64), w, None, padding=1)
        g = noise(1, *y.shape)
        y.backward(torch.tensor(g, dtype=torch.float64))
        settings = (3, 3, 1, 1, 1, 1, 1, 1, threads)
        result = run_node("KernelGradient", "kernel", settings, threads, x=x, g=g)
        bound = 16 * 2**-24 * g[:, 0].size
        np.testing.assert_allclose(result, w.grad.numpy(), rtol=0, atol=bound)


@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan, 3e38])
def test_what_is_not_finite_stays_where_it_belongs(odd: float) -> None:
    x, w, b = noise(0, 2, 16, 8, 6), noise(1, 16, 16, 3, 3), noise(2, 16)
    x[1, 3, 2, 2] = odd
    result = run_node("Winograd", "winograd", (0, 1, 1, 1, 1, 1), x=x, w=w, b=b)
    with np.errstate(over="ignore"):
        truth = expected(x, w, (1, 1, 1, 1), False, b).astype(np.float32)
    np.testing.assert_array_equal(np.isfinite(result), np.isfinite(truth))
    whole = np.isfinite(truth) & (np.abs(truth) < 1e30)
    np.testing.assert_allclose(result[whole], truth[whole], rtol=0, atol=1e-4)
    g = noise(3, 2, 16, 8, 6)
    g[0, 5] = 0
    y = noise(4, 2, 32, 8, 6)
    y[0, 3, 2, 2] = odd
    gradient = run_node("KernelGradient", "kernel", (3, 3, 1, 1, 1, 1, 1, 1, 1), x=y, g=g)
    assert np.isfinite(np.delete(gradient, 3, axis=1)).all()


def test_sizes_that_do_not_match_are_an_error() -> None:
    with pytest.raises(Exception, match="do not fit"):
        x, w = noise(0, 2, 16, 8, 8), noise(1, 16, 8, 3, 3)
        run_node("Winograd", "winograd", (0, 1, 1, 1, 1, 1), x=x, w=w)
    with pytest.raises(Exception, match="smaller than its kernel"):
        x, w = noise(0, 2, 16, 1, 8), noise(1, 16, 16, 3, 3)
        run_node("Winograd", "winograd", (0, 0, 1, 0, 1, 1), x=x, w=w)


def test_no_images_give_no_results() -> None:
    x, w = np.zeros((0, 16, 8, 8), np.float32), noise(1, 16, 16, 3, 3)
    assert run_node("Winograd", "winograd", (0, 1, 1, 1, 1, 2), x=x, w=w).shape == x.shape
    x = np.zeros((3, 0, 8, 8), np.float32)
    result = run_node(
        "Winograd", "winograd", (0, 1, 1, 1, 1, 2), x=x, w=np.zeros((16, 0, 3, 3), "f")
    )
    np.testing.assert_array_equal(result, np.zeros((3, 16, 8, 8), np.float32))


def convolution(
    x: Any = (8, 16, 8, 8), w: Any = (16, 16, 3, 3), op_type: str = "Conv", **settings: Any
) -> ir.Node:
    kind = ir.TensorType(ir.DataType.FLOAT)
    values = [ir.Value(name=n, shape=ir.Shape(s), type=kind) for n, s in (("x", x), ("w", w))]
    node = ir.node(op_type, values, {"pads": [1, 1, 1, 1], **settings})
    node.outputs[0].shape = ir.Shape((x[0], w[0], *x[2:]))
    node.outputs[0].type = kind
    return node


def test_which_convolutions_are_transformed() -> None:
    can = convolutions.can_transform
    assert can(convolution())
    assert can(convolution(x=("batch", 16, 8, 8)))
    assert can(convolution(op_type="ConvTranspose"))
    assert not can(convolution(strides=[2, 1]))
    assert not can(convolution(dilations=[1, 2]))
    assert not can(convolution(group=2))
    assert not can(convolution(auto_pad="SAME_UPPER"))
    assert not can(convolution(w=(16, 16, 3, 5)))
    assert not can(convolution(w=(16, 8, 3, 3)))
    assert not can(convolution(x=(8, 16, 2, 2)))
    assert not can(convolution(x=(8, 16, "h", "w")))
    assert not can(convolution(op_type="ConvTranspose", pads=[3, 1, 1, 1]))
    assert not can(convolution(op_type="ConvTranspose", output_padding=[0, 1]))


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 24, 3)
        self.second = torch.nn.Conv2d(24, 40, 3, padding=1, bias=False)
        self.third = torch.nn.Conv2d(40, 32, 3, padding=2)
        self.norm, self.head = torch.nn.BatchNorm2d(40), torch.nn.LazyLinear(5)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.norm(self.second(F.relu(self.first(x)))))
        return self.head(self.third(x).mean((2, 3)))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("size", [(14, 14), (13, 20)])
def test_a_training_is_the_same(
    monkeypatch: pytest.MonkeyPatch, threads: int, size: tuple[int, int]
) -> None:
    monkeypatch.setattr(fusion, "LEAST_SAVED", 0)
    files: list[bytes] = []

    def spied(data: bytes, **settings: Any) -> Any:
        files.append(data)
        return open_session(data, **settings)

    monkeypatch.setattr(step_session, "open_session", spied)
    torch.manual_seed(0)
    x = torch.randn(12, 3, *size)
    module = Network()
    module(x)
    module.eval()
    model = sx.from_torch(module, (x,), verify=False)
    net = sx.trainable(model, "cross_entropy", sx.optim.sgd(0.05))
    feeds = {net.inputs[0].name: x.numpy(), "label": np.arange(12) % 5}
    ours = prepare_training(net, threads=threads)
    plain = prepare_training(net, threads=threads, without=["kernels"])
    # two convolutions and the gradients of their images
    assert [data.count(b"winograd") for data in files] == [4, 0]
    for _ in range(6):
        losses = [float(r.step(feeds)["loss"]) for r in (plain, ours)]
        np.testing.assert_allclose(*losses, rtol=2e-5)
