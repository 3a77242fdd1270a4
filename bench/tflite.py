"""TensorFlow Lite files of sardonyx beside those of onnx2tf: operators, turns, time in LiteRT.

    python bench/tflite.py [files …] [--onnx2tf PYTHON] [--size NAME=NUMBER …] [--rounds N]

PYTHON is an interpreter in whose environment onnx2tf is installed; without it, ours are measured
alone. Without files, the networks in the package onnx are taken. Both files get their images with
channels last, as onnx2tf has them. They run alternately in one process, on one thread; the time is
processor time, the least of all rounds. `error` is the largest difference from onnxruntime
relative to its outputs' size; a file that is wrong is measured, but marked.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

import sardonyx as sx
from sardonyx.engines.tensorflow.tflite import litert, operators, specialized

WRONG = 1e-2  # a relative difference that rounding does not explain
MINUTES = 10.0
SECONDS = 1.0  # of one measurement


class Contender:
    """A file in LiteRT that takes and gives arrays in any order of axes."""

    def __init__(self, content: bytes):
        self.interpreter = litert(content)
        self.interpreter.allocate_tensors()
        counts = operators(content)
        self.operators, self.turns = sum(counts.values()), counts.get("TRANSPOSE", 0)
        self.best = float("inf")

    def feed(self, feeds: dict[str, np.ndarray]) -> None:
        free = dict(feeds)
        for detail in self.interpreter.get_input_details():
            name = _of(detail["name"], detail["shape"], free)
            array = _in_order(free.pop(name), detail["shape"])
            self.interpreter.set_tensor(detail["index"], array.astype(detail["dtype"]))

    def error(self, expected: Sequence[np.ndarray]) -> float:
        self.interpreter.invoke()
        details = self.interpreter.get_output_details()
        results = [self.interpreter.get_tensor(d["index"]) for d in details]
        orders = (
            [_difference(r, e) for r, e in zip(order, expected, strict=True)]
            for order in itertools.islice(itertools.permutations(results), 120)
        )
        return min(max(differences, default=0.0) for differences in orders)

    def measure(self) -> None:
        runs = self._time(1)
        runs = self._time(max(1, min(200, int(SECONDS / max(runs, 1e-6)))))
        self.best = min(self.best, runs)

    def _time(self, count: int) -> float:
        start = time.process_time()
        for _ in range(count):
            self.interpreter.invoke()
        return (time.process_time() - start) / count


def _of(name: str, shape: Sequence[int], feeds: dict[str, np.ndarray]) -> str:
    """The input that is meant: by its name, which both writers change a little, or by its size."""
    plain = [n for n in feeds if n.replace("/", "_") in name.replace("/", "_")]
    fits = [n for n in feeds if feeds[n].size == int(np.prod(shape))]
    return next(iter([n for n in plain if n in fits] or fits or plain))


def _in_order(array: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """An array with its channels last, if that is the shape that is asked for."""
    last = np.moveaxis(array, 1, -1) if array.ndim > 2 else array
    return np.ascontiguousarray(array if array.shape == tuple(shape) else last.reshape(shape))


def _difference(result: np.ndarray, expected: np.ndarray) -> float:
    if result.size != expected.size:
        return float("inf")
    size = float(np.abs(expected).max(initial=0.0)) or 1.0
    ways = [expected, np.moveaxis(expected, 1, -1)] if expected.ndim > 2 else [expected]
    numbers = result.astype(np.float64).reshape(-1)
    return min(float(np.abs(numbers - w.reshape(-1)).max(initial=0.0)) / size for w in ways)


def ours(path: Path, folder: Path) -> bytes:
    target = folder / "ours.tflite"
    sx.to_tflite(path, target, inputs="nhwc", outputs="nhwc", seeds=1)
    return target.read_bytes()


def theirs(python: str, path: Path, folder: Path) -> bytes:
    # Else it would download images, on which it compares its layers.
    images = np.random.default_rng(0).random((20, 128, 128, 3)).astype(np.float32)
    np.save(folder / "calibration_image_sample_data_20x128x128x3_float32.npy", images)
    command = [python, "-m", "onnx2tf", "-i", str(path), "-o", str(folder / "theirs"), "-n"]
    settings: dict[str, Any] = {"capture_output": True, "text": True, "cwd": folder}
    done = subprocess.run(command, timeout=60 * MINUTES, **settings)
    files = sorted((folder / "theirs").glob("*_float32.tflite"))
    if done.returncode or not files:
        lines = (done.stdout + done.stderr).strip().splitlines()
        raise RuntimeError(lines[-1] if lines else "no file")
    return files[0].read_bytes()


def fixed(path: Path, sizes: dict[str, int], folder: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """The model with fixed sizes, in a file, and random inputs."""
    model = sx.load(path)
    names = {d.value for v in model.inputs for d in v.shape or () if not isinstance(d, int)}
    model = specialized(model, {n: s for n, s in sizes.items() if n in names})
    rng = np.random.default_rng(0)
    feeds = {}
    for value in model.inputs:
        array = rng.random([int(d) for d in value.shape or ()])
        feeds[value.name or ""] = array.astype(value.dtype.numpy())  # type: ignore[union-attr]
    target = folder / f"{path.stem}.onnx"
    sx.save(model, target)
    return target, feeds


def row(path: Path, python: str | None, sizes: dict[str, int], rounds: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        target, feeds = fixed(path, sizes, folder)
        session = onnxruntime.InferenceSession(str(target), providers=["CPUExecutionProvider"])
        expected = session.run(None, feeds)
        writers: dict[str, Callable[[], bytes]] = {"ours": lambda: ours(target, folder)}
        if python:
            writers["onnx2tf"] = lambda: theirs(python, target, folder)
        contenders: dict[str, Any] = {}
        for writer, write in writers.items():
            try:
                contenders[writer] = Contender(write())
                contenders[writer].feed(feeds)
                contenders[writer].deviation = contenders[writer].error(expected)
            except Exception as error:
                contenders[writer] = None
                print(f"{path.stem:<28} {writer:<8} {str(error).splitlines()[0][:70]}", flush=True)
        running = [c for c in contenders.values() if c is not None]
        for _ in range(rounds):
            for contender in running:
                contender.measure()
        _print(path.stem, contenders)


def _print(name: str, contenders: dict[str, Any]) -> None:
    for writer, c in contenders.items():
        if c is not None:
            verdict = "  wrong" if c.deviation > WRONG else ""
            print(
                f"{name:<28} {writer:<8} {c.operators:>6} {c.turns:>6} {1000 * c.best:>9.2f} "
                f"{c.deviation:>9.1e}{verdict}",
                flush=True,
            )
    if len(contenders) == 2 and all(contenders.values()):
        a, b = contenders.values()
        print(f"{'':<28} {'ratio':<8} {a.operators / b.operators:>6.2f} {'':>6} "
              f"{a.best / b.best:>9.2f}", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--onnx2tf", help="an interpreter that has onnx2tf")
    parser.add_argument("--size", action="append", default=[], help="NAME=NUMBER of a free size")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    light = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    sizes = {n: int(s) for n, s in (text.split("=") for text in arguments.size)}
    print(f"{'network':<28} {'writer':<8} {'ops':>6} {'turns':>6} {'ms':>9} {'error':>9}")
    for path in arguments.files or sorted(light.glob("light_*.onnx")):
        row(path, arguments.onnx2tf, sizes, arguments.rounds)


if __name__ == "__main__":
    main()
