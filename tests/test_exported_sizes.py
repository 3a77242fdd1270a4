"""Files of other frameworks with free sizes: models that do not accept every size, and what their
exporters write around them. The numbers are onnxruntime's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import sardonyx as sx
from sardonyx.cli.__main__ import main
from sardonyx.testing import Runner

RNG = np.random.default_rng(0)


def parsed(signature: str, nodes: str, **weights: np.ndarray) -> onnx.ModelProto:
    text = f'<ir_version: 9, opset_import: ["": 18]> g {signature} {{ {nodes} }}'
    model = onnx.parser.parse_model(text)
    for name, array in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


HALVES = """
    a = Conv<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(x, w)
    b = Conv<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(a, v)
    up = Resize<mode = "nearest", nearest_mode = "floor",
        coordinate_transformation_mode = "asymmetric">(b, , twice)"""
MODELS: dict[str, tuple[str, str, dict[str, np.ndarray]]] = {
    # A pool that is larger than a small image.
    "pool": (
        "(float[N,3,H,W] x) => (float[N,4] y)",
        """c = Conv<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(x, w)
        p = MaxPool<kernel_shape = [8, 8], strides = [4, 4]>(c)
        m = GlobalAveragePool(p) y = Flatten(m)""",
        {"w": normal(4, 3, 3, 3)},
    ),
    # A signal that has to be longer than its window.
    "signal": (
        "(float[1,T] x) => (float[1,4] y)",
        """one = Constant<value = int64[1] {1}>() s = Unsqueeze(x, one)
        c = Conv<kernel_shape = [256], strides = [64]>(s, w)
        r = Relu(c) m = GlobalAveragePool(r) y = Flatten(m)""",
        {"w": normal(4, 1, 256) / 16},
    ),
    # Down and up again: sides in multiples of four.
    "detector": (
        "(float[N,3,H,W] x) => (float[N,4,A,B] y)",
        HALVES + " y = Add(a, up)",
        {
            "w": normal(4, 3, 3, 3),
            "v": normal(4, 4, 3, 3),
            "twice": np.array([1, 1, 2, 2], np.float32),
        },
    ),
    # The padding of SAME depends on the size.
    "same": (
        "(float[N,H,W,3] x) => (float[N,4,A,B] y)",
        """t = Transpose<perm = [0, 3, 1, 2]>(x)
        c = Conv<auto_pad = "VALID", kernel_shape = [3, 3]>(t, w)
        p = MaxPool<auto_pad = "SAME_UPPER", kernel_shape = [2, 2], strides = [2, 2]>(c)
        q = Conv<auto_pad = "VALID", kernel_shape = [3, 3]>(p, v)
        y = Conv<auto_pad = "VALID", kernel_shape = [3, 3]>(q, v)""",
        {"w": normal(4, 3, 3, 3), "v": normal(4, 4, 3, 3)},
    ),
    # Cells are counted in floats, as torch's exporter writes the grid of a detector.
    "grid": (
        "(float[N,3,H,W] x) => (float[N,3,H,W] y)",
        """s = Shape(x) w = Gather(s, three) f = Cast<to = 1>(w) g = Range(zero, f, one)
        y = Mul(x, g)""",
        {
            "three": np.array(3, np.int64),
            "zero": np.array(0, np.float32),
            "one": np.array(1, np.float32),
        },
    ),
    # Sizes as TensorFlow has them: in 32 bits.
    "narrow sizes": (
        "(float[N,6,4] x) => (float[N,24] y)",
        """s = Shape(x) i = Cast<to = 6>(s) first = Gather(i, zero)
        rest = Constant<value = int32[1] {24}>() f = Concat<axis = 0>(first, rest)
        l = Cast<to = 7>(f) y = Reshape(x, l)""",
        {"zero": np.array([0], np.int64)},
    ),
}


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize("framework", ["torch", "torch-source", "jax"])
def test_a_model_is_written_with_its_free_sizes(
    tmp_path: Path, name: str, framework: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command verifies what it wrote, at sizes that the model is made for."""
    pytest.importorskip(framework.partition("-")[0])
    signature, nodes, weights = MODELS[name]
    path = tmp_path / "model.onnx"
    onnx.save(parsed(signature, nodes, **weights), path)
    target = tmp_path / ("out.pt2" if framework == "torch" else "out")
    with pytest.raises(SystemExit) as end:
        main(["convert", str(path), "--to", framework, "-o", str(target)])
    text = "".join(capsys.readouterr())
    assert not end.value.code, text
    assert "same on 3 random inputs" in text
    assert "Traceback" not in text and "Warning" not in text
    size = sum(f.stat().st_size for f in ([target] if target.is_file() else target.iterdir()))
    assert size < 300_000  # no examples of the inputs beside the weights


