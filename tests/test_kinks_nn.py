"""The nn family where differences cannot look: ties, kinks, zero norms, randomness, statistics.

Expected values are torch's documented choice, or follow from the definition of the operator.
Also here: every gradient of the family in float32 on stock onnxruntime.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

from sardonyx.build import Builder
from sardonyx.errors import UnsupportedOp
from sardonyx.grad import grad
from sardonyx.grad.nn.batch_norm import normalize_batch
from sardonyx.model import Model, from_proto
from sardonyx.testing import Case, Runner, feeds_of, model_of, runnable, wrt_of

from .cases import nn, nn_layer, nn_pool, object_detection


def session(model: Model) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(runnable(model).SerializeToString())


def model(text: str) -> Model:
    return from_proto(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 22]> {text}'))


def gradient(text: str, x: Any, seed: Any, wrt: str = "x") -> np.ndarray:
    """The gradient of y by `wrt`, in float32 on onnxruntime."""
    built = grad(model(text), of="y", wrt=wrt, seeds="input", outputs=False)
    (result,) = session(built).run(
        None, {"x": np.asarray(x, np.float32), "seed/y": np.asarray(seed, np.float32)}
    )
    return result


@pytest.mark.parametrize("attributes", ["strides=[2, 2]", "strides=[1, 2]"])
def test_max_pool_gives_all_to_the_first_of_equals(attributes: str) -> None:
    x = np.array([[[[1.0, 3.0], [3.0, 3.0]]]])
    node = f"y = MaxPool<kernel_shape=[2, 2], {attributes}>(x)"
    text = f"g (float[1,1,2,2] x) => (float[1,1,1,1] y) {{ {node} }}"
    np.testing.assert_array_equal(gradient(text, x, [[[[5.0]]]]), [[[[0.0, 5.0], [0.0, 0.0]]]])


def test_max_pool_of_a_constant_image_keeps_the_sum() -> None:
    node = "y = MaxPool<kernel_shape=[2, 3], strides=[2, 3]>(x)"
    text = f"g (float[1,1,4,6] x) => (float[1,1,2,2] y) {{ {node} }}"
    result = gradient(text, np.zeros((1, 1, 4, 6)), [[[[1.0, 2.0], [3.0, 4.0]]]])
    expected = np.zeros((4, 6))
    expected[0, 0], expected[0, 3], expected[2, 0], expected[2, 3] = 1, 2, 3, 4
    np.testing.assert_array_equal(result[0, 0], expected)


def test_global_max_pool_gives_all_to_the_first_of_equals() -> None:
    text = "g (float[1,1,2,2] x) => (float[1,1,1,1] y) { y = GlobalMaxPool(x) }"
    result = gradient(text, [[[[2.0, 7.0], [7.0, 7.0]]]], [[[[5.0]]]])
    np.testing.assert_array_equal(result, [[[[0.0, 5.0], [0.0, 0.0]]]])


def test_shrink_has_slope_zero_at_both_edges() -> None:
    text = "g (float[4] x) => (float[4] y) { y = Shrink<lambd=0.5>(x) }"
    result = gradient(text, [-0.5, 0.5, 0.6, -0.6], [1.0, 2.0, 3.0, 4.0])
    np.testing.assert_array_equal(result, [0.0, 0.0, 3.0, 4.0])


@pytest.mark.parametrize(
    "node", ["GlobalLpPool(x)", "GlobalLpPool<p=3>(x)", "LpPool<kernel_shape=[2, 2]>(x)"]
)
def test_a_norm_has_slope_zero_at_zero(node: str) -> None:
    text = f"g (float[1,1,2,2] x) => (float[1,1,1,1] y) {{ y = {node} }}"
    np.testing.assert_array_equal(
        gradient(text, np.zeros((1, 1, 2, 2)), [[[[1.0]]]]), np.zeros((1, 1, 2, 2))
    )


@pytest.mark.parametrize("p", [1, 2])
def test_a_zero_vector_stays_zero_when_normalized(p: int) -> None:
    text = f"g (float[2,2] x) => (float[2,2] y) {{ y = LpNormalization<p={p}, axis=1>(x) }}"
    result = gradient(text, [[0.0, 0.0], [3.0, 4.0]], [[1.0, 1.0], [1.0, 0.0]])
    torch = pytest.importorskip("torch")
    x = torch.tensor([[3.0, 4.0]], requires_grad=True)
    torch.nn.functional.normalize(x, p, 1).backward(torch.tensor([[1.0, 0.0]]))
    np.testing.assert_array_equal(result[0], [0.0, 0.0])
    np.testing.assert_allclose(result[1], x.grad[0], rtol=1e-6)


def test_a_query_that_sees_nothing_gets_no_gradient() -> None:
    rng = np.random.default_rng(0)
    seen = np.array([[True, False], [False, False]])
    q, k, v, seed = (rng.normal(size=(1, 1, 2, 3)).astype(np.float32) for _ in range(4))
    text = """g (float[1,1,2,3] q, float[1,1,2,3] k, float[1,1,2,3] v, bool[2,2] m)
        => (float[1,1,2,3] y)
        { y = Attention(q, k, v, m) }"""
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 23]> {text}')
    built = grad(from_proto(proto), of="y", wrt=["q", "k", "v"], seeds="input", outputs=False)
    dq, dk, dv = session(built).run(None, {"q": q, "k": k, "v": v, "m": seen, "seed/y": seed})
    # The first query sees one key: its output is that key's value, whatever the scores are.
    np.testing.assert_allclose(dq, 0, atol=1e-7)
    np.testing.assert_allclose(dk, 0, atol=1e-7)
    np.testing.assert_allclose(dv[0, 0], [seed[0, 0, 0], np.zeros(3)], rtol=1e-6)


@pytest.mark.parametrize("heads", [2, 4])
def test_attention_on_open_batch_and_length(heads: int) -> None:
    torch = pytest.importorskip("torch")
    text = f"""g (float[n,s,16] q, float[n,t,8] k, float[n,t,8] v) => (float[n,s,16] y)
        {{ y = Attention<q_num_heads={heads}, kv_num_heads={heads // 2}>(q, k, v) }}"""
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 23]> {text}')
    built = grad(from_proto(proto), of="y", wrt=["q", "k", "v"], seeds="input", outputs=False)
    rng = np.random.default_rng(1)
    q, k, v = (rng.normal(size=s).astype(np.float32) for s in ((3, 4, 16), (3, 5, 8), (3, 5, 8)))
    seed = rng.normal(size=q.shape).astype(np.float32)
    result = session(built).run(None, {"q": q, "k": k, "v": v, "seed/y": seed})
    leaves = [torch.tensor(a, requires_grad=True) for a in (q, k, v)]
    split = [
        x.reshape(3, x.shape[1], h, -1).transpose(1, 2)
        for x, h in zip(leaves, (heads, heads // 2, heads // 2))
    ]
    shared = [x.repeat_interleave(2, 1) for x in split[1:]]
    y = torch.nn.functional.scaled_dot_product_attention(split[0], *shared)
    y.transpose(1, 2).reshape(3, 4, 16).backward(torch.tensor(seed))
    for ours, leaf in zip(result, leaves, strict=True):
        np.testing.assert_allclose(ours, leaf.grad, rtol=1e-4, atol=1e-5)


# -- dropout -----------------------------------------------------------------------------


SETTINGS = {"r": np.array(0.4, np.float32), "t": np.array(True)}
TYPES = {"r": "float r", "t": "bool t"}
VALUES = {"r": "float r = {0.4}", "t": "bool t = {1}"}


def dropout(fed: str) -> Model:
    """Dropout of x, with the ratio `r` and the mode `t` as inputs where `fed` names them."""
    inputs = ", ".join(["float[50] x", *(TYPES[n] for n in fed)])
    fixed = ", ".join(VALUES[n] for n in "rt" if n not in fed)
    return model(f"g ({inputs}) => (float[50] y) <{fixed}> {{ y = Dropout(x, r, t) }}")


@pytest.mark.parametrize("fed", ["", "r", "t", "rt"])
def test_dropout_passes_what_it_kept(fed: str) -> None:
    run = session(grad(dropout(fed), of="y", wrt="x", seeds="input"))
    seed = np.arange(1, 51, dtype=np.float32)
    feeds = {"x": np.ones(50, np.float32), "seed/y": seed, **{n: SETTINGS[n] for n in fed}}
    y, dx = run.run(None, feeds)
    np.testing.assert_allclose(dx, y * seed, rtol=1e-6)
    assert 0 < (y == 0).sum() < 50
    if "t" in fed:
        _, dx = run.run(None, feeds | {"t": np.array(False)})
        np.testing.assert_array_equal(dx, seed)


# -- batch statistics -----------------------------------------------------------------------


def train_mode(shape: Sequence[int | None]) -> Model:
    """x, scale, bias → y, mean, var of the batch."""
    import onnx_ir as ir

    op = Builder()
    sizes = (shape, *[[shape[1]]] * 2)
    names = ("x", "scale", "bias")
    inputs = [
        ir.Value(name=n, shape=ir.Shape(s), type=ir.TensorType(ir.DataType.FLOAT))
        for n, s in zip(names, sizes, strict=True)
    ]
    outputs = list(normalize_batch(op, *inputs, epsilon=1e-5))
    for value, name in zip(outputs, ("y", "mean", "var"), strict=True):
        value.name = name
    constants = list(op.constants.values())
    graph = ir.Graph(
        inputs, outputs, nodes=op.nodes, initializers=constants, opset_imports={"": 22}, name="g"
    )
    return from_proto(ir.serde.serialize_model(ir.Model(graph, ir_version=10)))


@pytest.mark.parametrize("shape", [(4, 3, 5, 6), (7, 3), (None, 3, None, 6)], ids=str)
def test_normalize_batch_is_torchs(shape: Sequence[int | None]) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(2)
    real = [d or 4 for d in shape]
    feeds = {"x": rng.normal(2, 3, real).astype(np.float32)}
    feeds |= {n: rng.uniform(0.5, 2, 3).astype(np.float32) for n in ("scale", "bias")}
    leaves = {n: torch.tensor(a, requires_grad=True) for n, a in feeds.items()}
    y = torch.nn.functional.batch_norm(
        leaves["x"], None, None, leaves["scale"], leaves["bias"], True, 0.1, 1e-5
    )
    seed = rng.normal(size=real).astype(np.float32)
    y.backward(torch.tensor(seed))
    built = grad(train_mode(shape), of="y", wrt=["x", "scale", "bias"], seeds="input")
    result = session(built).run(None, feeds | {"seed/y": seed})
    np.testing.assert_allclose(result[0], y.detach(), rtol=1e-4, atol=1e-5)
    for ours, name in zip(result[1:], ("x", "scale", "bias"), strict=True):
        np.testing.assert_allclose(ours, leaves[name].grad, rtol=1e-3, atol=1e-5, err_msg=name)
    _, mean, var = session(train_mode(shape)).run(None, feeds)
    axes = (0, *range(2, len(real)))
    np.testing.assert_allclose(mean, feeds["x"].mean(axes), rtol=1e-5)
    np.testing.assert_allclose(var, feeds["x"].var(axes), rtol=1e-5)


def test_normalize_batch_forgets_a_bad_batch() -> None:
    runs = session(train_mode((4, 3, 5, 6)))
    rng = np.random.default_rng(3)
    feeds = {"x": rng.normal(size=(4, 3, 5, 6)).astype(np.float32)}
    feeds |= {n: np.ones(3, np.float32) for n in ("scale", "bias")}
    before = runs.run(None, feeds)
    assert np.isnan(
        runs.run(None, feeds | {"x": np.full((4, 3, 5, 6), np.nan, np.float32)})[0]
    ).all()
    for expected, result in zip(before, runs.run(None, feeds), strict=True):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_batch_norm_survives_a_large_mean(momentum: float) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(4)
    x = (rng.normal(size=(8, 2, 9, 9)) + 300).astype(np.float32)
    seed = rng.normal(size=x.shape).astype(np.float32)
    text = f"""g (float[8,2,9,9] x) => (float[8,2,9,9] y)
        <float[2] s = {{1.5, -0.5}}, float[2] b = {{0, 1}},
         float[2] m = {{0, 0.25}}, float[2] v = {{1, 0.5}}>
        {{ y, rm, rv = BatchNormalization<training_mode=1, momentum={momentum}>(x, s, b, m, v) }}"""
    result = gradient(text, x, seed)
    leaf = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    scale, bias = torch.tensor([1.5, -0.5]).double(), torch.tensor([0.0, 1.0]).double()
    torch.nn.functional.batch_norm(leaf, None, None, scale, bias, True).backward(
        torch.tensor(seed).double()
    )
    np.testing.assert_allclose(result, leaf.grad, atol=3e-4 * float(leaf.grad.abs().max()))


# -- refusals, precision ---------------------------------------------------------------------


def test_boxes_have_no_gradient_and_say_so() -> None:
    built = model("""g (float[1,1,6,8] x, float[2,4] r, int64[2] b) => (float[2,1,2,2] y)
        { y = RoiAlign<output_height=2, output_width=2>(x, r, b) }""")
    with pytest.raises(UnsupportedOp, match="rois"):
        grad(built, of="y", wrt=["x", "r"])


TABLES = (nn, nn_pool, nn_layer, object_detection)
CASES = [c for table in TABLES for c in table.CASES if c.order]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_float32_on_onnxruntime(case: Case) -> None:
    """The emitted graph loads in stock onnxruntime, and gives what it gives in float64."""
    result = []
    shape = Runner(model_of(case))(feeds_of(case))["y0"].shape
    seed = np.random.default_rng(6).normal(size=shape)
    for dtype in (np.float64, np.float32):
        built = grad(model_of(case, dtype), of="y0", wrt=wrt_of(case), seeds="input", outputs=False)
        feeds = feeds_of(case, dtype) | {"seed/y0": seed.astype(dtype)}
        feeds = {v.name: feeds[v.name] for v in built.inputs}
        if dtype == np.float32:
            result.append(session(built).run(None, feeds))
        else:
            result.append(list(Runner(built)(feeds).values()))
    for exact, ours in zip(*result, strict=True):
        np.testing.assert_allclose(
            ours, exact, rtol=1e-3, atol=1e-4 * max(np.abs(exact).max(), 1e-3)
        )
