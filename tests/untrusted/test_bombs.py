"""Small files that ask for much: each stays within one second and 200 MB, whatever is done with it.

The bound is a promise made to users, not a benchmark, so it is asserted here: in processor time,
which other work on the machine does not change, above an empty model. All bombs go through one
command in one child process, which is ended if it takes memory or time without bound.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx.errors import DataError
from sardonyx.verify.datasets import read_npz

from .bombs import BOMBS, ENDLESS, ENLARGED, REFUSED, honest_chain
from .measure import COMMANDS
from .models import chain, graph, model, node
from .ways_in import DOORS, refusal

SECONDS, MEGABYTES = 1.0, 200.0
ROOT = Path(__file__).parents[2]
CEILING = 6 * 2**30


def child(*arguments: str, timeout: float) -> Iterator[dict[str, Any]]:
    """The rows that `measure.py` prints, as far as it came."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
        "OMP_NUM_THREADS": "1",
    }
    # The shell sets the limit: a fork of this process would disturb threads of jax.
    limited = ["sh", "-c", f'ulimit -d {CEILING // 1024}; exec "$@"', "sh"]
    command = [*limited, sys.executable, "-m", "tests.untrusted.measure", *arguments]
    try:
        done = subprocess.run(
            command,
            env=environment,
            cwd=ROOT,
            capture_output=True,
            timeout=timeout,
        )
        printed = done.stdout
    except subprocess.TimeoutExpired as expired:
        printed = expired.stdout or b""
    for line in printed.decode().splitlines():
        yield json.loads(line)


@functools.cache
def costs(command: str) -> dict[str, dict[str, Any]]:
    """What each bomb did in one command."""
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder) / "empty"
        empty.write_bytes(model(graph([node("Relu", "x", "y")])).SerializeToString())
        paths = [Path(folder) / name for name in BOMBS]
        for path in paths:
            path.write_bytes(BOMBS[path.name].SerializeToString())
        rows = child(command, str(empty), *map(str, paths), timeout=120)
        return {row["name"]: row for row in rows}


SLOW = {"convert_tensorflow"}
WAYS = [pytest.param(c, marks=[pytest.mark.slow] * (c in SLOW)) for c in COMMANDS]
# An old target may lack the operator, torch source has no form for it, nothing is left to train.
MAY_REFUSE = {"save", "source", "trainable"}


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("command", WAYS)
def test_bomb_stays_within_one_second_and_200_mb(command: str, bomb: str) -> None:
    assert bomb in costs(command), "the process was ended, or an earlier one ended it"
    row = costs(command)[bomb]
    assert not row["outcome"].startswith("foreign"), row
    assert row["s"] < SECONDS and row["MB"] < MEGABYTES, row
    if bomb in REFUSED:
        assert row["outcome"] in ("ModelError", "LimitExceeded"), row
    elif command not in MAY_REFUSE:
        assert row["outcome"] == "done", row


WORDS = {
    "BOMB-01": "expansion is 547",
    "BOMB-02": "nodes is 1,048,576",
    "BOMB-03": "nodes is 1,073,741,824",
    "BOMB-04-direct": 'function "f0" → function "f0"',
    "BOMB-04-through-two": 'function "f0" → function "f1" → function "f2" → function "f0"',
    "BOMB-19": "about 2^72 bytes of data and has 4",
    "BOMB-20": "negative dimension -1",
    "BOMB-21": "about 2^66 bytes of data and has 4",
    "BOMB-21-zero": "about 2^126 bytes",
    "BOMB-21-sparse": "dense_bytes is 4,294,967,296",
}


@DOORS
@pytest.mark.parametrize("bomb", REFUSED)
def test_bomb_that_is_refused_says_why(door, bomb: str) -> None:
    assert WORDS[bomb] in refusal(door, BOMBS[bomb])


def operators(proto: onnx.ModelProto) -> list[str]:
    return [n.op_type for n in proto.graph.node]


@pytest.mark.parametrize("bomb", ENLARGED | ENDLESS)
def test_bomb_that_loads_comes_out_as_it_was(bomb: str, tmp_path: Path) -> None:
    """Not expanded, not folded: the saved file has the same nodes and is no larger."""
    inputs = BOMBS[bomb]
    path = sardonyx.save(sardonyx.load(inputs), tmp_path / "m.onnx")
    assert operators(onnx.load(path)) == operators(inputs)
    assert path.stat().st_size < 2 * len(inputs.SerializeToString()) + 200


# A long honest graph: nothing may recurse over its length.


@pytest.mark.parametrize("command", ["load", "inspect", "check", "convert", "grad"])
def test_bomb_22_a_chain_is_no_recursion(command: str, tmp_path: Path) -> None:
    path = tmp_path / "chain.onnx"
    path.write_bytes(chain(3 * sys.getrecursionlimit() // 2).SerializeToString())
    COMMANDS[command](str(path))


@pytest.mark.slow
def test_bomb_22_200_000_nodes_load() -> None:
    assert len(sardonyx.load(honest_chain()).graph) == 200_000


@pytest.mark.nightly
@pytest.mark.parametrize("command", ["inspect", "check", "convert", "grad"])
def test_bomb_22_200_000_nodes(command: str, tmp_path: Path) -> None:
    path = tmp_path / "chain.onnx"
    path.write_bytes(honest_chain().SerializeToString())
    COMMANDS[command](str(path))


# Archives of test data.


@pytest.mark.parametrize("reader", ["verify", "train"])
def test_bomb_23_an_archive_that_expands_a_thousandfold(reader: str, tmp_path: Path) -> None:
    path = tmp_path / "inputs.npz"
    np.savez_compressed(path, x=np.zeros((100_000_000 // 8,)))
    assert path.stat().st_size * 800 < 100_000_000
    from sardonyx.train.data import open_data

    with pytest.raises(DataError, match="would unpack to 100,000,"):
        read_npz(path) if reader == "verify" else open_data(path)


def test_bomb_23_an_array_larger_than_its_entry(tmp_path: Path) -> None:
    """The header of an array is a claim as well: numpy would allocate what it says."""
    path = tmp_path / "inputs.npz"
    np.savez(path, x=np.zeros(12, np.int8))
    honest = path.read_bytes()
    path.write_bytes(honest.replace(b"(12,), }      ", b"(99999999,), }"))
    with pytest.raises(DataError, match=r"needs 99,999,999 bytes|not a whole"):
        read_npz(path)


def test_bomb_23_honest_archives_are_read(tmp_path: Path) -> None:
    path = tmp_path / "inputs.npz"
    inputs = {"a": np.arange(6.0).reshape(2, 3), "b": np.array(["x", "yy"]), "c": np.zeros((0, 3))}
    np.savez_compressed(path, **inputs, allow_pickle=False)
    result = read_npz(path)
    assert all(np.array_equal(result[name], array) for name, array in inputs.items())
