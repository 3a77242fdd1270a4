"""Which cases of the official suite a framework takes whole: those that are listed are refused with
`fallback="error"`, and no others.

What the values are is the business of test_backend.py: a case without a call-out is the same there.
"""

from __future__ import annotations

import importlib

import pytest

from sardonyx.grad.training import lower_training
from sardonyx.lower.driver import prepare
from sardonyx.lower.runner import has_gradients
from sardonyx.model import load
from sardonyx.normalize import normalize

from .official import Official, cases, known_failures, reason
from .test_backend import in_sample

FRAMEWORKS = ("torch", "jax", "tensorflow")


def elsewhere(framework: str, case: Official) -> list[str]:
    """The operators of a case that a framework leaves to numpy."""
    arrays = importlib.import_module(f"sardonyx.engines.{framework}.backend").arrays()
    model = load(case.model)
    model = lower_training(model) if has_gradients(model) else model
    return [p.node.op_type for p in prepare(normalize(model), framework, arrays.strings).placements]


def check(framework: str, chosen: list[Official]) -> None:
    pytest.importorskip(framework)
    known = known_failures("native")
    result = {case.name: ops for case in chosen if (ops := elsewhere(framework, case))}
    assert set(result) == {c.name for c in chosen if reason(known, c.name) is not None}, result


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_is_listed_and_a_sample(framework: str) -> None:
    known = known_failures("native")
    check(framework, [c for c in cases() if reason(known, c.name) or in_sample(c.name)])


@pytest.mark.nightly
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_case(framework: str) -> None:
    check(framework, cases())


def test_every_pattern_is_of_a_case() -> None:
    for pattern in known_failures("native"):
        assert any(reason({pattern: "listed"}, case.name) for case in cases()), pattern
