"""Every gradient rule, by the tables in tests/cases: finite differences, torch, symbolic shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx import opset
from sardonyx.grad import GRADIENT_RULES, grad
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
    pytest.importorskip("torch")
    outs, leaves = in_torch(case)
    seeds = drawn([tuple(o.shape) for o in outs], 3)
    expected = pulled(outs, list(leaves.values()), seeds)
    names = [f"y{i}" for i in range(len(outs))]
    gradient = grad(model_of(case), of=names, wrt=wrt_of(case), seeds="input")
    result = Runner(gradient)({**feeds_of(case), **seeds_of(names, seeds)})
    for n, o in zip(names, outs, strict=True):
        np.testing.assert_allclose(result[n], o.detach().numpy(), rtol=1e-6, atol=1e-9)
    for n, e in zip(leaves, expected, strict=True):
        close(result[f"grad/{n}"], e, n)


# Straight through, no difference tells anything: the second order is compared with torch's as well.
ROUNDED = [c for c in CASES if c.torch and c.op == "QuantizeLinear"]


@pytest.mark.parametrize("case", ROUNDED, ids=str)
def test_second_order_in_torch(case: Case) -> None:
    torch = pytest.importorskip("torch")
    outs, leaves = in_torch(case)
    first = {
        f"seed/y{i}": torch.tensor(s, requires_grad=True)
        for i, s in enumerate(drawn([tuple(o.shape) for o in outs], 3))
    }
    inner = torch.autograd.grad(
        outs, list(leaves.values()), list(first.values()), create_graph=True
    )
    seeds = drawn([tuple(o.shape) for o in inner], 4)
    wrt = {**leaves, **first}
    expected = pulled(inner, list(wrt.values()), seeds)
    gradient = grad(model_of(case), of="y0", wrt=list(leaves), seeds="input", outputs=False)
    names = [f"grad/{n}" for n in leaves]
    again = grad(gradient, of=names, wrt=list(wrt), seeds="input", outputs=False)
    inputs = {**feeds_of(case), **{n: s.detach().numpy() for n, s in first.items()}}
    result = Runner(again)({**inputs, **seeds_of(names, seeds)})
    for n, e in zip(wrt, expected, strict=True):
        close(result[f"grad/{n}"], e, n)


def test_second_order_of_dynamic_quantization() -> None:
    (one,) = (c for c in CASES if c.op == "DynamicQuantizeLinear")
    first = grad(model_of(one), seeds="input", outputs=False)
    second = grad(first, of="grad/x0", wrt="seed/y0", seeds="input", outputs=False)
    x = feeds_of(one)["x0"]
    seed, outer = drawn([x.shape, x.shape], 5)
    result = Runner(second)(
        {"x0": x, **seeds_of(["y0", "grad/x0"], [seed.astype(np.float32), outer])}
    )
    # Straight through all the way, with a scale that counts as a constant: the identity.
    close(result["grad/seed/y0"], outer, "seed/y0")


def test_every_rule_has_a_second_order_case() -> None:
    twice = {(opset.domain_name(c.domain), c.op) for c in CASES if c.order >= 2}
    # Those of quantizers are the tests above.
    twice |= {("", "QuantizeLinear"), ("", "DynamicQuantizeLinear")}
    ours = {(domain, op) for domain, op in GRADIENT_RULES.rules if opset.schema(op, domain)}
    assert len(ours) > 100
    assert not ours - twice


def in_torch(case: Case) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What torch computes, and the tensors by which it can be differentiated."""
    import torch

    wrt = wrt_of(case)
    floats = {n: a for n, a in feeds_of(case).items() if a.dtype.kind == "f"}
    tensors = {n: torch.tensor(a, requires_grad=n in wrt) for n, a in floats.items()}
    assert case.torch is not None
    out = case.torch(*tensors.values())
    return out if isinstance(out, tuple) else (out,), {n: tensors[n] for n in wrt}


def drawn(shapes: list[tuple[int, ...]], seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) for shape in shapes]


def pulled(outs: Any, wrt: list[Any], seeds: list[np.ndarray]) -> list[np.ndarray]:
    import torch

    tensors = [torch.tensor(s) for s in seeds]
    result = torch.autograd.grad(outs, wrt, tensors, materialize_grads=True)
    return [g.numpy() for g in result]


def seeds_of(names: list[str], seeds: list[np.ndarray]) -> dict[str, np.ndarray]:
    return {f"seed/{n}": s for n, s in zip(names, seeds, strict=True)}


def close(found: np.ndarray, expected: np.ndarray, name: str) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9, err_msg=name)


# What onnxruntime-training gets wrong without a word, and the cases that would find it here.
SILENTLY_WRONG = {
    "Conv, padding worked out by the runtime": [
        "Conv-same-upper",
        "Conv-same-lower",
        "Conv-same-lower-even",
    ],
    "MaxPool, padding worked out by the runtime": ["MaxPool-same-lower", "MaxPool-same-upper"],
    "MaxPool in three dimensions, dilated": ["MaxPool-3d-dilated"],
    "MaxPool, indices by columns": ["MaxPool-column-major"],
    "AveragePool, padding worked out by the runtime": [
        "AveragePool-same-upper",
        "AveragePool-same-lower",
    ],
    "AveragePool, dilated": [
        "AveragePool-dilated-floor-inside",
        "AveragePool-dilated-floor-all",
        "AveragePool-dilated-ceil-inside",
        "AveragePool-dilated-ceil-all",
    ],
    "AveragePool in three dimensions, windows overlap": ["AveragePool-3d"],
    "BatchNormalization, frozen": [
        "BatchNormalization-inference",
        "BatchNormalization-inference-2d",
    ],
    "Dropout that does not train, ratio above 0": ["Dropout-inference", "Dropout-not-training"],
    "scatter with a reduction": [
        "ScatterND-add-duplicates",
        "ScatterND-mul-duplicates",
        "ScatterND-min-duplicates",
        "ScatterND-max-duplicates",
        "ScatterElements-add-duplicates",
        "ScatterElements-mul-duplicates",
        "ScatterElements-min-duplicates",
        "ScatterElements-max-duplicates",
    ],
    "scatter to one place twice": ["ScatterND-duplicates", "ScatterElements-duplicates"],
    "Where, values broadcast": ["Where-values-broadcast", "Where-scalar-broadcasts"],
    "Pow, base broadcasts": ["Pow-base broadcasts"],
    "Split, an output that nobody uses": ["Split-unused-outputs"],
    "Clip, trainable bounds": ["Clip", "Clip-lower bound", "Clip-upper bound"],
    "Pad, trainable value": ["Pad-trainable-value"],
}


@pytest.mark.parametrize("what", SILENTLY_WRONG)
def test_silent_errors_of_onnxruntime_training_have_cases(what: str) -> None:
    assert set(SILENTLY_WRONG[what]) <= {str(c) for c in CASES if c.order >= 2}
