"""Every gradient rule, by the tables in tests/cases: finite differences, torch, symbolic shapes."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx.grad import grad
from sardonyx.testing import Case, Runner, check_grads, check_symbolic, feeds_of, model_of, wrt_of

from .cases import all_cases

CASES = all_cases()


@pytest.mark.parametrize("case", [c for c in CASES if c.order >= 1], ids=str)
def test_grad(case: Case) -> None:
    check_grads(case)


@pytest.mark.parametrize("case", [c for c in CASES if c.order >= 1 and c.symbolic], ids=str)
def test_symbolic(case: Case) -> None:
    check_symbolic(case)


@pytest.mark.parametrize("case", [c for c in CASES if c.torch], ids=str)
def test_torch(case: Case) -> None:
    torch = pytest.importorskip("torch")
    model, feeds = model_of(case), feeds_of(case)
    wrt = wrt_of(case)
    floats = {n: a for n, a in feeds.items() if a.dtype.kind == "f"}
    leaves = {n: torch.tensor(a, requires_grad=n in wrt) for n, a in floats.items()}
    assert case.torch is not None
    out = case.torch(*leaves.values())
    outs = out if isinstance(out, tuple) else (out,)
    rng = np.random.default_rng(3)
    seeds = [rng.normal(size=tuple(o.shape)) for o in outs]
    expected = torch.autograd.grad(
        outs, [leaves[n] for n in wrt], [torch.tensor(s) for s in seeds], materialize_grads=True
    )
    names = [f"y{i}" for i in range(len(outs))]
    gradient = grad(model, of=names, wrt=wrt, seeds="input")
    found = Runner(gradient)(
        {**feeds, **{f"seed/{n}": s for n, s in zip(names, seeds, strict=True)}}
    )
    for n, o in zip(names, outs, strict=True):
        np.testing.assert_allclose(found[n], o.detach().numpy(), rtol=1e-6, atol=1e-9)
    for n, e in zip(wrt, expected, strict=True):
        np.testing.assert_allclose(found[f"grad/{n}"], e.numpy(), rtol=1e-6, atol=1e-9, err_msg=n)
