"""Small changes to a graph: what they remove, what they must keep, and that they stay linear."""

from __future__ import annotations

import resource

import numpy as np
import onnx
import onnx.helper as helper
import onnx.parser
import onnx.reference
import pytest

from sardonyx.errors import ModelError
from sardonyx.limits import Limits
from sardonyx.model import Model, load
from sardonyx.normalize import normalize
from sardonyx.passes import cse, dead, folding, functions

MIB = 2**20


def model(text: str, version: int = 22) -> Model:
    return load(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {version}]>' + text))


def op_types(found: Model) -> list[str]:
    return [n.op_type for n in found.graph]


def evaluate(found: Model, **feeds: np.ndarray) -> list[np.ndarray]:
    return onnx.reference.ReferenceEvaluator(found.proto()).run(None, feeds)


# -- dead -----------------------------------------------------------------------------


def test_what_nobody_reads_goes_and_inputs_stay() -> None:
    result = model(
        """g (float[2] x, float[2] unused) => (float[2] y)
        <float[2] w = {1.0, 2.0}, float[2] lost = {3.0, 4.0}, float[2] state = {5.0, 6.0}> {
            a = Neg(x)
            b = Exp(a)
            c = Add(b, lost)
            y = Mul(x, w)
        }"""
    )
    assert dead.remove_dead(result.graph, keep=["state"]) == 3
    assert op_types(result) == ["Mul"]
    assert set(result.graph.initializers) == {"w", "state"}
    assert [v.name for v in result.graph.inputs] == ["x", "unused"]


def test_a_dead_body_frees_what_it_captured() -> None:
    result = model(
        """g (float[2] x, bool c) => (float[2] y) {
            a = Neg(x)
            z = If(c) <
                then_branch = t () => (float[2] p) { p = Exp(a) },
                else_branch = e () => (float[2] q) { q = Identity(a) }
            >
            y = Abs(x)
        }"""
    )
    dead.remove_dead(result.graph)
    assert op_types(result) == ["Abs"]


# -- common subexpressions --------------------------------------------------------------


def test_equal_nodes_merge_in_chains() -> None:
    result = model(
        """g (float[2] x) => (float[2] y) {
            a = Exp(x)
            b = Exp(x)
            c = Neg(a)
            d = Neg(b)
            y = Mul(c, d)
        }"""
    )
    before = evaluate(result, x=np.array([1.0, 2.0], np.float32))
    assert cse.merge_common(result.graph) == 2
    np.testing.assert_array_equal(evaluate(result, x=np.array([1.0, 2.0], np.float32)), before)


def test_attributes_and_weights_tell_nodes_apart() -> None:
    result = model(
        """g (float[2,2] x) => (float[2,2] y, float[2,2] z)
        <float[2] v = {1.0, 1.0}, float[2] w = {1.0, 1.0}> {
            a = Softmax<axis=0>(x)
            b = Softmax<axis=1>(x)
            p = Mul(a, v)
            q = Mul(a, w)
            y = Add(p, q)
            z = Identity(b)
        }"""
    )
    assert cse.merge_common(result.graph) == 0


@pytest.mark.parametrize(
    ("body", "merged"),
    [
        ("a = RandomNormalLike(x)  b = RandomNormalLike(x)", 0),
        ("a = Bernoulli(x)  b = Bernoulli(x)", 0),
        ("a = Dropout(x, r, t)  b = Dropout(x, r, t)", 0),
        ("a = Dropout(x, r, m)  b = Dropout(x, r, m)", 0),
        ("a = Dropout(x, r, f)  b = Dropout(x, r, f)", 1),
        ("a = Dropout(x, r)  b = Dropout(x, r)", 1),
    ],
)
def test_randomness_is_never_shared(body: str, merged: int) -> None:
    result = model(
        f"""g (float[2] x, bool m) => (float[2] y)
        <float r = {{0.5}}, bool t = {{1}}, bool f = {{0}}> {{ {body}  y = Add(a, b) }}"""
    )
    assert cse.merge_common(result.graph) == merged


def test_outputs_keep_their_names() -> None:
    result = model("g (float[2] x) => (float[2] y, float[2] z) { y = Exp(x)  z = Exp(x) }")
    cse.merge_common(result.graph)
    dead.remove_dead(result.graph)
    assert [v.name for v in result.graph.outputs] == ["y", "z"]
    assert len(evaluate(result, x=np.zeros(2, np.float32))) == 2


