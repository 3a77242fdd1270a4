"""Quantized models as onnxruntime writes them: on every engine, with gradients, with float weights.

The oracle of a number is onnxruntime on the file as it is, that of a training is torch.
"""

from __future__ import annotations

import importlib
import io
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import sardonyx as sx
from sardonyx.errors import ArgumentError, ModelError, UnsupportedOp

torch = pytest.importorskip("torch")
quantization = pytest.importorskip("onnxruntime.quantization")

ROWS, CLASSES = 5, 3
NETWORKS = ("mlp", "cnn", "attention", "lstm")
KINDS = ("dynamic", "dynamic by channel", "QOperator", "QDQ")
pytestmark = pytest.mark.filterwarnings("ignore")  # of torch's older exporter


class Attention(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(11, 8)
        self.q, self.k, self.v = (torch.nn.Linear(8, 8) for _ in range(3))
        self.norm, self.head = torch.nn.LayerNorm(8), torch.nn.Linear(8, CLASSES)

    def forward(self, words: Any) -> Any:
        x = self.embedding(words)
        weights = torch.softmax(self.q(x) @ self.k(x).transpose(-1, -2), -1)
        return self.head(self.norm(x + weights @ self.v(x)).mean(1))


class Pixels(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.c, self.d = (torch.nn.Conv2d(n, 4, 3, padding=1) for n in (2, 4))
        self.head = torch.nn.Linear(4, CLASSES)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.c(x))
        x = torch.nn.functional.max_pool2d(x + torch.sigmoid(self.d(x)), 2)
        return self.head(torch.nn.functional.leaky_relu(x).mean((2, 3)))


class Recurrent(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(4, 5, bidirectional=True)
        self.head = torch.nn.Linear(10, CLASSES)

    def forward(self, x: Any) -> Any:
        return self.head(self.lstm(x)[0][-1])


def perceptron() -> Any:
    layers = torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8), torch.nn.ReLU()
    return torch.nn.Sequential(*layers, torch.nn.Linear(8, CLASSES))


def network(name: str) -> tuple[Any, Any]:
    torch.manual_seed(0)
    if name == "attention":
        return Attention(), torch.randint(0, 11, (ROWS, 4))
    made = {"mlp": perceptron, "cnn": Pixels, "lstm": Recurrent}[name]()
    shapes = {"mlp": (ROWS, 6), "cnn": (ROWS, 2, 8, 8), "lstm": (7, ROWS, 4)}
    return made, torch.randn(shapes[name])


@pytest.fixture(scope="module")
def quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


class Samples(quantization.CalibrationDataReader):  # type: ignore[misc,name-defined]
    def __init__(self, x: np.ndarray):
        self.feeds = iter([{"x": x}] * 2)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.feeds, None)


def quantized(name: str, kind: str, folder: Path) -> tuple[Path, np.ndarray]:
    """A network as onnxruntime's quantizer writes it, and an input."""
    module, x = network(name)
    plain, path = folder / "plain.onnx", folder / "quantized.onnx"
    torch.onnx.export(
        module.eval(), (x,), str(plain), dynamo=False, input_names=["x"], output_names=["y"],
        opset_version=17,
    )  # fmt: skip
    signed = quantization.QuantType.QInt8
    if kind.startswith("dynamic"):
        quantization.quantize_dynamic(
            plain, path, weight_type=signed, per_channel=kind != "dynamic"
        )
    else:
        form = quantization.QuantFormat[kind]
        quantization.quantize_static(
            plain, path, Samples(x.numpy()), quant_format=form, per_channel=True, weight_type=signed
        )
    return path, x.numpy()


def level(path: Path) -> float:
    """How far apart the outputs of a model can be that rounds them; a small number otherwise."""
    proto = onnx.load(path)
    last = proto.graph.node[-1]
    scales = {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}
    return float(scales[last.input[1]]) if last.op_type == "DequantizeLinear" else 1e-5


def run(engine: str, model: Any, x: np.ndarray) -> np.ndarray:
    package = importlib.import_module(f"sardonyx.engines.{engine}")
    return np.asarray(package.prepare(sx.load(model)).run([x])[0])


