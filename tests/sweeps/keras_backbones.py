"""The backbones of keras_hub in the small sizes of its own tests, imported.

`run_backbone_test` and `run_vision_backbone_test`, through which all of them go, are replaced by
functions that remember their arguments. The repository is where KERAS_HUB says; it needs neither
tensorflow-text nor kagglehub for this.

    KERAS_HUB=~/keras-hub python -m tests.sweeps.keras_backbones
    KERAS_HUB=~/keras-hub python -m tests.sweeps.keras_backbones --only "Bert*"
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from pathlib import Path
from typing import Any

from tests.sweeps.harvests import run
from tests.sweeps.keras_layers import imported, run_tests

FOLDER = os.environ.get("KERAS_HUB", "")
METHODS = ("run_backbone_test", "run_vision_backbone_test")
BATCH = 8
ORIGINAL: dict[str, Any] = {}


def test_files() -> list[Path]:
    """The files of keras_hub that test backbones."""
    files = sorted((Path(FOLDER) / "keras_hub" / "src" / "models").rglob("*_test.py"))
    return [path for path in files if "backbone_test(" in path.read_text()]


def harvested(path: Path) -> list[dict[str, Any]]:
    """The arguments of every call of a test of backbones in one file."""
    if FOLDER not in sys.path:
        sys.path.insert(0, FOLDER)
    from keras_hub.src.tests.test_case import TestCase

    calls: list[dict[str, Any]] = []
    for name in METHODS:
        signature = inspect.signature(ORIGINAL.setdefault(name, getattr(TestCase, name)))

        def remember(
            self: Any, *arguments: Any, signature: Any = signature, **options: Any
        ) -> None:
            calls.append(dict(signature.bind(self, *arguments, **options).arguments))

        setattr(TestCase, name, remember)
    parts = path.relative_to(FOLDER).with_suffix("").parts
    try:
        module = importlib.import_module(".".join(parts))
    except ImportError as error:
        return [{"path": path, "error": error}]
    problems = run_tests(module, "backbone_test(")
    return calls or [{"path": path, "error": RuntimeError("; ".join(problems) or "no case")}]


def named(call: dict[str, Any]) -> str:
    name: str = call["path"].stem if "error" in call else call["cls"].__name__
    return name


def result_of(call: dict[str, Any]) -> str:
    import keras

    keras.backend.clear_session()
    try:
        if "error" in call:
            raise call["error"]
        model = call["cls"](**call["init_kwargs"])
        model(call["input_data"])
    except Exception as error:
        return f"Keras fails  {type(error).__name__}: {' '.join(str(error).split())[:400]}"
    result = imported(model)
    if result.startswith("refused"):
        again = imported(model, example=call["input_data"])
        return f"fixed sizes  {result}" if again == "right" else f"{result}; {again}"
    return result


if __name__ == "__main__":
    if not test_files():
        sys.exit("KERAS_HUB is not the folder of the repository of keras_hub")
    sys.exit(run(__spec__.name, __doc__ or "", test_files, harvested, named, result_of, BATCH))
