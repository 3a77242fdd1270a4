"""`diff`: what changed is listed, what was only renamed or reordered is not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import sardonyx as sx
from sardonyx.cli.__main__ import main
from tests.mutants import MUTANTS, NETWORKS, Mutant, attr, replaced, weight
from tests.networks import mlp, optimized
from tests.public_models import models
from tests.sweeps.verify import optimized as fused


def constants(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [n for n in model.graph.node if n.op_type == "Constant"]


def copy(network: str) -> onnx.ModelProto:
    return NETWORKS[network]()


def renamed(model: onnx.ModelProto) -> onnx.ModelProto:
    """Every node, weight and inner value under another name; inputs and outputs keep theirs."""
    kept = {v.name for v in (*model.graph.input, *model.graph.output)} | {""}
    for node in model.graph.node:
        node.name = f"other {node.name}"
        node.input[:] = [n if n in kept else f"new/{n}" for n in node.input]
        node.output[:] = [n if n in kept else f"new/{n}" for n in node.output]
    for tensor in model.graph.initializer:
        tensor.name = f"new/{tensor.name}"
    return model


@pytest.mark.parametrize("network", NETWORKS)
def test_a_model_has_no_changes_to_itself(network: str) -> None:
    result = sx.diff(copy(network), copy(network))
    assert not result, str(result)
    assert result.renamed == result.renamed_weights == 0


@pytest.mark.parametrize("network", sorted(set(NETWORKS) - {"loops"}))
def test_names_are_not_changes(network: str) -> None:
    result = sx.diff(copy(network), renamed(copy(network)))
    assert not result, str(result)
    count = len(copy(network).graph.node) - len(constants(copy(network)))
    assert result.renamed == result.matched == count
    assert result.renamed_weights == result.matched_weights > 0


def test_order_of_nodes_is_not_a_change() -> None:
    model = copy("transformer")
    nodes = list(model.graph.node)
    keys = [n.name for n in nodes]
    q, k = keys.index("node/q.proj"), keys.index("node/k.proj")
    nodes[q], nodes[k] = nodes[k], nodes[q]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    assert not sx.diff(copy("transformer"), model)


def test_an_attribute_at_its_default_is_not_a_change() -> None:
    model = copy("cnn")
    attr("conv1", strides=[1, 1], kernel_shape=[3, 3], group=1)(model)
    assert not sx.diff(copy("cnn"), model)


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_every_fault_is_a_change_where_it_was_made(mutant: Mutant) -> None:
    result = sx.diff(copy(mutant.network), mutant.model())
    assert result
    assert len(result.changes) <= 12
    touched = [c for c in result.changes if f"node/{mutant.node}" in c.where or c.kind == "weight"]
    # The factor inside the Loop is a Constant node beside the one that verification blames.
    assert touched or mutant.what.startswith("factor inside")


def test_an_inserted_node_is_added_and_its_reader_rewired_in_a_renamed_model() -> None:
    model = copy("cnn")
    text = "moved = Transpose <perm: ints = [0,2,3,1]> (pool2) flat = Flatten (moved)"
    replaced("flat", text)(model)
    result = sx.diff(copy("cnn"), renamed(model))
    assert {(c.what, c.where.split(" ")[0]) for c in result.changes} == {
        ("added", "Transpose"),
        ("rewired", "Flatten"),
    }


def deep() -> onnx.ModelProto:
    """Eleven layers of one shape: only their weights tell them apart."""
    return mlp((8,) * 12).proto()


def tuned(model: onnx.ModelProto) -> onnx.ModelProto:
    rng = np.random.default_rng(1)
    for tensor in model.graph.initializer:
        w = numpy_helper.to_array(tensor)
        moved = (w + 0.05 * rng.normal(size=w.shape)).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(moved, tensor.name))
    return model


def with_a_layer(model: onnx.ModelProto) -> onnx.ModelProto:
    """One more layer of the same shape behind the fifth."""
    rng = np.random.default_rng(2)
    for name, shape in (("extra.weight", (8, 8)), ("extra.bias", (8,))):
        array = rng.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    nodes = list(model.graph.node)
    place = [n.name for n in nodes].index("act4") + 1
    inputs = [nodes[place - 1].output[0], "extra.weight", "extra.bias"]
    made = [
        helper.make_node("Gemm", inputs, ["more"], "extra", transB=1),
        helper.make_node("Tanh", ["more"], ["active"], "extra act"),
    ]
    nodes[place].input[0] = "active"
    del model.graph.node[:]
    model.graph.node.extend([*nodes[:place], *made, *nodes[place:]])
    return model


@pytest.mark.parametrize("named", [lambda m: m, renamed], ids=["", "renamed"])
@pytest.mark.parametrize("weights", [lambda m: m, tuned], ids=["same weights", "fine-tuned"])
def test_a_layer_between_layers_of_its_kind_is_the_one_that_was_added(weights, named) -> None:  # type: ignore[no-untyped-def]
    result = sx.diff(deep(), named(with_a_layer(weights(deep()))))
    nodes = [(c.what, c.where.split('"')[1].removeprefix("other ")) for c in result.of("node")]
    assert sorted(nodes) == [("added", "extra"), ("added", "extra act"), ("rewired", "fc5")]
    added = [c.where for c in result.of("weight") if c.what == "added"]
    assert len(added) == 2 and all("extra." in name for name in added)
    changed = [c.where for c in result.of("weight") if c.what == "changed"]
    assert len(changed) == (22 if weights is tuned else 0)
    back = sx.diff(named(with_a_layer(weights(deep()))), deep())
    assert sorted(c.what for c in back.of("node")) == ["removed", "removed", "rewired"]


def test_other_weights_in_the_same_structure_are_weights_not_nodes() -> None:
    """Trained anew: nothing tells the layers apart but their place."""
    other = mlp((8,) * 12, seed=5).proto()
    result = sx.diff(deep(), renamed(other))
    assert not result.of("node")
    for change in result.of("weight"):
        new, old = change.where.split('"')[1::2]
        assert (change.what, new) == ("changed", f"new/{old}")


def test_the_most_changed_weight_stands_first() -> None:
    model = deep()
    weight("fc7.weight", lambda w: w * np.float32(1.5))(model)
    weight("fc2.weight", lambda w: w * np.float32(1.1))(model)
    printed = str(sx.diff(deep(), model))
    assert printed.index("fc7.weight") < printed.index("fc2.weight")


def test_folding_removes_the_normalization_and_changes_the_convolution(tmp_path: Path) -> None:
    """What an optimizer does: Conv takes in the BatchNormalization, under the name of its value."""
    result = sx.diff(copy("cnn"), onnx.load(optimized(copy("cnn"), tmp_path / "folded.onnx")))
    nodes = {(c.what, c.where) for c in result.of("node")}
    assert nodes == {
        ("removed", 'BatchNormalization "node/bn1"'),
        ("removed", 'BatchNormalization "node/bn2"'),
        ("rewired", 'Relu "node/relu1"'),
        ("rewired", 'Relu "node/relu2"'),
        ("rewired", 'Conv "node/conv2"'),  # it got a bias
    }
    changed = [c.where.split('"')[-2] for c in result.of("weight") if c.what == "changed"]
    assert sorted(changed) == ["b1", "w1", "w2"]


def test_a_constant_is_a_weight_wherever_it_is_kept() -> None:
    """As initializer or as the result of a Constant node: the same model."""
    model = copy("cnn")
    tensors = list(model.graph.initializer)
    del model.graph.initializer[:]
    for tensor in tensors:
        node = helper.make_node("Constant", [], [tensor.name], f"held/{tensor.name}", value=tensor)
        model.graph.node.insert(0, node)
    result = sx.diff(copy("cnn"), model)
    assert not result, str(result)
    changed = copy("cnn")
    weight("w1", lambda w: w * np.float32(2))(changed)
    (change,) = sx.diff(model, changed).changes
    assert (change.kind, change.where, change.what) == ("weight", '"w1"', "changed")


def test_nodes_in_any_order_that_is_valid() -> None:
    model = copy("transformer")
    made = {v.name for v in (*model.graph.input, *model.graph.initializer)} | {""}
    nodes, order, rng = list(model.graph.node), [], np.random.default_rng(4)
    while nodes:
        ready = [n for n in nodes if made.issuperset(n.input)]
        order.append(ready[rng.integers(len(ready))])
        nodes.remove(order[-1])
        made.update(order[-1].output)
    del model.graph.node[:]
    model.graph.node.extend(order)
    assert [n.name for n in order] != [n.name for n in copy("transformer").graph.node]
    assert not sx.diff(copy("transformer"), renamed(model))


def test_how_much_a_weight_changed() -> None:
    model = copy("cnn")

    def add(w: np.ndarray) -> np.ndarray:
        w.reshape(-1)[:2] += np.float32(0.5)
        return w

    weight("w2", add)(model)
    (change,) = sx.diff(copy("cnn"), model).changes
    assert (change.kind, change.where, change.what) == ("weight", '"w2"', "changed")
    assert change.detail.startswith("2 of 432 elements, at most 0.5")


def test_a_transposed_weight_is_called_so() -> None:
    model = copy("transformer")
    weight("wo", lambda w: w.T)(model)
    (change,) = sx.diff(copy("transformer"), model).changes
    assert (change.where, change.what) == ('"wo"', "transposed")


def test_versions_metadata_and_interface() -> None:
    model = copy("cnn")
    model.ir_version = 10
    model.opset_import[0].version = 21
    model.producer_name = "someone"
    helper.set_model_props(model, {"licence": "none"})
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    rows = {(c.kind, c.where, c.what, c.detail) for c in sx.diff(copy("cnn"), model).changes}
    assert rows == {
        ("version", "IR", "changed", "9 → 10"),
        ("version", "ai.onnx", "changed", "20 → 21"),
        ("metadata", "producer", "changed", '"" → "someone"'),
        ("metadata", "licence", "added", '"none"'),
        ("interface", 'input "x"', "changed", "float[N, 3, 8, 8] → float[batch, 3, 8, 8]"),
    }


def test_training_records() -> None:
    def trained(momentum: float) -> sx.Model:
        optimizer = sx.optim.sgd(0.1, momentum=momentum)
        return sx.trainable(mlp(), loss="cross_entropy", optimizer=optimizer)

    assert not sx.diff(trained(0.9), trained(0.9)).of("training")
    assert sx.diff(trained(0.9), trained(0.8)).of("training")
    (change,) = sx.diff(mlp(), trained(0.9)).of("training")
    assert change.detail == "0 → 1 records"


def test_functions() -> None:
    text = """<ir_version: 9, opset_import: ["": 20, "acme": 1]>
    g (float[3] x) => (float[3] y) { y = acme.twice(x) }
    <domain: "acme", opset_import: ["": 20]> twice (a) => (b) { b = %s(a, a) }"""
    before, after = (onnx.parser.parse_model(text % op) for op in ("Add", "Mul"))
    assert not sx.diff(before, before)
    changes = sx.diff(before, after).changes
    assert [(c.kind, c.what, c.detail) for c in changes] == [("node", "replaced", "Add → Mul")]
    assert "twice" in changes[0].where


OUTSIDE = """<ir_version: 8, opset_import: ["" : 18]>
g (float[4] x, bool b) => (float[4] y) { r = Relu (x) %s }"""
WITH_BODY = """y = If (b) <then_branch = t () => (float[4] u) { e = Exp (r) u = Abs (e) },
else_branch = f () => (float[4] v) { v = Neg (r) }>"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("e = Exp (r) y = Abs (e)", WITH_BODY),  # what reads `r` moved into a body
        ("s = Neg (x) y = Add (r, s)", "c = Constant <value_float = 1.0> () y = Add (r, c)"),
    ],
    ids=["a body", "a Constant"],
)
def test_neighbours_outside_of_a_graph_are_not_its_nodes(before: str, after: str) -> None:
    """Nodes of bodies, and Constants, may read or make what nodes of the graph do."""
    a, b = (onnx.parser.parse_model(OUTSIDE % text) for text in (before, after))
    for old, new in ((a, b), (b, a)):
        result = sx.diff(old, new)
        count = len(old.graph.node) - len(constants(old))
        assert result.matched <= count and result.of("node")


