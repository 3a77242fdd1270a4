"""Graphs of TensorFlow 1: branches and loops without functions, variables that the graph holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sardonyx as sx
from sardonyx.importers import proof

tf = pytest.importorskip("tensorflow")
RNG = np.random.default_rng(0)
WEIGHT = RNG.normal(size=(3, 3)).astype("f") / 2


def frozen(build: Any) -> Any:
    """A graph of TensorFlow 1 with a placeholder `x` and results `y_0`, …, its branches old."""
    v1 = tf.compat.v1
    is_new = v1.control_flow_v2_enabled()
    v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default() as graph:
            results = build(v1.placeholder(tf.float32, [None, 3], name="x"))
            for number, result in enumerate(results):
                tf.identity(result, name=f"y_{number}")
        return graph.as_graph_def()
    finally:
        if is_new:
            v1.enable_control_flow_v2()


def branches(x: Any) -> list[Any]:
    total = tf.reduce_sum(x)
    nested = tf.cond(
        total > 0,
        lambda: tf.cond(x[0, 0] > 0, lambda: x * 2, lambda: x * 3),
        lambda: tf.cond(total > -9, lambda: x * 5, lambda: x * 7),
    )
    again = tf.cond(total > 0, lambda: nested + 1, lambda: -nested)
    shapes = tf.cond(total > 0, lambda: x[:, :1], lambda: x)
    numbers = tf.cond(total > 0, lambda: tf.constant(3.0), lambda: tf.constant(5.0))
    return [nested, again, shapes, numbers]


def test_branches_of_tensorflow_1() -> None:
    definition = frozen(branches)
    outputs = [f"y_{i}:0" for i in range(4)]
    model = sx.from_tensorflow(definition, inputs=["x:0"], outputs=outputs)
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(definition, name="")
    array = np.arange(6, dtype="f").reshape(2, 3) - 2
    with tf.compat.v1.Session(graph=graph) as session:
        for factor in (1, -1, 10, -10, 0):
            expected = session.run(outputs, {"x:0": factor * array})
            actual = proof.run(model, {"x": factor * array}).values()
            for one, other in zip(actual, expected, strict=True):
                assert np.array_equal(one, other) and one.shape == other.shape


def require_same(definition: Any, count: int) -> Any:
    """Import a graph of `x` and `count` results, and compare with a session of TensorFlow 1."""
    outputs = [f"y_{i}:0" for i in range(count)]
    model = sx.from_tensorflow(definition, inputs=["x:0"], outputs=outputs)
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(definition, name="")
    with tf.compat.v1.Session(graph=graph) as session:
        for rows, sign in ((1, 1), (4, -1), (3, 1)):
            array = sign * (RNG.normal(size=(rows, 3)).astype("f") + 0.3)
            expected = session.run(outputs, {"x:0": array})
            actual = proof.run(model, {"x": array}).values()
            for one, other in zip(actual, expected, strict=True):
                assert one.shape == other.shape
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    return model


def until_large(x: Any) -> list[Any]:
    return [tf.while_loop(lambda s: tf.reduce_sum(tf.abs(s)) < 50, lambda s: s * 2 + 1, [x])]


def loop_in_loop(x: Any) -> Any:
    def outer(i: Any, s: Any) -> Any:
        def inner(j: Any, t: Any) -> Any:
            return j + 1, t + x * tf.cast(i + j, tf.float32)

        return i + 1, tf.while_loop(lambda j, t: j < i, inner, [0, s])[1] / 2

    return tf.while_loop(lambda i, s: i < 4, outer, [0, x])


def branch_in_loop(x: Any) -> Any:
    def body(i: Any, s: Any) -> Any:
        factor = tf.cond(i > 1, lambda: tf.constant(2.0), lambda: tf.constant(5.0))
        s = tf.cond(tf.equal(i % 2, 0), lambda: s + 1, lambda: s * 3)
        return i + 1, s * factor

    return tf.while_loop(lambda i, s: i < 4, body, [0, x])


def loop_in_branch(x: Any) -> list[Any]:
    def doubled() -> Any:
        return tf.while_loop(lambda i, s: i < 3, lambda i, s: (i + 1, s * 2), [0, x])[1]

    y = tf.cond(tf.reduce_sum(x) > 0, doubled, lambda: x - 1)
    return [y, tf.cond(tf.reduce_sum(y) > 2, lambda: y, lambda: -y)]


def loop_after_loop(x: Any) -> list[Any]:
    a = tf.while_loop(lambda i, s: i < 3, lambda i, s: (i + 1, s * 2), [0, x])[1]
    a = tf.nn.softmax(tf.reshape(a, [-1, 3]) @ WEIGHT)
    i, b = tf.while_loop(lambda i, s: i < 3, lambda i, s: (i + 1, s + a), [0, x])
    return [b, tf.reduce_mean(b, 1), i]


def growing_tensor(x: Any) -> Any:
    shapes = [tf.TensorShape([]), tf.TensorShape([None, 3])]
    return tf.while_loop(
        lambda i, s: i < 3, lambda i, s: (i + 1, tf.concat([s, x], 0)), [0, x], shapes
    )


def recurrent(x: Any) -> list[Any]:
    steps = tf.stack([x, x * 2, x - 1, x + 1])
    length = tf.shape(steps)[0]
    inputs = tf.TensorArray(tf.float32, length).unstack(steps)
    lengths = tf.range(tf.shape(x)[0]) % 4 + 1

    def body(i: Any, state: Any, array: Any) -> Any:
        new = tf.where((i < lengths)[:, None], tf.tanh(inputs.read(i) @ WEIGHT + state), state)
        return i + 1, new, array.write(i, new)

    outputs = tf.TensorArray(tf.float32, length)
    start = (0, tf.zeros_like(x), outputs)
    _, state, outputs = tf.while_loop(lambda i, *_: i < length, body, start)
    return [state, tf.transpose(outputs.stack(), [1, 0, 2]) @ WEIGHT]


def array_that_grows(x: Any) -> list[Any]:
    array = tf.TensorArray(tf.float32, 0, dynamic_size=True, element_shape=[None, 3])
    start = (0, array)
    _, array = tf.while_loop(
        lambda i, _: i < tf.shape(x)[0] + 1,
        lambda i, a: (i + 1, a.write(i, x * tf.cast(i, tf.float32))),
        start,
    )
    return [array.stack()]


def array_that_the_loop_reads(x: Any) -> list[Any]:
    array = tf.TensorArray(tf.float32, 5, clear_after_read=False).write(0, x)
    _, array = tf.while_loop(
        lambda i, _: i < 5, lambda i, a: (i + 1, a.write(i, a.read(i - 1) * 2 + 1)), (1, array)
    )
    return [array.concat()]


def folds(x: Any) -> list[Any]:
    return [
        tf.map_fn(lambda row: tf.reduce_sum(row) * row, x),
        tf.scan(lambda a, row: a / 2 + row, x),
        tf.foldl(lambda a, row: a / 2 + row, x),
    ]


LOOPS = {
    until_large: 1, loop_in_loop: 2, branch_in_loop: 2, loop_in_branch: 2, loop_after_loop: 3,
    growing_tensor: 2, recurrent: 2, array_that_grows: 1, array_that_the_loop_reads: 1, folds: 3,
}  # fmt: skip


@pytest.mark.parametrize("build", LOOPS, ids=lambda build: build.__name__)
def test_loops_of_tensorflow_1(build: Any) -> None:
    model = require_same(frozen(build), LOOPS[build])
    assert "Loop" in {node.op_type for node in model.graph.all_nodes()}


def test_what_a_loop_of_tensorflow_1_cannot_have_is_refused_by_name() -> None:
    definition = frozen(
        lambda x: tf.while_loop(
            lambda i, s: i < 3,
            lambda i, s: (i + 1, tf.numpy_function(np.sin, [s], tf.float32)),
            [0, x],
            [tf.TensorShape([]), tf.TensorShape(None)],
        )
    )
    with pytest.raises(sx.errors.ImportRefused) as caught:
        sx.from_tensorflow(definition, inputs=["x:0"], outputs=["y_0:0", "y_1:0"])
    assert "PyFunc" in {str(row[0]) for row in caught.value.where}


@pytest.mark.parametrize("is_resource", [True, False], ids=["resource", "reference"])
def test_a_saved_model_of_tensorflow_1_with_variables(tmp_path: Path, is_resource: bool) -> None:
    v1 = tf.compat.v1
    with v1.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 3], name="x")
        v1.set_random_seed(0)
        kernel = v1.get_variable("cell/kernel", [3, 3], use_resource=is_resource)
        y = v1.while_loop(lambda i, s: i < 3, lambda i, s: (i + 1, tf.tanh(s @ kernel)), [0, x])[1]
        session.run(v1.global_variables_initializer())
        array = RNG.normal(size=(4, 3)).astype("f")
        expected, values = session.run([y, kernel], {x: array})
        v1.saved_model.simple_save(session, str(tmp_path / "model"), {"x": x}, {"y": y})
    model = sx.from_tensorflow(tmp_path / "model")
    weights = {w.name: model.graph.initializers[w.name] for w in sx.weights(model)}
    np.testing.assert_array_equal(weights["cell/kernel"].const_value.numpy(), values)
    np.testing.assert_allclose(proof.run(model, {"x": array})["y"], expected, rtol=1e-5, atol=1e-6)


def test_a_saved_model_of_tensorflow_1_with_a_table(tmp_path: Path) -> None:
    v1 = tf.compat.v1
    with v1.Graph().as_default(), v1.Session() as session:
        words = v1.placeholder(tf.string, [None], name="words")
        kernel = v1.get_variable("kernel", [3, 2], initializer=v1.ones_initializer())
        keys, values = tf.constant(["one", "two"]), tf.constant([1, 2], tf.int64)
        table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), 0)
        rows = tf.gather(kernel, table.lookup(words)) * 3
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
        feeds = {words: [b"two", b"many"]}
        expected = session.run(rows, feeds)
        v1.saved_model.simple_save(
            session,
            str(tmp_path / "model"),
            {"words": words},
            {"rows": rows},
            legacy_init_op=v1.tables_initializer(),
        )
    model = sx.from_tensorflow(tmp_path / "model")
    actual = proof.run(model, {"words": np.array(["two", "many"], object)})
    np.testing.assert_array_equal(actual["rows"], expected)
    assert "kernel" in {w.name for w in sx.weights(model)}
