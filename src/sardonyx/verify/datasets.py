"""Inputs and outputs on disk: `.npz` files, and test data sets in the model zoo's form.

`test_data_set_K/input_N.pb` and `output_N.pb`, one serialized value per file. The type of the
message is not in the file: the model's input says whether it is a tensor, sequence or optional.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnx_ir as ir

from sardonyx.errors import ArgumentError, DataError, quote
from sardonyx.limits.archives import check_archive
from sardonyx.model import Model

NUMBER = re.compile(r"(input|output)_(\d+)\.pb$")


@dataclass
class DataSet:
    """One run: its name, inputs by name and, where known, outputs (by name, or by place)."""

    name: str
    inputs: dict[str, Any]
    outputs: dict[str, Any] | None = None


Given = Mapping[str, Any] | str | Path | Callable[[int], Mapping[str, Any]] | Sequence[Any]


def read(inputs: Given, model: Model | None, seeds: Sequence[int] = (0,)) -> list[DataSet]:
    """The inputs in any form that `verify` takes: arrays, several sets, a function, a file."""
    if isinstance(inputs, Mapping):
        return [DataSet("given", _checked(inputs, model))]
    if isinstance(inputs, (str, Path)):
        path = Path(inputs)
        if path.is_dir():
            return read_folder(path, model)
        return [DataSet(path.name, _checked(read_npz(path), model))]
    if callable(inputs):
        return [DataSet(f"seed {s}", _checked(inputs(s), model)) for s in seeds]
    return [DataSet(f"set {i}", _checked(item, model)) for i, item in enumerate(inputs)]


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file; pickled objects, and what unpacks to far more, are refused."""
    check_archive(path)
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {quote(path.name)}: {error}") from error


def read_folder(path: Path, model: Model | None) -> list[DataSet]:
    """The test data sets of a folder, or the one that the folder is."""
    folders = [p for p in path.glob("test_data_set_*") if p.is_dir()]
    folders.sort(key=lambda p: (len(p.name), p.name))
    if not folders and any(path.glob("*.pb")):
        folders = [path]
    sets = [DataSet(f.name, *_read_set(f, model)) for f in folders]
    archives = sorted(path.glob("test_data_*.npz")) if not sets else []
    sets += [DataSet(p.name, _checked(read_npz(p), model)) for p in archives]
    if not sets:
        raise DataError(
            f"{quote(path)} holds no test data", hint="test_data_set_0/input_0.pb, or a file .npz"
        )
    return sets


def _read_set(folder: Path, model: Model | None) -> tuple[dict[str, Any], dict[str, Any] | None]:
    values_by_kind: dict[str, dict[str, Any]] = {}
    for kind, values in (
        ("input", model.inputs if model else []),
        ("output", model.outputs if model else []),
    ):
        numbered = [
            (int(m[2]), p) for p in folder.glob(f"{kind}_*.pb") if (m := NUMBER.search(p.name))
        ]
        values_by_kind[kind] = {}
        for number, path in sorted(numbered):
            value = values[number] if number < len(values) else None
            name, content = _read_value(path, value)
            names = {v.name for v in values}
            fallback = (value.name or str(number)) if value is not None else str(number)
            values_by_kind[kind][name if name in names else fallback] = content
    return values_by_kind["input"], values_by_kind["output"] or None


def _read_value(path: Path, value: ir.Value | None) -> tuple[str, Any]:
    kind = None if value is None else value.type
    data = path.read_bytes()
    try:
        if isinstance(kind, ir.SequenceType):
            sequence = onnx.SequenceProto.FromString(data)
            return sequence.name, onnx.numpy_helper.to_list(sequence)
        if isinstance(kind, ir.OptionalType):
            optional = onnx.OptionalProto.FromString(data)
            return optional.name, onnx.numpy_helper.to_optional(optional)
        tensor = onnx.TensorProto.FromString(data)
        return tensor.name, onnx.numpy_helper.to_array(tensor)
    except Exception as error:  # protobuf and numpy raise many kinds for a broken file
        raise DataError(f"cannot read {quote(path.name)}: {str(error)[:200]}") from error


def write(folder: Path, runs: Iterable[DataSet]) -> list[Path]:
    """Write runs in the model zoo's form; returns their folders."""
    folders = []
    for number, run in enumerate(runs):
        target = folder / f"test_data_set_{number}"
        target.mkdir(parents=True, exist_ok=True)
        for kind, values in (("input", run.inputs), ("output", run.outputs or {})):
            for place, (name, value) in enumerate(values.items()):
                (target / f"{kind}_{place}.pb").write_bytes(_message(name, value))
        folders.append(target)
    return folders


def _message(name: str, value: Any) -> bytes:
    if isinstance(value, list):
        return onnx.numpy_helper.from_list(value, name).SerializeToString()
    if value is None:
        return onnx.numpy_helper.from_optional(None, name).SerializeToString()
    return onnx.numpy_helper.from_array(np.asarray(value), name).SerializeToString()


def _checked(inputs: Mapping[str, Any], model: Model | None) -> dict[str, Any]:
    """Arrays by the model's names; numbers may come in another width of the same kind."""
    arrays = {k: v if isinstance(v, list) else np.asarray(v) for k, v in inputs.items()}
    if model is None:
        return arrays
    values = {v.name or "": v for v in model.inputs}
    missing = [
        n for n, v in values.items() if n not in arrays and not isinstance(v.type, ir.OptionalType)
    ]
    if missing:
        raise DataError(
            "inputs of the model are missing",
            [[quote(n)] for n in missing],
            hint=f"given: {', '.join(arrays) or 'nothing'}",
        )
    return {n: _fitted(arrays[n], v) for n, v in values.items() if n in arrays}


def _fitted(array: Any, value: ir.Value) -> Any:
    kind = value.type
    if not isinstance(array, np.ndarray) or not isinstance(kind, ir.TensorType):
        return array
    dtype = np.dtype(kind.dtype.numpy())
    if array.dtype == dtype:
        return array
    if array.dtype.kind in "US" and dtype == np.dtype(object):
        return array.astype(object)
    if dtype.kind == array.dtype.kind or (
        array.dtype.kind == "f" and kind.dtype.is_floating_point()
    ):
        return array.astype(dtype)
    raise ArgumentError(f"the input {quote(value.name)} is {array.dtype}, the model reads {dtype}")