def test_weights_that_only_bodies_read_are_matched_by_their_readers() -> None:
    text = """<ir_version: 8, opset_import: ["" : 18]>
    g (float[2] x, bool b) => (float[2] y)
    <float[2] %(p)sw = {1, 2}, float[2] %(p)sunread = {5, 6}> {
      y = If (b) <then_branch = t () => (float[2] u) { u = Mul (x, %(p)sw) },
                  else_branch = f () => (float[2] v) { v = Neg (x) }> }"""
    result = sx.diff(*(onnx.parser.parse_model(text % {"p": p}) for p in ("", "new_")))
    assert not result, str(result)
    assert (result.matched_weights, result.renamed_weights) == (2, 2)


PUBLIC = ["silero-vad/silero_vad_16k_op15.onnx", "pulsevad/pulsevad_2.1k_int8.onnx"]


@pytest.mark.parametrize("name", PUBLIC)
def test_public_models_against_what_onnxruntime_makes_of_them(name: str, tmp_path: Path) -> None:
    path = models()[name]
    changed = fused(str(path), tmp_path / "optimized.onnx")
    for pair in ((path, changed), (changed, path)):
        result = sx.diff(*pair)
        nodes = sum(n.op_type != "Constant" for n in sx.load(pair[0]).graph.all_nodes())
        gone = [c for c in result.of("node") if c.what == "removed"]
        assert result.renamed <= result.matched and len(gone) + result.matched <= nodes


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(copy("cnn"), tmp_path / "a.onnx")
    changed = copy("cnn")
    changed.graph.initializer.append(numpy_helper.from_array(np.zeros(2, np.float32), "extra"))
    onnx.save(changed, tmp_path / "b.onnx")
    assert run(tmp_path / "a.onnx", tmp_path / "a.onnx") == 0
    weights = len(copy("cnn").graph.initializer) + len(constants(copy("cnn")))
    assert capsys.readouterr().out == f"no changes: 11 nodes, {weights} weights\n"
    assert run(tmp_path / "a.onnx", tmp_path / "b.onnx", "--json") == 1
    (change,) = json.loads(capsys.readouterr().out)["changes"]
    assert change.pop("size") == 0.0
    assert change == {"kind": "weight", "where": '"extra"', "what": "added", "detail": "float[2]"}


