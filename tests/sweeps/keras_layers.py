"""Every case of Keras's own layer tests, imported: `run_layer_test`, through which they all go, is
replaced by one that remembers its arguments; the tests are in Keras's wheel.

    python -m tests.sweeps.keras_layers                    # batches in processes of their own
    python -m tests.sweeps.keras_layers --only "Conv*"
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
import unittest
from pathlib import Path
from typing import Any

from tests.sweeps.harvests import Late, limited, run

os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

HARVEST_SECONDS = 20
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
    run_tests(module, "run_layer_test")
    return calls


def run_tests(module: Any, word: str) -> list[str]:
    """Run the tests of a module whose source has a word; what stopped them."""
    result = unittest.TestResult()
    for suite in unittest.defaultTestLoader.loadTestsFromModule(module):
        for test in suite:
            method = getattr(type(test), test._testMethodName, None)
            if method is not None and word in _source(method, word):
                # Such a test may go on to train the layer.
                with contextlib.suppress(Late), limited(HARVEST_SECONDS):
                    test.run(result)
    return [" ".join(text.split())[-300:] for _, text in result.errors + result.failures]


def _source(method: Any, otherwise: str) -> str:
    try:
        return inspect.getsource(inspect.unwrap(method))
    except (OSError, TypeError):
        return otherwise


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
    if call.get("input_sparse") or call.get("input_ragged"):
        return "not this backend  sparse or ragged"
    try:
        model = network(call)
    except Exception as error:
        return f"Keras fails  {type(error).__name__}: {' '.join(str(error).split())[:150]}"
    return imported(model)


def imported(model: Any, **options: Any) -> str:
    """What comes of the import of a model."""
    import sardonyx as sx
    from sardonyx.errors import ImportDiffers, SardonyxError

    try:
        sx.from_keras(model, **options)
    except ImportDiffers as error:
        return f"WRONG  {' '.join(str(error).split())[:300]}"
    except SardonyxError as error:
        return f"refused  {' '.join(str(error).split())[:300]}"
    return "right"


def named(call: dict[str, Any]) -> str:
    name: str = call["layer_cls"].__name__
    return name


if __name__ == "__main__":
    sys.exit(run(__spec__.name, __doc__ or "", test_files, harvested, named, result_of))
