"""`export_web`: a folder of static files, a page that trains a model in the browser."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx.errors import ArgumentError, DataError, quote
from sardonyx.inspection import inspect
from sardonyx.model import Model, ModelSource, load
from sardonyx.record.describe import descriptions
from sardonyx.record.export import Form, write_step
from sardonyx.save import save
from sardonyx.train.data import open_data
from sardonyx.train.evaluation import CLASSES
from sardonyx.train.fields import convert, field_names, link
from sardonyx.train.tables import Table
from sardonyx.web import webgpu
from sardonyx.web.offsets import places
from sardonyx.web.runtime import copy_runtime

PAGE = Path(__file__).parent / "page"
PAGE_FILES = ("index.html", "app.js", "worker.js", "style.css")
INPUTS = ("draw", "image", "webcam", "csv")
TARGETS = ("auto", "wasm", "webgpu")
OLDEST_RUNTIME = "onnxruntime==1.21"
MOST_MODEL_BYTES = 1 << 30
FORMAT, VERSION = "sardonyx-web", 1
ALIGNMENT = 8


def export_web(
    model: ModelSource,
    folder: str | Path,
    data: Any = None,
    *,
    input: str | None = None,
    target: str = "auto",
    title: str | None = None,
    epochs: int = 10,
    batch_size: int = 32,
    validation: float = 0.2,
    seed: int = 0,
    runtime: str | Path | None = None,
) -> Path:
    """Write a page that trains the model in a browser; the path of its `index.html`.

    The folder is static: any web server serves it, and nothing is fetched from elsewhere. With the
    same settings, the page makes the steps of `sx.train(…, shuffle="hash")`.

    data       -- rows that the page begins with, as `sx.train` takes them; none: users drop a CSV
    input      -- how a user tries the model: "draw", "image", "webcam" or "csv"; chosen by the
                  shape of the input if not given
    target     -- where it computes: "wasm", or "webgpu" (in WebAssembly where a browser has no
                  WebGPU); "auto" is "wasm", whose numbers are Python's up to rounding
    epochs, batch_size, validation, seed -- the settings that the page begins with
    runtime    -- a folder that holds onnxruntime-web; None: npm installs it

    >>> import sardonyx as sx
    >>> sx.export_web("trainable.onnx", "site", "data.npz")  # doctest: +SKIP
    """
    loaded = load(model)
    _check(loaded, input, target, validation)
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    target = "wasm" if target == "auto" else target
    form = Form(OLDEST_RUNTIME, rewrite=webgpu.rewrite if target == "webgpu" else None)
    step = json.loads(write_step(loaded, root / "step", True, form).read_text())
    if target == "webgpu":
        webgpu.check(step["state"])
        train = step["steps"][0]["train"]
        train["scalars"] = webgpu.split_scalars(root / "step", train, step["state"])
    fed = step["steps"][0]["train"]["inputs"]
    rows = None if data is None else _rows(loaded, data, fed)
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "target": target,
        **_facts(loaded, title),
        "step": step,
        "model": _write_model(loaded, root / "model.onnx", step),
        "data": None if rows is None else _write_rows(rows, root / "data.bin"),
        "input": _input(loaded, fed, input),
        "labels": _labels(loaded, fed),
        "prediction": _prediction(loaded, step),
        "classes": json.loads(loaded.metadata.get(CLASSES, "[]")),
        "settings": {
            "epochs": epochs, "batch_size": batch_size, "validation": validation, "seed": seed,
        },
    }  # fmt: skip
    copy_runtime(root / "runtime", target, runtime)
    for name in PAGE_FILES:
        shutil.copyfile(PAGE / name, root / name)
    (root / "manifest.json").write_text(json.dumps(manifest) + "\n", encoding="utf-8")
    return root / "index.html"


def _check(model: Model, input: str | None, target: str, validation: float) -> None:
    problems = []
    if len(model.records) != 1:
        problems.append([f"the model has {len(model.records)} training records", "one is needed"])
    if input is not None and input not in INPUTS:
        problems.append([f"input {quote(input)}", f"one of {', '.join(INPUTS)}"])
    if target not in TARGETS:
        problems.append([f"target {quote(target)}", f"one of {', '.join(TARGETS)}"])
    if not 0 <= validation < 1:
        problems.append([f"validation {validation}", "a share between 0 and 1"])
    size = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value)
    if size > MOST_MODEL_BYTES:
        problems.append([f"{size:,} bytes of weights", "more than a page can hold"])
    if problems:
        raise ArgumentError(
            "no page can be written", problems, hint="sx.trainable adds a training record"
        )


def _facts(model: Model, title: str | None) -> dict[str, Any]:
    gathered = inspect(model)
    training = gathered.training[0]
    return {
        "title": title or gathered.name or "model",
        "parameters": gathered.parameters,
        "loss": training.loss,
        "optimizer": training.optimizer,
    }


def _labels(model: Model, fed: Sequence[Mapping[str, Any]]) -> list[str]:
    served = {v.name for v in model.inputs}
    return [i["name"] for i in fed if i["name"] not in served]


def _write_model(model: Model, path: Path, step: Mapping[str, Any]) -> dict[str, Any]:
    """Write the whole model, and say where in the file each tensor of the state is."""
    save(model, path, external=False)
    content = path.read_bytes()
    where = places(content)
    missing = [
        [quote(s["name"])]
        for s in step["state"]
        if s["name"] not in where or where[s["name"]].length != _bytes(s)
    ]
    if missing:
        raise ArgumentError("state of the training is not among the file's initializers", missing)
    return {
        "file": path.name,
        "id": hashlib.sha256(content).hexdigest()[:16],
        "tensors": {s["name"]: where[s["name"]].offset for s in step["state"]},
    }


def _bytes(tensor: Mapping[str, Any]) -> int:
    return int(np.prod(tensor["shape"], dtype=np.int64)) * np.dtype(tensor["type"]).itemsize


def _rows(model: Model, data: Any, fed: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """The rows of the data, by the names of the step's inputs."""
    source = open_data(data, classes=json.loads(model.metadata.get(CLASSES, "[]")))
    if not isinstance(source, Table):
        raise DataError("a page needs data that fits into memory", hint="a table, not a stream")
    names = {i["name"] for i in fed}
    values = [v for v in (*model.inputs, *model.records[0].algorithm.inputs) if v.name in names]
    links = link(values, _labels(model, fed), source)
    rows = convert(source.take(np.arange(len(source)), field_names(links)), links)
    return {n: np.ascontiguousarray(a) for n, a in rows.items()}


