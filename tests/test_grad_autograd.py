"""Every case of the tables: full gradients against torch's differentiation of the same model."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx.grad import grad
from sardonyx.normalize import normalize
from sardonyx.testing import Case, Runner, feeds_of, model_of, wrt_of

from .autograd import autograd
from .cases import all_cases

UNORDERED = "which of several updates of one element wins is not the same in torch"
STATISTICS = "torch's batch normalization does not differentiate by its statistics"
NOT_IN_TORCH = {
    "BatchNormalization-inference": STATISTICS,
    "BatchNormalization-inference-2d": STATISTICS,
    "Det-singular": "torch's gradient of a singular matrix is not its cofactors",
    "Range": "torch's arange is not differentiable",
    "Range-negative delta": "torch's arange is not differentiable",
    "ScatterElements-duplicates": UNORDERED,
    "ScatterElements-duplicates-when-run": UNORDERED,
    "ScatterND-duplicates": UNORDERED,
    "ScatterND-duplicates-when-run": UNORDERED,
    "ScatterND-elements-when-run": UNORDERED,
}


def marked() -> list[object]:
    cases = [c for c in all_cases() if c.order >= 1 and str(c) not in NOT_IN_TORCH]
    return [
        pytest.param(c, marks=() if i % 8 == 0 else pytest.mark.nightly, id=str(c))
        for i, c in enumerate(cases)
    ]


@pytest.mark.parametrize("case", marked())
def test_full_gradients(case: Case) -> None:
    pytest.importorskip("torch")
    model, feeds, wrt = normalize(model_of(case)), feeds_of(case), wrt_of(case)
    values = Runner(model)(feeds)
    of = [n for n, v in values.items() if v.dtype.kind == "f"]
    rng = np.random.default_rng(3)
    seeds = {n: rng.normal(size=values[n].shape).astype(values[n].dtype) for n in of}
    expected = autograd(model, feeds, wrt, seeds)
    gradient = Runner(grad(model, of=of, wrt=wrt, seeds="input", outputs=False))
    result = gradient({**feeds, **{f"seed/{n}": s for n, s in seeds.items()}})
    for n, exact in expected.items():
        scale = max(float(np.max(np.abs(exact), initial=0)), 1e-3)
        np.testing.assert_allclose(result[f"grad/{n}"], exact, rtol=0, atol=1e-6 * scale, err_msg=n)


def test_listed_cases_exist() -> None:
    assert set(NOT_IN_TORCH) <= {str(c) for c in all_cases()}
