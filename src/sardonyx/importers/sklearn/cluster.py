"""Clusterings that assign new rows."""

from __future__ import annotations

import numpy as np

from sardonyx.importers.rules import importer
from sardonyx.importers.sklearn.driver import refuse
from sardonyx.importers.sklearn.kernel import squared_by_products
from sardonyx.importers.sklearn.labels import picked
from sardonyx.importers.sklearn.table import column, double

F = np.float64
CLUSTER = "sklearn.cluster."


@importer(CLUSTER + "KMeans", CLUSTER + "MiniBatchKMeans")
def k_means(op, model, x):
    d = squared_by_products(op, double(op, x), np.asarray(model.cluster_centers_, F))
    return {"predict": op.ArgMin(d, axis=1, keepdims=0), "transform": op.Sqrt(d)}


@importer(CLUSTER + "BisectingKMeans")
def bisecting_k_means(op, model, x):
    """Rows descend the tree of centers; the leaf's label is the cluster."""
    y = double(op, x)
    mean = np.asarray(getattr(model, "_X_mean", 0.0), F)

    def label(node):
        if node.left is None:
            return np.int64(node.label)
        centers = np.stack([node.left.center, node.right.center]).astype(F) + mean
        d = squared_by_products(op, y, centers)
        left = op.LessOrEqual(op.Squeeze(column(op, d, 0), [1]), op.Squeeze(column(op, d, 1), [1]))
        return op.Where(left, label(node.left), label(node.right))

    root = model._bisecting_tree
    d = squared_by_products(op, y, np.asarray(model.cluster_centers_, F))
    out = label(root)
    if isinstance(out, np.int64):
        out = op.ArgMin(d, axis=1, keepdims=0)
    return {"predict": out, "transform": op.Sqrt(d)}


@importer(CLUSTER + "MeanShift", CLUSTER + "AffinityPropagation")
def nearest_center(op, model, x):
    centers = np.asarray(model.cluster_centers_, F)
    if not len(centers):
        raise refuse("a clustering without centers")
    d = squared_by_products(op, double(op, x), centers)
    return {"predict": op.ArgMin(d, axis=1, keepdims=0)}


@importer(CLUSTER + "Birch")
def birch(op, model, x):
    centers = np.asarray(model.subcluster_centers_, F)
    d = squared_by_products(op, double(op, x), centers)
    label = picked(op, np.asarray(model.subcluster_labels_), op.ArgMin(d, axis=1, keepdims=0))
    return {"predict": label, "transform": op.Sqrt(d)}


@importer(CLUSTER + "FeatureAgglomeration")
def feature_agglomeration(op, model, x):
    if model.pooling_func is not np.mean:
        raise refuse("a FeatureAgglomeration that does not pool by numpy.mean")
    labels = np.asarray(model.labels_)
    counts = np.bincount(labels)
    pool = (labels[:, None] == np.arange(len(counts))).astype(F)
    names = np.unique(labels)
    sums = op.MatMul(double(op, x), np.ascontiguousarray(pool[:, names]))
    return {"transform": op.Div(sums, counts[names].astype(F)[None])}
