"""The order of rows by a hash: in plain integers, in NumPy and as nodes; and in the loop."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import sardonyx as sx
from sardonyx.build import Builder
from sardonyx.engines.onnxruntime import Runner
from sardonyx.errors import ArgumentError
from sardonyx.model import Model
from sardonyx.record.hash_order import VALIDATION, hash_order, ordered
from sardonyx.train.batches import epoch_blocks
from sardonyx.train.fields import Link
from sardonyx.train.tables import Table
from tests.networks import mlp

INT64 = ir.TensorType(ir.DataType.INT64)
X = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
DATA = {"x": X, "label": np.arange(50) % 3}


def by_hand(seed: int, epoch: int, count: int, purpose: bytes = b"order") -> list[int]:
    """The rule as it is documented, in Python's integers."""
    last = 2**32 - 1

    def mix(x: int) -> int:
        x = (x ^ x >> 16) * 0x7FEB352D & last
        x = (x ^ x >> 15) * 0x846CA68B & last
        return x ^ x >> 16

    start = mix(mix(seed * 0x9E3779B9 + epoch & last) ^ zlib.crc32(purpose))
    keys = [mix((i * 0x9E3779B9 & last) ^ start) for i in range(count)]
    assert len(set(keys)) == count
    return sorted(range(count), key=keys.__getitem__)


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 + 7, 2**63 - 1])
def test_three_ways_to_compute_it_agree(seed: int) -> None:
    op = Builder("order")
    values = [ir.Value(name=n, type=INT64, shape=ir.Shape([])) for n in ("seed", "epoch")]
    count = ir.Value(name="count", type=INT64, shape=ir.Shape([1]))
    out = ordered(op, *values, count)
    graph = ir.Graph([*values, count], [out], nodes=op.nodes, opset_imports={"": 23}, name="g")
    for constant in op.constants.values():
        graph.register_initializer(constant)
    run = Runner(Model(ir.Model(graph, ir_version=10)))
    for epoch, rows in ((0, 1), (0, 100), (1, 100), (41, 7), (3, 0)):
        feeds = {"seed": np.array(seed), "epoch": np.array(epoch), "count": np.array([rows])}
        expected = by_hand(seed, epoch, rows)
        assert hash_order(seed, epoch, rows).tolist() == expected
        assert next(iter(run(feeds).values())).tolist() == expected
    assert hash_order(seed, 0, 20, VALIDATION).tolist() == by_hand(seed, 0, 20, b"validation")


def test_an_epoch_takes_the_rows_in_that_order() -> None:
    rows = {"row": np.arange(23)}
    links = [Link("row", "row", np.dtype(np.int64), (), "same name", cast=False)]
    blocks = epoch_blocks(Table(rows, "rows"), links, 5, seed=4, epoch=2, by_hash=True)
    batches = [batch["row"] for block in blocks for batch in block]
    assert np.concatenate(batches).tolist() == by_hand(4, 2, 23)
    training, validation = Table(rows, "rows").split(0.25, 4, by_hash=True)
    held_back = sorted(by_hand(4, 0, 23, b"validation")[:6])
    assert validation.take(np.arange(6))["row"].tolist() == held_back
    rest = sorted(set(range(23)) - set(held_back))
    assert training.take(np.arange(17))["row"].tolist() == rest


def test_training_resumes_in_the_same_order(tmp_path: Path) -> None:
    how = {"epochs": 3, "batch_size": 8, "shuffle": "hash", "validation": 0.2, "seed": 5}
    whole = sx.train(mlp(), DATA, **how)
    assert list(whole.losses) != list(sx.train(mlp(), DATA, **{**how, "shuffle": True}).losses)
    output = tmp_path / "tuned.onnx"
    stopped = sx.train(mlp(), DATA, **{**how, "epochs": None}, steps=7, output=output)
    resumed = sx.train(mlp(), DATA, **how, output=output, resume=True)
    assert [*stopped.losses, *resumed.losses] == list(whole.losses)
    assert resumed.history == whole.history
    with pytest.raises(ArgumentError, match="shuffle"):
        sx.train(mlp(), DATA, **{**how, "shuffle": True}, output=output, resume=True)


def test_another_word_is_refused() -> None:
    with pytest.raises(ArgumentError, match='True, False or "hash"'):
        sx.train(mlp(), DATA, shuffle="random")
