"""Support vector machines, as libsvm evaluates them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.importers.rules import importer
from sardonyx.importers.sklearn.kernel import pairwise_kernel, squared
from sardonyx.importers.sklearn.labels import flat, highest, picked
from sardonyx.importers.sklearn.linear import dense
from sardonyx.importers.sklearn.table import INT64, double
from sardonyx.importers.special import sigmoid

F = np.float64


def _kernel(op, model, x):
    vectors = dense(model.support_vectors_)
    if model.kernel == "precomputed":
        return op.Gather(x, np.asarray(model.support_, np.int64), axis=1)
    if model.kernel == "rbf" and vectors.shape[1] <= 64:
        return op.Exp(op.Mul(squared(op, x, vectors), F(-model._gamma)))
    return pairwise_kernel(op, x, vectors, model.kernel, model._gamma, model.degree, model.coef0)


def _one_versus_one(op, model, x) -> ir.Value:
    """libsvm's decision values: one per pair of classes, positive for the first of the pair."""
    kernel = _kernel(op, model, double(op, x))
    coef = dense(model._dual_coef_)
    counts = np.asarray(model._n_support)
    starts = np.concatenate([[0], np.cumsum(counts)])
    pairs = []
    for i in range(len(counts)):
        for j in range(i + 1, len(counts)):
            weights = np.zeros(coef.shape[1])
            weights[starts[i] : starts[i + 1]] = coef[j - 1, starts[i] : starts[i + 1]]
            weights[starts[j] : starts[j + 1]] = coef[i, starts[j] : starts[j + 1]]
            pairs.append(weights)
    return op.Add(op.MatMul(kernel, np.stack(pairs, 1)), np.asarray(model._intercept_, F)[None])


def _votes(op, wins: ir.Value, count: int) -> ir.Value:
    """How many of its pairs each class wins; `wins` says whether the first of a pair does."""
    first, second = _pair_matrices(count)
    for_first = op.Cast(wins, to=int(ir.DataType.DOUBLE))
    return op.Add(op.MatMul(for_first, first), op.MatMul(op.Sub(F(1), for_first), second))


def _pair_matrices(count: int) -> tuple[np.ndarray, np.ndarray]:
    rows = [(i, j) for i in range(count) for j in range(i + 1, count)]
    first, second = np.zeros((len(rows), count)), np.zeros((len(rows), count))
    for k, (i, j) in enumerate(rows):
        first[k, i], second[k, j] = 1, 1
    return first, second


def one_versus_rest(op, is_loss: ir.Value, confidences: ir.Value, count: int) -> ir.Value:
    """scikit-learn's votes with sums of confidences that break ties."""
    first, second = _pair_matrices(count)
    sums = op.MatMul(confidences, second - first)
    small = op.Div(sums, op.Mul(op.Add(op.Abs(sums), F(1)), F(3)))
    return op.Add(_votes(op, op.Not(is_loss), count), small)


@importer("sklearn.svm.SVC", "sklearn.svm.NuSVC")
def svc(op, model, x):
    decision = _one_versus_one(op, model, x)
    count = len(model.classes_)
    if count == 2:
        score = op.Neg(flat(op, decision))
        label = picked(op, model.classes_, op.Cast(op.GreaterOrEqual(score, F(0)), to=int(INT64)))
        result = {"decision_function": score, "predict": label}
    else:
        wins = op.Greater(decision, F(0))
        rest = one_versus_rest(op, op.Less(decision, F(0)), op.Neg(decision), count)
        ties = model.break_ties and model.decision_function_shape == "ovr"
        best = rest if ties else _votes(op, wins, count)
        shape = model.decision_function_shape
        result = {
            "decision_function": rest if shape == "ovr" else decision,
            "predict": highest(op, model.classes_, best),
        }
    if np.size(model._probA):
        result["predict_proba"] = _probabilities(op, model, decision)
    return result


def _probabilities(op, model, decision) -> ir.Value:
    """libsvm's probabilities: Platt's for each pair, then pairwise coupling."""
    a, b = np.asarray(model._probA, F)[None], np.asarray(model._probB, F)[None]
    p = sigmoid(op, op.Neg(op.Add(op.Mul(decision, a), b)))
    p = op.Min(op.Max(p, F(1e-7)), F(1 - 1e-7))
    return _coupled(op, p, len(model.classes_))


