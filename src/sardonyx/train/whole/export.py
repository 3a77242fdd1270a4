"""`export_training`: a whole training as one ordinary ONNX file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.errors import ArgumentError, quote
from sardonyx.model import Model, ModelSource, load
from sardonyx.record import info
from sardonyx.record.describe import settings_of
from sardonyx.record.override import override
from sardonyx.record.step import step_inputs
from sardonyx.record.trainable import refuse_unknown, trainable
from sardonyx.save import save
from sardonyx.train import metrics as metric
from sardonyx.train import setup
from sardonyx.train.evaluation import chosen_metrics
from sardonyx.train.fields import batch_dim, is_axis, row_axis
from sardonyx.train.whole.graph import Whole
from sardonyx.train.whole.parts import Settings, take_apart
from sardonyx.train.whole.standardize import standardized_inputs
from sardonyx.train.whole.stored import with_model
from sardonyx.train.whole.validation import refuse_metrics

KEY = "sardonyx.whole"  # the metadata key of the description


def export_training(
    model: ModelSource,
    path: str | Path,
    *,
    validation: float | None = None,
    metrics: Sequence[str] | None = None,
    patience: int | None = None,
    watch: str | None = None,
    standardize: bool = False,
    shuffle: bool = True,
    drop_last: bool = False,
    constants: Mapping[str, Any] | None = None,
    batch_axes: Mapping[str, int] | None = None,
    defaults: bool = True,
    runtime: str | None = "onnxruntime==1.21",
    **how: Any,
) -> Path:
    """Write the whole training of a model as one ONNX file, whose single run trains; its path.

    model       -- a model, with or without a training record, or a path
    validation  -- the share of the rows that is held back, such as 0.2; by hash, also without
                   `shuffle`, where `sx.train` draws other rows
    metrics     -- of the validation data: "accuracy", "mae", "top5"
    patience    -- stop after so many epochs in which `watch` did not improve
    standardize -- bring every column of the float inputs to mean 0 and deviation 1 over the rows
                   to train on; the trained model does it too
    shuffle     -- in every epoch, in the order of `sx.train(shuffle="hash")`
    drop_last   -- leave out the last batch of an epoch if it is not full
    constants, batch_axes -- as for `train`
    defaults    -- hyperparameters and state are inputs that may be left out; False: all inputs
                   must be fed, for runtimes without such inputs, such as onnxruntime-web
    runtime     -- the oldest runtime that must accept the file
    how         -- arguments of `trainable` (loss, optimizer, lr, …)

    Inputs are the fields of the data with all their rows, `epochs`, `batch_size` and `seed`; a run
    gives the same numbers as `sx.train(shuffle="hash")`. docs/guides/whole-training.md lists all.

    >>> import sardonyx as sx
    >>> sx.export_training("model.onnx", "whole.onnx", validation=0.2).name
    'whole.onnx'
    """
    refuse_unknown(how, "export_training")
    switches = {"shuffle": shuffle, "drop_last": drop_last, "standardize": standardize}
    numbers = {"patience": patience, "share": validation, "seed": how.get("seed")}
    setup.check_numbers({**numbers, **switches})
    setup.check_record_names(how)
    net = _with_record(load(model), how)
    settings = _settings(
        net, validation, metrics, patience, watch, shuffle, drop_last, constants, batch_axes
    )
    if standardize:
        names = standardized_inputs(net, settings.constants)
        settings = replace(settings, standardize=tuple(names))
    whole = Whole(take_apart(net, settings), settings, defaults)
    written = whole.model()
    described = {**asdict(whole.description), "settings": _plain(settings)}
    written.metadata[KEY] = json.dumps({"version": 1, **described})
    with_model(written, net, whole.description.starts)
    return save(written, path, runtime=runtime)


def _with_record(model: Model, how: Mapping[str, Any]) -> Model:
    if not model.records:
        return trainable(model, **how)
    info.check(model)
    return override(model, how)[0] if how else model


def _settings(
    net: Model,
    share: float | None,
    metrics: Sequence[str] | None,
    patience: int | None,
    watch: str | None,
    shuffle: bool,
    drop_last: bool,
    constants: Mapping[str, Any] | None,
    batch_axes: Mapping[str, int] | None,
) -> Settings:
    setup.check_metrics(metrics, share is not None)
    names = tuple(chosen_metrics(metrics, settings_of(net))) if share is not None else ()
    refuse_metrics(names)
    chosen = watch or setup.default_watch(net, share is not None)
    if watch or patience is not None:
        setup.check_watch(chosen, net, names, share is not None)
    inputs = {v.name or "": v for v in step_inputs(net)}
    _refuse_unknown_inputs(inputs, {"constant": constants or {}, "batch axis": batch_axes or {}})
    _refuse_axes(inputs, batch_axes or {})
    labels = {n for t in settings_of(net).get("loss_terms", []) for n in t["labels"]}
    fed = [v for n, v in inputs.items() if n not in labels and n not in (constants or {})]
    size = batch_dim(fed)
    axes = {n: row_axis(v, size) for n, v in inputs.items()}
    axes |= {n: a % _rank(inputs[n]) for n, a in (batch_axes or {}).items()}
    arrays = {n: _constant(inputs[n], a) for n, a in (constants or {}).items()}
    return Settings(
        share,
        names,
        chosen,
        metric.lower_is_better(chosen, names),
        patience,
        bool(shuffle),
        drop_last,
        (),
        arrays,
        {n: a for n, a in axes.items() if a},
    )


def _refuse_unknown_inputs(inputs: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    rows = [[o, quote(n)] for o, names in options.items() for n in names if n not in inputs]
    if rows:
        raise ArgumentError(
            "the step has no such inputs", rows, hint=f"it takes {', '.join(inputs)}"
        )


def _refuse_axes(inputs: Mapping[str, ir.Value], batch_axes: Mapping[str, Any]) -> None:
    rows = [
        [quote(n), f"axis {axis!r}", f"it is {inputs[n].dtype} {inputs[n].shape}"]
        for n, axis in batch_axes.items()
        if inputs[n].shape is None or not is_axis(axis, _rank(inputs[n]))
    ]
    if rows:
        raise ArgumentError("inputs do not have these axes", rows)


def _rank(value: ir.Value) -> int:
    return 0 if value.shape is None else len(value.shape)


def _constant(value: Any, content: Any) -> np.ndarray:
    dtype = np.dtype(value.dtype.numpy())
    try:
        array = np.asarray(content).astype(dtype)
    except (TypeError, ValueError):
        raise ArgumentError(
            f"the constant {content!r} of {quote(value.name)} is no {value.dtype}"
        ) from None
    if dtype.kind in "iub" and np.any(array != np.asarray(content)):
        raise ArgumentError(f"the constant {content!r} of {quote(value.name)} is no {value.dtype}")
    return array


def _plain(settings: Settings) -> dict[str, Any]:
    """The settings as JSON has them."""
    constants = {n: a.tolist() for n, a in settings.constants.items()}
    return {**vars(settings), "axes": dict(settings.axes), "constants": constants}
