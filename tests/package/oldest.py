"""Print the oldest version that pyproject.toml allows of each dependency, as pip constraints.

    python tests/package/oldest.py cpu torch jax > oldest.txt

Names after the script are extras; the dependencies of the core are always among them.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def lower_bounds(extras: list[str]) -> dict[str, str]:
    """Package → the version after `>=`, over the core and `extras`, extras of extras included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pending = [*project["dependencies"]]
    for extra in extras:
        pending += project["optional-dependencies"][extra]
    bounds = {}
    while pending:
        requirement = pending.pop()
        own = re.fullmatch(r"sardonyx\[([a-z,]+)\]", requirement)
        if own:
            pending += [r for e in own[1].split(",") for r in project["optional-dependencies"][e]]
            continue
        name, bound = re.fullmatch(r"([\w-]+)(?:\[\w+\])?>=([\w.]+)", requirement).groups()  # type: ignore[union-attr]
        bounds[name] = bound
    return bounds


if __name__ == "__main__":
    for name, bound in sorted(lower_bounds(sys.argv[1:]).items()):
        print(f"{name}=={bound}")
