"""Functions of TensorFlow of many kinds, imported and compared with TensorFlow at other sizes than
those of the import: a batch of one, sequences of one step.

    python -m tests.sweeps.tensorflow_own_functions
    python -m tests.sweeps.tensorflow_own_functions --only "loop*,scan*"
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import onnxruntime
import tensorflow as tf

import sardonyx as sx

TOLERANCE = 1e-4  # of the largest number of an output
SIZES = ((1, 1), (2, 4), (5, 7))  # of the first and of every other free axis
CASES: dict[str, tuple[Any, list[Any], dict[str, Any]]] = {}
REFUSED: set[str] = set()


def spec(*shape: int | None, dtype: Any = tf.float32) -> tf.TensorSpec:
    return tf.TensorSpec(list(shape), dtype)


def case(*specs: Any, **options: Any) -> Callable[[Any], Any]:
    """Remember a function; `high` bounds its integers, `sizes` replaces SIZES, `refused`: it is."""

    def remember(function: Any) -> Any:
        name = function.__name__.replace("_", " ")
        CASES[name] = function, list(specs), options
        if options.get("refused"):
            REFUSED.add(name)
        return function

    return remember


# -- loops and arrays of tensors -------------------------------------------------------------


@case(spec(None, 4))
def loop_of_newton(x: Any) -> Any:
    def body(i: Any, y: Any) -> Any:
        return i + 1, 0.5 * (y + (tf.abs(x) + 1) / y)

    return tf.while_loop(lambda i, y: i < 6, body, (0, tf.ones_like(x)))[1]


@case(spec(None, 3))
def loop_until_a_value(x: Any) -> Any:
    total, steps = tf.reduce_sum(tf.abs(x)) + 1.0, 0
    while total < 1000.0:
        total, steps = total * 1.7, steps + 1
    return total, steps


@case(spec(None, 3))
def loop_with_break_and_continue(x: Any) -> Any:
    total = tf.zeros([3])
    for row in x:
        if tf.reduce_sum(row) > 2.0:
            break
        if tf.reduce_sum(row) < -2.0:
            continue
        total += row
    return total


@case(spec(None, 3))
def loop_in_a_loop(x: Any) -> Any:
    result = tf.zeros([])
    for i in tf.range(tf.shape(x)[0]):
        for j in tf.range(i + 1):
            result += tf.tensordot(x[i], x[j], 1)
    return result


@case(spec(None, 4))
def arrays_written_backwards(x: Any) -> Any:
    n = tf.shape(x)[0]
    array = tf.TensorArray(tf.float32, size=n, element_shape=[4])
    for i in tf.range(n):
        array = array.write(n - 1 - i, x[i] * tf.cast(i, tf.float32))
    return array.stack()


@case(spec(None, None, 3))
def map_of_rows(x: Any) -> Any:
    return tf.map_fn(lambda row: tf.reduce_max(row, 0) - tf.reduce_mean(row, 0), x)


@case(spec(None, 3), spec(None, 3))
def map_of_pairs(x: Any, y: Any) -> Any:
    kind = (tf.float32, tf.float32)
    return tf.map_fn(lambda pair: (pair[0] * pair[1], pair[0] - pair[1]), (x, y), dtype=kind)


@case(spec(None, 3))
def scan_forwards_and_backwards(x: Any) -> Any:
    return (
        tf.scan(lambda a, row: 0.9 * a + row, x),
        tf.scan(lambda a, row: tf.maximum(a, row), x, initializer=tf.zeros([3]), reverse=True),
    )


@case(spec(None, 3))
def fold_left_and_right(x: Any) -> Any:
    return tf.foldl(lambda a, row: a * 0.5 + row, x), tf.foldr(lambda a, row: a - row, x)


@case(spec(None, 3))
def vectorized_map(x: Any) -> Any:
    return tf.vectorized_map(lambda row: tf.tensordot(row, row, 1) * tf.sin(row), x)


@case(spec(None, 4))
def branches_in_branches(x: Any) -> Any:
    total = tf.reduce_sum(x)
    if total > 1:
        y = x * 2
    elif total > -1:
        y = tf.cond(tf.reduce_max(x) > 0.5, lambda: x + 1, lambda: x - 1)
    else:
        y = -x
    return tf.switch_case(tf.shape(x)[0] % 3, [lambda: y, lambda: y * y, lambda: tf.sqrt(abs(y))])


def _lstm_step(x: Any, h: Any, c: Any, w: Any, b: Any) -> Any:
    i, j, f, o = tf.split(tf.concat([x, h], 1) @ w + b, 4, axis=1)
    c = tf.sigmoid(f + 1.0) * c + tf.sigmoid(i) * tf.tanh(j)
    return tf.sigmoid(o) * tf.tanh(c), c


@case(spec(None, None, 3))
def loop_of_a_cell(x: Any) -> Any:
    w = tf.constant(np.random.default_rng(0).normal(0, 0.4, (7, 16)), tf.float32)
    h = c = tf.zeros([tf.shape(x)[0], 4])
    steps = tf.TensorArray(tf.float32, size=tf.shape(x)[1])
    for t in tf.range(tf.shape(x)[1]):
        h, c = _lstm_step(x[:, t], h, c, w, tf.zeros([16]))
        steps = steps.write(t, h)
    return tf.transpose(steps.stack(), [1, 0, 2]), c


# -- mathematics -----------------------------------------------------------------------------


@case(spec(None, 4, 4))
def linear_algebra(x: Any) -> Any:
    a = x @ tf.transpose(x, [0, 2, 1]) + 4 * tf.eye(4)
    lower = tf.linalg.band_part(a, -1, 0)
    return (
        tf.linalg.trace(a),
        tf.linalg.diag_part(a),
        tf.linalg.set_diag(a, tf.linalg.diag_part(a) * 2),
        tf.linalg.det(a / 8),
        tf.linalg.inv(a),
        lower,
        tf.linalg.norm(a, axis=[-2, -1]),
        tf.linalg.matvec(a, x[:, 0]),
        tf.linalg.triangular_solve(lower, x),
        tf.linalg.cross(x[:, 0, :3], x[:, 1, :3]),
    )


@case(spec(None, 4, 4))
def decompositions(x: Any) -> Any:
    a = x @ tf.transpose(x, [0, 2, 1]) + 4 * tf.eye(4)
    return tf.linalg.cholesky(a), tf.linalg.solve(a, x), tf.linalg.logdet(a)


@case(spec(None, 64))
def signals(x: Any) -> Any:
    spectrum = tf.signal.stft(x, 16, 8)
    frames = tf.signal.frame(x, 16, 4, pad_end=True)
    mel = tf.signal.linear_to_mel_weight_matrix(5, 9, 16000, 80.0, 7600.0)
    return tf.abs(spectrum) @ mel, tf.signal.overlap_and_add(frames, 4), tf.signal.dct(x, 2)


@case(spec(None, 32))
def fourier(x: Any) -> Any:
    z = tf.signal.rfft(x)
    return tf.math.real(z), tf.math.angle(z + 0.1), tf.signal.irfft(z * tf.math.conj(z))


@case(spec(None, 8))
def special_functions(x: Any) -> Any:
    y = abs(x) + 0.3
    return (
        tf.math.lgamma(x * 3),
        tf.math.digamma(x * 3),
        tf.math.erf(x),
        tf.math.erfc(x),
        tf.math.xlogy(y, y),
        tf.math.bessel_i0e(x * 9),
        tf.math.bessel_i1e(x * 9),
        tf.math.bessel_i1(x),
        tf.math.ndtri(tf.sigmoid(x * 3)),
        tf.math.softplus(x),
        tf.math.log_sigmoid(x),
        tf.math.expm1(x),
        tf.math.erfinv(tf.tanh(x)),
    )


@case(spec(None, 8), refused=True)
def functions_of_two_parameters(x: Any) -> Any:
    y = abs(x) + 0.3
    return tf.math.igamma(y, y), tf.math.betainc(y, y, tf.sigmoid(x)), tf.math.zeta(y + 1.5, y)


@case(spec(None, 5, dtype=tf.int32), spec(None, 5, dtype=tf.int32))
def integers(x: Any, y: Any) -> Any:
    z = tf.where(y == 0, 3, y)
    return (
        x // z,
        x % z,
        tf.math.floormod(x, z),
        tf.truncatediv(x, z),
        tf.truncatemod(x, z),
        tf.bitwise.bitwise_xor(x, y),
        tf.bitwise.left_shift(abs(x), 2),
        tf.bitwise.invert(x),
        tf.cast(x, tf.uint8),
        tf.cast(x, tf.bool),
        tf.math.sign(x),
        tf.abs(x),
        tf.bitwise.right_shift(x, 1),
        tf.cast(tf.cast(x, tf.float32) * 0.7, tf.int64),
    )


@case(spec(None, 6))
def orders(x: Any) -> Any:
    values, places = tf.math.top_k(x, 3)
    bins = tf.searchsorted(tf.sort(x, axis=1), x, side="right")
    return (
        values,
        places,
        tf.argsort(x, direction="DESCENDING"),
        bins,
        tf.argmin(x, 1),
        tf.math.in_top_k(tf.argmax(x, 1, tf.int32), x, 2),
        tf.nn.relu6(x * 5),
    )


@case(spec(None, dtype=tf.int32), high=5)
def sets_and_segments(t: Any) -> Any:
    values, index, counts = tf.unique_with_counts(t)
    data = tf.cast(t, tf.float32)
    return (
        values,
        index,
        counts,
        tf.math.bincount(t, minlength=6, maxlength=6),
        tf.math.unsorted_segment_sum(data, t, 5),
        tf.math.segment_max(data, tf.sort(t)),
        tf.boolean_mask(t, t > 1),
        tf.where(t > 2),
        tf.math.confusion_matrix(t, t, 5),
    )


@case(spec(None, 4, 6))
def indexing(x: Any) -> Any:
    y = tf.tensor_scatter_nd_update(x, [[0, 1]], tf.ones([1, 6]))
    return (
        x[:, ::-1, 1:-1:2],
        x[..., tf.newaxis, -1],
        y,
        tf.gather(x, [2, 0], axis=1),
        tf.gather_nd(x, [[0, 1], [0, 3]]),
        tf.roll(x, [1, -2], [1, 2]),
        tf.reverse(x, [0, 2]),
        tf.pad(x, [[0, 0], [1, 2], [2, 1]], "REFLECT"),
        tf.repeat(x, [1, 0, 2, 1], axis=1),
        tf.tile(x, [1, 2, 1]),
        tf.space_to_batch(x[..., None], [2, 2], [[0, 0], [0, 0]]),
        tf.meshgrid(x[0, 0], x[0, :, 0])[1],
        tf.stack(tf.unstack(x, axis=1)[::-1], axis=2),
    )


@case(spec(None, 5), spec(None, dtype=tf.int32), high=5)
def lengths_and_masks(x: Any, lengths: Any) -> Any:
    mask = tf.sequence_mask(lengths, 5)
    return (
        tf.where(mask, x, -1e9),
        tf.reverse_sequence(x, lengths, seq_axis=1),
        tf.one_hot(lengths, 4, 2.0, -1.0),
    )


@case(spec(None, 6, dtype=tf.float64))
def doubles(x: Any) -> Any:
    return tf.nn.softmax(x), tf.math.reduce_std(x, 1), tf.math.l2_normalize(x, 1)


@case(spec(None, 6, dtype=tf.float16))
def halves(x: Any) -> Any:
    return tf.nn.gelu(x), x @ tf.transpose(x), tf.nn.log_softmax(x)


@case(spec(None, 4))
def numbers_that_are_none(x: Any) -> Any:
    y = tf.math.log(x)
    return (
        tf.math.is_nan(y),
        tf.where(tf.math.is_finite(y), y, 0.0),
        tf.math.divide_no_nan(x, x - x),
        tf.clip_by_value(y, -1.0, 1.0),
        tf.math.multiply_no_nan(y, tf.nn.relu(x)),
    )


@case(spec(None, 3))
def einsums_and_products(x: Any) -> Any:
    return (
        tf.einsum("bi,bj->bij", x, x),
        tf.einsum("bi,bi->b", x, x),
        tf.einsum("...i->...", x),
        tf.matmul(x, x, transpose_b=True),
        tf.reduce_prod(x, 1),
        tf.math.cumprod(x, 1, exclusive=True, reverse=True),
    )


# -- images and networks ---------------------------------------------------------------------


@case(spec(None, None, None, 3), sizes=((1, 8), (2, 11)))
def images(x: Any) -> Any:
    y = tf.nn.sigmoid(x)
    return (
        tf.image.resize(x, [5, 7], antialias=False),
        tf.image.resize(x, [16, 16], "nearest"),
        tf.image.rgb_to_grayscale(y),
        tf.image.adjust_contrast(y, 1.5),
        tf.image.flip_left_right(x),
        tf.image.rot90(x),
        tf.image.central_crop(x, 0.5),
        tf.image.rgb_to_hsv(y),
        tf.image.adjust_saturation(y, 0.7),
        tf.image.total_variation(x),
        tf.image.pad_to_bounding_box(x, 1, 2, 14, 15),
        tf.image.per_image_standardization(x),
        tf.image.adjust_hue(y, 0.1),
        tf.image.sobel_edges(x),
        tf.image.adjust_gamma(y, 2.2),
    )


@case(spec(None, 9, 8, 4))
def convolutions(x: Any) -> Any:
    rng = np.random.default_rng(0)
    w = tf.constant(rng.normal(size=(3, 3, 4, 6)), tf.float32)
    d = tf.constant(rng.normal(size=(3, 3, 4, 2)), tf.float32)
    return (
        tf.nn.conv2d(x, w, [1, 2, 1, 1], "SAME"),
        tf.nn.conv2d(x, w, 1, [[0, 0], [1, 2], [0, 3], [0, 0]]),
        tf.nn.conv2d(x, w, 1, "VALID", dilations=2),
        tf.nn.depthwise_conv2d(x, d, [1, 2, 2, 1], "SAME"),
        tf.nn.conv2d_transpose(x, tf.transpose(w, [0, 1, 3, 2]), [tf.shape(x)[0], 18, 16, 6], 2),
        tf.nn.max_pool2d(x, 3, 2, "SAME"),
        tf.nn.avg_pool2d(x, 3, 2, "SAME"),
        tf.nn.atrous_conv2d(x, w, 2, "SAME"),
        tf.nn.dilation2d(x, w[..., 0], [1, 1, 1, 1], "SAME", "NHWC", [1, 1, 1, 1]),
        tf.nn.lrn(x),
        tf.nn.space_to_depth(x[:, :8], 2),
        tf.image.extract_patches(x, [1, 3, 3, 1], [1, 2, 2, 1], [1, 1, 1, 1], "VALID"),
        tf.nn.moments(x, [1, 2]),
        tf.nn.with_space_to_batch(
            x, [2, 2], "VALID", lambda t, num_spatial_dims, padding: t * 2, [1, 1]
        ),
    )


@case(spec(None, 4), spec(None, 4))
def losses(x: Any, y: Any) -> Any:
    p = tf.nn.softmax(y)
    return (
        tf.nn.softmax_cross_entropy_with_logits(p, x),
        tf.nn.sigmoid_cross_entropy_with_logits(p, x),
        tf.nn.sparse_softmax_cross_entropy_with_logits(tf.argmax(y, 1), x),
        tf.nn.l2_loss(x),
        tf.nn.weighted_cross_entropy_with_logits(p, x, 2.0),
        tf.nn.log_poisson_loss(p, x),
    )


@case(spec(None, 3))
def gradients(x: Any) -> Any:
    w = tf.constant([[1.0, 2.0], [3.0, -1.0], [0.5, 0.2]])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(tf.tanh(x @ w) ** 2)
    return tape.gradient(y, x)


@case(spec(None, 4))
def gradients_of_ones_own(x: Any) -> Any:
    @tf.custom_gradient
    def clipped(x: Any) -> Any:
        return tf.clip_by_value(x, -1.0, 1.0), lambda dy: dy

    return (
        clipped(tf.recompute_grad(tf.sin)(x)),
        tf.stop_gradient(x),
        tf.grad_pass_through(tf.round)(x),
    )


@case(spec(None, 2, dtype=tf.string), texts=["a", "bc", "", "A b"])
def texts(t: Any) -> Any:
    return (
        tf.strings.lower(t),
        tf.strings.join([t, "x"]),
        tf.equal(t, "bc"),
        tf.strings.reduce_join(t, 1),
    )


# -- modules ---------------------------------------------------------------------------------


class Tables(tf.Module):
    def __init__(self) -> None:
        keys = tf.lookup.KeyValueTensorInitializer(["a", "b"], [3, 5], tf.string, tf.int64)
        self.table = tf.lookup.StaticHashTable(keys, -1)
        self.rows = tf.Variable(np.arange(12.0).reshape(6, 2), dtype=tf.float32, name="rows")

    @tf.function(input_signature=[spec(None, dtype=tf.string)])
    def __call__(self, t: Any) -> Any:
        return tf.gather(self.rows, tf.maximum(self.table.lookup(t), 0)), self.table.size()

    @tf.function(input_signature=[spec(None, 2)])
    def score(self, x: Any) -> Any:
        return {
            "scores": x @ tf.transpose(self.rows),
            "best": tf.argmax(x @ tf.transpose(self.rows), 1),
        }


@case(spec(None, dtype=tf.string), texts=["a", "b", "q"])
def module_with_a_table(t: Any) -> Any:
    return Tables()


@case(spec(None, 2), signature="score")
def saved_model_with_several_signatures(x: Any) -> Any:
    module, folder = Tables(), tempfile.mkdtemp()
    tf.saved_model.save(module, folder, signatures={"score": module.score, "look": module.__call__})
    return folder


# -- what has no form in ONNX ----------------------------------------------------------------


@case(spec(None, 3), refused=True)
def ragged_results(x: Any) -> Any:
    return tf.RaggedTensor.from_tensor(x)


@case(spec(None, 3), refused=True)
def sparse_results(x: Any) -> Any:
    return tf.sparse.from_dense(x)


@case(spec(None, 3), refused=True)
def python_in_the_graph(x: Any) -> Any:
    return tf.py_function(lambda t: t * 2, [x], tf.float32)


@case(spec(None, 3), refused=True)
def variables_that_move(x: Any) -> Any:
    return COUNTER.assign_add(tf.reduce_sum(x)), x


COUNTER = tf.Variable(0.0)


# -- the comparison --------------------------------------------------------------------------


def arrays(specs: list[Any], options: dict[str, Any], sizes: tuple[int, int]) -> list[Any]:
    rng = np.random.default_rng(sum(sizes))
    results = []
    for item in specs:
        shape = [d or sizes[min(axis, 1)] for axis, d in enumerate(item.shape)]
        if item.dtype == tf.string:
            results.append(rng.choice(np.array(options["texts"], object), shape))
        elif item.dtype.is_integer:
            low = 0 if "high" in options else -99
            results.append(
                rng.integers(low, options.get("high", 99), shape, item.dtype.as_numpy_dtype)
            )
        else:
            results.append(rng.normal(size=shape).astype(item.dtype.as_numpy_dtype))
    return results


TABLES: list[Tables] = []


def traced(function: Any, specs: list[Any], options: dict[str, Any]) -> tuple[Any, Any]:
    """What is imported, and what is called."""
    if function.__name__.startswith("module"):
        module = function(None)
        return module, module.__call__
    if "signature" in options:
        TABLES.append(Tables())  # its functions hold it weakly
        return function(None), TABLES[-1].score
    source = tf.function(function, input_signature=specs)
    return source, source


def compared(function: Any, specs: list[Any], options: dict[str, Any]) -> str:
    source, call = traced(function, specs, options)
    try:
        model = sx.from_tensorflow(source, options.get("signature"))
    except sx.errors.ImportDiffers as error:
        return f"WRONG  {' '.join(str(error).split())[:400]}"
    except sx.SardonyxError as error:
        return f"refused  {' '.join(str(error).split())[:400]}"
    session = onnxruntime.InferenceSession(model.proto().SerializeToString())
    worst, place = 0.0, -1
    for sizes in options.get("sizes", SIZES):
        fed = arrays(specs, options, sizes)
        results = call(*(tf.constant(a.tolist() if a.dtype == object else a) for a in fed))
        expected = tf.nest.flatten(results)
        used = {i.name for i in session.get_inputs()}
        pairs = zip([i.name for i in model.inputs], fed, strict=True)
        actual = session.run(None, {n: a for n, a in pairs if n in used})
        for number, (a, b) in enumerate(zip(actual, expected, strict=True)):
            difference = _difference(a, b.numpy())
            if difference > worst:
                worst, place = difference, number
    bound = 5e-3 if any(s.dtype == tf.float16 for s in specs) else TOLERANCE
    verdict = "right" if worst <= bound else "WRONG"
    return f"{verdict}  {worst:.1e} at {place}, {len(model.graph)} nodes"


def _difference(actual: Any, expected: Any) -> float:
    actual, expected = np.asarray(actual), np.asarray(expected)
    if actual.shape != expected.shape:
        return np.inf
    if expected.dtype == object:
        words = [v.decode() for v in expected.reshape(-1)]
        return 0.0 if words == list(actual.reshape(-1)) else np.inf
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    if not a.size:
        return 0.0
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    a, b = np.where(same, 0, a), np.where(same, 0, b)
    if not np.isfinite(a - b).all():
        return np.inf
    return float(np.abs(a - b).max() / max(1.0, np.abs(b).max()))


def main() -> int:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--only", default="*", help="patterns of names, with commas")
    options = parser.parse_args()
    counts: dict[str, int] = {}
    for name, (function, specs, settings) in CASES.items():
        if not any(fnmatchcase(name, pattern) for pattern in options.only.split(",")):
            continue
        started = time.process_time()
        try:
            result = compared(function, specs, settings)
        except Exception as error:
            result = f"failed  {type(error).__name__}: {' '.join(str(error).split())[:400]}"
        word = result.split()[0]
        if (word == "refused") != (name in REFUSED):
            result = f"UNEXPECTED  {result}"
        counts[result.split()[0]] = counts.get(result.split()[0], 0) + 1
        print(f"{name:36} {result}  {time.process_time() - started:.1f} s of CPU", flush=True)
    print(counts)
    return int(not set(counts) <= {"right", "refused"})


if __name__ == "__main__":
    sys.exit(main())