# -- functions ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        ("y = Softplus(x)", "[N,4]"),
        ("y = LayerNormalization(x, s)", "[N,4]"),
        ("y = Clip(x, lo, hi)", "[N,4]"),
        ("y = HardSwish(x)", "[3,4]"),
        ('y = Gelu<approximate="tanh">(x)', "[3,4]"),
        ("y = SoftmaxCrossEntropyLoss(x, l)", "[3,4]"),
        ("y = LogSoftmax(x)", "[3,4]"),
    ],
)
def test_a_definition_computes_what_its_operator_does(body: str, shape: str) -> None:
    outcome = model(
        f"""g (float{shape} x) => (float y)
        <float[4] s = {{1.0, 2.0, 3.0, 4.0}}, float lo = {{-0.5}}, float hi = {{0.5}},
         int64[3] l = {{0, 3, 1}}> {{ {body} }}"""
    )
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    (expected,) = evaluate(outcome, x=x)
    normal = normalize(outcome).copy()
    (node,) = normal.graph
    new = functions.expand(node)
    assert new and node.op_type not in op_types(normal)
    assert [v.name for v in normal.graph.outputs] == ["y"]
    (result,) = evaluate(normal, x=x)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_an_operator_without_definition_stays() -> None:
    result = model("g (float[2] x) => (float[2] y) { y = Exp(x) }")
    (node,) = result.graph
    assert functions.expand(node) is None
    assert op_types(result) == ["Exp"]


def test_functions_in_a_circle_are_named() -> None:
    result = model("g (float[2] x) => (float[2] y) { y = Exp(x) }")
    text = """<ir_version: 10, opset_import: ["": 22, "l": 1]>
        g (float[2] x) => (float[2] y) { y = l.a(x) }
        <domain: "l", opset_import: ["l": 1]> a (x) => (y) { y = l.b(x) }
        <domain: "l", opset_import: ["l": 1]> b (x) => (y) { y = l.a(x) }"""
    import onnx_ir as ir

    circle = ir.serde.deserialize_model(onnx.parser.parse_model(text))
    with pytest.raises(ModelError, match="l::a"):
        functions.inline(circle)
    assert result.graph is not None


def test_inlining_is_linear_in_what_comes_out() -> None:
    levels = 12
    bodies = "".join(
        f'<domain: "l", opset_import: ["": 22, "l": 1]> f{i} (x) => (y) '
        f"{{ a = l.f{i + 1}(x)  y = l.f{i + 1}(a) }}"
        for i in range(levels)
    )
    text = f"""<ir_version: 10, opset_import: ["": 22, "l": 1]>
        g (float[2] x) => (float[2] y) {{ y = l.f0(x) }}
        {bodies} <domain: "l", opset_import: ["": 22]> f{levels} (x) => (y) {{ y = Neg(x) }}"""
    normal = normalize(load(onnx.parser.parse_model(text)))
    assert len(normal.graph) == 2**levels
    assert {n.op_type for n in normal.graph} == {"Neg"}


# -- folding -----------------------------------------------------------------------------


