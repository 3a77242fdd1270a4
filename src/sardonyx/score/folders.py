"""Where the scoreboard keeps things between runs: `$SARDONYX_CACHE`, else `~/.cache/sardonyx`."""

from __future__ import annotations

import os
from pathlib import Path


def cache() -> Path:
    """The folder of everything that can be made again."""
    folder = os.environ.get("SARDONYX_CACHE")
    return Path(folder) if folder else Path.home() / ".cache" / "sardonyx"


def suite() -> Path:
    return cache() / "suite"


def peers() -> Path:
    return cache() / "peers"


def results() -> Path:
    return cache() / "scores.sqlite"


# The training cases are part of the source distribution and of a checkout, not of the wheel.
CHECKOUT = Path(__file__).parents[3] / "tests" / "data" / "training_cases"


def training_cases() -> Path | None:
    """Where the training cases are: `$SARDONYX_TRAINING_CASES`, the cache, or a checkout."""
    named = os.environ.get("SARDONYX_TRAINING_CASES")
    places = [Path(named)] if named else [cache() / "training_cases", CHECKOUT]
    return next((place for place in places if any(place.glob("*/model.onnx"))), None)