def test_statistics_that_the_graph_computes_have_gradients() -> None:
    """Keras writes LayerNormalization as a BatchNormalization over rows that became channels."""
    torch = pytest.importorskip("torch")
    model = parsed(
        "(float[N,5] x) => (float[N,5] y)",
        """h = MatMul(x, w) form = Constant<value = int64[3] {1, -1, 5}>() r = Reshape(h, form)
        mean = ReduceMean<keepdims = 1>(r, axis) d = Sub(r, mean) q = Mul(d, d)
        var = ReduceMean<keepdims = 1>(q, axis) flat = Constant<value = int64[1] {-1}>()
        m = Reshape(mean, flat) s = Reshape(var, flat)
        one = Constant<value = float {1.0}>() zero = Constant<value = float {0.0}>()
        size = Shape(m) ones = Expand(one, size) zeros = Expand(zero, size)
        n = BatchNormalization<epsilon = 0.001>(r, ones, zeros, m, s)
        back = Constant<value = int64[2] {-1, 5}>() y = Reshape(n, back)""",
        w=normal(5, 5),
        axis=np.array([2], np.int64),
    )
    x = torch.tensor(normal(3, 5))
    module = sx.to_torch(model)
    weight = module.state_dict()["w"].clone().requires_grad_()
    expected = torch.nn.functional.layer_norm(x @ weight, (5,), eps=1e-3)
    expected.square().sum().backward()
    for mode in (False, True):  # training mode changes nothing: there is nothing to update
        module.train(mode).zero_grad()
        y = module(x)
        y.square().sum().backward()
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(
            dict(module.named_parameters())["w"].grad, weight.grad, rtol=1e-4, atol=1e-4
        )


def test_generated_source_computes_statistics_with_gradients(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    import importlib.util

    model = parsed(
        "(float[N,4,6] x, float[4] m, float[4] v) => (float[N,4,6] y)",
        """mean = Mul(m, scale) var = Exp(v)
        y = BatchNormalization<epsilon = 0.01>(x, scale, bias, mean, var)""",
        scale=normal(4),
        bias=normal(4),
    )
    sx.to_torch_source(model, tmp_path)
    spec = importlib.util.spec_from_file_location("written", tmp_path / "model.py")
    assert spec is not None and spec.loader is not None
    written = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(written)
    arrays = [normal(2, 4, 6), normal(4), normal(4)]
    tensors = [torch.tensor(a, requires_grad=True) for a in arrays]
    y = written.load()(*tensors)
    y.sum().backward()
    assert all(t.grad is not None for t in tensors)
    expected = Runner(sx.load(model))(dict(zip("xmv", arrays, strict=True)))["y"]
    np.testing.assert_allclose(y.detach().numpy(), expected, rtol=1e-5, atol=1e-6)


SOURCES: dict[str, tuple[str, str, dict[str, np.ndarray], dict[str, Any]]] = {
    # A bias is added by a node of its own and has the name of its layer.
    "bias": (
        "(float[N,3,5,5] x) => (float[N,2,9,9] y)",
        """t = ConvTranspose<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(
            x, conv_w_0)
        a = Add(t, conv_b_0) y = Sigmoid(a)""",
        {"conv_w_0": normal(3, 2, 3, 3), "conv_b_0": normal(1, 2, 1, 1)},
        {"x": normal(2, 3, 5, 5)},
    ),
    # torch's one_hot takes int64 alone.
    "one hot": (
        "(int32[N] x) => (float[N,7] y)",
        "y = OneHot<axis = -1>(x, depth, values)",
        {"depth": np.array(7, np.int64), "values": np.array([0, 1], np.float32)},
        {"x": np.array([0, 6, 3], np.int32)},
    ),
}


@pytest.mark.parametrize("name", list(SOURCES))
def test_generated_source_of_other_exporters(tmp_path: Path, name: str) -> None:
    torch = pytest.importorskip("torch")
    import importlib.util

    signature, nodes, weights, feeds = SOURCES[name]
    model = parsed(signature, nodes, **weights)
    for tensor in model.graph.initializer:  # as PaddlePaddle has it; the parser takes no dots
        dotted = tensor.name.replace("conv_", "conv.")
        for node in model.graph.node:
            node.input[:] = [dotted if n == tensor.name else n for n in node.input]
        tensor.name = dotted
    sx.to_torch_source(model, tmp_path)
    spec = importlib.util.spec_from_file_location("written", tmp_path / "model.py")
    assert spec is not None and spec.loader is not None
    written = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(written)
    with torch.no_grad():
        y = written.load()(*(torch.tensor(a) for a in feeds.values())).numpy()
    np.testing.assert_allclose(y, Runner(sx.load(model))(feeds)["y"], rtol=1e-5, atol=1e-6)


def test_small_results_of_a_sigmoid_are_not_called_different() -> None:
    """onnxruntime's Sigmoid is right to a unit of 1, not of its result."""
    model = parsed(
        "(float[N,64] x) => (float[N,64] y)",
        "m = MatMul(x, w) s = Sub(m, shift) y = Sigmoid(s)",
        w=normal(64, 64) / 8,
        shift=np.float32(25),
    )
    assert sx.verify(model, "numpy").verdict == "same"
    wrong = parsed(
        "(float[N,64] x) => (float[N,64] y)",
        "m = MatMul(x, w) s = Sub(m, shift) y = Sigmoid(s)",
        w=np.zeros((64, 64), np.float32),
        shift=np.float32(5),
    )
    assert sx.verify(model, wrong).verdict == "different"


def test_sizes_without_names_may_have_to_be_equal() -> None:
    """A state whose second axis is the batch, beside a signal with a length of its own."""
    model = parsed(
        "(float[N,T] x, float[2,M,8] state) => (float[M,8] y)",
        """a = Constant<value = int64[1] {1}>() s = Unsqueeze(x, a)
        c = Conv<kernel_shape = [128], strides = [64]>(s, w) m = GlobalAveragePool(c)
        f = Flatten(m) z = Constant<value = int64 {0}>() h = Gather(state, z) y = Add(f, h)""",
        w=normal(8, 1, 128),
    )
    for value in model.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            dim.ClearField("dim_param") if dim.dim_param else None
    report = sx.verify(model, "numpy")
    assert report.verdict == "same" and report.measurements
