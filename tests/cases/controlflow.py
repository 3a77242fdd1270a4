"""If, Loop and Scan: branches, captured tensors, carried states, scan outputs, nesting."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.testing import case


def _torch() -> Any:
    import torch

    return torch


def count(n: int) -> np.ndarray:
    return np.array(n, np.int64)


TRUE = np.array(True)
FALSE = np.array(False)

BRANCHES = """
    h = Mul(x1, x2)
    y0 = If (x0) <
        then_branch = t () => (a) { s = Sin(h)  a = Mul(s, x2) },
        else_branch = e () => (b) { q = Exp(x1)  r = Mul(q, h)  b = Tanh(r) }
    >"""

PASSED_THROUGH = """
    y0, y1 = If (x0) <
        then_branch = t () => (a, a2) { a = Identity(x1)  a2 = Mul(x1, x1) },
        else_branch = e () => (b, b2) { b = Neg(x1)  b2 = Identity(x1) }
    >"""

NESTED_BRANCHES = """
    y0 = If (x0) <
        then_branch = t () => (a) {
            p = Mul(x2, x3)
            a = If (x1) <
                then_branch = tt () => (c) { s = Sin(p)  c = Mul(s, x2) },
                else_branch = ee () => (d) { d = Exp(p) }
            >
        },
        else_branch = e () => (b) { b = Add(x2, x3) }
    >"""

LOOP = """
    y0, y1 = Loop (x0, x1, x2) <
        body = b (int64 i, bool ci, s) => (co, s2, o) {
            co = Identity(ci)
            m = Mul(s, x3)
            s2 = Sin(m)
            f = CastLike(i, x3)
            f2 = Cos(s)
            o = Mul(f2, f)
        }
    >"""

STATE_ONLY = """
    y0 = Loop (x0, x1, x2) <
        body = b (int64 i, bool ci, s) => (co, s2) {
            co = Identity(ci)
            m = Mul(s, x3)
            s2 = Sin(m)
        }
    >"""

# The weight goes through the loop as a state, as TensorFlow's exporter writes it.
CARRIED_WEIGHT = """
    y0, y1 = Loop (x0, x1, x2, x3) <
        body = b (int64 i, bool ci, s, w) => (co, s2, w2) {
            co = Identity(ci)
            m = Mul(s, w)
            s2 = Tanh(m)
            w2 = Identity(w)
        }
    >"""

WHILE = """
    lim = Constant <value_float = 6.0> ()
    y0, y1 = Loop ("", x0, x1) <
        body = b (int64 i, bool ci, s) => (co, s2, o) {
            m = Mul(s, x2)
            s2 = Add(m, x2)
            o = Mul(s2, s)
            r = ReduceSum <keepdims = 0> (s2)
            l = CastLike(lim, r)
            co = Less(r, l)
        }
    >"""

READ_BY_INDEX = """
    y0, y1 = Loop (x0, x1, x2) <
        body = b (int64 i, bool ci, s) => (co, s2, o) {
            co = Identity(ci)
            e = Gather(x3, i)
            a = Mul(s, e)
            s2 = Tanh(a)
            o = Identity(s2)
        }
    >"""

SUM_BY_INDEX = """
    y0 = Loop (x0, x1, x2) <
        body = b (int64 i, bool ci, s) => (co, s2) {
            co = Identity(ci)
            e = Gather(x3, i)
            f = Gather(x3, i)
            p = Mul(e, f)
            s2 = Add(s, p)
        }
    >"""

SCAN = """
    y0, y1, y2 = Scan <num_scan_inputs = 2, body = b (s, e, f) => (s2, o, p) {
            m = Mul(s, x3)
            a = Add(m, e)
            s2 = Tanh(a)
            o = Mul(a, f)
            p = Identity(e)
        }
    > (x0, x1, x2)"""

DIRECTED_SCAN = """
    y0, y1 = Scan <
        num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1],
        scan_input_directions = [1], scan_output_directions = [1],
        body = b (s, e) => (s2, o) {
            m = Mul(s, x2)
            a = Add(m, e)
            s2 = Tanh(a)
            o = Mul(a, s)
        }
    > (x0, x1)"""

NESTED = """
    one = Constant <value_int = 1> ()
    two = Constant <value_int = 2> ()
    y0 = Loop (x0, x1, x2) <
        body = b (int64 i, bool ci, s) => (co, s2) {
            co = Identity(ci)
            p = Mul(s, x3)
            u = Loop (i, ci, p) <
                body = b2 (int64 j, bool cj, v) => (cp, v2) {
                    cp = Identity(cj)
                    vv = Mul(v, s)
                    vw = Add(vv, x3)
                    v2 = Sin(vw)
                }
            >
            rest = Mod(i, two)
            odd = Equal(rest, one)
            s2 = If (odd) <
                then_branch = t () => (a) { ss = Sin(u)  a = Mul(ss, x3) },
                else_branch = e () => (c) { q = Tanh(s)  c = Mul(q, u) }
            >
        }
    >"""


def loop_in_torch(n: int) -> Any:
    def run(s: Any, w: Any) -> Any:
        outs = []
        for i in range(n):
            outs.append(_torch().cos(s) * i)
            s = _torch().sin(s * w)
        return s, _torch().stack(outs)

    return run


def scan_in_torch(s: Any, xs: Any, fs: Any, w: Any) -> Any:
    outs = []
    for e, f in zip(xs, fs, strict=True):
        a = s * w + e
        s = _torch().tanh(a)
        outs.append(a * f)
    return s, _torch().stack(outs), xs.clone()


def directed_scan_in_torch(s: Any, x: Any, w: Any) -> Any:
    outs = []
    for e in x.flip(1).T:
        a = s * w + e
        outs.append(a * s)
        s = _torch().tanh(a)
    return s, _torch().stack(outs[::-1], 1)


CASES = [
    case("If", TRUE, (2, 3), (3,), nodes=BRANCHES, fed=True, id="then",
         torch=lambda x, w: _torch().sin(x * w) * w),
    case("If", FALSE, (2, 3), (3,), nodes=BRANCHES, fed=True, id="else",
         torch=lambda x, w: _torch().tanh(_torch().exp(x) * (x * w))),
    case("If", TRUE, (2, 3), nodes=PASSED_THROUGH, outputs=2, fed=True, id="captured as output",
         torch=lambda x: (x.clone(), x * x)),
    case("If", TRUE, TRUE, (2, 3), (3,), nodes=NESTED_BRANCHES, fed=True, id="nested, then then",
         torch=lambda x, w: _torch().sin(x * w) * x),
    case("If", TRUE, FALSE, (2, 3), (3,), nodes=NESTED_BRANCHES, fed=True, id="nested, then else",
         torch=lambda x, w: _torch().exp(x * w)),
    case("If", FALSE, TRUE, (2, 3), (3,), nodes=NESTED_BRANCHES, fed=True, id="nested, else",
         torch=lambda x, w: x + w),
    case("Loop", count(4), TRUE, (2, 3), (3,), nodes=LOOP, outputs=2, fed=True, id="four times",
         torch=loop_in_torch(4)),
    case("Loop", count(4), TRUE, (2, 3), (3,), nodes=LOOP, outputs=2, id="known count",
         torch=loop_in_torch(4)),
    case("Loop", count(0), TRUE, (2, 3), (3,), nodes=STATE_ONLY, fed=True, id="not once"),
    case("Loop", count(5), FALSE, (2, 3), (3,), nodes=STATE_ONLY, fed=True, id="condition false"),
    case("Loop", count(3), TRUE, (2, 3), (3,), nodes=CARRIED_WEIGHT, outputs=2, fed=True,
         id="weight carried unchanged"),
    case("Loop", TRUE, np.array([0.3, 0.4]), np.array([1.2, 1.1]), nodes=WHILE, outputs=2, fed=True,
         id="until a condition"),
    case("Loop", count(4), TRUE, (3,), (5, 3), nodes=READ_BY_INDEX, outputs=2, fed=True,
         id="reads a tensor by its counter"),
    case("Loop", count(3), TRUE, (3,), (5, 3), nodes=SUM_BY_INDEX, fed=True,
         id="reads part of a tensor twice", torch=lambda s, x: s + (x[:3] ** 2).sum(0)),
    case("Loop", count(0), TRUE, (3,), (5, 3), nodes=SUM_BY_INDEX, fed=True,
         id="reads a tensor by its counter, not once"),
    case("Loop", count(4), TRUE, (2, 3), (3,), nodes=NESTED, fed=True, id="Loop and If inside"),
    case("Loop", count(0), TRUE, (2, 3), (3,), nodes=NESTED, fed=True, id="nested, not once"),
    case("Scan", (3,), (4, 3), (4, 3), (3,), nodes=SCAN, outputs=3, id="two inputs",
         torch=scan_in_torch),
    case("Scan", (2,), (2, 4), (2,), nodes=DIRECTED_SCAN, outputs=2, id="other axis, backwards",
         torch=directed_scan_in_torch),
]  # fmt: skip
