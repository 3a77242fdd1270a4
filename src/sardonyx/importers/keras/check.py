"""Two steps of an imported record against those of Keras, before anybody sees it."""

from __future__ import annotations

import numpy as np

from sardonyx.importers.jax.check import JaxSide, require_same_training
from sardonyx.importers.keras.training import Training
from sardonyx.model import Model
from sardonyx.record.info import state_names, state_tensor


class KerasSide(JaxSide):
    """Keras's training step; JAX counts in 32 bits what a record may count in 64."""

    def __init__(self, training: Training, model: Model):
        super().__init__(training.step, training.state, training.batch, training.batch_names)
        self.state_names = training.state_names
        self.types: dict[str, np.dtype] = {}
        for record in model.records:
            for name in state_names(model, record):
                tensor = state_tensor(model, record, name)
                assert tensor is not None
                self.types[name] = tensor.dtype.numpy()

    def state(self) -> dict[str, np.ndarray]:
        values = super().state()
        return {n: a.astype(self.types[n]) for n, a in values.items() if n in self.types}


def require_same_steps(model: Model, training: Training) -> None:
    """Raise `ImportDiffers` unless two steps of the model's record are those of Keras."""
    side = KerasSide(training, model)
    require_same_training(model, side, {}, [training.draw(1), training.draw(2)])
