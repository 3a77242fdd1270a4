"""Support vector machines."""

from __future__ import annotations

import itertools

import numpy as np

from sardonyx.lower.driver import lowering
from sardonyx.lower.traditionalml.score import (
    FLOAT32,
    ML,
    constant,
    labels,
    rows,
    transformed,
    two_sided,
)


def kernel(xp, x, vectors, kind, parameters):
    """The kernel of each row with each of `vectors`: [N, vectors]."""
    gamma, coef0, degree = parameters or (0.0, 0.0, 0.0)
    if kind == "RBF":
        difference = xp.expand_dims(x, (1,)) - constant(xp, vectors[None], x)
        return xp.exp(xp.sum(difference * difference, 2) * -float(gamma))
    product = xp.matmul(x, constant(xp, vectors.T, x))
    if kind == "LINEAR":
        return product
    product = product * float(gamma) + float(coef0)
    return (
        xp.tanh(product)
        if kind == "SIGMOID"
        else xp.power(product, xp.scalar(int(degree), product))
    )


@lowering("SVMRegressor", domain=ML)
def svm_regressor(
    xp,
    x,
    *,
    coefficients,
    kernel_params,
    kernel_type,
    n_supports,
    one_class,
    post_transform,
    rho,
    support_vectors,
):
    x = rows(xp, x)
    weights = np.array(coefficients).reshape(-1, 1)
    if n_supports:
        vectors = np.array(support_vectors).reshape(n_supports, -1)
        x = kernel(xp, x, vectors, kernel_type, kernel_params)
    scores = xp.matmul(x, constant(xp, weights, x)) + float(rho[0])
    if one_class:
        scores = xp.where(
            xp.greater(scores, xp.scalar(0, scores)), xp.scalar(1, scores), xp.scalar(-1, scores)
        )
    return xp.cast(transformed(xp, scores, post_transform), FLOAT32)


@lowering("SVMClassifier", domain=ML)
def svm_classifier(
    xp,
    x,
    *,
    classlabels_ints,
    classlabels_strings,
    coefficients,
    kernel_params,
    kernel_type,
    post_transform,
    prob_a,
    prob_b,
    rho,
    support_vectors,
    vectors_per_class,
):
    x = rows(xp, x)
    classes = max(len(classlabels_ints or classlabels_strings or ()), 1)
    votes = None
    if sum(vectors_per_class or ()):
        starts = np.concatenate([[0], np.cumsum(vectors_per_class)])
        vectors = np.array(support_vectors).reshape(starts[-1], -1)
        weights = between_classes(np.array(coefficients).reshape(-1, starts[-1]), starts)
        products = kernel(xp, x, vectors, kernel_type, kernel_params)
        scores = xp.matmul(products, constant(xp, weights, x)) + constant(xp, rho, x)
        votes = counted(xp, scores, classes)
        if prob_a:
            scores = coupled(xp, scores, prob_a, prob_b, classes)
    else:
        weights = np.array(coefficients).reshape(classes, -1)
        scores = xp.matmul(x, constant(xp, weights.T, x)) + float(rho[0])
    winner = xp.argmax(scores if votes is None else votes, 1)
    if len(rho) == 1 and classes == 2 and xp.shape(scores)[1] == 1:
        scores = two_sided(xp, scores, post_transform, mixed=post_transform == "NONE")
    else:
        scores = transformed(xp, scores, post_transform)
    return labels(xp, winner, classlabels_ints, classlabels_strings), xp.cast(scores, FLOAT32)


def between_classes(coefficients, starts):
    """A column of weights over all support vectors for each pair of classes."""
    columns = []
    for i, j in itertools.combinations(range(len(starts) - 1), 2):
        column = np.zeros(starts[-1])
        column[starts[i] : starts[i + 1]] = coefficients[j - 1, starts[i] : starts[i + 1]]
        column[starts[j] : starts[j + 1]] = coefficients[i, starts[j] : starts[j + 1]]
        columns.append(column)
    return np.stack(columns, 1)


def counted(xp, scores, classes):
    """How many duels each class wins."""
    first, second = np.zeros((2, xp.shape(scores)[1], classes))
    for duel, (i, j) in enumerate(itertools.combinations(range(classes), 2)):
        first[duel, i] = second[duel, j] = 1
    won = xp.cast(xp.greater(scores, xp.scalar(0, scores)), xp.dtype(scores))
    return xp.matmul(won, constant(xp, first, scores)) + xp.matmul(
        1 - won, constant(xp, second, scores)
    )


def coupled(xp, scores, prob_a, prob_b, classes):
    """Probabilities of classes from those of duels, by the iteration of Wu, Lin and Weng (2004).

    It stops as libsvm's does, at an error of 0.005 over the number of classes: rows that are there
    keep what they have while others go on.
    """
    duel = xp.sigmoid(
        xp.negative(scores * constant(xp, prob_a, scores) + constant(xp, prob_b, scores))
    )
    duel = xp.clip(duel, xp.scalar(1e-7, duel), xp.scalar(1 - 1e-7, duel))
    q = quadratic(xp, duel, classes)
    p = xp.full((xp.shape(scores)[0], classes), 1 / classes, xp.dtype(scores))
    one = np.eye(classes)
    for _ in range(max(100, classes)):
        qp = xp.sum(q * xp.expand_dims(p, (1,)), 2)
        error = xp.max(xp.abs(qp - xp.sum(p * qp, 1, True)), 1, True)
        unfinished = xp.greater_equal(error, xp.scalar(0.005 / classes, error))
        p = xp.where(unfinished, swept(xp, p, q, qp, one), p)
    return p


def swept(xp, p, q, qp, one):
    """One pass of the iteration over the classes."""
    pqp = xp.sum(p * qp, 1, True)
    for t in range(len(one)):
        row = xp.squeeze(xp.index(q, 1, t, t + 1), (1,))
        diagonal, here = xp.index(row, 1, t, t + 1), xp.index(qp, 1, t, t + 1)
        step = (pqp - here) / diagonal
        pqp = (pqp + step * (step * diagonal + 2 * here)) / ((1 + step) * (1 + step))
        qp = (qp + step * row) / (1 + step)
        p = (p + step * constant(xp, one[t : t + 1], p)) / (1 + step)
    return p


def quadratic(xp, duel, classes):
    """The matrix [N, C, C] whose quadratic form the probabilities minimize."""
    pairs = list(itertools.combinations(range(classes), 2))
    wins = np.zeros((len(pairs), classes * classes))
    losses = np.zeros((len(pairs), classes * classes))
    for k, (i, j) in enumerate(pairs):
        wins[k, i * classes + j] = losses[k, j * classes + i] = 1
    flat = xp.matmul(duel, constant(xp, wins, duel)) + xp.matmul(
        1 - duel, constant(xp, losses, duel)
    )
    r = xp.reshape(flat, (xp.shape(duel)[0], classes, classes))
    turned = xp.transpose(r, (0, 2, 1))
    diagonal = xp.expand_dims(xp.sum(turned * turned, 2), (2,)) * constant(
        xp, np.eye(classes), duel
    )
    return diagonal - turned * r
