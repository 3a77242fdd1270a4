"""`export_web`: a folder of static files, a page that trains a model in the browser."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.errors import ArgumentError, quote
from sardonyx.inspection import inspect
from sardonyx.model import Model, ModelSource, load
from sardonyx.record.builder import ROLE
from sardonyx.record.describe import descriptions, settings_of
from sardonyx.record.export import Form, write_step
from sardonyx.record.front import separate
from sardonyx.save import folder_reported, save
from sardonyx.train import setup
from sardonyx.train.evaluation import class_names
from sardonyx.train.images import stored_preprocessing
from sardonyx.train.means import weightings
from sardonyx.train.tables import LABELS
from sardonyx.web import rows, webgpu
from sardonyx.web.offsets import places
from sardonyx.web.runtime import copy_runtime

PAGE = Path(__file__).parent / "page"
PAGE_FILES = ("index.html", "app.js", "csv.js", "worker.js", "style.css")
TARGETS = ("auto", "wasm", "webgpu")
MOST_MODEL_BYTES = 1 << 30
EXPORTED = ("main_graph", "torch_jit", "main", "graph", "tf2onnx")  # names that exporters give
FORMAT, VERSION = "sardonyx-web", 1


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
    input      -- how a user tries the model: "draw", "image", "webcam", "csv" or "text"; chosen by
                  the type and shape of the input if not given
    target     -- where it computes: "wasm", or "webgpu" (in WebAssembly where a browser has no
                  WebGPU); "auto" is "wasm", whose numbers are Python's up to rounding
    epochs, batch_size, validation, seed -- the settings that the page begins with
    runtime    -- a folder that holds onnxruntime-web; None: npm installs it

    >>> import sardonyx as sx
    >>> sx.export_web("trainable.onnx", "site", "data.npz")  # doctest: +SKIP
    """
    loaded = load(model)
    _check(loaded, input, target, validation)
    setup.check_numbers({"epochs": epochs, "batch_size": batch_size, "seed": seed})
    target = "wasm" if target == "auto" else target
    described = descriptions(loaded)[0]
    front, root = separate(loaded), Path(folder)
    pictures = stored_preprocessing(loaded)
    with folder_reported(folder):
        with tempfile.TemporaryDirectory() as name:
            files = Path(name)
            prepared = None if front is None else rows.write_front(front, files)
            step = _write_step(loaded if front is None else front.rest, files, target)
            fed = rows.fed(loaded, step["steps"][0]["train"]["inputs"], front)
            labels = rows.labels(loaded, fed)
            table = None if data is None else rows.read(loaded, data)
            way = rows.way_to_try([i for i in fed if i["name"] not in labels], table, input)
            shutil.copytree(files, root / "step", dirs_exist_ok=True)
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "target": target,
            **_facts(loaded, title),
            "step": step,
            "front": prepared,
            "model": _write_model(loaded, root / "model.onnx", step),
            "fed": fed,
            "data": None if table is None else table.write(root / "data.bin"),
            "input": way,
            "preprocessing": None if pictures is None else asdict(pictures),
            "labels": labels,
            "label_names": LABELS,
            "prediction": _prediction(loaded, step),
            "losses": _losses(loaded, step),
            "counted": [{"name": n, **asdict(w)} for n, w in weightings(described).items()],
            "classes": class_names(loaded) or (table.classes if table is not None else ()),
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
    if input is not None and input not in rows.WAYS:
        problems.append([f"input {quote(input)}", f"one of {', '.join(rows.WAYS)}"])
    if target not in TARGETS:
        problems.append([f"target {quote(target)}", f"one of {', '.join(TARGETS)}"])
    if not (isinstance(validation, (int, float)) and 0 <= validation < 1):
        problems.append([f"validation {validation!r}", "a share from 0 to below 1"])
    size = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value)
    if size > MOST_MODEL_BYTES:
        problems.append([f"{size:,} bytes of weights", "more than a page can hold"])
    if problems:
        hint = None if model.records else "sx.trainable adds a training record"
        raise ArgumentError("no page can be written", problems, hint=hint)


def _facts(model: Model, title: str | None) -> dict[str, Any]:
    gathered = inspect(model)
    training = gathered.training[0]
    return {
        "title": title or _name(model, gathered.name),
        "parameters": gathered.parameters,
        "loss": training.loss,
        "optimizer": training.optimizer,
    }


