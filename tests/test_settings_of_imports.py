"""Pairs of settings of trainings that are imported from torch and JAX; the sweeps draw more."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxscript")
pytest.importorskip("jax")
pytest.importorskip("optax")

from tests.sweeps import jax_trainings, torch_trainings

# Chosen for what they combine: a scheduler before the first update of ASGD, a group that is added
# late, averages of accumulated and clipped gradients, cycled momentum, parameters left out.
OF_TORCH = (12, 1032, 3004)
OF_JAX = (1, 8, 11)
NIGHTLY = range(40)


@pytest.mark.parametrize("index", OF_TORCH)
def test_drawn_settings_of_torch(index: int) -> None:
    combination = torch_trainings.drawn(0, index)
    assert torch_trainings.judge(combination) == "", combination


@pytest.mark.parametrize("index", OF_JAX)
def test_drawn_settings_of_optax(index: int) -> None:
    combination = jax_trainings.drawn(0, index)
    assert jax_trainings.judge(combination) == "", combination


@pytest.mark.nightly
@pytest.mark.parametrize("index", NIGHTLY)
def test_more_settings(index: int) -> None:
    assert torch_trainings.judge(torch_trainings.drawn(1, index)) == ""
    assert jax_trainings.judge(jax_trainings.drawn(1, index)) == ""
