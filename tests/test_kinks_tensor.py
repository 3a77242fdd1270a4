"""Gradients of moving, picking and quantizing operators where a choice had to be made: ties, edges,
types.

The choices are torch's where torch has the operator. Expected values are written out, or torch
computes them.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import sardonyx as sx
from sardonyx.errors import ArgumentError, UnsupportedOp
from sardonyx.grad import grad
from sardonyx.grad.quantization import straight_through
from sardonyx.model import Model, from_proto
from sardonyx.testing import Runner


def parsed(text: str) -> Model:
    return from_proto(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}'))


def gradients(text: str, seed: Any, wrt: list[str], **feeds: Any) -> list[np.ndarray]:
    """The gradients of `y`, weighted by `seed`."""
    built = grad(parsed(text), of="y", wrt=wrt, seeds="input", outputs=False)
    result = Runner(built)({**feeds, "seed/y": seed})
    return [result[f"grad/{name}"] for name in wrt]


def f32(*values: Any) -> np.ndarray:
    return np.array(values, np.float32)


# -- writing ------------------------------------------------------------------------

SCATTER = """g (float[3] x, float[4] u, int64[4] i) => (float[3] y) {
    y = ScatterElements<axis=0, reduction="%s">(x, i, u) }"""
SCATTER_ND = """g (float[3] x, float[4] u, int64[4, 1] i) => (float[3] y) {
    y = ScatterND<reduction="%s">(x, i, u) }"""


@pytest.mark.parametrize(
    "text, shape", [(SCATTER, (4,)), (SCATTER_ND, (4, 1))], ids=["Elements", "ND"]
)
@pytest.mark.parametrize("how", ["max", "min"])
def test_scattered_extremes_share_among_all_that_tie(text: str, shape: Any, how: str) -> None:
    sign = 1 if how == "max" else -1
    x, u = sign * f32(2, 5, 1), sign * f32(2, 2, 3, 7)
    index = np.array([0, 0, 1, 2]).reshape(shape)
    dx, du = gradients(text % how, f32(6, 10, 100), ["x", "u"], x=x, u=u, i=index)
    np.testing.assert_allclose(dx, [2, 10, 0])
    np.testing.assert_allclose(du, [2, 2, 0, 100])


@pytest.mark.parametrize(
    "text, shape", [(SCATTER, (4,)), (SCATTER_ND, (4, 1))], ids=["Elements", "ND"]
)
def test_overwritten_updates_have_no_gradient(text: str, shape: Any) -> None:
    index = np.array([0, 2, 0, -1]).reshape(shape)
    feeds = {"x": f32(1, 2, 3), "u": f32(5, 6, 7, 8), "i": index}
    y = Runner(parsed(text % "none"))(feeds)["y"]
    np.testing.assert_array_equal(y, [7, 2, 8])
    dx, du = gradients(text % "none", f32(1, 10, 100), ["x", "u"], **feeds)
    np.testing.assert_array_equal(dx, [0, 10, 0])
    np.testing.assert_array_equal(du, [0, 0, 1, 100])


def test_scattered_products_with_zeros_give_the_product_of_the_others() -> None:
    index = np.array([0, 0, 1, 1])
    feeds = {"x": f32(3, 4, 5), "u": f32(0, 2, 0, 0), "i": index}
    dx, du = gradients(SCATTER % "mul", f32(1, 1, 1), ["x", "u"], **feeds)
    np.testing.assert_array_equal(dx, [0, 0, 1])
    np.testing.assert_array_equal(du, [6, 0, 0, 0])


# -- picking ------------------------------------------------------------------------


def test_of_equal_elements_the_first_gets_the_gradient_of_unique() -> None:
    text = "g (float[5] x) => (float[n] y) { y = Unique(x) }"
    (dx,) = gradients(text, f32(1, 10, 100), ["x"], x=f32(2, 1, 2, 3, 1))
    np.testing.assert_array_equal(dx, [10, 1, 0, 100, 0])


def test_half_precision_adds_up_in_float32() -> None:
    text = "g (float16[2, 1] x, int64[n] i) => (float16[n, 1] y) { y = Gather(x, i) }"
    index = np.zeros(5000, np.int64)
    (dx,) = gradients(
        text, np.ones((5000, 1), np.float16), ["x"], x=np.ones((2, 1), np.float16), i=index
    )
    assert dx.dtype == np.float16
    np.testing.assert_array_equal(dx, [[5000], [0]])  # 1 + 2048 is 2048 in float16


def test_casts_between_floats_pass_the_gradient() -> None:
    text = (
        "g (float[3] x) => (float[3] y) { h = Cast<to=10>(x) d = Cast<to=11>(h) y = Cast<to=1>(d) }"
    )
    (dx,) = gradients(text, f32(1, 2, 3), ["x"], x=f32(4, 5, 6))
    np.testing.assert_array_equal(dx, [1, 2, 3])


def test_casts_to_integers_have_no_gradient() -> None:
    text = "g (float[3] x) => (float[3] y) { i = Cast<to=7>(x) f = Cast<to=1>(i) y = Mul(f, x) }"
    (dx,) = gradients(text, f32(1, 1, 1), ["x"], x=f32(4.6, 5, 6))
    np.testing.assert_array_equal(dx, [4, 5, 6])


# -- sampling -----------------------------------------------------------------------


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_grid_sample_on_pixels_and_edges_is_as_in_torch(
    mode: str, padding: str, align: int
) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1, 2, 3, 5))
    where = np.array([-3, -1.4, -1, -0.8, -0.5, 0, 0.5, 0.8, 1, 1.2, 2])
    grid = np.stack(np.meshgrid(where, where), -1)[None]
    seed = rng.normal(size=(1, 2, 11, 11))
    names = {"linear": "bilinear", "cubic": "bicubic"}
    a, b = (torch.tensor(v, requires_grad=True) for v in (x, grid))
    out = torch.nn.functional.grid_sample(a, b, names[mode], padding, bool(align))
    out.backward(torch.tensor(seed))
    text = (
        "g (double[1, 2, 3, 5] x, double[1, 11, 11, 2] grid) => (double[1, 2, 11, 11] y) "
        f'{{ y = GridSample<mode="{mode}", padding_mode="{padding}", '
        f"align_corners={align}>(x, grid) }}"
    )
    dx, dgrid = gradients(text, seed, ["x", "grid"], x=x, grid=grid)
    np.testing.assert_allclose(dx, a.grad, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(dgrid, b.grad, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("scale", [(2, 3), (1, 2)])
def test_repeated_pixels_in_float32_are_as_in_torch(scale: tuple[int, int]) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1, 2, 3, 5)).astype(np.float32)
    a = torch.tensor(x, requires_grad=True)
    out = torch.nn.functional.interpolate(a, scale_factor=scale, mode="nearest")
    seed = rng.normal(size=out.shape).astype(np.float32)
    out.backward(torch.tensor(seed))
    text = (
        "g (float[n, c, h, w] x) => (float[n, c, j, k] y) "
        f"{{ s = Constant<value_floats=[1.0, 1.0, {scale[0]}.0, {scale[1]}.0]>() "
        "y = Resize(x, , s) }"
    )
    (dx,) = gradients(text, seed, ["x"], x=x)
    np.testing.assert_allclose(dx, a.grad, rtol=1e-6)


SCALED = """g (float[1, 2, 4, 5] x%s) => (y) { %s
    y = Resize<mode="%s", coordinate_transformation_mode="%s", antialias=%d>(x, roi, scales) }"""
REGION, SCALES = (0.0, 0.0, 0.1, 0.2, 1.0, 1.0, 0.7, 1.3), (1.0, 1.0, 1.6, 0.7)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize(
    "coordinates", ["half_pixel", "half_pixel_symmetric", "align_corners", "tf_crop_and_resize"]
)
def test_scales_known_when_run_are_as_those_known_before(mode: str, coordinates: str) -> None:
    style = (mode, coordinates, mode != "nearest" and coordinates == "half_pixel")
    made = "".join(
        f"{name} = Constant<value_floats={list(values)}>() "
        for name, values in (("roi", REGION), ("scales", SCALES))
    )
    x = np.random.default_rng(2).normal(size=(1, 2, 4, 5)).astype(np.float32)
    seed = np.random.default_rng(3).normal(size=(1, 2, 6, 3)).astype(np.float32)
    (known,) = gradients(SCALED % ("", made, *style), seed, ["x"], x=x)
    inputs = ", float[8] roi, float[4] scales"
    feeds = {"x": x, "roi": f32(*REGION), "scales": f32(*SCALES)}
    (result,) = gradients(SCALED % (inputs, "", *style), seed, ["x"], **feeds)
    np.testing.assert_allclose(result, known, rtol=1e-5, atol=1e-6)


def test_parts_of_a_split_that_nobody_names_count_as_zeros() -> None:
    text = """g (float[n, 2] x, int64[3] s) => (float[k, 2] y) {
        a, , c = Split<axis=0>(x, s) y = Mul(c, c) }"""
    x = np.arange(1, 11, dtype=np.float32).reshape(5, 2)
    (dx,) = gradients(text, np.ones((2, 2), np.float32), ["x"], x=x, s=np.array([1, 2, 2]))
    np.testing.assert_array_equal(dx, [[0, 0], [0, 0], [0, 0], [14, 16], [18, 20]])


# -- quantizing ---------------------------------------------------------------------

PAIR = """g (float[5] x, float s) => (float[5] y) {
    z = Constant<value = int8 {10}>() q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }"""
DYNAMIC = """g (float[3] x) => (float[3] y) {
    q, s, z = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, z) }"""


def test_quantized_pairs_pass_the_gradient_inside_the_range_edges_included() -> None:
    # With scale 0.5 and zero point 10 the range -128 … 127 is -69 … 58.5; what rounds to an edge
    # is inside, as in torch's fake quantization.
    x = f32(-69.1, 58.6, -69, 58.5, 0)
    (dx,) = gradients(PAIR, f32(1, 2, 3, 4, 5), ["x"], x=x, s=f32(0.5)[0])
    np.testing.assert_array_equal(dx, [1, 2, 3, 4, 5])
    x = f32(-69, -69.6, 0.6, 58.5, 58.9)
    dx, ds = gradients(PAIR, f32(1, 2, 3, 4, 5), ["x", "s"], x=x, s=f32(0.5)[0])
    np.testing.assert_array_equal(dx, [1, 0, 3, 4, 0])
    # To the scale: the rounding error inside, the distance of the edge from the zero point outside.
    np.testing.assert_allclose(ds, 3 * (1 - 1.2) + 2 * -138 + 5 * 117, rtol=1e-5)


def test_the_switch_closes_pairs() -> None:
    with straight_through("none"), pytest.warns(UserWarning, match="do not depend"):
        (dx,) = gradients(PAIR, f32(1, 2, 3, 4, 5), ["x"], x=f32(1, 2, 3, 4, 5), s=f32(0.5)[0])
    np.testing.assert_array_equal(dx, np.zeros(5))


def test_a_record_keeps_the_switch_in_its_file(tmp_path: Path) -> None:
    """The layer before the pair is not trained, also where the file is read and trained later."""
    text = """g (float[N,4] x) => (float[N,2] y) <float s = {0.1}, uint8 z = {128},
        float[4,3] w = {1,2,3,4,5,6,7,8,9,1,2,3}, float[3,2] v = {1,2,3,4,5,6}>
        { a = MatMul(x, w) q = QuantizeLinear(a, s, z) b = DequantizeLinear(q, s, z)
          y = MatMul(b, v) }"""
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 20]> {text}')
    data = {"x": np.ones((4, 4), np.float32) / 9, "label": np.ones((4, 2), np.float32)}
    with straight_through("none"):
        sx.save(sx.trainable(model, "mse", sx.optim.sgd(0.1)), tmp_path / "closed.onnx")
    sx.save(sx.trainable(model, "mse", sx.optim.sgd(0.1)), tmp_path / "open.onnx")
    moved = {}
    for name in ("closed", "open"):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*does not depend")
            run = sx.train(tmp_path / f"{name}.onnx", data, steps=1, batch_size=4)
        before = {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer}
        moved[name] = [bool((run.model.initializer(n).numpy() != before[n]).any()) for n in "wv"]
    assert moved == {"closed": [False, True], "open": [True, True]}


def test_a_lone_quantize_has_no_gradient_and_warns() -> None:
    text = """g (float[3] x) => (float[3] y) {
        s = Constant<value_float=0.5>() z = Constant<value = int8 {0}>()
        q = QuantizeLinear(x, s, z) f = Cast<to=1>(q) y = Mul(f, x) }"""
    with pytest.warns(UserWarning, match="no gradient passes the QuantizeLinear"):
        (dx,) = gradients(text, f32(1, 1, 1), ["x"], x=f32(1, 2, 3))
    np.testing.assert_array_equal(dx, [2, 4, 6])


def test_dynamic_quantization_passes_the_gradient_of_a_pair() -> None:
    (dx,) = gradients(DYNAMIC, f32(1, 2, 3), ["x"], x=f32(-1, 0.5, 2))
    np.testing.assert_allclose(dx, [1, 2, 3], rtol=1e-6)
    (dx,) = gradients(DYNAMIC, f32(1, 2, 3), ["x"], x=f32(0, 0, 0))  # their scale is 0
    assert np.isfinite(dx).all()
    with straight_through("none"), pytest.warns(UserWarning, match="do not depend"):
        gradients(DYNAMIC, f32(1, 2, 3), ["x"], x=f32(-1, 0.5, 2))


def test_dynamic_quantization_that_nothing_dequantizes_is_refused_all_nodes_named() -> None:
    text = """g (float[3] x) => (float[3] y) {
        q, s, z = DynamicQuantizeLinear(x) f = Cast<to=1>(q) a = Mul(f, s)
        q2, s2, z2 = DynamicQuantizeLinear(a) f2 = Cast<to=1>(q2) y = Mul(f2, s2) }"""
    with pytest.raises(UnsupportedOp, match="2 inputs on the path") as refusal:
        gradients(text, f32(1, 1, 1), ["x"], x=f32(1, 2, 3))
    assert '"x"' in str(refusal.value) and '"a"' in str(refusal.value)


def test_a_switch_that_does_not_exist() -> None:
    with pytest.raises(ArgumentError, match="straight_through"), straight_through("some"):  # type: ignore[arg-type]
        pass


# -- sequences as inputs and outputs --------------------------------------------------


def test_the_gradient_of_a_sequence_is_a_sequence_of_equal_length() -> None:
    text = """g (seq(float[n, 3]) s, int64 i) => (float[m, 3] y) {
        e = SequenceAt(s, i) y = Mul(e, e) }"""
    built = grad(parsed(text), of="y", wrt=["s"], outputs=False)
    session = Runner(built).session
    elements = [np.ones((2, 3), np.float32), np.full((1, 3), 2, np.float32)]
    (result,) = session.run(None, {"s": elements, "i": np.array(-1)})
    assert len(result) == 2
    np.testing.assert_array_equal(result[0], np.zeros((2, 3)))
    np.testing.assert_array_equal(result[1], np.full((1, 3), 4))


def test_a_sequence_as_output_is_seeded_with_ones() -> None:
    text = """g (float[5, 3] x) => (seq(float[n, 3]) y) {
        z = Mul(x, x) k = Constant<value_int=2>() y = SplitToSequence(z, k) }"""
    built = grad(parsed(text), of="y", wrt=["x"], outputs=False)
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    np.testing.assert_array_equal(Runner(built)({"x": x})["grad/x"], 2 * x)


# -- shapes that nobody knows ---------------------------------------------------------

RANKLESS = {
    "Reshape": "s = Constant<value_ints=[-1]>() y = Reshape(x, s)",
    "Squeeze": "y = Squeeze(x)",
    "Transpose": "y = Transpose(x)",
    "Gather": "i = Constant<value_ints=[1, -1, 1]>() y = Gather(x, i)",
    "Tile": "r = Constant<value_ints=[2, 1, 3]>() y = Tile(x, r)",
    "Slice": "a = Constant<value_ints=[1]>() b = Constant<value_ints=[9]>() y = Slice(x, a, b)",
    "Pad": "p = Constant<value_ints=[1, 0, 2, 0, 1, 0]>() y = Pad(x, p)",
    "Where": "z = Constant<value_float=0.5>() c = Less(x, z) y = Where(c, x, z)",
    "Concat": "y = Concat<axis=-1>(x, x)",
    "Trilu": "y = Trilu(x)",
    "CenterCropPad": "s = Constant<value_ints=[5, 3]>() y = CenterCropPad<axes=[0, 2]>(x, s)",
}


@pytest.mark.parametrize("op", RANKLESS)
def test_unknown_rank(op: str) -> None:
    x = np.random.default_rng(1).normal(size=(2, 1, 4)).astype(np.float32)
    known = f"g (float[2, 1, 4] x) => (y) {{ {RANKLESS[op]} }}"
    unknown = known.replace("[2, 1, 4] x", " x", 1)
    seed = Runner(parsed(known))({"x": x})["y"] + 1
    model = parsed(unknown)
    model.inputs[0].shape = None
    result = []
    for text_or_model in (parsed(known), model):
        built = grad(text_or_model, of="y", wrt=["x"], seeds="input", outputs=False)
        result.append(Runner(built)({"x": x, "seed/y": seed})["grad/x"])
    np.testing.assert_allclose(result[1], result[0], rtol=1e-6)
    assert result[0].shape == x.shape and np.abs(result[0]).sum() > 0


@pytest.mark.parametrize("op", [op for op in RANKLESS if op not in ("Squeeze", "Where")])
def test_known_shapes_need_no_arithmetic_when_run(op: str) -> None:
    model = parsed(f"g (float[2, 1, 4] x) => (y) {{ {RANKLESS[op]} }}")
    built = grad(model, of="y", wrt=["x"], seeds="input", outputs=False)
    used = {node.op_type for node in built.graph.all_nodes()}
    assert not used & {"Shape", "Size", "Range", "NonZero", "ReduceProd"}
