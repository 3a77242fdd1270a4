"""onnxruntime's adapter files (`.onnx_adapter`), which a session takes with each run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime as ort

from sardonyx.errors import ModelError, quote

VERSION = 1


def write(arrays: Mapping[str, np.ndarray], path: Path, model_version: int) -> None:
    """Write arrays under the names of the graph inputs that they replace."""
    file = ort.AdapterFormat()
    file.set_adapter_version(VERSION)
    file.set_model_version(model_version)
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    file.set_parameters(
        {name: ort.OrtValue.ortvalue_from_numpy(a) for name, a in contiguous.items()}
    )
    file.export_adapter(str(path))


def read(path: Path) -> tuple[dict[str, np.ndarray], int]:
    """The arrays of a file, and the version of the model that they were written for."""
    try:
        file = ort.AdapterFormat.read_adapter(str(path))
        arrays = {n: np.array(v.numpy(), copy=True) for n, v in file.get_parameters().items()}
    except Exception as error:  # onnxruntime raises a class per status code
        raise ModelError(f"{quote(path.name)} is no adapter file: {quote(error)}") from error
    return arrays, int(file.get_model_version())
