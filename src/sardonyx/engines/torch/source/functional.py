"""Layers that torch.nn cannot hold, as functions: their weights are computed, or are inputs.

What becomes a layer is in `layers.py`; only what it leaves comes here.
"""

from __future__ import annotations

from typing import Any

from sardonyx.engines.torch.source.expression import SUM, Expression, Literal, build
from sardonyx.engines.torch.source.layers import epsilon_option, even, option
from sardonyx.engines.torch.source.reading import Unwritten, op
from sardonyx.lower.custom_native import NATIVE


@op("Conv", "ConvTranspose")
def conv(reader, node, x, w, b=None, rank=0, **attributes):
    rank = rank or reader.rank(w) - 2
    turned = node.op_type == "ConvTranspose"
    pads = list(attributes["pads"] or [0] * 2 * rank)
    if not 1 <= rank <= 3 or (attributes["auto_pad"] or "NOTSET") != "NOTSET":
        raise Unwritten("a rank that torch lacks, or padding that depends on sizes")
    if turned and (attributes["output_shape"] or pads[:rank] != pads[rank:]):
        raise Unwritten("padding that differs between the ends")
    data, begin = padded(x, pads, rank)
    options = [
        option("stride", even(attributes["strides"] or [1]), 1),
        option("padding", even(begin), 0),
        option("dilation", even(attributes["dilations"] or [1]), 1),
        option("groups", attributes["group"], 1),
    ]
    if turned:
        options.append(option("output_padding", even(attributes["output_padding"] or [0]), 0))
    return _called(f"F.conv{'_transpose' if turned else ''}{rank}d", [data, w, b], options)


def padded(x: Any, pads: list[int], rank: int, value: float | None = None) -> tuple[Any, list[int]]:
    """The data, padded where the ends differ, and the padding that is left to the function."""
    begin, end = pads[:rank], pads[rank:]
    if begin == end:
        return x, begin
    pairs = tuple(p for pair in zip(reversed(begin), reversed(end)) for p in pair)
    numbers = [Literal(pairs, "pads")]
    numbers += [] if value is None else [Literal(value, "value", ", value=")]
    text = "F.pad({0}, {1})" if value is None else "F.pad({0}, {1}{2})"
    return build(text, x, *numbers), [0] * rank


def _called(name: str, operands: list[Any], options: list[Literal]) -> Expression:
    arguments = [v for v in operands if v is not None]
    used = [o for o in options if not o.is_usual]
    places = ", ".join(f"{{{i}}}" for i in range(len(arguments)))
    places += "".join(f"{{{i}}}" for i in range(len(arguments), len(arguments) + len(used)))
    return build(f"{name}({places})", *arguments, *used)


@op("BatchNormalization")
def batch_norm(
    reader, node, x, scale, b, mean,
    var, *, epsilon, momentum, training_mode
):  # fmt: skip
    if training_mode:
        raise Unwritten("it trains in the file itself: training_mode is 1")
    return _called("F.batch_norm", [x, mean, var, scale, b], [epsilon_option(epsilon)])


@op("StandardScore", domain=NATIVE)
def standard_score(reader, node, x, scale, b, mean, var, *, epsilon=1e-5):
    # F.batch_norm has no gradient for statistics that the graph computes.
    axes = ", None" * (reader.rank(x) - 2)
    columns = f"[:{axes}]" if axes else ""
    factor = build("({0:80} / ({1} + {2}).sqrt())", scale, var, Literal(epsilon, "epsilon"))
    text = f"({{0}} - {{1:100}}{columns}) * {{2:100}}{columns} + {{3:100}}{columns}"
    return build(text, x, mean, factor, b, rank=SUM)


@op("LayerNormalization")
def layer_norm(
    reader, node, x, scale, b = None, *, axis,
    epsilon, stash_type
):  # fmt: skip
    rank = reader.rank(x)
    count = rank - axis % rank
    if reader.rank(scale) != count or (b is not None and reader.rank(b) != count):
        raise Unwritten("a scale of another shape than what is normalized")
    shape = build(f"{{0}}.shape[{-count}:]", x)
    return _called("F.layer_norm", [x, shape, scale, b], [epsilon_option(epsilon)])


@op("GroupNormalization", "InstanceNormalization")
def group_norm(reader, node, x, scale, b, **attributes):
    epsilon = epsilon_option(attributes["epsilon"])
    if node.op_type == "InstanceNormalization":
        named = [build("weight={0}", scale), build("bias={0}", b)]
        return _called("F.instance_norm", [x, *named], [epsilon])
    return _called("F.group_norm", [x, Literal(attributes["num_groups"]), scale, b], [epsilon])


@op("LSTM", "GRU", "RNN")
def recurrent(reader, node, *inputs, **attributes):
    """Why torch's layer does not do: there is no function to fall back on."""
    options = {
        "sequence lengths": len(inputs) > 4 and inputs[4] is not None,
        "peepholes": len(inputs) > 7 and inputs[7] is not None,
        "a layer that only runs backwards": attributes["direction"] == "reverse",
        "linear_before_reset = 0": node.op_type == "GRU" and not attributes["linear_before_reset"],
        "batches first": attributes["layout"],
        "clipping": attributes["clip"],
    }
    problems = [name for name, is_there in options.items() if is_there]
    why = problems[0] if problems else "weights that are computed, or other activations"
    raise Unwritten(f"torch's {node.op_type} lacks {why}")