ENGINES = [
    "numpy",
    *(pytest.param(e, marks=pytest.mark.slow) for e in ("torch", "jax", "tensorflow")),
]


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NETWORKS)
def test_quantized_networks_run_on(name: str, kind: str, engine: str, tmp_path: Path) -> None:
    if engine != "numpy":
        pytest.importorskip(engine)
    path, x = quantized(name, kind, tmp_path)
    expected = ort.InferenceSession(path).run(None, {"x": x})[0]
    # One level at an inner rounding may move the output by another; behind an LSTM, whose state
    # onnxruntime rounds by the rows of each thread, the layer that follows rounds again.
    allowed = 2.01 * level(path) if "namic" not in kind else (1e-3 if name == "lstm" else 1e-5)
    np.testing.assert_allclose(run(engine, path, x), expected, rtol=0, atol=allowed)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NETWORKS)
def test_float_weights(name: str, kind: str, tmp_path: Path) -> None:
    path, x = quantized(name, kind, tmp_path)
    model = sx.dequantize(path)
    atol = 1e-5 if "namic" in kind else 1.01 * level(path)
    np.testing.assert_allclose(run("numpy", model, x), run("numpy", path, x), rtol=0, atol=atol)
    clipped = sx.dequantize(path, activations="clip")
    float_model = ort.InferenceSession(tmp_path / "plain.onnx").run(None, {"x": x})[0]
    np.testing.assert_allclose(run("numpy", clipped, x), float_model, rtol=0, atol=0.03)
    for dense in (model, clipped):
        stored = [v.const_value for v in dense.graph.initializers.values()]
        integers = [t for t in stored if t.dtype.name in ("INT8", "UINT8", "INT32") and t.size > 1]
        assert not integers, "weights are still integers"
    assert "head.weight" in model.graph.initializers or name == "mlp"


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("kind", KINDS)
def test_a_quantized_network_is_fine_tuned(kind: str, tmp_path: Path) -> None:
    path, x = quantized("cnn", kind, tmp_path)
    net = sx.trainable(sx.dequantize(path), "cross_entropy", optimizer=sx.optim.sgd(0.2))
    data = {"x": x, "label": np.arange(ROWS) % CLASSES}
    run = sx.train(net, data, steps=30, batch_size=ROWS, shuffle=False)
    assert run.losses[-1] < 0.97 * run.losses[0]
    for name in ("c.weight", "d.weight", "head.weight"):
        before, after = (m.graph.initializers[name].const_value.numpy() for m in (net, run.model))
        assert np.abs(after - before).max() > 1e-4, name


@pytest.mark.usefixtures("quiet")
def test_training_with_float_weights_is_torchs(tmp_path: Path) -> None:
    path, x = quantized("mlp", "dynamic", tmp_path)
    model = sx.dequantize(path, activations="clip")  # dynamic ranges limit nothing
    module, _ = network("mlp")
    for name, parameter in module.named_parameters():
        array = model.graph.initializers[name].const_value.numpy()
        parameter.data = torch.tensor(array.T if array.ndim == 2 else array).contiguous()
    label = np.arange(ROWS) % CLASSES
    net = sx.trainable(model, "cross_entropy", optimizer=sx.optim.sgd(0.1))
    run = sx.train(net, {"x": x, "label": label}, steps=5, batch_size=ROWS, shuffle=False)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for _ in range(5):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(module(torch.tensor(x)), torch.tensor(label))
        loss.backward()
        optimizer.step()
    for name, parameter in module.named_parameters():
        result = run.model.graph.initializers[name].const_value.numpy()
        right = parameter.detach().numpy()
        np.testing.assert_allclose(
            result, right.T if result.ndim == 2 else right, rtol=1e-4, atol=1e-6
        )


@pytest.mark.usefixtures("quiet")
def test_trainable_names_all_nodes_that_training_would_refuse(tmp_path: Path) -> None:
    path, _ = quantized("mlp", "dynamic", tmp_path)
    nodes = [n.name for n in onnx.load(path).graph.node if n.op_type == "DynamicQuantizeLinear"]
    with pytest.raises(UnsupportedOp) as refusal:
        sx.trainable(path, "cross_entropy")
    assert all(f'"{name}"' in str(refusal.value) for name in nodes[1:])  # the first reads the input
    assert "sx.dequantize(model)" in str(refusal.value)
    path, _ = quantized("mlp", "QDQ", tmp_path)
    with pytest.raises(ArgumentError, match="dequantize"):
        sx.trainable(path, "cross_entropy")


def test_activations_are_kept_or_clipped() -> None:
    with pytest.raises(ArgumentError, match="keep"):
        sx.dequantize("model.onnx", activations="drop")  # type: ignore[arg-type]


