"""Correct, but coarser than numpy: how engines add long sums, transform signals, bend sigmoids.

numpy adds in pairs, transforms by FFT in double precision and has sigmoids that are exact near 0.
Its own noise says too little about engines that add number by number, take the angles of a DFT in
single precision, or give a sigmoid to an ulp of 1, not of the result. Where a model has such nodes,
a second baseline computes them that way, and the larger noise counts.

Products belong here only where all weights of a sum are equal, as in models that were never
trained: then the terms are equal too, every addition rounds to the same side, and the error grows
with the number of terms rather than with its root.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.passes.nesting import graphs

LONG = 1_000  # terms of a sum, whose error then is several roundings of it
SUMS = ("ReduceSum", "ReduceMean", "ReduceSumSquare", "ReduceL1", "ReduceL2", "GlobalAveragePool")
TRANSFORMS = ("DFT", "STFT")
BENT = ("Sigmoid",)
PRODUCTS = ("MatMul", "Gemm", "Conv")
SINGLE = np.dtype(np.float32)


def has_coarse(graph: ir.Graph) -> bool:
    """Whether a graph has nodes that engines compute more coarsely than numpy."""
    operators = (*SUMS, *TRANSFORMS, *BENT)
    return any(
        node.op_type in operators or _has_equal_weights(node)
        for part in graphs(graph)
        for node in part
    )


def _has_equal_weights(node: ir.Node) -> bool:
    """Whether a product has a weight of equal numbers, so that its sums may have equal terms."""
    if node.op_type not in PRODUCTS or len(node.inputs) < 2 or node.inputs[1] is None:
        return False
    weight = node.inputs[1]
    maker = weight.producer()
    if maker is not None:
        return maker.op_type == "ConstantOfShape"
    return weight.const_value is not None and _is_uniform(weight.const_value.numpy())


def _is_uniform(array: np.ndarray) -> bool:
    """Whether all elements are one number; looks at few of them where they are not."""
    flat = array.reshape(-1)
    return flat.size > 1 and bool(np.all(flat[:2] == flat[0])) and bool(np.all(flat == flat[0]))


def coarse(node: ir.Node, inputs: Sequence[Any]) -> np.ndarray | None:
    """The output of a node computed the coarse way; None where there is none, or no need."""
    if node.op_type in SUMS:
        return _sum(node, inputs)
    if node.op_type in BENT and inputs[0].dtype == SINGLE:  # half an ulp of 1, to either side
        exact = 1 / (1 + np.exp(-inputs[0].astype(np.float64)))
        side = np.where(np.arange(exact.size) % 2, -1, 1).reshape(exact.shape)
        return (exact + side * 2.0**-24).astype(SINGLE)
    if node.op_type in PRODUCTS and inputs[0].dtype == SINGLE and _is_uniform(inputs[1]):
        return _product(node, inputs)
    if node.op_type == "STFT" and inputs[0].dtype == SINGLE:
        return _stft(node, inputs)
    if node.op_type == "DFT" and inputs[0].dtype == SINGLE and inputs[0].shape[-1] <= 2:
        return _dft(node, inputs)
    return None


def _sum(node: ir.Node, inputs: Sequence[Any]) -> np.ndarray | None:
    x = inputs[0]
    axes = inputs[1] if len(inputs) > 1 else None
    if node.op_type == "GlobalAveragePool":
        axes = np.arange(2, x.ndim)
    summed = tuple(int(a) % x.ndim for a in (range(x.ndim) if axes is None else axes))
    length = int(np.prod([x.shape[a] for a in summed]))
    if length <= LONG or x.dtype.kind != "f":
        return None
    remaining = [a for a in range(x.ndim) if a not in summed]
    flat = np.transpose(x, (*remaining, *summed)).reshape(*(x.shape[a] for a in remaining), length)
    if node.op_type in ("ReduceSumSquare", "ReduceL2"):
        flat = flat * flat
    elif node.op_type == "ReduceL1":
        flat = np.abs(flat)
    total = np.cumsum(flat, axis=-1, dtype=x.dtype)[..., -1]
    if node.op_type in ("ReduceMean", "GlobalAveragePool"):
        total = total / x.dtype.type(length)
    elif node.op_type == "ReduceL2":
        total = np.sqrt(total)
    keep = "keepdims" not in node.attributes or node.attributes["keepdims"].as_int()
    shape = [1 if a in summed else d for a, d in enumerate(x.shape)] if keep else total.shape
    return np.asarray(total, x.dtype).reshape(shape)


def _product(node: ir.Node, inputs: Sequence[Any]) -> np.ndarray | None:
    """A product with equal weights, its terms added one after the other in single precision."""
    x, w, bias = (*inputs, None)[:3]
    if node.op_type == "Conv":
        if _flag(node, "group", 1) != 1:
            return None
        terms = _conv_terms(node, x, w)
        shape = [1, -1, *[1] * (x.ndim - 2)]
    else:
        x = np.swapaxes(x, -1, -2) if _flag(node, "transA") else x
        w = np.swapaxes(w, -1, -2) if _flag(node, "transB") else w
        if w.ndim != 2 or x.ndim < 2 or any(name in node.attributes for name in ("alpha", "beta")):
            return None
        terms = (x[..., k, None] * w[k] for k in range(w.shape[0]))
        shape = [-1] if bias is not None and np.ndim(bias) == 1 else list(np.shape(bias))
    total = functools.reduce(np.add, terms)
    return total if bias is None else total + bias.reshape(shape)


def _conv_terms(node: ir.Node, x: Any, w: Any) -> Iterator[np.ndarray]:
    """What each channel and tap of a kernel adds to a convolution."""
    rank = x.ndim - 2
    ones, zeros = [1] * rank, [0] * 2 * rank
    pads, strides, dilations = (
        list(node.attributes[name].as_ints()) if name in node.attributes else usual
        for name, usual in (("pads", zeros), ("strides", ones), ("dilations", ones))
    )
    x = np.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:])])
    spans = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations)]
    counts = [(n - span) // s + 1 for n, span, s in zip(x.shape[2:], spans, strides)]
    for tap in itertools.product(*map(range, w.shape[2:])):
        starts = [t * d for t, d in zip(tap, dilations)]
        cut = tuple(slice(a, a + (n - 1) * s + 1, s) for a, n, s in zip(starts, counts, strides))
        for channel in range(x.shape[1]):
            kernel = w[(slice(None), channel, *tap)].reshape(-1, *ones)
            yield x[(slice(None), slice(channel, channel + 1), *cut)] * kernel


def _flag(node: ir.Node, name: str, default: int = 0) -> int:
    return node.attributes[name].as_int() if name in node.attributes else default


def _transform(x: np.ndarray, length: int, inverse: bool, onesided: bool) -> np.ndarray:
    """The DFT of the last axis but one (pairs last), as good as with angles in single precision.

    How large the error of such angles is, is measured; where it lies is not taken over: direct sums
    spare the low frequencies, fast transforms of odd lengths spread it evenly over all of them.
    """
    count = length // 2 + 1 if onesided else length
    steps: Any = np.outer(np.arange(length), np.arange(count))
    pad = [(0, 0)] * (x.ndim - 2) + [(0, max(length - x.shape[-2], 0)), (0, 0)]
    x = np.pad(x, pad)[..., :length, :]
    real = x[..., 0]
    imaginary = x[..., 1] if x.shape[-1] == 2 else np.zeros_like(real)
    both = []
    for dtype in (np.dtype(np.float64), SINGLE):
        angle = steps.astype(dtype) * dtype.type(2 * np.pi) / dtype.type(length)
        cos, sin = np.cos(angle), np.sin(angle) * dtype.type(1 if inverse else -1)
        re, im = real.astype(dtype), imaginary.astype(dtype)
        both.append(np.stack([re @ cos - im @ sin, re @ sin + im @ cos], -1))
    exact, single = both
    error = np.sqrt(np.mean((single - exact) ** 2, axis=(-2, -1), keepdims=True))
    noisy = exact + error * np.random.default_rng(0).choice((-1.0, 1.0), exact.shape)
    return (noisy / length if inverse else noisy).astype(SINGLE)


def _stft(node: ir.Node, inputs: Sequence[Any]) -> np.ndarray:
    signal, step, window, frame_length = (*inputs, None, None)[:4]
    signal = signal if signal.ndim == 3 else signal[..., None]
    length = int(np.reshape(frame_length, -1)[0]) if frame_length is not None else 0
    length = length or (len(window) if window is not None else signal.shape[1])
    jump = int(np.reshape(step, -1)[0])
    frames = (signal.shape[1] - length) // jump + 1
    at = np.arange(frames)[:, None] * jump + np.arange(length)
    cut = signal[:, at]
    if window is not None:
        cut = cut * window.reshape(1, 1, length, 1)
    return _transform(cut, length, False, bool(_flag(node, "onesided", 1)))


def _dft(node: ir.Node, inputs: Sequence[Any]) -> np.ndarray | None:
    x, dft_length, axis = (*inputs, None, None)[:3]
    place = int(np.reshape(axis, -1)[0]) % x.ndim if axis is not None else x.ndim - 2
    onesided, inverse = bool(_flag(node, "onesided")), bool(_flag(node, "inverse"))
    if onesided and inverse:
        return None
    length = int(np.reshape(dft_length, -1)[0]) if dft_length is not None else x.shape[place]
    transformed = _transform(np.moveaxis(x, place, -2), length, inverse, onesided)
    return np.moveaxis(transformed, -2, place)
