"""Sizes that data decides: inside jax.jit and tf.function, in files, and where nothing helps.

The oracle is onnxruntime; gradients of these models can be written down.
"""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx as sx
from sardonyx.engines.onnxruntime import Runner
from sardonyx.errors import EngineError, UnsupportedOp
from sardonyx.model import Model

X = np.array([1, 0, -2, 0, 3], np.float32)
POSITIVE = X > 0
BOXES = np.array([[[0, 0, 1, 1], [0, 0, 1, 0.9], [2, 2, 3, 3]]], np.float32)
SCORES = np.array([[[0.9, 0.8, 0.7]]], np.float32)

# The model, its inputs, and the gradient of what it gives with respect to the first of them.
SETTLED: dict[str, tuple[str, list[np.ndarray], np.ndarray | None]] = {
    "NonZero": (
        """g (float[N] x) => (float y) {
            i = NonZero(x)
            t = Transpose(i)
            p = GatherND(x, t)
            q = Mul(p, p)
            y = ReduceSum<keepdims = 0>(q) }""",
        [X],
        2 * X,
    ),
    "Unique": (
        """g (float[N] x) => (float y) {
            u = Unique<sorted = 1>(x)
            y = ReduceMax<keepdims = 0>(u) }""",
        [X],
        (X == 3).astype(np.float32),
    ),
    "Compress": (
        """g (float[N] x, bool[N] c) => (float y) {
            [few] u = Compress<axis = 0>(x, c)
            y = ReduceSum<keepdims = 0>(u) }""",
        [X, POSITIVE],
        POSITIVE.astype(np.float32),
    ),
    "NonMaxSuppression": (
        """g (float[1,B,4] boxes, float[1,1,B] scores) => (int64[1] y) <int64 k = {3}> {
            kept = NonMaxSuppression(boxes, scores, k)
            y = Shape<start = 0, end = 1>(kept) }""",
        [BOXES, SCORES],
        None,
    ),
    "a count from data": (
        """g (float[N] x, int64[1] k) => (float y) {
            v, i = TopK(x, k)
            y = ReduceSum<keepdims = 0>(v) }""",
        [X, np.array([2], np.int64)],
        np.array([1, 0, 0, 0, 1], np.float32),
    ),
    "rows of a loop": (
        """g (float[N] x, int64 n) => (float y) <float[1] half = {0.5}> {
            last, rows = Loop (n, , x) <body = b (int64 i, bool going, float[N] s)
                => (bool on, float[N] t, float[N] row) {
                    on = Identity(going) t = Mul(s, half) row = Identity(t) }>
            y = ReduceSum<keepdims = 0>(rows) }""",
        [X, np.array(3, np.int64)],
        np.full(5, 0.875, np.float32),
    ),
    "in a branch": (
        """g (float[N] x, bool c) => (float y) {
            z = If (c) <
                then_branch = t () => (float a) {
                    i = NonZero(x) k = Constant<value_ints = [0]>() j = Squeeze(i, k)
                    p = Gather(x, j)
                    a = ReduceSum<keepdims = 0>(p) },
                else_branch = e () => (float b) { b = ReduceMax<keepdims = 0>(x) }>
            y = Neg(z) }""",
        [X, np.array(True)],
        None,
    ),
}
WITHOUT_AN_END = "g (float[N] x) => (int64[1,M] y) { [places] y = NonZero(x) }"


def text(body: str) -> Model:
    header = '<ir_version: 10, opset_import: ["": 22]>'
    return sx.load(onnx.parser.parse_model(f"{header} {body}"))


def expected(model: Model, given: list[np.ndarray]) -> np.ndarray:
    feeds = dict(zip((v.name for v in model.inputs), given, strict=True))
    return next(iter(Runner(model)(feeds).values()))


def narrow(arrays: list[np.ndarray]) -> list[np.ndarray]:
    return [a.astype(np.int32) if a.dtype == np.int64 else a for a in arrays]


# Some have no gradient, one none inside a branch.
@pytest.mark.parametrize(
    "name", [n for n, (_, _, expected) in SETTLED.items() if expected is not None]
)
def test_gradient_under_jit_of_jax(name: str) -> None:
    jax = pytest.importorskip("jax")
    body, inputs, expected = SETTLED[name]
    apply, params = sx.to_jax(text(body), fallback="allow")
    first, *rest = narrow(inputs)
    result = jax.jit(jax.grad(lambda x: apply(params, x, *rest)))(first)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("name", SETTLED)
