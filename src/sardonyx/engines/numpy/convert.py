"""`to_numpy`: an ONNX model as a function of numpy arrays, exact in double precision if asked
for.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx.engines.native import Stored, bind, native
from sardonyx.engines.numpy.backend import Runner
from sardonyx.engines.with_weights import with_weights
from sardonyx.model import Model, ModelSource, load
from sardonyx.save import save


def to_numpy(model: ModelSource, *, float64: bool = False) -> Callable[..., Any]:
    """An ONNX model as a function of numpy arrays, given in order or by name: slow, and exact.

    float64 -- compute in double what the model computes in single precision

    >>> import numpy as np, sardonyx as sx
    >>> sx.to_numpy("model.onnx")(np.zeros((2, 8), np.float32)).shape
    (2, 3)
    """
    runner = Runner(load(model), float64=float64)
    names = runner.inputs

    def run(*inputs: Any, **named: Any) -> Any:
        outputs = tuple(runner(bind(names, inputs, named)).values())
        return outputs[0] if len(outputs) == 1 else outputs

    return run


MODULE = '''"""An ONNX model for NumPy: `load()` gives it as a function of arrays.

It runs on the NumPy engine of sardonyx: `pip install sardonyx`.
"""

from collections.abc import Callable
from pathlib import Path

import sardonyx


def load(folder: str | Path = Path(__file__).parent, *, float64: bool = False) -> Callable:
    """The model; with `float64` it computes in double what it says in single precision."""
    return sardonyx.to_numpy(Path(folder) / "model.onnx", float64=float64)
'''


def store(model: ModelSource, path: Path) -> Stored:
    """Write a model as a folder that runs, or the weights alone as an .npz."""
    loaded = load(model)
    return store_weights(loaded, path) if path.suffix == ".npz" else store_folder(loaded, path)


def store_folder(model: Model, path: Path) -> Stored:
    """Write a model and a module that runs it."""
    path.mkdir(parents=True, exist_ok=True)
    save(model, path / "model.onnx")
    file = path / "model.py"
    file.write_text(MODULE, encoding="utf-8")
    rows = [
        ["module", f"{file}; it runs on sardonyx's NumPy engine"],
        ["to load it", f"import model; model.load()   # in {path}"],
    ]
    return Stored(path, to_numpy(path / "model.onnx"), rows)


def store_weights(loaded: Model, path: Path) -> Stored:
    """Write the weights and statistics of a model as an .npz, by their names."""
    parts = native(loaded)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        arrays: dict[str, Any] = {name: parts.array(name) for name in parts.kinds}
        np.savez(file, **arrays)
    weights = dict(np.load(path))
    count = sum(a.size for a in weights.values())
    rows = [
        ["arrays", f"{count:,} numbers in {len(weights)} arrays; an .npz holds no program"],
        ["to run it", f"sardonyx.to_numpy({str(loaded.source or 'model')!r})"],
    ]
    return Stored(path, to_numpy(with_weights(loaded, weights)), rows)
