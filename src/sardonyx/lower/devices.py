"""Names of devices: "cpu", "cuda", "cuda:1", "mps"; upper case is the same, and "gpu" is "cuda"."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sardonyx.errors import EngineError, quote

SYNONYMS = {"gpu": "cuda"}
NAME = re.compile(r"(cpu|cuda|mps)(:\d+)?")


def device_name(device: str) -> str:
    """A device as it is written here: "CUDA:1" is "cuda:1"."""
    kind, colon, index = str(device).strip().lower().partition(":")
    return f"{SYNONYMS.get(kind, kind)}{colon}{index}"


def kind_and_index(device: str) -> tuple[str, int | None]:
    """The kind of a device, and its number if it has one."""
    kind, _, index = device_name(device).partition(":")
    return kind, int(index) if index.isdigit() else None


def is_among(device: str, available: Sequence[str]) -> bool:
    """Whether a device, or any of its kind where no number is given, is available."""
    name = device_name(device)
    if ":" in name:
        return name in available or (name.endswith(":0") and name[:-2] in available)
    return any(other.partition(":")[0] == name for other in available)


def no_device(device: str, available: Sequence[str], engine: str = "this engine") -> EngineError:
    """The error for a device that is not available."""
    names = ", ".join(available)
    more = "; a GPU needs a build of the engine for it" * (names == "cpu")
    if not NAME.fullmatch(device_name(device)):
        more = "; devices are written cpu, cuda, cuda:1, mps"
    return EngineError(
        f"{engine} has no device {quote(str(device))} on this machine", hint=f"it has {names}{more}"
    )
