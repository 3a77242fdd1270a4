"""Every lowering, on every engine, by the tables in tests/cases; onnxruntime is the oracle."""

from __future__ import annotations

import functools
import importlib
import math
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from sardonyx.errors import ArgumentError, DataError, EngineError, SardonyxError, UnsupportedOp
from sardonyx.lower import LOWERINGS, lowering
from sardonyx.model import Model, load
from sardonyx.passes.cse import is_random
from sardonyx.testing import Case, Runner, feeds_of, model_of, runnable

from .cases import all_cases

ENGINES = ("numpy", "torch", "jax", "tensorflow")
CASES = [c for c in all_cases() if not any(is_random(n) for n in model_of(c).graph)]
HEADER = '<ir_version: 10, opset_import: ["": 22]>'


def engine(name: str) -> Any:
    pytest.importorskip(name)
    return importlib.import_module(f"sardonyx.engines.{name}")


def text(body: str) -> Model:
    return load(onnx.parser.parse_model(f"{HEADER} {body}"))


# Double kernels of onnxruntime that refuse to run.
BY_REFERENCE = {"Mod"}
# Operators whose oracles, given doubles, compute in single precision all the same.
SINGLE = {"Resize", "Attention", "FlexAttention", "LinearAttention"}
# Operators whose results are in single precision unless an attribute asks for more.
SINGLE |= {"HannWindow", "HammingWindow", "BlackmanWindow"}
# A domain whose results are in single precision by its schemas.
SINGLE_DOMAIN = "ai.onnx.ml"


def is_single(case: Case) -> bool:
    return case.op in SINGLE or case.domain == SINGLE_DOMAIN


@functools.cache
def expected(index: int) -> dict[str, Any]:
    case = CASES[index]
    model, feeds = model_of(case), feeds_of(case)
    if case.op not in BY_REFERENCE:
        return Runner(model)(feeds)
    result = ReferenceEvaluator(runnable(model)).run(None, feeds)
    return dict(zip([v.name or "" for v in model.outputs], result, strict=True))


def compare(found: Any, wanted: Any, name: str, single: bool = False) -> None:
    if isinstance(wanted, list):
        assert len(found) == len(wanted)
        for f, w in zip(found, wanted, strict=True):
            compare(f, w, name, single)
    elif wanted is None or np.asarray(wanted).dtype.kind not in "fc":
        np.testing.assert_array_equal(found, wanted, err_msg=name)
    else:
        assert found.dtype == wanted.dtype, name
        rtol, atol = (1e-5, 2e-6) if single else (1e-6, 1e-9)
        np.testing.assert_allclose(found, wanted, rtol=rtol, atol=atol, err_msg=name)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_of_no_rows_and_of_empty_rows_nothing_is_left(name: str, op: str, axis: int) -> None:
    model = text(f"g (float[2,0,3] x) => (float[2,0,3] y) {{ y = {op}<axis={axis}>(x) }}")
    feeds = {"x": np.zeros((2, 0, 3), np.float32)}
    result, expected = engine(name).Runner(model)(feeds)["y"], Runner(model)(feeds)["y"]
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("index", range(len(CASES)), ids=[str(c) for c in CASES])
def test_values(index: int, name: str) -> None:
    case = CASES[index]
    result = engine(name).Runner(model_of(case), fallback="allow")(feeds_of(case))
    for key, value in expected(index).items():
        compare(result[key], value, key, is_single(case))


SYMBOLIC = [i for i, c in enumerate(CASES) if c.symbolic]


@pytest.mark.parametrize("index", SYMBOLIC, ids=[str(CASES[i]) for i in SYMBOLIC])
def test_unknown_sizes(index: int) -> None:
    case: Case = CASES[index]
    result = engine("numpy").Runner(model_of(case, symbolic=True))(feeds_of(case))
    for key, value in expected(index).items():
        compare(result[key], value, key, is_single(case))


# Mean and deviation of what the random operators draw, by the parameters of their cases.
RANDOM = {
    "RandomNormal": (2.0, 3.0),
    "RandomNormalLike": (2.0, 3.0),
    "RandomUniform": (3.5, 3.0 / 12**0.5),
    "RandomUniformLike": (3.5, 3.0 / 12**0.5),
    "Bernoulli": (0.25, 0.1875**0.5),
    "Multinomial": (0.75, 0.1875**0.5),
}


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("case", [c for c in all_cases() if c.op in RANDOM], ids=str)
def test_random(case: Case, name: str) -> None:
    runner, feeds = engine(name).Runner(model_of(case)), feeds_of(case)
    first, again = (runner(feeds)["y0"] for _ in range(2))
    np.testing.assert_array_equal(first, again)
    mean, deviation = RANDOM[case.op]
    error = deviation / first.size**0.5
    assert first.size == 2000
    assert abs(first.mean() - mean) < 5 * error
    assert abs(first.std() / deviation - 1) < 0.1
    unseeded = {k: v for k, v in case.attributes.items() if k != "seed"}
    runner = engine(name).Runner(model_of(Case(**{**vars(case), "attributes": unseeded})))
    assert not np.array_equal(runner(feeds)["y0"], runner(feeds)["y0"])


