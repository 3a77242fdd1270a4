"""Shorter lives of tensors in a step: the order stays right, and less is alive at once."""

from __future__ import annotations

import random
from collections.abc import Sequence

import onnx_ir as ir
import pytest
from onnx.parser import parse_graph

from sardonyx.engines.onnxruntime.schedule import shortened


def parsed(text: str) -> ir.Graph:
    return ir.serde.deserialize_graph(parse_graph(text))


def names(nodes: Sequence[ir.Node]) -> list[str]:
    return [str(node.outputs[0].name) for node in nodes]


def test_what_frees_more_than_it_takes_does_not_wait() -> None:
    graph = parsed(
        """agraph (float[64, 64] x) => (float[64, 64] y, float[1] small)
        <float[64, 1024] wide, float[64, 64] other>
        {
            wide = Expand(x)
            other = Relu(x)
            y = Abs(other)
            small = ReduceSum(wide)
        }"""
    )
    order = names(shortened(list(graph)))
    assert order.index("small") == order.index("wide") + 1


def test_what_takes_more_than_it_frees_waits_for_its_first_reader() -> None:
    graph = parsed(
        """agraph (float[64, 64] x) => (float[64, 1024] y)
        <float[64, 1024] wide, float[64, 64] a, float[64, 64] b>
        {
            wide = Expand(x)
            a = Relu(x)
            b = Abs(a)
            y = Add(wide, b)
        }"""
    )
    assert names(shortened(list(graph))) == ["a", "b", "wide", "y"]


def test_a_node_that_waits_keeps_nothing_else_alive() -> None:
    """`twice` frees a tensor half its size; held back, both would not be gone any sooner."""
    graph = parsed(
        """agraph (float[64, 64] x) => (float[64, 1024] y)
        <float[64, 512] half, float[64, 512] again, float[64, 512] a, float[64, 512] b>
        {
            half = Expand(x)
            again = Relu(half)
            a = Abs(x)
            b = Neg(a)
            y = Concat(again, b)
        }"""
    )
    order = names(shortened(list(graph)))
    assert order.index("again") == order.index("half") + 1


@pytest.mark.parametrize("seed", range(30))
def test_every_node_follows_what_it_needs(seed: int) -> None:
    drawn = random.Random(seed)
    values = [ir.Value(name="x", shape=ir.Shape([64, 64]), type=ir.TensorType(ir.DataType.FLOAT))]
    graph = ir.Graph(list(values), [], nodes=[], name="g")
    for i in range(60):
        inputs = drawn.sample(values[-9:], min(len(values), drawn.choice((1, 1, 2, 3))))
        kind = drawn.choice(("Relu", "Reshape", "Sum"))
        node = ir.Node("", kind, inputs, num_outputs=1, name=str(i))
        node.outputs[0].name = f"v{i}"
        node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
        node.outputs[0].shape = ir.Shape([64, drawn.choice((1, 16, 64, 256, 1024))])
        graph.append(node)
        values.append(node.outputs[0])
    graph.outputs.append(values[-1])
    result = shortened(list(graph))
    place = {node: i for i, node in enumerate(result)}
    assert sorted(place, key=str) == sorted(graph, key=str)
    for node in graph:
        makers = [v.producer() for v in node.inputs if v is not None]
        assert all(place[m] < place[node] for m in makers if m is not None)
