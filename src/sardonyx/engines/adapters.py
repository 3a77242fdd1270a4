"""Adapters in files of their own: `.safetensors`, and onnxruntime's `.onnx_adapter`.

A file holds the tensors that were trained: A and B of every adapter, and what was trained beside
them, such as the weights of a new head or running statistics. A safetensors file also describes the
adapters, so that they can be added to the model without any. onnxruntime's format has no place for
that; a checksum of the description in its model version tells whether a file fits.
"""

from __future__ import annotations

import importlib
import os
import secrets
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.edit import safetensors_file
from sardonyx.edit.lora import (
    Adapter,
    adapter_tensors,
    adapters,
    describe,
    parse,
    require_adapters,
    with_adapters,
)
from sardonyx.edit.surgery import ADAPTERS, FROZEN, ROLE
from sardonyx.errors import ArgumentError, ModelError, quote
from sardonyx.model import Model, ModelSource, load
from sardonyx.save import full_disk_reported

SAFETENSORS, ONNXRUNTIME = ".safetensors", ".onnx_adapter"


def save_adapter(model: ModelSource, path: str | Path) -> Path:
    """Write what was trained of a model with adapters: A and B of each, and weights trained beside.

    path -- `.safetensors`, or `.onnx_adapter`, which onnxruntime's `RunOptions.add_active_adapter`
            takes in a session over the saved model

    >>> import onnx, sardonyx as sx
    >>> model = sx.load(onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
    ... g (float[N,2] x) => (float[N,3] y) <float[2,3] w = {1,2,3,4,5,6}> {y = MatMul(x, w)}'''))
    >>> sx.save_adapter(sx.lora(model, rank=1), "w.safetensors").name
    'w.safetensors'
    """
    path, loaded = Path(path), load(model)
    _require_format(path)
    listed, values = require_adapters(loaded), adapter_tensors(loaded)
    arrays = {n: v.const_value.numpy() for n, v in values.items() if v.const_value is not None}
    if path.suffix == SAFETENSORS:
        content = safetensors_file.to_bytes(
            arrays, {"format": "sardonyx", ADAPTERS: describe(listed)}
        )
        _replace(path, lambda temporary: temporary.write_bytes(content))
        return path
    fixed = [[quote(n)] for n, v in values.items() if not v.is_graph_input()]
    if fixed:
        raise ArgumentError(
            "onnxruntime feeds an adapter to inputs, and these trained tensors are none",
            fixed,
            hint="a .safetensors file takes them",
        )
    runtime = importlib.import_module("sardonyx.engines.onnxruntime.adapter")
    _replace(path, lambda temporary: runtime.write(arrays, temporary, _version(listed)))
    return path


def load_adapter(model: ModelSource, path: str | Path) -> Model:
    """The model with the adapters of a file; they are added where the model has none.

    >>> import onnx, sardonyx as sx
    >>> model = sx.load(onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
    ... g (float[N,2] x) => (float[N,3] y) <float[2,3] w = {1,2,3,4,5,6}> {y = MatMul(x, w)}'''))
    >>> path = sx.save_adapter(sx.lora(model, rank=1), "w.safetensors")
    >>> sx.load_adapter(model, path).initializer("w.lora_B").shape
    Shape([1, 3])
    """
    path, loaded = Path(path), load(model)
    arrays, listed = read(path, adapters(loaded))
    if not adapters(loaded):
        return _with_values(with_adapters(loaded, listed, arrays), arrays)
    if adapters(loaded) != listed:
        ours, theirs = adapters(loaded), listed
        rows = [
            [quote(n), f"{_settings(ours.get(n))} in the model", f"{_settings(theirs.get(n))} here"]
            for n in {**ours, **theirs}
            if ours.get(n) != theirs.get(n)
        ]
        raise ArgumentError(f"{quote(path.name)} has other adapters than the model", rows)
    return _with_values(loaded.copy(), arrays)


def read(
    path: str | Path, ours: Mapping[str, Adapter] | None = None
) -> tuple[dict[str, np.ndarray], dict[str, Adapter]]:
    """The tensors of an adapter file, and its adapters.

    ours -- the adapters of the model: those of an `.onnx_adapter` file, if the checksum says so
    """
    path = Path(path)
    _require_format(path)
    if not path.is_file():
        raise ArgumentError(f"there is no file {quote(str(path))}")
    if path.suffix == SAFETENSORS:
        arrays, metadata = safetensors_file.read(path)
        if ADAPTERS not in metadata:
            raise ModelError(
                f"{quote(path.name)} does not describe its adapters",
                hint="sx.save_adapter writes files that do",
            )
        listed = parse(metadata[ADAPTERS], quote(path.name))
    else:
        arrays, version = importlib.import_module("sardonyx.engines.onnxruntime.adapter").read(path)
        if not ours or version != _version(ours):
            raise ArgumentError(
                f"{quote(path.name)} does not describe its adapters, and the model has "
                f"{'others' if ours else 'none'}",
                hint="first call sx.lora with the settings with which the adapter was trained",
            )
        listed = dict(ours)
    missing = [[quote(n + end)] for n in listed for end in (".lora_A", ".lora_B")]
    missing = [row for row in missing if row[0] not in {quote(n) for n in arrays}]
    if missing:
        raise ModelError(f"{quote(path.name)} lacks tensors of its adapters", missing)
    return arrays, listed


def _with_values(model: Model, arrays: Mapping[str, np.ndarray]) -> Model:
    initializers = model.graph.initializers
    rows = []
    for name, array in arrays.items():
        value = initializers.get(name)
        tensor = value.const_value if value is not None else None
        if value is None or tensor is None:
            rows.append([quote(name), "is not in the model"])
        elif tuple(tensor.shape.numpy()) != array.shape or tensor.dtype.numpy() != array.dtype:
            stored = f"{tensor.dtype} {list(tensor.shape.numpy())}"
            rows.append([quote(name), f"{stored} in the model", f"{array.dtype} {[*array.shape]}"])
        else:
            value.const_value = ir.Tensor(array, name=name, shape=ir.Shape(array.shape))
            if model.metadata.get(f"{ROLE}{name}") == FROZEN:
                del model.metadata[f"{ROLE}{name}"]
    if rows:
        raise ArgumentError(
            "the tensors of the file do not fit the model",
            rows,
            hint="a head that was replaced before training must be replaced here too: "
            "sx.replace_head",
        )
    return model


def _settings(adapter: Adapter | None) -> str:
    if adapter is None:
        return "none"
    return f"{adapter.operator}, rank {adapter.rank}, alpha {adapter.alpha:g}"


def _version(listed: Mapping[str, Adapter]) -> int:
    """A checksum of what must agree: names, ranks, scales."""
    parts = [f"{n} {a.operator} {a.rank} {a.alpha!r}" for n, a in sorted(listed.items())]
    return zlib.crc32("\n".join(parts).encode()) & 0x7FFFFFFF


def _require_format(path: Path) -> None:
    if path.suffix not in (SAFETENSORS, ONNXRUNTIME):
        raise ArgumentError(
            f"an adapter file ends in {SAFETENSORS} or {ONNXRUNTIME}, not {quote(path.name)}"
        )


def _replace(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with full_disk_reported(path.absolute().parent):
            write(temporary)
            os.replace(temporary, path)
    except OSError as error:
        raise ArgumentError(f"{quote(str(path))} cannot be written: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)
