"""Sizes that tensorflow only knows while running: scalars of its graph, made where first needed."""

from __future__ import annotations

import functools

import numpy as np

from sardonyx.errors import MissingExtra
from sardonyx.lower.xp import NotStatic

try:
    import tensorflow as tf
except ImportError as error:
    raise MissingExtra("tensorflow", "tensorflow") from error


class Dim:
    """A size that is only known while running: a scalar tensor, made where it is first needed.

    whole -- the sizes of the tensor that it is of, and a function that gives them as a vector
    """

    __slots__ = ("_make", "_value", "graph", "whole")

    def __init__(self, make, whole=None):
        self._make = make
        self._value = None
        self.graph = tf.compat.v1.get_default_graph()
        self.whole = whole

    @property
    def value(self):
        if self._value is None:
            # in the graph around a branch or loop, even if it is first needed inside
            with self.graph.as_default():
                self._value = self._make()
        return self._value

    def __int__(self):
        raise NotStatic

    def _apply(self, function, other, swapped=False):
        pair = (other, self) if swapped else (self, other)
        if tf.is_tensor(other) and other.shape.rank != 0:  # no size, but an array of numbers
            return function(*(size_tensor(v) for v in pair))
        return Dim(lambda: function(*(size_tensor(v) for v in pair)))

    def __add__(self, other):
        return self._apply(tf.add, other)

    def __radd__(self, other):
        return self._apply(tf.add, other, True)

    def __sub__(self, other):
        return self._apply(tf.subtract, other)

    def __rsub__(self, other):
        return self._apply(tf.subtract, other, True)

    def __mul__(self, other):
        return self if isinstance(other, int) and other == 1 else self._apply(tf.multiply, other)

    def __rmul__(self, other):
        return self * other

    def __floordiv__(self, other):
        return self._apply(tf.math.floordiv, other)

    def __rfloordiv__(self, other):
        return self._apply(tf.math.floordiv, other, True)

    def __mod__(self, other):
        return self._apply(tf.math.floormod, other)

    def __neg__(self):
        return Dim(lambda: -self.value)


def dims_of(x):
    """The sizes of a tensor; those not known are `Dim`, from one look at the shape for all."""
    static = x.shape.as_list()
    annotated = getattr(x, "_sardonyx_dims", None) or [None] * len(static)

    @functools.cache
    def vector():
        with x.graph.as_default():
            return tf.shape(x, out_type=tf.int64)

    @functools.cache
    def running():
        with x.graph.as_default():
            return tf.unstack(vector(), len(static))

    sizes: list[int | Dim] = []
    for i, (size, note) in enumerate(zip(static, annotated)):
        size = note if size is None else size
        sizes.append(Dim(lambda i=i: running()[i], (sizes, vector)) if size is None else size)
    x._sardonyx_dims = sizes
    return tuple(sizes)


def size_tensor(size):
    """A size as a tensor; each number is one constant of the graph that is being built."""
    if isinstance(size, Dim):
        return size.value
    return tf.cast(size, tf.int64) if tf.is_tensor(size) else remembered(int(size))


def size_tensors():
    """The tensors of sizes and shapes in the graph that is being built."""
    tables = tf.compat.v1.get_default_graph().get_collection_ref("sardonyx")
    if not tables:
        tables.append({})
    return tables[0]


def remembered(number):
    if tf.executing_eagerly():
        return tf.constant(number, tf.int64)
    tensors = size_tensors()
    if number not in tensors:
        tensors[number] = tf.constant(number, tf.int64)
    return tensors[number]


def number(size):
    """A size as tensorflow takes it."""
    return size.value if isinstance(size, Dim) else size


def same(a, b):
    """Whether two sizes are one number."""
    return isinstance(a, (int, np.integer)) and isinstance(b, (int, np.integer)) and a == b


def numbers(sizes):
    """Several sizes as one vector; a plain list where all are known."""
    sizes = list(sizes)
    if all(isinstance(s, (int, np.integer)) for s in sizes):
        return [int(s) for s in sizes]
    for whole, vector in (s.whole for s in sizes if isinstance(s, Dim) and s.whole is not None):
        if len(whole) == len(sizes) and all(a is b or same(a, b) for a, b in zip(whole, sizes)):
            return vector()
    key = tuple(s if isinstance(s, int) else id(s) for s in sizes)
    if tf.executing_eagerly():
        return tf.stack([size_tensor(s) for s in sizes])
    tensors = size_tensors()
    if key not in tensors:
        # The sizes are kept with it, so that their ids stay in use.
        tensors[key] = (tf.stack([size_tensor(s) for s in sizes]), sizes)
    return tensors[key][0]
