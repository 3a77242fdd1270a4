"""Every architecture of keras.applications with random weights, imported with a free batch.

python -m tests.sweeps.keras_applications --only "MobileNet*"
"""

from __future__ import annotations

import argparse
import inspect
import os
import subprocess
import sys
import time
import warnings
from fnmatch import fnmatchcase
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

SECONDS = 900


def architectures() -> dict[str, Any]:
    import keras

    functions = vars(keras.applications).items()
    return {n: f for n, f in functions if inspect.isfunction(f) and n[0].isupper()}


def work(name: str) -> None:
    """Import one; it is compared with Keras on the spot."""
    warnings.simplefilter("ignore")
    import sardonyx as sx

    build = architectures()[name]
    model = build(weights=None)
    started = time.monotonic()
    imported = sx.from_keras(model)
    seconds = time.monotonic() - started
    print(
        f"right  {len(imported.graph)} nodes, {model.count_params():,} parameters, {seconds:.1f} s"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", default="", help=argparse.SUPPRESS)
    parser.add_argument("--only", default="*", help="a pattern of names")
    options = parser.parse_args()
    if options.work:
        work(options.work)
        return 0
    counts: dict[str, int] = {}
    for name in architectures():
        if not fnmatchcase(name, options.only):
            continue
        command = [sys.executable, "-W", "ignore", "-m", __spec__.name, "--work", name]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=SECONDS
            )
            lines = (done.stderr if done.returncode else done.stdout).strip().splitlines()
            result = lines[-1] if lines else "died"
            result = f"failed  {result[:200]}" if done.returncode else result
        except subprocess.TimeoutExpired:
            result = "late"
        counts[result.split()[0]] = counts.get(result.split()[0], 0) + 1
        print(f"{name:24} {result}", flush=True)
    print(counts)
    return int(set(counts) != {"right"})


if __name__ == "__main__":
    sys.exit(main())
