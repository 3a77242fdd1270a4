"""Sardonyx makes any ONNX model trainable, and converts it to other frameworks and back.

>>> import sardonyx as sx
>>> sx.load
<function load at ...>
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Every public name and the module it lives in, by task: the order of the reference page. A module
# is loaded when one of its names is first used, so that importing stays quick.
_TASKS = {
    "Models": {
        "Model": "sardonyx.model",
        "load": "sardonyx.model",
        "save": "sardonyx.save",
        "Limits": "sardonyx.limits",
        "run_limits": "sardonyx.lower.run_limits",
        "SardonyxError": "sardonyx.errors",
    },
    "Look inside": {
        "inspect": "sardonyx.inspection",
        "check": "sardonyx.checking",
        "weights": "sardonyx.weights",
        "diff": "sardonyx.diff",
        "Diff": "sardonyx.diff",
        "placement": "sardonyx.engines.placement",
    },
    "Train": {
        "trainable": "sardonyx.record.trainable",
        "choices": "sardonyx.record.describe",
        "train": "sardonyx.train.loop",
        "Run": "sardonyx.train.run",
        "evaluate": "sardonyx.train.evaluation",
        "predict": "sardonyx.train.evaluation",
        "Predictor": "sardonyx.train.predictor",
        "prepare_training": "sardonyx.engines.prepare",
        "export_step": "sardonyx.record.export",
        "export_training": "sardonyx.train.whole.export",
        "export_web": "sardonyx.web.export",
        "run_training": "sardonyx.train.whole.running",
        "write_report": "sardonyx.train.report",
        "Initializer": "sardonyx.initializer",
        "Schedule": "sardonyx.record.schedule",
    },
    "Edit a model": {
        "replace_head": "sardonyx.edit.surgery",
        "cut": "sardonyx.edit.surgery",
        "insert": "sardonyx.edit.surgery",
        "remove": "sardonyx.edit.surgery",
        "reinitialize": "sardonyx.edit.surgery",
        "freeze": "sardonyx.edit.surgery",
        "unfreeze": "sardonyx.edit.surgery",
        "tie": "sardonyx.edit.surgery",
        "untie": "sardonyx.edit.surgery",
        "dequantize": "sardonyx.edit.dequantize",
        "quantize_aware": "sardonyx.quantize.aware",
        "to_integers": "sardonyx.quantize.integers",
        "lora": "sardonyx.edit.lora",
        "merge_lora": "sardonyx.edit.lora",
        "save_adapter": "sardonyx.engines.adapters",
        "load_adapter": "sardonyx.engines.adapters",
        "compose": "sardonyx.edit.compose",
        "split": "sardonyx.edit.compose",
    },
    "Gradients": {
        "grad": "sardonyx.grad",
        "jvp": "sardonyx.grad",
        "straight_through": "sardonyx.grad.quantization",
    },
    "Other frameworks": {
        "from_jax": "sardonyx.importers.jax.model",
        "from_jax_step": "sardonyx.importers.jax.step",
        "from_keras": "sardonyx.importers.keras.model",
        "from_tensorflow": "sardonyx.importers.tensorflow.graph",
        "from_tflite": "sardonyx.importers.tflite.convert",
        "from_torch": "sardonyx.importers.torch.convert",
        "from_sklearn": "sardonyx.importers.sklearn",
        "from_xgboost": "sardonyx.importers.boosting.xgboost",
        "from_lightgbm": "sardonyx.importers.boosting.lightgbm",
        "from_catboost": "sardonyx.importers.boosting.catboost",
        "from_pmml": "sardonyx.importers.pmml",
        "from_pandas": "sardonyx.importers.pandas.convert",
        "to_torch": "sardonyx.engines.torch.convert",
        "to_torch_source": "sardonyx.engines.torch.source.write",
        "to_jax": "sardonyx.engines.jax.convert",
        "to_tensorflow": "sardonyx.engines.tensorflow.convert",
        "to_keras": "sardonyx.engines.keras.convert",
        "to_numpy": "sardonyx.engines.numpy.convert",
        "to_matlab_source": "sardonyx.engines.matlab.write",
        "to_tflite": "sardonyx.deploy",
        "with_weights": "sardonyx.engines.with_weights",
    },
    "Verify and score": {
        "verify": "sardonyx.verify",
        "Report": "sardonyx.verify.report",
        "verify_training": "sardonyx.verify.training",
        "score": "sardonyx.score.scoreboard",
    },
    "Extend": {
        "gradient_rule": "sardonyx.grad",
        "lowering": "sardonyx.lower",
        "importer": "sardonyx.importers.rules",
        "TrainingRep": "sardonyx.engines.training",
        "define": "sardonyx.custom",
        "undefine": "sardonyx.custom",
        "check_operator": "sardonyx.custom",
        "normalize": "sardonyx.normalize",
    },
}
_HOMES = {name: module for names in _TASKS.values() for name, module in names.items()}
_MODULES = {
    "errors": "sardonyx.errors",
    "loss": "sardonyx.record.loss",
    "optim": "sardonyx.record.optim",
    "schedule": "sardonyx.record.schedule",
    "testing": "sardonyx.testing",
}

__all__ = ["__version__", *sorted(_HOMES), *sorted(_MODULES)]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        try:
            value = getattr(importlib.import_module(_HOMES[name]), name)
        except Exception as error:
            return _unavailable(name, error)
    elif name in _MODULES:
        value = importlib.import_module(_MODULES[name])
    else:
        raise AttributeError(f"module 'sardonyx' has no attribute {name!r}")
    globals()[name] = value
    return value


def _unavailable(name: str, error: Exception) -> Any:
    """A function in the place of one whose framework is not installed: calling it says so."""
    from sardonyx.errors import missing_extra

    missing = missing_extra(error)
    if missing is None:
        raise error

    def unavailable(*arguments: Any, **options: Any) -> Any:
        raise type(missing)(missing.package, missing.extra) from error

    unavailable.__name__ = unavailable.__qualname__ = name
    unavailable.__doc__ = f"Needs {missing.package}: {missing.hint}"
    return unavailable


def __dir__() -> list[str]:
    return __all__


class _Package(types.ModuleType):
    """Importing `sardonyx.grad` must not hide the function `sardonyx.grad` behind the module."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOMES and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


