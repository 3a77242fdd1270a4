"""Cases of ONNX's traditionalml family (ai.onnx.ml): values only.

Most of onnxruntime's kernels are of float32 alone, so that the cases cast before they call them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper

from sardonyx.testing import Case, case

ML = "ai.onnx.ml"
FLOAT, DOUBLE = 1, 11
RNG = np.random.default_rng(20)
X = RNG.normal(size=(6, 4))
MISSING = np.where(RNG.random((9, 4)) < 0.2, np.nan, RNG.normal(size=(9, 4)))
WORDS = np.array([["b", "zz"], ["a", "a"]], object)


def floats(*shape: int) -> list[float]:
    return [float(np.float32(v)) for v in RNG.normal(size=shape).ravel()]


def written(value: Any) -> str:
    """An attribute in ONNX's text."""
    if isinstance(value, list):
        return f"[{', '.join(written(v) for v in value)}]"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def model(
    op: str, x: np.ndarray = X, outputs: int = 1, to: int = FLOAT, id: str = "", **attributes: Any
) -> Case:
    """One node over `x` in float32 (or the type `to`)."""
    results = ", ".join(f"y{i}" for i in range(outputs))
    inputs = ", ".join(f"{k} = {written(v)}" for k, v in attributes.items())
    nodes = f"f = Cast<to={to}>(x0) {results} = {ML}.{op}<{inputs}>(f)"
    return case(op, x, nodes=nodes, domain=ML, order=0, outputs=outputs, id=id)


def look_up(op: str, x: np.ndarray, id: str, **attributes: Any) -> Case:
    return case(op, x, domain=ML, order=0, fed=True, id=id, **attributes)


def forest(modes: tuple[str, ...], missing: bool = False) -> tuple[dict[str, Any], np.ndarray]:
    """Five random trees with up to four levels, and the (tree, node) of their leaves."""
    rows: list[list[Any]] = []
    leaves: list[tuple[int, int]] = []

    def grow(tree: int, first: int, level: int) -> int:
        row: list[Any] = [tree, len(rows) - first, 0, 0.0, "LEAF", 0, 0, 0]
        rows.append(row)
        if level < 4 and (level == 0 or RNG.random() < 0.7):
            row[2:5] = int(RNG.integers(4)), floats(1)[0], f"BRANCH_{RNG.choice(modes)}"
            row[5], row[6] = grow(tree, first, level + 1), grow(tree, first, level + 1)
            row[7] = int(RNG.integers(2))
        else:
            leaves.append((tree, row[1]))
        return row[1]

    for tree in range(5):
        grow(tree, len(rows), 0)
    names = "treeids nodeids featureids values modes truenodeids falsenodeids"
    keys = [*names.split(), "missing_value_tracks_true"]
    columns = {f"nodes_{k}": list(c) for k, c in zip(keys, zip(*rows, strict=True), strict=True)}
    if not missing:
        del columns["nodes_missing_value_tracks_true"]
    return columns, np.array(leaves)


def regressor(id: str, modes: tuple[str, ...], targets: int = 1, **options: Any) -> Case:
    nodes, leaves = forest(modes, options.pop("missing", False))
    weighed = np.repeat(leaves, targets, 0)
    weights = {
        "target_treeids": weighed[:, 0].tolist(),
        "target_nodeids": weighed[:, 1].tolist(),
        "target_ids": np.tile(np.arange(targets), len(leaves)).tolist(),
        "target_weights": floats(len(weighed)),
    }
    return model("TreeEnsembleRegressor", id=id, n_targets=targets, **nodes, **weights, **options)


def classifier(id: str, ids: int, labels: dict[str, Any], **options: Any) -> Case:
    """A tree votes for one class only if `ids` is 1; else each leaf weighs all of them."""
    nodes, leaves = forest(("LEQ",))
    weighed = np.repeat(leaves, ids, 0)
    weights = np.array(floats(len(weighed)))
    weights = np.abs(weights) / 5 if options.pop("positive", False) else weights
    inputs = {
        "class_treeids": weighed[:, 0].tolist(),
        "class_nodeids": weighed[:, 1].tolist(),
        "class_ids": np.tile(np.arange(ids), len(leaves)).tolist(),
        "class_weights": weights.tolist(),
    }
    return model("TreeEnsembleClassifier", outputs=2, id=id, **labels, **nodes, **inputs, **options)


