"""Models on torch: the shared lowerings over its adapter, and its own kernels."""

from __future__ import annotations

from sardonyx.engines.torch.backend import Backend, Runner, TrainingRep

prepare = Backend.prepare
prepare_training = Backend.prepare_training
run_model = Backend.run_model
run_node = Backend.run_node
supports_device = Backend.supports_device
train_model = Backend.train_model
