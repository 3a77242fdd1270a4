"""Models of other backends: traced in a process of its own, whose backend is JAX.

The model is saved as a `.keras` file, with the optimizer's state. Modules that define classes of
the user's own are imported in that process. What comes back is compared with the caller's model.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnx

from sardonyx import errors
from sardonyx.errors import ImportDiffers, ImportRefused, quote
from sardonyx.importers.keras.names import input_names, input_structure, paths
from sardonyx.model import Model, load
from sardonyx.verify import verify
from sardonyx.verify.noise import DIFFERENT, FAILS, NOT_COMPARABLE

WORKER = "sardonyx.importers.keras.worker"
SECONDS = 60.0
SAMPLE_SIZE = 2
LINES = 12
HINT = (
    "classes of your own need @keras.saving.register_keras_serializable and a module that can be "
    "imported; or start this program with KERAS_BACKEND=jax"
)


def from_other_backend(model: keras.Model, options: Mapping[str, Any]) -> Model:
    """The import of a model whose backend is not JAX, compared with it."""
    _refuse_local_classes(model)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # Keras 3.15 reads variables of TensorFlow by a signature that NumPy 2 deprecates.
        warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
        path = Path(folder) / "model.keras"
        try:
            model.save(path)
        except Exception as error:
            raise ImportRefused(
                "Keras cannot save this model, and another process has to read it",
                [[type(error).__name__, str(error).strip().splitlines()[0]]],
                hint=HINT,
            ) from error
        variables = [*model.trainable_variables, *model.non_trainable_variables]
        names = paths(variables)
        more = {"names": names, "modules": _modules(model), "safe": False}
        imported_model = imported(path, {**options, **more})
        _require_same(imported_model, model, options.get("example"))
    return imported_model


def imported(path: Path, options: Mapping[str, Any]) -> Model:
    """The model of a file, imported by a process whose backend is JAX."""
    with tempfile.TemporaryDirectory() as folder:
        target, problem = Path(folder) / "model.onnx", Path(folder) / "problem.json"
        environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
        searched = [str(Path(__file__).parents[3]), *(p or os.getcwd() for p in sys.path)]
        environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(searched))
        command = [sys.executable, "-m", WORKER, str(path), str(target), str(problem)]
        message = json.dumps({k: _described(v) for k, v in options.items()})
        done = subprocess.run(
            command, env=environment, input=message, capture_output=True, text=True, check=False
        )
        if problem.exists():
            _raise(json.loads(problem.read_text()))
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            what = "Keras could not be traced on its JAX backend"
            raise ImportRefused(what, [[line] for line in lines[-LINES:]], hint=HINT)
        return load(onnx.load(target))  # the file is gone when this returns


def _described(value: Any) -> Any:
    """An option as another process can read it: examples as types and shapes."""
    if value is None or isinstance(value, (bool, str, int)):
        return value
    if isinstance(value, Mapping):
        return {"keys": {k: _described(v) for k, v in value.items()}}
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        dtype = keras.backend.standardize_dtype(value.dtype)
        return {"shape": [None if d is None else int(d) for d in value.shape], "dtype": dtype}
    return [_described(v) for v in value]


def undescribed(value: Any) -> Any:
    """What `_described` wrote, with tensors of Keras in the place of examples."""
    if isinstance(value, list):
        return [undescribed(v) for v in value]
    if isinstance(value, dict) and "keys" in value:
        return {k: undescribed(v) for k, v in value["keys"].items()}
    if isinstance(value, dict):
        return keras.KerasTensor(tuple(value["shape"]), dtype=value["dtype"])
    return value


def _raise(problem: Mapping[str, Any]) -> None:
    """Raise the error that the other process has met."""
    kind = getattr(errors, problem["kind"], ImportRefused)
    kind = kind if kind is not errors.MissingExtra else ImportRefused
    raise kind(problem["what"], problem["where"], problem["hint"])


# -- classes of the user's own --------------------------------------------------------------


def _parts(model: keras.Model) -> list[Any]:
    """The objects of a model that have classes: layers, the optimizer, losses, metrics."""
    parts = list(model._flatten_layers())
    compiled = getattr(model, "_compile_loss", None)
    losses = keras.tree.flatten(compiled._user_loss) if compiled is not None else []
    optimizer = getattr(model, "optimizer", None)
    rate = getattr(optimizer, "_learning_rate", None)
    return [p for p in (*parts, optimizer, rate, *losses) if p is not None]


def _kind(part: Any) -> Any:
    return part if hasattr(part, "__qualname__") else type(part)


def _modules(model: keras.Model) -> list[str]:
    kinds = (_kind(part) for part in _parts(model))
    names = {getattr(kind, "__module__", "") or "" for kind in kinds}
    return sorted(n for n in names if n.split(".")[0] not in ("keras", "builtins", ""))


def _refuse_local_classes(model: keras.Model) -> None:
    """Refuse classes and functions that another process cannot import."""
    kinds = dict.fromkeys(_kind(part) for part in _parts(model))
    rows = [
        [quote(kind.__qualname__), "is defined in the program itself"]
        if kind.__module__ == "__main__"
        else [quote(kind.__qualname__), f"is defined inside a function of {kind.__module__}"]
        for kind in kinds
        if getattr(kind, "__module__", "") == "__main__" or "<locals>" in kind.__qualname__
    ]
    if rows:
        raise ImportRefused(
            "the model is traced in another process, which cannot import parts of it",
            rows,
            hint=HINT,
        )


# -- the comparison -------------------------------------------------------------------------


def _require_same(model: Model, source: keras.Model, example: Any) -> None:
    """Compare with the caller's model, which runs on another backend than the import did."""
    names = [v.name or "" for v in model.outputs]
    used = [v.name for v in model.inputs]
    structure = input_structure(source, example)
    tensors: Sequence[Any] = keras.tree.flatten(structure)

    def keras_model(*arrays: Any) -> dict[str, Any]:
        feeds = dict(zip(used, arrays, strict=True))
        pairs = zip(input_names(tensors, structure), tensors, strict=True)
        inputs = [keras.ops.convert_to_tensor(feeds.get(n, _zeros(t))) for n, t in pairs]
        packed = keras.tree.pack_sequence_as(structure, inputs)
        options = {"training": False} if source._call_has_training_arg else {}
        results = keras.tree.flatten(source(packed, **options))
        return dict(zip(names, map(keras.ops.convert_to_numpy, results), strict=True))

    report = verify(model, keras_model, seeds=2, seconds=SECONDS)
    if report.verdict in (DIFFERENT, FAILS, NOT_COMPARABLE):
        raise ImportDiffers(
            "the imported model and Keras differ",
            [[line] for line in str(report).splitlines()],
            hint="this is a defect of the import: please report the model; nothing was returned",
        )


def _zeros(tensor: Any) -> np.ndarray:
    shape = [SAMPLE_SIZE if size is None else size for size in tensor.shape]
    return np.zeros(shape, tensor.dtype)