def _coupled(op, p, count: int) -> ir.Value:
    """The second method of Wu, Lin and Weng, with libsvm's iteration and its end."""
    pairwise = [[None] * count for _ in range(count)]
    k = 0
    for i in range(count):
        for j in range(i + 1, count):
            one = op.Slice(p, [k], [k + 1], [1])
            pairwise[i][j], pairwise[j][i] = one, op.Sub(F(1), one)
            k += 1
    q: list[list[Any]] = [[None] * count for _ in range(count)]
    for t in range(count):
        others = [pairwise[j][t] for j in range(count) if j != t]
        q[t][t] = (
            op.Sum(*(op.Mul(r, r) for r in others))
            if len(others) > 1
            else (op.Mul(others[0], others[0]))
        )
        for j in range(count):
            if j != t:
                q[t][j] = op.Neg(op.Mul(pairwise[j][t], pairwise[t][j]))
    flattened = op.Concat(*(q[t][j] for t in range(count) for j in range(count)), axis=1)
    start = op.Add(op.Mul(op.Slice(flattened, [0], [count], [1]), F(0)), F(1 / count))
    return _iterated(op, flattened, start, count)


def _iterated(op, q, start, count: int) -> ir.Value:
    """A Loop over all rows at once, in which a row keeps its value once it has converged."""
    from sardonyx.build import Builder

    body = Builder(prefix="coupling", parent=op)
    number = ir.Value(name=op.fresh("step"), type=ir.TensorType(INT64), shape=ir.Shape([]))
    go = ir.Value(name=op.fresh("go"), type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([]))
    p = ir.Value(name=op.fresh("p"), type=start.type, shape=ir.Shape(start.shape))
    cube = body.Reshape(q, np.array([-1, count, count]))
    qp = body.Squeeze(body.MatMul(cube, body.Unsqueeze(p, [2])), [2])
    pqp = body.ReduceSum(body.Mul(p, qp), [1], keepdims=1)
    error = body.ReduceMax(body.Abs(body.Sub(qp, pqp)), [1], keepdims=1)
    active = body.GreaterOrEqual(error, F(0.005 / count))
    new, products, total = p, qp, pqp
    for t in range(count):
        row = body.Squeeze(body.Slice(cube, [t], [t + 1], [1]), [1])
        diagonal = body.Slice(row, [t], [t + 1], [1])
        product = body.Slice(products, [t], [t + 1], [1])
        diff = body.Div(body.Sub(total, product), diagonal)
        unit = np.eye(count)[t][None]
        scale = body.Add(diff, F(1))
        total = body.Div(
            body.Div(
                body.Add(
                    total,
                    body.Mul(diff, body.Add(body.Mul(diff, diagonal), body.Mul(product, 2.0))),
                ),
                scale,
            ),
            scale,
        )
        products = body.Div(body.Add(products, body.Mul(diff, row)), scale)
        new = body.Div(body.Add(new, body.Mul(diff, unit)), scale)
    after = body.Where(active, new, p)
    again = body.Identity(go)
    graph = ir.Graph([number, go, p], [again, after], nodes=body.nodes, name=op.fresh("coupling"))
    trips = op.const(np.array(max(100, count), np.int64))
    keep = op.const(np.array(True))
    attribute = ir.AttrGraph("body", graph)
    (out,) = op.call("Loop", [trips, keep, start], {"body": attribute}, outputs=1)
    out.type, out.shape = start.type, ir.Shape(start.shape)
    return out


@importer("sklearn.svm.SVR", "sklearn.svm.NuSVR")
def svr(op, model, x):
    kernel = _kernel(op, model, double(op, x))
    y = op.MatMul(kernel, np.ascontiguousarray(dense(model._dual_coef_).T))
    return {"predict": flat(op, op.Add(y, F(np.ravel(model._intercept_)[0])))}


@importer("sklearn.svm.OneClassSVM")
def one_class_svm(op, model, x):
    kernel = _kernel(op, model, double(op, x))
    y = flat(op, op.MatMul(kernel, np.ascontiguousarray(dense(model._dual_coef_).T)))
    decision = op.Add(y, F(np.ravel(model._intercept_)[0]))
    label = op.Where(op.Greater(decision, F(0)), np.int64(1), np.int64(-1))
    scores = op.Add(decision, F(np.ravel(model.offset_)[0]))
    return {"decision_function": decision, "predict": label, "score_samples": scores}
