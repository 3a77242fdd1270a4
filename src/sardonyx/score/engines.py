"""The engines of the scoreboard: ours, the peers, and adapter files of users.

An engine is an adapter file and the Python that runs it; worker.py says what an adapter is.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from sardonyx import plugins
from sardonyx.errors import ArgumentError, quote
from sardonyx.score import environments

HERE = Path(__file__).parent
PACKAGE = HERE.parent
# Set for every engine: one thread each, no chatter, no accelerator, no optimizations that cost
# more than they save where everything runs once.
SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "CUDA_VISIBLE_DEVICES": "-1",
    "JAX_PLATFORMS": "cpu",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "PYTHONHASHSEED": "0",
}
GROUPS = {"ours": ("ours",), "peers": ("peer",), "all": ("ours", "peer")}


@dataclass(frozen=True)
class Engine:
    """One column of the scoreboard.

    kind     -- "ours", "peer" (an environment of its own) or "given" (the user's adapter file, or a
                plug-in)
    adapter  -- the file with `run`
    python   -- what runs it
    """

    name: str
    kind: str
    adapter: Path
    python: Path
    packages: str = ""  # what the environment holds, for the key of stored results
    environment: dict[str, str] = field(default_factory=dict, hash=False)

    @property
    def title(self) -> str:
        return f"sardonyx on {self.name}" if self.kind == "ours" else self.name

    def variables(self) -> dict[str, str]:
        """The environment variables of its process."""
        environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
        if self.kind != "peer":
            before = os.environ.get("PYTHONPATH", "")
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(PACKAGE.parent), before]))
        return {**environment, **SETTINGS, **self.environment}


def installed() -> list[Engine]:
    """Every engine that could run now: ours whose framework is there, peers that are set up."""
    ours = [ours_of(name) for name in plugins.usual()]
    return ours + [peer_of(name) for name in environments.PEERS if environments.is_ready(name)]


def find(text: str) -> list[Engine]:
    """Engines by name: one, several with commas, `ours`, `peers`, `all`, or a Python file."""
    engines: list[Engine] = []
    for part in text.split(","):
        engines += _find_one(part.strip())
    return list({engine.name: engine for engine in engines}.values())


def _find_one(name: str) -> list[Engine]:
    if name in GROUPS:
        return [engine for engine in installed() if engine.kind in GROUPS[name]]
    if name.endswith(".py"):
        return [given(Path(name))]
    if name in plugins.engines():
        return [ours_of(name)]
    if name in environments.PEERS:
        if not environments.is_ready(name):
            raise ArgumentError(
                f"{name} is not set up", hint=f"sardonyx score --setup {name} makes its environment"
            )
        return [peer_of(name)]
    raise ArgumentError(
        f"there is no engine {quote(name)}",
        [["ours", ", ".join(plugins.names())], ["peers", ", ".join(environments.PEERS)]],
        hint="or give a Python file with a function run(model, inputs)",
    )


def ours_of(name: str) -> Engine:
    """An engine of Sardonyx or of a plug-in; one without an adapter of its own gets a general
    one, which knows its name by an environment variable.
    """
    engine = plugins.engine(name)
    adapter = HERE / "ours" / f"{name}.py"
    environment = {}
    if not adapter.is_file():
        adapter, environment = HERE / "ours" / "general.py", {"SARDONYX_SCORE_ENGINE": name}
    packages = f"{environments.packages_here()} {engine.plugin}".rstrip()
    kind = "given" if engine.plugin else "ours"
    return Engine(name, kind, adapter, Path(sys.executable), packages, environment)


def peer_of(name: str) -> Engine:
    peer = environments.PEERS[name]
    adapter = HERE / "peers" / f"{peer.module}.py"
    python = environments.python_of(name)
    return Engine(name, "peer", adapter, python, environments.packages(python), peer.environment)


def given(path: Path) -> Engine:
    """An engine out of an adapter file; it runs in this environment."""
    if not path.is_file():
        raise ArgumentError(f"there is no file {quote(path)}")
    name = path.stem
    if name in plugins.engines() or name in environments.PEERS:
        raise ArgumentError(f"{quote(name)} is taken", hint="rename the file")
    packages = environments.packages_here()
    return Engine(name, "given", path.resolve(), Path(sys.executable), packages)
