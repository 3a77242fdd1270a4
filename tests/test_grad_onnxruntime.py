"""Every gradient graph runs on stock onnxruntime in float32, and agrees with float64.

The other tests compute in float64, for which onnxruntime lacks kernels, and fall back on ONNX's
reference.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx.grad import grad
from sardonyx.testing import Case, Runner, feeds_of, model_of, wrt_of

from .cases import all_cases

# Cases whose forward node onnxruntime refuses in float32, too.
NOT_ON_ONNXRUNTIME = {
    "Attention-float-mask": "a mask that broadcasts over the queries",
    "Attention-short-mask": "a mask shorter than the keys",
    "ConvTranspose-padding-beyond-stride": "output_padding as large as the stride",
    "MaxUnpool": "indices of another shape than the data",
    "MaxUnpool-output-shape": "indices of another shape than the data",
    "Resize-vector": "linear interpolation of a vector",
    "SequenceInsert-into-an-empty-one": "its text says that the empty sequence holds doubles",
}


def gradient(case: Case, dtype: Any) -> tuple[Runner, dict[str, np.ndarray]]:
    """The runner of a case's gradient, and what it finds with fixed random seeds."""
    model, feeds = model_of(case, dtype), feeds_of(case, dtype)
    values = Runner(model)(feeds)
    floats = [n for n, v in values.items() if v.dtype.kind == "f"]
    runner = Runner(grad(model, of=floats, wrt=wrt_of(case), seeds="input", outputs=False))
    rng = np.random.default_rng(5)
    seeds = {f"seed/{n}": rng.normal(size=values[n].shape).astype(values[n].dtype) for n in floats}
    return runner, runner({**feeds, **seeds})


def has_float32_form(case: Case) -> bool:
    """Whether the case can be stated in float32 on onnxruntime: some texts name their types."""
    return str(case) not in NOT_ON_ONNXRUNTIME and "double" not in case.nodes


@pytest.mark.parametrize(
    "case", [c for c in all_cases() if c.order >= 1 and has_float32_form(c)], ids=str
)
def test_gradient_runs_on_onnxruntime(case: Case) -> None:
    runner, result = gradient(case, np.float32)
    assert runner.session is not None, "onnxruntime does not load the gradient"
    _, expected = gradient(case, np.float64)
    for name, exact in expected.items():
        scale = max(1.0, float(np.max(np.abs(exact), initial=0)))
        np.testing.assert_allclose(result[name], exact, rtol=1e-4, atol=2e-5 * scale, err_msg=name)


def test_listed_cases_exist() -> None:
    assert set(NOT_ON_ONNXRUNTIME) <= {str(c) for c in all_cases()}
