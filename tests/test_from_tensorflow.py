"""Graphs of TensorFlow through `sx.from_tensorflow`; TensorFlow itself is the truth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx as sx
from sardonyx.cli.__main__ import main
from sardonyx.importers import proof

tf = pytest.importorskip("tensorflow")

RNG = np.random.default_rng(0)


def spec(*shape: int | None, dtype: Any = "float32") -> Any:
    return tf.TensorSpec(shape, dtype)


def operators(model: sx.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def require_equal(model: sx.Model, function: Any, *arrays: np.ndarray) -> None:
    """The model gives what TensorFlow gives, in onnxruntime, for arrays that it has not seen."""
    onnx.checker.check_model(model.proto(), full_check=True)
    feeds = {v.name: a for v, a in zip(model.inputs, arrays, strict=True)}
    actual = proof.run(model, feeds)
    results = tf.nest.flatten(function(*map(tf.constant, arrays)))
    for value, expected in zip(model.outputs, results, strict=True):
        np.testing.assert_allclose(actual[value.name], expected.numpy(), rtol=2e-5, atol=1e-5)


class Classifier(tf.Module):
    """A small network of images, one variable of which is not trained."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.kernel = tf.Variable(rng.normal(size=(3, 3, 3, 8)).astype("f"), name="conv/kernel")
        self.bias = tf.Variable(rng.normal(size=8).astype("f"), name="conv/bias")
        head = rng.normal(size=(8, 5)).astype("f")
        self.head = tf.Variable(head, name="head", trainable=False)

    @tf.function(input_signature=[spec(None, 16, 16, 3)])
    def __call__(self, x: Any) -> Any:
        y = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, self.kernel, 2, "SAME"), self.bias))
        y = tf.reduce_mean(y, [1, 2])
        return {"logits": y @ self.head, "pairs": tf.reshape(y, [tf.shape(y)[0], -1, 2])}


def test_variables_keep_their_names_and_sizes_stay_free() -> None:
    module = Classifier()
    model = sx.from_tensorflow(module)
    weights = {
        w.name: list(w.shape) for w in sx.weights(model) if w.name in "conv/kernel conv/bias head"
    }
    assert weights == {"conv/kernel": [3, 3, 3, 8], "conv/bias": [8], "head": [8, 5]}
    assert "Shape" not in operators(model)
    for batch in (1, 5):
        require_equal(model, module, RNG.normal(size=(batch, 16, 16, 3)).astype("f"))


def test_variables_train_as_in_tensorflow() -> None:
    module = Classifier()
    model = sx.from_tensorflow(module)
    net = sx.trainable(model, loss="cross_entropy", optimizer=sx.optim.sgd(0.1))
    updated = {name for record in net.records for name, _ in record.update_binding}
    assert {"conv/kernel", "conv/bias"} <= updated and "head" not in updated

    @tf.function(input_signature=[spec(4, 16, 16, 3)])
    def loss(x: Any) -> Any:
        return tf.reduce_mean(tf.square(module(x)["logits"]))

    x = RNG.normal(size=(4, 16, 16, 3)).astype("f")
    with tf.GradientTape() as tape:
        value = loss(tf.constant(x))
    expected = tape.gradient(value, [module.kernel, module.bias])
    gradients = sx.grad(sx.from_tensorflow(loss), wrt=["conv/kernel", "conv/bias"])
    actual = proof.run(gradients, {"x": x})
    for name, array in zip(("conv/kernel", "conv/bias"), expected, strict=True):
        (key,) = [k for k in actual if name in k]
        np.testing.assert_allclose(actual[key], array.numpy(), rtol=1e-4, atol=1e-5)


def test_loops_and_branches() -> None:
    @tf.function(input_signature=[spec(4, None, 3)])
    def function(x: Any) -> Any:
        steps = tf.transpose(x, [1, 0, 2])
        states = tf.scan(lambda a, t: tf.tanh(a + t), steps, tf.zeros([4, 3]))
        sums = tf.map_fn(tf.reduce_sum, steps)
        chosen = tf.cond(tf.reduce_sum(x) > 0, lambda: x * 2, lambda: x - 1)
        return states, sums, chosen

    model = sx.from_tensorflow(function)
    assert operators(model).count("Loop") == 2 and "If" in operators(model)
    for sign in (1, -1):
        require_equal(model, function, sign * RNG.random((4, 6, 3)).astype("f"))