def test_shape_arithmetic_folds() -> None:
    result = normalize(
        model(
            """g (float[2,3,4] x) => (float[a,b] y)
            <int64[1] zero = {0}, int64[1] rest = {-1}> {
                s = Shape(x)
                n = Gather(s, zero)
                t = Concat<axis=0>(n, rest)
                y = Reshape(x, t)
            }"""
        )
    ).copy()
    assert folding.fold(result.graph) == 3
    assert op_types(result) == ["Reshape"]
    assert result.initializer("t").numpy().tolist() == [2, -1]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("r = Div(a, b)", [-3, 3, -2]),
        ("r = Mod(a, b)", [1, 1, 0]),
        ("r = Mod<fmod=1>(a, b)", [-1, 1, 0]),
        ("r = Sub(a, b)", [-9, 5, -6]),
        ("r = Slice(a, s, e, z, m)", [-4, 7, -7]),
        ("c = Less(a, b) r = Where(c, a, b)", [-7, 2, -4]),
        ("r = ReduceProd<keepdims=0>(a)", 196),
        ("c = Cast<to=1>(a) d = Cast<to=7>(c) r = Neg(d)", [7, -7, 4]),
        ("o = Squeeze(u) r = Range(zero, o, one)", [0, 1, 2]),
        ("c = ConstantOfShape<value=int64[1]{5}>(u) r = Add(c, a)", [-2, 12, 1]),
        ("r = Expand(one, u)", [1, 1, 1]),
    ],
)
def test_values_are_those_of_onnx(expression: str, expected: object) -> None:
    result = model(
        f"""g (int64[3] x) => (int64[n] y)
        <int64[3] a = {{-7, 7, -4}}, int64[3] b = {{2, 2, 2}}, int64[1] s = {{-1}},
         int64[1] e = {{-9}}, int64[1] z = {{0}}, int64[1] m = {{-1}}, int64[1] u = {{3}},
         int64 zero = {{0}}, int64 one = {{1}}> {{ {expression} y = Add(x, r) }}"""
    )
    (reference,) = evaluate(result, x=np.zeros(3, np.int64))
    folded = normalize(result).copy()
    folding.fold(folded.graph)
    assert op_types(folded) == ["Add"]
    value = folded.initializer("r").numpy()
    assert value.tolist() == expected
    np.testing.assert_array_equal(np.zeros(3, np.int64) + value, reference)


@pytest.mark.parametrize(
    "body",
    [
        "r = Div(a, zero)",
        "i = Add(a, a) r = Gather(a, big)",
    ],
)
def test_what_cannot_be_computed_stays(body: str) -> None:
    result = model(
        f"""g (int64[3] x) => (int64[n] y)
        <int64[3] a = {{-7, 7, -4}}, int64[1] zero = {{0}}, int64[1] big = {{99}}>
        {{ {body} y = Add(x, r) }}"""
    ).copy()
    last = list(result.graph)[-2].op_type
    folding.fold(result.graph)
    assert op_types(result)[-2:] == [last, "Add"]


BOMBS = {
    "ConstantOfShape-2-GB": "r = ConstantOfShape(n)",
    "ConstantOfShape-4-TB": "r = ConstantOfShape(t)",
    "Expand": "r = Expand(one, n)",
    "Tile": "r = Tile(v, n)",
    "Range": "r = Range(zero, many, step)",
    "Concat": "a0 = Concat<axis=0>(w, w)"
    + "".join(f" a{i + 1} = Concat<axis=0>(a{i}, a{i})" for i in range(28))
    + " r = Cast<to=1>(a28)",
}


@pytest.mark.parametrize("bomb", list(BOMBS))
def test_size_comes_before_value(bomb: str) -> None:
    text = f"""g (float[1] x) => (float[k] y)
        <int64[1] n = {{536870912}}, int64[1] t = {{1099511627776}}, float one = {{1.0}},
         float[1] v = {{1.0}}, int64[8] w = {{1, 2, 3, 4, 5, 6, 7, 8}},
         float zero = {{0.0}}, float many = {{5e8}}, float step = {{1.0}}> {{
            {BOMBS[bomb]}
            y = Mul(x, r)
        }}"""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = normalize(model(text)).copy()
    folding.fold(result.graph)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < 200 * MIB
    assert "r" not in result.graph.initializers


def test_folding_stops_at_the_total() -> None:
    count = 40
    nodes = [helper.make_node("ConstantOfShape", ["n"], [f"c{i}"]) for i in range(count)]
    nodes.append(helper.make_node("Sum", [f"c{i}" for i in range(count)], ["y"]))
    elements = 4 * MIB // 4
    graph = helper.make_graph(
        nodes,
        "g",
        [],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [elements])],
        [helper.make_tensor("n", onnx.TensorProto.INT64, [1], [elements])],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    result = normalize(load(proto)).copy()
    assert folding.fold(result.graph) == Limits().fold_total_bytes // (4 * MIB)
    (y,) = evaluate(result)
    assert y.shape == (elements,) and not y.any()


def test_a_default_of_an_input_is_not_folded() -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 22]> g (int64[2] a) => (int64[2] y)
        { b = Neg(a) y = Neg(b) }"""
    )
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1, 2]), "a"))
    result = normalize(load(proto)).copy()
    assert folding.fold(result.graph) == 0
