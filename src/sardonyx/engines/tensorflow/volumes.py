"""Pools of volumes for TensorFlow Lite, which has none: a pool of images, then one of lines."""

from __future__ import annotations

import tensorflow as tf

from sardonyx.engines.tensorflow import nn


def of_volumes(pool):
    """A pool over images with channels last as one over volumes as well."""

    def apply(xp, x, **attributes):
        if x.shape.rank != 5:
            return pool(xp, x, **attributes)
        batch, depth, height, width, channels = x.shape
        y = tf.reshape(x, [batch * depth, height, width, channels])
        y = pool(xp, y, **_of_axes(attributes, [1, 2]))
        height, width = y.shape[1:3]
        y = tf.reshape(y, [batch, depth, height * width, channels])
        y = pool(xp, y, **_with_axis(_of_axes(attributes, [0])))
        return tf.reshape(y, [batch, y.shape[1], height, width, channels])

    return apply


def _of_axes(attributes, axes):
    """The settings of a pool for some of its axes."""
    chosen = dict(attributes)
    for name in ("kernel_shape", "strides", "dilations"):
        if attributes.get(name):
            chosen[name] = [attributes[name][a] for a in axes]
    if attributes.get("pads"):
        pads = list(attributes["pads"])
        chosen["pads"] = [pads[a + start] for start in (0, len(pads) // 2) for a in axes]
    return chosen


def _with_axis(attributes):
    """The settings of a pool over lines as those over images that are one pixel wide."""
    chosen = {n: [*v, 1] for n, v in attributes.items() if n in ("kernel_shape", "strides") and v}
    if attributes.get("dilations"):
        chosen["dilations"] = [*attributes["dilations"], 1]
    if attributes.get("pads"):
        before, after = attributes["pads"]
        chosen["pads"] = [before, 0, after, 0]
    return {**attributes, **chosen}


max_pool = of_volumes(nn.max_pool_last)
average_pool = of_volumes(nn.average_pool_last)
