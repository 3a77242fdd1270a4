"""`to_torch_source`: the folder with the generated module and its weights."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from sardonyx.engines.native import Stored, native
from sardonyx.engines.torch.memory import over
from sardonyx.engines.torch.source import (  # noqa: F401  (registers the rules)
    functional,
    layout,
    operators,
    quantized,
    signal,
)
from sardonyx.engines.torch.source.classes import ClassWriter, grown, source
from sardonyx.engines.torch.source.forward import identifier
from sardonyx.engines.torch.source.layers import Layer, Tensor
from sardonyx.engines.torch.source.reading import Reader, expanded
from sardonyx.engines.torch.source.scopes import attribute, classes_of, scopes_of
from sardonyx.engines.torch.source.structure import Module, TreeBuilder
from sardonyx.engines.torch.source.training_script import SCRIPT, training_script
from sardonyx.engines.torch.xp import arrays
from sardonyx.errors import EngineError, MissingExtra, quote, translated
from sardonyx.model import Model, ModelSource, load
from sardonyx.record.reading import predicting, read_record
from sardonyx.save import full_disk_reported

WEIGHTS = "model.safetensors"
SOURCE = "model.py"


def to_torch_source(model: ModelSource, folder: str | Path, *, training: bool = False) -> Path:
    """Write a model as readable Python: `model.py` and `model.safetensors` in a folder.

    Modules follow the scopes of the model, repeated layers are loops, weights become layers of
    torch.nn. The result needs torch and safetensors, not sardonyx. Returns the path of the source.

    training -- also write `train.py`, a script with the loss, the optimizer and the schedule of the
                model's training record; the module then gives what the loss takes

    >>> import sardonyx as sx
    >>> path = sx.to_torch_source("model.onnx", "converted")
    >>> print(path.read_text())  # doctest: +ELLIPSIS
    \"""A model converted from ONNX to torch; `load()` gives it with its weights.\"""...
    """
    loaded = load(model)
    reading = read_record(loaded) if training else None
    state, text = generate(loaded if reading is None else predicting(reading))
    script = "" if reading is None else training_script(reading, state)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / SOURCE
    with full_disk_reported(folder):
        _write_weights(state, folder / WEIGHTS)
        file.write_text(text, encoding="utf-8")
        if script:
            (folder / SCRIPT).write_text(script, encoding="utf-8")
    return file


@translated("the model cannot be written as torch source")
def generate(model: Model) -> tuple[dict[str, Tensor], str]:
    """The tensors of the state dict by their keys, and the text of the source."""
    graph, root = _module_tree(model)
    names = [identifier(v.name or "", "input") for v in root.inputs]
    class_names = classes_of(graph)
    classes = ClassWriter(root, names, class_names, _title(model)).write()
    state = dict(tensors(root))
    same = tied(state)
    classes[-1].ties = [f"{path(a)} = {path(b)}" for a, b in same.items()]
    classes[-1].about = _about(root, names)
    return {k: t for k, t in state.items() if k not in same}, source(classes, WEIGHTS)


def weights_of(model: Model) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a generated module by their keys; keys of tied ones, each with the first."""
    graph, root = _module_tree(model)
    # Writing the classes chooses the names of layers.
    names = [identifier(v.name or "", "input") for v in root.inputs]
    ClassWriter(root, names, classes_of(graph), _title(model)).write()
    state = dict(tensors(root))
    return state, tied(state)


def _module_tree(model: Model) -> tuple[ir.Graph, Module]:
    """The graph that is written, and the tree of its modules."""
    parts = native(model)
    graph = parts.served.graph
    expanded(graph)
    weights = set(parts.kinds)
    for name in weights:
        graph.initializers[name].meta["is_weight"] = parts.kinds[name] == "weight"
    paths, has_scopes = scopes_of(graph, weights)
    reader = Reader(graph, paths, weights)
    return graph, TreeBuilder(reader, reader.read(), has_scopes).build()


def _about(root: Module, names: list[str]) -> str:
    """The types and sizes of the inputs and outputs, in a sentence."""
    arguments = [f"{name}: {_kind(v)}" for name, v in zip(names, root.inputs)]
    results = [_kind(v) if len(root.outputs) == 1 else _labelled(v) for v in root.outputs]
    return f"Takes {', '.join(arguments) or 'nothing'}; gives {', '.join(results)}."


def _labelled(value: ir.Value) -> str:
    return f"{identifier(value.name or '', 'output')}: {_kind(value)}"


def _kind(value: ir.Value) -> str:
    dtype = "tensor" if value.dtype is None else value.dtype.name.lower()
    if value.shape is None:
        return dtype
    sizes = [str(d) if isinstance(d, int) else identifier(str(d), "size") for d in value.shape]
    return f"{dtype}[{', '.join(sizes)}]"


def _title(model: Model) -> str:
    name = model.graph.name or ""
    stem = model.source.stem if model.source is not None else ""
    return stem or "Model" if name in PLAIN else name


PLAIN = {"main_graph", "torch_jit", "torch-jit-export", "graph", ""}


def store(model: ModelSource, folder: Path) -> Stored:
    """Write the source; the result runs it in a separate process, without sardonyx."""
    loaded = load(model)
    file = to_torch_source(loaded, folder)
    text = file.read_text(encoding="utf-8")
    size = (folder / WEIGHTS).stat().st_size
    rows = [
        ["source", f"{file} ({len(text.splitlines())} lines, {text.count('nn.Module)')} classes)"],
        ["weights", f"{folder / WEIGHTS} ({size:,} bytes)"],
        ["to load it", f"import model; model.load()   # in {folder}"],
    ]
    return Stored(folder, SubprocessModule(folder), rows)


class SubprocessModule:
    """A generated model as a function of arrays; each call is a process without sardonyx."""

    def __init__(self, folder: Path):
        self.folder = folder.resolve()

    def __call__(self, *arrays: Any) -> Any:
        with tempfile.TemporaryDirectory() as place:
            feeds_file, results_file = Path(place, "feeds.npz"), Path(place, "results.npz")
            feeds = {str(i): np.asarray(a) for i, a in enumerate(arrays)}
            # Archives of NumPy have no bfloat16: its bits are stored, and the name says so.
            feeds = {
                f"{n}b" if a.dtype == BFLOAT16 else n: a.view(np.int16)
                if a.dtype == BFLOAT16
                else a
                for n, a in feeds.items()
            }
            np.savez(feeds_file, **feeds)  # type: ignore[arg-type]
            command = [
                sys.executable,
                "-I",
                "-c",
                RUN,
                str(self.folder),
                str(feeds_file),
                str(results_file),
            ]
            process = subprocess.run(command, capture_output=True, text=True, check=False)
            if process.returncode:
                raise EngineError(f"the generated source failed: {_failure(process.stderr)}")
            results = np.load(results_file)
            values = [
                results[n].view(BFLOAT16) if n.endswith("b") else results[n] for n in results.files
            ]
        return values[0] if len(values) == 1 else tuple(values)


def _failure(traceback: str) -> str:
    """The exception at the end of a traceback, and the innermost line of the source before it."""
    lines = traceback.strip().splitlines()
    places = [i for i, line in enumerate(lines) if f'{SOURCE}", line ' in line]
    where = ""
    if places:
        number = lines[places[-1]].split(", line ")[1].split(",")[0]
        where = f' ({SOURCE}:{number} "{lines[places[-1] + 1].strip()}")'
    return f"{' '.join(lines[-1:])}{where}"


BFLOAT16 = ir.DataType.BFLOAT16.numpy()
RUN = """
import sys
import numpy, torch
sys.path.insert(0, sys.argv[1])
import model
feeds = numpy.load(sys.argv[2])
inputs = [torch.from_numpy(feeds[name]) for name in feeds.files]
inputs = [x.view(torch.bfloat16) if n[-1] == "b" else x for n, x in zip(feeds.files, inputs)]
with torch.no_grad():
    results = model.load()(*inputs)
