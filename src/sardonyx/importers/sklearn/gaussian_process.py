"""Gaussian processes and their kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.importers.rules import importer
from sardonyx.importers.sklearn.driver import methods, refuse
from sardonyx.importers.sklearn.kernel import pairwise_kernel, power, squared
from sardonyx.importers.sklearn.labels import pair, picked
from sardonyx.importers.sklearn.table import INT64, double
from sardonyx.importers.special import erf

F = np.float64


def kernel_values(op, kernel: Any, x: ir.Value, y: np.ndarray) -> ir.Value:
    """k(x, y) for the rows of x and the rows of y, which are training points."""
    name = type(kernel).__name__
    if name in ("Sum", "Product"):
        parts = [kernel_values(op, k, x, y) for k in (kernel.k1, kernel.k2)]
        return op.Add(*parts) if name == "Sum" else op.Mul(*parts)
    if name == "Exponentiation":
        return power(op, kernel_values(op, kernel.kernel, x, y), float(kernel.exponent))
    rule = KERNELS.get(name)
    if rule is None:
        raise refuse(f"the kernel {name}")
    return rule(op, kernel, x, y)


def _constant(op, kernel, x, y):
    zero = op.MatMul(op.Mul(op.Slice(x, [0], [1], [1]), F(0)), np.zeros((1, len(y))))
    return op.Add(zero, F(kernel.constant_value))


def _white(op, kernel, x, y):
    return op.MatMul(op.Mul(op.Slice(x, [0], [1], [1]), F(0)), np.zeros((1, len(y))))


def _scaled(op, kernel, x, y):
    scale = np.broadcast_to(np.asarray(kernel.length_scale, F), y.shape[1:])
    return op.Div(x, scale.copy()[None]), y / scale


def _rbf(op, kernel, x, y):
    return op.Exp(op.Mul(squared(op, *_scaled(op, kernel, x, y)), F(-0.5)))


def _matern(op, kernel, x, y):
    if kernel.nu == np.inf:
        return _rbf(op, kernel, x, y)
    d = op.Sqrt(squared(op, *_scaled(op, kernel, x, y)))
    if kernel.nu == 0.5:
        return op.Exp(op.Neg(d))
    if kernel.nu == 1.5:
        k = op.Mul(d, F(np.sqrt(3)))
        return op.Mul(op.Add(k, F(1)), op.Exp(op.Neg(k)))
    if kernel.nu == 2.5:
        k = op.Mul(d, F(np.sqrt(5)))
        polynomial = op.Add(op.Add(k, F(1)), op.Div(op.Mul(k, k), F(3)))
        return op.Mul(polynomial, op.Exp(op.Neg(k)))
    raise refuse(f"the Matern kernel with nu={kernel.nu}, which needs Bessel functions")


def _rational_quadratic(op, kernel, x, y):
    d = squared(op, x, y)
    base = op.Add(op.Div(d, F(2 * kernel.alpha * kernel.length_scale**2)), F(1))
    return op.Pow(base, F(-kernel.alpha))


def _exp_sine_squared(op, kernel, x, y):
    d = op.Sqrt(squared(op, x, y))
    wave = op.Div(op.Sin(op.Mul(d, F(np.pi / kernel.periodicity))), F(kernel.length_scale))
    return op.Exp(op.Mul(op.Mul(wave, wave), F(-2)))


def _dot_product(op, kernel, x, y):
    return op.Add(op.MatMul(x, np.ascontiguousarray(y.T)), F(kernel.sigma_0**2))


def _pairwise(op, kernel, x, y):
    if kernel.pairwise_kernels_kwargs:
        raise refuse("a PairwiseKernel with settings of its own")
    names = ("laplacian", "rbf", "poly", "polynomial", "sigmoid", "chi2")
    gamma = kernel.gamma if kernel.metric in names else None
    return pairwise_kernel(op, x, y, kernel.metric, gamma)


KERNELS = {
    "ConstantKernel": _constant,
    "DotProduct": _dot_product,
    "ExpSineSquared": _exp_sine_squared,
    "Matern": _matern,
    "PairwiseKernel": _pairwise,
    "RBF": _rbf,
    "RationalQuadratic": _rational_quadratic,
    "WhiteKernel": _white,
}


def kernel_diagonal(op, kernel: Any, x: ir.Value) -> ir.Value:
    """k(x, x) for each row, of shape [rows, 1]."""
    name = type(kernel).__name__
    zero = op.Mul(op.Slice(x, [0], [1], [1]), F(0))
    if name in ("Sum", "Product"):
        parts = [kernel_diagonal(op, k, x) for k in (kernel.k1, kernel.k2)]
        return op.Add(*parts) if name == "Sum" else op.Mul(*parts)
    if name == "Exponentiation":
        return power(op, kernel_diagonal(op, kernel.kernel, x), float(kernel.exponent))
    if name == "ConstantKernel":
        return op.Add(zero, F(kernel.constant_value))
    if name == "WhiteKernel":
        return op.Add(zero, F(kernel.noise_level))
    if name == "DotProduct":
        return op.Add(op.ReduceSum(op.Mul(x, x), [1], keepdims=1), F(kernel.sigma_0**2))
    if name == "PairwiseKernel" and kernel.metric not in ("rbf", "laplacian"):
        raise refuse(f"the kernel {name}")
    return op.Add(zero, F(1))


@importer("sklearn.gaussian_process.GaussianProcessRegressor")
def gaussian_process_regressor(op, model, x):
    if not hasattr(model, "X_train_"):
        raise refuse("a Gaussian process without training points")
    alpha = np.asarray(model.alpha_, F)
    k = kernel_values(op, model.kernel_, double(op, x), np.asarray(model.X_train_, F))
    y = op.MatMul(k, alpha.reshape(len(alpha), -1).copy())
    y = op.Add(
        op.Mul(y, np.atleast_1d(np.asarray(model._y_train_std, F))[None]),
        np.atleast_1d(np.asarray(model._y_train_mean, F))[None],
    )
    return {"predict": op.Squeeze(y, [1]) if y.shape[1] == 1 else y}


@importer("sklearn.gaussian_process.GaussianProcessClassifier")
def gaussian_process_classifier(op, model, x):
    inner = model.base_estimator_
    if type(inner).__name__ == "_BinaryGaussianProcessClassifierLaplace":
        return _laplace(op, inner, double(op, x))
    return methods(op, inner, x, "base_estimator_")


@importer("sklearn.gaussian_process._BinaryGaussianProcessClassifierLaplace")
def laplace(op, model, x):
    return _laplace(op, model, double(op, x))


LAMBDAS = np.array([0.41, 0.4, 0.37, 0.44, 0.39])
COEFS = np.array([-1854.8214151, 3516.89893646, 221.29346712, 128.12323805, -2010.49422654])


def _laplace(op, model, x):
    k = kernel_values(op, model.kernel_, x, np.asarray(model.X_train_, F))
    mean = op.MatMul(k, (np.asarray(model.y_train_, F) - model.pi_).reshape(-1, 1))
    label = op.Cast(op.Greater(op.Squeeze(mean, [1]), F(0)), to=int(INT64))
    inverse = np.linalg.inv(np.asarray(model.L_, F))
    v = op.MatMul(k, np.ascontiguousarray((inverse * np.asarray(model.W_sr_, F)[None]).T))
    variance = op.Sub(
        kernel_diagonal(op, model.kernel_, x), op.ReduceSum(op.Mul(v, v), [1], keepdims=1)
    )
    alpha = op.Div(F(1), op.Mul(variance, F(2)))
    gamma = op.Mul(mean, LAMBDAS[None])
    inner = op.Mul(gamma, op.Sqrt(op.Div(alpha, op.Add(alpha, (LAMBDAS**2)[None]))))
    scale = op.Div(
        op.Sqrt(op.Div(F(np.pi), alpha)), op.Mul(op.Sqrt(op.Mul(variance, F(2 * np.pi))), F(2))
    )
    integrals = op.Mul(scale, erf(op, inner))
    p = op.Add(op.MatMul(integrals, COEFS[:, None]), F(0.5 * COEFS.sum()))
    return {
        "predict": picked(op, model.classes_, label),
        "predict_proba": pair(op, op.Squeeze(p, [1])),
    }