if TYPE_CHECKING:
    from sardonyx import errors, testing
    from sardonyx.checking import check
    from sardonyx.custom import check_operator, define, undefine
    from sardonyx.deploy import to_tflite
    from sardonyx.diff import Diff, diff
    from sardonyx.edit.compose import compose, split
    from sardonyx.edit.dequantize import dequantize
    from sardonyx.edit.lora import lora, merge_lora
    from sardonyx.edit.surgery import (
        cut,
        freeze,
        insert,
        reinitialize,
        remove,
        replace_head,
        tie,
        unfreeze,
        untie,
    )
    from sardonyx.engines.adapters import load_adapter, save_adapter
    from sardonyx.engines.jax.convert import to_jax
    from sardonyx.engines.keras.convert import to_keras
    from sardonyx.engines.matlab.write import to_matlab_source
    from sardonyx.engines.numpy.convert import to_numpy
    from sardonyx.engines.placement import placement
    from sardonyx.engines.prepare import prepare_training
    from sardonyx.engines.tensorflow.convert import to_tensorflow
    from sardonyx.engines.torch.convert import to_torch
    from sardonyx.engines.torch.source.write import to_torch_source
    from sardonyx.engines.training import TrainingRep
    from sardonyx.engines.with_weights import with_weights
    from sardonyx.errors import SardonyxError
    from sardonyx.grad import grad, gradient_rule, jvp
    from sardonyx.grad.quantization import straight_through
    from sardonyx.importers.boosting.catboost import from_catboost
    from sardonyx.importers.boosting.lightgbm import from_lightgbm
    from sardonyx.importers.boosting.xgboost import from_xgboost
    from sardonyx.importers.jax.model import from_jax
    from sardonyx.importers.jax.step import from_jax_step
    from sardonyx.importers.keras.model import from_keras
    from sardonyx.importers.pandas.convert import from_pandas
    from sardonyx.importers.pmml import from_pmml
    from sardonyx.importers.rules import importer
    from sardonyx.importers.sklearn import from_sklearn
    from sardonyx.importers.tensorflow.graph import from_tensorflow
    from sardonyx.importers.tflite.convert import from_tflite
    from sardonyx.importers.torch.convert import from_torch
    from sardonyx.initializer import Initializer
    from sardonyx.inspection import inspect
    from sardonyx.limits import Limits
    from sardonyx.lower import lowering
    from sardonyx.lower.run_limits import run_limits
    from sardonyx.model import Model, load
    from sardonyx.normalize import normalize
    from sardonyx.quantize.aware import quantize_aware
    from sardonyx.quantize.integers import to_integers
    from sardonyx.record import loss, optim, schedule
    from sardonyx.record.describe import choices
    from sardonyx.record.export import export_step
    from sardonyx.record.schedule import Schedule
    from sardonyx.record.trainable import trainable
    from sardonyx.save import save
    from sardonyx.score.scoreboard import score
    from sardonyx.train.evaluation import evaluate, predict
    from sardonyx.train.loop import train
    from sardonyx.train.predictor import Predictor
    from sardonyx.train.report import write_report
    from sardonyx.train.run import Run
    from sardonyx.train.whole.export import export_training
    from sardonyx.train.whole.running import run_training
    from sardonyx.verify import Report, verify
    from sardonyx.verify.training import verify_training
    from sardonyx.web.export import export_web
    from sardonyx.weights import weights