def test_ragged_results_are_refused() -> None:
    function = tf.function(lambda x: tf.RaggedTensor.from_row_lengths(x, [1, 2]))
    with pytest.raises(sx.errors.ImportRefused, match="something else than tensors"):
        sx.from_tensorflow(function, example=[np.ones(3, "f")])


def test_what_cannot_be_imported_is_refused_at_once() -> None:
    counter = tf.Variable(0.0, name="counter")

    @tf.function(input_signature=[spec(2)])
    def function(x: Any) -> Any:
        counter.assign_add(1.0)
        y = tf.numpy_function(np.sin, [x], tf.float32)
        return y + tf.math.igamma(x, x) + counter

    with pytest.raises(sx.errors.ImportRefused) as caught:
        sx.from_tensorflow(function)
    names = {str(row[0]) for row in caught.value.where}
    assert names == {"AssignAddVariableOp", "PyFunc", "Igamma"}


def test_arguments_results_and_tables_without_a_form_are_named() -> None:
    ragged, sparse = tf.RaggedTensorSpec([None, None]), tf.SparseTensorSpec([None, 3])
    takes = tf.function(lambda a, b: tf.reduce_sum(a) + tf.sparse.reduce_sum(b))
    with pytest.raises(sx.errors.ImportRefused, match="arguments that are no tensors") as caught:
        sx.from_tensorflow(takes.get_concrete_function(ragged, sparse))
    assert [row[1] for row in caught.value.where] == ["RaggedTensor", "SparseTensor"]
    gives = tf.function(lambda x: (tf.RaggedTensor.from_tensor(x), tf.sparse.from_dense(x)))
    with pytest.raises(sx.errors.ImportRefused, match="else than tensors") as caught:
        sx.from_tensorflow(gives.get_concrete_function(spec(2, 3)))
    assert len(caught.value.where) == 2
    changing = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
    dense = tf.lookup.experimental.DenseHashTable(tf.int64, tf.float32, 0.0, -1, -2)
    fixed = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(tf.constant([3], tf.int64), [1.5]), 0.0
    )
    reads = tf.function(lambda i: changing.lookup(i) + dense.lookup(i) + fixed.lookup(i))
    with pytest.raises(sx.errors.ImportRefused) as caught:
        sx.from_tensorflow(reads, example=[tf.TensorSpec([None], tf.int64)])
    assert [str(row[1])[:25] for row in caught.value.where] == 2 * ["a lookup table with state"]


# -- sources --------------------------------------------------------------------------------------


class TwoFunctions(tf.Module):
    def __init__(self) -> None:
        self.scale = tf.Variable(2.0, name="scale")
        self.shift = tf.Variable(1.0, name="shift", trainable=False)

    @tf.function(input_signature=[spec(None, 3)])
    def stretch(self, x: Any) -> Any:
        return x * self.scale

    @tf.function(input_signature=[spec(None, 3)])
    def move(self, x: Any) -> Any:
        return x + self.shift


def test_a_saved_model_has_signatures(tmp_path: Path) -> None:
    module, folder = TwoFunctions(), tmp_path / "model"
    functions = {"stretch": module.stretch, "move": module.move}
    tf.saved_model.save(module, str(folder), signatures=functions)
    with pytest.raises(sx.errors.ArgumentError, match="2 signatures"):
        sx.from_tensorflow(folder)
    with pytest.raises(sx.errors.ArgumentError, match="no signature"):
        sx.from_tensorflow(folder, "strech")
    x = RNG.normal(size=(4, 3)).astype("f")
    for name, function in functions.items():
        require_equal(sx.from_tensorflow(folder, name), function, x)
        require_equal(sx.from_tensorflow(module, name), function, x)


def test_a_frozen_graph_and_the_command(tmp_path: Path) -> None:
    v1 = tf.compat.v1
    x = RNG.normal(size=(2, 3)).astype("f")
    with v1.Graph().as_default() as graph, v1.Session() as session:
        place = v1.placeholder(tf.float32, [None, 3], name="x")
        kernel = tf.constant(RNG.normal(size=(3, 4)).astype("f"), name="kernel")
        y = tf.nn.softmax(tf.matmul(place, kernel, name="product"), name="y")
        expected = session.run(y, {place: x})
        (tmp_path / "frozen.pb").write_bytes(graph.as_graph_def().SerializeToString())
    target = tmp_path / "model.onnx"
    with pytest.raises(SystemExit) as ended:
        main(["import", str(tmp_path / "frozen.pb"), "-o", str(target)])
    assert not ended.value.code
    model = sx.load(target)
    assert [w.name for w in sx.weights(model)] == ["kernel"]
    np.testing.assert_allclose(proof.run(model, {"x": x})["y"], expected, rtol=1e-5)
    part = sx.from_tensorflow(tmp_path / "frozen.pb", outputs=["product"])
    assert [v.name for v in part.outputs] == ["product"]