def _write_rows(rows: Mapping[str, np.ndarray], path: Path) -> dict[str, Any]:
    fields, at = [], 0
    with open(path, "wb") as file:
        for name, array in rows.items():
            fields.append(
                {"name": name, "type": str(array.dtype), "shape": array.shape[1:], "offset": at}
            )
            padding = -array.nbytes % ALIGNMENT
            file.write(array.tobytes() + bytes(padding))
            at += array.nbytes + padding
    return {"file": path.name, "rows": len(next(iter(rows.values()))), "fields": fields}


def _input(
    model: Model, fed: Sequence[Mapping[str, Any]], kind: str | None
) -> dict[str, Any] | None:
    """How a user tries the model: the input, the shape of one row, and what makes it."""
    served = [i for i in fed if i["name"] in {v.name for v in model.inputs}]
    if len(served) != 1:
        return None
    (only,) = served
    shape = [d if isinstance(d, int) else 1 for d in only["shape"][1:]]
    picture = len(shape) == 3 and shape[0] in (1, 3)
    if kind is None:
        kind = "csv" if not picture else "draw" if shape[0] == 1 else "image"
    if kind in ("draw", "image", "webcam") and not picture and not _is_square(shape):
        raise ArgumentError(
            f'input="{kind}" needs a model of images, and {quote(only["name"])} is {only["shape"]}',
            hint='input="csv"',
        )
    return {"kind": kind, "name": only["name"], "type": only["type"], "shape": shape}


def _is_square(shape: Sequence[int]) -> bool:
    """Whether rows of numbers may be the pixels of a grey picture."""
    return len(shape) == 1 and int(np.sqrt(shape[0])) ** 2 == shape[0]


def _prediction(model: Model, step: Mapping[str, Any]) -> str:
    """The output of an evaluation that is compared with the labels."""
    choices = {what: value for what, value, _ in descriptions(model)[0].get("choices", ())}
    outputs = [m["name"] for m in step["steps"][0]["evaluate"]["metrics"] if m["shape"]]
    name = str(choices.get("prediction", ""))
    return name if name in outputs or not outputs else str(outputs[0])
