"""The gradient axis: differences of the models themselves, and gradients held against them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sardonyx.score import derivatives, engines, gradients, suite
from sardonyx.score.derivatives import GradientCase
from sardonyx.score.judge import Cell
from sardonyx.score.pool import Worker


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Cases by name, prepared in a folder of the test's own."""
    monkeypatch.setattr(derivatives, "_folder", lambda: tmp_path)

    def prepare(name: str) -> GradientCase:
        case = suite.by_name()[name]
        row = derivatives._prepare(case)
        assert "digest" in row, row
        return GradientCase(name, case.op, case.ops, row["digest"], row["exact"])

    return prepare


# The derivative of each, by hand: Σ seed · (derivative of the output along the direction).
FORMULAS = {
    "test_exp": lambda x, d: np.exp(x) * d,
    "test_mul": lambda x, y, d, e: d * y + x * e,
    "test_matmul_2d": lambda a, b, d, e: d @ b + a @ e,
    "test_reduce_sum_square_keepdims_random": lambda x, d: (2 * x * d).sum(1, keepdims=True),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_differences_are_derivatives(name: str, prepared) -> None:  # type: ignore[no-untyped-def]
    case = prepared(name)
    assert case.exact
    point = case.point()
    inputs = [point["inputs"][n].astype(np.float64) for n in point["wrt"]]
    directions = [point["direction"][n] for n in point["wrt"]]
    (seed,) = point["seeds"].values()
    expected = float((seed.astype(np.float64) * FORMULAS[name](*inputs, *directions)).sum())
    assert float(point["expected"]) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("test_argmax_default_axis_example", "no float"),
        ("test_floor", "derivative is zero"),
        ("test_bernoulli", "random"),
        ("test_resnet50", "whole network"),
    ],
)
def test_what_has_no_derivative_takes_no_part(
    name: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(derivatives, "_folder", lambda: tmp_path)
    assert reason in derivatives._prepare(suite.by_name()[name])["skipped"]


def test_weights_that_old_files_list_as_inputs_are_no_inputs() -> None:
    proto = suite.by_name()["test_Conv1d"].proto()
    wrt, of = derivatives.ends(proto)
    assert len(proto.graph.input) > len(wrt) == 1
    assert len(of) == 1


ADAPTER = """
import numpy as np

def gradient(model, inputs, seeds, wrt):
    (x,), (seed,) = inputs.values(), seeds.values()
    return {{name: {formula} for name in wrt}}
"""


@pytest.mark.parametrize(
    ("formula", "kind"),
    [
        ("np.exp(x) * seed", "pass"),
        ("np.exp(x) * seed * np.float32(1.01)", "wrong numbers"),
        ("np.zeros_like(x)", "wrong numbers"),
        ("np.ones((1, 1))", "wrong numbers"),
        ("1 / 0", "unsupported"),
        ("np.exp(x) * seed * (1.01 if x.dtype == np.float32 else 1)", "tolerance only"),
    ],
)
def test_gradients_are_judged(formula: str, kind: str, tmp_path: Path, prepared) -> None:  # type: ignore[no-untyped-def]
    adapter = tmp_path / "mine.py"
    adapter.write_text(ADAPTER.format(formula=formula))
    case = prepared("test_exp")
    with Worker(engines.given(adapter), 30) as worker:
        assert gradients.judge(worker, case).kind == kind


# Also where sizes and axes come as inputs, which no graph can hold.
DIFFERENTIATED = (
    *("test_conv_with_strides_padding", "test_softmax_axis_1", "test_mul_bcast"),
    *("test_compress_0", "test_reduce_l1_keep_dims_example", "test_affine_grid_2d"),
)
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("torch", "jax", "tensorflow")]


@pytest.mark.parametrize("engine", ["onnxruntime", "numpy", *SLOW])
def test_our_engines_have_gradients(engine: str, prepared) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip(engine)
    with Worker(engines.ours_of(engine), 120) as worker:
        for name in DIFFERENTIATED:
            assert gradients.judge(worker, prepared(name)) == Cell("pass"), name
