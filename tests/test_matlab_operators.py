"""Operators as MATLAB code in GNU Octave: loops, numbers of axes that only a run knows, spectra,
trees and text. onnxruntime or numpy says what they give.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper as make
import pytest

import sardonyx as sx
from sardonyx.engines.matlab import octave
from sardonyx.engines.matlab.write import generate, written_form
from sardonyx.errors import UnsupportedOp

needs_octave = pytest.mark.skipif(
    shutil.which(octave.COMMAND) is None, reason="GNU Octave is not installed"
)
TEXTS = np.array(["one two", "", "Two  one_2 two", "x,y!z"], object)
FLOAT, INT64, STRING = (getattr(onnx.TensorProto, n) for n in ("FLOAT", "INT64", "STRING"))


def parsed(text: str) -> onnx.ModelProto:
    imports = '"": 22, "ai.onnx.ml": 4, "com.microsoft": 1'
    return onnx.parser.parse_model(f"<ir_version: 10, opset_import: [{imports}]>\n{text}")


def one_node(node: onnx.NodeProto, x: Any, outputs: Mapping[str, int]) -> onnx.ModelProto:
    """A model of one node that reads `x`."""
    kind = STRING if x.dtype == object else make.np_dtype_to_tensor_dtype(x.dtype)
    ends = [make.make_tensor_value_info(n, t, None) for n, t in outputs.items()]
    start = make.make_tensor_value_info("x", kind, [None, *x.shape[1:]])
    opsets = [make.make_opsetid(d, v) for d, v in (("", 22), ("ai.onnx.ml", 3))]
    opsets.append(make.make_opsetid("com.microsoft", 1))
    graph = make.make_graph([node], "one", [start], ends)
    return make.make_model(graph, opset_imports=opsets, ir_version=10)


def expected_of(proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[Any]:
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, dict(feeds))


def check(proto: onnx.ModelProto, *runs: Mapping[str, np.ndarray], folder: Path) -> None:
    """The written model gives what onnxruntime gives, also for other sizes of its inputs."""
    loaded = sx.load(proto)
    sx.to_matlab_source(loaded, folder)
    outputs = octave.ends_of(written_form(loaded).graph.outputs)
    jobs = [octave.Job(folder, list(feeds.values()), outputs) for feeds in runs]
    for feeds, results in zip(runs, octave.run(jobs), strict=True):
        assert not isinstance(results, str), results
        for y, want in zip(results, expected_of(proto, feeds), strict=True):
            assert y.dtype == want.dtype and y.shape == want.shape
            if y.dtype.kind == "f":
                np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)
            else:
                np.testing.assert_array_equal(y, want)


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


# -- loops ---------------------------------------------------------------------------------------

WHILE = """g (float[2] x, float limit) => (float[2] last, float[steps,2] each, int64 steps_taken)
<int64 most = {9}, int64 zero = {0}, bool yes = {1}> {
    last, steps_taken, each = Loop<body = b (int64 i, bool going, float[2] s, int64 n)
        => (bool more, float[2] t, int64 m, float[2] t_out)
        {one = Constant<value_int = 1>() t = Add(s, s) m = Add(i, one) t_out = Identity(s)
         a = ReduceMax<keepdims=0>(t) more = Less(a, limit)}>(most, yes, x, zero)}"""


@needs_octave
def test_a_loop_ends_by_its_condition_or_after_its_steps(tmp_path: Path) -> None:
    x = np.array([1, 0.5], np.float32)
    runs = [{"x": x, "limit": np.array(limit, np.float32)} for limit in (5, 0, 1e9)]
    check(parsed(WHILE), *runs, folder=tmp_path)


@needs_octave
def test_a_loop_that_takes_no_step_gives_nothing(tmp_path: Path) -> None:
    text = """g (int64 n, float[2] x) => (float[2] y, float[k,2] z) {
        y, z = Loop<body = b (int64 i, bool c, float[2] s) => (bool d, float[2] t, float[2] u)
        {d = Identity(c) t = Add(s, s) u = Identity(t)}>(n, , x)}"""
    runs = [{"n": np.array(n), "x": floats(2)} for n in (0, 3)]
    check(parsed(text), *runs, folder=tmp_path)


@needs_octave
def test_a_loop_inside_a_loop_begins_anew(tmp_path: Path) -> None:
    """The inner one takes fewer steps each time: nothing of the time before may remain."""
    text = """g (int64 n, float x) => (float[k] sums) <float zero = {0}> {
        y, sums = Loop<body = b (int64 i, bool c, float s) => (bool d, float t, float total) {
            d = Identity(c) t = Add(s, s) count = Sub(n, i)
            w, parts = Loop<body = e (int64 j, bool p, float q) => (bool r, float v, float v_out)
                {r = Identity(p) v = Add(q, s) v_out = Identity(v)}>(count, , x)
            total = ReduceSum<keepdims=0>(parts)}>(n, , x)}"""
    check(parsed(text), {"n": np.array(4), "x": np.array(0.5, np.float32)}, folder=tmp_path)


# -- numbers of axes -----------------------------------------------------------------------------


@needs_octave
def test_axes_that_vanish_only_for_some_sizes(tmp_path: Path) -> None:
    """What is squeezed depends on the batch: the slice takes elements, or rows."""
    text = """g (float[N,1,4] x) => (float[M] y)
    <int64[1] a = {0}, int64[1] e = {2}, float f = {2}> {
        s = Squeeze(x) p = Sigmoid(s) q = Mul(p, f) y = Slice(q, a, e, a)}"""
    check(parsed(text), {"x": floats(1, 1, 4)}, folder=tmp_path)
    loaded = sx.load(parsed(text))
    outputs = [(v.dtype, 2) for v in loaded.outputs]
    (rows,) = octave.run([octave.Job(tmp_path, [floats(3, 1, 4)], outputs)])
    assert not isinstance(rows, str), rows
    x = floats(3, 1, 4)[:, 0]
    np.testing.assert_allclose(rows[0], 2 / (1 + np.exp(-x[:2])), rtol=1e-5)


@needs_octave
def test_branches_may_differ_in_their_number_of_axes(tmp_path: Path) -> None:
    text = """g (float[N,3,T] x) => (int64 axes, float[K,3] y)
    <int64[1] two = {2}, int64 one = {1}> {
        s = Shape(x) t = Gather(s, two) c = Equal(t, one)
        z = If<then_branch = a () => (float[N,3] p) {p = Squeeze(x, two)},
               else_branch = b () => (float[N,3,T] q) {q = Exp(x)}>(c)
        shape = Shape(z) axes = Size(shape) y = ReduceMax<keepdims=0>(x, two)}"""
    runs = [{"x": floats(2, 3, 1)}, {"x": floats(2, 3, 4)}]
    check(parsed(text), *runs, folder=tmp_path)


@needs_octave
def test_a_tensor_with_other_axes_than_the_file_declares_is_an_error(tmp_path: Path) -> None:
    text = (
        """g (float[N,1] x) => (float[K] y) {s = Squeeze(x) t = Exp(s) y = Concat<axis=0>(t, t)}"""
    )
    proto = parsed(text)
    proto.graph.value_info.append(make.make_tensor_value_info("t", FLOAT, ["N"]))
    sx.to_matlab_source(sx.load(proto), tmp_path)
    jobs = [octave.Job(tmp_path, [floats(n, 1)], [(sx.load(proto).outputs[0].dtype, 1)])
            for n in (3, 1)]  # fmt: skip
    rows, problem = octave.run(jobs)
    np.testing.assert_allclose(rows[0], np.tile(np.exp(floats(3, 1))[:, 0], 2), rtol=1e-6)
    assert isinstance(problem, str) and "0 axes where the model says 1" in problem


# -- spectra -------------------------------------------------------------------------------------


@needs_octave
@pytest.mark.parametrize("length", [7, 8, 5, 12])
def test_fourier_transforms(length: int, tmp_path: Path) -> None:
    x = floats(2, 8, 2)
    z = x[..., 0] + 1j * x[..., 1]
    cases = {
        "DFT(c, n)": np.fft.fft(z, length),
        "DFT<inverse=1>(c, n)": np.fft.ifft(z, length),
        "DFT<onesided=1>(r, n)": np.fft.rfft(x[..., 0], length),
        "DFT<onesided=1, inverse=1>(c, n)": np.fft.irfft(z, length),
    }
    jobs = []
    for i, call in enumerate(cases):
        text = f"""g (float[2,8,2] c, float[2,8,1] r) => (float[2,N,P] y)
        <int64 n = {{{length}}}> {{y = {call}}}"""
        sx.to_matlab_source(sx.load(parsed(text)), tmp_path / str(i))
        ends = octave.ends_of(sx.load(parsed(text)).outputs)
        jobs.append(octave.Job(tmp_path / str(i), [x, x[..., :1]], ends))
    for (call, want), (y,) in zip(cases.items(), octave.run(jobs), strict=True):
        parts = [want.real, want.imag] if want.dtype.kind == "c" else [want]
        assert y.shape == (2, want.shape[1], len(parts)), call
        np.testing.assert_allclose(y, np.stack(parts, -1), rtol=1e-4, atol=1e-5, err_msg=call)


@needs_octave
def test_frames_of_a_signal_that_lacks_its_last_axis(tmp_path: Path) -> None:
    text = (
        """g (float[N,T] x, float[6] w) => (float[N,F,B,P] y) <int64 s = {3}> {y = STFT(x, s, w)}"""
    )
    runs = [{"x": floats(n, t), "w": floats(6, seed=1)} for n, t in ((1, 6), (2, 20))]
    check(parsed(text), *runs, folder=tmp_path)


# -- trees and text ------------------------------------------------------------------------------


def stump(kind: str, **more: Any) -> onnx.NodeProto:
    """Two trees over three features; a missing number goes the way of yes in the first."""
    shared: dict[str, Any] = {
        "nodes_treeids": [0, 0, 0, 1, 1, 1, 1, 1],
        "nodes_nodeids": [0, 1, 2, 0, 1, 2, 3, 4],
        "nodes_featureids": [0, 0, 0, 2, 1, 0, 0, 0],
        "nodes_values": [0.25, 0.0, 0.0, -0.5, 0.125, 0, 0, 0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF", "BRANCH_GT", "BRANCH_LT", *["LEAF"] * 3],
        "nodes_truenodeids": [1, 0, 0, 1, 3, 0, 0, 0],
        "nodes_falsenodeids": [2, 0, 0, 2, 4, 0, 0, 0],
        "nodes_missing_value_tracks_true": [1, 0, 0, 0, 0, 0, 0, 0],
    }
    outputs = ["label", "y"] if "Classifier" in kind else ["y"]
    return make.make_node(kind, ["x"], outputs, domain="ai.onnx.ml", **{**shared, **more})


def leaves(name: str, ids: list[int], weights: list[float]) -> dict[str, Any]:
    return {f"{name}_treeids": [0, 0, 1, 1, 1], f"{name}_nodeids": [1, 2, 2, 3, 4],
            f"{name}_ids": ids, f"{name}_weights": [float(w) for w in weights]}  # fmt: skip


BOTH = {"label": INT64, "y": FLOAT}
TREES = {
    "sum": (stump("TreeEnsembleRegressor", n_targets=1, base_values=[0.5],
                  **leaves("target", [0] * 5, [1, 2, 3, 4, 5])), {"y": FLOAT}),
    "several targets": (stump("TreeEnsembleRegressor", n_targets=2,
                              **leaves("target", [0, 1, 0, 1, 0], [1, 2, 3, 4, 5])),
                        {"y": FLOAT}),
    "least": (stump("TreeEnsembleRegressor", n_targets=2, aggregate_function="MIN",
                    **leaves("target", [0, 0, 0, 1, 1], [1, -2, 3, 4, -5])), {"y": FLOAT}),
    "mean": (stump("TreeEnsembleRegressor", n_targets=1, aggregate_function="AVERAGE",
                   **leaves("target", [0] * 5, [1, -2, 3, 4, -5])), {"y": FLOAT}),
    "two classes": (stump("TreeEnsembleClassifier", classlabels_int64s=[7, 3],
                          post_transform="LOGISTIC",
                          **leaves("class", [0] * 5, [1, -2, 0.3, 0.4, -5])), BOTH),
    "three classes": (stump("TreeEnsembleClassifier", classlabels_strings=["a", "b c", "d"],
                            post_transform="SOFTMAX",
                            **leaves("class", [0, 1, 2, 1, 0], [1, 2, 0.3, 0.4, 5])),
                      {"label": STRING, "y": FLOAT}),
}  # fmt: skip


@needs_octave
@pytest.mark.parametrize("name", TREES)
def test_trees(name: str, tmp_path: Path) -> None:
    node, outputs = TREES[name]
    x = floats(6, 3)
    x[1, 0], x[2, 2] = np.nan, np.nan
    check(one_node(node, x, outputs), {"x": x}, {"x": x[:1]}, folder=tmp_path)


def ml(name: str, outputs: tuple[str, ...] = ("y",), **attributes: Any) -> onnx.NodeProto:
    domain = {"TfIdfVectorizer": "", "Tokenizer": "com.microsoft"}.get(name, "ai.onnx.ml")
    return make.make_node(name, ["x"], list(outputs), domain=domain, **attributes)


NUMBERS = np.array([[3, 1, 2, 1], [7, 1, 2, 3]], np.int64)
GRAMS = {"min_gram_length": 1, "max_gram_length": 2, "ngram_counts": [0, 3],
         "ngram_indexes": [0, 2, 1, 4, 3]}  # fmt: skip
NODES: dict[str, tuple[onnx.NodeProto, np.ndarray, dict[str, int]]] = {
    "a linear classifier": (
        ml("LinearClassifier", ("label", "y"), coefficients=[1.0, -2, 0.5, 0.25, 1, 2, -1, 0, 3],
           intercepts=[0.1, 0.2, -0.3], classlabels_ints=[5, 6, 9], post_transform="SOFTMAX"),
        floats(4, 3), BOTH),
    "a linear classifier of one score": (
        ml("LinearClassifier", ("label", "y"), coefficients=[1.0, -2, 0.5], intercepts=[0.1],
           classlabels_strings=["no", "yes"], post_transform="LOGISTIC"),
        floats(4, 3), {"label": STRING, "y": FLOAT}),
    "a linear regressor": (
        ml("LinearRegressor", coefficients=[1.0, -2, 0.5], intercepts=[0.1], targets=1),
        floats(4, 3), {"y": FLOAT}),
    "a norm of nothing": (
        ml("Normalizer", norm="L2"), np.array([[3, 4], [0, 0]], np.float32), {"y": FLOAT}),
    "missing numbers": (
        ml("Imputer", imputed_value_floats=[1.0, 2, 3], replaced_value_float=float("nan")),
        np.array([[np.nan, 5, np.nan]], np.float32), {"y": FLOAT}),
    "labels of texts": (
        ml("LabelEncoder", keys_strings=["", "x,y!z", "one two"], values_floats=[1.5, 2, -3],
           default_float=9.0), TEXTS, {"y": FLOAT}),
    "texts of labels": (
        ml("LabelEncoder", keys_int64s=[1, 7], values_strings=["a, b", "it's"],
           default_string="none"), NUMBERS, {"y": STRING}),
    "words": (
        ml("Tokenizer", mark=0, mincharnum=2, pad_value="#", tokenexp="[a-zA-Z0-9_]+"),
        TEXTS, {"y": STRING}),
    "n-grams of numbers": (
        ml("TfIdfVectorizer", mode="TF", max_skip_count=1, pool_int64s=[1, 2, 3, 1, 2, 3, 1],
           **GRAMS), NUMBERS, {"y": FLOAT}),
    "n-grams of texts": (
        ml("TfIdfVectorizer", mode="TFIDF", max_skip_count=0, weights=[1.0, 2, 3, 4, 5],
           pool_strings=["one two", "", "q", "one two", "", "", "Two  one_2 two"], **GRAMS),
        TEXTS[None], {"y": FLOAT}),
}  # fmt: skip


@needs_octave
@pytest.mark.parametrize("name", NODES)
def test_tables_and_text(name: str, tmp_path: Path) -> None:
    node, x, outputs = NODES[name]
    check(one_node(node, x, outputs), {"x": x}, folder=tmp_path)


@needs_octave
def test_text_moves_as_numbers_do(tmp_path: Path) -> None:
    text = """g (string[N] x, int64[K] i) => (string[M,2] y, bool[N] same, string[N] join)
    <int64[2] shape = {-1, 2}, string[1] word = {"x,y!z"}> {
        a = Gather(x, i) y = Reshape(a, shape) same = Equal(x, word)
        join = StringConcat(x, word)}"""
    check(parsed(text), {"x": TEXTS, "i": np.array([3, 0, -1, 1])}, folder=tmp_path)


@needs_octave
def test_maps_of_scores_are_columns_with_names() -> None:
    nodes = [ml("Scaler", ("s",), offset=[0.5], scale=[2.0])]
    zipped = make.make_node("ZipMap", ["s"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[4, 2])
    proto = one_node(nodes[0], floats(3, 2), {})
    proto.graph.node.append(zipped)
    end = proto.graph.output.add(name="y")
    end.type.sequence_type.elem_type.map_type.key_type = INT64
    end.type.sequence_type.elem_type.map_type.value_type.tensor_type.elem_type = FLOAT
    assert "the scores of 4, 2" in generate(sx.load(proto)).functions["model"]
    assert sx.verify(proto, "octave", inputs=[{"x": floats(3, 2)}]).verdict == "same"


@needs_octave
def test_letters_without_a_small_form_are_an_error(tmp_path: Path) -> None:
    text = (
        """g (string[N] x) => (string[N] y) {y = StringNormalizer<case_change_action="LOWER">(x)}"""
    )
    loaded = sx.load(parsed(text))
    sx.to_matlab_source(loaded, tmp_path)
    function = (tmp_path / "private" / "onnx_normalize_text.m").read_text()
    assert "only letters of ASCII" in function
    jobs = [octave.Job(tmp_path, [np.array(["Ab C"], object)], octave.ends_of(loaded.outputs))]
    assert octave.run(jobs)[0][0].tolist() == ["ab c"]
    with pytest.raises(sx.SardonyxError, match="beyond ASCII"):
        octave.run([octave.Job(tmp_path, [np.array(["É"], object)], jobs[0].outputs)])


REFUSED = {
    "how it finds words": """string[N,M] y) {y = com.microsoft.Tokenizer
        <mark=0, mincharnum=1, pad_value="#", tokenexp="a?(ab)?">(x)}""",
    "text": "string[M] y) {y = Compress<axis=0>(x, c)}",
    "text beyond ASCII": 'bool[N] y) {w = Constant<value_strings=["é"]>() y = Equal(x, w)}',
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_refused(why: str, tmp_path: Path) -> None:
    loaded = sx.load(parsed(f"g (string[N] x, bool[N] c) => ({REFUSED[why]}"))
    with pytest.raises(UnsupportedOp, match=f"  {why}"):
        sx.to_matlab_source(loaded, tmp_path / "new")
    assert not (tmp_path / "new").exists()
