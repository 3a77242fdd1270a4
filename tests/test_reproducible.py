"""The same training writes the same bytes, whatever order Python's sets have."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

import sardonyx as sx

from .networks import cnn, mlp

ROOT = Path(__file__).parent.parent
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulate": {"accumulate": 3},
    "accumulate, clip, average": {"accumulate": 2, "clip_norm": 1.0, "ema": 0.9, "l2": 0.01},
    "groups": {"groups": {"*bias": {"weight_decay": 0.0}, "fc0*": {"lr": 0.1}}},
    "expanded": {"form": "expanded", "accumulate": 2},
    "initialize": {"initialize": {"*weight": "kaiming"}, "optimizer": "sgd"},
}


def write_all(folder: Path) -> dict[str, str]:
    """Write saved models and exported steps of every setting; the digest of each file."""
    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=(12, 6)).astype(np.float32), "label": rng.integers(0, 3, 12)}
    for number, settings in enumerate(SETTINGS.values()):
        net = sx.trainable(mlp(), loss="cross_entropy", **settings)
        sx.save(net, folder / f"{number}.onnx", opset=16)
        sx.export_step(net, folder / f"{number}")
        if number in (1, 4):
            run = sx.train(net, data, epochs=1, batch_size=4, engine_options={"threads": 1})
            sx.save(run.model, folder / f"{number}.trained.onnx")
    sx.save(sx.trainable(cnn(), loss="mse", accumulate=2), folder / "cnn.onnx")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def test_bytes_do_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    processes = []
    for seed in ("1", "2"):
        (tmp_path / seed).mkdir()
        folder = str(tmp_path / seed)
        command = [sys.executable, "-W", "ignore", "-m", "tests.test_reproducible", folder]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, cwd=ROOT)
        processes.append(process)
    one, two = (json.loads(process.communicate()[0]) for process in processes)
    assert len(one) > len(SETTINGS)
    assert [name for name in one if one[name] != two.get(name)] == []


if __name__ == "__main__":
    print(json.dumps(write_all(Path(sys.argv[1]))))
