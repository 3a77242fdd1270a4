"""Cases of ONNX's sequence family: each from tensors to tensors, through a sequence.

With `fed` positions only a run knows what is where, so nothing can be unrolled while building.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.testing import case


def torch() -> Any:
    import torch

    return torch


def at(position: int) -> np.ndarray:
    return np.array(position, np.int64)


A, B, C = (2, 3), (4, 3), (1, 3)
ONE, LAST, FIRST = at(1), at(-1), at(0)
SQUARE = "y0 = Mul(e, e)"
JOIN = "e = ConcatFromSequence<axis=0>(t) y0 = Mul(e, e)"


def stacked(*parts: Any) -> Any:
    return torch().cat(parts) ** 2


BODY = (
    "body = each (double[n, m] a, double[k] w) => (double[n, m] b) { c = Mul(a, w) b = Mul(c, c) }"
)

CASES = [
    case(
        "SequenceConstruct",
        A,
        B,
        C,
        nodes=f"t = SequenceConstruct(x0, x1, x2) {JOIN}",
        torch=stacked,
        id="joined",
    ),
    case(
        "SequenceAt",
        A,
        B,
        C,
        ONE,
        torch=lambda a, b, c: b**2,
        id="known",
        nodes=f"s = SequenceConstruct(x0, x1, x2) e = SequenceAt(s, x3) {SQUARE}",
    ),
    case(
        "SequenceAt",
        A,
        B,
        C,
        LAST,
        fed=True,
        torch=lambda a, b, c: c**2,
        id="known-when-run",
        nodes=f"s = SequenceConstruct(x0, x1, x2) e = SequenceAt(s, x3) {SQUARE}",
    ),
    case(
        "SequenceAt",
        A,
        A,
        ONE,
        FIRST,
        torch=lambda a, b: b * a * b,
        id="several",
        nodes="s = SequenceConstruct(x0, x1) e = SequenceAt(s, x2) f = SequenceAt(s, x3) "
        "h = SequenceAt(s, x2) k = Mul(e, f) y0 = Mul(h, k)",
    ),
    case(
        "SequenceAt",
        A,
        A,
        ONE,
        FIRST,
        fed=True,
        torch=lambda a, b: b * a * b,
        id="several-known-when-run",
        nodes="s = SequenceConstruct(x0, x1) e = SequenceAt(s, x2) f = SequenceAt(s, x3) "
        "h = SequenceAt(s, x2) k = Mul(e, f) y0 = Mul(h, k)",
    ),
    case(
        "SequenceInsert",
        A,
        B,
        C,
        torch=stacked,
        id="at-the-end",
        nodes=f"s = SequenceConstruct(x0, x1) t = SequenceInsert(s, x2) {JOIN}",
    ),
    *(
        case(
            "SequenceInsert",
            A,
            B,
            C,
            at(where),
            fed=fed,
            id=f"at-{where}{'-when-run' * fed}",
            nodes=f"s = SequenceConstruct(x0, x1) t = SequenceInsert(s, x2, x3) {JOIN}",
            torch=lambda a, b, c, order=order: stacked(*((a, b, c)[i] for i in order)),
        )
        for where, order in [(0, (2, 0, 1)), (2, (0, 1, 2)), (-1, (0, 2, 1))]
        for fed in (False, True)
    ),
    case(
        "SequenceInsert",
        A,
        B,
        torch=stacked,
        id="into-an-empty-one",
        nodes="s = SequenceEmpty<dtype=11>() r = SequenceInsert(s, x0) "
        f"t = SequenceInsert(r, x1) {JOIN}",
    ),
    case(
        "SequenceErase",
        A,
        B,
        C,
        torch=lambda a, b, c: stacked(a, b),
        id="the-last",
        nodes=f"s = SequenceConstruct(x0, x1, x2) t = SequenceErase(s) {JOIN}",
    ),
    *(
        case(
            "SequenceErase",
            A,
            B,
            C,
            at(where),
            fed=fed,
            id=f"at-{where}{'-when-run' * fed}",
            nodes=f"s = SequenceConstruct(x0, x1, x2) t = SequenceErase(s, x3) {JOIN}",
            torch=lambda a, b, c, order=order: stacked(*((a, b, c)[i] for i in order)),
        )
        for where, order in [(0, (1, 2)), (-1, (0, 1)), (-2, (0, 2))]
        for fed in (False, True)
    ),
    case(
        "SplitToSequence",
        (5, 3),
        np.array([2, 3]),
        ONE,
        torch=lambda x: x[2:] ** 2,
        id="sizes",
        nodes=f"s = SplitToSequence(x0, x1) e = SequenceAt(s, x2) {SQUARE}",
    ),
    case(
        "SplitToSequence",
        (3, 5),
        at(2),
        LAST,
        torch=lambda x: x[:, 4:] ** 2,
        id="chunks",
        nodes=f"s = SplitToSequence<axis=1>(x0, x1) e = SequenceAt(s, x2) {SQUARE}",
    ),
    case(
        "SplitToSequence",
        (3, 5),
        ONE,
        torch=lambda x: x[:, 1] ** 2,
        id="without-the-axis",
        nodes=f"s = SplitToSequence<axis=1, keepdims=0>(x0) e = SequenceAt(s, x1) {SQUARE}",
    ),
    case(
        "SplitToSequence",
        (3, 5),
        ONE,
        fed=True,
        torch=lambda x: x[:, 1:2] ** 2,
        id="known-when-run",
        nodes=f"s = SplitToSequence<axis=1>(x0) e = SequenceAt(s, x1) {SQUARE}",
    ),
    case(
        "SplitToSequence",
        (5, 3),
        at(2),
        FIRST,
        fed=True,
        torch=lambda x: x[:2] ** 2,
        nodes=f"s = SplitToSequence(x0, x1) e = SequenceAt(s, x2) {SQUARE}",
        id="chunks-known-when-run",
    ),
    case(
        "ConcatFromSequence",
        A,
        A,
        torch=lambda a, b: torch().stack((a, b), -1) ** 2,
        id="new-axis",
        nodes="t = SequenceConstruct(x0, x1) e = ConcatFromSequence<axis=-1, new_axis=1>(t) "
        "y0 = Mul(e, e)",
    ),
    case(
        "ConcatFromSequence",
        (5, 3),
        at(2),
        fed=True,
        torch=lambda x: x**2,
        id="known-when-run",
        nodes=f"t = SplitToSequence(x0, x1) {JOIN}",
    ),
    case(
        "ConcatFromSequence",
        (4, 3),
        at(2),
        fed=True,
        torch=lambda x: x.reshape(2, 2, 3) ** 2,
        id="new-axis-known-when-run",
        nodes="t = SplitToSequence(x0, x1) e = ConcatFromSequence<axis=0, new_axis=1>(t) "
        "y0 = Mul(e, e)",
    ),
    case(
        "SequenceMap",
        A,
        B,
        (3,),
        id="tensor-for-all",
        nodes=f"s = SequenceConstruct(x0, x1) t = SequenceMap<{BODY}>(s, x2) {JOIN}",
        torch=lambda a, b, w: stacked((a * w) ** 2, (b * w) ** 2),
    ),
    case(
        "SequenceMap",
        A,
        B,
        A,
        B,
        id="two-sequences",
        nodes="s = SequenceConstruct(x0, x1) r = SequenceConstruct(x2, x3) "
        "t = SequenceMap<body = each (double[n, m] a, double[n, m] w) => (double[n, m] b) "
        f"{{ b = Mul(a, w) }}>(s, r) {JOIN}",
        torch=lambda a, b, c, d: stacked(a * c, b * d),
    ),
    case(
        "SequenceMap",
        A,
        B,
        (3,),
        id="captured",
        nodes="s = SequenceConstruct(x0, x1) "
        "t = SequenceMap<body = each (double[n, m] a) => (double[n, m] b) "
        f"{{ c = Mul(a, x2) b = Mul(c, a) }}>(s) {JOIN}",
        torch=lambda a, b, w: stacked(a * w * a, b * w * b),
    ),
    case(
        "SequenceEmpty",
        A,
        B,
        nodes="n = SequenceEmpty<dtype=11>() s = SequenceInsert(n, x0) "
        f"t = SequenceInsert(s, x1) {JOIN}",
        order=0,
        id="filled",
    ),
    case(
        "SequenceLength",
        A,
        B,
        nodes="s = SequenceConstruct(x0, x1) y0 = SequenceLength(s)",
        order=0,
        id="of-two",
    ),
]
