"""Small files that ask for much: nodes, memory, time. `BOMBS` holds one or more per number.

The result of each goes through `x`, so that a gradient has to pass the bomb as well.
"""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from .models import (
    PAYLOAD,
    PLACES,
    X,
    as_initializer,
    chain,
    doubling_calls,
    endless_loop,
    graph,
    model,
    nested_ifs,
    node,
    raw,
    recursive_function,
)

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
ONE = helper.make_tensor_value_info("x", FLOAT, [1])
TWO_GB = 2**29  # elements of four bytes
STRINGS = helper.make_tensor_value_info("s", TensorProto.STRING, [])


def enlarged(nodes: list[NodeProto], **constants: object) -> ModelProto:
    """A model that multiplies its input by `big`, which `nodes` make of `constants`."""
    tensors = [numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items()]
    return model(graph([*nodes, node("Mul", "x big", "y")], inputs=(ONE,), initializer=tensors))


def filled(*dims: int) -> ModelProto:
    return enlarged([node("ConstantOfShape", "dims", "big")], dims=np.array(dims))


def resized() -> ModelProto:
    resize = helper.make_node("Resize", ["one", "", "", "sizes"], ["big"], mode="nearest")
    sizes = np.array([1, 1, 23_170, 23_170])
    return enlarged([resize], one=np.ones((1, 1, 1, 1), np.float32), sizes=sizes)


def doubled(times: int) -> ModelProto:
    steps = [node("Concat", f"v{i} v{i}", f"v{i + 1}", axis=0) for i in range(times)]
    steps.append(node("Identity", f"v{times}", "big"))
    return enlarged(steps, v0=np.ones(1, np.float32))


def doubled_strings(times: int) -> ModelProto:
    steps = [node("StringConcat", f"v{i} v{i}", f"v{i + 1}") for i in range(times)]
    steps += [node("StringConcat", f"v{times} s", "t"), node("Relu", "x", "y")]
    seed = helper.make_tensor("v0", TensorProto.STRING, [], [b"a"])
    text = helper.make_tensor_value_info("t", TensorProto.STRING, [])
    copy = graph(steps, inputs=(X, STRINGS), initializer=[seed])
    copy.output.append(text)
    return model(copy)


def sparse_bomb() -> ModelProto:
    proto = PLACES["sparse"](raw(FLOAT, [2], PAYLOAD))
    proto.graph.sparse_initializer[0].dims[:] = [2**30]
    return proto


ENLARGED: dict[str, ModelProto] = {
    "BOMB-05": filled(TWO_GB),
    "BOMB-06": filled(2**20, 2**20),
    "BOMB-07": enlarged(
        [node("Expand", "one dims", "big")], one=np.float32(1), dims=np.array([TWO_GB])
    ),
    "BOMB-08": enlarged(
        [node("Tile", "one times", "big")],
        one=np.ones(1, np.float32),
        times=np.array([TWO_GB]),
    ),
    "BOMB-09": enlarged(
        [node("Range", "from to by", "numbers"), node("Cast", "numbers", "big", to=FLOAT)],
        **{"from": np.int64(0), "to": np.int64(5 * 10**8), "by": np.int64(1)},
    ),
    "BOMB-10": enlarged(
        [node("Pad", "one pads", "big")],
        one=np.ones(1, np.float32),
        pads=np.array([0, TWO_GB]),
    ),
    "BOMB-11": enlarged(
        [node("OneHot", "at depth levels", "big")],
        at=np.array([3]),
        depth=np.int64(TWO_GB),
        levels=np.array([0, 1], np.float32),
    ),
    "BOMB-12": resized(),
    "BOMB-13": doubled(29),
    "BOMB-14": doubled(40),
    "BOMB-15": doubled_strings(31),
}
"""Files whose constants would be large: their nodes must stay."""

ENDLESS: dict[str, ModelProto] = {
    "BOMB-16": endless_loop(4 * 10**12),
    "BOMB-17": endless_loop(10**6, nested=True),
    "BOMB-18": nested_ifs(31),
}
"""Files that would run for long: they load, and nothing of them is run."""

REFUSED: dict[str, ModelProto] = {
    "BOMB-01": doubling_calls(14),
    "BOMB-02": doubling_calls(20),
    "BOMB-03": doubling_calls(30),
    "BOMB-04-direct": recursive_function(1),
    "BOMB-04-through-two": recursive_function(3),
    "BOMB-19": as_initializer(raw(FLOAT, [2**40, 2**30], bytes(4))),
    "BOMB-20": as_initializer(raw(FLOAT, [-1, 4], bytes(16))),
    "BOMB-21": as_initializer(raw(FLOAT, [2**32, 2**32 + 1], bytes(4))),
    "BOMB-21-zero": as_initializer(raw(FLOAT, [0, 2**62, 2**62], b"")),
    "BOMB-21-sparse": sparse_bomb(),
}
"""Files that the count before expansion refuses, whoever opens them."""

BOMBS: dict[str, ModelProto] = REFUSED | ENDLESS | ENLARGED


def honest_chain(length: int = 200_000) -> ModelProto:
    """BOMB-22: long, and nothing is wrong with it."""
    return chain(length)
