"""Trees in every form and maps, on every engine: values against onnxruntime and scikit-learn."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

ENGINES = ("numpy", "torch", "jax", "tensorflow")
ML = "ai.onnx.ml"
LABELS = ["a", "b", "c"]


def model(op: str, given: Any, outputs: list[Any], version: int = 5, **attributes: Any) -> Any:
    names = [v.name for v in outputs]
    node = helper.make_node(op, ["x"], names, domain=ML, **attributes)
    imports = [helper.make_opsetid("", 18), helper.make_opsetid(ML, version)]
    graph = helper.make_graph([node], op, [given], outputs)
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def matrix(name: str = "x", kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, [None, None])


def by_onnxruntime(proto: onnx.ModelProto, x: Any) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"x": x})


def by(name: str, proto: onnx.ModelProto, x: Any, **settings: Any) -> list[Any]:
    pytest.importorskip(name)
    runner = importlib.import_module(f"sardonyx.engines.{name}").Runner(
        proto, **{"fallback": "allow", **settings}
    )
    return list(runner({"x": x}).values())


def tensor(values: Any, kind: int) -> onnx.TensorProto:
    return helper.make_tensor("t", kind, [len(values)], values)


def ensemble(kind: int = TensorProto.FLOAT, **changes: Any) -> onnx.ModelProto:
    """Two trees: x0 <= 1 splits on a set of x1, or on x2 > 0; and x1 != 2."""
    inputs: dict[str, Any] = {
        "n_targets": 2,
        "tree_roots": [0, 3],
        "nodes_featureids": [0, 1, 2, 1],
        "nodes_modes": tensor([0, 6, 3, 5], TensorProto.UINT8),
        "nodes_splits": tensor([1.0, 0.0, 0.0, 2.0], kind),
        "nodes_truenodeids": [1, 0, 2, 4],
        "nodes_trueleafs": [0, 1, 1, 1],
        "nodes_falsenodeids": [2, 1, 3, 5],
        "nodes_falseleafs": [0, 1, 1, 1],
        "membership_values": tensor([2.0, 5.0, 7.0, np.nan], kind),
        "leaf_targetids": [0, 1, 0, 1, 1, 1],
        "leaf_weights": tensor([0.5, -1.25, 3.0, 0.125, 2.0, -4.0], kind),
    }
    return model("TreeEnsemble", matrix(kind=kind), [matrix("y", kind)], **{**inputs, **changes})


POINTS = np.array(
    [[0, 2, 0], [1, 5, 1], [1, 4, 0], [2, 7, 1], [2, 2, 0], [np.nan, 2, 1], [0, np.nan, 0]],
    np.float32,
)


@pytest.mark.parametrize("name", ENGINES)
class TestTrees:
    def test_members_of_a_set(self, name: str) -> None:
        (result,) = by(name, ensemble(), POINTS, fallback="error")
        expected = [[0.5, -4], [0.5, 2], [0, 0.75], [3, 2], [0, -3.875], [3, -4], [0, 0.75]]
        np.testing.assert_array_equal(result, np.array(expected, np.float32))

    @pytest.mark.parametrize("aggregate", range(4))
    def test_aggregates(self, name: str, aggregate: int) -> None:
        proto = ensemble(aggregate_function=aggregate, leaf_targetids=[0, 1, 0, 1, 0, 1])
        np.testing.assert_allclose(
            by(name, proto, POINTS)[0], by_onnxruntime(proto, POINTS)[0], rtol=1e-6
        )

    def test_missing_values_take_the_way_that_the_node_says(self, name: str) -> None:
        proto = ensemble(nodes_missing_value_tracks_true=[1, 1, 0, 0])
        np.testing.assert_array_equal(by(name, proto, POINTS)[0], by_onnxruntime(proto, POINTS)[0])

    def test_in_double(self, name: str) -> None:
        points = POINTS.astype(np.float64)
        points[1, 0] = 1 + 1e-12
        proto = ensemble(TensorProto.DOUBLE)
        (result,) = by(name, proto, points)
        assert result.dtype == np.float64
        np.testing.assert_array_equal(result, by_onnxruntime(proto, points)[0])

    def test_a_forest_of_scikit_learn(self, name: str) -> None:
        ensemble = pytest.importorskip("sklearn.ensemble")
        rng = np.random.default_rng(3)
        x = rng.normal(size=(200, 6)).astype(np.float32)
        labels = (x[:, 0] * x[:, 1] > 0).astype(int) + (x[:, 2] > 1)
        forest = ensemble.RandomForestClassifier(12, random_state=0).fit(x, labels)
        result = by(name, converted(forest), x, fallback="error")
        np.testing.assert_array_equal(result[0], forest.predict(x))
        np.testing.assert_allclose(result[1], forest.predict_proba(x), atol=1e-6)


def converted(forest: Any) -> onnx.ModelProto:
    """A classifier of scikit-learn in the older form, in which leaves weigh every class."""
    kinds = ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")
    nodes: dict[str, list[Any]] = {f"nodes_{kind}": [] for kind in kinds}
    weights: dict[str, list[Any]] = {
        f"class_{k}": [] for k in ("treeids", "nodeids", "ids", "weights")
    }
    for number, estimator in enumerate(forest.estimators_):
        tree = estimator.tree_
        for i in range(tree.node_count):
            leaf = tree.children_left[i] < 0
            # scikit-learn compares float32 features with double thresholds.
            split = np.float32(tree.threshold[i])
            split = np.nextafter(split, np.float32(-np.inf)) if split > tree.threshold[i] else split
            row = (
                number,
                i,
                0 if leaf else int(tree.feature[i]),
                float(split),
                "LEAF" if leaf else "BRANCH_LEQ",
                0 if leaf else int(tree.children_left[i]),
                0 if leaf else int(tree.children_right[i]),
            )
            for column, value in zip(nodes.values(), row, strict=True):
                column.append(value)
            for label, share in enumerate(tree.value[i, 0] if leaf else ()):
                entry = (number, i, label, float(share) / len(forest.estimators_))
                for column, value in zip(weights.values(), entry, strict=True):
                    column.append(value)
    label = helper.make_tensor_value_info("label", TensorProto.INT64, [None])
    classes = [int(c) for c in forest.classes_]
    return model(
        "TreeEnsembleClassifier",
        matrix(),
        [label, matrix("y")],
        version=3,
        classlabels_int64s=classes,
        **nodes,
        **weights,
    )


def map_info(name: str, key: int, value: int) -> Any:
    kind = helper.make_map_type_proto(key, helper.make_tensor_type_proto(value, None))
    return helper.make_value_info(name, kind)


INTEGER, STRING, FLOAT = TensorProto.INT64, TensorProto.STRING, TensorProto.FLOAT


@pytest.mark.parametrize("name", ENGINES)
class TestMaps:
    @pytest.mark.parametrize(
        "keys", [{"classlabels_strings": LABELS}, {"classlabels_int64s": [4, 2, 9]}]
    )
    def test_zip_map(self, name: str, keys: dict[str, Any]) -> None:
        key = STRING if "classlabels_strings" in keys else INTEGER
        each = helper.make_map_type_proto(key, helper.make_tensor_type_proto(FLOAT, []))
        result = helper.make_value_info("y", helper.make_sequence_type_proto(each))
        proto = model("ZipMap", matrix(), [result], **keys)
        x = np.array([[0.25, 0.5, 1], [2, 3, 4]], np.float32)
        (outcome,) = by(name, proto, x)
        assert outcome == by_onnxruntime(proto, x)[0]

    @pytest.mark.parametrize(
        ("value", "cast_to", "result", "x"),
        [
            (FLOAT, "TO_FLOAT", FLOAT, {3: 0.5, 0: -2.0}),
            (FLOAT, "TO_INT64", INTEGER, {3: 0.5, 0: -2.75}),
            (FLOAT, "TO_STRING", STRING, {3: 0.5, 0: -2.0}),
        ],
    )
    def test_cast_map_dense(
        self, name: str, value: int, cast_to: str, result: int, x: dict[int, Any]
    ) -> None:
        proto = model(
            "CastMap", map_info("x", INTEGER, value), [matrix("y", result)], cast_to=cast_to
        )
        (outcome,) = by(name, proto, x)
        np.testing.assert_array_equal(outcome, by_onnxruntime(proto, x)[0])

    def test_cast_map_of_strings(self, name: str) -> None:
        # onnxruntime takes no such map from Python
        x = {3: "0.5", 0: "-2"}
        for cast_to, result in (("TO_STRING", STRING), ("TO_FLOAT", FLOAT)):
            inputs = map_info("x", INTEGER, STRING)
            proto = model("CastMap", inputs, [matrix("y", result)], cast_to=cast_to)
            (outcome,) = by(name, proto, x)
            expected = [["-2", "0.5"]] if result == STRING else [[-2.0, 0.5]]
            np.testing.assert_array_equal(outcome, np.array(expected, outcome.dtype))

    def test_cast_map_sparse(self, name: str) -> None:
        inputs = {"cast_to": "TO_FLOAT", "map_form": "SPARSE", "max_map": 5}
        proto = model("CastMap", map_info("x", INTEGER, FLOAT), [matrix("y")], **inputs)
        x = {3: 0.5, 0: -2.0}
        (result,) = by(name, proto, x)
        np.testing.assert_array_equal(result, by_onnxruntime(proto, x)[0])

    def test_dict_vectorizer(self, name: str) -> None:
        proto = model(
            "DictVectorizer", map_info("x", STRING, FLOAT), [matrix("y")], string_vocabulary=LABELS
        )
        x = {"c": 0.5, "a": -2.0}
        (result,) = by(name, proto, x)
        np.testing.assert_array_equal(result, by_onnxruntime(proto, x)[0])
