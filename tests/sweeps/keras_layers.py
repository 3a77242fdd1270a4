"""Every case of Keras's own layer tests, imported: `run_layer_test`, through which they all go, is
replaced by one that remembers its arguments; the tests are in Keras's wheel.

    python -m tests.sweeps.keras_layers                    # batches in processes of their own
    python -m tests.sweeps.keras_layers --only "Conv*"
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import json
import os
import resource
import signal
import subprocess
import sys
import time
import unittest
import warnings
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

BATCH, SECONDS, HARVEST_SECONDS, MEMORY = 60, 120, 20, 12 * 2**30
ORIGINAL: dict[str, Any] = {}


def test_files() -> list[Path]:
    """The files of Keras that test layers by `run_layer_test`."""
    import keras.src

    root = Path(keras.src.__file__).parent
    files = sorted((root / "layers").rglob("*_test.py"))
    return [path for path in files if "run_layer_test" in path.read_text()]


def harvested(path: Path) -> list[dict[str, Any]]:
    """The arguments of every call of `run_layer_test` in one file."""
    import keras.src
    from keras.src.testing import test_case

    calls: list[dict[str, Any]] = []
    signature = inspect.signature(ORIGINAL.setdefault("test", test_case.TestCase.run_layer_test))

    def remember(self: Any, *arguments: Any, **options: Any) -> None:
        calls.append(dict(signature.bind(self, *arguments, **options).arguments))

    test_case.TestCase.run_layer_test = remember
    root = Path(keras.src.__file__).parent
    name = ".".join(("keras.src", *path.relative_to(root).with_suffix("").parts))
    try:
        module = importlib.import_module(name)
    except ImportError:
        return []
    for suite in unittest.defaultTestLoader.loadTestsFromModule(module):
        for test in suite:
            method = getattr(type(test), test._testMethodName, None)
            if method is not None and "run_layer_test" in _source(method):
                signal.signal(signal.SIGALRM, _late)
                signal.alarm(HARVEST_SECONDS)  # such a test may go on to train the layer
                with contextlib.suppress(TimeoutError):
                    test.run(unittest.TestResult())
                signal.alarm(0)
    return calls


def _source(method: Any) -> str:
    try:
        return inspect.getsource(inspect.unwrap(method))
    except (OSError, TypeError):
        return "run_layer_test"


def network(call: dict[str, Any]) -> Any:
    """A model of one layer, of the inputs that a case has, with a free batch."""
    import keras

    layer = call["layer_cls"](**call["init_kwargs"])
    if call.get("input_data") is not None:
        inputs = keras.tree.map_structure(
            lambda x: keras.Input(
                tuple(x.shape[1:]), dtype=keras.backend.standardize_dtype(x.dtype)
            ),
            call["input_data"],
        )
    else:
        dtype = call.get("input_dtype") or "float32"
        inputs = keras.tree.map_shape_structure(
            lambda shape: keras.Input(tuple(shape[1:]), dtype=dtype), call["input_shape"]
        )
    options = call.get("call_kwargs") or {}
    if isinstance(inputs, dict) and all(key.endswith("_shape") for key in inputs):
        inputs = {key.removesuffix("_shape"): value for key, value in inputs.items()}
        return keras.Model(inputs, layer(**inputs, **options))
    return keras.Model(inputs, layer(inputs, **options))


def result_of(call: dict[str, Any]) -> str:
    import sardonyx as sx
    from sardonyx.errors import ImportDiffers, SardonyxError

    if call.get("input_sparse") or call.get("input_ragged"):
        return "not this backend  sparse or ragged"
    try:
        model = network(call)
    except Exception as error:
        return f"Keras fails  {type(error).__name__}: {' '.join(str(error).split())[:150]}"
    try:
        sx.from_keras(model)
    except ImportDiffers as error:
        return f"WRONG  {' '.join(str(error).split())[:300]}"
    except SardonyxError as error:
        return f"refused  {' '.join(str(error).split())[:300]}"
    return "right"


def work(first: tuple[int, int], pattern: str) -> None:
    """Cases from `first` on (file, number), as lines of JSON, until a batch is done."""
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    done = 0
    for index, path in enumerate(test_files()):
        if index < first[0]:
            continue
        for number, call in enumerate(harvested(path)):
            name = call["layer_cls"].__name__
            if (index, number) < first or not fnmatchcase(name, pattern):
                continue
            print(json.dumps({"place": [index, number], "name": name}), flush=True)
            signal.signal(signal.SIGALRM, _late)
            signal.alarm(SECONDS)
            started = time.monotonic()
            try:
                result = result_of(call)
            except Exception as error:
                result = f"failed  {type(error).__name__}: {' '.join(str(error).split())[:300]}"
            signal.alarm(0)
            entry = {"result": result, "seconds": time.monotonic() - started}
            print(json.dumps({"place": [index, number], **entry}), flush=True)
            done += 1
        if done >= BATCH:
            print(json.dumps({"next": index + 1}), flush=True)
            return
    print(json.dumps({"end": True}), flush=True)


def _late(*_: Any) -> None:
    raise TimeoutError(f"more than {SECONDS} seconds")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=int, nargs=2, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--only", default="*", help="a pattern of the names of layers")
    options = parser.parse_args()
    if options.work is not None:
        work((options.work[0], options.work[1]), options.only)
        return 0
    first, counts, ended = (0, 0), {}, False
    while not ended:
        command = [sys.executable, "-W", "ignore", "-m", __spec__.name, "--only", options.only]
        process = subprocess.Popen(
            [*command, "--work", *map(str, first)], stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        current, before = None, first
        assert process.stdout is not None
        for line in process.stdout:
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            ended = ended or bool(entry.get("end"))
            if "next" in entry:
                first = (entry["next"], 0)
            elif "name" in entry:
                current = entry
            elif "result" in entry and current is not None:
                _show(current, entry["result"], entry["seconds"], counts)
                first, current = (entry["place"][0], entry["place"][1] + 1), None
        process.wait()
        if current is not None:  # the process is gone in the middle of a case
            _show(current, "died  memory or a crash", 0.0, counts)
            first = (current["place"][0], current["place"][1] + 1)
        elif first == before and not ended:  # or before its first case: the next file
            first = (first[0] + 1, 0)
    print(counts)
    return int(any(word in counts for word in ("WRONG", "failed", "died")))


def _show(case: dict[str, Any], result: str, seconds: float, counts: dict[str, int]) -> None:
    word = result.split("  ")[0]
    counts[word] = counts.get(word, 0) + 1
    place = "{}.{}".format(*case["place"])
    print(f"{place:8} {case['name']:28} {result}  {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
