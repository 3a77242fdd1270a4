"""Products by one matrix in TensorFlow: all rows at once, whatever is known of the sizes."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

import sardonyx as sx

tf = pytest.importorskip("tensorflow")

rng = np.random.default_rng(0)
W = rng.normal(size=(4, 3)).astype(np.float32)


def converted(sizes: str) -> object:
    dims = ",".join(sizes)
    model = parse_model(
        f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[{dims},4] x) => (float[{dims},3] y) {{ y = MatMul(x, w) }}"""
    )
    model.graph.initializer.append(numpy_helper.from_array(W, "w"))
    return sx.to_tensorflow(sx.load(model))


@pytest.mark.parametrize(
    ("sizes", "shapes"),
    [
        ("BT", [(2, 5), (1, 1), (0, 5), (2, 0), (0, 0)]),
        ("B5", [(2, 5), (1, 5), (0, 5)]),
        ("B0", [(2, 0), (0, 0)]),
        ("25", [(2, 5)]),
        ("BT7", [(2, 3, 7), (1, 0, 7), (0, 0, 7)]),
    ],
)
def test_sizes(sizes: str, shapes: list[tuple[int, ...]]) -> None:
    function = tf.function(converted(sizes))
    for shape in shapes:
        x = rng.normal(size=(*shape, 4)).astype(np.float32)
        result = function(tf.constant(x))
        assert result.shape == (*shape, 3)
        np.testing.assert_allclose(result, x @ W, rtol=1e-5, atol=1e-6)


def test_the_gradient_of_the_matrix_is_one_product() -> None:
    function = converted("B5")
    free = tf.TensorSpec((None, 5, 4), tf.float32)

    @tf.function(input_signature=[free])
    def slope(x: object) -> object:
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.reduce_sum(function(x) ** 2)
        return tape.gradient(total, [x, *function.trainable_variables])

    x = rng.normal(size=(2, 5, 4)).astype(np.float32)
    results = slope(tf.constant(x))
    np.testing.assert_allclose(results[0], 2 * (x @ W) @ W.T, rtol=1e-5)
    graph = slope.get_concrete_function().graph.as_graph_def()
    types = {node.op for f in graph.library.function for node in f.node_def}
    assert "MatMul" in types and not any("BatchMatMul" in t for t in types)