# -- one operator of onnxruntime's at a time ------------------------------------------------

RNG = np.random.default_rng(0)


def u8(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def i8(*shape: int) -> np.ndarray:
    return RNG.integers(-128, 128, shape).astype(np.int8)


def f32(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def at(value: float) -> np.ndarray:
    return np.array(value, np.float32)


Z, A, B, C = np.array(120, np.uint8), at(0.02), at(0.03), at(0.04)
PAIR = (u8(2, 3, 4), A, Z, u8(3, 4), B, np.array(3, np.uint8), C, np.array(99, np.uint8))
ONE = (u8(2, 3, 6, 6), A, Z, at(0.01), np.array(7, np.uint8))
COLUMNS = RNG.uniform(0.01, 0.03, 5).astype(np.float32)
MASK = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], np.int32)
LSTM = {"hidden_size": 3, "direction": b"bidirectional"}
GATES = (f32(4, 2, 5), i8(2, 5, 12), i8(2, 3, 12), f32(2, 24), None, None, None, None)
ATTENTION = (u8(2, 4, 6), i8(6, 18), f32(18), at(0.01), at(0.01))

CASES: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "QLinearAdd": ("QLinearAdd", PAIR, {}),
    "QLinearMul": ("QLinearMul", PAIR, {}),
    "QLinearSigmoid": ("QLinearSigmoid", ONE, {}),
    "QLinearLeakyRelu": ("QLinearLeakyRelu", ONE, {"alpha": 0.2}),
    "QLinearSoftmax": ("QLinearSoftmax", ONE, {"axis": 1, "opset": 13}),
    "QLinearGlobalAveragePool": ("QLinearGlobalAveragePool", ONE, {}),
    "QLinearAveragePool": (
        "QLinearAveragePool", ONE, {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}
    ),
    "QLinearConcat": (
        "QLinearConcat", (C, Z, u8(2, 3), A, Z, u8(2, 2), B, np.array(5, np.uint8)), {"axis": 1}
    ),
    "QLinearWhere": (
        "QLinearWhere", (np.array([True, False, True]), u8(3), A, Z, u8(3), B, Z, C, Z), {}
    ),
    "QGemm": (
        "QGemm",
        (u8(4, 6), A, Z, i8(5, 6), COLUMNS, np.zeros(5, np.int8),
         RNG.integers(-99, 99, 5).astype(np.int32), at(0.1), Z),
        {"transB": 1},
    ),
    "QGemm-floats out": (
        "QGemm",
        (u8(6, 4), A, Z, i8(6, 5), B, np.array(2, np.int8),
         RNG.integers(-99, 99, (4, 5)).astype(np.int32)),
        {"transA": 1, "alpha": 0.5},
    ),
    "MatMulIntegerToFloat": (
        "MatMulIntegerToFloat",
        (u8(2, 4, 6), i8(6, 5), A, COLUMNS, Z, np.zeros(5, np.int8), f32(5)),
        {},
    ),
    "DynamicQuantizeMatMul": (
        "DynamicQuantizeMatMul", (f32(2, 4, 6), i8(6, 5), B, np.array(1, np.int8), f32(5)), {}
    ),
    "DynamicQuantizeLSTM": (
        "DynamicQuantizeLSTM",
        (*GATES, np.full(2, 0.004, np.float32), np.zeros(2, np.int8),
         np.full(2, 0.003, np.float32), np.zeros(2, np.int8)),
        LSTM,
    ),
    "DynamicQuantizeLSTM-by gate": (
        "DynamicQuantizeLSTM",
        (*GATES, RNG.uniform(0.002, 0.004, (2, 12)).astype(np.float32), np.zeros((2, 12), np.int8),
         RNG.uniform(0.002, 0.004, (2, 12)).astype(np.float32), np.zeros((2, 12), np.int8)),
        LSTM,
    ),
    "QAttention": ("QAttention", (*ATTENTION, None, Z, np.array(0, np.int8)), {"num_heads": 2}),
    "QAttention-masked": (
        "QAttention", (*ATTENTION, MASK, Z, np.array(0, np.int8)), {"num_heads": 2}
    ),
    "QAttention-causal": (
        "QAttention",
        (*ATTENTION, None, Z, np.array(0, np.int8)),
        {"num_heads": 2, "unidirectional": 1},
    ),
    "QAttention-past": (
        "QAttention",
        (*ATTENTION, None, Z, np.array(0, np.int8), f32(2, 2, 2, 3, 3)),
        {"num_heads": 2},
    ),
    "QAttention-past, causal": (
        "QAttention",
        (*ATTENTION, None, Z, np.array(0, np.int8), f32(2, 2, 2, 3, 3)),
        {"num_heads": 2, "unidirectional": 1},
    ),
    "QLinearConv-channels last": (
        "QLinearConv",
        (u8(1, 5, 6, 2), A, Z, i8(3, 2, 3, 2), B, np.array(0, np.int8), at(0.5), Z),
        {"pads": [1, 0, 1, 1], "channels_last": 1},
    ),
    "QLinearConv-channels last, groups": (
        "QLinearConv",
        (u8(1, 5, 6, 4), A, Z, i8(4, 1, 3, 3), RNG.uniform(0.01, 0.03, 4).astype(np.float32),
         np.zeros(4, np.int8), at(0.5), Z, RNG.integers(-99, 99, 4).astype(np.int32)),
        {"group": 4, "strides": [2, 1], "channels_last": 1},
    ),
    "QLinearAveragePool-channels last": (
        "QLinearAveragePool", ONE, {"kernel_shape": [3, 2], "strides": [1, 2], "channels_last": 1}
    ),
    "QLinearGlobalAveragePool-channels last": (
        "QLinearGlobalAveragePool", ONE, {"channels_last": 1}
    ),
    "QLinearConv": (
        "QLinearConv",
        (u8(1, 2, 5, 5), A, Z, i8(3, 2, 3, 3), B, np.array(0, np.int8), at(0.5), Z),
        {"pads": [1, 1, 1, 1]},
    ),
    "QuantizeLinear": ("QuantizeLinear", (f32(3, 4), A, Z), {}),
    "DequantizeLinear": ("DequantizeLinear", (u8(3, 4), A, Z), {}),
}  # fmt: skip
OUTPUTS = {"DynamicQuantizeLSTM": 3}