def test_functions_without_a_signature_need_an_example() -> None:
    function = tf.function(lambda x, rows: tf.gather(x, rows))
    with pytest.raises(sx.errors.ArgumentError, match="not been traced"):
        sx.from_tensorflow(function)
    arrays = [RNG.normal(size=(5, 2)).astype("f"), np.array([4, 0])]
    require_equal(sx.from_tensorflow(function, example=arrays), function, *arrays)


# -- operators ------------------------------------------------------------------------------------


def test_running_sums_of_exponentials() -> None:
    def running(x: Any) -> Any:
        logs = tf.math.cumulative_logsumexp
        return logs(x, 1), logs(x, 0, exclusive=True, reverse=True), tf.math.cumprod(x, 1)

    function = tf.function(running, input_signature=[spec(None, None)])
    model = sx.from_tensorflow(function)
    x = np.array([[1, 90, -90], [-np.inf, -np.inf, 2]], np.float32)
    require_equal(model, function, x)
    require_equal(model, function, x[:1, :1])


def test_free_sizes_cost_no_nodes() -> None:
    def attention(x: Any) -> Any:
        shape = tf.shape(x)
        heads = tf.reshape(x, [shape[0], shape[1], 4, 8])
        heads = tf.transpose(heads, [0, 2, 1, 3])
        scores = tf.nn.softmax(tf.matmul(heads, heads, transpose_b=True))
        mixed = tf.transpose(tf.matmul(scores, heads), [0, 2, 1, 3])
        return tf.reshape(mixed, [shape[0], shape[1], 32]) + x

    fixed = sx.from_tensorflow(tf.function(attention, input_signature=[spec(2, 6, 32)]))
    free = sx.from_tensorflow(tf.function(attention, input_signature=[spec(None, None, 32)]))
    assert len(operators(free)) <= 1.1 * len(operators(fixed))
    require_equal(free, attention, RNG.normal(size=(3, 5, 32)).astype("f"))


