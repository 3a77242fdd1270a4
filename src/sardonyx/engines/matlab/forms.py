"""Operators of ai.onnx.ml, and n-grams, in plain operators and a few of our own.

What an attribute lists, such as the nodes of trees, becomes a constant, so that it is stored with
the weights. The operators of the domain `OWN` exist only here; they have rules beside the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder, infer
from sardonyx.lower.driver import attributes
from sardonyx.lower.nn.ngram import column_weights
from sardonyx.lower.traditionalml.tree import (
    AGGREGATES,
    TRANSFORMS,
    Forest,
    base_of,
    forest_of_nodes,
    forest_of_parts,
)
from sardonyx.passes.functions import replace
from sardonyx.passes.nesting import graphs

ML, OWN = "ai.onnx.ml", "sardonyx.matlab"
CLASSES = "classes"  # on an output that ZipMap turns into maps: the keys of its columns
FLOAT, DOUBLE, INT64 = ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.INT64
Form = Callable[..., Sequence[ir.Value] | None]
FORMS: dict[tuple[str, str], Form] = {}


def form(name: str, domain: str = ML) -> Callable[[Form], Form]:
    """Register how an operator is written by others: from the builder, its inputs and attributes
    to its outputs; None where this is not possible.
    """

    def decorate(function: Form) -> Form:
        FORMS[domain, name] = function
        return function

    return decorate


def rewrite(graph: ir.Graph, namer: Builder) -> None:
    """Put the forms in the place of the operators that have one."""
    for part in graphs(graph):
        for node in list(part):
            _infer(node)
            rule = FORMS.get((node.domain, node.op_type))
            if rule is None or not _is_plain(node):
                continue
            op = Builder(node.name or node.op_type, parent=namer)
            results = rule(op, *node.inputs, **attributes(node))
            if results is not None:
                for value in namer.constants.values():
                    if value.graph is None:
                        graph.register_initializer(value)
                replace(node, list(op.nodes), list(results))


def _infer(node: ir.Node) -> None:
    """Types and shapes after a Tokenizer, which ONNX does not know."""
    x = node.inputs[0] if node.inputs else None
    if node.op_type == "Tokenizer" and x is not None and x.shape is not None:
        node.outputs[0].type = x.type
        node.outputs[0].shape = ir.Shape([*x.shape, None])
    elif any(v.shape is None or v.type is None for v in node.outputs):
        infer(node)


def _is_plain(node: ir.Node) -> bool:
    return all(v is not None and v.dtype is not None and v.shape is not None for v in node.inputs)


def _own(op: Builder, name: str, inputs: Sequence[Any], like: ir.Value, **settings: Any) -> Any:
    """A node of our own, whose output has the type and the shape of `like`."""
    values = [v if isinstance(v, ir.Value) else op.const(v) for v in inputs]
    y = op.call(name, values, settings, domain=OWN)
    y.type, y.shape = like.type, like.shape
    return y


def _typed(dtype: ir.DataType, dims: Sequence[Any]) -> ir.Value:
    return ir.Value(type=ir.TensorType(dtype), shape=ir.Shape(list(dims)))


def _rows(op: Builder, x: ir.Value) -> ir.Value:
    """An input as a matrix of numbers with fractions: a vector is one row."""
    x = x if x.dtype == DOUBLE else op.cast(x, FLOAT)
    return x if len(x.shape or ()) == 2 else op.Reshape(x, [1, -1])


def _list(op: Builder, numbers: Any, like: ir.Value) -> ir.Value:
    return op.const(np.asarray(numbers, like.dtype.numpy()))  # type: ignore[union-attr]


# -- features ------------------------------------------------------------------------------------


@form("Scaler")
def scaler(op, x, *, offset, scale):
    x = op.cast(x, FLOAT)
    x = op.Sub(x, _list(op, offset, x)) if offset else x
    return [op.Mul(x, _list(op, scale, x)) if scale else op.Identity(x)]


@form("Normalizer")
def normalizer(op, x, *, norm):
    x = op.cast(x, FLOAT)
    if len(x.shape) != 2:
        return None
    kind = {"MAX": "ReduceMax", "L1": "ReduceL1", "L2": "ReduceL2"}[norm]
    size = op.call(kind, [x, [1]], {"keepdims": 1})
    return [op.Div(x, op.Where(op.Equal(size, 0.0), 1.0, size))]


@form("Binarizer")
def binarizer(op, x, *, threshold):
    compared = x if x.dtype in (FLOAT, DOUBLE) else op.cast(x, FLOAT)
    return [op.cast(op.Greater(compared, _list(op, threshold, compared)), x.dtype)]


@form("Imputer")
def imputer(op, x, **settings):
    kind = "float" if x.dtype in (FLOAT, DOUBLE) else "int64"
    values, old = settings[f"imputed_value_{kind}s"], settings[f"replaced_value_{kind}"] or 0
    missing = op.IsNaN(x) if old != old else op.Equal(x, _list(op, old, x))
    return [op.Where(missing, _list(op, values, x), x)]


@form("ArrayFeatureExtractor")
def array_feature_extractor(op, x, y):
    if len(x.shape) < 2:
        x = op.Reshape(x, [1, -1])
    return [op.Gather(x, op.Reshape(y, [-1]), axis=len(x.shape) - 1)]


@form("LabelEncoder")
def label_encoder(op, x, **settings):
    keys, values, default = _tables(settings)
    if keys is None or values is None:
        return None
    last = {k if k == k else None: v for k, v in zip(keys, values, strict=True)}
    order = [float("nan") if k is None else k for k in last]
    kind = x.dtype.numpy() if x.dtype != ir.DataType.STRING else object
    dtype = ir.DataType.STRING if isinstance(default, str) else None
    table = np.array(list(last.values()), object if dtype else np.asarray(default).dtype)
    like = _typed(dtype or ir.DataType.from_numpy(table.dtype), x.shape)
    other = np.array([default], table.dtype)
    return [_own(op, "Lookup", [x, np.array(order, kind), table, other], like)]


def _tables(settings: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The keys of a LabelEncoder, their values, and the value of all others."""
    defaults = {
        "strings": settings["default_string"],
        "int64s": np.int64(settings["default_int64"]),
        "floats": np.float32(settings["default_float"]),
    }
    if any(settings.get(f"{side}_tensor") is not None for side in ("keys", "values")):
        return None, None, None
    keys = next((settings[f"keys_{k}"] for k in defaults if settings[f"keys_{k}"]), None)
    kind = next((k for k in defaults if settings[f"values_{k}"]), None)
    return (
        (None, None, None) if kind is None else (keys, settings[f"values_{kind}"], defaults[kind])
    )


