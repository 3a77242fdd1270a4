"""Models as TensorFlow Lite files: LiteRT gives the numbers of onnxruntime, in few operators."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import sardonyx as sx
from sardonyx.errors import ArgumentError, DataError

pytest.importorskip("tensorflow")
interpreter = pytest.importorskip("ai_edge_litert.interpreter")

CASES = {
    "depthwise with two strides": (
        "float[N,4,9,8] x", "float[N,5] y",
        {"w": (4, 1, 3, 3), "b": (4,), "v": (5, 4, 1, 1)},
        "a = Conv <group = 4, strides = [2, 1], pads = [1, 1, 1, 1]> (x, w, b) h = HardSwish (a) "
        "c = Conv (h, v) g = GlobalAveragePool (c) y = Flatten (g)",
        {"TRANSPOSE": 1, "DEPTHWISE_CONV_2D": 1, "CONV_2D": 1, "HARD_SWISH": 1},
    ),
    "norms, pools and a join": (
        "float[1,3,12,12] x", "float[1,7,6,6] y",
        {"w": (4, 3, 3, 3), "s": (4,), "t": (4,), "m": (4,), "var": (4,), "v": (3, 4, 3, 3)},
        "a = Conv <pads = [1, 1, 1, 1]> (x, w) n = BatchNormalization (a, s, t, m, var) "
        "r = Relu (n) p = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> "
        "(r) q = Conv <pads = [1, 1, 1, 1]> (p, v) i = InstanceNormalization (q, u, u) "
        "k = Sigmoid (i) y = Concat <axis = 1> (p, k)",
        {"TRANSPOSE": 2, "MAX_POOL_2D": 1, "LOGISTIC": 1, "CONCATENATION": 1},
    ),
    "larger and smaller": (
        "float[1,3,6,6] x", "float[1,2,24,24] y",
        {"w": (4, 3, 3, 3), "v": (4, 2, 2, 2)},
        "a = Conv <pads = [1, 1, 1, 1]> (x, w) l = LeakyRelu <alpha = 0.2> (a) "
        "e = Resize <mode = \"linear\"> (l, , two) f = Elu (e) "
        "y = ConvTranspose <strides = [2, 2]> (f, v)",
        {"RESIZE_BILINEAR": 1, "TRANSPOSE_CONV": 1, "LEAKY_RELU": 1, "ELU": 1, "SPLIT": 0},
    ),
    "slopes of channels": (
        "float[1,3,6,6] x", "float[1,4,6,6] y",
        {"w": (4, 3, 3, 3), "s": (4, 1, 1)},
        "a = Conv <pads = [1, 1, 1, 1]> (x, w) p = PRelu (a, s) "
        "y = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (p)",
        {"PRELU": 1, "RELU": 0, "TRANSPOSE": 2},
    ),
    "in groups": (
        "float[2,6,8] x", "float[2,4,3] y",
        {"w": (4, 3, 3)},
        "a = Conv <group = 2, dilations = [2], pads = [1, 1]> (x, w) "
        "p = AveragePool <kernel_shape = [3], strides = [2], pads = [1, 1]> (a) "
        "y = PRelu (p, slope)",
        {},
    ),
    "flattened for a product": (
        "float[1,3,6,6] x", "float[1,5] y",
        {"w": (4, 3, 3, 3), "m": (5, 144), "b": (5,)},
        "a = Conv <pads = [1, 1, 1, 1]> (x, w) r = Relu (a) f = Flatten (r) "
        "y = Gemm <transB = 1> (f, m, b)",
        {"TRANSPOSE": 1, "FULLY_CONNECTED": 1},
    ),
    "channels in groups": (
        "float[1,6,4,4] x", "float[1,6] y",
        {"w": (6, 6, 1, 1)},
        "a = Conv (x, w) s = Constant <value = int64[5] {1, 2, 3, 4, 4}> () b = Reshape (a, s) "
        "c = Transpose <perm = [0, 2, 1, 3, 4]> (b) t = Constant <value = int64[4] {1, 6, 4, 4}> "
        "() d = Reshape (c, t) e = Conv (d, w) g = GlobalMaxPool (e) y = Flatten (g)",
        {"TRANSPOSE": 2, "GATHER": 0},
    ),
    "channels in an order": (
        "float[1,3,4,4] x", "float[1,6,4,4] y",
        {"w": (6, 3, 1, 1)},
        "a = Conv (x, w) i = Constant <value = int64[6] {0, 2, 4, 1, 5, 3}> () "
        "y = Gather <axis = 1> (a, i)",
        {"GATHER": 1},
    ),
    "attention": (
        "float[1,5,8] x", "float[1,5,8] y",
        {"w": (8, 8), "s": (8,), "t": (8,)},
        "q = MatMul (x, w) k = Transpose <perm = [0, 2, 1]> (q) d = MatMul (x, k) m = Softmax (d) "
        "o = MatMul (m, x) z = Add (o, x) l = LayerNormalization (z, s, t) y = Gelu (l)",
        {"SOFTMAX": 1, "GELU": 1},
    ),
}  # fmt: skip


def model_of(name: str) -> sx.Model:
    x, y, weights, nodes, _ = CASES[name]
    proto = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 20]> g ({x}) => ({y}) {{ {nodes} }}'
    )
    rng = np.random.default_rng(0)
    arrays = {n: rng.normal(size=s).astype(np.float32) / 2 for n, s in weights.items()}
    arrays |= {"var": np.abs(arrays["var"]) + 1} if "var" in arrays else {}
    arrays |= {"two": np.array([1, 1, 2, 2], np.float32), "u": np.ones(3, np.float32)}
    arrays |= {"slope": np.array([[0.1], [0.2], [0.3], [0.4]], np.float32)}
    used = {i for node in proto.graph.node for i in node.input}
    tensors = [onnx.numpy_helper.from_array(a, n) for n, a in arrays.items() if n in used]
    proto.graph.initializer.extend(tensors)
    return sx.load(proto)


@pytest.mark.parametrize("name", CASES)
def test_litert_gives_the_same_numbers(name: str, tmp_path: Path) -> None:
    file = sx.to_tflite(model_of(name), tmp_path / "m.tflite", seeds=2)
    assert file.report.verdict in ("same", "look")
    expected = CASES[name][-1]
    assert {kind: file.operators.get(kind, 0) for kind in expected} == expected
    assert interpreter.Interpreter(str(file.path)).get_signature_list()


def test_images_with_channels_last_need_no_transpose(tmp_path: Path) -> None:
    model = model_of("norms, pools and a join")
    path = tmp_path / "m.tflite"
    file = sx.to_tflite(model, path, inputs="nhwc", outputs="nhwc", seeds=1)
    assert (file.transposed, file.operators.get("TRANSPOSE", 0)) == (0, 0)
    runner = interpreter.Interpreter(str(path)).get_signature_runner()
    assert list(runner.get_input_details()["x"]["shape"]) == [1, 12, 12, 3]


def resized() -> sx.Model:
    return sx.load(
        onnx.parser.parse_model(
            """<ir_version: 10, opset_import: ["": 21]>
            g (float[1,3,8,9] x) => (float[1,3,16,18] y)
            <float[4] scales = {1, 1, 2, 2}>
            { y = Resize <mode = "linear"> (x, , scales) }"""
        )
    )


def test_an_image_that_is_only_resized_has_channels_last_as_well(tmp_path: Path) -> None:
    path = tmp_path / "m.tflite"
    file = sx.to_tflite(resized(), path, inputs="nhwc", outputs="nhwc", seeds=1)
    assert file.operators == {"RESIZE_BILINEAR": 1}
    runner = interpreter.Interpreter(str(path)).get_signature_runner()
    assert list(runner.get_input_details()["x"]["shape"]) == [1, 8, 9, 3]


def test_a_layout_of_images_is_refused_where_no_input_is_one(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21]>
        g (float[1,3,4,5] x) => (float[1,3,4,5] y) { y = Softmax <axis = -1> (x) }"""
    )
    with pytest.raises(ArgumentError, match=r'reads an input as an image[^"]*"x"  \[1, 3, 4, 5\]'):
        sx.to_tflite(model, tmp_path / "m.tflite", inputs="nhwc")
    assert not (tmp_path / "m.tflite").exists()