@pytest.mark.parametrize("name", ENGINES)
class TestProgram:
    def test_inputs_that_are_missing_are_named_at_once(self, name: str) -> None:
        model = text("g (float[2] a, float[2] b) => (float[2] y) {y = Add(a, b)}")
        runner = engine(name).Runner(model)
        with pytest.raises(ArgumentError) as caught:
            runner({})
        assert '"a"' in str(caught.value) and '"b"' in str(caught.value)

    def test_an_initializer_that_is_an_input_is_a_default(self, name: str) -> None:
        model = text("g (float[2] x, float[2] w = {1, 2}) => (float[2] y) {y = Mul(x, w)}")
        runner = engine(name).Runner(model)
        x = np.ones(2, np.float32)
        np.testing.assert_array_equal(runner({"x": x})["y"], [1, 2])
        np.testing.assert_array_equal(runner({"x": x, "w": 5 * x})["y"], [5, 5])
        np.testing.assert_array_equal(runner({"x": x})["y"], [1, 2])

    def test_a_body_reads_what_is_outside_of_two_levels(self, name: str) -> None:
        model = text("""g (float[2] x, bool c, bool d) => (float[2] y) {
            h = Exp(x)
            y = If (c) <
                then_branch = t () => (float[2] a) {
                    a = If (d) <
                        then_branch = tt () => (float[2] b) { b = Add(h, x) },
                        else_branch = te () => (float[2] e) { e = Sub(h, x) }
                    >
                },
                else_branch = f () => (float[2] z) { z = Neg(h) }
            >
        }""")
        runner = engine(name).Runner(model)
        x = np.array([0.5, -1], np.float32)
        for c, d, expected in (
            (True, True, np.exp(x) + x),
            (True, False, np.exp(x) - x),
            (False, True, -np.exp(x)),
        ):
            result = runner({"x": x, "c": np.array(c), "d": np.array(d)})["y"]
            np.testing.assert_allclose(result, expected, rtol=1e-6)

    def test_an_output_may_be_an_input_or_a_constant(self, name: str) -> None:
        model = text("g (float[2] x) => (float[2] x, float[1] w) <float[1] w = {3}> {y = Neg(x)}")
        result = engine(name).Runner(model)({"x": np.ones(2, np.float32)})
        np.testing.assert_array_equal(result["x"], [1, 1])
        np.testing.assert_array_equal(result["w"], np.array([3], np.float32))

    def test_a_failure_names_the_node(self, name: str) -> None:
        model = text("g (float[a] x, float[b] z) => (float[c] y) {[joined] y = Add(x, z)}")
        runner = engine(name).Runner(model)
        with pytest.raises(EngineError, match=r'Add *node "joined"'):
            runner({"x": np.ones(2, np.float32), "z": np.ones(3, np.float32)})

    def test_inputs_of_another_type_are_named_at_once(self, name: str) -> None:
        model = text("g (float[2] a, int64[2] b) => (float[2] y) {c = Cast<to=1>(b) y = Add(a, c)}")
        with pytest.raises(DataError) as caught:
            engine(name).Runner(model)({"a": np.ones(2), "b": np.ones(2, np.float32)})
        assert '"a"' in str(caught.value) and '"b"' in str(caught.value)

    def test_double_precision_is_asked_for(self, name: str) -> None:
        model = text("g (float[2] x) => (float[2] y) <float[1] w = {0.1}> {y = Mul(x, w)}")
        x = np.array([1, 3], np.float32)
        result = engine(name).Runner(model, float64=True)({"x": x})["y"]
        assert result.dtype == np.float64
        np.testing.assert_array_equal(result, x.astype(np.float64) * np.float64(np.float32(0.1)))


def test_double_precision_reaches_types_named_by_a_default() -> None:
    model = text("""g (float[2,3] x) => (float[2,3] y) <float[3] s = {1, 1, 1}, int64[1] n = {1}> {
        z = ConstantOfShape(n)
        r = Add(x, z)
        y = LayerNormalization(r, s)
    }""")
    x = np.array([[1, 2, 4], [1e4, 1e4 + 1, 1e4 + 3]], np.float32)
    result = engine("numpy").Runner(model, float64=True)({"x": x})["y"]
    wide = x.astype(np.float64)
    centred = wide - wide.mean(1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(1, keepdims=True) + np.float32(1e-5))
    assert result.dtype == np.float64
    np.testing.assert_allclose(result, expected, rtol=1e-12)


