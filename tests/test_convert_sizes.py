"""Free sizes in converted models, at every place where a size meets an operator.

What users get (`to_torch(m)`, `jax.jit(to_jax(m))`, `jax.export` with symbolic sizes,
`tf.function(to_tensorflow(m))`) is built once and run at several sizes; onnxruntime is the oracle.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnxruntime import InferenceSession, SessionOptions

import sardonyx as sx
from sardonyx.errors import SardonyxError, UnsupportedOp
from sardonyx.lower.program import DependsOnData
from tests.size_cases import CASES, SHAPES, model

Function = Callable[[np.ndarray], np.ndarray]


def with_torch(source: sx.Model) -> Function:
    torch = pytest.importorskip("torch")
    module = sx.to_torch(source)
    return lambda x: module(torch.from_numpy(x)).detach().numpy()


def with_jit(source: sx.Model) -> Function:
    jax = pytest.importorskip("jax")
    apply, params = sx.to_jax(source)
    function = jax.jit(apply)
    return lambda x: np.asarray(function(params, x))


def with_export(source: sx.Model) -> Function:
    jax = pytest.importorskip("jax")
    apply, params = sx.to_jax(source)
    shape = jax.export.symbolic_shape("n, t")
    spec = jax.ShapeDtypeStruct(shape, np.float32)
    exported = jax.export.export(jax.jit(apply))(params, spec)
    return lambda x: np.asarray(exported.call(params, x))


def with_tensorflow(source: sx.Model) -> Function:
    tf = pytest.importorskip("tensorflow")
    module = sx.to_tensorflow(source)
    spec = tf.TensorSpec([None, None], tf.float32)
    function = tf.function(lambda x: module(x), input_signature=[spec], autograph=False)
    return lambda x: function(tf.constant(x)).numpy()


CONVERT = {
    "torch": with_torch,
    "jit": with_jit,
    "export": with_export,
    "tensorflow": with_tensorflow,
}

# Cases that were wrong or failed before, one or two of each kind.
SAMPLE = {
    "torch": (
        *("max", "max in reshape", "div negative", "div table rev", "equal const", "rel pos"),
        *("squeeze every one", "if squeeze"),
    ),
    "jit": ("center crop", "loop rows of x", "if both shape", "loop with counters"),
    "export": ("max vec", "div negative", "equal", "slice int constant end", "scan", "pad modulo"),
    "tensorflow": (
        *("slice int constant end", "center crop", "gather int vec", "reshape int constant"),
        *("max", "topk min", "div by neg", "rdiv", "equal vec", "where expand", "pad negative"),
        *("expand unknown one", "split int constant", "trilu k", "range float", "conv same"),
        *("if both shape", "if data both shape", "if then after", "if gives sizes reshape"),
        *("loop trips rows", "loop rows of x", "loop grows", "scan"),
        *("squeeze every one", "if squeeze"),
    ),
}
# A graph of jax has no array whose shape depends on data, and one of tensorflow no sequences.
REFUSED = {
    "torch": (),
    "jit": (
        *("if data both shape", "if data same size twice", "if then after"),
        "if gives sizes reshape",
    ),
    "tensorflow": (
        *("slice step size", "resize scales", "sequence", "sequence at", "sequence length"),
    ),
}


def session_of(proto: Any) -> InferenceSession:
    options = SessionOptions()
    options.log_severity_level = 4  # it warns about every constant that a case does not use
    return InferenceSession(proto.SerializeToString(), options)


def check(name: str, convert: Callable[[sx.Model], Function]) -> None:
    proto = model(name)
    session = session_of(proto)
    run = convert(sx.load(proto))
    count = 0
    for shape in SHAPES:
        x = np.random.default_rng(7).normal(size=shape).astype(np.float32)
        try:
            expected = session.run(None, {"x": x})[0]
        except Exception:  # a shape that this model does not take
            continue
        count += 1
        result = run(x)
        assert result.shape == expected.shape, shape
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
    assert count >= 2


@pytest.mark.parametrize(
    ("framework", "name"), [(f, name) for f, names in SAMPLE.items() for name in names]
)
def test_free_sizes(framework: str, name: str) -> None:
    check(name, CONVERT[framework])


@pytest.mark.nightly
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("framework", REFUSED)
def test_all_free_sizes(framework: str, name: str) -> None:
    if name in REFUSED[framework]:
        with pytest.raises(SardonyxError):
            check(name, CONVERT[framework])
    else:
        check(name, CONVERT[framework])


@pytest.mark.parametrize("name", ["sequence length", "resize scales"])
def test_a_tensorflow_module_that_is_no_graph_runs_node_by_node(name: str) -> None:
    tf = pytest.importorskip("tensorflow")
    proto = model(name)
    session = session_of(proto)
    module = sx.to_tensorflow(sx.load(proto))
    x = np.ones((3, 4), np.float32)
    with pytest.warns(UserWarning, match="the model runs node by node"):
        result = module(x)
    np.testing.assert_allclose(result.numpy(), session.run(None, {"x": x})[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module(x)
    free = tf.function(lambda v: module(v), autograph=False)
    with pytest.raises(DependsOnData):
        free.get_concrete_function(tf.TensorSpec([None, None], tf.float32))


# -- text ---------------------------------------------------------------------------

TEXT = {
    "labels in": """g (string[N] words) => (float[N] y)
        { a = ai.onnx.ml.LabelEncoder<keys_strings=["a", "ä"], values_floats=[1.5, 2.5]>(words)
          y = Mul(a, a) }""",
    "labels out": """g (string[N] words) => (string[N] y)
        { a = ai.onnx.ml.LabelEncoder<keys_strings=["a", "ä"], values_int64s=[0, 1]>(words)
          b = Neg(a)
          y = ai.onnx.ml.LabelEncoder<keys_int64s=[0, 1, -1], values_strings=["x", "y", "ö"]>(b) }
        """,
    "counts": """g (string[N] words) => (float[2] y)
        { y = TfIdfVectorizer<mode="TF", min_gram_length=1, max_gram_length=1, max_skip_count=0,
              ngram_counts=[0], ngram_indexes=[0, 1], pool_strings=["a", "ä"]>(words) }""",
}


@pytest.mark.parametrize("name", TEXT)
@pytest.mark.parametrize("compiled", [False, True])
def test_text_in_tensorflow(name: str, compiled: bool, tmp_path: Any) -> None:
    tf = pytest.importorskip("tensorflow")
    import onnx

    header = '<ir_version: 10, opset_import: ["": 22, "ai.onnx.ml": 4]>'
    proto = onnx.parser.parse_model(f"{header} {TEXT[name]}")
    session = session_of(proto)
    with pytest.warns(UserWarning, match="cannot run in tensorflow itself"):
        module = sx.to_tensorflow(sx.load(proto))
    function = tf.function(lambda v: module(v), autograph=False) if compiled else module
    for count in (1, 4):
        words = np.array(["ä", "a", "b", "ä"][:count], object)
        expected = session.run(None, {"words": words})[0]
        result = function(tf.constant(words)).numpy()
        if result.dtype == object:
            result = np.array([text.decode() for text in result], object)
        np.testing.assert_array_equal(result, expected)
    with pytest.raises(UnsupportedOp, match="a tensorflow file cannot call another engine"):
        module.save(tmp_path / "saved")
