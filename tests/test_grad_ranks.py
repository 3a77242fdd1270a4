"""Gradients where not even the ranks of the inputs are declared.

Rules that do without give what they give for known shapes. The others say that they need a rank,
before anything runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from sardonyx.errors import SardonyxError
from sardonyx.grad import grad
from sardonyx.model import Model, from_proto
from sardonyx.testing import Case, Runner, feeds_of, model_of, wrt_of

from .cases import all_cases

# Their gradient counts axes, or reads weights whose rank is not declared either.
NEED_RANKS = {
    *("AveragePool", "BatchNormalization", "CausalConvWithState", "CenterCropPad", "Col2Im"),
    *("Compress", "Conv", "ConvTranspose", "CumProd", "DFT", "DeformConv", "DequantizeLinear"),
    *("Det", "GlobalAveragePool", "GlobalMaxPool", "GridSample", "GroupNormalization"),
    *("InstanceNormalization", "LRN", "LpPool", "MaxPool", "Attention", "Resize"),
    *("RotaryEmbedding", "ScatterND", "TensorScatter"),
}
# onnxruntime runs no Scan, and we know no other way back, where a body's shapes are not known.
NEED_SHAPES_TO_RUN = {"LinearAttention", "Loop", "Scan"}


def one_of_each() -> list[Case]:
    first: dict[str, Case] = {}
    for case in all_cases():
        if case.order >= 1:
            first.setdefault(case.op, case)
    return [c for op, c in first.items() if op not in NEED_SHAPES_TO_RUN]


def without_shapes(case: Case) -> Model:
    proto = model_of(case).proto()
    for info in (*proto.graph.input, *proto.graph.output):
        if info.type.tensor_type.elem_type in (TensorProto.DOUBLE, TensorProto.FLOAT):
            info.type.tensor_type.ClearField("shape")
    del proto.graph.value_info[:]
    return from_proto(proto)


def marked() -> list[object]:
    return [
        pytest.param(case, marks=() if i % 8 == 0 else pytest.mark.nightly, id=str(case))
        for i, case in enumerate(one_of_each())
    ]


@pytest.mark.parametrize("case", marked())
def test_unknown_ranks(case: Case) -> None:
    model, feeds, wrt = model_of(case), feeds_of(case), wrt_of(case)
    values = Runner(model)(feeds)
    of = [n for n, v in values.items() if v.dtype.kind == "f"]
    options: dict[str, Any] = {"of": of, "wrt": wrt, "seeds": "input", "outputs": False}
    if case.op in NEED_RANKS:
        with pytest.raises(SardonyxError, match=r"the rank of .* is not known|no gradient rule"):
            grad(without_shapes(case), **options)
        return
    rng = np.random.default_rng(0)
    seeds = {f"seed/{n}": rng.normal(size=values[n].shape).astype(values[n].dtype) for n in of}
    expected = Runner(grad(model, **options))({**feeds, **seeds})
    result = Runner(grad(without_shapes(case), **options))({**feeds, **seeds})
    for name, exact in expected.items():
        np.testing.assert_allclose(result[name], exact, rtol=1e-6, atol=1e-9, err_msg=name)


def test_listed_operators_have_cases() -> None:
    assert {c.op for c in all_cases()} >= NEED_RANKS | NEED_SHAPES_TO_RUN
