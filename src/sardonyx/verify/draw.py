"""Random inputs that show something: sizes and values are drawn until the model's outputs do.

A draw is rated by what the model makes of it. Best are outputs that are finite and vary; worst are
outputs that are empty or hold NaN, which nothing can be compared by. How single inputs are drawn is
in `inputs.py`.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.shape_inference

from sardonyx.errors import ArgumentError, EngineError, SardonyxError, UnsupportedOp
from sardonyx.model import Model
from sardonyx.normalize import normalize
from sardonyx.verify.budget import Budget
from sardonyx.verify.datasets import DataSet
from sardonyx.verify.exact import Reference, is_float
from sardonyx.verify.inputs import STYLES, leading, sample, size_choices, symbol, symbols
from sardonyx.verify.subjects import Subject

POOR = 10_000  # numbers to feed at most, in search of outputs that are not constant
MOST = 1 << 22  # numbers to feed at most, where the sizes are free: memory is bounded
PATIENCE = 60.0  # seconds to search for sizes
QUICK = 0.3  # seconds of a run on numpy: then larger inputs are tried there too
LONG = 1.0  # seconds of a run: then a batch of one has to do
LARGE = 640  # a size at which what is empty is so by the model's own design
GOOD, HOLLOW, CONSTANT, BLIND = range(4)  # ratings of a draw; see `Drawer`


class Drawer:
    """Draws inputs for the model of a subject.

    GOOD     -- every output is finite and varies
    HOLLOW   -- the same, but a tensor inside is empty at these sizes
    CONSTANT -- an output is one number all over
    BLIND    -- an output is empty or not finite
    """

    def __init__(self, item: Subject, budget: Budget, sliced: bool = False):
        assert item.model is not None
        self.budget = budget
        self.item, self.model, self.sliced = item, item.model, sliced
        self.regular = normalize(item.model)
        self.failure: SardonyxError | None = None
        self.seconds = 0.0  # of the last run
        self.plain_seconds = 0.0  # of the last run on numpy
        self.batch_of_one: dict[str, int] = {}  # sizes for all further draws
        self._plain: Reference | None = None
        self._hollow_by_design: set[str] | None = None

    def __call__(self, seed: int, sizes: Mapping[str, int] | None) -> DataSet:
        """The first good draw, else the best one; raises where the model takes none."""
        draws: list[tuple[int, DataSet]] = []
        start = time.monotonic()
        self.failure = None
        sizes = {**(sizes or {}), **self.batch_of_one}
        for style, choice in self._choices(seed, sizes, draws):
            feeds = sample(self.model, seed, choice, style, self.regular)
            data = DataSet(_label(seed, choice, style), feeds)
            if self.sliced and (not symbols(self.model) or _count(feeds) > POOR):
                return data  # rating it would run the whole model
            rating = self._rated(feeds, choice)
            if rating == GOOD:
                is_long = self.seconds > LONG and style == STYLES[0]
                return self._smaller(seed, choice, data, sizes) if is_long else data
            if rating is not None:
                draws.append((rating, data))
            # Larger sizes are of use where something was empty, and seldom where all is constant.
            is_constant = len(draws) > 1 and any(r == CONSTANT for r, _ in draws)
            is_large = is_constant and _count(feeds) > POOR
            patience = min(PATIENCE, 0.3 * self.budget.seconds)
            if is_large or ((self.failure or draws) and time.monotonic() - start > patience):
                break
        if draws:
            return min(draws, key=lambda draw: draw[0])[1]
        if self.failure is None:
            raise EngineError("no sizes were found that are small enough", hint="give inputs=")
        raise EngineError(
            f"no random inputs were found that the model takes: {self.failure.what}",
            self.failure.where,
            hint="give inputs=, or sizes= for its symbolic dimensions",
        )

    def _smaller(
        self, seed: int, sizes: dict[str, int], data: DataSet, fixed: Mapping[str, int]
    ) -> DataSet:
        """The same with a batch of one, where the batch is free: a run takes long."""
        batches = [n for n in leading(self.model) if sizes.get(n, 1) > 1 and n not in fixed]
        choice = sizes | dict.fromkeys(batches, 1)
        feeds = sample(self.model, seed, choice, regular=self.regular)
        if not batches or self._rated(feeds, choice) != GOOD:
            return data
        self.batch_of_one = dict.fromkeys(batches, 1)
        return DataSet(_label(seed, choice, STYLES[0]), feeds)

    def _choices(
        self, seed: int, sizes: Mapping[str, int] | None, draws: list[Any]
    ) -> Iterator[tuple[str, dict[str, int]]]:
        """Sizes with numbers of the usual kind; then numbers of other kinds at sizes that ran."""
        usable = []
        for choice in size_choices(self.model, seed, sizes):
            if choice.keys() - (sizes or {}).keys() and self._elements(choice) > MOST:
                continue
            count = len(draws)
            yield STYLES[0], choice
            if len(draws) > count:
                usable.append(choice)
        if draws and min(rating for rating, _ in draws) == BLIND:
            for style in STYLES[1:]:
                for choice in usable[:2]:
                    yield style, choice

    def _elements(self, sizes: Mapping[str, int]) -> int:
        """How many numbers the inputs have at these sizes."""
        return sum(
            math.prod(
                d if isinstance(d, int) else sizes.get(symbol(value, axis), 1)
                for axis, d in enumerate(value.shape or ())
            )
            for value in self.model.inputs
        )

    def _rated(self, feeds: dict[str, Any], sizes: Mapping[str, int]) -> int | None:
        """How much a draw shows; None where the model does not take it."""
        try:
            outputs = self._outputs(feeds)
        except (EngineError, ArgumentError) as error:
            self.failure = self.failure or error
            return None
        rating = max(map(rated, outputs), default=GOOD)
        return HOLLOW if rating == GOOD and self._is_hollow(sizes) else rating

    def _outputs(self, feeds: dict[str, Any]) -> list[Any]:
        """The outputs for inputs that may not fit; numpy goes first, engines may crash on such.

        Both are rated: where a pool is larger than its image, numpy gives nothing, and onnxruntime
        numbers out of the padding.
        """
        outputs: list[Any] = []
        self.seconds = 0.0
        is_quick = self.plain_seconds < QUICK and _count(feeds) <= 10 * POOR
        if is_quick or _count(feeds) <= POOR:  # small sizes are the ones that crash
            start = time.monotonic()
            with contextlib.suppress(UnsupportedOp):
                self._plain = self._plain or Reference(self.regular, exact=False)
                outputs += self._plain(feeds).values()
            self.plain_seconds = time.monotonic() - start
        try:
            self.item.prepare()
        except SardonyxError:
            if not outputs:
                raise
            return outputs
        start = time.monotonic()
        outputs += self.item(feeds).values()
        self.seconds = time.monotonic() - start
        return outputs

    def _is_hollow(self, sizes: Mapping[str, int]) -> bool:
        """Whether a tensor is empty at these sizes that is not at large ones."""
        if not sizes:
            return False
        empty = _empty_values(self.model, sizes)
        if empty and self._hollow_by_design is None:
            self._hollow_by_design = _empty_values(self.model, dict.fromkeys(sizes, LARGE))
        return bool(empty - (self._hollow_by_design or set()))


def rated(value: Any) -> int:
    """How much one output can show; texts and integers show something unless they are empty."""
    if not isinstance(value, np.ndarray):
        return GOOD
    if not value.size:
        return BLIND
    if not is_float(value):
        return GOOD
    if not np.all(np.isfinite(value)):
        return BLIND
    return GOOD if value.size == 1 or np.any(value != value.flat[0]) else CONSTANT


def _count(feeds: Mapping[Any, Any]) -> int:
    """The number of elements of all inputs; those of sequences are counted one by one."""
    return sum(
        _count(dict(enumerate(value))) if isinstance(value, (list, tuple)) else int(np.size(value))
        for value in feeds.values()
    )


def _label(seed: int, sizes: Mapping[str, int], style: str) -> str:
    parts = [f"{name}={size}" for name, size in sizes.items()]
    parts += [] if style == STYLES[0] else [style]
    return f"seed {seed}" + (f" ({', '.join(parts)})" if parts else "")


def _empty_values(model: Model, sizes: Mapping[str, int]) -> set[str]:
    """The names of the values that have no elements at these sizes, by ONNX's shape inference."""
    proto = model.skeleton()
    for value, info in zip(model.inputs, proto.graph.input):
        if value.shape is None or not info.type.HasField("tensor_type"):
            continue
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value"):
                dim.dim_value = sizes.get(symbol(value, axis), 1)
    del proto.graph.value_info[:]
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True).graph
    except Exception:  # it raises several kinds where a model contradicts itself
        return set()
    return {
        info.name
        for info in inferred.value_info
        if any(d.HasField("dim_value") and d.dim_value <= 0 for d in _dims(info))
    }


def _dims(info: onnx.ValueInfoProto) -> Sequence[onnx.TensorShapeProto.Dimension]:
    return info.type.tensor_type.shape.dim
