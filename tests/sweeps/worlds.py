"""What any number of processes wrote, any other number continues.

    python -m tests.sweeps.worlds [--engines torch,jax] [--worlds 1,2,4]

A network with batch statistics and dropout trains half of its epochs in a number of processes and
the other half in each number. The losses of the epochs after must be those of one process within
5e-6; at equal numbers, the bytes of the file must be those of a run that was never stopped.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.sweeps.kills import Running, losses, prepare, state

EPOCHS = 4


def train(folder: Path, engine: str, world: int, output: str, epochs: int, port: int) -> Path:
    running = Running.start(folder, engine, world, port, output, epochs)
    running.wait()
    if running.process.returncode:
        raise RuntimeError((folder / f"{output}.log").read_text()[-2000:])
    return folder / output


def sweep(engine: str, worlds: list[int], folder: Path) -> list[dict[str, Any]]:
    """Every pair of numbers of processes: how far the losses are apart, and whether bytes agree."""
    port = 29620 + 60 * (engine == "jax")
    whole, half, rows = {}, {}, []
    for number, world in enumerate(worlds):
        place = port + 4 * number
        whole[world] = train(folder, engine, world, f"{engine}-{world}.onnx", EPOCHS, place)
        half[world] = train(
            folder, engine, world, f"{engine}-{world}-half.onnx", EPOCHS // 2, place
        )
    expected = losses(whole[worlds[0]])
    for first in worlds:
        for second in worlds:
            name = f"{engine}-{first}-{second}.onnx"
            shutil.copy(half[first], folder / name)
            place = port + 20 + 4 * worlds.index(second)
            later = train(folder, engine, second, name, EPOCHS, place)
            apart = float(np.abs(np.subtract(losses(later), expected)).max())
            same = first != second or state(later) == state(whole[first])
            row = {"engine": engine, "first": first, "second": second, "apart": apart, "same": same}
            rows.append(row)
            words = "as one process" if apart <= 5e-6 and same else "DIFFERS"
            bytes_ = " identical bytes" if first == second and same else ""
            print(f"{engine:6} {first} → {second}  {apart:.1e}{bytes_}: {words}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--engines", default="torch,jax")
    parser.add_argument("--worlds", default="1,2,4")
    chosen = parser.parse_args()
    worlds = [int(n) for n in chosen.worlds.split(",")]
    rows = []
    for engine in chosen.engines.split(","):
        with tempfile.TemporaryDirectory() as folder:
            prepare(Path(folder))
            rows += sweep(engine, worlds, Path(folder))
    failed = [row for row in rows if row["apart"] > 5e-6 or not row["same"]]
    print(f"{len(failed)} of {len(rows)} differ")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