def kernel(classes: int, vectors: list[int], kind: str, **options: Any) -> Case:
    duels, support = classes * (classes - 1) // 2, sum(vectors)
    return model(
        "SVMClassifier",
        outputs=2,
        id=f"{classes}-classes-{kind}" + "".join(f"-{k}" for k in options),
        kernel_type=kind,
        kernel_params=[0.3, 0.5, 3.0],
        coefficients=floats(classes - 1, support),
        support_vectors=floats(support, 4),
        vectors_per_class=vectors,
        rho=floats(duels),
        classlabels_ints=list(range(5, 5 + classes)),
        **({"prob_a": [-1.0] * duels, "prob_b": floats(duels)} if options else {}),
    )


def tensor(values: list[float], kind: int = TensorProto.DOUBLE) -> TensorProto:
    return helper.make_tensor("", kind, [len(values)], values)


def ensemble(id: str, **options: Any) -> Case:
    """Two trees, one of which asks whether a feature is in a set."""
    return case(
        "TreeEnsemble",
        np.array([[0, 2, 0], [1, 5, 1], [1, 4, 0], [2, 7, 1.0], [2, 2, 0], [np.nan, 2, 1]]),
        domain=ML,
        order=0,
        id=id,
        n_targets=2,
        tree_roots=[0, 3],
        nodes_featureids=[0, 1, 2, 1],
        nodes_modes=tensor([0, 6, 3, 5], TensorProto.UINT8),
        nodes_splits=tensor([1.0, 0.0, 0.0, 2.0]),
        nodes_truenodeids=[1, 0, 2, 4],
        nodes_trueleafs=[0, 1, 1, 1],
        nodes_falsenodeids=[2, 1, 3, 5],
        nodes_falseleafs=[0, 1, 1, 1],
        membership_values=tensor([2.0, 5.0, 7.0, float("nan")]),
        leaf_targetids=[0, 1, 0, 1, 0, 1],
        leaf_weights=tensor([0.5, -1.25, 3.0, 0.125, 2.0, -4.0]),
        **options,
    )


TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")
INTEGERS = {"classlabels_int64s": [4, 8]}
THREE = {"classlabels_int64s": [4, 8, 9]}

