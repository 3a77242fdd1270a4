"""What operators, branches and lists become in generated source: the same numbers as onnxruntime's,
or a refusal.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import sardonyx as sx
from sardonyx.errors import SardonyxError, UnsupportedOp
from tests import official
from tests.networks import network
from tests.test_source import expected, ran, same

torch = pytest.importorskip("torch")

OPERATORS = {
    "arithmetic": "a = Mul (x, two)  b = Sub (one, a)  c = Div (b, two)  y = Pow (c, two)",
    "negative": "a = Neg (x)  b = Mul (a, x)  c = Add (b, x)  y = Mul (c, c)",
    "precedence": "a = Add (x, one)  b = Sub (x, a)  c = Mul (b, a)  d = Div (x, c)"
    "  y = Sub (x, d)",
    "where": "c = Less (x, one)  d = Greater (x, two)  e = Or (c, d)  y = Where (e, x, one)",
    "reductions": "a = ReduceMean <keepdims = 1> (x, last)  b = ReduceMax <keepdims = 1> (x, last)"
    "  c = Sub (x, a)  y = Add (c, b)",
    "slices": "a = Slice (x, starts, ends)  b = Tanh (a)  y = ReduceSum <keepdims = 1> (b, last)",
    "clip": "a = Clip (x, one, two)  b = LeakyRelu <alpha = 0.2> (a)  y = Softmax <axis = 1> (b)",
    "swish": "s = Sigmoid (x)  y = Mul (x, s)",
    "transposed": "a = Transpose <perm = [1, 0]> (x)  b = MatMul (a, x)  y = MatMul (x, b)",
    "split": "a, b = Split <axis = 1, num_outputs = 2> (x)  y = Concat <axis = 0> (b, a)",
    "parameter": "a = Mul (x, gamma)  y = Add (a, gamma)",
    "pad": "a = Pad (x, pads)  y = Relu (a)",
    "places": "a = GatherND (x, places)  b = ScatterND <reduction = \"add\"> (x, places, a)"
    "  c = ScatterElements <axis = 1, reduction = \"max\"> (b, columns, pair)"
    "  y = ScatterElements <axis = 1> (c, columns, pair)",
    "norms": "a = LpNormalization <axis = 1, p = 1> (x)  b = LpNormalization <axis = 1> (x)"
    "  c = ReduceProd (b, last)  d = IsInf (x)  e = Where (d, one, a)  y = Mul (e, c)",
    "quantized": "a = QuantizeLinear (x, gap, middle)  b = DequantizeLinear (a, gap, middle)"
    "  c = QuantizeLinear <axis = 1> (x, gaps, middles)"
    "  d = DequantizeLinear <axis = 1> (c, gaps, middles)  y = Add (b, d)",
    "mean of a product": "a = Mul (x, x)  b = ReduceMean <keepdims = 1> (a, last)"
    "  y = Mul (b, x)",
    "through nothing": "a = Add (x, one)  b = Identity (a)  c = Mul (b, two)  d = Sub (x, c)"
    "  e = Clip (d)  y = ReduceSum <keepdims = 1> (e, last)",
    "turned": "a = Transpose (x)  b = Transpose (a)  y = Flatten <axis = 2> (b)",
    "expand": "a = ReduceSum <keepdims = 1> (x, last)  s = Shape (x)  y = Expand (a, s)",
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_expressions_mean_what_the_graph_means(name: str, tmp_path: Path) -> None:
    sizes = {"split": ("M", 2), "slices": (2, "K"), "pad": ("N", 5), "through nothing": ("N", 1)}
    sizes["turned"] = ("M", 1)
    rows, columns = sizes.get(name, ("N", 4))
    constants = {
        "one": np.asarray(1.0), "two": np.asarray(2.0), "last": np.asarray([1]),
        "starts": np.asarray([0, 1]), "ends": np.asarray([2, 3]),
        "gamma": np.arange(4.0) - 1.5, "pads": np.asarray([0, 1, 0, 0]),
        "places": np.asarray([[0, 1], [2, 3]]), "columns": np.asarray([[1, 3], [0, 2]]),
        "pair": np.asarray([[0.5, -1.0], [2.0, 3.0]]), "gap": np.asarray(0.03),
        "gaps": np.asarray([0.01, 0.02, 0.03, 0.04]), "middle": np.asarray(10, np.uint8),
        "middles": np.asarray([0, 3, -5, 7], np.int8),
    }  # fmt: skip
    body = OPERATORS[name]
    used = {k: v for k, v in constants.items() if f" {k}" in body or f"({k}" in body}
    model = network(f"m (float[N,4] x) => (float[{rows},{columns}] y) {{ {body} }}", used)
    sx.to_torch_source(model, tmp_path)
    x = np.random.default_rng(3).normal(size=(3, 4)).astype(np.float32)
    with torch.no_grad():
        result = loaded(tmp_path)(torch.from_numpy(x)).numpy()
    same([result], expected(model, [x]))


SIZES = {
    "NonZero": "i = NonZero (x)  j = Transpose (i)  y = GatherND (x, j)",
    "Range": "r = Range (none, n, step)  f = Cast <to = 1> (r)  y = Mul (f, top)",
    "Slice": "a = Slice (x, zero, k, zero)  y = ReduceSum <keepdims = 0> (a, one)",
    "Expand": "s = Concat <axis = 0> (k, one)  e = Expand (top, s)  y = Squeeze (e, one)",
    "Reshape": "s = Concat <axis = 0> (k, minus)  e = Reshape (x, s)"
    "  y = ReduceSum <keepdims = 0> (e, one)",
    "ConstantOfShape": "e = ConstantOfShape (k)  y = Add (e, top)",
    "sizes as a tensor": "s = Shape (x)  f = Cast <to = 1> (s)  y = Mul (f, top)",
    "the larger of sizes": "s = Shape <start = 0, end = 1> (x)  m = Max (s, five)"
    "  e = ConstantOfShape (m)  y = Add (e, top)",
    "backwards": "a = Slice (x, one, below, zero, minus)  y = ReduceSum <keepdims = 0> (a, one)",
}


SINGLE = {
    "sum": "r = ReduceSum<keepdims=0>(x) y = Add(r, c)",
    "turned": "r = ReduceSum<keepdims=0>(x) y = Sub(c, r)",
    "power": "r = ReduceSum<keepdims=0>(x) y = Pow(r, c)",
    "largest": "r = ReduceSum<keepdims=0>(x) y = Max(r, c)",
    "several": "r = ReduceSum<keepdims=0>(x) y = Sum(r, c, r)",
    "choice": "r = ReduceSum<keepdims=0>(x) b = Greater(r, zero) y = Where(b, r, c)",
    "comparison": "r = ReduceSum<keepdims=0>(x) b = Greater(r, c) y = Cast<to=1>(b)",
    "element": "r = Gather(x, one) a = Mul(r, c) y = Concat<axis=0>(a, a)",
}


@pytest.mark.parametrize("name", SINGLE)
def test_a_vector_of_one_number_gives_a_scalar_its_axis(name: str, tmp_path: Path) -> None:
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
    g (float[N] x) => (float[M] y) <float[1] c = {{2}}, float zero = {{0}}, int64 one = {{1}}>
    {{ {SINGLE[name]} }}"""
    proto = onnx.parser.parse_model(text)
    x = np.array([1, -2, 3], np.float32)
    (expected,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    sx.to_torch_source(sx.load(proto), tmp_path)
    y = loaded(tmp_path)(torch.from_numpy(x)).numpy()
    assert (y.shape, y.tolist()) == (expected.shape, expected.tolist())


@pytest.mark.parametrize("name", SIZES)
def test_sizes_that_data_decides(name: str, tmp_path: Path) -> None:
    count = "top = ReduceMax <keepdims = 0> (x)  n = Cast <to = 7> (top)  k = Unsqueeze (n, zero)"
    values = {"zero": [0], "one": [1], "minus": [-1], "five": [5], "below": [-(2**31)]}
    values |= {"none": 0, "step": 1}
    body = f"{count}  {SIZES[name]}"
    words = body.replace(",", " ").replace(")", " ").replace("(", " ").split()
    constants = {n: np.array(v, np.int64) for n, v in values.items() if n in words}
    model = network(f"m (float[N,4] x) => (float[K] y) {{ {body} }}", constants)
    sx.to_torch_source(model, tmp_path)
    module = loaded(tmp_path)
    for rows in (3, 8):
        x = np.random.default_rng(rows).normal(size=(rows, 4)).astype(np.float32)
        x[0, 0] = 4.5
        x[x.shape[0] // 2, 1:] = 0
        same([module(torch.from_numpy(x)).numpy()], expected(model, [x]))


def test_integer_products_are_exact(tmp_path: Path) -> None:
    text = """m (uint8[N,2,6] x) => (int32[N,3,4] y, int32[N,2,5] z) {
        y = ConvInteger (x, w, shift, wshift)  z = MatMulInteger (x, b, shift, bshift) }"""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.integers(-128, 127, (3, 2, 3), dtype=np.int8),
        "b": rng.integers(-128, 127, (6, 5), dtype=np.int8),
        "shift": np.array(7, np.uint8),
        "wshift": np.array(-3, np.int8),
        "bshift": rng.integers(-9, 9, 5, dtype=np.int8),
    }
    model = network(text, weights)
    sx.to_torch_source(model, tmp_path)
    x = rng.integers(0, 255, (3, 2, 6), dtype=np.uint8)
    outputs = loaded(tmp_path)(torch.from_numpy(x))
    padded = x.astype(np.int64) - 7
    filters = weights["w"].astype(np.int64) + 3
    expected = np.stack(
        [np.einsum("ncl,kcl->nk", padded[:, :, i : i + 3], filters) for i in range(4)], 2
    )
    np.testing.assert_array_equal(outputs[0].numpy(), expected)
    product = padded @ (weights["b"].astype(np.int64) - weights["bshift"])
    np.testing.assert_array_equal(outputs[1].numpy(), product)
    assert {o.dtype for o in outputs} == {torch.int32}


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("columns", [1, 5])
def test_quantized_products_are_those_of_integers(kind: type, columns: int, tmp_path: Path) -> None:
    """By hand, in double precision: products of shifted integers, scaled, rounded, shifted."""
    word = np.dtype(kind).name
    text = f"""m ({word}[N,2,6] x) => ({word}[N,3,4] y, {word}[N,2,5] z) {{
        y = QLinearConv (x, sx, zx, w, sw, zw, sy, zy, bias)
        z = QLinearMatMul (x, sx, zx, b, sb, zb, sy, zy) }}"""
    rng = np.random.default_rng(0)
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    weights = {
        "w": rng.integers(-128, 127, (3, 2, 3), dtype=np.int8),
        "b": rng.integers(-128, 127, (6, 5), dtype=np.int8),
        "bias": rng.integers(-999, 999, 3, dtype=np.int32),
        "sx": np.float32(0.02), "zx": np.array(low + 120, kind),
        "sy": np.float32(0.09), "zy": np.array(low + 100, kind),
        "sw": rng.uniform(0.01, 0.02, 3 if columns > 1 else 1).astype(np.float32),
        "zw": np.zeros(3 if columns > 1 else 1, np.int8),
        "sb": rng.uniform(0.01, 0.02, columns).astype(np.float32),
        "zb": np.full(columns, 3 if columns == 1 else 0, np.int8),
    }  # fmt: skip
    weights = {k: v.reshape(()) if v.shape == (1,) else v for k, v in weights.items()}
    model = network(text, weights)
    sx.to_torch_source(model, tmp_path)
    x = rng.integers(low, high, (3, 2, 6), dtype=kind)
    conv, product = loaded(tmp_path)(torch.from_numpy(x))
    wide = {k: v.astype(np.float64) for k, v in weights.items()}
    moved = x.astype(np.float64) - wide["zx"]
    windows = [np.einsum("ncl,kcl->nk", moved[:, :, i : i + 3], wide["w"]) for i in range(4)]
    sums = np.stack(windows, 2) + wide["bias"][:, None]
    by_filter = np.broadcast_to(wide["sw"], 3)[:, None]
    for result, total in (
        (conv, sums * wide["sx"] * by_filter),
        (product, moved @ (wide["b"] - wide["zb"]) * wide["sx"] * wide["sb"]),
    ):
        levels = np.clip(np.round(total / wide["sy"]) + wide["zy"], low, high)
        np.testing.assert_array_equal(result.numpy(), levels.astype(kind))


def test_the_scaler_of_scikit_learn(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 3]>
    m (float[N,3] x) => (float[N,3] y) {
        a = ai.onnx.ml.Scaler <offset = [0.5, -1.25, 3.0], scale = [2.0, 0.1, 0.3]> (x)
        y = ai.onnx.ml.Scaler <offset = [0.5], scale = [4.0]> (a) }"""
    model = sx.load(onnx.parser.parse_model(text))
    sx.to_torch_source(model, tmp_path)
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    same([loaded(tmp_path)(torch.from_numpy(x)).numpy()], expected(model, [x]))


DAMAGED = {
    "an input is missing": "y = Neg ()",
    "one input too many": "y = Neg (x, x)",
    "a count that is no integer": """n = Constant <value = float {1.5}> ()
        y = Loop (n, , x) <body = b (int64 i, bool c, float[N,2] a) => (bool d, float[N,2] p)
            { d = Identity (c)  p = Neg (a) }>""",
    "sizes that are no integers": "n = Constant <value = float[2] {2, 1}> ()  y = Reshape (x, n)",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_nodes_are_refused(name: str, tmp_path: Path) -> None:
    text = f"""<ir_version: 8, opset_import: ["": 17]>
    m (float[N,2] x) => (float[N,2] y) {{ {DAMAGED[name]} }}"""
    with pytest.raises(SardonyxError):
        sx.to_torch_source(onnx.parser.parse_model(text), tmp_path)


SPECTRA = {
    "real": ("1", "y = DFT (x)"),
    "real, one side": ("1", "y = DFT <onesided = 1> (x)"),
    "real, first axis": ("1", "y = DFT <onesided = 1> (x, , one)"),
    "real, longer": ("1", "y = DFT <onesided = 1> (x, nine)"),
    "real, shorter": ("1", "y = DFT (x, four, minus)"),
    "real, inverse": ("1", "y = DFT <inverse = 1> (x)"),
    "complex": ("2", "y = DFT (x)"),
    "complex, first axis": ("2", "y = DFT (x, , one)"),
    "complex, inverse": ("2", "y = DFT <inverse = 1> (x)"),
    "complex, longer": ("2", "y = DFT <inverse = 1> (x, nine)"),
    "complex, transposed": (
        "2", "t = Transpose <perm = [0, 2, 1, 3]> (x)  u = DFT (t)  y = DFT <inverse = 1> (u)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPECTRA)
def test_spectra_of_real_and_complex_numbers(name: str, tmp_path: Path) -> None:
    pairs, body = SPECTRA[name]
    numbers = {"one": 1, "minus": -2, "nine": 9, "four": 4}
    used = {k: np.asarray(v) for k, v in numbers.items() if k in body.replace("onesided", "")}
    model = network(f"m (float[N,6,T,{pairs}] x) => (float[A,B,C,D] y) {{ {body} }}", used)
    sx.to_torch_source(model, tmp_path)
    for sizes in ((2, 7), (1, 8)):
        shape = (sizes[0], 6, sizes[1], int(pairs))
        x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
        result = loaded(tmp_path)(torch.from_numpy(x)).numpy()
        (reference,) = expected(model, [x])
        np.testing.assert_allclose(result, reference, atol=2e-5 * np.abs(reference).max())


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("op", ["GlobalMaxPool", "GlobalAveragePool"])
def test_pooling_takes_every_axis(op: str, rank: int, tmp_path: Path) -> None:
    sizes, ones = ",".join("HWD"[:rank]), ",".join("1" * rank)
    model = network(f"m (float[N,2,{sizes}] x) => (float[N,2,{ones}] y) {{ y = {op} (x) }}", {})
    sx.to_torch_source(model, tmp_path)
    x = np.random.default_rng(3).normal(size=(3, 2, 4, 5, 6)[: rank + 2]).astype(np.float32)
    same([loaded(tmp_path)(torch.from_numpy(x)).numpy()], expected(model, [x]))


IMAGES = {
    "LRN": "y = LRN <size = 3, alpha = 0.5, beta = 0.6, bias = 1.5> (x)",
    "GridSample": 'y = GridSample <mode = "cubic", padding_mode = "border"> (x, grid)',
    "GridSample-corners": "y = GridSample <align_corners = 1> (x, grid)",
    "Pad-reflect": 'y = Pad <mode = "reflect"> (x, pads)',
    "Pad-edge": 'y = Pad <mode = "edge"> (x, pads)',
    "Pad-few": 'a = ReduceMean <keepdims = 0> (x, few)  y = Pad <mode = "reflect"> (a, ends)',
    "MaxPool-uneven": "y = MaxPool <kernel_shape = [3, 2], pads = [1, 0, 0, 1]> (x)",
    "AveragePool-uneven": "y = AveragePool <kernel_shape = [3, 2], pads = [1, 0, 0, 1],"
    " count_include_pad = 1> (x)",
    "Conv-computed": "w = Tanh (filters)  y = Conv <pads = [1, 0, 0, 1], strides = [1, 2]> (x, w)",
    "ConvTranspose-computed": "w = Tanh (filters)  s = Transpose <perm = [1, 0, 2, 3]> (w)"
    "  y = ConvTranspose <pads = [1, 1, 1, 1]> (x, s)",
    "norms-computed": "w = Tanh (slopes)  a = InstanceNormalization (x, w, slopes)"
    "  b = BatchNormalization (a, slopes, w, w, slopes)  l = Tanh (lasts)"
    "  y = LayerNormalization <axis = 3> (b, l, lasts)",
}


@pytest.mark.parametrize("name", IMAGES)
def test_images_are_treated_as_the_graph_does(name: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    constants = {
        "grid": rng.uniform(-1.2, 1.2, (2, 4, 5, 2)), "filters": rng.normal(size=(3, 5, 2, 3)),
        "slopes": rng.uniform(0.5, 2, 5), "lasts": rng.uniform(0.5, 2, 5),
        "pads": np.asarray([0, 0, 1, 0, 0, 0, 2, 3]), "few": np.asarray([0, 1, 2]),
        "ends": np.asarray([2, 1]),
    }  # fmt: skip
    body = IMAGES[name]
    used = {k: v for k, v in constants.items() if f" {k}" in body or f"({k}" in body}
    rank = "A" if name == "Pad-few" else "A,B,C,D"
    model = network(f"m (float[2,5,4,5] x) => (float[{rank}] y) {{ {body} }}", used)
    sx.to_torch_source(model, tmp_path)
    x = rng.normal(size=(2, 5, 4, 5)).astype(np.float32)
    with torch.no_grad():
        result = loaded(tmp_path)(torch.from_numpy(x)).numpy()
    same([result], expected(model, [x]))


STATES = {
    "given": ("h, c", "self.lstm(x, (h, c))"),
    "zeros": ("zero, zero", "self.lstm(x)"),
}


@pytest.mark.parametrize("name", STATES)
def test_states_of_recurrent_layers(name: str, tmp_path: Path) -> None:
    states, call = STATES[name]
    rng = np.random.default_rng(2)
    extra = ", float[1,N,3] h, float[1,N,3] c" if name == "given" else ""
    body = f"""m (float[T,N,2] x{extra}) => (float[T,1,N,3] y, float[1,N,3] last) {{
        size = Shape <start = 1, end = 2> (x)  whole = Concat <axis = 0> (one, size, three)
        zero = ConstantOfShape (whole)
        y, last = LSTM <hidden_size = 3> (x, lstm.w, lstm.r, lstm.b, , {states}) }}"""
    weights = {"one": np.asarray([1]), "three": np.asarray([3]), "lstm.b": rng.normal(size=(1, 24))}
    weights |= {"lstm.w": rng.normal(size=(1, 12, 2)), "lstm.r": rng.normal(size=(1, 12, 3))}
    model = network(body, weights)
    text = sx.to_torch_source(model, tmp_path).read_text()
    assert call in text
    inputs = [rng.normal(size=s).astype(np.float32) for s in ((5, 4, 2), (1, 4, 3), (1, 4, 3))]
    inputs = inputs[: len(model.inputs)]
    same(ran(tmp_path, inputs)[0], expected(model, inputs))


def test_what_a_recurrent_layer_of_torch_lacks_is_said(tmp_path: Path) -> None:
    body = """m (float[T,N,2] x) => (float[T,1,N,3] y) {
        y = GRU <hidden_size = 3> (x, gru.w, gru.r) }"""
    weights = {"gru.w": np.ones((1, 9, 2)), "gru.r": np.ones((1, 9, 3))}
    with pytest.raises(UnsupportedOp, match="torch's GRU lacks linear_before_reset = 0"):
        sx.to_torch_source(network(body, weights), tmp_path)


LINEAR = {
    "one_weight": np.asarray([[1.0, 2.0], [0.5, -1.0]]), "one_bias": np.asarray([0.5, 1.0]),
    "two_weight": np.asarray([[0.3, -2.0], [1.5, 4.0]]), "two_bias": np.asarray([-0.5, 2.0]),
}  # fmt: skip
# name -> (inputs besides x, body, lines that a person would write)
BRANCHES = {
    "one line": (
        "bool flag",
        """t = Relu (x)
        y = If (flag) <then_branch = a () => (float[N,2] p) { p = Tanh (t) },
                       else_branch = b () => (float[N,2] q) { q = Identity (t) }>""",
        ["        if flag:\n            x = torch.tanh(x)\n        return x"],
    ),
    "layers": (
        "bool flag",
        """y = If (flag) <
            then_branch = a () => (float[N,2] p) {
                h = Gemm <transB = 1> (x, one_weight, one_bias)  p = Tanh (h) },
            else_branch = b () => (float[N,2] q) {
                h2 = Gemm <transB = 1> (x, two_weight, two_bias)  q = Add (h2, x) }>""",
        [
            "        if flag:\n            x = self.when_true(x)\n        else:\n",
            "class WhenFalse(",
        ],
    ),
    "data and two results": (
        "",
        """s = ReduceSum <keepdims = 0> (x)  c = Greater (s, zero)
        a, b = If (c) <
            then_branch = a () => (float[N,2] p, float[N,2] r) { p = Mul (x, x)  r = Tanh (p) },
            else_branch = b () => (float[N,2] q, float[N,2] z) { q = Neg (x)  z = Identity (x) }>
        d = Add (a, x)  y = Sub (b, d)""",
        ["        if x.sum(dim=(0, 1)) > 0.0:\n            part, part2 = self.when_true(x)"],
    ),
    "one in another": (
        "bool flag, bool other",
        """y = If (flag) <
            then_branch = a () => (float[N,2] p) {
                p = If (other) <
                    then_branch = c () => (float[N,2] r) {
                        r = Gemm <transB = 1> (x, one_weight, one_bias) },
                    else_branch = d () => (float[N,2] s) { s = Neg (x) }> },
            else_branch = b () => (float[N,2] q) { q = Identity (x) }>""",
        [
            "def forward(self, condition: torch.Tensor, x: torch.Tensor)",
            "else:\n            x = -x",
        ],
    ),
}


@pytest.mark.parametrize("name", BRANCHES)
def test_a_choice_is_a_plain_if(name: str, tmp_path: Path) -> None:
    flags, body, lines = BRANCHES[name]
    used = {k: v for k, v in {**LINEAR, "zero": np.asarray(0.0)}.items() if k in body}
    inputs = f"float[N,2] x{', ' if flags else ''}{flags}"
    model = network(f"m ({inputs}) => (float[N,2] y) {{ {body} }}", used)
    text = sx.to_torch_source(model, tmp_path).read_text()
    for line in lines:
        assert line in text, text
    module = loaded(tmp_path)
    rng = np.random.default_rng(0)
    for case in range(4):
        arguments: list[np.ndarray] = [rng.normal(size=(3, 2)).astype(np.float32) + case - 1.5]
        arguments[0] = arguments[0].astype(np.float32)
        arguments += [np.asarray(bool(case >> i & 1)) for i in range(len(model.inputs) - 1)]
        with torch.no_grad():
            result = module(*map(torch.from_numpy, arguments))
        same([result.numpy()], expected(model, arguments))
    back = sx.with_weights(model, tmp_path)
    for key in used:
        assert np.array_equal(back.initializer(key).numpy(), model.initializer(key).numpy())


def test_what_lies_in_a_list_keeps_its_place(tmp_path: Path) -> None:
    body = "a = Gemm <transB = 1> (x, net.3.weight, net.3.bias)  b = Tanh (a)"
    text = f"m (float[N,2] x) => (float[N,2] y) {{ {body}  c = Add (a, b)"
    text += "  y = Gemm <transB = 1> (c, net.1.weight, net.1.bias) }"
    weights = {
        f"net.{i}.{k}": LINEAR[f"{n}_{k}"]
        for i, n in ((3, "one"), (1, "two")) for k in ("weight", "bias")
    }  # fmt: skip
    model = network(text, weights)
    sx.to_torch_source(model, tmp_path)
    x = [np.random.default_rng(1).normal(size=(3, 2)).astype(np.float32)]
    result, keys = ran(tmp_path, x)
    same(result, expected(model, x))
    assert sorted(keys) == sorted(weights)


def loaded(folder: Path) -> Any:
    """A generated model in this process."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("generated", folder / "model.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.load()


PLAIN = {"float32", "float64", "float16", "int64", "int32", "uint8", "int8", "bool"}
# torch's scatter takes no negative indices, and says so when it runs
LOUD = {"test_scatter_elements_with_negative_indices"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(3))
def test_official_cases_are_written_right_or_refused(part: int, tmp_path: Path) -> None:
    written = 0
    for case in [c for c in official.cases() if c.kind == "node"][part::12]:
        inputs, expected = next(iter(case.sets()))
        kinds = {str(getattr(v, "dtype", type(v))) for v in (*inputs, *expected)}
        if not kinds <= PLAIN or case.name in LOUD:
            continue
        try:
            sx.to_torch_source(sx.load(case.model), tmp_path)
        except SardonyxError:
            continue
        with torch.no_grad():
            result = loaded(tmp_path)(*(torch.from_numpy(np.array(v)) for v in inputs))
        result = result if isinstance(result, tuple) else (result,)
        for a, b in zip(result, expected):
            np.testing.assert_allclose(a.numpy(), b, rtol=1e-3, atol=1e-5, err_msg=case.name)
        written += 1
    assert written > 30  # as many as are refused, or this tests little
