"""Random damage: twenty small sound models and the ways in which bytes go wrong.

`SEEDS` cover what files hold: layers, control flow, functions, sequences, strings, quantization,
sparse and external data, training records. `mutated` damages one; `outcome` says what became of it.
"""

from __future__ import annotations

import functools
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto, TensorProto, helper

import sardonyx
from sardonyx.errors import SardonyxError

from .models import (
    PAYLOAD,
    PLACES,
    chain,
    doubling_calls,
    endless_loop,
    graph,
    model,
    nested_ifs,
    node,
    raw,
)

HEADERS = '<ir_version: 10, opset_import: ["": 21, "local": 1]> g '
TEXTS = {
    "perceptron": """(float[N,4] x) => (float[N,2] y)
        <float[4,3] w = {1,2,3,4,5,6,7,8,9,10,11,12}, float[3] b = {1,2,3},
        float[3,2] v = {1,2,3,4,5,6}>
        {h = Gemm(x, w, b)  r = Relu(h)  y = MatMul(r, v)}""",
    "convolution": """(float[1,1,4,4] x) => (float[1,2,2,2] y)
        <float[2,1,2,2] w = {1,2,3,4,5,6,7,8}, float[2] s = {1,1}, float[2] o = {0,1}>
        {c = Conv<auto_pad="SAME_UPPER">(x, w)  n = BatchNormalization(c, s, o, o, s)
        y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(n)}""",
    "attention": """(float[2,3,4] q) => (float[2,3,4] y)
        {k = Transpose<perm=[0,2,1]>(q)  s = MatMul(q, k)  p = Softmax<axis=-1>(s)
        y = MatMul(p, q)}""",
    "shapes": """(float[N,6] x) => (float[M,3] y)
        <int64[1] i = {0}, int64[1] three = {3}, int64[1] rest = {-1}>
        {s = Shape(x)  n = Gather(s, i)  d = Concat<axis=0>(rest, three)  r = Reshape(x, d)
        e = Expand(r, three)  y = Slice(e, i, three, i)}""",
    "recurrent": """(float[3,1,2] x) => (float[3,1,1,2] y)
        <float[1,8,2] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16},
        float[1,8,2] r = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}>
        {y = LSTM<hidden_size=2>(x, w, r)}""",
    "sequences": """(float[2] x, float[2] z) => (float[2] y) <int64 i = {1}>
        {s = SequenceConstruct(x, z)  t = SequenceInsert(s, x)  y = SequenceAt(t, i)}""",
    "quantized": """(float[2,2] x) => (float[2,2] y)
        <float s = {0.5}, int8 z = {1}, int8[2,2] w = {1,2,3,4}>
        {q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)
        v = DequantizeLinear(w, s, z)  y = MatMul(d, v)}""",
    "types": """(float16[2] x, bool[2] c) => (float[2] y) <bfloat16[2] w = {1, 2}>
        {a = Cast<to=1>(x)  b = Cast<to=1>(w)  y = Where(c, a, b)}""",
    "branches": """(float[2] x, bool c) => (float[2] y)
        {y = If(c)<then_branch = t () => (float[2] a) {a = Relu(x)},
        else_branch = e () => (float[2] b) {b = Neg(x)}>}""",
    "function": """(float[2] x) => (float[2] y)
        {h = local.scale<by=2.0>(x)  y = local.scale<by=3.0>(h)}
        <opset_import: ["": 21], domain: "local"> scale<by>(a) => (b)
        {k = Constant<value_float: float = @by>()  b = Mul(a, k)}""",
}
OLD = """<ir_version: 3, opset_import: ["": 9]> g (float[2,3] x) => (float[2,3] y)
    {s = Softmax<axis=1>(x)  d = Dropout<ratio=0.5>(s)  y = Upsample<mode="nearest">(d, c)
    c = Constant<value = float[2] {1.0, 1.0}>()}"""


def parsed(name: str) -> ModelProto:
    return onnx.parser.parse_model(HEADERS + TEXTS[name])