@form("ZipMap")
def zip_map(op, x, *, classlabels_int64s, classlabels_strings):
    y = op.Identity(x)
    y.meta[CLASSES] = list(classlabels_int64s or classlabels_strings)
    return [y]


# -- scores --------------------------------------------------------------------------------------


def _transformed(op: Builder, scores: Any, name: str) -> Any:
    """Scores [N, C] after a `post_transform`; a score that stands alone stays as it is."""
    if name == "NONE" or (name in ("SOFTMAX", "LOGISTIC") and scores.shape[1] == 1):
        return scores
    if name == "SOFTMAX":
        return op.Softmax(scores, axis=1)
    return op.Sigmoid(scores) if name == "LOGISTIC" else None


def _two_sided(op: Builder, score: ir.Value, name: str, mixed: bool) -> ir.Value | None:
    """The scores of both classes from that of the second; `mixed`: it may be negative."""
    if name == "LOGISTIC":
        return op.Concat(op.Sigmoid(op.Neg(score)), op.Sigmoid(score), axis=1)
    if name not in ("NONE", "SOFTMAX"):
        return None
    other = op.Neg(score) if mixed else op.Sub(1.0, score)
    return op.Concat(other, score, axis=1)


def _labelled(op: Builder, winner: ir.Value, integers: Any, strings: Any) -> ir.Value:
    if strings:
        return op.Gather(op.const(np.array(strings, object)), winner)
    return op.Gather(np.array(integers, np.int64), winner) if integers else winner


def _decided(op, scores, alone, mixed, least, name, integers, strings):
    """The labels and the scores of a classifier; `least` is what a score alone must exceed."""
    if alone:
        won = op.Greater(scores, _list(op, least, scores))
        winner = op.Reshape(op.cast(won, INT64), [-1])
        result = _two_sided(op, scores, name, mixed)
    else:
        winner = op.ArgMax(scores, axis=1, keepdims=0)
        result = _transformed(op, scores, name)
    if result is None:
        return None
    return [_labelled(op, winner, integers, strings), op.cast(result, FLOAT)]


def _linear(op, x, coefficients, intercepts, targets):
    weights = np.array(coefficients).reshape(targets, -1).T
    scores = op.MatMul(x, _list(op, weights, x))
    return op.Add(scores, _list(op, intercepts, x)) if intercepts else scores


@form("LinearRegressor")
def linear_regressor(op, x, *, coefficients, intercepts, post_transform, targets):
    scores = _linear(op, _rows(op, x), coefficients, intercepts, targets)
    y = _transformed(op, scores, post_transform)
    return None if y is None else [op.cast(y, FLOAT)]


@form("LinearClassifier")
def linear_classifier(op, x, *, coefficients, intercepts, post_transform, **settings):
    x, width = _rows(op, x), x.shape[-1]
    if not intercepts and not isinstance(width, int):
        return None
    targets = len(intercepts or ()) or len(coefficients) // width
    integers, strings = settings["classlabels_ints"], settings["classlabels_strings"]
    scores = _linear(op, x, coefficients, intercepts, targets)
    alone = targets == 1 and len(integers or strings or ()) == 2
    return _decided(op, scores, alone, False, 0, post_transform, integers, strings)


# -- trees ---------------------------------------------------------------------------------------


