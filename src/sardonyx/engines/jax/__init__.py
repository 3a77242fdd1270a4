"""Models on jax: the shared lowerings over its adapter, and its own kernels."""

from __future__ import annotations

from sardonyx.engines.jax.backend import (
    Backend,
    Runner,
    TrainingRep,
    prepare,
    prepare_training,
    run_model,
    run_node,
    supports_device,
    train_model,
)