def single(op_type: str, inputs: tuple[Any, ...], attributes: dict[str, Any]) -> onnx.ModelProto:
    """A model of one node; the first tensor is its input, the others are stored."""
    names = ["" if a is None else f"i{n}" for n, a in enumerate(inputs)]
    has_past = op_type == "QAttention" and len(inputs) > 8
    outputs = [f"o{n}" for n in range(2 if has_past else OUTPUTS.get(op_type, 1))]
    node = helper.make_node(
        op_type, names, outputs, domain="com.microsoft", name="node", **attributes
    )
    stored = [
        onnx.numpy_helper.from_array(a, n) for n, a in zip(names[1:], inputs[1:], strict=True) if n
    ]
    if op_type == "QLinearConcat":
        names, inputs, stored = [names[2]], (inputs[2],), [
            onnx.numpy_helper.from_array(a, n)
            for n, a in zip(names, inputs, strict=True) if n != names[2]
        ]  # fmt: skip
    kind = helper.np_dtype_to_tensor_dtype(inputs[0].dtype)
    first = helper.make_tensor_value_info(names[0], kind, list(inputs[0].shape))
    ends = [helper.make_tensor_value_info(o, TensorProto.UNDEFINED, None) for o in outputs]
    for end in ends:
        end.ClearField("type")
    graph = helper.make_graph([node], "g", [first], ends, stored)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


@pytest.mark.parametrize("case", CASES)
def test_an_operator_of_onnxruntime(case: str) -> None:
    op_type, inputs, attributes = CASES[case]
    model = single(op_type, inputs, attributes)
    x = inputs[2] if op_type == "QLinearConcat" else inputs[0]
    session = ort.InferenceSession(model.SerializeToString())
    expected = session.run(None, {model.graph.input[0].name: x})
    package = importlib.import_module("sardonyx.engines.numpy")
    result = package.prepare(sx.load(model)).run([x])
    # The kernel rounds the state by rows that one thread computes; we do not round it.
    state_rounded = op_type == "DynamicQuantizeLSTM"
    for ours, right in zip(result, expected, strict=True):
        assert ours.dtype == right.dtype and ours.shape == right.shape
        whole = right.dtype.kind in "iu"
        atol = 1 if whole else (5e-4 if state_rounded else 2e-5)
        np.testing.assert_allclose(ours.astype(float), right.astype(float), rtol=1e-4, atol=atol)


