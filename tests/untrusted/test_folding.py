"""Bounded folding: the size of a result is known before its value, and all results have a bound."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.normalize import normalize
from sardonyx.passes.folding import Budget, evaluate, fold
from sardonyx.passes.nesting import graphs

from .bombs import ENLARGED
from .models import X, graph, model, node

MEBIBYTE = 2**20
LIMIT_TOTAL = sardonyx.Limits().fold_total_bytes


def normal(proto: ModelProto) -> ir.Graph:
    return normalize(sardonyx.load(proto)).copy().graph


@pytest.mark.parametrize("bomb", ENLARGED)
def test_fold_01_bombs_keep_their_nodes(bomb: str) -> None:
    """The last large node stays; what is kept of the others is within the bound."""
    result = normal(ENLARGED[bomb])
    before = {n.op_type for n in result}
    fold(result)
    held = sum(v.const_value.nbytes for v in result.initializers.values() if v.const_value)
    assert held <= LIMIT_TOTAL + len(ENLARGED[bomb].SerializeToString())
    large = {n.op_type for n in ENLARGED[bomb].graph.node} - {"Mul", "Identity", "Cast", "Relu"}
    assert large & before <= {n.op_type for n in result}


def test_fold_02_shape_chains_fold() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[4,6] x) => (float[m,n] y)
        <int64 i = {0}, int64[1] zero = {0}, int64[2] halves = {2, 12}>
        {s = Shape(x)  r = Gather(s, i)  u = Unsqueeze(r, zero)  m = Div(u, two)
        two = Constant<value_ints=[2]>()  rest = Constant<value_ints=[-1]>()
        d = Concat<axis=0>(m, rest)  y = Reshape(x, d)}"""
    result = normal(onnx.parser.parse_model(text))
    fold(result)
    assert [n.op_type for n in result] == ["Reshape"]
    shape = result[0].inputs[1].const_value
    assert shape is not None and shape.numpy().tolist()[0] == 2
    assert result.outputs[0].shape == ir.Shape([2, 12])


def foldable(count: int, megabytes: int) -> ModelProto:
    """Nodes that each could be computed ahead, each as large as allowed, all of them used."""
    size = numpy_helper.from_array(np.array([megabytes * MEBIBYTE // 4]), "size")
    nodes = []
    for i in range(count):
        value = helper.make_tensor("", TensorProto.FLOAT, [1], [float(i)])
        nodes.append(helper.make_node("ConstantOfShape", ["size"], [f"c{i}"], value=value))
        nodes.append(node("ReduceSum", f"c{i}", f"s{i}", keepdims=0))
    nodes.append(node("Sum", " ".join(["x", *(f"s{i}" for i in range(count))]), "y"))
    return model(graph(nodes, initializer=[size]))


def test_fold_03_10_000_nodes_stop_at_the_total() -> None:
    result = sardonyx.load(foldable(10_000, 16)).graph
    gone = fold(result)
    assert gone == LIMIT_TOTAL // (16 * MEBIBYTE) == 4
    held = sum(v.const_value.nbytes for v in result.initializers.values() if v.const_value)
    assert held <= LIMIT_TOTAL + 8


def test_fold_03_the_model_still_works() -> None:
    """More than the total holds, in numpy: 2**20 elements of i, for each i, in one sum."""
    run = sardonyx.to_numpy(sardonyx.load(foldable(30, 4)))
    expected = sum(i * MEBIBYTE for i in range(30))
    np.testing.assert_allclose(run(np.zeros(2, np.float32)), [expected] * 2, rtol=1e-5)


def test_fold_03_conversion_stops_at_the_total() -> None:
    graph_ = normal(foldable(40, 4))
    budget = Budget(graph_)
    taken = 0
    for n in graph_:
        if n.op_type == "ConstantOfShape":
            taken += budget.takes(n, [np.array([MEBIBYTE])])
    assert taken * 4 * MEBIBYTE <= LIMIT_TOTAL
    assert budget.is_large


def test_fold_03_a_declared_shape_is_not_believed() -> None:
    """A file that says its Tile makes two elements: the constants say otherwise."""
    nodes = [
        node("Sqrt", "square", "root"),
        node("Cast", "root", "times", to=TensorProto.INT64),
        node("Tile", "one times", "big"),
        node("Mul", "x big", "y"),
    ]
    constants = [
        numpy_helper.from_array(np.array([2.0**58], np.float64), "square"),
        numpy_helper.from_array(np.ones(1, np.float32), "one"),
    ]
    proto = model(graph(nodes, inputs=(X,), initializer=constants))
    proto.graph.value_info.append(helper.make_tensor_value_info("big", TensorProto.FLOAT, [2]))
    copy = sardonyx.to_numpy(sardonyx.load(proto))
    assert copy is not None  # nothing of 2 GB was computed; the process would have felt it


FAILING = {
    "division by zero": "<int64 z = {0}, int64 o = {1}> {c = Div(o, z)",
    "bad index": "<int64[1] z = {1}, int64 o = {7}> {c = Gather(z, o)",
    "bad shapes": "<int64[2] z = {1,2}, int64[3] o = {1,2,3}> {c = Add(z, o)",
    "bad axis": "<int64[1] z = {1}, int64[1] o = {5}> {c = Squeeze(z, o)",
}


@pytest.mark.parametrize("case", FAILING)
def test_fold_04_what_raises_stays_in_place(case: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[n] y)
        {FAILING[case]}  f = Cast<to=1>(c)  y = Add(x, f)}}"""
    result = normal(onnx.parser.parse_model(text))
    kept = [n for part in graphs(result) for n in part]
    fold(result)
    assert [n.op_type for part in graphs(result) for n in part] == [n.op_type for n in kept]
    failing = kept[0]
    assert failing.op_type in ("Div", "Gather", "Add", "Squeeze") and evaluate(failing) is None


def test_fold_05_limits_of_load_bound_the_folder() -> None:
    """A model keeps the limits under which it was loaded, and every copy of it does."""
    proto = foldable(6, 1)
    small = sardonyx.Limits(fold_tensor_bytes=MEBIBYTE // 2)
    assert fold(normalize(sardonyx.load(proto)).copy().graph) == 6
    assert fold(normalize(sardonyx.load(proto, limits=small)).copy().graph) == 0
    few = sardonyx.Limits(fold_total_bytes=2 * MEBIBYTE)
    assert fold(normalize(sardonyx.load(proto, limits=few)).copy().graph) == 2


def test_fold_05_propagated_elements_bound_shape_inference() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[2,3,4] x) => (float[a,b] y)
        <int64 i = {0}, int64[1] zero = {0}, int64[1] rest = {-1}>
        {s = Shape(x) f = Gather(s, i) u = Unsqueeze(f, zero) d = Concat<axis=0>(u, rest)
        y = Reshape(x, d)}"""
    proto = onnx.parser.parse_model(text)
    assert normalize(sardonyx.load(proto)).outputs[0].shape == ir.Shape([2, 12])
    none = sardonyx.Limits(propagated_elements=1)
    result = normalize(sardonyx.load(proto, limits=none)).outputs[0].shape
    assert result is not None and len(result) == 2 and result[0] != 2
