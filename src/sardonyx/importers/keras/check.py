"""Two steps of an imported record against those of Keras, before anybody sees it."""

from __future__ import annotations

from sardonyx.importers.jax.check import JaxSide, require_same_training
from sardonyx.importers.keras.training import Training
from sardonyx.model import Model


def require_same_steps(model: Model, training: Training) -> None:
    """Raise `ImportDiffers` unless two steps of the model's record are those of Keras."""
    side = JaxSide(training.step, training.state, training.batch, training.batch_names)
    side.state_names = training.state_names
    require_same_training(model, side, {}, [training.draw(1), training.draw(2)])
