"""Shape arithmetic as models contain it: every place where a free size meets an operator.

Each case is the type of an output `y` and the nodes that compute it. `x` has the free sizes N and
T; `s` is its shape, `n` and `t` are its sizes as scalars, `n1` and `t1` as vectors of one element.
"""

from __future__ import annotations

import onnx

from tests import size_cases_controlflow

HEADER = """<ir_version: 10, opset_import: ["": 22]>
g (float[N,T] x) => (%(type)s y)
<int64 zero={0}, int64 one={1}, int64 two={2}, int64 three={3}, float half={0.5}, float fone={1.0},
 int64[1] zero1={0}, int64[1] one1={1}, int64[1] two1={2}, int64[1] three1={3}, bool yes={1},
 int64[1] minus1={-1}, int64[1] big={9223372036854775807}, int64[1] small={-9223372036854775807},
 int64[2] pair={2,5}, int64[2] image_axes={0,1}>
{ s = Shape(x)
  n = Gather<axis=0>(s, zero)
  t = Gather<axis=0>(s, one)
  n1 = Unsqueeze(n, zero1)
  t1 = Unsqueeze(t, zero1)
  table = Constant<value = float[12] {0.5,1.5,2.5,3.5,4.5,5.5,6.5,7.5,8.5,9.5,10.5,11.5}>()
  integers = Constant<value = int64[12] {0,10,20,30,40,50,60,70,80,90,100,110}>()
  %(nodes)s }"""
SHAPES = ((3, 5), (2, 7), (4, 4), (5, 3), (1, 6), (4, 1))


def model(name: str) -> onnx.ModelProto:
    kind, nodes = CASES[name]
    return onnx.parser.parse_model(HEADER % {"type": kind, "nodes": nodes})


