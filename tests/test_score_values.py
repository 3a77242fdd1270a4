"""The scoreboard: its cases, values sent between processes, and how values are compared."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from sardonyx.score import (
    judge,
    suite,
)
from sardonyx.score.judge import compare
from sardonyx.score.worker import pack, unpack
from tests import official

# -- the suite ------------------------------------------------------------------------------


def test_suite_is_the_official_one() -> None:
    theirs = {case.name: case for case in official.cases()}
    ours = suite.by_name()
    assert ours.keys() == theirs.keys()
    for name in ("test_relu", "test_conv_with_strides_padding", "test_sequence_model1"):
        ((inputs, expected),) = theirs[name].sets()
        case = ours[name]
        assert case.proto() == theirs[name].model
        assert (case.rtol, case.atol) == (theirs[name].test.rtol, theirs[name].test.atol)
        for result, arguments in ((case.inputs(), inputs), (case.expected(), expected)):
            assert compare(list(result.values()), arguments, 0, 0).kind == "same"


def test_a_case_knows_its_operator() -> None:
    cases = suite.by_name()
    assert cases["test_less_equal_uint16_expanded"].op == "LessOrEqual"
    assert cases["test_nllloss_NC_expanded"].op == "NegativeLogLikelihoodLoss"
    assert cases["test_ai_onnx_ml_binarizer"].op == "ai.onnx.ml::Binarizer"
    assert cases["test_if"].op == "If"
    assert cases["test_resnet50"].op == ""


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.array(3, np.int64),
        np.zeros((0, 2), np.uint8),
        np.array([1.5, -2], ml_dtypes.bfloat16),
        np.array([1, 2, 3], ml_dtypes.int4),
        np.array([["a", "é"], ["", "日"]], object),
        [np.ones(2), [np.zeros(1, np.int32)]],
        None,
        {"a": np.ones(1), "b": None},
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_travel(value: object) -> None:
    (result,) = unpack(pack({"x": value})).values()
    if value is None or isinstance(value, dict):
        assert str(result) == str(value)
    else:
        assert compare([value], [result], 0, 0).kind == "same"


# -- comparing --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "found", "kind"),
    [
        (np.float32([1, 2]), np.float32([1, 2.001]), "same"),
        (np.float32([1, 2]), np.float32([1, 2.1]), "wrong"),
        (np.float32([0, 2]), np.float32([5e-7, 2]), "close"),
        (np.float32([0, 2]), np.float32([5e-6, 2]), "wrong"),
        (np.float32([np.nan, 1]), np.float32([np.nan, 1]), "same"),
        (np.float32([np.inf, 1]), np.float32([-np.inf, 1]), "wrong"),
        (np.float32([1, 2]), np.float32([np.nan, 2]), "wrong"),
        (np.float32([1]), np.float64([1]), "form"),
        (np.float32([1]), np.float32([[1]]), "form"),
        (np.int64([2**62 + 1]), np.int64([2**62 + 1]), "same"),
        (np.int8([1, 2]), np.int8([1, 3]), "wrong"),
        (np.array(["a"], object), np.array(["a"]), "same"),
        (np.array(["a"], object), np.array(["b"]), "wrong"),
        (np.array([1, 2], ml_dtypes.bfloat16), np.array([1, 2.016], ml_dtypes.bfloat16), "same"),
        ([np.ones(1)], [np.ones(1), np.ones(1)], "form"),
        (None, np.ones(1), "form"),
    ],
)
def test_compare(expected: object, found: object, kind: str) -> None:
    assert compare([expected], [found], 1e-3, 1e-7, judge.unit([expected])).kind == kind


def test_comparison_is_that_of_the_suite() -> None:
    from onnx.backend.test.runner import Runner

    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16, np.int32):
        for size in (0, 1e-8, 1e-4, 2e-3, 3e-2, 0.3):
            expected = (10 * rng.normal(size=20)).astype(dtype)
            result = (expected.astype(np.float64) * (1 + size)).astype(dtype)
            try:
                Runner.assert_similar_outputs([expected], [result], 1e-3, 1e-7)
                same = True
            except AssertionError:
                same = False
            assert (compare([expected], [result], 1e-3, 1e-7).kind == "same") == same


def test_messages_name_no_folder_of_this_machine() -> None:
    result = judge.tidy(
        "cannot read '/home/somebody/models/a.onnx' (see ~/x/y/log) and/or fail\n now"
    )
    assert result == "cannot read '…/a.onnx' (see …/log) and/or fail now"
    assert len(judge.tidy("x" * 2000)) < 400
