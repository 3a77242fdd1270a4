"""Types and shapes that nothing in a file confirms are learned from a few rows of the data.

Files declare wrong ranks, and where a shape depends on data nothing in the graph contradicts them.
Labels have the shape of the prediction. And nothing is known of what an operator of another
library gives, unless the file declares it: gradients behind a tokenizer need its rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from sardonyx.engines.training import front_runner
from sardonyx.errors import SardonyxError
from sardonyx.model import Model
from sardonyx.normalize import normalize
from sardonyx.passes.shapes import ONLY_DECLARED
from sardonyx.record.front import separate
from sardonyx.train.batches import epoch_blocks
from sardonyx.train.fields import Feeding, fixed_batch, link
from sardonyx.train.tables import Rows, Source

ROWS = 2


def with_learned_shapes(model: Model, source: Source, feeding: Feeding) -> Model:
    """The model with what some rows of the data show: types and ranks of features and outputs."""
    return _with_output_shapes(_with_feature_types(model, source, feeding), source, feeding)


def _with_feature_types(model: Model, source: Source, feeding: Feeding) -> Model:
    """The model with the types and ranks of what its front gives, where a file lacks them."""
    front = separate(model)
    if front is None:
        return model
    features = {v.name for v in front.rest.inputs if v.dtype is None or v.shape is None}
    unknown = [v for n in front.model.graph for v in n.outputs if v.dtype is None]
    if not unknown and not features & set(front.features):
        return model
    outputs = front.model.graph.outputs
    outputs.extend(v for v in unknown if not v.is_graph_output())
    names = {v.name or "" for v in outputs if v in unknown or v.name in features}
    arrays = front_runner(front.model)(_some_rows(front.model, source, feeding))
    learned = model.copy()
    values = {v.name: v for node in learned.graph for v in node.outputs}
    for name in names:
        dims = [f"{name}_{axis}" for axis in range(arrays[name].ndim)]
        values[name].type = ir.TensorType(ir.DataType.from_numpy(arrays[name].dtype))
        values[name].shape = ir.Shape(dims)
    return learned


def _some_rows(model: Model, source: Source, feeding: Feeding) -> Rows:
    """A small batch of the data, as a model takes it."""
    links = link(model.inputs, [], source, _about(feeding, model))
    size = fixed_batch(links) or ROWS
    return next(iter(epoch_blocks(source, links, size, seed=None, epoch=0)))[0]


def _about(feeding: Feeding, model: Model) -> Feeding:
    """What the user says of the inputs that a model has."""
    names = {v.name for v in model.inputs}

    def of_model(option: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in option.items() if name in names}

    return Feeding(
        of_model(feeding.fields), of_model(feeding.constants), of_model(feeding.batch_axes)
    )


def _with_output_shapes(model: Model, source: Source, feeding: Feeding) -> Model:
    doubtful = {v.name for v in normalize(model).outputs if v.meta.get(ONLY_DECLARED)}
    if not doubtful or model.records:
        return model
    from sardonyx.engines.onnxruntime import Runner

    try:
        outputs = Runner(model)(_some_rows(model, source, feeding))
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