def _name(model: Model, name: str) -> str:
    """What a user calls the model: its file, where exporters name every graph alike."""
    if name and name not in EXPORTED:
        return name
    return model.source.stem if model.source is not None else name or "model"


def _write_step(model: Model, folder: Path, target: str) -> dict[str, Any]:
    """Write the files of the step for a target; their description."""
    form = Form(rows.OLDEST_RUNTIME, rewrite=webgpu.rewrite if target == "webgpu" else None)
    step: dict[str, Any] = json.loads(write_step(model, folder, True, form).read_text())
    train = step["steps"][0]["train"]
    tensors = [*step["state"], *train["inputs"], *train["hyperparameters"]]
    types = [[quote(t["name"]), str(t["type"])] for t in tensors if t["type"] not in rows.TYPES]
    if types:
        raise ArgumentError("a page has no arrays of these types", types)
    if target == "webgpu":
        webgpu.check(step["state"])
        train["scalars"] = webgpu.split_scalars(folder, train, step["state"])
    return step


def _write_model(model: Model, path: Path, step: Mapping[str, Any]) -> dict[str, Any]:
    """Write the whole model, and say where in the file each tensor of the state is."""
    save(_with_raw_data(model, {s["name"] for s in step["state"]}), path, external=False)
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


def _with_raw_data(model: Model, names: Collection[str]) -> Model:
    """The model with these tensors as bytes: protobuf's lists of numbers cannot be written over."""
    copy = model.copy()
    for graph in (copy.graph, *(record.algorithm for record in copy.records)):
        for name, value in graph.initializers.items():
            if name in names and value.const_value is not None:
                value.const_value = ir.Tensor(value.const_value.numpy(), name=name)
    return copy


def _bytes(tensor: Mapping[str, Any]) -> int:
    return int(np.prod(tensor["shape"], dtype=np.int64)) * np.dtype(tensor["type"]).itemsize


def _prediction(model: Model, step: Mapping[str, Any]) -> dict[str, Any]:
    """The output that is compared with the labels and shown: its name, and what its numbers are.

    "scores" become probabilities by a softmax, "probabilities" are shown as they are. Above a
    "threshold", one number means the second of two classes. "label" is what it is compared with;
    an "ignored" label counts nothing.
    """
    outputs = [m["name"] for m in step["steps"][0]["evaluate"]["metrics"] if m["shape"]]
    values = {v.name: v for v in model.outputs if v.name in outputs}
    terms = [t for t in settings_of(model).get("loss_terms", []) if t["labels"]]
    compared = terms[0]["prediction"] if terms else None
    # The loss may compare what stands before a final activation, which is no output itself.
    name = next((n for n, v in values.items() if compared in (n, _before(v)[1])), None)
    name = name or next(iter(values), outputs[0] if outputs else "")
    activation = _before(values[name])[0] if name in values else None
    loss = terms[0]["loss"] if terms else None
    if activation == "Softmax":
        kind = "probabilities"
    else:
        kind = "scores" if loss == "cross_entropy" or activation == "LogSoftmax" else "numbers"
    prediction: dict[str, Any] = {"name": name, "kind": kind}
    if terms:
        ignored = terms[0].get("settings", {}).get("ignore_index")
        prediction |= {"label": terms[0]["labels"][0], "ignored": ignored}
    if loss == "binary_cross_entropy":  # one number tells two classes apart
        prediction["threshold"] = 0.5 if activation == "Sigmoid" else 0.0
    return prediction


def _before(value: ir.Value) -> tuple[str | None, str | None]:
    """The activation that an output is the result of, and what it is applied to."""
    node = value.producer()
    while node is not None and node.op_type in ("Identity", "Cast") and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    if node is None or node.op_type not in ("Softmax", "LogSoftmax", "Sigmoid"):
        return None, None
    return node.op_type, node.inputs[0].name if node.inputs[0] is not None else None


def _losses(model: Model, step: Mapping[str, Any]) -> list[str]:
    """The metrics of a step that are losses; the first is their total."""
    names = [m["name"] for m in step["steps"][0]["train"]["metrics"]]
    losses = [n for n in names if model.metadata.get(f"{ROLE}{n}") == "loss"]
    if not (losses or "loss" in names):
        raise ArgumentError(
            "the step has no loss that a page could show", [[quote(n)] for n in names]
        )
    return losses or ["loss"]
