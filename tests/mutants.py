"""Faults for `verify` to find: small networks of seven kinds, and what a converter could get wrong.

`NETWORKS` builds the correct models, `MUTANTS` lists the faults: which network, the node that must
be named, and a function that changes the model's message in place. Nothing here uses sardonyx.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Model = onnx.ModelProto


class Net:
    """A model under construction: weights from one random stream, nodes named as given."""

    def __init__(self, seed: int = 0):
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def w(self, name: str, *shape: int, scale: float | None = None, mean: float = 0.0) -> str:
        fan = int(np.prod(shape[1:])) if len(shape) > 1 else 1
        spread = scale if scale is not None else 1 / np.sqrt(fan)
        return self.const(name, (mean + spread * self.rng.normal(size=shape)).astype(np.float32))

    def const(self, name: str, value: object, dtype: type | None = None) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def __call__(
        self, op: str, name: str, *inputs: str, outputs: int = 1, **attributes: object
    ) -> str:
        outs = [name] + [f"{name}.{i}" for i in range(1, outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), outs, f"node/{name}", **attributes))
        return name

    def model(self, inputs: dict[str, tuple[int, list]], outputs: list[str]) -> Model:
        ins = [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()]
        outs = [onnx.ValueInfoProto(name=n) for n in outputs]
        graph = helper.make_graph(self.nodes, "net", ins, outs, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        inferred = onnx.shape_inference.infer_shapes(model)
        known = {v.name: v for v in (*inferred.graph.value_info, *inferred.graph.output)}
        for out in model.graph.output:
            out.CopyFrom(known[out.name])
        return model


F = TensorProto.FLOAT


def _norm(n: Net, name: str, x: str, c: int, epsilon: float = 1e-5) -> str:
    names = [n.w(f"{name}.scale", c, scale=0.2, mean=1.0), n.w(f"{name}.bias", c, scale=0.1)]
    names.append(n.w(f"{name}.mean", c, scale=0.1))
    names.append(n.const(f"{name}.var", n.rng.uniform(0.05, 1.5, c).astype(np.float32)))
    return n("BatchNormalization", name, x, *names, epsilon=epsilon)


def cnn() -> Model:
    n = Net(1)
    x = n("Conv", "conv1", "x", n.w("w1", 6, 3, 3, 3), n.w("b1", 6, scale=0.1), pads=[1, 1, 1, 1])
    x = n("Relu", "relu1", _norm(n, "bn1", x, 6))
    x = n("MaxPool", "pool1", x, kernel_shape=[3, 3], strides=[2, 2])
    x = n("Conv", "conv2", x, n.w("w2", 8, 6, 3, 3), pads=[2, 2, 2, 2], dilations=[2, 2])
    x = n("Relu", "relu2", _norm(n, "bn2", x, 8))
    x = n(
        "AveragePool",
        "pool2",
        x,
        kernel_shape=[3, 3],
        strides=[2, 2],
        pads=[1, 1, 1, 1],
        count_include_pad=1,
    )
    x = n("Flatten", "flat", x)
    x = n("Gemm", "fc", x, n.w("w3", 32, 32), n.w("b3", 32, scale=0.1), transB=1)
    n("Softmax", "y", x, axis=-1)
    return n.model({"x": (F, ["N", 3, 8, 8])}, ["y"])


def _attention(n: Net, x: str, width: int, heads: int) -> str:
    parts = {}
    for key, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        flat = n("MatMul", f"{key}.proj", x, n.w(f"w{key}", width, width))
        split = n(
            "Reshape",
            f"{key}.heads",
            flat,
            n.const(f"{key}.shape", [0, 0, heads, width // heads], np.int64),
        )
        parts[key] = n("Transpose", f"{key}.turn", split, perm=perm)
    scores = n("MatMul", "scores", parts["q"], parts["k"])
    scores = n("Div", "scaled", scores, n.const("root", np.float32(np.sqrt(width // heads))))
    scores = n("Add", "masked", scores, "mask")
    weights = n("Softmax", "attend", scores, axis=-1)
    mixed = n("Transpose", "turn", n("MatMul", "mix", weights, parts["v"]), perm=[0, 2, 1, 3])
    flat = n("Reshape", "join", mixed, n.const("join.shape", [0, 0, width], np.int64))
    return n("MatMul", "out", flat, n.w("wo", width, width))


def transformer() -> Model:
    n = Net(2)
    x = n("Gather", "embed", n.w("table", 11, 16, scale=1.0), "ids")
    x = n("Add", "place", x, n.w("places", 1, 6, 16, scale=0.5))
    y = n(
        "LayerNormalization",
        "ln1",
        x,
        n.w("ln1.scale", 16, scale=0.2, mean=1.0),
        n.w("ln1.bias", 16, scale=0.1),
    )
    x = n("Add", "res1", x, _attention(n, y, 16, 2))
    y = n(
        "LayerNormalization",
        "ln2",
        x,
        n.w("ln2.scale", 16, scale=0.2, mean=1.0),
        n.w("ln2.bias", 16, scale=0.1),
    )
    y = n("MatMul", "up", y, n.w("wup", 16, 32))
    y = n("Gelu", "gelu", n("Add", "up.b", y, n.w("bup", 32, scale=0.1)))
    x = n("Add", "res2", x, n("MatMul", "down", y, n.w("wdown", 32, 16)))
    x = n("ReduceMean", "pool", x, n.const("axes", [1], np.int64), keepdims=0)
    n("Gemm", "y", x, n.w("head", 16, 5), n.w("head.b", 5, scale=0.1))
    return n.model({"ids": (TensorProto.INT64, ["N", 6]), "mask": (F, ["N", 1, 6, 6])}, ["y"])


def recurrent() -> Model:
    n = Net(3)
    weights = [
        n.w("wl", 1, 20, 4, scale=0.5),
        n.w("rl", 1, 20, 5, scale=0.4),
        n.w("bl", 1, 40, scale=0.2),
    ]
    n("LSTM", "lstm", "x", *weights, "", "h0", "c0", outputs=3, hidden_size=5)
    x = n("Squeeze", "lstm.flat", "lstm", n.const("one", [1], np.int64))
    weights = [
        n.w("wg", 1, 18, 5, scale=0.5),
        n.w("rg", 1, 18, 6, scale=0.4),
        n.w("bg", 1, 36, scale=0.2),
    ]
    n("GRU", "gru", x, *weights, outputs=2, hidden_size=6, linear_before_reset=1)
    x = n("Squeeze", "gru.flat", "gru.1", n.const("zero", [0], np.int64))
    n("Gemm", "y", x, n.w("head", 6, 4), n.w("head.b", 4, scale=0.1))
    state = (F, [1, "N", 5])
    return n.model({"x": (F, ["T", "N", 4]), "h0": state, "c0": state}, ["y"])


def mobile() -> Model:
    n = Net(4)
    x = n("Conv", "stem", "x", n.w("ws", 8, 3, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1])
    x = n("HardSwish", "act1", _norm(n, "bn1", x, 8))
    x = n("Conv", "depth", x, n.w("wd", 8, 1, 3, 3), group=8, pads=[1, 1, 1, 1])
    x = n("Clip", "act2", x, n.const("low", np.float32(0)), n.const("high", np.float32(1.0)))
    s = n("GlobalAveragePool", "squeeze", x)
    s = n(
        "Relu", "se.relu", n("Conv", "se.down", s, n.w("w1", 4, 8, 1, 1), n.w("b1", 4, scale=0.1))
    )
    s = n(
        "HardSigmoid",
        "se.gate",
        n("Conv", "se.up", s, n.w("w2", 8, 4, 1, 1)),
        alpha=1 / 6,
        beta=0.5,
    )
    x = n("Mul", "excite", x, s)
    x = n("Reshape", "groups", x, n.const("g", [0, 2, 4, 4, 4], np.int64))
    x = n("Transpose", "shuffle", x, perm=[0, 2, 1, 3, 4])
    x = n("Reshape", "ungroup", x, n.const("u", [0, 8, 4, 4], np.int64))
    x = n("Conv", "point", x, n.w("wp", 6, 4, 1, 1), group=2)
    x = n("PRelu", "prelu", x, n.w("slope", 6, 1, 1, scale=0.1, mean=0.25))
    n("ReduceMean", "y", x, n.const("axes", [2, 3], np.int64), keepdims=0)
    return n.model({"x": (F, ["N", 3, 8, 8])}, ["y"])


def unet() -> Model:
    n = Net(5)
    x = n("Pad", "pad", "x", n.const("pads", [0, 0, 1, 1, 0, 0, 1, 1], np.int64), mode="reflect")
    a = n("LeakyRelu", "act1", n("Conv", "enc1", x, n.w("w1", 4, 2, 3, 3)), alpha=0.1)
    names = [n.w("in.scale", 4, scale=0.2, mean=1.0), n.w("in.bias", 4, scale=0.1)]
    a = n("InstanceNormalization", "norm", a, *names, epsilon=1e-5)
    b = n(
        "Elu",
        "act2",
        n("Conv", "enc2", a, n.w("w2", 6, 4, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1]),
    )
    b = n("LRN", "lrn", b, size=3, alpha=0.02, beta=0.75, bias=1.0)
    up = n(
        "ConvTranspose",
        "up",
        b,
        n.w("w3", 6, 4, 3, 3),
        strides=[2, 2],
        pads=[1, 1, 1, 1],
        output_padding=[1, 1],
    )
    x = n("Concat", "skip", a, up, axis=1)
    x = n("Conv", "dec", x, n.w("w4", 3, 8, 1, 1))
    scales = n.const("scales", [1, 1, 1.5, 1.5], np.float32)
    x = n(
        "Resize", "cubic", x, "", scales, mode="cubic", coordinate_transformation_mode="half_pixel"
    )
    n(
        "Resize",
        "y",
        x,
        "",
        n.const("s2", [1, 1, 1.4, 1.4], np.float32),
        mode="nearest",
        nearest_mode="floor",
    )
    return n.model({"x": (F, ["N", 2, 8, 8])}, ["y"])


def _q(n: Net, name: str, x: str, scale: float, zero: int) -> str:
    names = [n.const(f"{name}.scale", np.float32(scale)), n.const(f"{name}.zero", zero, np.uint8)]
    return n("DequantizeLinear", f"{name}.dq", n("QuantizeLinear", f"{name}.q", x, *names), *names)


def quantized() -> Model:
    n = Net(6)
    x = _q(n, "in", "x", 0.03, 120)
    w = n.const("w.q", n.rng.integers(-90, 90, (8, 3, 3, 3)), np.int8)
    scale = n.const("w.scale", n.rng.uniform(0.002, 0.006, 8).astype(np.float32))
    w = n("DequantizeLinear", "w.dq", w, scale, n.const("w.zero", np.zeros(8), np.int8), axis=0)
    x = n("Relu", "relu", n("Conv", "conv", x, w, n.w("b", 8, scale=0.1), pads=[1, 1, 1, 1]))
    x = _q(n, "mid", x, 0.01, 0)
    x = n("GlobalAveragePool", "pool", x)
    x = n("Flatten", "flat", _q(n, "late", x, 0.004, 3))
    n("Gemm", "y", x, n.w("head", 8, 5), n.w("head.b", 5, scale=0.1))
    return n.model({"x": (F, ["N", 3, 6, 6])}, ["y"])


LOOPS = """<ir_version: 9, opset_import: ["": 20]>
loops (float[T,4] x, float[4] s) => (float[4] y, float[T,4] scanned, float[4] chosen)
<float[4,4] w = {0.3,-0.2,0.5,0.1, 0.4,0.2,-0.6,0.3, -0.1,0.7,0.2,-0.3, 0.5,-0.4,0.1,0.6},
 int64 count = {5}, bool yes = {1}, float zero = {0.0}>
{
  y = Loop (count, yes, s) <body = step (int64 i, bool c, float[4] h) => (bool go, float[4] next) {
    mixed = MatMul (h, w)
    half = Constant <value = float {0.5}> ()
    scaled = Mul (mixed, half)
    added = Add (scaled, h)
    next = Tanh (added)
    go = Identity (c)
  }>
  final, scanned = Scan <num_scan_inputs: int = 1,
    body = fold (float[4] acc, float[4] item) => (float[4] sum, float[4] out) {
    gate = Sigmoid (item)
    kept = Mul (acc, gate)
    sum = Add (kept, item)
    out = Softsign (sum)
  }> (y, x)
  total = ReduceSum <keepdims: int = 0> (s)
  test = Greater (total, zero)
  chosen = If (test) <then_branch = yes_part () => (float[4] a) {
    a = Softplus (final)
  }, else_branch = no_part () => (float[4] b) {
    b = Selu (final)
  }>
}"""


def loops() -> Model:
    model = onnx.parser.parse_model(LOOPS)
    for node in _all_nodes(model.graph):
        node.name = f"node/{node.output[0]}"
    return model


NETWORKS: dict[str, Callable[[], Model]] = {
    "cnn": cnn,
    "transformer": transformer,
    "recurrent": recurrent,
    "mobile": mobile,
    "unet": unet,
    "quantized": quantized,
    "loops": loops,
}


# -- the faults ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Mutant:
    """One fault: its network, what it is, the node that must be named, and the change."""

    network: str
    what: str
    node: str
    change: Callable[[Model], None]

    def __str__(self) -> str:
        return f"{self.network}: {self.what}"

    def model(self) -> Model:
        made = NETWORKS[self.network]()
        self.change(made)
        return made


def _all_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    result = []
    for node in graph.node:
        result.append(node)
        for attr in node.attribute:
            if attr.HasField("g"):
                result += _all_nodes(attr.g)
    return result


def _node(model: Model, name: str) -> onnx.NodeProto:
    return next(n for n in _all_nodes(model.graph) if n.name == f"node/{name}")


def attr(node: str, **values: object) -> Callable[[Model], None]:
    """Set attributes; None removes one: the importer ignored it."""

    def change(model: Model) -> None:
        result = _node(model, node)
        for name, value in values.items():
            for old in [a for a in result.attribute if a.name == name]:
                result.attribute.remove(old)
            if value is not None:
                result.attribute.append(helper.make_attribute(name, value))

    return change


def op(node: str, op_type: str, **values: object) -> Callable[[Model], None]:
    def change(model: Model) -> None:
        attr(node, **values)(model)
        _node(model, node).op_type = op_type

    return change


def weight(name: str, function: Callable[[np.ndarray], np.ndarray]) -> Callable[[Model], None]:
    def change(model: Model) -> None:
        tensor = next(t for t in model.graph.initializer if t.name == name)
        old = numpy_helper.to_array(tensor)
        tensor.CopyFrom(numpy_helper.from_array(np.asarray(function(old.copy()), old.dtype), name))

    return change


def inputs(node: str, **places: str) -> Callable[[Model], None]:
    """Rewire inputs: `_2=""` leaves the third out."""

    def change(model: Model) -> None:
        for place, name in places.items():
            _node(model, node).input[int(place[1:])] = name

    return change


def swap(node: str, a: int, b: int) -> Callable[[Model], None]:
    def change(model: Model) -> None:
        result = _node(model, node)
        result.input[a], result.input[b] = result.input[b], result.input[a]

    return change


def replaced(node: str, text: str) -> Callable[[Model], None]:
    """Other nodes in the place of one, as an importer would compose it; `__` is a dot."""

    def change(model: Model) -> None:
        nodes = model.graph.node
        place = next(i for i, n in enumerate(nodes) if n.name == f"node/{node}")
        copy = onnx.parser.parse_graph(f"g () => () {{ {text} }}").node
        for part in copy:
            part.input[:] = [name.replace("__", ".") for name in part.input]
            part.output[:] = [name.replace("__", ".") for name in part.output]
            part.name = f"node/{part.output[0]}"
        rest = list(nodes[place + 1 :])
        del nodes[place:]
        nodes.extend([*copy, *rest])

    return change


def _element(scale: float, place: int = 3) -> Callable[[np.ndarray], np.ndarray]:
    def function(w: np.ndarray) -> np.ndarray:
        w.reshape(-1)[place] *= 1 + scale
        return w

    return function


def _gates(count: int, order: list[int], axis: int = 1) -> Callable[[np.ndarray], np.ndarray]:
    return lambda w: np.concatenate([np.split(w, count, axis)[i] for i in order], axis)


def _set_half(model: Model) -> None:
    node = _node(model, "half")
    node.attribute[0].t.CopyFrom(numpy_helper.from_array(np.float32(0.501)))


def _late_zero(model: Model) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(4, np.uint8), "late.z"))
    inputs("late.q", _2="late.z")(model)


NHWC_FLATTEN = "moved = Transpose <perm: ints = [0,2,3,1]> (pool2) flat = Flatten (moved)"
HALF_UP = """shifted = Div (relu, mid__scale)
half = Constant <value = float {0.5}> ()
raised = Add (shifted, half)
lowered = Floor (raised)
least = Constant <value = float {0.0}> ()
most = Constant <value = float {255.0}> ()
bound = Clip (lowered, least, most)
mid__q = Cast <to: int = 2> (bound)"""

MUTANTS = [
    # cnn
    Mutant("cnn", "batch norm epsilon 1e-5 → 1e-3", "bn1", attr("bn1", epsilon=1e-3)),
    Mutant("cnn", "padding shifted by one", "conv1", attr("conv1", pads=[0, 0, 2, 2])),
    Mutant("cnn", "one weight of 162 off by 1 %", "conv1", weight("w1", _element(0.01))),
    Mutant(
        "cnn", "kernel height and width swapped", "conv2", weight("w2", lambda w: w.swapaxes(2, 3))
    ),
    Mutant("cnn", "dilation ignored", "conv2", attr("conv2", dilations=None, pads=[1, 1, 1, 1])),
    Mutant("cnn", "max pooling became average pooling", "pool1", op("pool1", "AveragePool")),
    Mutant("cnn", "count_include_pad ignored", "pool2", attr("pool2", count_include_pad=None)),
    Mutant("cnn", "bias dropped", "conv1", inputs("conv1", _2="")),
    Mutant("cnn", "mean and variance swapped", "bn2", swap("bn2", 3, 4)),
    Mutant("cnn", "transB ignored", "fc", attr("fc", transB=None)),
    Mutant("cnn", "flattened in NHWC order", "flat", replaced("flat", NHWC_FLATTEN)),
    Mutant("cnn", "Relu became LeakyRelu", "relu2", op("relu2", "LeakyRelu", alpha=0.001)),
    # transformer
    Mutant("transformer", "layer norm epsilon 1e-5 → 1e-3", "ln2", attr("ln2", epsilon=1e-3)),
    Mutant("transformer", "Gelu by tanh", "gelu", attr("gelu", approximate="tanh")),
    Mutant("transformer", "softmax along the wrong axis", "attend", attr("attend", axis=-2)),
    Mutant(
        "transformer",
        "scaled by the whole width",
        "scaled",
        weight("root", lambda w: w * np.sqrt(2)),
    ),
    Mutant(
        "transformer", "heads joined in the wrong order", "turn", attr("turn", perm=[0, 2, 3, 1])
    ),
    Mutant("transformer", "mask ignored", "masked", op("masked", "Sub")),
    Mutant("transformer", "one weight of 256 off by 0.1 %", "k.proj", weight("wk", _element(1e-3))),
    Mutant("transformer", "square weight transposed", "out", weight("wo", lambda w: w.T)),
    Mutant(
        "transformer", "places off by one", "place", weight("places", lambda w: np.roll(w, 1, 1))
    ),
    Mutant("transformer", "scale and bias swapped", "ln1", swap("ln1", 1, 2)),
    Mutant("transformer", "residual taken after the norm", "res2", inputs("res2", _0="ln2")),
    Mutant(
        "transformer",
        "padding index shifts the table",
        "embed",
        weight("table", lambda w: np.roll(w, 1, 0)),
    ),
    Mutant("transformer", "sum for mean", "pool", op("pool", "ReduceSum")),
    # recurrent
    Mutant(
        "recurrent",
        "LSTM gates of W in torch's order",
        "lstm",
        weight("wl", _gates(4, [0, 2, 3, 1])),
    ),
    Mutant("recurrent", "LSTM gates of R swapped", "lstm", weight("rl", _gates(4, [0, 2, 1, 3]))),
    Mutant("recurrent", "LSTM reads backwards", "lstm", attr("lstm", direction="reverse")),
    Mutant("recurrent", "initial state ignored", "lstm", inputs("lstm", _5="")),
    Mutant(
        "recurrent",
        "recurrent bias dropped",
        "lstm",
        weight("bl", lambda b: np.where(np.arange(40) < 20, b, 0)),
    ),
    Mutant(
        "recurrent", "GRU reset gate applied before", "gru", attr("gru", linear_before_reset=None)
    ),
    Mutant("recurrent", "GRU gates swapped", "gru", weight("rg", _gates(3, [1, 0, 2]))),
    Mutant(
        "recurrent",
        "hard sigmoid for sigmoid",
        "gru",
        attr("gru", activations=["HardSigmoid", "Tanh"]),
    ),
    # mobile
    Mutant("mobile", "HardSwish became Swish", "act1", op("act1", "Mish")),
    Mutant("mobile", "HardSigmoid slope 0.2, not 1/6", "se.gate", attr("se.gate", alpha=None)),
    Mutant(
        "mobile", "depthwise channels permuted", "depth", weight("wd", lambda w: np.roll(w, 1, 0))
    ),
    Mutant("mobile", "channel shuffle forgotten", "shuffle", op("shuffle", "Identity", perm=None)),
    Mutant("mobile", "upper limit of Clip ignored", "act2", inputs("act2", _2="")),
    Mutant(
        "mobile",
        "one slope for all channels",
        "prelu",
        weight("slope", lambda w: np.full_like(w, w.mean())),
    ),
    Mutant("mobile", "stride taken at the other phase", "stem", attr("stem", pads=[0, 0, 1, 1])),
    # unet
    Mutant("unet", "reflection became repetition", "pad", attr("pad", mode="edge")),
    Mutant("unet", "slope 0.1 → 0.01", "act1", attr("act1", alpha=None)),
    Mutant("unet", "instance norm epsilon 1e-5 → 1e-3", "norm", attr("norm", epsilon=1e-3)),
    Mutant("unet", "local response over 5, not 3", "lrn", attr("lrn", size=5)),
    Mutant(
        "unet", "transposed kernel not turned", "up", weight("w3", lambda w: w[:, :, ::-1, ::-1])
    ),
    Mutant("unet", "skip connection in the other order", "skip", swap("skip", 0, 1)),
    Mutant("unet", "cubic coefficient -0.5, not -0.75", "cubic", attr("cubic", cubic_coeff_a=-0.5)),
    Mutant(
        "unet",
        "corners aligned",
        "cubic",
        attr("cubic", coordinate_transformation_mode="align_corners"),
    ),
    Mutant("unet", "nearest rounds, not floors", "y", attr("y", nearest_mode="round_prefer_ceil")),
    # quantized
    Mutant(
        "quantized", "activation scale off by 1 %", "mid.q", weight("mid.scale", lambda s: s * 1.01)
    ),
    Mutant("quantized", "zero point off by one", "late.q", _late_zero),
    Mutant("quantized", "weight scales reversed", "w.dq", weight("w.scale", lambda s: s[::-1])),
    Mutant("quantized", "rounds half up, not to even", "mid.q", replaced("mid.q", HALF_UP)),
    Mutant(
        "quantized",
        "one quantized weight off by one",
        "w.dq",
        weight("w.q", lambda w: w + (np.arange(w.size).reshape(w.shape) == 7)),
    ),
    # loops
    Mutant("loops", "factor inside a Loop 0.5 → 0.501", "scaled", _set_half),
    Mutant("loops", "hard activation inside a Loop", "next", op("next", "Softsign")),
    Mutant("loops", "one iteration too few", "y", weight("count", lambda c: c - 1)),
    Mutant("loops", "Scan reads backwards", "final", attr("final", scan_input_directions=[1])),
    Mutant("loops", "hard gate inside a Scan", "gate", op("gate", "HardSigmoid")),
    Mutant("loops", "Selu for Softplus in a branch", "a", op("a", "Elu")),
    Mutant("loops", "condition turned", "test", op("test", "Less")),
]


def fault(network: str, what: str) -> Model:
    """The one wrong model whose description has these words."""
    (result,) = (m for m in MUTANTS if m.network == network and what in m.what)
    return result.model()