def test_a_form_that_onnx_cannot_describe_stays() -> None:
    text = io.StringIO()
    inputs = (*ATTENTION, None, Z, np.array(0, np.int8))
    model = single("QAttention", inputs, {"num_heads": 2, "do_rotary": 1})
    print(sx.normalize(sx.load(model)).graph, file=text)
    assert "QAttention" in text.getvalue()


def test_operators_without_a_kernel_to_compare_with_are_refused_all_at_once() -> None:
    """onnxruntime's CPU build knows neither: nothing could confirm their numbers."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    ends = [helper.make_tensor_value_info(n, TensorProto.INT8, ["N", 8]) for n in "xz"]
    nodes = [
        helper.make_node("QOrderedMatMul", ["x", "s", "w", "s", "s"], ["y"], name="product",
                         domain="com.microsoft", order_A=1, order_B=1, order_Y=1),
        helper.make_node("QOrderedGelu", ["y", "s", "s"], ["z"], name="bend",
                         domain="com.microsoft", order_X=1, order_Y=1),
    ]  # fmt: skip
    stored = [onnx.numpy_helper.from_array(a, n) for n, a in (("w", i8(8, 8)), ("s", at(0.1)))]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], stored)
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    with pytest.raises(UnsupportedOp) as refusal:
        sx.to_numpy(model)
    for name in ("QOrderedMatMul", '"product"', "QOrderedGelu", '"bend"'):
        assert name in str(refusal.value)


def test_scales_that_do_not_fit_their_integers_are_refused_by_name() -> None:
    text = """<ir_version: 9, opset_import: ["": 20]> g (float[N,3] x) => (float[N,4] y)
    <int8[3,4] w = {1,2,3,4,5,6,7,8,9,1,2,3}, float[5] s = {1,1,1,1,1}>
    { d = DequantizeLinear<axis = 1>(w, s) y = MatMul(x, d) }"""
    with pytest.raises(ModelError, match=r'DequantizeLinear.*"d"'):
        sx.dequantize(onnx.parser.parse_model(text))


def test_scales_belong_to_the_second_axis_if_none_is_named() -> None:
    text = """<ir_version: 9, opset_import: ["": 20]> g (float[N,2] x) => (float[N,2] y)
    <int8[2,2] w = {1,2,3,4}, float[2] s = {1,10}>
    { d = DequantizeLinear(w, s) y = MatMul(x, d) }"""
    weights = sx.dequantize(onnx.parser.parse_model(text)).graph.initializers.values()
    (array,) = (v.const_value.numpy() for v in weights if v.const_value is not None)
    assert array.tolist() == [[1, 20], [3, 40]]


def test_scales_of_columns_are_no_weights(tmp_path: Path) -> None:
    """They are factors of the bias's scale as well; training them changes what integers mean."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    rows = RNG.normal(size=(8, 6)).astype(np.float32)

    class Rows(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rest = [{"x": rows}]

        def get_next(self) -> Any:
            return self.rest.pop() if self.rest else None

    nodes = [
        helper.make_node("Gemm", ["x", "a", "b"], ["h"], name="first"),
        helper.make_node("Relu", ["h"], ["r"], name="bend"),
        helper.make_node("Gemm", ["r", "c", "d"], ["y"], name="second"),
    ]
    ends = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", s])
        for n, s in (("x", 6), ("y", 3))
    ]
    shapes = {"a": (6, 8), "b": (8,), "c": (8, 3), "d": (3,)}
    stored = [
        onnx.numpy_helper.from_array(RNG.normal(size=s).astype(np.float32), n)
        for n, s in shapes.items()
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], stored)
    imports = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), tmp_path / "m.onnx")
    quantize_static(
        tmp_path / "m.onnx", tmp_path / "q.onnx", Rows(),
        quant_format=QuantFormat.QOperator, per_channel=True,
    )  # fmt: skip
    model = sx.load(tmp_path / "q.onnx")
    assert any(node.op_type == "QGemm" for node in model.graph)
    assert not [w.name for w in sx.weights(model) if w.kind == "weight"]
    with pytest.raises(sx.errors.ArgumentError, match="nothing to train"):
        sx.trainable(model, "cross_entropy")
    dense = sx.dequantize(model)
    assert {w.size for w in sx.weights(dense) if w.kind == "weight"} == {48, 8, 24, 3}
