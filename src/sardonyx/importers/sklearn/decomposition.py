"""Decompositions, projections, kernel approximations, embeddings and feature selection."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.importers.rules import importer
from sardonyx.importers.sklearn.driver import methods, refuse
from sardonyx.importers.sklearn.kernel import distances, pairwise_kernel
from sardonyx.importers.sklearn.labels import highest
from sardonyx.importers.sklearn.linear import dense
from sardonyx.importers.sklearn.table import DOUBLE, double, select

F = np.float64
DECOMPOSITION = "sklearn.decomposition."


def projected(op, x, weights: Any) -> ir.Value:
    return op.MatMul(double(op, x), np.ascontiguousarray(np.asarray(dense(weights), F)))


@importer(DECOMPOSITION + "PCA", DECOMPOSITION + "IncrementalPCA")
def pca(op, model, x):
    components = np.asarray(model.components_, F)
    y = projected(op, x, components.T)
    if model.mean_ is not None:
        y = op.Sub(y, np.asarray(model.mean_, F).reshape(1, -1) @ components.T)
    if model.whiten:
        scale = np.sqrt(np.asarray(model.explained_variance_, F))
        y = op.Div(y, np.maximum(scale, np.finfo(scale.dtype).eps)[None])
    return {"transform": y}


@importer(DECOMPOSITION + "TruncatedSVD")
def truncated_svd(op, model, x):
    return {"transform": projected(op, x, np.asarray(model.components_).T)}


@importer(DECOMPOSITION + "FastICA")
def fast_ica(op, model, x):
    y = double(op, x)
    if model.whiten:
        y = op.Sub(y, np.asarray(model.mean_, F)[None])
    return {"transform": projected(op, y, np.asarray(model.components_).T)}


@importer(DECOMPOSITION + "FactorAnalysis")
def factor_analysis(op, model, x):
    components = np.asarray(model.components_, F)
    scaled = components / np.asarray(model.noise_variance_, F)
    inverse = np.linalg.inv(np.eye(len(components)) + scaled @ components.T)
    y = op.Sub(double(op, x), np.asarray(model.mean_, F)[None])
    return {"transform": projected(op, projected(op, y, scaled.T), inverse)}


@importer(DECOMPOSITION + "SparsePCA", DECOMPOSITION + "MiniBatchSparsePCA")
def sparse_pca(op, model, x):
    """Ridge regression of the components on each row, which is linear in the row."""
    components = np.asarray(model.components_, F)
    gram = components @ components.T + model.ridge_alpha * np.eye(len(components))
    y = op.Sub(double(op, x), np.asarray(model.mean_, F)[None])
    return {"transform": projected(op, y, np.linalg.solve(gram, components).T)}


@importer(DECOMPOSITION + "KernelPCA")
def kernel_pca(op, model, x):
    y = double(op, x)
    if model.kernel != "precomputed":
        y = pairwise_kernel(
            op, y, dense(model.X_fit_), model.kernel, model.gamma_, model.degree, model.coef0
        )
    centered = methods(op, model._centerer, y, "centerer")["transform"]
    values, vectors = np.asarray(model.eigenvalues_, F), np.asarray(model.eigenvectors_, F)
    scaled = np.zeros_like(vectors)
    used = np.flatnonzero(values)
    scaled[:, used] = vectors[:, used] / np.sqrt(values[used])
    return {"transform": projected(op, centered, scaled)}


@importer(
    *(DECOMPOSITION + n for n in ("DictionaryLearning", "MiniBatchDictionaryLearning")),
    DECOMPOSITION + "SparseCoder",
)
def sparse_coding(op, model, x):
    if model.transform_algorithm != "threshold":
        raise refuse(
            f"transform_algorithm={model.transform_algorithm!r}, which is iterative",
            hint='only transform_algorithm="threshold" is a closed formula',
        )
    dictionary = getattr(model, "components_", None)
    dictionary = np.asarray(model.dictionary if dictionary is None else dictionary, F)
    alpha = model.transform_alpha
    if alpha is None:
        alpha = getattr(model, "alpha", 1.0)
    products = projected(op, x, dictionary.T)
    size = op.Max(op.Sub(op.Abs(products), F(alpha)), F(0))
    code = op.Mul(op.Sign(products), size)
    if model.positive_code:
        code = op.Max(code, F(0))
    if model.split_sign:
        code = op.Concat(op.Max(code, F(0)), op.Neg(op.Min(code, F(0))), axis=1)
    return {"transform": code}


@importer(
    "sklearn.random_projection.GaussianRandomProjection",
    "sklearn.random_projection.SparseRandomProjection",
)
def random_projection(op, model, x):
    return {"transform": projected(op, x, dense(model.components_).T)}


# -- kernel approximation -------------------------------------------------------------------------


@importer("sklearn.kernel_approximation.RBFSampler")
def rbf_sampler(op, model, x):
    y = op.Add(projected(op, x, model.random_weights_), np.asarray(model.random_offset_, F)[None])
    return {"transform": op.Mul(op.Cos(y), F((2.0 / model.n_components) ** 0.5))}


@importer("sklearn.kernel_approximation.SkewedChi2Sampler")
def skewed_chi2_sampler(op, model, x):
    y = op.Log(op.Add(double(op, x), F(model.skewedness)))
    y = op.Add(projected(op, y, model.random_weights_), np.asarray(model.random_offset_, F)[None])
    return {"transform": op.Mul(op.Cos(y), F(np.sqrt(2.0) / np.sqrt(model.n_components)))}


@importer("sklearn.kernel_approximation.AdditiveChi2Sampler")
def additive_chi2_sampler(op, model, x):
    interval = model.sample_interval
    if interval is None:
        interval = {1: 0.8, 2: 0.5, 3: 0.4}[model.sample_steps]
    y = double(op, x)
    zero = op.Equal(y, F(0))
    safe = op.Where(zero, F(1), y)
    parts = [op.Sqrt(op.Mul(safe, F(interval)))]
    logs, steps = op.Mul(op.Log(safe), F(interval)), op.Mul(safe, F(2 * interval))
    for j in range(1, model.sample_steps):
        factor = op.Sqrt(op.Div(steps, F(np.cosh(np.pi * j * interval))))
        parts.append(op.Mul(factor, op.Cos(op.Mul(logs, F(j)))))
        parts.append(op.Mul(factor, op.Sin(op.Mul(logs, F(j)))))
    return {"transform": op.Concat(*(op.Where(zero, F(0), p) for p in parts), axis=1)}


@importer("sklearn.kernel_approximation.Nystroem")
def nystroem(op, model, x):
    if model.kernel_params:
        raise refuse("a Nystroem with kernel_params")
    k = pairwise_kernel(
        op, double(op, x), dense(model.components_), model.kernel, model.gamma, model.degree,
        model.coef0,
    )  # fmt: skip
    return {"transform": projected(op, k, np.asarray(model.normalization_).T)}


@importer("sklearn.kernel_approximation.PolynomialCountSketch")
def polynomial_count_sketch(op, model, x):
    """The circular convolution of several sketches of a row."""
    y = op.Mul(double(op, x), F(np.sqrt(model.gamma)))
    count = model.n_components
    index, bits = np.asarray(model.indexHash_), np.asarray(model.bitHash_, F)
    shifted = (np.arange(count)[None] - np.arange(count)[:, None]) % count
    out = None
    for d in range(model.degree):
        sketch = np.zeros((index.shape[1], count))
        sketch[np.arange(index.shape[1]), index[d]] = bits[d]
        fixed = np.sqrt(model.coef0) * sketch[-1] if model.coef0 else np.zeros(count)
        rows = sketch[:-1] if model.coef0 else sketch
        s = op.Add(op.MatMul(y, rows), fixed[None])
        if out is None:
            out = s
        else:
            circulant = op.Gather(s, shifted, axis=1)
            out = op.Squeeze(op.MatMul(op.Unsqueeze(out, [1]), circulant), [1])
    return {"transform": out}


# -- models that keep a kernel --------------------------------------------------------------------


@importer("sklearn.kernel_ridge.KernelRidge")
def kernel_ridge(op, model, x):
    y = double(op, x)
    if model.kernel != "precomputed":
        if model.kernel_params and callable(model.kernel):
            raise refuse("a kernel that is a Python function")
        y = pairwise_kernel(
            op, y, dense(model.X_fit_), model.kernel, model.gamma, model.degree, model.coef0
        )
    coef = np.asarray(model.dual_coef_, F)
    out = op.MatMul(y, coef.reshape(len(coef), -1))
    return {"predict": op.Squeeze(out, [1]) if coef.ndim == 1 else out}


@importer(
    "sklearn.semi_supervised.LabelPropagation",
    "sklearn.semi_supervised.LabelSpreading",
)
def label_propagation(op, model, x):
    y = double(op, x)
    table = np.asarray(model.label_distributions_, F)
    if model.kernel == "rbf":
        k = pairwise_kernel(op, y, dense(model.X_), "rbf", model.gamma)
        sums = op.MatMul(k, table)
    elif model.kernel == "knn":
        fit = model.nn_fit
        d = distances(op, y, np.asarray(fit._fit_X, F), "euclidean")
        _, at = op.TopK(d, [fit.n_neighbors], largest=0, axis=1, outputs=2)
        sums = op.ReduceSum(op.Gather(op.const(table), at, axis=0), [1], keepdims=0)
    else:
        raise refuse("a kernel that is a Python function")
    proba = op.Div(sums, op.ReduceSum(sums, [1], keepdims=1))
    return {"predict": highest(op, model.classes_, proba), "predict_proba": proba}


@importer("sklearn.manifold.Isomap")
def isomap(op, model, x):
    if model.n_neighbors is None:
        raise refuse("an Isomap over a radius")
    d = distances(op, double(op, x), np.asarray(model.nbrs_._fit_X, F), model.metric, model.p)
    near, at = op.TopK(d, [model.n_neighbors], largest=0, axis=1, outputs=2)
    table = np.asarray(model.dist_matrix_, F)
    paths = op.Add(op.Gather(op.const(table), at, axis=0), op.Unsqueeze(near, [2]))
    shortest = op.ReduceMin(paths, [1], keepdims=0)
    gram = op.Mul(op.Mul(shortest, shortest), F(-0.5))
    return {"transform": methods(op, model.kernel_pca_, gram, "kernel_pca_")["transform"]}


@importer("sklearn.manifold.LocallyLinearEmbedding")
def locally_linear_embedding(op, model, x):
    count = model.n_neighbors
    if count > 12:
        raise refuse(f"a LocallyLinearEmbedding over {count} neighbours; 12 are the most")
    y = double(op, x)
    fit = np.asarray(model.nbrs_._fit_X, F)
    d = distances(op, y, fit, "euclidean")
    _, at = op.TopK(d, [count], largest=0, axis=1, outputs=2)
    c = op.Sub(op.Gather(op.const(fit), at, axis=0), op.Unsqueeze(y, [1]))
    gram = op.MatMul(c, op.Transpose(c, perm=[0, 2, 1]))
    trace = op.ReduceSum(op.Mul(gram, np.eye(count)[None]), [1, 2], keepdims=1)
    reg = op.Where(op.Greater(trace, F(0)), op.Mul(trace, F(model.reg)), F(model.reg))
    weights = _solved(op, op.Add(gram, op.Mul(reg, np.eye(count)[None])), count)
    weights = op.Div(weights, op.ReduceSum(weights, [1], keepdims=1))
    table = op.Gather(op.const(np.asarray(model.embedding_, F)), at, axis=0)
    return {"transform": op.ReduceSum(op.Mul(table, op.Unsqueeze(weights, [2])), [1], keepdims=0)}


def _solved(op, gram, n: int) -> ir.Value:
    """The solution of `gram @ w = 1` for positive definite matrices, by elimination: [rows, n]."""
    a = [[op.Squeeze(op.Slice(op.Slice(gram, [i], [i + 1], [1]), [j], [j + 1], [2]), [2])
          for j in range(n)] for i in range(n)]  # fmt: skip
    one = op.Add(op.Mul(a[0][0], F(0)), F(1))
    b: list[Any] = [one] * n
    for k in range(n):
        for i in range(k + 1, n):
            factor = op.Div(a[i][k], a[k][k])
            for j in range(k + 1, n):
                a[i][j] = op.Sub(a[i][j], op.Mul(factor, a[k][j]))
            b[i] = op.Sub(b[i], op.Mul(factor, b[k]))
    w: list[Any] = [None] * n
    for i in reversed(range(n)):
        total = b[i]
        for j in range(i + 1, n):
            total = op.Sub(total, op.Mul(a[i][j], w[j]))
        w[i] = op.Div(total, a[i][i])
    return op.Concat(*w, axis=1)


# -- selection ------------------------------------------------------------------------------------

SELECTORS = [
    "GenericUnivariateSelect", "SelectFdr", "SelectFpr", "SelectFromModel", "SelectFwe",
    "SelectKBest", "SelectPercentile", "SequentialFeatureSelector", "VarianceThreshold",
]  # fmt: skip


@importer(*(f"sklearn.feature_selection.{n}" for n in SELECTORS), columns=True)
def selector(op, model, x):
    which = np.flatnonzero(model.get_support())
    if not len(which):
        raise refuse("a selection of no column at all")
    return {"transform": select(op, x, which)}


@importer("sklearn.feature_selection.RFE", "sklearn.feature_selection.RFECV", columns=True)
def recursive_feature_elimination(op, model, x):
    chosen = select(op, x, np.flatnonzero(model.get_support()))
    result = methods(op, model.estimator_, chosen, "estimator_")
    return {**result, "transform": chosen}


@importer("sklearn.feature_extraction.text.TfidfTransformer")
def tfidf_transformer(op, model, x):
    y = double(op, x)
    if model.sublinear_tf:
        zero = op.Equal(y, F(0))
        y = op.Where(zero, F(0), op.Add(op.Log(op.Where(zero, F(1), y)), F(1)))
    if hasattr(model, "idf_") and model.use_idf:
        y = op.Mul(y, np.asarray(model.idf_, F)[None])
    if model.norm == "l2":
        size = op.Sqrt(op.ReduceSum(op.Mul(y, y), [1], keepdims=1))
    elif model.norm == "l1":
        size = op.ReduceSum(op.Abs(y), [1], keepdims=1)
    else:
        return {"transform": op.cast(y, DOUBLE)}
    return {"transform": op.Div(y, op.Where(op.Equal(size, F(0)), F(1), size))}