def test_a_diff_has_a_short_repr_and_a_table_for_notebooks() -> None:
    changed = copy("cnn")
    changed.graph.initializer.append(numpy_helper.from_array(np.zeros(2, np.float32), "<b>"))
    result = sx.diff(copy("cnn"), changed)
    assert repr(result) == "<Diff: weight 1>"
    assert "&lt;b&gt;" in result._repr_html_() and "<b>" not in result._repr_html_()
    assert repr(sx.diff(changed, changed)) == "<Diff: no changes>"


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["diff", *map(str, arguments)])
    return int(stopped.value.code or 0)


def twins(order: tuple[str, str], scale: float = 1.0, shared: bool = False) -> onnx.ModelProto:
    """Two nodes that compute the same, each for a reader of its own, or one for both."""
    heights, widths = ("rows", "rows") if shared else ("rows", "columns")
    shapes = {name: helper.make_node("Shape", ["h"], [name], f"shape/{name}") for name in order}
    nodes = [helper.make_node("Mul", ["x", "s"], ["h"], "scale")]
    nodes += [shapes[name] for name in order if name in (heights, widths)]
    nodes += [
        helper.make_node("Gather", [heights, "zero"], ["height"], "height"),
        helper.make_node("Gather", [widths, "one"], ["width"], "width"),
        helper.make_node("Mul", ["height", "width"], ["area"], "area"),
    ]
    weights = {"s": np.float32(scale), "zero": np.int64(0), "one": np.int64(1)}
    graph = helper.make_graph(
        nodes,
        "twins",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", "M"])],
        [helper.make_tensor_value_info("area", onnx.TensorProto.INT64, [])],
        [numpy_helper.from_array(np.array(v), k) for k, v in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_which_of_two_equal_nodes_is_read_is_not_a_change() -> None:
    """Also where a weight before them changed, so that they compute something else than before."""
    before = twins(("rows", "columns"))
    result = sx.diff(before, renamed(twins(("columns", "rows"))))
    assert not result, str(result)
    result = sx.diff(before, renamed(twins(("columns", "rows"), scale=2.0)))
    assert [(c.kind, c.what) for c in result.changes] == [("weight", "changed")], str(result)


def test_a_node_that_was_merged_with_its_equal_is_removed_and_nothing_is_rewired() -> None:
    result = sx.diff(twins(("rows", "columns")), renamed(twins(("rows", "columns"), shared=True)))
    assert [(c.kind, c.what) for c in result.changes] == [("node", "removed")], str(result)


def test_an_output_that_another_node_makes_is_a_change() -> None:
    def two(first: str, second: str) -> onnx.ModelProto:
        nodes = [
            helper.make_node("Relu", ["x"], [first], "relu"),
            helper.make_node("Sigmoid", ["x"], [second], "sigmoid"),
        ]
        ends = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["N"]) for n in "xyz"]
        graph = helper.make_graph(nodes, "two", ends[:1], ends[1:])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    assert not sx.diff(two("y", "z"), two("y", "z"))
    result = sx.diff(two("y", "z"), two("z", "y"))
    assert {(c.kind, c.where, c.what) for c in result.changes} == {
        ("interface", 'output "y"', "rewired"),
        ("interface", 'output "z"', "rewired"),
    }


