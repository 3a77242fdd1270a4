"""The engines that models run on, by name: those of the project, and those of other packages.

A package adds an engine through the entry-point group `sardonyx.engines`; the guide "Add an engine"
says what it offers. Nothing is imported here: an engine is loaded when it is used
(`engines/prepare.py`).
"""

from __future__ import annotations

import functools
import importlib.util
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata

from sardonyx.errors import ArgumentError, did_you_mean

GROUP = "sardonyx.engines"
DEFAULT = "onnxruntime"


@dataclass(frozen=True)
class Engine:
    """One engine.

    target   -- what is loaded: "package.module", or "package.module:object"
    requires -- the package without which it cannot run, by the name under which it is imported
    packages -- the names under which that package is distributed
    command  -- the program without which it cannot run, instead of a package; such an engine
                starts a process for each run, and is used only where it is named
    contends -- whether `engine="auto"` tries it
    arrays   -- whether operators are lowered to its arrays: it has kernels in `sardonyx.lower`
    rivals   -- other packages that add an engine of the same name
    plugin   -- the package, with its version, that adds it; empty for the project's own
    """

    name: str
    target: str
    requires: str
    packages: tuple[str, ...] = ()
    contends: bool = True
    arrays: bool = False
    rivals: tuple[str, ...] = ()
    plugin: str = ""
    command: str = ""

    @property
    def is_installed(self) -> bool:
        if self.command:
            return shutil.which(self.command) is not None
        return importlib.util.find_spec(self.requires) is not None

    @property
    def version(self) -> str:
        """The version of the package that runs models; empty where none is installed."""
        for name in self.packages:
            try:
                return metadata.version(name)
            except metadata.PackageNotFoundError:
                continue
        return ""

    def entry(self) -> metadata.EntryPoint:
        return metadata.EntryPoint(self.name, self.target, GROUP)


def _own(name: str, *packages: str, contends: bool = True, arrays: bool = False) -> Engine:
    target = f"sardonyx.engines.{name}"
    return Engine(name, target, name, (name, *packages), contends, arrays)


# In the order in which they are listed and tried. The reference in NumPy is never the fastest; IREE
# takes seconds to compile, and tract executes steps in small parts.
BUILT_IN = {
    engine.name: engine
    for engine in (
        _own("onnxruntime", "onnxruntime-gpu"),
        _own("numpy", contends=False, arrays=True),
        _own("torch", arrays=True),
        _own("jax", arrays=True),
        _own("tensorflow", "tensorflow-cpu", arrays=True),
        _own("openvino"),
        _own("iree", "iree-base-compiler", contends=False),
        _own("tract", contends=False),
        Engine(
            "octave", "sardonyx.engines.matlab.octave", "", contends=False, command="octave-cli"
        ),
    )
}
# The engines to whose arrays operators are lowered.
FRAMEWORKS = tuple(name for name, engine in BUILT_IN.items() if engine.arrays)


def engines() -> dict[str, Engine]:
    """Every engine, installed or not; those of other packages come last, in alphabetical order."""
    return {**BUILT_IN, **_added(tuple(sys.path))}


def names() -> tuple[str, ...]:
    return tuple(engines())


def listed(conjunction: str = "or", more: Iterable[str] = ()) -> str:
    """The names as words of a sentence: "onnxruntime, numpy or torch"."""
    *front, last = (*names(), *more)
    return f"{', '.join(front)} {conjunction} {last}"


def engine(name: str) -> Engine:
    """An engine by its name; an error where there is none."""
    every = engines()
    if name not in every:
        raise ArgumentError(f"there is no engine called {name!r}", hint=did_you_mean(name, every))
    return every[name]


def usual() -> list[str]:
    """The engines that are used where none is named: those that are installed and start no
    process of their own.
    """
    return [e.name for e in engines().values() if e.is_installed and not e.command]


def contenders() -> list[str]:
    """The engines that `engine="auto"` tries: those that are installed."""
    return [e.name for e in engines().values() if e.contends and e.is_installed]


@functools.cache
def _added(path: tuple[str, ...]) -> dict[str, Engine]:
    """The engines of other packages; `path` is where packages were searched for."""
    added: dict[str, Engine] = {}
    for name, target, plugin in sorted(set(_entries())):
        if name in BUILT_IN:
            continue  # the project's own name stays what it is
        before = added.get(name)
        rivals = (*before.rivals, before.plugin) if before else ()
        package = plugin.partition(" ")[0]
        module = target.partition(":")[0].partition(".")[0]
        added[name] = Engine(name, target, module, (package,), True, False, rivals, plugin)
    return added


def _entries() -> Iterator[tuple[str, str, str]]:
    """Name, target and package of every entry point of the group."""
    for distribution in metadata.distributions():
        for entry in distribution.entry_points:
            if entry.group == GROUP:
                yield entry.name, entry.value, f"{distribution.name} {distribution.version}"
