"""Whole training steps of networks in Flax and Equinox: ten of them, in onnxruntime and in JAX."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sardonyx as sx

jax = pytest.importorskip("jax")
pytest.importorskip("equinox")
pytest.importorskip("flax")

from tests.jax_networks import NETWORKS  # noqa: E402

QUICK = ("mlp in equinox", "lstm in equinox")
CASES = [pytest.param(n, marks=[] if n in QUICK else pytest.mark.nightly) for n in NETWORKS]


@pytest.mark.parametrize("name", CASES)
def test_ten_steps_have_the_losses_of_jax(name: str) -> None:
    step, state, batch = NETWORKS[name]()
    training = sx.prepare_training(sx.from_jax_step(step, state, batch))
    compiled = jax.jit(step)
    feeds = {key: np.asarray(value) for key, value in batch.items()}
    for _ in range(10):
        state, metrics = compiled(state, batch)
        expected: dict[str, Any] = metrics if isinstance(metrics, dict) else {"loss": metrics}
        result = training.step(feeds)
        for key, value in expected.items():
            np.testing.assert_allclose(result[key], value, rtol=2e-5, atol=1e-6)
