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
