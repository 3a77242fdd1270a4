"""Kernels for TensorFlow Lite whose operators it lacks, written with those that it has.

Inverse functions go through the angle of a point (ATAN2) and the logarithm; `log1p` keeps the
digits of small numbers.
"""

from __future__ import annotations

import math

import tensorflow as tf

from sardonyx.engines.tensorflow.lite import kernel

FAR = 1e9  # from here on, the square of a number is all that its inverse hyperbolic sine sees


def log1p(x):
    """The logarithm of 1 + x, exact to the last digits for small x."""
    one = 1.0 + x
    safe = tf.where(tf.equal(one, 1.0), 2.0 * tf.ones_like(x), one)
    return tf.where(tf.equal(one, 1.0), x, tf.math.log(one) * (x / (safe - 1.0)))


def odd(function):
    """An odd function out of its values for numbers that are not negative."""

    def apply(xp, x):
        y = function(tf.abs(x))
        return tf.where(x < 0.0, -y, y)

    return apply


@kernel("Tan")
def tan(xp, x):
    return tf.sin(x) / tf.cos(x)


@kernel("Atan")
def atan(xp, x):
    return tf.math.atan2(x, tf.ones_like(x))


@kernel("Asin")
def asin(xp, x):
    return tf.math.atan2(x, tf.sqrt((1.0 - x) * (1.0 + x)))


@kernel("Acos")
def acos(xp, x):
    return tf.math.atan2(tf.sqrt((1.0 - x) * (1.0 + x)), x)


@kernel("Cosh")
def cosh(xp, x):
    return 0.5 * tf.exp(x) + 0.5 * tf.exp(-x)


def _sinh(a):
    return -0.5 * tf.nn.elu(-a) * (tf.exp(a) + 1.0)  # ELU of negative numbers is exp(x) - 1


def _asinh(a):
    near = log1p(a + a * (a / (1.0 + tf.sqrt(a * a + 1.0))))
    return tf.where(a > FAR, tf.math.log(a) + math.log(2.0), near)


def _atanh(a):
    return 0.5 * log1p(2.0 * a / (1.0 - a))


kernel("Sinh")(odd(_sinh))
kernel("Asinh")(odd(_asinh))
kernel("Atanh")(odd(_atanh))


@kernel("Acosh")
def acosh(xp, x):
    above = x - 1.0
    near = log1p(above + tf.sqrt(above) * tf.sqrt(above + 2.0))
    return tf.where(x > FAR, tf.math.log(x) + math.log(2.0), near)


# -- integers as well ---------------------------------------------------------------


@kernel("Abs")
def absolute(xp, x):
    return tf.maximum(x, -x) if x.dtype == tf.int64 else tf.abs(x)


@kernel("Mod")
def mod(xp, x, y, *, fmod):
    if not fmod:
        return tf.math.floormod(x, y)
    rest = tf.math.floormod(absolute(xp, x), absolute(xp, y))
    return tf.where(x < tf.zeros_like(x), -rest, rest)


# Operators that move into the domain by name alone, those of the second line for all types.
MOVED = ("Tan", "Atan", "Asin", "Acos", "Cosh", "Sinh", "Asinh", "Atanh", "Acosh")
MOVED_OF_ALL_TYPES = ("Abs", "Mod")
