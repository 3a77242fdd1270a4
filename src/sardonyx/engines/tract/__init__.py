"""Models and training steps in tract, a small runtime in Rust."""

from __future__ import annotations

from sardonyx.engines.tract.backend import (
    Backend,
    Runner,
    TrainingRep,
    prepare,
    prepare_training,
    run_model,
    run_node,
    supports_device,
)