arrays = {}
for i, value in enumerate(results if isinstance(results, tuple) else (results,)):
    value, mark = value.detach(), ""
    if value.dtype == torch.bfloat16:
        value, mark = value.view(torch.int16), "b"
    arrays[f"{i}{mark}"] = value.numpy()
numpy.savez(sys.argv[3], **arrays)
"""


# -- weights ------------------------------------------------------------------------


def tensors(module: Module, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """The state dict of a tree: keys as torch gives them, and where the values come from."""
    for value, name in module.held.items():
        yield f"{prefix}{name}", Tensor([value], is_buffer=not value.meta.get("is_weight"))
    yield from _inside(grown(module.children), prefix, module.is_sequential)


def _inside(children: dict[str, Any], prefix: str, numbered: bool) -> Iterator[tuple[str, Tensor]]:
    """numbered -- the children are items of a list, whose keys are numbers"""
    for name, child in children.items():
        key = f"{prefix}{name if numbered else attribute(name)}"
        if isinstance(child, Layer):
            yield from ((f"{key}.{n}", t) for n, t in child.tensors.items())
        elif isinstance(child, Module):
            yield from tensors(child, f"{key}.")
        else:
            yield from _inside(child, f"{key}.", all(inner.isdigit() for inner in child))


def tied(state: dict[str, Tensor]) -> dict[str, str]:
    """Matrices that are equal, each with the first of them: exporters write a tied weight twice."""
    alike: dict[Any, list[tuple[str, np.ndarray]]] = {}
    ties: dict[str, str] = {}
    for key, tensor in state.items():
        array = tensor.array
        if array.ndim < 2 or array.size < 2 or array.dtype.kind != "f":
            continue
        ends = array.reshape(-1)[:: max(1, array.size // SAMPLE)]
        kind = (array.shape, array.dtype, tensor.is_buffer, ends.tobytes())
        others = alike.setdefault(kind, [])
        first = next((k for k, other in others if np.array_equal(array, other)), None)
        if first is None:
            others.append((key, array))
        elif np.ptp(array):  # all the same number: alike by chance
            ties[key] = first
    return ties


SAMPLE = 64  # elements compared first, before all of them are


def path(key: str) -> str:
    """How the whole model reaches a tensor: `self.h[0].mlp.weight`."""
    text = "self"
    for part in key.split("."):
        text += f"[{part}]" if part.isdigit() else f".{part}"
    return text


def _write_weights(state: dict[str, Tensor], path: Path) -> None:
    try:
        from safetensors.torch import save_file
    except ImportError as error:
        raise MissingExtra("safetensors", "torch") from error
    xp = arrays("cpu")
    tensors_by_key: dict[str, torch.Tensor] = {}
    used: set[int] = set()
    for key, tensor in state.items():
        array = tensor.array
        if array.dtype.kind in "OSU":
            raise EngineError(f"torch has no tensor like {quote(key)}", [[str(array.dtype)]])
        # In place, but not twice: the file would have one tensor where the module has two.
        shared = None if array.ctypes.data in used else over(array)
        used.add(array.ctypes.data)
        tensors_by_key[key] = xp.asarray(array) if shared is None else shared
    save_file(tensors_by_key, str(path))
