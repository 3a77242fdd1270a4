"""Small functions of tensorflow: one or a few operators of TensorFlow Lite each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla

IMAGE = (1, 8, 8, 4)


def weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32) / 2


def _unary(function: Callable[..., Any]) -> tuple[Callable[..., Any], list[tuple[int, ...]]]:
    return function, [(2, 5)]


def _image(function: Callable[..., Any]) -> tuple[Callable[..., Any], list[tuple[int, ...]]]:
    return function, [IMAGE]


def _looped(x: Any) -> Any:
    def goes(i: Any, y: Any) -> Any:
        return (i < 3) & (tf.reduce_sum(y) < 100.0)

    return tf.while_loop(goes, lambda i, y: (i + 1, y * 2.0 + 1.0), (tf.constant(0), x))[1]


def _branched(x: Any) -> Any:
    return tf.cond(tf.reduce_sum(x) > 0, lambda: x * 2.0, lambda: tf.nn.relu(x) - 1.0)


def _branched_integers(x: Any) -> Any:
    def whole(sign: float) -> Any:
        return lambda: tf.cast(x * sign * 9.0, tf.int32)

    return tf.cond(tf.reduce_sum(x) > 0, whole(1.0), whole(-1.0)) // 4


# name -> (function, shapes of its inputs)
FUNCTIONS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    **{
        f.__name__: _unary(f)
        for f in (
            *(tf.abs, tf.math.ceil, tf.cos, tf.exp, tf.floor, tf.math.negative, tf.nn.relu),
            *(tf.nn.relu6, tf.round, tf.sign, tf.sin, tf.tanh, tf.nn.elu, tf.nn.gelu, tf.square),
            *(tf.sigmoid, tf.nn.softmax, tf.nn.log_softmax, tf.nn.leaky_relu, tf.zeros_like),
        )
    },
    "sqrt": _unary(lambda x: tf.sqrt(tf.abs(x))),
    "rsqrt": _unary(lambda x: tf.math.rsqrt(tf.abs(x) + 1.0)),
    "log": _unary(lambda x: tf.math.log(tf.abs(x) + 0.5)),
    "pow": _unary(lambda x: tf.pow(tf.abs(x), 1.5)),
    "broadcast arithmetic": (lambda a, b: (a + b) * a - b / (tf.abs(a) + 1), [(2, 3, 4), (3, 1)]),
    "maximum and minimum": (lambda a, b: tf.maximum(a, b) + tf.minimum(a, 0.5), [(2, 3), (3,)]),
    "squared difference": (tf.math.squared_difference, [(2, 3), (2, 3)]),
    "floor division": (lambda a, b: tf.math.floordiv(a, b) + tf.math.floormod(a, b), [(9,), (9,)]),
    "comparisons": (lambda a, b: tf.where((a > b) & ~(a <= 0) | (a != b), a, b), [(2, 5), (2, 5)]),
    "where": _unary(lambda x: tf.where(tf.equal(tf.round(x), 0.0), 1.0, x)),
    "cast": _unary(lambda x: tf.cast(tf.cast(x, tf.int32), tf.float32)),
    "l2 normalize": _unary(lambda x: tf.math.l2_normalize(x, -1)),
    "conv same": _image(lambda x: tf.nn.conv2d(x, weights(3, 3, 4, 6), 1, "SAME")),
    "conv strided": _image(lambda x: tf.nn.relu(tf.nn.conv2d(x, weights(3, 3, 4, 6), 2, "SAME"))),
    "conv valid": _image(lambda x: tf.nn.conv2d(x, weights(3, 2, 4, 6), [1, 2], "VALID") + 1.0),
    "conv dilated": _image(
        lambda x: tf.nn.conv2d(x, weights(3, 3, 4, 2), 1, "SAME", dilations=2)
    ),
    "conv grouped": _image(lambda x: tf.nn.conv2d(x, weights(3, 3, 2, 6), 1, "SAME")),
    "conv of one axis": (lambda x: tf.nn.conv1d(x, weights(3, 4, 5), 1, "SAME"), [(2, 9, 4)]),
    "depthwise": _image(
        lambda x: tf.nn.relu6(tf.nn.depthwise_conv2d(x, weights(3, 3, 4, 2), [1, 2, 2, 1], "SAME"))
    ),
    "transposed conv": _image(
        lambda x: tf.nn.conv2d_transpose(x, weights(3, 3, 6, 4), (1, 16, 16, 6), 2, "SAME")
    ),
    "transposed conv valid": _image(
        lambda x: tf.nn.conv2d_transpose(x, weights(2, 2, 6, 4), (1, 16, 16, 6), 2, "VALID")
    ),
    "pools": _image(
        lambda x: tf.concat(
            [tf.nn.max_pool2d(x, 3, 2, "SAME"), tf.nn.avg_pool2d(x, 3, 2, "SAME")], -1
        )
    ),
    "dense": (lambda x: tf.nn.relu(x @ weights(5, 7) + weights(7)), [(2, 5)]),
    "product of two matrices": (lambda a, b: tf.matmul(a, b, transpose_b=True), [(3, 5), (4, 5)]),
    "dense of three axes": (lambda x: tf.tensordot(x, weights(5, 7), 1), [(2, 3, 5)]),
    "batch matmul": (lambda a, b: tf.matmul(a, b, transpose_b=True), [(2, 3, 5), (2, 4, 5)]),
    "resize bilinear": _image(lambda x: tf.image.resize(x, (12, 16))),
    "resize nearest": _image(lambda x: tf.image.resize(x, (16, 16), "nearest")),
    "resize corners": _image(
        lambda x: tf.compat.v1.image.resize_bilinear(x, (15, 15), align_corners=True)
    ),
    "depth to space": _image(lambda x: tf.nn.depth_to_space(x, 2)),
    "space to depth": _image(lambda x: tf.nn.space_to_depth(x, 2)),
    "space to batch": _image(lambda x: tf.space_to_batch(x, [2, 2], [[1, 1], [0, 0]])),
    "batch to space": (lambda x: tf.batch_to_space(x, [2, 2], [[0, 1], [1, 0]]), [(4, 3, 3, 2)]),
    "local response": _image(lambda x: tf.nn.local_response_normalization(x, 2, 1.0, 0.1, 0.5)),
    "reshape and transpose": (
        lambda x: tf.transpose(tf.reshape(x, (4, 3, 2)), (2, 0, 1)), [(2, 3, 4)],
    ),
    "slices": (lambda x: x[:, 1:-1, ::2] + x[:, :1, :2], [(2, 5, 4)]),
    "slices backwards": (lambda x: x[::-1, 0, -3:], [(2, 5, 4)]),
    "slice": (lambda x: tf.slice(x, [0, 1, 0], [2, 2, -1]), [(2, 5, 4)]),
    "stack": (lambda a, b: tf.stack([a, b], 1), [(2, 3), (2, 3)]),
    "unstack": (lambda x: tf.unstack(x, axis=1)[1], [(2, 3, 4)]),
    "split": (lambda x: tf.split(x, 2, -1)[1] * 2, [(2, 6)]),
    "split sizes": (lambda x: tf.concat(tf.split(x, [1, 2, 3], 1)[::-1], 1), [(2, 6)]),
    "gather": (lambda x: tf.gather(x, [2, 0], axis=1), [(2, 3, 4)]),
    "gather nd": (lambda x: tf.gather_nd(x, [[0, 1], [1, 2]]), [(2, 3, 4)]),
    "pad": (lambda x: tf.pad(x, [[0, 1], [2, 0]], constant_values=3.0), [(2, 3)]),
    "mirror pad": (lambda x: tf.pad(x, [[0, 0], [2, 1]], "REFLECT"), [(2, 4)]),
    "tile": (lambda x: tf.tile(x, [2, 3]), [(2, 3)]),
    "broadcast to": (lambda x: tf.broadcast_to(x, (4, 2, 3)), [(2, 3)]),
    "reductions": (
        lambda x: tf.reduce_sum(x, 1) + tf.reduce_mean(x, [1]) - tf.reduce_max(x, -2), [(2, 3, 4)],
    ),
    "product": (lambda x: tf.reduce_prod(x, 0, keepdims=True) + tf.reduce_min(x), [(2, 3)]),
    "any and all": (lambda x: tf.reduce_any(x > 0, 1) & tf.reduce_all(x > -3, 1), [(2, 9)]),
    "arg max": (lambda x: tf.argmax(x, -1) + tf.argmin(x, -1), [(3, 7)]),
    "top k": (lambda x: tf.math.top_k(x, 3).values, [(2, 9)]),
    "cumulative sum": (lambda x: tf.cumsum(x, 1, exclusive=True), [(2, 5)]),
    "reverse": (lambda x: tf.reverse(x, [1]), [(2, 3)]),
    "one hot": (lambda x: tf.one_hot(tf.argmax(x, -1), 4), [(3, 4)]),
    "one hot of negatives": (lambda x: tf.one_hot(tf.cast(x * 3, tf.int32), 4), [(4, 6)]),
    "scattered rows": (lambda x: tf.scatter_nd([[0], [2]], x + 1.0, [5, 6]), [(2, 6)]),
    "threshold": (lambda x: tf.where(tf.sigmoid(x) > 0.3, x, -x), [(30, 20)]),
    "turned around": (lambda x: tf.reverse(tf.tanh(x), [1]), [(4, 6)]),
    "branches of integers": (_branched_integers, [(4, 6)]),
    "loop": (_looped, [(2, 3)]),
    "branches": (_branched, [(2, 3)]),
    "atan2": (tf.math.atan2, [(2, 5), (2, 5)]),
    "segments": (lambda x: tf.math.segment_sum(x, [0, 0, 1]), [(3, 4)]),
    "unsorted segments": (
        lambda x: tf.concat(
            [
                f(x, [2, 0, 2, -1], 4)
                for f in (tf.math.unsorted_segment_sum, tf.math.unsorted_segment_prod)
            ], 0,
        ), [(4, 3)],
    ),
    "extremes of segments": (
        lambda x: [
            tf.math.unsorted_segment_max(x, [1, 0, 1], 3),
            tf.math.unsorted_segment_min(x, [0, 0, -1], 3),
        ], [(3, 4)],
    ),
    "reverse sequence": (
        lambda x: tf.reverse_sequence(x, [2, 4, 1], seq_axis=2, batch_axis=1), [(2, 3, 4, 2)],
    ),
    "matrix diagonal": (lambda x: tf.linalg.diag(x), [(2, 3)]),
    "set diagonal": (lambda x, d: tf.linalg.set_diag(x, d), [(2, 3, 4), (2, 3)]),
    "dynamic update": (
        lambda x, y: xla.dynamic_update_slice(x, y, [1, 3, 0]), [(4, 5, 2), (2, 3, 2)],
    ),
    "dynamic update of all": (
        lambda x, y: xla.dynamic_update_slice(x, y, [1, 3]), [(4, 5), (4, 5)],
    ),
    "bucketize": _unary(lambda x: tf.raw_ops.Bucketize(input=x, boundaries=[-1.0, 0.0, 0.5])),
    "bitwise xor": _unary(
        lambda x: tf.bitwise.bitwise_xor(tf.cast(x * 9, tf.int32), tf.constant(5))
    ),
    "broadcast shapes": (
        lambda x, y: tf.fill(
            tf.broadcast_dynamic_shape(tf.shape(tf.unique(x)[0])[:, None][0], tf.shape(y)), 2.0
        ), [(1,), (3, 4)],
    ),
    "unique": (lambda x: list(tf.unique(tf.cast(x, tf.int32))), [(9,)]),
    "sparse to dense": (
        lambda x: tf.compat.v1.sparse_to_dense([[0, 1], [1, 0]], [2, 3], x, 7.0), [(2,)],
    ),
    "suppression": (
        lambda b, s: tf.image.non_max_suppression_padded(
            tf.concat([b, b + 0.7], 1), s, 4, 0.5, -0.3, pad_to_max_output_size=True
        ), [(9, 2), (9,)],
    ),
    "suppression with scores": (
        lambda b, s: tf.raw_ops.NonMaxSuppressionV5(
            boxes=tf.concat([b, b + 0.7], 1), scores=s, max_output_size=5, iou_threshold=0.5,
            score_threshold=-0.3, soft_nms_sigma=0.0, pad_to_max_output_size=True,
        ), [(9, 2), (9,)],
    ),
    "spectrum": (lambda x: tf.abs(tf.signal.rfft(x, [16])), [(3, 12)]),
    "parts of a spectrum": (
        lambda x: (tf.math.real(tf.signal.rfft2d(x)), tf.math.imag(tf.signal.rfft2d(x))), [(4, 8)],
    ),
    "frames of sound": (lambda x: tf.abs(tf.signal.stft(x, 16, 8, fft_length=16)), [(1, 64)]),
    "transposed conv of volumes": (
        lambda x: tf.nn.conv3d_transpose(
            x, weights(2, 3, 2, 4, 3), [1, 6, 8, 9, 4], [1, 2, 2, 2, 1], "SAME"
        ), [(1, 3, 4, 5, 3)],
    ),
    "right shift": (
        lambda x: tf.bitwise.right_shift(tf.cast(x * 2.0**20, tf.int32), [2, 0, 31, 1, 7]),
        [(4, 5)],
    ),
    "bits": _unary(lambda x: tf.bitcast(x, tf.int32)),
    "symmetric padding": (lambda x: tf.pad(x, [[2, 1], [0, 3]], "SYMMETRIC"), [(3, 4)]),
    "gather in groups": (
        lambda x: tf.gather(x, [[0, 2, 2], [1, 0, 3]], batch_dims=1, axis=2), [(2, 3, 4, 2)],
    ),
    "matrices of places": (
        lambda x: tf.gather(x, [[[0, 2], [1, 0]], [[1, 1], [2, 0]]], batch_dims=1), [(2, 3, 4)],
    ),
    "expand and squeeze": (lambda x: tf.squeeze(tf.expand_dims(x, 1), [1]) + 1.0, [(2, 3)]),
    "group of images": _image(
        lambda x: tf.reduce_mean(
            tf.nn.relu(tf.nn.conv2d(x, weights(3, 3, 4, 4), 1, "SAME") + x), [1, 2]
        )
    ),
}  # fmt: skip


def converted(
    function: Callable[..., Any], shapes: list[tuple[int, ...]], **settings: Any
) -> bytes:
    """A file, by tensorflow's converter; `quantize` as in `sardonyx.to_tflite`."""
    quantize = settings.get("quantize")
    specs = [tf.TensorSpec(s, tf.float32, name=f"input_{i}") for i, s in enumerate(shapes)]
    traced = tf.function(function, autograph=False).get_concrete_function(*specs)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([traced], tf.Module())
    if quantize is not None:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if quantize == "float16":
        converter.target_spec.supported_types = [tf.float16]
    if quantize in ("int8", "all int8", "int16"):
        rng = np.random.default_rng(0)
        rows = [[rng.normal(size=s).astype(np.float32) for s in shapes] for _ in range(16)]
        converter.representative_dataset = lambda: iter(rows)
    if quantize == "all int8":
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.inference_input_type = converter.inference_output_type = tf.int8
    if quantize == "int16":
        sets = tf.lite.OpsSet
        converter.target_spec.supported_ops = [
            sets.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8,
            sets.TFLITE_BUILTINS,
        ]
    return converter.convert()