def _grown(op: Builder, x: Any, forest: Forest, aggregate: str) -> Any:
    """What the leaves that rows reach weigh together: [N, targets]."""
    if forest.members.size:
        return None
    kind, weights = x.dtype.numpy(), forest.weights
    if aggregate in ("MIN", "MAX"):
        weights = np.where(forest.present, weights, np.inf if aggregate == "MIN" else -np.inf)
    places = (forest.roots, forest.feature, forest.mode, forest.yes, forest.no, forest.leaf)
    tables = [np.asarray(a, np.int32) for a in places]
    tables += [forest.split.astype(kind), forest.missing, weights.astype(kind)]
    like = _typed(x.dtype, [x.shape[0], weights.shape[1]])
    return _own(op, "Trees", [x, *tables], like, aggregate=aggregate.lower())


@form("TreeEnsemble")
def tree_ensemble(op, x, *, aggregate_function, post_transform, **parts):
    if x.dtype not in (FLOAT, DOUBLE) or len(x.shape) != 2:
        return None
    scores = _grown(op, x, forest_of_parts(**parts), AGGREGATES[aggregate_function])
    y = None if scores is None else _transformed(op, scores, TRANSFORMS[post_transform])
    return None if y is None else [op.Identity(y)]


def _forest(targets: int, kind: str, settings: dict[str, Any]) -> Forest:
    values = settings.get("nodes_values_as_tensor")
    weights = settings.get(f"{kind}_weights_as_tensor")
    return forest_of_nodes(
        targets=targets,
        trees=settings["nodes_treeids"],
        nodes=settings["nodes_nodeids"],
        features=settings["nodes_featureids"],
        splits=settings["nodes_values"] if values is None else values,
        modes=settings["nodes_modes"],
        yes=settings["nodes_truenodeids"],
        no=settings["nodes_falsenodeids"],
        missing=settings.get("nodes_missing_value_tracks_true"),
        weight_trees=settings[f"{kind}_treeids"],
        weight_nodes=settings[f"{kind}_nodeids"],
        weight_ids=settings[f"{kind}_ids"],
        weights=settings[f"{kind}_weights"] if weights is None else weights,
    )


@form("TreeEnsembleRegressor")
def tree_ensemble_regressor(
    op, x, *, n_targets=1, aggregate_function="SUM", post_transform="NONE", **settings
):
    x, base = _rows(op, x), base_of(settings)
    scores = _grown(op, x, _forest(n_targets or 1, "target", settings), aggregate_function)
    if scores is None:
        return None
    scores = scores if base is None else op.Add(scores, _list(op, base, x))
    y = _transformed(op, scores, post_transform)
    return None if y is None else [op.Identity(op.cast(y, FLOAT))]


@form("TreeEnsembleClassifier")
def tree_ensemble_classifier(op, x, *, post_transform="NONE", **settings):
    x, base = _rows(op, x), base_of(settings)
    integers, strings = (settings.get(f"classlabels_{kind}") for kind in ("int64s", "strings"))
    classes = len(integers or strings or ())
    alone = classes == 2 and set(settings["class_ids"]) == {0}
    alone = alone and (base is None or len(base) == 1)
    forest = _forest(1 if alone else classes, "class", settings)
    scores = None if classes < 2 else _grown(op, x, forest, "SUM")
    if scores is None:
        return None
    scores = scores if base is None else op.Add(scores, _list(op, base, x))
    # One score for two classes: a probability, unless a leaf weighs less than nothing.
    mixed = bool((forest.weights < 0).any())
    least = 0 if mixed else 0.5
    return _decided(op, scores, alone, mixed, least, post_transform, integers, strings)


# -- n-grams -------------------------------------------------------------------------------------


@form("TfIdfVectorizer", "")
def tf_idf_vectorizer(op, x, *, ngram_counts, ngram_indexes, mode, weights, **settings):
    text, rank = settings["pool_strings"], len(x.shape)
    pool = np.array(text or settings["pool_int64s"], object if text else np.int64)
    vocabulary, numbers = np.unique(pool, return_inverse=True)
    width = max(ngram_indexes) + 1
    grams = np.zeros((len(ngram_indexes), len(ngram_counts)), np.int32)
    lengths = np.zeros(len(ngram_indexes), np.int32)
    position = 0
    for length, (start, stop) in enumerate(
        zip(ngram_counts, [*ngram_counts[1:], len(pool)], strict=True), 1
    ):
        group = numbers[start:stop].reshape(-1, length)
        grams[position : position + len(group), :length] = group + 1  # 0 stands for no element
        lengths[position : position + len(group)] = length
        position += len(group)
    columns = np.asarray(ngram_indexes, np.int32)
    factors = column_weights(weights, ngram_indexes, width)
    like = _typed(FLOAT, [*x.shape[: rank - 1], width])
    settings = {k: settings[k] for k in ("min_gram_length", "max_gram_length", "max_skip_count")}
    inputs = [x, vocabulary, grams, lengths, columns, factors]
    return [_own(op, "Ngrams", inputs, like, mode=mode, **settings)]