def gradient_of_a_convolution(x: Any, w: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch([x, w])
        y = tf.reduce_sum(tf.tanh(tf.nn.conv2d(x, w, 2, "SAME") + 0.5) ** 2)
    return tape.gradient(y, [x, w])


def rows_written_in_branches(x: Any) -> Any:
    count = tf.shape(x)[0]
    rows = tf.TensorArray(tf.float32, count)
    for i in tf.range(count):
        if x[i, 0] > 0:
            rows = rows.write(i, x[i] * 2)
        else:
            rows = rows.write(i, -x[i])
    return rows.stack()


def recurrent(x: Any) -> Any:
    """The last state only: a list of one element, whose size is that of the free batch."""
    last = tf.TensorArray(tf.float32, 1, element_shape=[None, 3])
    state = tf.zeros_like(x[:, 0])
    for i in tf.range(tf.shape(x)[1]):
        state = tf.tanh(state + x[:, i])
        last = last.write(0, state)
    return last.stack()


def numbers_of_a_list_that_grows(start: Any) -> Any:
    numbers = tf.TensorArray(tf.int32, 0, dynamic_size=True)
    for i in tf.range(start, 6):
        numbers = numbers.write(i, i * 2)
    return numbers.stack()


CASES: dict[str, tuple[Any, list[Any]]] = {
    "strided-slice": (lambda x: x[..., 1:-1:2, tf.newaxis, ::-1, 0], [spec(None, 7, 5, 2)]),
    "same-stride-2-free-size": (
        lambda x: tf.nn.max_pool2d(x, 3, 2, "SAME"),
        [spec(1, None, None, 3)],
    ),
    "conv-transpose-free-size": (
        lambda x, w: tf.nn.conv2d_transpose(x, w, tf.stack([tf.shape(x)[0], 14, 14, 4]), 2),
        [spec(None, 7, 7, 3), spec(3, 3, 4, 3)],
    ),
    "gather-batch-dims": (
        lambda x, i: tf.gather(x, i, axis=2, batch_dims=1),
        [spec(2, 3, 4, 5), spec(2, 6, dtype="int32")],
    ),
    "one-hot-out-of-range": (lambda i: tf.one_hot(i - 1, 3, axis=0), [spec(4, dtype="int32")]),
    "floor-mod-of-negatives": (
        lambda x, i: (tf.math.floormod(x, -1.5), (i - 1) // -2, (i - 1) % 3),
        [spec(6), spec(6, dtype="int32")],
    ),
    "reflect-and-symmetric": (
        lambda x: [tf.pad(x, [[0, 0], [2, 1]], m) for m in ("REFLECT", "SYMMETRIC")],
        [spec(2, None)],
    ),
    "diagonals": (
        lambda x: (tf.linalg.diag_part(x, k=(-1, 1)), tf.linalg.band_part(x, 1, -1)),
        [spec(None, 4, 5)],
    ),
    "spectrum": (lambda x: tf.abs(tf.signal.rfft2d(x)), [spec(None, 6, 9)]),
    "angles-of-a-spectrum": (lambda x: tf.math.angle(tf.signal.rfft(x) + 0.1), [spec(None, 32)]),
    "cosines": (lambda x: tf.signal.dct(x, 2), [spec(None, 8)]),
    "complex-slices": (
        lambda x: tf.math.imag(tf.signal.fft(tf.complex(x, x[:, :1]))[..., tf.newaxis, 1:4]),
        [spec(None, 6)],
    ),
    "gamma": (lambda x: (tf.math.lgamma(x * 3), tf.math.digamma(x * 3)), [spec(None, 9)]),
    "bessel": (
        lambda x: (tf.math.bessel_i0e(x * 9), tf.math.bessel_i1e(x * 9), tf.math.bessel_i0(x)),
        [spec(None, 9)],
    ),
    "quantiles-of-far-tails": (
        lambda x: (
            tf.math.ndtri(tf.exp(-abs(x) * 20)),
            tf.math.ndtri(tf.constant([0.0, 1.0, 1e-30, -1.0])),
            tf.math.erfinv(tf.tanh(x)),
        ),
        [spec(None, 9)],
    ),
    "cholesky": (
        lambda x: tf.linalg.cholesky(x @ tf.transpose(x, [0, 2, 1]) + 4 * tf.eye(4)),
        [spec(None, 4, 4)],
    ),
    "triangular": (
        lambda x, b: [
            tf.linalg.triangular_solve(x + 5 * tf.eye(3), b, lower, adjoint)
            for lower in (True, False)
            for adjoint in (True, False)
        ],
        [spec(None, 3, 3), spec(None, 3, 2)],
    ),
    "searchsorted": (
        lambda x, v: [tf.searchsorted(tf.sort(x, 1), v, side) for side in ("left", "right")],
        [spec(None, 6), spec(None, 4)],
    ),
    "empty-batch-of-segments": (
        lambda x, i: tf.math.unsorted_segment_max(x, i, 4),
        [spec(5, 2), spec(5, dtype="int32")],
    ),
    "float64": (lambda x: tf.nn.softmax(tf.exp(x) / 3), [spec(None, 3, dtype="float64")]),
    "sizes-of-one": (lambda x: tf.squeeze(tf.reduce_sum(x, 1), 0), [spec(1, 1, 1)]),
    "gradients": (gradient_of_a_convolution, [spec(2, 7, 7, 3), spec(3, 3, 3, 4)]),
    "writes-in-branches": (rows_written_in_branches, [spec(None, 3)]),
    "last-state": (recurrent, [spec(None, 4, 3)]),
    "numbers-of-a-list-that-grows": (numbers_of_a_list_that_grows, [spec(dtype="int32")]),
    "texts": (
        lambda x: tf.strings.lower(tf.strings.join([x, x], "-")),
        [spec(None, dtype="string")],
    ),
    "early-end-of-a-loop": (
        lambda x: tf.map_fn(lambda t: t + 1, x) + tf.while_loop(
            lambda s: tf.reduce_sum(s) < 50, lambda s: s * 2 + 1, [x]
        )[0],
        [spec(3)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_operators(name: str) -> None:
    """The import itself compares with TensorFlow on two random inputs; any difference raises."""
    function, specs = CASES[name]
    model = sx.from_tensorflow(tf.function(function, input_signature=specs))
    onnx.checker.check_model(model.proto(), full_check=True)
