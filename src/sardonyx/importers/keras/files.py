"""Keras files, read on another backend than the one that wrote them."""

from __future__ import annotations

import json
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import keras
import numpy as np

from sardonyx.errors import ImportRefused, LimitExceeded, quote

# With PyTorch, Keras names its own optimizers after modules that no other backend can use.
TORCH_OPTIMIZERS = "keras.src.backend.torch.optimizers"
CONFIG = "config.json"
OWN = "sardonyx>OnnxModel"
LARGEST_CONFIG = 2**28
# Losses and metrics that files of Keras 2 name so, and Keras 3 no longer finds.
SHORT_NAMES = ("mse", "mae", "mape", "msle")


def require_readable(path: Path) -> None:
    """Raise for a file that is neither a zip archive nor HDF5."""
    import h5py

    if not zipfile.is_zipfile(path) and not h5py.is_hdf5(path):
        raise ImportRefused(
            f"{quote(path.name)} is no file of Keras",
            hint="a .keras file is a zip archive, an .h5 file is HDF5; this is neither",
        )


def of_sardonyx(path: Path) -> bool:
    """Whether a file holds a model of `sx.to_keras`, whose class this process has to know."""
    if not zipfile.is_zipfile(path):
        return False
    name = json.loads(_config(path)).get("registered_name")
    if name != OWN:
        return False
    if keras.saving.get_registered_object(OWN) is None:
        raise ImportRefused(
            f"{quote(path.name)} holds a model of sx.to_keras, whose class is not registered",
            hint="import sardonyx.engines.keras.network before",
        )
    return True


def _config(path: Path) -> str:
    with zipfile.ZipFile(path) as archive:
        sizes = {item.filename: item.file_size for item in archive.infolist()}
        if sizes.get(CONFIG, 0) > LARGEST_CONFIG:
            raise LimitExceeded(
                f"{quote(path.name)} has a configuration of {sizes[CONFIG]:,} bytes"
            )
        return archive.read(CONFIG).decode() if CONFIG in sizes else "{}"


def read(path: Path, compiled: bool, safe: bool = True) -> keras.Model:
    """The model of a `.keras` or `.h5` file.

    compiled -- with what `compile()` set
    safe     -- refuse code in the file
    """
    options = {"compile": compiled, "safe_mode": safe}
    if not zipfile.is_zipfile(path):
        names = {name: keras.losses.get(name) for name in SHORT_NAMES}
        model = keras.models.load_model(path, custom_objects=names, **options)
        _restore_optimizer(model, path)
        return model
    text = _config(path)
    if TORCH_OPTIMIZERS not in text:
        return keras.models.load_model(path, **options)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        _copy(path, copy, json.dumps(_portable(json.loads(text))))
        return keras.models.load_model(copy, **options)


def _restore_optimizer(model: keras.Model, path: Path) -> None:
    """Give a model of an HDF5 file its optimizer's state.

    Keras 3.15 builds the optimizer of such a file without any variables of the model.
    """
    optimizer = getattr(model, "optimizer", None)
    count = len(getattr(optimizer, "_trainable_variables", ()))
    if optimizer is None or not optimizer.built or count == len(model.trainable_variables):
        return
    import h5py
    from keras.src.legacy.saving.legacy_h5_format import load_optimizer_weights_from_hdf5_group

    fresh = type(optimizer).from_config(optimizer.get_config())
    fresh.build(model.trainable_variables)
    with h5py.File(path) as file:
        is_keras_3 = not str(file.attrs.get("keras_version", "")).startswith(("1.", "2."))
        values = [np.asarray(v) for v in load_optimizer_weights_from_hdf5_group(file)]
    shapes = [tuple(v.shape) for v in fresh.variables]
    if is_keras_3 and [v.shape for v in values] == shapes:
        for variable, value in zip(fresh.variables, values, strict=True):
            variable.assign(value)
    elif values and np.any(values[0] != 0):  # the first is the number of steps
        raise ImportRefused(
            f"the state of the optimizer in {quote(path.name)} is that of another version of Keras",
            [[type(optimizer).__name__, f"{len(values)} arrays instead of {len(shapes)}"]],
            hint="training=False imports the inference alone; or save the model as a .keras file",
        )
    model.optimizer = fresh


def _portable(config: Any) -> Any:
    """A configuration in which optimizers have the names that every backend knows."""
    if isinstance(config, list):
        return [_portable(part) for part in config]
    if not isinstance(config, dict):
        return config
    parts = {key: _portable(part) for key, part in config.items()}
    if str(parts.get("module", "")).startswith(TORCH_OPTIMIZERS):
        parts |= {"module": "keras.optimizers", "registered_name": None}
    return parts


def _copy(source: Path, target: Path, config: str) -> None:
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for item in old.infolist():
            if item.filename == CONFIG:
                new.writestr(CONFIG, config)
            else:
                with (
                    old.open(item) as content,
                    new.open(item.filename, "w", force_zip64=True) as out,
                ):
                    while block := content.read(1 << 20):
                        out.write(block)
