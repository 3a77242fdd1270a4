"""Stock onnxruntime: inference and training steps, no training build needed."""

from __future__ import annotations

from sardonyx.engines.onnxruntime.backend import Backend
from sardonyx.engines.onnxruntime.session import Runner
from sardonyx.engines.onnxruntime.step import TrainingRep

prepare = Backend.prepare
prepare_training = Backend.prepare_training
run_model = Backend.run_model
run_node = Backend.run_node
supports_device = Backend.supports_device
train_model = Backend.train_model
