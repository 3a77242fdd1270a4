"""Models and training steps in OpenVINO, on the CPU."""

from __future__ import annotations

from sardonyx.engines.openvino.backend import (
    Backend,
    Runner,
    TrainingRep,
    prepare,
    prepare_training,
    run_model,
    run_node,
    supports_device,
)
