"""Faults that must be found, with their node, and correct conversions that raise no alarm.

The faults are in `mutants.py`.
"""

from __future__ import annotations

import pytest

import sardonyx as sx
from sardonyx.verify.noise import DIFFERENT, SAME
from sardonyx.verify.subjects import OnnxSubject
from tests.mutants import MUTANTS, NETWORKS, Mutant, attr, fault, inputs


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_fault_is_found_and_its_node_named(mutant: Mutant) -> None:
    report = sx.verify(
        OnnxSubject(sx.load(NETWORKS[mutant.network]()), name="right"), mutant.model(), seeds=2
    )
    assert report.verdict == DIFFERENT
    assert report.culprit is not None
    assert report.culprit.node == f"node/{mutant.node}"
    assert not report.culprit.subject.startswith("right")


def test_fixed_tolerance_misses_what_the_ratio_finds() -> None:
    right, wrong = NETWORKS["transformer"](), fault("transformer", "Gelu by tanh")
    assert sx.verify(right, wrong, rtol=1e-3, atol=1e-3).verdict == SAME
    assert sx.verify(right, wrong, culprit=False).verdict == DIFFERENT


@pytest.mark.parametrize("network", NETWORKS)
def test_correct_runs_raise_no_alarm(network: str) -> None:
    report = sx.verify(NETWORKS[network](), "numpy", seeds=3)
    assert report.verdict == SAME, str(report)


@pytest.mark.parametrize("network", NETWORKS)
def test_correct_conversion_to_torch_raises_no_alarm(network: str) -> None:
    report = sx.verify(NETWORKS[network](), "torch", seeds=2)
    assert report.verdict == SAME, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["jax", "tensorflow"])
@pytest.mark.parametrize("network", NETWORKS)
def test_correct_conversion_raises_no_alarm(network: str, engine: str) -> None:
    report = sx.verify(NETWORKS[network](), engine, seeds=2)
    assert report.verdict == SAME, str(report)


def test_mutants_are_enough_and_of_enough_kinds() -> None:
    assert len(MUTANTS) >= 40
    assert len({m.network for m in MUTANTS}) >= 6
    assert len({str(m) for m in MUTANTS}) == len(MUTANTS)


def test_changes_of_mutants_are_changes() -> None:
    """A fault that changes nothing would be a test that cannot fail."""
    for mutant in MUTANTS:
        assert (
            mutant.model().SerializeToString() != NETWORKS[mutant.network]().SerializeToString()
        ), str(mutant)
    untouched = NETWORKS["cnn"]()
    attr("conv1")(untouched)
    inputs("conv1", _2="b1")(untouched)
    assert untouched.SerializeToString() == NETWORKS["cnn"]().SerializeToString()