CASES = [
    case("ArrayFeatureExtractor", X, np.array([[3, 0, 0]]), domain=ML, order=0, id="columns"),
    case("ArrayFeatureExtractor", X[0], np.array([3, 0]), domain=ML, order=0, id="vector"),
    model("Binarizer", threshold=0.25),
    look_up("CategoryMapper", WORDS, "strings", cats_int64s=[7, 8], cats_strings=["a", "b"]),
    look_up(
        "CategoryMapper",
        np.array([8, 1, 7]),
        "integers",
        cats_int64s=[7, 8],
        cats_strings=["a", "b"],
    ),
    case(
        "FeatureVectorizer",
        X,
        X[:, :3],
        nodes="a = Cast<to=1>(x0) b = Cast<to=1>(x1) "
        f"y0 = {ML}.FeatureVectorizer<inputdimensions=[2, 5]>(a, b)",
        domain=ML,
        order=0,
        id="cut-and-filled",
    ),
    case(
        "Imputer",
        MISSING,
        domain=ML,
        order=0,
        imputed_value_floats=[1.0, 2.0, 3.0, 4.0],
        replaced_value_float=float("nan"),
        id="missing",
    ),
    look_up(
        "Imputer",
        np.array([[1, 0], [0, 4]]),
        "integers",
        imputed_value_int64s=[7],
        replaced_value_int64=0,
    ),
    look_up(
        "LabelEncoder",
        np.array([[3, 4], [-5, 9]]),
        "integers-to-floats",
        keys_int64s=[9, 3, -5],
        values_floats=[0.5, 0.25, 0.75],
    ),
    case(
        "LabelEncoder",
        MISSING,
        nodes="f = Cast<to=1>(x0) g = Round(f) "
        f"y0 = {ML}.LabelEncoder<keys_floats=[1.0, 0.0], values_int64s=[4, 5]>(g)",
        domain=ML,
        order=0,
        id="floats-to-integers",
    ),
    look_up("LabelEncoder", WORDS, "strings", keys_strings=["a", "b"], values_strings=["x", "y"]),
    *(
        model(
            "LinearClassifier",
            outputs=2,
            id=f"{rows}-rows-{transform}",
            coefficients=floats(rows, 4),
            intercepts=floats(rows),
            classlabels_ints=list(range(7, 7 + max(rows, 2))),
            post_transform=transform,
        )
        for rows in (1, 2, 3)
        for transform in TRANSFORMS
    ),
    model(
        "LinearClassifier",
        outputs=2,
        id="string-labels",
        coefficients=floats(3, 4),
        intercepts=floats(3),
        classlabels_strings=["a", "b", "c"],
    ),
    *(
        model(
            "LinearRegressor",
            id=f"{targets}-targets-{transform}",
            coefficients=floats(targets, 4),
            intercepts=floats(targets),
            targets=targets,
            post_transform=transform,
        )
        for targets, transform in ((1, "NONE"), (3, "NONE"), (3, "SOFTMAX"))
    ),
    *(model("Normalizer", np.vstack([X, 0 * X[:1]]), id=n, norm=n) for n in ("MAX", "L1", "L2")),
    look_up("OneHotEncoder", np.array([[3, 1], [9, 1]]), "integers", cats_int64s=[1, 3, 5]),
    look_up("OneHotEncoder", WORDS, "strings", cats_strings=["b", "a"]),
    model("Scaler", id="columns", offset=floats(4), scale=floats(4)),
    model("Scaler", id="all", offset=[0.5], scale=[3.0]),
    kernel(2, [2, 3], "RBF"),
    kernel(3, [2, 3, 1], "POLY"),
    kernel(3, [2, 3, 1], "LINEAR"),
    kernel(4, [2, 1, 1, 2], "SIGMOID"),
    kernel(2, [2, 3], "RBF", probabilities=True),
    kernel(3, [2, 1, 2], "RBF", probabilities=True),
    model(
        "SVMClassifier",
        outputs=2,
        id="without-vectors",
        kernel_params=[0.0, 0.0, 0.0],
        coefficients=floats(3, 4),
        rho=[0.2],
        classlabels_ints=[1, 2, 3],
    ),
    *(
        model(
            "SVMRegressor",
            id=f"{kind}-one-class-{one_class}",
            kernel_type=kind,
            kernel_params=[0.3, 0.5, 2.0],
            coefficients=floats(5),
            support_vectors=floats(5, 4),
            n_supports=5,
            rho=[0.3],
            one_class=one_class,
        )
        for kind, one_class in (("RBF", 0), ("POLY", 0), ("SIGMOID", 0), ("LINEAR", 1))
    ),
    ensemble("sum"),
    # 3 is SOFTMAX_ZERO; onnxruntime takes 1 for LOGISTIC and 2 for SOFTMAX, ONNX the other way
    # round
    ensemble("average-softmax-zero", aggregate_function=0, post_transform=3),
    regressor("at-most", ("LEQ",), x=MISSING),
    regressor("every-comparison", ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ"), base_values=[0.5]),
    regressor("missing-values", ("LT", "GTE"), x=MISSING, missing=True),
    regressor("in-double", ("LEQ",), to=DOUBLE),
    *(regressor(f"{how}-of-2", ("LEQ",), 2, aggregate_function=how) for how in ("MIN", "MAX")),
    regressor(
        "average-softmax", ("LEQ",), 3, aggregate_function="AVERAGE", post_transform="SOFTMAX"
    ),
    *(classifier(f"one-score-{t}", 1, INTEGERS, post_transform=t) for t in TRANSFORMS),
    classifier("one-probability", 1, INTEGERS, positive=True),
    classifier("one-probability-base", 1, INTEGERS, positive=True, base_values=[0.1]),
    *(classifier(f"three-{t}", 3, THREE, post_transform=t) for t in TRANSFORMS),
    classifier("three-strings", 3, {"classlabels_strings": ["a", "b", "c"]}),
]
