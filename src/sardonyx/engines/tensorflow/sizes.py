"""Sizes that tensorflow only knows while running: scalars of its graph, made where first needed."""

from __future__ import annotations

import functools
import operator

import numpy as np

from sardonyx.errors import MissingExtra
from sardonyx.lower.sizes import ORDERS, Order
from sardonyx.lower.xp import NotStatic

try:
    import tensorflow as tf
except ImportError as error:
    raise MissingExtra("tensorflow", "tensorflow") from error


class Dim:
    """A size that is only known while running: a scalar tensor, made where it is first needed.

    least -- a number that it is never below, if one is known
    whole -- the sizes of the tensor that it is of, and a function that gives them as a vector
    """

    __slots__ = ("_make", "_value", "graph", "least", "whole")

    def __init__(self, make, least=None, graph=None, whole=None):
        self._make = make
        self._value = None
        self.graph = graph or tf.compat.v1.get_default_graph()
        self.least = least
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

    __index__ = __int__

    def __add__(self, other):
        return combined(tf.add, operator.add, self, other)

    def __radd__(self, other):
        return combined(tf.add, operator.add, other, self)

    def __sub__(self, other):
        least = self.least - other if self.least is not None and isinstance(other, int) else None
        return combined(tf.subtract, lambda *_: least, self, other)

    def __rsub__(self, other):
        return combined(tf.subtract, None, other, self)

    def __mul__(self, other):
        if isinstance(other, int) and other == 1:
            return self
        return combined(tf.multiply, product_of_least, self, other)

    def __rmul__(self, other):
        return self * other

    def __floordiv__(self, other):
        return combined(tf.math.floordiv, zero_if_not_negative, self, other)

    def __rfloordiv__(self, other):
        return combined(tf.math.floordiv, zero_if_not_negative, other, self)

    def __mod__(self, other):
        return combined(tf.math.floormod, zero_if_not_negative, self, other)

    def __rmod__(self, other):
        return combined(tf.math.floormod, zero_if_not_negative, other, self)

    def __neg__(self):
        return Dim(lambda: -self.value)


def least(size):
    """A number that a size is never below; None if there is none."""
    return size.least if isinstance(size, Dim) else int(size)


def product_of_least(a, b):
    return a * b if a >= 0 and b >= 0 else None


def zero_if_not_negative(a, b):
    return 0 if a >= 0 and b >= 0 else None


def combined(function, bound, a, b):
    """`function` of two sizes; `bound` gives the least that it can be, from the least of both."""
    if tf.is_tensor(a) or tf.is_tensor(b):  # an array of numbers
        return function(size_tensor(a), size_tensor(b))
    bounds = least(a), least(b)
    low = None if bound is None or None in bounds else bound(*bounds)
    return Dim(lambda: function(size_tensor(a), size_tensor(b)), low)


def is_at_least(a, b):
    low = least(a)
    return low is not None and isinstance(b, int) and low >= b


def larger(a, b):
    bounds = [bound for bound in (least(a), least(b)) if bound is not None]
    return Dim(lambda: tf.maximum(size_tensor(a), size_tensor(b)), max(bounds, default=None))


ORDERS[Dim] = Order(
    larger=larger,
    smaller=lambda a, b: combined(tf.minimum, min, a, b),
    is_at_least=is_at_least,
)


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
        if size is None:
            size = Dim(lambda i=i: running()[i], 0, x.graph, (sizes, vector))
        sizes.append(size)
    x._sardonyx_dims = sizes
    return tuple(sizes)


def size_tensor(size):
    """A size as a tensor; each number is one constant of the graph that is being built."""
    if isinstance(size, Dim):
        return size.value
    return tf.cast(size, tf.int64) if tf.is_tensor(size) else remembered(int(size))


def size_tensors():
    """The tensors of sizes and shapes in the graph that is being built."""
    # An attribute of the graph: a collection would be shared with the graphs of branches and loops.
    graph = tf.compat.v1.get_default_graph()
    if not hasattr(graph, "_sardonyx_sizes"):
        graph._sardonyx_sizes = {}
    return graph._sardonyx_sizes


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
