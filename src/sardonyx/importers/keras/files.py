"""Keras files, read on another backend than the one that wrote them."""

from __future__ import annotations

import json
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import keras

from sardonyx.errors import LimitExceeded, quote

# With PyTorch, Keras names its own optimizers after modules that no other backend can use.
TORCH_OPTIMIZERS = "keras.src.backend.torch.optimizers"
CONFIG = "config.json"
LARGEST_CONFIG = 2**28


def read(path: Path, compiled: bool, safe: bool = True) -> keras.Model:
    """The model of a `.keras` or `.h5` file.

    compiled -- with what `compile()` set
    safe     -- refuse code in the file
    """
    options = {"compile": compiled, "safe_mode": safe}
    if not zipfile.is_zipfile(path):
        return keras.models.load_model(path, **options)
    with zipfile.ZipFile(path) as archive:
        sizes = {item.filename: item.file_size for item in archive.infolist()}
        if sizes.get(CONFIG, 0) > LARGEST_CONFIG:
            raise LimitExceeded(
                f"{quote(path.name)} has a configuration of {sizes[CONFIG]:,} bytes"
            )
        text = archive.read(CONFIG).decode() if CONFIG in sizes else "{}"
    if TORCH_OPTIMIZERS not in text:
        return keras.models.load_model(path, **options)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        _copy(path, copy, json.dumps(_portable(json.loads(text))))
        return keras.models.load_model(copy, **options)


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
