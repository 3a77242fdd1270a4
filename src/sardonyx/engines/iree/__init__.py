"""Models and training steps compiled by IREE, on the CPU."""

from __future__ import annotations

from sardonyx.engines.iree.backend import (
    Backend,
    Runner,
    TrainingRep,
    prepare,
    prepare_training,
    run_model,
    run_node,
    supports_device,
)
