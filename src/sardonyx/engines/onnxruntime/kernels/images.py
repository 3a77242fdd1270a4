"""Gradients of convolutions and of max pooling in kernels of our own (turn.h, pool.h, correlate.h).

Their gradients are many operators, of which onnxruntime has kernels for other uses: a convolution
with images as its kernel, maxima that are enlarged and compared. Each is one operator here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.build import is_static, static
from sardonyx.engines.onnxruntime.kernels.patterns import (
    constant,
    count,
    is_zero,
    maker,
    mask_of,
    other_operand,
    sizes,
)
from sardonyx.engines.onnxruntime.kernels.program import DOMAIN
from sardonyx.passes.dead import remove_dead

UNKNOWN = 32  # how large an unknown dimension is taken to be
LEAST = 1 << 14  # numbers of what is worth a kernel of our own
FEWEST_CHANNELS = 16  # of images: they are the vectors of the kernel
FEWEST_TILES = 40  # of two by two pixels in a batch, for a transformed kernel
FEWEST_PIXELS = 32  # of a result: sums stay in registers while these are passed
LONGEST_CHAIN = 4
PASSES = {"PoolGradient": 4}  # over memory, that the operators in its place make at least


@dataclass
class Rewrite:
    """A node that is not in the graph yet, and the values that its outputs stand for."""

    node: ir.Node
    values: list[ir.Value]

    def numbers(self) -> int:
        """How much the operators in its place read and write, at least."""
        passes = PASSES.get(self.node.op_type, 1)
        return passes * sum(count(v, UNKNOWN) for v in (*self.node.inputs, *self.values))


def choose_images(graph: ir.Graph, threads: int) -> list[Rewrite]:
    """What is better computed by these kernels."""
    found: list[Rewrite] = []
    for node in graph:
        rewrite = _pool(node) or _scattered_pool(node) or _kernel(node, threads) or _turn(node)
        if rewrite is not None:
            found.append(rewrite)
    return found


def put_in(graph: ir.Graph, rewrites: Iterable[Rewrite]) -> None:
    """Put the nodes in the place of what they stand for."""
    for rewrite in rewrites:
        for old, new in zip(rewrite.values, rewrite.node.outputs, strict=True):
            new.type, new.shape = old.type, old.shape
            new.name, old.name = old.name, f"{old.name}/before"
            ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        graph.append(rewrite.node)
    graph.sort()
    remove_dead(graph)
    for node in graph:
        if node.op_type == "MaxPool" and len(node.outputs) == 2 and not node.outputs[1].uses():
            node.resize_outputs(1)  # its kernel without places is five times as fast


def new_node(
    op_type: str, inputs: Sequence[ir.Value], name: str, settings: Iterable[int], value: ir.Value
) -> Rewrite:
    attribute = ir.AttrInt64s(name, [int(v) for v in settings])
    node = ir.Node(DOMAIN, op_type, list(inputs), [attribute], num_outputs=1)
    node.name = f"{value.name}/{op_type}"
    return Rewrite(node, [value])


# -- max pooling ------------------------------------------------------------------------------


def _pool(node: ir.Node) -> Rewrite | None:
    """Windows that tile the image, as `grad/nn/pool.py` writes their gradient."""
    if node.op_type != "Mul" or node.domain != "":
        return None
    for chosen, enlarged in (node.inputs[:2], reversed(node.inputs[:2])):
        window = _enlarged(enlarged)
        image = _first_largest(chosen, window[1]) if window is not None else None
        if window is not None and image is not None:
            return _pool_gradient(node.outputs[0], image, window[0], window[1])
    return None


def _enlarged(value: ir.Value | None) -> tuple[ir.Value, tuple[int, int]] | None:
    """What a value repeats, and how often along both axes of an image."""
    node = maker(value, "Resize")
    if node is None or len(node.inputs) != 3 or node.inputs[0] is None:
        return None
    modes = ("mode", "nearest_mode", "coordinate_transformation_mode")
    if [node.attributes.get_string(m) for m in modes] != ["nearest", "floor", "asymmetric"]:
        return None
    scales = constant(node.inputs[2])
    if scales is None or scales.size != 4 or any(scales[:2] != 1) or any(scales % 1):
        return None
    return node.inputs[0], (int(scales[2]), int(scales[3]))


def _first_largest(value: ir.Value | None, window: tuple[int, int]) -> ir.Value | None:
    """The image of which a value marks the first largest number of each window."""
    ranked, best = _compared(value, window)
    pool = maker(best, "MaxPool")
    rank = maker(ranked, "Mul")
    if pool is None or rank is None or pool.inputs[0] is not ranked or not _tiles(pool, window):
        return None
    for tied, ranks in (rank.inputs[:2], reversed(rank.inputs[:2])):
        image, largest = _compared(tied, window)
        numbers, shape = constant(ranks), sizes(image)
        if image is None or numbers is None or shape is None or len(shape) != 4:
            continue
        if _are_ranks(numbers, window, shape[2:]) and _is_pool_of(largest, image, window):
            return image
    return None


def _compared(
    value: ir.Value | None, window: tuple[int, int]
) -> tuple[ir.Value | None, ir.Value | None]:
    """The two sides of an Equal that became numbers, the second one enlarged by the window."""
    cast = maker(value, "Cast")
    equal = maker(cast.inputs[0], "Equal") if cast is not None else None
    if equal is None:
        return None, None
    for one, other in (equal.inputs[:2], reversed(equal.inputs[:2])):
        enlarged = _enlarged(other)
        if enlarged is not None and enlarged[1] == window:
            return one, enlarged[0]
    return None, None


def _tiles(pool: ir.Node, window: tuple[int, int]) -> bool:
    return (
        tuple(pool.attributes.get_ints("kernel_shape", ())) == window
        and tuple(pool.attributes.get_ints("strides", (1, 1))) == window
        and _is_plain(pool)
        and not any(pool.attributes.get_ints("pads", ()))
    )


def _is_plain(pool: ir.Node) -> bool:
    """Whether a pool has neither dilations nor padding that its sizes decide."""
    return (
        set(pool.attributes.get_ints("dilations", (1, 1))) == {1}
        and pool.attributes.get_string("auto_pad", "NOTSET") == "NOTSET"
    )


def _are_ranks(numbers: np.ndarray, window: tuple[int, int], size: list[int | None]) -> bool:
    ranks = np.arange(window[0] * window[1], 0, -1).reshape(window)
    if any(n is None or n % w for n, w in zip(size, window, strict=True)):
        return False
    repeats = [n // w for n, w in zip(size, window, strict=True) if n is not None]
    expected = np.tile(ranks, repeats)
    return numbers.shape[-2:] == expected.shape and bool((numbers == expected).all())


def _is_pool_of(value: ir.Value | None, image: ir.Value, window: tuple[int, int]) -> bool:
    """Whether a value has the maxima of an image, or of one that is larger by part of a window."""
    pool = maker(value, "MaxPool")
    if pool is None or not _tiles(pool, window) or pool.attributes.get_int("ceil_mode", 0) != 0:
        return False
    if pool.inputs[0] is image:
        return True
    cut = maker(image, "Slice")
    if cut is None or cut.inputs[0] is not pool.inputs[0]:
        return False
    starts, _, _, *steps = [constant(v) for v in cut.inputs[1:]]
    ones = all(s is not None and (s == 1).all() for s in steps)
    return starts is not None and not starts.any() and ones


def _pool_gradient(
    value: ir.Value,
    image: ir.Value,
    g: ir.Value,
    window: Sequence[int],
    strides: Sequence[int] | None = None,
    pads: Sequence[int] = (0, 0),
) -> Rewrite | None:
    if count(image, UNKNOWN) < LEAST:
        return None
    value, masked = _behind_mask(value, image)
    settings = (*window, *(strides or window), *pads, masked)
    return new_node("PoolGradient", [image, g], "pool", settings, value)


def _behind_mask(value: ir.Value, image: ir.Value) -> tuple[ir.Value, bool]:
    """The gradient of a Relu that made the image, where only that reads the value."""
    readers = list(value.consumers())
    if len(readers) != 1 or value.is_graph_output():
        return value, False
    (reader,) = readers
    if reader.op_type == "Mul":
        is_masked = mask_of(other_operand(reader, value)) is image
    else:
        is_masked = reader.op_type == "Where" and _is_where_positive(reader, image, value)
    return (reader.outputs[0], True) if is_masked else (value, False)


def _is_where_positive(where: ir.Node, image: ir.Value, value: ir.Value) -> bool:
    """Whether a Where has a value where the result of a Relu is not zero, and zero elsewhere."""
    compared = maker(where.inputs[0], "Greater")
    if compared is None or compared.inputs[0] is not image or maker(image, "Relu") is None:
        return False
    zeros = [constant(v) for v in (compared.inputs[1], where.inputs[2])]
    return where.inputs[1] is value and all(z is not None and not z.any() for z in zeros)


def _scattered_pool(node: ir.Node) -> Rewrite | None:
    """Other windows: gradients that are added at the places of the largest numbers."""
    scatter = maker(node.inputs[0], "ScatterElements") if node.op_type == "Reshape" else None
    if scatter is None or scatter.attributes.get_string("reduction", "none") != "add":
        return None
    if not is_zero(scatter.inputs[0]):  # a model may add to something itself
        return None
    _, places, updates = [maker(v, "Reshape") for v in scatter.inputs]
    pool = maker(places.inputs[0], "MaxPool") if places is not None else None
    if pool is None or updates is None or places is None or not _is_plain(pool):
        return None
    if len(pool.outputs) != 2 or places.inputs[0] is not pool.outputs[1]:
        return None
    if pool.attributes.get_int("storage_order", 0) != 0:  # places count columns first
        return None
    image, g, value = pool.inputs[0], updates.inputs[0], node.outputs[0]
    shape, new_shape = sizes(image), sizes(value)
    if image is None or g is None or shape != new_shape or shape is None or len(shape) != 4:
        return None
    if None in shape[1:] or sizes(g) != sizes(pool.outputs[0]) or sizes(g) is None:
        return None
    window = pool.attributes.get_ints("kernel_shape")
    strides = pool.attributes.get_ints("strides", (1, 1))
    pads = pool.attributes.get_ints("pads", (0, 0, 0, 0))
    return _pool_gradient(value, image, g, window, strides, pads[:2])


# -- the kernel of a convolution ----------------------------------------------------------------


def _kernel(node: ir.Node, threads: int) -> Rewrite | None:
    """The gradient of a kernel as `grad/nn/kernel.py` writes it: images, and with them as a kernel
    the gradient of the results.
    """
    if node.op_type != "Transpose" or _order(node) != (0, 3, 1, 2):
        return None
    squeeze = maker(node.inputs[0], "Squeeze")
    conv = maker(squeeze.inputs[0], "Conv") if squeeze is not None else None
    if conv is None or len(conv.inputs) != 2:
        return None
    x, g = _turned(conv.inputs[0], 0, (0, 2, 3, 1)), _turned(conv.inputs[1], 4, (1, 0, 2, 3))
    value, weight = node.outputs[0], sizes(node.outputs[0])
    if x is None or g is None or weight is None or None in weight or not _is_correlation(conv):
        return None
    images, results = sizes(x), sizes(g)
    if images is None or results is None or None in images[1:] or None in results[1:]:
        return None
    if weight[:2] != [results[1], images[1]]:
        return None
    if (weight[1] or 0) < FEWEST_CHANNELS or (weight[0] or 0) < FEWEST_CHANNELS:
        return None
    strides = conv.attributes.get_ints("dilations", (1, 1, 1))[:2]
    dilations = conv.attributes.get_ints("strides", (1, 1, 1))[:2]
    pads = conv.attributes.get_ints("pads", (0,) * 6)[:2]
    settings = (*weight[2:], *strides, *dilations, *pads, threads)
    if (
        not _is_transformed(settings, results)
        and math.prod(d or 0 for d in results[2:]) < FEWEST_PIXELS
    ):
        return None
    if count(x, UNKNOWN) + count(g, UNKNOWN) < LEAST:
        return None
    return new_node("KernelGradient", [x, g], "kernel", [v or 0 for v in settings], value)


def _is_transformed(settings: Sequence[int | None], results: Sequence[int | None]) -> bool:
    """Whether winograd_gradient.h computes a gradient: of kernels of three by three."""
    count, _, high, wide = [UNKNOWN if n is None else n for n in results]
    tiles = count * ((high + 1) // 2) * ((wide + 1) // 2)
    return tuple(settings[:6]) == (3, 3, 1, 1, 1, 1) and tiles >= FEWEST_TILES


def _is_correlation(conv: ir.Node) -> bool:
    """Whether a convolution is over images as the channels, one pixel of the third axis."""
    pads = conv.attributes.get_ints("pads", (0,) * 6)
    return (
        conv.attributes.get_int("group", 1) == 1
        and conv.attributes.get_string("auto_pad", "NOTSET") == "NOTSET"
        and not (pads[2] or pads[5])
        and min(pads) >= 0
        and conv.attributes.get_ints("strides", (1, 1, 1))[2] == 1
    )


def _turned(value: ir.Value | None, axis: int, order: tuple[int, ...]) -> ir.Value | None:
    """What a value is a transpose of, with one more axis."""
    wider = maker(value, "Unsqueeze")
    axes = constant(wider.inputs[1]) if wider is not None and len(wider.inputs) > 1 else None
    if wider is None or axes is None or axes.tolist() != [axis]:
        return None
    transpose = maker(wider.inputs[0], "Transpose")
    return transpose.inputs[0] if transpose is not None and _order(transpose) == order else None


def _order(node: ir.Node) -> tuple[int, ...]:
    return tuple(node.attributes.get_ints("perm", ()))


# -- kernels in blocks of channels --------------------------------------------------------------


def _turn(node: ir.Node) -> Rewrite | None:
    """A weight that is cut, reshaped and transposed."""
    if node.op_type != "Transpose" or not is_static(node.outputs[0]):
        return None
    chain, value = [node], node.inputs[0]
    while value is not None and (before := value.producer()) is not None:
        if before.op_type not in ("Reshape", "Slice") or len(chain) == LONGEST_CHAIN:
            return None
        chain.append(before)
        value = before.inputs[0]
    if value is None or value.dtype != ir.DataType.FLOAT or not is_static(value):
        return None
    if not value.is_graph_input() or count(value, UNKNOWN) < LEAST or len(chain) < 2:
        return None
    view = _view(static(value), reversed(chain))
    if view is None or view.ndim < 3 or view.ndim > 8 or view.size != count(value, UNKNOWN):
        return None
    settings = [_first(view), view.ndim, *view.shape, *view.strides, view.ndim, *view.shape]
    return new_node("Turn", [value], "turn", settings, node.outputs[0])


def _view(shape: tuple[int, ...], chain: Iterable[ir.Node]) -> np.ndarray | None:
    """Where the numbers of a tensor lie after some nodes, as strides of bytes that nobody reads."""
    size = int(np.prod(shape))
    view = np.broadcast_to(np.zeros(1, np.int8), (size,))
    view = np.lib.stride_tricks.as_strided(view, (size,), (1,), writeable=False).reshape(shape)
    for node in chain:
        if node.op_type == "Transpose":
            view = view.transpose(_order(node) or None)
        elif node.op_type == "Slice":
            cut = _cut(node, view)
            if cut is None:
                return None
            view = cut
        else:
            view = view.view()
            try:
                view.shape = static(node.outputs[0])
            except AttributeError:  # that needs a copy
                return None
    return view


def _cut(node: ir.Node, view: np.ndarray) -> np.ndarray | None:
    """Axes that are passed backwards, whole."""
    starts, ends, axes, steps = [constant(v) for v in node.inputs[1:]] + [None] * (
        5 - len(node.inputs)
    )
    if starts is None or ends is None or axes is None or steps is None:
        return None
    index = [slice(None)] * view.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if start != -1 or step != -1 or end > -view.shape[axis] - 1:
            return None
        index[axis] = slice(None, None, -1)
    return view[tuple(index)]


def _first(view: np.ndarray) -> int:
    """Where the first number of a view lies: behind those that are passed backwards."""
    pairs = zip(view.strides, view.shape, strict=True)
    return sum(-stride * (size - 1) for stride, size in pairs if stride < 0)
