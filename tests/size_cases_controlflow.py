"""Branches and loops over sizes, in the terms of `size_cases.py`."""

from __future__ import annotations

CASES = {
    "if": (
        "float[A,B]",
        "c = Less(n, t) "
        "y = If(c) <then_branch = a () => (float[A1,B1] p) { p = Expand(half, s) }, "
        "else_branch = b () => (float[A2,B2] q) { r = Add(s, pair) "
        "q = Expand(fone, r) }>",
    ),
    "if both shape": (
        "float[A,B]",
        "c = Less(n, t) "
        "xx = Add(x, x) "
        "y = If(c) <then_branch = a () => (float[A1,B1] p) { s1 = Shape(xx) "
        "p = Expand(half, s1) }, else_branch = b () => (float[A2,B2] q) { s2 = Shape(xx) "
        "r = Add(s2, pair) "
        "q = Expand(fone, r) }>",
    ),
    "if data both shape": (
        "float[A,B]",
        "su = ReduceSum<keepdims=0>(x) "
        "c = Less(su, half) "
        "xx = Add(x, x) "
        "y = If(c) <then_branch = a () => (float[A1,B1] p) { s1 = Shape(xx) "
        "p = Expand(half, s1) }, else_branch = b () => (float[A2,B2] q) { s2 = Shape(xx) "
        "r = Add(s2, pair) "
        "q = Expand(fone, r) }>",
    ),
    "if data same size twice": (
        "float[A]",
        "su = ReduceSum<keepdims=0>(x) "
        "c = Less(su, half) "
        "tt = Add(t1, n1) "
        "y = If(c) <then_branch = a () => (float[A1] p) { u = Mul(tt, two1) "
        "p = ConstantOfShape(u) }, else_branch = b () => (float[A2] q) { u = Mul(tt, two1) "
        "q = ConstantOfShape(tt) }>",
    ),
    "if then after": (
        "float[A]",
        "su = ReduceSum<keepdims=0>(x) "
        "c = Less(su, half) "
        "y0 = If(c) <then_branch = a () => (float[A1] p) { p = ConstantOfShape(t1) }, "
        "else_branch = b () => (float[A2] q) { q = ConstantOfShape(n1) }> "
        "sy = Shape(y0) "
        "z = ConstantOfShape(t1) "
        "z2 = ConstantOfShape(n1) "
        "y = Concat<axis=0>(y0, z, z2)",
    ),
    "if gives sizes": (
        "int64[2]",
        "su = ReduceSum<keepdims=0>(x) "
        "c = Less(su, half) "
        "y = If(c) <then_branch = a () => (int64[2] p) { p = Identity(s) }, else_branch = b "
        "() => (int64[2] q) { q = Add(s, pair) }>",
    ),
    "if gives sizes reshape": (
        "float[A,B]",
        "su = ReduceSum<keepdims=0>(x) "
        "c = Less(su, half) "
        "z = If(c) <then_branch = a () => (int64[2] p) { p = Identity(s) }, else_branch = b "
        "() => (int64[2] q) { q = Concat<axis=0>(t1, n1) }> "
        "y = Reshape(x, z)",
    ),
    "loop trips": (
        "float",
        "z = Constant<value_float=0.0>() "
        "y = Loop(t, , z) <body = b (int64 i, bool go, float a) => (bool go2, float a2) { go2 "
        "= Identity(go) "
        "a2 = Add(a, half) }>",
    ),
    "loop trips rows": (
        "float[M]",
        "z = Constant<value_float=0.0>() "
        "d, y = Loop(t, , z) <body = b (int64 i, bool go, float a) => (bool go2, float a2, "
        "float r) { go2 = Identity(go) "
        "a2 = Add(a, half) "
        "r = Identity(a2) }>",
    ),
    "loop rows of x": (
        "float[M,N]",
        "z = Constant<value_float=0.0>() "
        "d, y = Loop(t, yes, z) <body = b (int64 i, bool go, float a) => (bool go2, float a2, "
        "float[N] r) { go2 = Identity(go) "
        "a2 = Add(a, half) "
        "r = Gather<axis=1>(x, i) }>",
    ),
    "loop state size": (
        "int64",
        "y = Loop(three, yes, t) <body = b (int64 i, bool go, int64 a) => (bool go2, int64 "
        "a2) { go2 = Identity(go) "
        "a2 = Add(a, n) }>",
    ),
    "loop cond size": (
        "int64",
        "c = Less(n, t) "
        "y = Loop(three, c, zero) <body = b (int64 i, bool go, int64 a) => (bool go2, int64 "
        "a2) { a2 = Add(a, n) "
        "go2 = Less(a2, t) }>",
    ),
    "loop trips min": (
        "int64",
        "m = Min(n, t) "
        "y = Loop(m, , zero) <body = b (int64 i, bool go, int64 a) => (bool go2, int64 a2) { "
        "a2 = Add(a, t) "
        "go2 = Identity(go) }>",
    ),
    "loop grows": (
        "float[M]",
        "z = Constant<value = float[1] {0.0}>() "
        "y = Loop(t, , z) <body = b (int64 i, bool go, float[K] a) => (bool go2, float[L] a2) "
        "{ go2 = Identity(go) "
        "a2 = Concat<axis=0>(a, z) }>",
    ),
    "scan": (
        "float[T]",
        "z = ReduceSum<keepdims=0>(x) "
        "xt = Transpose<perm=[1,0]>(x) "
        "d, y = Scan<num_scan_inputs=1, body = b (float a, float[N] r) => (float a2, float w) "
        "{ w = ReduceSum<keepdims=0>(r) "
        "a2 = Add(a, w) }>(z, xt)",
    ),
}
