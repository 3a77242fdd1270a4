"""Normalization: one regular form that computes the same, checked against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest

from sardonyx import opset
from sardonyx.model import load
from sardonyx.normalize import normalize
from sardonyx.passes.nesting import graphs, names
from sardonyx.versions import fit


def session(proto: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(proto.SerializeToString(), options)


def run(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    # At versions that the installed onnxruntime takes: normal forms are at the newest.
    return session(fit(load(proto)).proto()).run(None, feeds)


def model(text: str, version: int = 22) -> onnx.ModelProto:
    header = f'<ir_version: 10, opset_import: ["": {version}, "local": 1]>'
    return onnx.parser.parse_model(header + text)


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


WINDOWS = [
    ("Conv", 'y = Conv<auto_pad="SAME_UPPER", strides=[2,3]>(x, w)'),
    ("Conv-lower", 'y = Conv<auto_pad="SAME_LOWER", strides=[2,1]>(x, w)'),
    ("Conv-stride-one", 'y = Conv<auto_pad="SAME_LOWER">(x, w)'),
    ("Conv-valid", 'y = Conv<auto_pad="VALID", strides=[2,2]>(x, w)'),
    ("Conv-plain", "y = Conv(x, w)"),
    ("MaxPool", 'y = MaxPool<auto_pad="SAME_UPPER", kernel_shape=[3,2], strides=[2,2]>(x)'),
    ("MaxPool-lower", 'y = MaxPool<auto_pad="SAME_LOWER", kernel_shape=[2,3], strides=[2,2]>(x)'),
    ("AveragePool", 'y = AveragePool<auto_pad="SAME_UPPER", kernel_shape=[3,2], strides=[2,2]>(x)'),
    (
        "AveragePool-counting-pads",
        'y = AveragePool<auto_pad="SAME_LOWER", count_include_pad=1, kernel_shape=[3,2],'
        " strides=[2,3]>(x)",
    ),
    ("LpPool", 'y = LpPool<auto_pad="SAME_UPPER", kernel_shape=[3,2], strides=[2,2]>(x)'),
    ("ConvTranspose", 'y = ConvTranspose<auto_pad="SAME_UPPER", strides=[2,3]>(x, w)'),
    ("ConvTranspose-lower", 'y = ConvTranspose<auto_pad="SAME_LOWER", strides=[3,2]>(x, w)'),
]


@pytest.mark.parametrize("dims", ["N,2,7,8", "N,2,H,W"], ids=["known", "symbolic"])
@pytest.mark.parametrize("body", [b for _, b in WINDOWS], ids=[n for n, _ in WINDOWS])
def test_padding_is_explicit_and_means_the_same(body: str, dims: str) -> None:
    text = f"g (float[{dims}] x, float[2,2,3,4] w) => (float[a,b,c,d] y) {{ {body} }}"
    original = model(text)
    normal = normalize(load(original))
    for node in normal.graph:
        assert "auto_pad" not in node.attributes
        if node.op_type in ("Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool"):
            assert {"pads", "strides", "kernel_shape"} <= set(node.attributes)
    feeds = {"x": floats(2, 2, 7, 8), "w": floats(2, 2, 3, 4)}
    (expected,) = run(original, feeds)
    (result,) = run(normal.proto(), feeds)
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", [[9, 9], [10, 11], [12, 17]])
@pytest.mark.parametrize("auto_pad", ["", 'auto_pad="SAME_UPPER",', 'auto_pad="SAME_LOWER",'])
def test_output_shape_of_conv_transpose_becomes_pads(shape: list[int], auto_pad: str) -> None:
    text = (
        "g (float[1,2,5,5] x, float[2,1,3,3] w) => (float[a,b,c,d] y) "
        f"{{ y = ConvTranspose<{auto_pad} strides=[2,3], output_shape={shape}>(x, w) }}"
    )
    original = model(text)
    normal = normalize(load(original))
    (node,) = normal.graph
    assert "output_shape" not in node.attributes
    feeds = {"x": floats(1, 2, 5, 5), "w": floats(2, 1, 3, 3)}
    np.testing.assert_array_equal(run(normal.proto(), feeds)[0], run(original, feeds)[0])


@pytest.mark.parametrize(
    ("a", "b"),
    [((3,), (3,)), ((3,), (3, 4)), ((2, 3), (3,)), ((3,), (5, 3, 2)), ((5, 2, 3), (3,))],
    ids=str,
)
def test_vectors_in_matmul_become_matrices(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    original = model(f"g (float{list(a)} a, float{list(b)} b) => (float y) {{ y = MatMul(a, b) }}")
    original.graph.output[0].type.tensor_type.ClearField("shape")
    normal = normalize(load(original))
    product = next(n for n in normal.graph if n.op_type == "MatMul")
    assert all(len(v.shape) >= 2 for v in product.inputs)
    feeds = {"a": floats(*a), "b": floats(*b)}
    (expected,), (result,) = run(original, feeds), run(normal.proto(), feeds)
    assert result.shape == expected.shape
    np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_every_kind_of_constant_becomes_an_initializer() -> None:
    original = model(
        """g () => (float[2] a, float b, int64[2] c, int64 d, string[2] e, string f, float[1] k) {
        a = Constant<value_floats=[1.5, 2.5]>()
        b = Constant<value_float=0.5>()
        c = Constant<value_ints=[3, -4]>()
        d = Constant<value_int=5>()
        e = Constant<value_strings=["x", "é"]>()
        f = Constant<value_string="z">()
        k = Constant<value=float[1] {7.0}>()
        }"""
    )
    normal = normalize(load(original))
    assert not list(normal.graph)
    for name, expected in zip("abcdefk", run(original, {}), strict=True):
        result = normal.initializer(name).numpy()
        if name in "ef":
            result = np.vectorize(lambda b: b.decode(), otypes=[object])(result)
        np.testing.assert_array_equal(result, expected)
        assert result.dtype == expected.dtype


def test_functions_are_inlined_with_their_attributes_and_their_own_opset() -> None:
    # Softmax 11 flattens the last axes; 13 does not: the body's import decides, not the model's.
    text = """g (float[2,3,4] x) => (float[2,3,4] y, float[2,3,4] z) {
        y = local.outer<alpha=0.25>(x)
        z = local.inner(x)
    }
    <domain: "local", opset_import: ["": 22, "local": 1]>
    outer <alpha> (x) => (y) {
        a = LeakyRelu<alpha: float = @alpha>(x)
        y = local.inner(a)
    }
    <domain: "local", opset_import: ["": 11]>
    inner (x) => (y) { y = Softmax<axis=1>(x) }
    """
    original = model(text)
    normal = normalize(load(original))
    assert {n.domain for n in normal.graph} == {""} and not normal.ir.functions
    x = floats(2, 3, 4)

    def flat_softmax(v: np.ndarray) -> np.ndarray:
        e = np.exp(v.reshape(2, 12) - v.reshape(2, 12).max(1, keepdims=True))
        return (e / e.sum(1, keepdims=True)).reshape(v.shape)

    y, z = run(normal.proto(), {"x": x})
    np.testing.assert_allclose(y, flat_softmax(np.where(x > 0, x, 0.25 * x)), rtol=1e-5)
    np.testing.assert_allclose(z, flat_softmax(x), rtol=1e-5)


def test_functions_inside_bodies_and_with_bodies() -> None:
    text = """g (float[3] x, bool c) => (float[3] y) {
        y = If(c) <
            then_branch = t () => (float[3] p) { p = local.pick(x, c) },
            else_branch = e () => (float[3] q) { q = local.same(x) }
        >
    }
    <domain: "local", opset_import: ["": 22]>
    pick (x, c) => (y) {
        n = Not(c)
        y = If(n) <
            then_branch = t () => (p) { p = Neg(x) },
            else_branch = e () => (q) { q = Exp(x) }
        >
    }
    <domain: "local", opset_import: ["": 22]>
    same (x) => (x) { }
    """
    normal = normalize(load(model(text)))
    for value in (True, False):
        x = floats(3)
        (result,) = run(normal.proto(), {"x": x, "c": np.array(value)})
        np.testing.assert_allclose(result, np.exp(x) if value else x, rtol=1e-6)


def test_symbols_survive_shape_arithmetic() -> None:
    text = """g (float[batch,time,12,64] x) => (float[i,j,k] y) {
        s = Shape(x)
        zero = Constant<value_ints=[0]>()
        one = Constant<value_ints=[1]>()
        rest = Constant<value_ints=[-1]>()
        b = Gather(s, zero)
        t = Gather(s, one)
        target = Concat<axis=0>(b, t, rest)
        h = Reshape(x, target)
        y = Identity(h)
    }"""
    normal = normalize(load(model(text)))
    values = {v.name: v for n in normal.graph for v in n.outputs}
    assert [str(d) for d in values["h"].shape] == ["batch", "time", "768"]
    assert [getattr(d, "value", d) for d in values["target"].meta["content"]] == [
        "batch",
        "time",
        -1,
    ]


def test_data_dependent_sizes_stay_open() -> None:
    text = """g (float[4] x, int64[2] dims) => (int64[a,b] y, float[c,d] z) {
        y = NonZero(x)
        z = Reshape(x, dims)
    }"""
    normal = normalize(load(model(text)))
    y, z = (list(v.shape) for v in normal.graph.outputs)
    assert not any(isinstance(d, int) for d in (*y[1:], *z))


def test_shapes_reach_into_bodies() -> None:
    text = """g (float[5,3] x, bool c) => (float[5,6] y) {
        y = If(c) <
            then_branch = t () => (p) { p = Concat<axis=1>(x, x) },
            else_branch = e () => (q) { h = Neg(x) q = Concat<axis=1>(h, x) }
        >
    }"""
    normal = normalize(load(model(text)))
    inner = [n for g in graphs(normal.graph) if g is not normal.graph for n in g]
    shapes = {n.outputs[0].name: n.outputs[0].shape.numpy() for n in inner}
    assert shapes == {"p": (5, 6), "h": (5, 3), "q": (5, 6)}


def test_axes_are_not_negative_and_empty_inputs_go() -> None:
    text = """g (float[2,3,4] x) => (float[2,3,1] y, float[a,b,c] z, float[d,e,f] u) {
        axes = Constant<value_ints=[-1]>()
        y = ReduceSum(x, axes)
        z = Softmax(x)
        u = Clip(x, , )
    }"""
    original = model(text)
    normal = normalize(load(original))
    nodes = {n.op_type: n for n in normal.graph}
    assert nodes["ReduceSum"].inputs[1].const_value.numpy().tolist() == [2]
    assert nodes["Softmax"].attributes["axis"].value == 2
    assert len(nodes["Clip"].inputs) == 1
    x = floats(2, 3, 4)
    for expected, result in zip(
        run(original, {"x": x}), run(normal.proto(), {"x": x}), strict=True
    ):
        np.testing.assert_array_equal(result, expected)


def test_split_names_its_sizes() -> None:
    text = """g (float[7,2] x) => (float[a,b] p, float[c,d] q, float[e,f] r) {
        p, q, r = Split<num_outputs=3>(x)
    }"""
    original = model(text)
    normal = normalize(load(original))
    (node,) = normal.graph
    assert node.inputs[1].const_value.numpy().tolist() == [3, 3, 1]
    for expected, result in zip(
        run(original, {"x": floats(7, 2)}), run(normal.proto(), {"x": floats(7, 2)}), strict=True
    ):
        np.testing.assert_array_equal(result, expected)


def test_names_of_the_user_survive_and_the_model_is_not_changed() -> None:
    text = """g (float[1,2,H,W] x, float[2,2,3,3] w) => (float[a,b,c,d] y) {
        c = Conv<auto_pad="SAME_UPPER", strides=[2,2]>(x, w)
        m = MaxPool<auto_pad="SAME_LOWER", kernel_shape=[2,2], strides=[2,2]>(c)
        k = Constant<value_float=2.0>()
        y = Mul(m, k)
    }"""
    original = load(model(text))
    before = original.proto().SerializeToString()
    normal = normalize(original)
    assert {"x", "w", "c", "m", "k", "y"} <= names(normal.graph)
    assert original.proto().SerializeToString() == before
    assert normalize(original) is not normal and normalize(normal) is normal
    assert normal.opset == opset.OPSET


def test_weights_are_shared_with_the_original() -> None:
    weight = floats(64, 64)
    proto = model("g (float[N,64] x) => (float[N,64] y) { y = MatMul(x, w) }")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    original = load(proto)
    assert normalize(original).initializer("w") is original.initializer("w")


def test_old_files_list_their_initializers_as_inputs() -> None:
    proto = model("g (float[N,2] x, float[2] w) => (float[N,2] y) { y = Add(x, w) }", 7)
    proto.ir_version = 3
    proto.graph.initializer.append(onnx.numpy_helper.from_array(floats(2), "w"))
    normal = normalize(load(proto))
    assert [v.name for v in normal.graph.inputs] == ["x"]


def test_defaults_of_inputs_are_not_constants() -> None:
    proto = model("g (float[6] x, int64[2] shape) => (float[a,b] y) { y = Reshape(x, shape) }")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([2, 3]), "shape"))
    normal = normalize(load(proto))
    (result,) = run(normal.proto(), {"x": floats(6), "shape": np.array([3, 2])})
    assert result.shape == (3, 2)
    assert not any(isinstance(d, int) for d in normal.graph.outputs[0].shape)


def test_ranks_that_readers_imply_come_with_a_type() -> None:
    """A shape without a type cannot be written: onnx_ir would log a line for each at every save."""
    text = """<ir_version: 9, opset_import: ["": 20, "com.acme": 1]>
    g (float[N,3,8,8] x) => (float[N,2,6,6] y) { a = com.acme.Odd(x) b = Relu(a) y = Conv(b, w) }"""
    model = onnx.parser.parse_model(text)
    weight = np.ones((2, 3, 3, 3), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    values = {v.name: v for n in normalize(load(model)).graph for v in n.outputs}
    for name in ("a", "b"):
        assert len(values[name].shape) == 4 and values[name].dtype == ir.DataType.FLOAT
