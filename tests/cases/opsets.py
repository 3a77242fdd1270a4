"""Nodes as older opsets write them: at least one case before every adapter of `sardonyx.upgrades`.

The oracle is onnxruntime on the old model; where it has no kernel for the old version, `expect` is
the operator's old text in numpy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx


@dataclass
class Old:
    """One node as version `since` writes it (and every later one before the next adapter).

    inputs    -- shapes (random floats), arrays, or None for an input left out
    constant  -- positions of the inputs that are initializers
    expect    -- the expected outputs in numpy, from the inputs; onnxruntime's if not given
    tol       -- relative tolerance; 0: bit for bit
    types     -- element types of the outputs, where they are not float
    check     -- judges (inputs, outputs) itself, for random operators
    """

    op: str
    since: int
    inputs: tuple[Any, ...]
    outputs: int = 1
    expect: Callable[..., Any] | None = None
    tol: float = 0.0
    id: str = ""
    low: float = -2.0
    constant: tuple[int, ...] = ()
    types: tuple[int, ...] = ()
    domain: str = ""
    check: Callable[..., None] | None = None
    attributes: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.op}-{self.since}" + (f"-{self.id}" if self.id else "")

    def arrays(self) -> list[np.ndarray | None]:
        random = np.random.default_rng(len(self.op) + self.since)
        return [
            random.uniform(self.low, 2.0, x).astype(np.float32) if isinstance(x, tuple) else x
            for x in self.inputs
        ]


def old(op: str, since: int, *inputs: Any, id: str = "", **given: Any) -> Old:
    options = {k: given.pop(k) for k in tuple(given) if k in Old.__dataclass_fields__}
    return Old(op, since, inputs, id=id, attributes=given, **options)


INT32, INT64, STRING, BOOL = (
    getattr(onnx.TensorProto, name) for name in ("INT32", "INT64", "STRING", "BOOL")
)
ULPS = 2e-6  # two libraries' exp, log or tanh, or another order of summation


def f32(*values: Any) -> np.ndarray:
    return np.array(values, np.float32)


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def column(b: np.ndarray, ones: int) -> np.ndarray:
    return b.reshape(b.shape + (1,) * ones)


def elu(x: np.ndarray, alpha: float = 1.0) -> np.ndarray:
    return np.where(x > 0, x, alpha * np.expm1(x))


def selu_1(x: np.ndarray) -> np.ndarray:
    return np.float32(1.0507) * np.where(x > 0, x, np.float32(1.6732) * np.expm1(x))


# -- math and logical ----------------------------------------------------------------------

UNARY = {
    "Abs": np.abs,
    "Ceil": np.ceil,
    "Elu": elu,
    "Exp": np.exp,
    "Floor": np.floor,
    "HardSigmoid": lambda x: np.clip(np.float32(0.2) * x + np.float32(0.5), 0, 1),
    "LeakyRelu": lambda x: np.where(x < 0, np.float32(0.01) * x, x),
    "Log": np.log,
    "Neg": np.negative,
    "Reciprocal": np.reciprocal,
    "Relu": lambda x: np.maximum(x, 0),
    "Selu": selu_1,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Sqrt": np.sqrt,
    "Tanh": np.tanh,
}
BINARY = {
    "Add": np.add,
    "Div": np.divide,
    "Mul": np.multiply,
    "Pow": np.power,
    "Sub": np.subtract,
    "Equal": np.equal,
    "Greater": np.greater,
    "Less": np.less,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Xor": np.logical_xor,
}
LEGACY = {"consumed_inputs": [0]}


def unary() -> list[Old]:
    positive = ("Log", "Sqrt", "Reciprocal")
    return [
        old(op, 1, (3, 4), expect=f, tol=ULPS, low=0.5 if op in positive else -2.0, **LEGACY)
        for op, f in UNARY.items()
    ]


def binary() -> list[Old]:
    cases = []
    for op, f in BINARY.items():
        logical = op in ("Equal", "Greater", "Less", "And", "Or", "Xor")
        shape = (2, 3, 4, 5)
        kind = bool if op in ("And", "Or", "Xor") else np.int64 if op == "Equal" else np.float32
        inputs: dict[str, Any] = {"types": (BOOL,) if logical else ()}
        inputs |= {"tol": ULPS if op == "Pow" else 0.0, "low": 0.5}

        def random(*dims: int, kind: Any = kind) -> Any:
            if kind is np.float32:
                return dims
            return np.random.default_rng(len(dims)).integers(0, 2, dims).astype(kind)

        def middle(a: Any, b: Any, f: Any = f) -> Any:
            return f(a, b[:, :, None])

        def first(a: Any, b: Any, f: Any = f) -> Any:
            return f(a, b[:, None, None, None])

        a = random(*shape)
        cases += [
            old(op, 1, a, random(*shape), expect=f, id="same", **inputs),
            old(op, 1, a, random(4, 5), expect=f, broadcast=1, id="suffix", **inputs),
            old(op, 1, a, random(1, 1), expect=f, broadcast=1, id="single", **inputs),
            old(op, 1, a, random(3, 4), expect=middle, broadcast=1, axis=1, id="middle", **inputs),
            old(op, 1, a, random(2), expect=first, broadcast=1, axis=0, id="first", **inputs),
            old(op, 1, a, random(3, 4), expect=middle, broadcast=1, axis=-3, id="back", **inputs),
        ]
        if op in ("Add", "Div", "Mul", "Sub"):
            cases[-6].attributes |= LEGACY
            cases.append(
                old(
                    op,
                    6,
                    a,
                    random(3, 4),
                    expect=middle,
                    broadcast=1,
                    axis=1,
                    id="middle",
                    **inputs,
                )
            )
    return cases


def variadic() -> list[Old]:
    reduce = {"Max": np.maximum, "Min": np.minimum, "Sum": np.add}
    cases = [old(op, 1, (2, 3), (2, 3), expect=f, **LEGACY) for op, f in reduce.items()]
    return [*cases, old("Mean", 1, (2, 3), (2, 3), expect=lambda a, b: (a + b) / 2, **LEGACY)]


def clipped(x: np.ndarray) -> np.ndarray:
    return np.clip(x, np.float32(-0.5), np.float32(0.75))


def rows(f: Callable[..., Any], split: int) -> Callable[..., Any]:
    def call(x: np.ndarray) -> np.ndarray:
        flat = x.reshape(int(np.prod(x.shape[:split])), -1)
        return f(flat).reshape(x.shape)

    return call


def hard(x: np.ndarray) -> np.ndarray:
    return np.eye(x.shape[1], dtype=np.float32)[x.argmax(1)]


def logsumexp(x: np.ndarray) -> np.ndarray:
    return np.log(np.exp(x.astype(np.float64)).sum(1, keepdims=True)).astype(x.dtype)


MATH = [
    *unary(),
    *binary(),
    *variadic(),
    old(
        "PRelu",
        1,
        (2, 3, 4),
        (3,),
        expect=lambda x, s: np.where(x < 0, x * s[:, None], x),
        **LEGACY,
    ),
    old("PRelu", 1, (2, 3, 4), (1,), expect=lambda x, s: np.where(x < 0, x * s, x), id="shared"),
    old("PRelu", 6, (2, 3, 4), (3,), expect=lambda x, s: np.where(x < 0, x * s[:, None], x)),
    old("PRelu", 7, (2, 3, 4), (3, 1), id="today"),
    *(
        old("Gemm", 1, (2, 3), (3, 4), c, expect=lambda a, b, c: a @ b + c, tol=ULPS, broadcast=1)
        for c in ((4,), (1,), (2, 4))
    ),
    old("TopK", 1, (3, 5), outputs=2, types=(1, INT64), k=3),
    old("TopK", 1, (5, 3), outputs=2, types=(1, INT64), k=2, axis=0, id="axis"),
    old("Clip", 1, (4, 5), expect=clipped, min=-0.5, max=0.75, **LEGACY),
    old("Clip", 1, (4, 5), expect=lambda x: np.maximum(x, np.float32(0.1)), min=0.1, id="below"),
    old("Clip", 6, (4, 5), min=-0.5, max=0.75),
    old("Clip", 6, f32(-np.inf, -1, 2, np.inf, np.nan), id="unlimited"),
    old("Clip", 6, f32(-np.inf, -1, 2, np.inf, np.nan), max=0.0, id="above"),
    *(
        old(op, since, (2, 3, 4), id=f"{axis}", axis=axis)
        for op in ("Softmax", "LogSoftmax", "Hardmax")
        for since, axis in ((1, 0), (1, 1), (1, 2), (11, -1), (11, -2), (11, -3))
    ),
    *(old(op, 1, (3, 5, 2, 2), id="default") for op in ("Softmax", "LogSoftmax", "Hardmax")),
    *(old(op, 1, (0, 5, 2), id="empty") for op in ("Softmax", "LogSoftmax")),
    old("Hardmax", 1, (2, 3, 4), expect=rows(hard, 1), id="numpy"),
    old("Erf", 9, (3, 4), id="float"),
    old("Erf", 9, i64(-3, -1, 0, 1, 3), expect=np.zeros_like, types=(INT64,), id="int"),
    old("DFT", 17, (2, 5, 3, 1)),
    old("DFT", 17, (2, 5, 3, 2), None, axis=2, inverse=1, id="inverse"),
    old("DFT", 17, (2, 5, 3, 1), np.array(4), axis=-2, onesided=1, id="length"),
]

# -- reduction --------------------------------------------------------------------------------

REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
REDUCTION = [
    *(
        case
        for name in REDUCTIONS
        for case in (
            old(f"Reduce{name}", 1, (2, 3, 4), low=0.5, axes=[1], keepdims=0),
            old(f"Reduce{name}", 1, (2, 3, 4), low=0.5, axes=[0, 2], id="two"),
            old(f"Reduce{name}", 1, (2, 3, 4), low=0.5, id="all"),
            old(f"Reduce{name}", 11, (2, 3, 4), low=0.5, axes=[-1], id="negative"),
        )
    ),
    old("ReduceLogSum", 18, np.array([[1, 5, 9], [2, 0, 2]], np.int32), i64(1), types=(INT32,)),
    old(
        "ReduceLogSumExp",
        18,
        np.array([[1, 5, 9]]),
        i64(1),
        expect=lambda x, _: logsumexp(x),
        types=(INT64,),
    ),
    old("ReduceLogSumExp", 18, (2, 3), i64(1), id="float"),
]

# -- tensor -----------------------------------------------------------------------------------

SCALES = (f32(1, 1, 2, 3), f32(1, 1, 1.7, 1.3), f32(1, 1, 0.6, 0.6), f32(1, 1, 2.5, 0.6))
NOTHING = np.zeros(0, np.float32)


def twice(x: np.ndarray) -> np.ndarray:
    return x.repeat(2, 2).repeat(3, 3)


TENSOR = [
    old("Pad", 1, (2, 3), expect=lambda x: np.pad(x, ((0, 1), (2, 0))), paddings=[0, 2, 1, 0]),
    old("Pad", 2, (2, 3), pads=[0, 2, 1, 0], value=1.5),
    old("Pad", 2, (3, 4), pads=[0, 2, 1, 0], mode="reflect", id="reflect"),
    old("Pad", 2, (3, 4), pads=[0, 2, 1, -1], mode="edge", id="edge"),
    old("Pad", 11, (3, 4), i64(0, 2, 1, 0), np.array(3, np.float32), id="today"),
    old("Split", 1, (4, 6), outputs=2, expect=lambda x: np.split(x, 2, 0)),
    old(
        "Split",
        1,
        (4, 6),
        outputs=2,
        expect=lambda x: np.split(x, [2], 1),
        axis=1,
        split=[2, 4],
        id="lengths",
    ),
    old(
        "Split",
        1,
        (4, 6),
        f32(1, 5),
        outputs=2,
        expect=lambda x, _: np.split(x, [1], 1),
        axis=1,
        id="input",
    ),
    old("Split", 2, (4, 6), outputs=3, axis=1),
    old("Split", 2, (4, 6), outputs=2, split=[1, 3], id="lengths"),
    old("Split", 13, (4, 6), outputs=3, axis=1),
    old("Split", 13, (4, 6), i64(1, 3), outputs=2, id="lengths"),
    old("Concat", 1, (2, 3), (2, 4), expect=lambda a, b: np.concatenate([a, b], 1)),
    old("Concat", 1, (2, 3), (2, 3), expect=lambda a, b: np.concatenate([a, b], 0), axis=0, id="0"),
    old("Reshape", 1, (2, 6), shape=[0, -1, 3], **LEGACY),
    old("Cast", 1, (2, 3), expect=lambda x: x.astype(np.int32), to="INT32", types=(INT32,)),
    old("Tile", 1, (2, 3), f32(3), f32(1), expect=lambda x, *_: np.tile(x, (1, 3))),
    old("Upsample", 1, (1, 2, 3, 4), expect=twice, height_scale=2.0, width_scale=3.0),
    *(
        old(
            "Upsample",
            7,
            (1, 2, 3, 4),
            mode=mode,
            scales=list(map(float, scales)),
            id=f"{mode}-{i}",
        )
        for mode in ("nearest", "linear")
        for i, scales in enumerate(SCALES[:2])
    ),
    old("Upsample", 9, (1, 2, 3, 4), SCALES[0]),
    old("Upsample", 9, (1, 2, 3, 4), SCALES[1], mode="linear", constant=(1,), id="linear"),
    old("Slice", 1, (4, 5), starts=[1], ends=[-1]),
    old("Slice", 1, (4, 5), starts=[1, 0], ends=[9, 2], axes=[1, 0], id="axes"),
    old("Scatter", 9, (3, 3), np.array([[1, 0, 2]]), (1, 3)),
    old("Scatter", 9, (3, 3), np.array([[1], [0]]), (2, 1), axis=1, id="axis"),
    *(
        old(
            "Resize",
            10,
            (1, 2, 5, 7),
            scales,
            mode=mode,
            constant=constant,
            id=f"{mode}-{i}-{'constant' if constant else 'dynamic'}",
        )
        for mode in ("nearest", "linear")
        for i, scales in enumerate(SCALES)
        for constant in ((), (1,))
    ),
    old("Resize", 11, (1, 2, 5, 7), NOTHING, SCALES[2], mode="linear"),
    old("Resize", 11, (1, 2, 5, 7), NOTHING, NOTHING, i64(1, 2, 8, 3), constant=(1, 2), id="sizes"),
    old(
        "Resize",
        11,
        (1, 1, 5, 7),
        NOTHING,
        NOTHING,
        i64(1, 1, 8, 3),
        mode="cubic",
        constant=(1, 2),
        coordinate_transformation_mode="align_corners",
        cubic_coeff_a=-0.5,
        id="cubic",
    ),
    *(
        old(
            "Resize",
            11,
            (1, 2, 5, 7),
            NOTHING,
            scales,
            nearest_mode=nearest,
            constant=(1,),
            coordinate_transformation_mode="tf_half_pixel_for_nn",
            id=f"tensorflow-{nearest}-{i}",
        )
        for nearest in ("floor", "ceil")
        for i, scales in enumerate(SCALES)
    ),
    old(
        "Resize",
        11,
        (1, 1, 5, 7),
        f32(0, 0, 0.1, 0.2, 1, 1, 0.9, 0.7),
        NOTHING,
        i64(1, 1, 4, 4),
        mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize",
        constant=(1, 2),
        extrapolation_value=9.0,
        id="crop",
    ),
    old("Resize", 13, (1, 2, 5, 7), None, SCALES[3], id="today"),
    old("Squeeze", 1, (1, 3, 1, 2), axes=[0, 2]),
    old("Squeeze", 1, (1, 3, 1, 2), id="all"),
    old("Squeeze", 11, (1, 3, 1, 2), axes=[-2], id="negative"),
    old("Unsqueeze", 1, (3, 2), axes=[0, 3]),
    old("Unsqueeze", 11, (3, 2), axes=[-1], id="negative"),
    *(
        old("GridSample", 16, (1, 2, 4, 5), (1, 3, 3, 2), mode=mode, id=mode)
        for mode in ("bilinear", "nearest", "bicubic")
    ),
    old("GridSample", 16, (1, 2, 4, 5), (1, 3, 3, 2), align_corners=1, id="default"),
]

CLASSIC = [*MATH, *REDUCTION, *TENSOR]