@pytest.mark.parametrize(
    "quantize",
    ["int8", *(pytest.param(q, marks=pytest.mark.slow) for q in ("dynamic", "float16"))],
)
def test_quantized_files_are_compared(quantize: str, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(8, 4, 9, 8)).astype(np.float32)
    model = model_of("depthwise with two strides")
    file = sx.to_tflite(model, tmp_path / "m.tflite", quantize=quantize, data=rows, seeds=1)
    difference, _ = file.quantized["y"]
    assert 0 <= difference < 0.1


def test_refusals_name_everything_at_once(tmp_path: Path) -> None:
    text = "g (float[N,3,H,W] x) => (float[N,3,H,W] y) { y = Relu (x) }"
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {text}')
    path = tmp_path / "m.tflite"
    with pytest.raises(ArgumentError, match=r"fixed sizes[\s\S]*axis 2[\s\S]*axis 3"):
        sx.to_tflite(proto, path)
    with pytest.raises(ArgumentError, match="no quantization"):
        sx.to_tflite(proto, path, quantize="int4")
    with pytest.raises(ArgumentError, match="typical inputs"):
        sx.to_tflite(proto, path, quantize="int8")
    with pytest.raises(DataError, match="does not fit"):
        sizes = {"H": 4, "W": 4}
        sx.to_tflite(proto, path, quantize="int8", data=np.zeros((4, 3, 5, 5)), sizes=sizes)
    assert not path.exists()
