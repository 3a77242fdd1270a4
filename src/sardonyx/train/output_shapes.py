"""Shapes of outputs that a file declares and that nothing confirms are learned from the data.

Files declare wrong ranks, and where a shape depends on data nothing in the graph contradicts them.
Labels have the shape of the prediction: a few rows of the data show it.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.errors import SardonyxError
from sardonyx.model import Model
from sardonyx.normalize import normalize
from sardonyx.passes.shapes import ONLY_DECLARED
from sardonyx.train.batches import epoch_blocks
from sardonyx.train.fields import Feeding, fixed_batch, link
from sardonyx.train.tables import Source

ROWS = 2


def with_learned_shapes(model: Model, source: Source, feeding: Feeding) -> Model:
    """The model with the ranks of its outputs as some rows of the data show them."""
    doubtful = {v.name for v in normalize(model).outputs if v.meta.get(ONLY_DECLARED)}
    if not doubtful or model.records:
        return model
    from sardonyx.engines.onnxruntime import Runner

    try:
        links = link(model.inputs, [], source, feeding)
        size = fixed_batch(links) or ROWS
        batch = next(iter(epoch_blocks(source, links, size, seed=None, epoch=0)))[0]
        outputs = Runner(model)(batch)
    except SardonyxError:  # what does not fit is reported when the labels are known too
        return model
    learned = model.copy()
    for value in learned.outputs:
        if value.name in doubtful and value.name in outputs:
            value.shape = ir.Shape(_dims(value, outputs[value.name].shape))
    return learned


def _dims(value: ir.Value, shape: tuple[int, ...]) -> list[int | str]:
    """Sizes as declared where the rank was right; else only that of the last axis is taken over."""
    declared = list(value.shape or ())
    if len(declared) == len(shape):
        fits = [not isinstance(d, int) or d == n for d, n in zip(declared, shape, strict=True)]
        return [d if fit else f"{value.name}_{i}" for i, (d, fit) in enumerate(zip(declared, fits))]  # type: ignore[misc]
    free: list[int | str] = [f"{value.name}_{i}" for i in range(len(shape))]
    return [*free[:-1], shape[-1]] if len(shape) > 1 else free