class TestJax:
    def test_under_jit(self, name: str) -> None:
        jax = pytest.importorskip("jax")
        body, inputs, _ = SETTLED[name]
        apply, params = sx.to_jax(text(body), fallback="allow")
        jitted = jax.jit(apply)
        again = [inputs[0][..., ::-1].copy(), *inputs[1:]]
        for arrays in (inputs, again) if name != "NonMaxSuppression" else (inputs,):
            result = jitted(params, *narrow(arrays))
            np.testing.assert_array_equal(result, expected(text(body), arrays))

    def test_as_jax_itself_does_it(self, name: str) -> None:
        pytest.importorskip("jax")
        body, inputs, _ = SETTLED[name]
        apply, params = sx.to_jax(text(body), fallback="error")
        result = apply(params, *narrow(inputs))
        np.testing.assert_array_equal(result, expected(text(body), inputs))


@pytest.mark.parametrize("name", SETTLED)
def test_in_a_function_of_tensorflow(name: str) -> None:
    pytest.importorskip("tensorflow")
    body, inputs, _ = SETTLED[name]
    result = sx.to_tensorflow(text(body))(*inputs)
    np.testing.assert_array_equal(result.numpy(), expected(text(body), inputs))


@pytest.mark.parametrize("name", SETTLED)
def test_in_a_module_of_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    body, inputs, _ = SETTLED[name]
    module = sx.to_torch(text(body))
    result = module(*map(torch.from_numpy, map(np.asarray, inputs)))
    np.testing.assert_array_equal(result.numpy(), expected(text(body), inputs))


class TestWhatIsSaid:
    def test_what_leaves_the_graph(self) -> None:
        jax = pytest.importorskip("jax")
        body, inputs, _ = SETTLED["Compress"]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            apply, params = sx.to_jax(text(body))
            apply(params, *inputs)
        with pytest.warns(UserWarning, match="2 nodes cannot run in jax itself") as caught:
            jax.jit(apply)(params, *inputs)
        message = str(caught[0].message)
        assert 'Compress   node "few"  on numpy  the size of its output depends on data' in message
        assert 'reads the output of Compress "few"' in message

    def test_what_would_leave(self) -> None:
        pytest.importorskip("jax")
        model = text(SETTLED["Compress"][0])
        assert sx.placement(model, "jax").nodes == []
        result = sx.placement(model, "jax", compiled=True)
        assert [row[0] for row in result.nodes] == ["Compress", "ReduceSum"]
        assert result.stays == 0 and result.parts[0].outs == "4"

    def test_refused_if_asked(self) -> None:
        jax = pytest.importorskip("jax")
        body, inputs, _ = SETTLED["Compress"]
        apply, params = sx.to_jax(text(body), fallback="error")
        with pytest.raises(UnsupportedOp, match="few"):
            jax.jit(apply)(params, *inputs)

    def test_no_size_at_the_end(self) -> None:
        jax = pytest.importorskip("jax")
        apply, params = sx.to_jax(text(WITHOUT_AN_END), fallback="allow")
        np.testing.assert_array_equal(apply(params, X), [[0, 2, 4]])
        with pytest.raises(EngineError, match=r'NonZero *node "places"') as raised:
            jax.jit(apply)(params, X)
        assert "without jax.jit" in str(raised.value)


WORDS = """g (int64[N] x) => (float[N] y) {
    [words] w = ai.onnx.ml.LabelEncoder<keys_int64s = [1, 2], values_strings = ["a", "b"]>(x)
    [back] y = ai.onnx.ml.LabelEncoder<keys_strings = ["b", "a"], values_floats = [2.5, 1.5]>(w)
}"""


@pytest.mark.parametrize("name", ["torch", "jax", "tensorflow"])
def test_files_hold_no_other_engine(name: str, tmp_path: Path) -> None:
    pytest.importorskip(name)
    store: Any = importlib.import_module(f"sardonyx.engines.{name}.convert").store
    header = '<ir_version: 10, opset_import: ["": 22, "ai.onnx.ml": 4]>'
    words = sx.load(onnx.parser.parse_model(f"{header} {WORDS}"))
    with pytest.raises(UnsupportedOp, match=f"a {name} file cannot call another engine") as raised:
        store(words, tmp_path / "stored")
    assert [row[1] for row in raised.value.where] == ['node "words"', 'node "back"']
    assert f"sardonyx.to_{name}(model)" in str(raised.value)
    assert not list(tmp_path.iterdir())


def test_a_file_of_jax_has_no_size_that_data_decides(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    from sardonyx.engines.jax.convert import store

    with pytest.raises(UnsupportedOp, match="the size of its output depends on data") as raised:
        store(text(SETTLED["NonZero"][0]), tmp_path / "stored")
    assert len(raised.value.where) == 5