def choices(read: str) -> onnx.ModelProto:
    """Two Ifs of one condition with other bodies, and a reader of one of them."""

    def branch(op: str) -> onnx.GraphProto:
        made = helper.make_tensor_value_info(f"{op}/y", onnx.TensorProto.FLOAT, ["N"])
        return helper.make_graph([helper.make_node(op, ["x"], [f"{op}/y"])], op, [], [made])

    def choice(name: str, then: str, other: str) -> onnx.NodeProto:
        sides = {"then_branch": branch(then), "else_branch": branch(other)}
        return helper.make_node("If", ["c"], [name], f"node/{name}", **sides)

    ends = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["N"]) for n in "xabz"]
    asked = helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, [])
    nodes = [choice("a", "Relu", "Neg"), choice("b", "Exp", "Neg")]
    nodes.append(helper.make_node("Tanh", [read], ["z"], "reader"))
    graph = helper.make_graph(nodes, "choices", [asked, ends[0]], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_nodes_with_other_bodies_do_not_compute_the_same() -> None:
    assert not sx.diff(choices("a"), choices("a"))
    (change,) = sx.diff(choices("a"), choices("b")).changes
    assert (change.what, change.where) == ("rewired", 'Tanh "reader"')


def test_a_weight_that_stayed_is_not_taken_for_another_that_went() -> None:
    """A quantizer puts an Add, with the old bias, where a Gemm was, with weight and bias."""

    def layer(nodes: list[onnx.NodeProto], **weights: np.ndarray) -> onnx.ModelProto:
        ends = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["N", 3]) for n in "xy"]
        tensors = [numpy_helper.from_array(v, k) for k, v in weights.items()]
        graph = helper.make_graph(nodes, "layer", ends[:1], ends[1:], tensors)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    weight, bias = np.ones((3, 3), np.float32), np.arange(3, dtype=np.float32)
    before = layer([helper.make_node("Gemm", ["x", "w", "b"], ["y"])], w=weight, b=bias)
    after = layer(
        [
            helper.make_node("MatMul", ["x", "half"], ["h"]),
            helper.make_node("Add", ["h", "b"], ["y"]),
        ],
        half=weight / 2,
        b=bias,
    )
    result = sx.diff(before, after).of("weight")
    assert {(c.where, c.what) for c in result} == {('"w"', "removed"), ('"half"', "added")}