CASES = {
    **size_cases_controlflow.CASES,
    "slice constant end": ("float[M]", "y = Slice(table, zero1, t1, zero1, one1)"),
    "slice int constant end": ("int64[M]", "y = Slice(integers, zero1, t1, zero1, one1)"),
    "slice constant start": ("float[M]", "y = Slice(table, n1, big, zero1, one1)"),
    "slice constant both computed": (
        "float[M]",
        "e = Add(n1, t1) y = Slice(table, n1, e, zero1)",
    ),
    "slice constant negative": (
        "float[M]",
        "m = Neg(n1) y = Slice(table, m, big, zero1)",
    ),
    "slice x by size": ("float[M,T]", "y = Slice(x, zero1, n1, zero1)"),
    "slice x by size less one": (
        "float[N,M]",
        "m = Sub(t1, one1) y = Slice(x, m, t1, one1)",
    ),
    "slice x negative size": (
        "float[N,M]",
        "m = Neg(one1) y = Slice(x, m, big, one1)",
    ),
    "slice x reversed": ("float[N,T]", "y = Slice(x, minus1, small, one1, minus1)"),
    "slice constant reversed": ("float[M]", "y = Slice(table, t1, zero1, zero1, minus1)"),
    "slice of shape": ("int64[1]", "y = Slice(s, one1, big, zero1)"),
    "slice step size": ("float[M]", "y = Slice(table, zero1, big, zero1, n1)"),
    "gather constant": ("float", "y = Gather(table, t)"),
    "gather constant vector": ("float[2]", "y = Gather(table, s)"),
    "gather elements": ("float[2]", "y = GatherElements(table, s)"),
    "gathernd": (
        "float[1]",
        "i = Unsqueeze(n1, one1) y = GatherND(table, i)",
    ),
    "max": ("int64", "y = Max(n, t)"),
    "min": ("int64", "y = Min(n, t)"),
    "max vec": ("int64[2]", "y = Max(s, pair)"),
    "min const": ("int64", "y = Min(n, three)"),
    "max three": ("int64", "y = Max(n, t, three)"),
    "max in reshape": (
        "float[A,B]",
        "m = Max(n1, t1) "
        "p = Mul(n1, t1) "
        "q = Div(p, m) "
        "sh = Concat<axis=0>(m, q) "
        "y = Reshape(x, sh)",
    ),
    "mod": ("int64", "y = Mod(t, three)"),
    "mod rev": ("int64", "y = Mod(three, t)"),
    "div": ("int64", "y = Div(t, two)"),
    "div negative": (
        "int64",
        "m = Sub(n, t) y = Div(m, two)",
    ),
    "div negative vec": (
        "int64[2]",
        "m = Sub(s, pair) y = Div(m, two)",
    ),
    "div by neg": (
        "int64",
        "m = Neg(two) y = Div(t, m)",
    ),
    "rsub": ("int64", "y = Sub(three, t)"),
    "rdiv": (
        "int64",
        "tw = Mul(three, three) y = Div(tw, n)",
    ),
    "neg": ("int64", "y = Neg(t)"),
    "abs": (
        "int64",
        "m = Neg(t) y = Abs(m)",
    ),
    "sign": (
        "int64",
        "m = Sub(n, t) y = Sign(m)",
    ),
    "pow": ("int64", "y = Pow(t, two)"),
    "pow rev": ("int64", "y = Pow(two, n)"),
    "clip": ("int64", "y = Clip(t, one, three)"),
    "clip bounds": ("int64[12]", "y = Clip(integers, n, t)"),
    "equal": ("bool", "y = Equal(n, t)"),
    "equal self": ("bool", "y = Equal(n, n)"),
    "equal const": ("bool", "y = Equal(n, three)"),
    "equal computed": (
        "bool",
        "a = Add(n, one) b = Add(n, one) y = Equal(a, b)",
    ),
    "equal vec": ("bool[2]", "y = Equal(s, pair)"),
    "equal minus one": ("bool[2]", "y = Equal(s, minus1)"),
    "less": ("bool", "y = Less(n, t)"),
    "greater": ("bool", "y = Greater(n, three)"),
    "leq": ("bool", "y = LessOrEqual(t, three)"),
    "geq": ("bool", "y = GreaterOrEqual(t, n)"),
    "not": (
        "bool",
        "e = Equal(n, t) y = Not(e)",
    ),
    "and": (
        "bool",
        "e = Less(n, t) f = Greater(n, one) y = And(e, f)",
    ),
    "where cond": (
        "int64",
        "e = Less(n, t) y = Where(e, n, t)",
    ),
    "where values": (
        "int64[2]",
        "e = Equal(pair, minus1) y = Where(e, pair, s)",
    ),
    "where expand": (
        "float[A,B]",
        "m = Mul(pair, minus1) "
        "e = Equal(s, m) "
        "sh = Where(e, pair, s) "
        "f = Constant<value_float=1.0>() "
        "y = Expand(f, sh)",
    ),
    "cast float": ("float", "y = Cast<to=1>(t)"),
    "cast int32": ("int32", "y = Cast<to=6>(t)"),
    "cast double": ("double", "y = Cast<to=11>(t)"),
    "cast bool": (
        "bool",
        "m = Sub(t, one) y = Cast<to=9>(m)",
    ),
    "cast roundtrip": (
        "float[M]",
        "f = Cast<to=1>(t1) "
        "h = Mul(f, half) "
        "fl = Floor(h) "
        "i = Cast<to=7>(fl) "
        "y = Slice(table, zero1, i, zero1)",
    ),
    "cast ceil reshape": (
        "float[A]",
        "f = Cast<to=1>(t1) "
        "h = Mul(f, half) "
        "fl = Ceil(h) "
        "i = Cast<to=7>(fl) "
        "y = ConstantOfShape(i)",
    ),
    "sqrt": (
        "float",
        "f = Cast<to=1>(t) y = Sqrt(f)",
    ),
    "castlike": ("float", "y = CastLike(t, half)"),
    "scale by size": (
        "float[N,T]",
        "f = Cast<to=1>(t) y = Div(x, f)",
    ),
    "range": ("int64[M]", "y = Range(zero, t, one)"),
    "range start": (
        "int64[M]",
        "p = Add(n, t) y = Range(n, p, one)",
    ),
    "range step": (
        "int64[M]",
        "p = Mul(n, t) y = Range(zero, p, n)",
    ),
    "range float": (
        "float[M]",
        "f = Cast<to=1>(t) z = Cast<to=1>(zero) y = Range(z, f, fone)",
    ),
    "range down": (
        "int64[M]",
        "m = Neg(one) y = Range(t, zero, m)",
    ),
    "range positions": (
        "float[M]",
        "r = Range(zero, t, one) y = Gather(table, r)",
    ),
    "constantofshape": ("float[A,B]", "y = ConstantOfShape(s)"),
    "constantofshape computed": (
        "float[A]",
        "p = Mul(n1, t1) y = ConstantOfShape(p)",
    ),
    "expand": ("float[A,B]", "y = Expand(half, s)"),
    "expand table": (
        "float[A,B]",
        "sh = Concat<axis=0>(n1, one1) y = Expand(table, sh)",
    ),
    "tile": (
        "float[A,B]",
        "r = Concat<axis=0>(n1, one1) y = Tile(x, r)",
    ),
    "tile constant": ("float[A]", "y = Tile(table, n1)"),
    "tile of sizes": ("int64[4]", "y = Tile(s, two1)"),
    "pad": (
        "float[A,B]",
        "z = Sub(n1, n1) p = Concat<axis=0>(zero1, zero1, n1, t1) y = Pad(x, p)",
    ),
    "pad up to": (
        "float[A,B]",
        "l = Constant<value = int64[1] {16}>() "
        "m = Sub(l, t1) "
        "p = Concat<axis=0>(zero1, zero1, zero1, m) "
        "y = Pad(x, p)",
    ),
    "pad modulo": (
        "float[A,B]",
        "l = Constant<value = int64[1] {4}>() "
        "m = Mod(t1, l) "
        "d = Sub(l, m) "
        "e = Mod(d, l) "
        "p = Concat<axis=0>(zero1, zero1, zero1, e) "
        "y = Pad(x, p)",
    ),
    "pad reflect": (
        "float[A,B]",
        'p = Concat<axis=0>(zero1, one1, zero1, one1) y = Pad<mode="reflect">(x, p)',
    ),
    "pad negative": (
        "float[A,B]",
        "m = Sub(one1, t1) p = Concat<axis=0>(zero1, zero1, zero1, m) y = Pad(x, p)",
    ),
    "pad constant": (
        "float[A]",
        "p = Concat<axis=0>(n1, t1) y = Pad(table, p)",
    ),
    "split sizes": (
        "float[N,B]",
        "m = Sub(t1, one1) sp = Concat<axis=0>(one1, m) a, y = Split<axis=1>(x, sp)",
    ),
    "topk": (
        "float[N,K]",
        "m = Sub(t1, one1) y, i = TopK<axis=1>(x, m)",
    ),
    "topk min": (
        "float[N,K]",
        "m = Min(t1, three1) y, i = TopK<axis=1>(x, m)",
    ),
    "trilu k": (
        "float[N,T]",
        "k = Sub(t, two) y = Trilu(x, k)",
    ),
    "causal": (
        "float[T,T]",
        "sh = Concat<axis=0>(t1, t1) "
        "o = ConstantOfShape<value = float[1] {1.0}>(sh) "
        "y = Trilu<upper=0>(o)",
    ),
    "onehot": (
        "float[2,D]",
        "p = Mul(n, t) v = Constant<value = float[2] {0.0,1.0}>() y = OneHot(s, p, v)",
    ),
    "reduceprod": ("int64", "y = ReduceProd<keepdims=0>(s)"),
    "reducesum": ("int64", "y = ReduceSum<keepdims=0>(s)"),
    "reducemax": ("int64", "y = ReduceMax<keepdims=0>(s)"),
    "reducemin": ("int64[1]", "y = ReduceMin(s)"),
    "reducemean": ("int64", "y = ReduceMean<keepdims=0>(s)"),
    "reducesumsquare": ("int64", "y = ReduceSumSquare<keepdims=0>(s)"),
    "argmax": ("int64", "y = ArgMax<keepdims=0>(s)"),
    "cumsum": ("int64[2]", "y = CumSum(s, zero)"),
    "sizes negative reshape": (
        "float[A,B]",
        "sh = Concat<axis=0>(t1, minus1) y = Reshape(x, sh)",
    ),
    "flatten": (
        "float[M]",
        "p = ReduceProd(s) y = Reshape(x, p)",
    ),
    "scatter": ("int64[2]", "y = ScatterElements(s, zero1, three1)"),
    "scatternd": (
        "int64[2]",
        "i = Unsqueeze(zero1, one1) y = ScatterND(s, i, three1)",
    ),
    "scatter sizes in": ("int64[12]", "y = ScatterElements(integers, zero1, n1)"),
    "concat constant": ("int64[14]", "y = Concat<axis=0>(integers, s)"),
    "mul table": ("int64[12]", "y = Mul(integers, t)"),
    "add table": ("int64[12]", "y = Add(integers, t)"),
    "sub table": ("int64[12]", "y = Sub(t, integers)"),
    "div table": ("int64[12]", "y = Div(integers, t)"),
    "div table rev": (
        "int64[11]",
        "a = Constant<value = int64[11] {1,2,3,4,5,-1,-2,-3,-4,-5,-6}>() y = Div(t, a)",
    ),
    "matmul int": ("int64", "y = MatMul(s, pair)"),
    "resize sizes": (
        "float[1,1,A,B]",
        "im = Unsqueeze(x, image_axes) "
        "d = Mul(s, two1) "
        "sz = Concat<axis=0>(one1, one1, d) "
        'y = Resize<mode="linear">(im, , , sz)',
    ),
    "resize nearest to": (
        "float[1,1,A,B]",
        "im = Unsqueeze(x, image_axes) "
        "d = Add(s, pair) "
        "sz = Concat<axis=0>(one1, one1, d) "
        'y = Resize<mode="nearest", coordinate_transformation_mode="asymmetric", '
        'nearest_mode="floor">(im, , , sz)',
    ),
    "resize scales": (
        "float[1,1,A,B]",
        "im = Unsqueeze(x, image_axes) "
        "f = Cast<to=1>(s) "
        "g = Div(f, f) "
        "sc = Concat<axis=0>(g, g) "
        'y = Resize<mode="nearest">(im, , sc)',
    ),
    "eyelike": ("float[N,T]", "y = EyeLike(x)"),
    "size": ("int64", "y = Size(x)"),
    "size of constant": (
        "int64",
        "z = ConstantOfShape(s) y = Size(z)",
    ),
    "nonzero": (
        "int64[1,M]",
        "z = ConstantOfShape<value = float[1] {1.0}>(t1) y = NonZero(z)",
    ),
    "identity out": ("int64[2]", "y = Identity(s)"),
    "shape of shape": ("int64[1]", "y = Shape(s)"),
    "squeeze": ("int64", "y = Squeeze(n1)"),
    "squeeze every one": ("float[A]", "y = Squeeze(x)"),
    "if squeeze": (
        "float[A]",
        "c = Equal(t, one) "
        "a = If(c) <then_branch = g1 () => (float[B] u) {u = Squeeze(x, one1)}, "
        "else_branch = g2 () => (float[C,D] v) {v = Identity(x)}> "
        "y = Exp(a)",
    ),
    "loop with counters": (
        "float[A]",
        "c = Less(zero, n) "
        "i, y = Loop(n, c, zero) <body = b (int64 k, bool d, int64 i0) => "
        "(bool e, int64 i1, float r) "
        "{ i1 = Add(i0, one) r0 = Gather<axis=0>(x, i0) r = ReduceSum<keepdims=0>(r0) "
        "e = Less(i1, n) }>",
    ),
    "transpose": (
        "int64[2,1]",
        "a = Unsqueeze(s, zero1) y = Transpose<perm=[1,0]>(a)",
    ),
    "compress": (
        "int64[M]",
        "e = Less(s, pair) y = Compress(s, e)",
    ),
    "isinf": (
        "bool",
        "f = Cast<to=1>(t) y = IsInf(f)",
    ),
    "mean": (
        "float",
        "f = Cast<to=1>(t) y = Mean(f, half)",
    ),
    "unique": ("int64[M]", "y = Unique(s)"),
    "sort sizes": ("int64[2]", "v, y = TopK(s, two1)"),
    "xor": (
        "bool",
        "e = Less(n, t) y = Xor(e, yes)",
    ),
    "reversesequence": (
        "float[N,T]",
        "l = Expand(t, n1) y = ReverseSequence<batch_axis=0, time_axis=1>(x, l)",
    ),
    "center crop": (
        "float[M]",
        "l = Constant<value = int64[1] {12}>() "
        "d = Sub(l, t1) "
        "h = Div(d, two1) "
        "e = Add(h, t1) "
        "y = Slice(table, h, e, zero1)",
    ),
    "rel pos": (
        "float[M]",
        "twt = Mul(t, two) "
        "m = Sub(twt, one) "
        "p = Sub(t, one) "
        "l = Constant<value = int64 {12}>() "
        "b = Sub(l, m) "
        "bb = Max(b, zero) "
        "b1 = Unsqueeze(bb, zero1) "
        "y = Slice(table, b1, big, zero1)",
    ),
    "layernorm shape": (
        "float[N,T]",
        "sc = ConstantOfShape<value = float[1] {1.0}>(t1) y = LayerNormalization(x, sc)",
    ),
    "einsum": ("float[N,N]", 'y = Einsum<equation="ij,kj->ik">(x, x)'),
    "sequence": (
        "float[A,T]",
        "q = SplitToSequence<axis=0>(x, one) y = ConcatFromSequence<axis=0>(q)",
    ),
    "sequence at": (
        "float[N,1]",
        "q = SplitToSequence<axis=1>(x, one) y = SequenceAt(q, zero)",
    ),
    "sequence length": (
        "int64",
        "q = SplitToSequence<axis=1>(x, one) y = SequenceLength(q)",
    ),
    "depthtospace": (
        "float[1,1,A,B]",
        "im = Unsqueeze(x, image_axes) "
        "r = Concat<axis=1>(im, im, im, im) "
        "y = DepthToSpace<blocksize=2>(r)",
    ),
    "swiglu chunks": (
        "float[N,M]",
        "h = Div(t1, two1) y = Slice(x, h, big, one1)",
    ),
    "lrn": (
        "float[1,N,T,1]",
        "a = Constant<value = int64[2] {0,3}>() im = Unsqueeze(x, a) y = LRN<size=3>(im)",
    ),
    "avgpool ceil": (
        "float[1,1,A,B]",
        "im = Unsqueeze(x, image_axes) "
        "y = AveragePool<kernel_shape=[2,2], strides=[2,2], ceil_mode=1>(im)",
    ),
    "maxpool same": (
        "float[1,1,A,B]",
        "im = Unsqueeze(x, image_axes) "
        'y = MaxPool<kernel_shape=[2,2], strides=[2,2], auto_pad="SAME_UPPER">(im)',
    ),
    "conv same": (
        "float[1,1,A,B]",
        "im = Unsqueeze(x, image_axes) "
        "w = Constant<value = float[1,1,2,2] {1.0,2.0,3.0,4.0}>() "
        'y = Conv<kernel_shape=[2,2], strides=[2,2], auto_pad="SAME_UPPER">(im, w)',
    ),
    "globalpool": (
        "float[1,1,1,1]",
        "im = Unsqueeze(x, image_axes) y = GlobalAveragePool(im)",
    ),
    "convtranspose": (
        "float[1,1,A,B]",
        "im = Unsqueeze(x, image_axes) "
        "w = Constant<value = float[1,1,2,2] {1.0,2.0,3.0,4.0}>() "
        "y = ConvTranspose<kernel_shape=[2,2], strides=[2,2]>(im, w)",
    ),
    "gather int constant": ("int64", "y = Gather(integers, t)"),
    "gather int vec": ("int64[2]", "y = Gather(integers, s)"),
    "reshape int constant": (
        "int64[A,B]",
        "h = Constant<value = int64[1] {60}>() "
        "p = Sub(n1, n1) "
        "q = Add(p, two1) "
        "sh = Concat<axis=0>(q, minus1) "
        "y = Reshape(integers, sh)",
    ),
    "expand unknown one": (
        "float[A,B]",
        "m = Div(n1, n1) "
        "z = Slice(x, zero1, m, zero1) "
        "e = Concat<axis=0>(t1, one1) "
        "y = Expand(z, e)",
    ),
    "expand unknown one both": (
        "float[A,B]",
        "m = Div(n1, n1) z = Slice(x, zero1, m, zero1) e = Concat<axis=0>(t1, t1) y = Expand(z, e)",
    ),
    "split int constant": (
        "int64[A]",
        "l = Constant<value = int64[1] {12}>() "
        "r = Sub(l, n1) "
        "sp = Concat<axis=0>(n1, r) "
        "a, y = Split<axis=0>(integers, sp)",
    ),
    "where int tables": (
        "int64[12]",
        "e = Less(integers, t) y = Where(e, integers, t)",
    ),
    "equal negative": (
        "bool",
        "m = Sub(n, t) q = Neg(one) y = Equal(m, q)",
    ),
    "min then slice": (
        "float[A,B]",
        "m = Min(t1, three1) y = Slice(x, zero1, m, one1)",
    ),
    "max zero pad": (
        "float[A,B]",
        "l = Constant<value = int64[1] {5}>() "
        "d = Sub(l, t1) "
        "m = Max(d, zero1) "
        "p = Concat<axis=0>(zero1, zero1, zero1, m) "
        "y = Pad(x, p)",
    ),
    "div sizes": ("int64", "y = Div(t, n)"),
    "div unknown": (
        "int64",
        "d = Sub(t, n) e = Sub(d, three) f = Mul(e, two) g = Sub(f, one) y = Div(t, g)",
    ),
    "convtranspose same": (
        "float[1,1,A,B]",
        "im = Unsqueeze(x, image_axes) "
        "w = Constant<value = float[1,1,2,2] {1.0,2.0,3.0,4.0}>() "
        'y = ConvTranspose<kernel_shape=[2,2], strides=[2,2], auto_pad="SAME_UPPER">(im, w)',
    ),
    "conv same lower": (
        "float[1,1,A,B]",
        "im = Unsqueeze(x, image_axes) "
        "w = Constant<value = float[1,1,1,1] {2.0}>() "
        'y = Conv<kernel_shape=[1,1], strides=[3,2], auto_pad="SAME_LOWER">(im, w)',
    ),
}
