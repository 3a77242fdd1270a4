"""Models and training steps in OpenVINO, on the CPU."""

from __future__ import annotations

from sardonyx.engines.openvino.backend import Backend, Runner, TrainingRep

prepare = Backend.prepare
prepare_training = Backend.prepare_training
run_model = Backend.run_model
run_node = Backend.run_node
supports_device = Backend.supports_device
train_model = Backend.train_model
