"""Training in several processes of torch: the losses are those of one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import sardonyx as sx
from sardonyx.engines.rows.spread import spread
from sardonyx.engines.rows.work import World
from sardonyx.lower.custom_native import NATIVE
from sardonyx.normalize import normalize
from tests.networks import parse
from tests.sweeps.processes import CASES, launch, problems

pytest.importorskip("torch")


def operators(text: str, axes: Mapping[str, int], world: int = 2) -> tuple[list[str], ir.Graph]:
    """The operators of a graph over parts."""
    graph = spread(normalize(parse(text)), axes, World(1, world)).model.graph
    return [node.op_type for node in graph], graph


def collectives(names: list[str]) -> list[str]:
    return [name for name in names if name in ("AllSum", "AllRows", "OwnRows")]


# A graph of x (parted) and its operators of other processes; "y" is wanted whole.
KNOWN = {
    "sum of rows": ("float[N,4] x) => (float[] y) { y = ReduceSum <keepdims=0> (x) }", ["AllSum"]),
    "mean of rows": (
        "float[N,4] x) => (float[] y) { y = ReduceMean <keepdims=0> (x) }", ["AllSum"]
    ),
    "largest": ("float[N,4] x) => (float[] y) { y = ReduceMax <keepdims=0> (x) }", ["AllRows"]),
    "elementwise": (
        "float[N,4] x, float[4] b) => (float[] y) "
        "{ z = Add (x, b) w = Relu (z) y = ReduceSum <keepdims=0> (w) }",
        ["AllSum"],
    ),
    "product": (
        "float[N,4] x, float[4,3] w) => (float[] y) "
        "{ z = MatMul (x, w) y = ReduceSum <keepdims=0> (z) }",
        ["AllSum"],
    ),
    "product of rows": (
        "float[N,4] x, float[3,N] w) => (float[] y) "
        "{ z = MatMul (w, x) y = ReduceSum <keepdims=0> (z) }",
        ["AllRows"],
    ),
    "softmax of rows": (
        "float[N,4] x) => (float[] y) "
        "{ z = Softmax <axis=0> (x) y = ReduceSum <keepdims=0> (z) }",
        ["AllRows"],
    ),
    "whole mask": (
        "float[N,4] x, float[N,1] m) => (float[] y) "
        "{ z = Mul (x, m) y = ReduceSum <keepdims=0> (z) }",
        ["OwnRows", "AllSum"],
    ),
    "output": ("float[N,4] x) => (float[N,4] y) { y = Relu (x) }", ["AllRows"]),
}  # fmt: skip


@pytest.mark.parametrize("case", KNOWN)
def test_what_processes_exchange(case: str) -> None:
    text, expected = KNOWN[case]
    names, graph = operators(f'<ir_version: 8, opset_import: ["" : 17]> g ({text}', {"x": 0})
    assert collectives(names) == expected
    assert [v.name for v in graph.outputs] == ["y"]
    assert all(n.domain == NATIVE for n in graph if n.op_type in expected)


def test_sizes_are_those_of_the_whole_tensor() -> None:
    text = "float[N,4] x) => (int64[2] y, int64[] z) { y = Shape (x) z = Size (x) }"
    names, graph = operators(f'<ir_version: 8, opset_import: ["" : 17]> g ({text}', {"x": 0}, 4)
    assert not collectives(names) and names.count("Mul") == 2
    factors = [v.const_value.numpy().tolist() for v in graph.initializers.values() if v.const_value]
    assert [4, 1] in factors and 4 in factors


def test_two_processes_train_as_one() -> None:
    for row in launch(2, ["mlp", "cnn"], 8, port=29971):
        assert not problems(row, 2), row


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_every_network_in_several_processes(world: int) -> None:
    rows = launch(world, list(CASES), 100, port=29980 + world)
    assert len(rows) == 2 * len(CASES) == 24
    assert not [(row, wrong) for row in rows if (wrong := problems(row, world))]


def test_expanded_records_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from sardonyx.engines.torch import processes
    from tests.networks import mlp

    net = sx.trainable(mlp(), "cross_entropy")
    parts = processes.Parts(World(0, 2), "replicate")
    monkeypatch.setattr(processes, "placement_of", lambda *_: parts)
    with pytest.raises(sx.SardonyxError, match="in several processes: as requested"):
        sx.prepare_training(net, "torch", native=False)


LEAVES = """
import os
from sardonyx.engines.torch import processes
import torch

def threads():
    return [open(f"/proc/self/task/{n}/comm").read() for n in os.listdir("/proc/self/task")]

processes.join_processes(None)
processes.all_sum(torch.ones(2))
assert any("gloo" in name for name in threads()), threads()
processes._leave()
assert not any("gloo" in name for name in threads()), threads()
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads by name are Linux's")
def test_a_process_ends_without_threads_of_its_group() -> None:
    """One that still holds a tensor when Python is gone aborts the process."""
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29989"}
    paths = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LEAVES], capture_output=True, text=True, check=False,
        env={**os.environ, **place, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_parts_of_variables() -> None:
    from sardonyx.engines.torch.processes import Parts

    spread_out, copies = (Parts(World(1, 2), shard) for shard in ("state", "replicate"))
    assert spread_out.axis((3, 8, 4)) == 1 and spread_out.axis((3,)) is None
    assert copies.axis((8,)) is None and "state on each" in str(copies)
    import torch

    ours = spread_out.own(torch.arange(8).reshape(2, 4), 1)
    np.testing.assert_array_equal(ours, [[2, 3], [6, 7]])
