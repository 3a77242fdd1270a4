"""Stock onnxruntime: inference and training steps, no training build needed."""

from __future__ import annotations

from sardonyx.engines.onnxruntime.backend import (
    Backend,
    prepare,
    prepare_training,
    run_model,
    supports_device,
    train_model,
)
from sardonyx.engines.onnxruntime.session import Runner
from sardonyx.engines.onnxruntime.step import TrainingRep