def custom(*ops: str) -> Model:
    nodes = " ".join(f"y{i} = com.acme.{op}(x)" for i, op in enumerate(ops))
    outputs = ", ".join(f"float[2] y{i}" for i in range(len(ops)))
    header = '<ir_version: 10, opset_import: ["": 22, "com.acme": 1]>'
    return load(onnx.parser.parse_model(f"{header} g (float[2] x) => ({outputs}) {{{nodes}}}"))


class TestLookup:
    def test_everything_missing_is_named_at_once(self) -> None:
        with pytest.raises(UnsupportedOp) as caught:
            engine("numpy").Runner(custom("First", "Second"))
        assert "com.acme::First" in str(caught.value) and "com.acme::Second" in str(caught.value)

    def test_a_kernel_goes_before_the_shared_rule(self) -> None:
        from sardonyx.lower.driver import KERNELS

        try:
            lowering("Twice", domain="com.acme")(lambda xp, x: xp.add(x, x))
            lowering("Twice", domain="com.acme", only="torch")(lambda xp, x: xp.multiply(x, x))
            x = np.array([1, 3], np.float32)
            for name, expected in (("numpy", [2, 6]), ("torch", [1, 9])):
                result = engine(name).Runner(custom("Twice"))({"x": x})["y0"]
                np.testing.assert_array_equal(result, expected)
        finally:
            LOWERINGS.remove("Twice", "com.acme")
            KERNELS["torch"].remove("Twice", "com.acme")

    def test_what_only_numpy_has_is_called_out_and_listed(self) -> None:
        from sardonyx.lower.driver import KERNELS

        try:
            lowering("Odd", domain="com.acme", only="numpy")(lambda xp, x: xp.negative(x))
            runner = engine("torch").Runner(custom("Odd"), fallback="allow")
            x = np.array([1, 3], np.float32)
            np.testing.assert_array_equal(runner({"x": x})["y0"], [-1, -3])
            assert [p.row[0] for p in runner.elsewhere] == ["com.acme::Odd"]
            with pytest.raises(UnsupportedOp, match=r"com\.acme::Odd"):
                engine("torch").Runner(custom("Odd"), fallback="error")
        finally:
            KERNELS["numpy"].remove("Odd", "com.acme")

    def test_a_misspelt_static_input_is_an_error(self) -> None:
        with pytest.raises(ArgumentError, match="shpe"):
            lowering("Third", domain="com.acme", static=("shpe",))(lambda xp, x, shape: x)

    def test_an_unknown_engine_is_an_error(self) -> None:
        with pytest.raises(ArgumentError, match="theano"):
            lowering("Third", domain="com.acme", only="theano")


def test_the_error_function_of_numpy() -> None:
    from sardonyx.lower.error_function import erf

    generator = np.random.default_rng(0)
    edges = [0.0, 5e-324, 0.84375, 1.25, 1 / 0.35, 6.0, np.inf]
    x = np.concatenate(
        [
            generator.uniform(-7, 7, 20_000),
            10 ** generator.uniform(-300, 1, 5_000),
            np.nextafter(edges, 0.0),
            edges,
            np.negative(edges),
        ]
    )
    expected = np.array([math.erf(v) for v in x])
    assert (np.abs(erf(x) - expected) <= np.spacing(np.abs(expected))).all()
    assert np.signbit(erf(np.array(-0.0)))
    assert np.isnan(erf(np.array([np.nan, 1.0]))).tolist() == [True, False]
    assert erf(np.zeros((0, 3))).shape == (0, 3)


@pytest.mark.parametrize(
    "node", ["ConcatFromSequence<axis = 0>(x)", "SequenceLength(x)", "SequenceAt(x, i)"]
)
def test_a_tensor_is_no_sequence(node: str) -> None:
    """A damaged file: its rows must not be taken for the elements of a sequence."""
    text = f"""<ir_version: 9, opset_import: ["": 20]>
    g (float[N,4] x, int64 i) => (float[M,4] y) {{ y = {node} }}"""
    model = load(onnx.parser.parse_model(text))
    with pytest.raises(SardonyxError):
        importlib.import_module("sardonyx.engines.numpy").Runner(model)(
            {"x": np.ones((3, 4), np.float32), "i": np.array(0)}
        )