def strings() -> ModelProto:
    text = helper.make_tensor_value_info("s", TensorProto.STRING, [2])
    copy = graph([node("StringConcat", "s s", "t"), node("Relu", "x", "y")])
    copy.input.append(text)
    copy.output.append(helper.make_tensor_value_info("t", TensorProto.STRING, [2]))
    return model(copy)


def trainable() -> ModelProto:
    net = sardonyx.load(parsed("perceptron"))
    return sardonyx.trainable(net, "mse").proto()


def described() -> ModelProto:
    proto = model(graph([node("Relu", "x", "y", doc_string="what")]))
    proto.metadata_props.add(key="author", value="somebody")
    proto.graph.value_info.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, [2]))
    return proto


SEEDS: dict[str, Callable[[], ModelProto]] = {
    **{name: functools.partial(parsed, name) for name in TEXTS},
    "old": lambda: onnx.parser.parse_model(OLD),
    "strings": strings,
    "record": trainable,
    "described": described,
    "loop": lambda: endless_loop(5, nested=True),
    "nested": lambda: nested_ifs(3),
    "calls": lambda: doubling_calls(3),
    "chain": lambda: chain(10),
    "sparse": lambda: PLACES["sparse"](raw(TensorProto.FLOAT, [2], PAYLOAD)),
    "state": lambda: PLACES["training"](raw(TensorProto.FLOAT, [2], PAYLOAD)),
}


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Damage in place keeps lengths right and gets past the parser; the rest tests the parser."""
    changed = bytearray(data)
    in_place = rng.random() < 0.8
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(changed) or 1)
        kind = rng.randrange(3 if in_place else 6)
        if kind == 0 and changed:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and changed:
            changed[at] = rng.choice((0, 1, 127, 128, 255))
        elif kind == 2 and changed:
            changed[at] = (changed[at] + rng.choice((-1, 1))) % 256
        elif kind == 3:
            del changed[at : at + rng.randrange(1, 9)]
        elif kind == 4:
            changed[at:at] = rng.randbytes(rng.randrange(1, 9))
        else:
            start = rng.randrange(len(changed) or 1)
            changed[at:at] = changed[start : start + rng.randrange(1, 40)]
    return bytes(changed)


def stages(folder: Path) -> dict[str, Callable[[Any], object]]:
    """What is done with a model that loads: every way through the library that runs nothing."""
    from sardonyx.checking import check as check_model
    from sardonyx.inspection import inspect

    def check(model: Any) -> None:
        path = folder / "fuzz.onnx"
        path.write_bytes(model.proto().SerializeToString())
        check_model(path)

    return {
        "inspect": inspect,
        "check": check,
        "diff": lambda model: str(sardonyx.diff(parsed("perceptron"), model)),
        "convert": sardonyx.to_numpy,
        "grad": lambda model: sardonyx.grad(model, wrt=[v.name for v in model.inputs][:1]),
        "save": lambda model: sardonyx.save(model, folder / "saved.onnx"),
        "dequantize": sardonyx.dequantize,
        "train": lambda model: sardonyx.trainable(model, "mse"),
    }


def outcome(data: bytes, folder: Path) -> list[str]:
    """The stages that a damaged file passed; an exception that is not ours is a failure."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _passed(data, folder)


def _passed(data: bytes, folder: Path) -> list[str]:
    passed, stage = [], "load"
    try:
        loaded = sardonyx.load(data)
        passed.append("load")
        for stage, work in stages(folder).items():
            try:
                work(loaded)
                passed.append(stage)
            except SardonyxError as error:
                _judge(error)
    except SardonyxError as error:
        _judge(error)
    except Exception as error:
        raise AssertionError(f"{type(error).__name__} in {stage} of {data.hex()}") from error
    return passed


def _judge(error: SardonyxError) -> None:
    message = str(error)
    assert len(message.encode()) < 4096
    assert all(c == "\n" or c.isprintable() for c in message)
