"""Cases of ONNX's nn family: convolution, pooling, normalisation, attention. Sizes differ pairwise."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.testing import Case, case


def torch() -> Any:
    import torch

    return torch


def functional() -> Any:
    return torch().nn.functional


def spaced(*shape: int) -> np.ndarray:
    """Shuffled numbers, far enough apart that no difference quotient crosses a tie."""
    count = int(np.prod(shape))
    values = np.random.default_rng(count).permutation(count) / count * 4 - 2.03
    return values.reshape(shape)


def ints(*values: Any) -> np.ndarray:
    return np.array(values, np.int64)


def conv(rank: int, pads: tuple[int, ...] = (), **keywords: Any) -> Any:
    """torch's convolution, with ONNX's asymmetric padding."""
    pairs = [p for i in reversed(range(rank)) for p in (pads[i], pads[rank + i])] if pads else [0, 0]
    return lambda x, w, *b: getattr(functional(), f"conv{rank}d")(
        functional().pad(x, pairs), w, *b, **keywords
    )


def transposed(rank: int, **keywords: Any) -> Any:
    return lambda x, w, *b: getattr(functional(), f"conv_transpose{rank}d")(x, w, *b, **keywords)


CONVOLUTION = [
    case("Conv", (2, 3, 5, 6), (4, 3, 3, 2), (4,), torch=conv(2), id="bias"),
    case("Conv", (2, 9, 5, 6), (4, 9, 3, 2), pads=[1, 0, 1, 1], id="many-channels",
         torch=conv(2, (1, 0, 1, 1))),
    case("Conv", (2, 9, 8, 7), (3, 9, 3, 2), strides=[2, 3], pads=[1, 1, 0, 2], id="strided",
         torch=conv(2, (1, 1, 0, 2), stride=(2, 3))),
    case("Conv", (2, 9, 8, 7), (3, 9, 3, 2), strides=[3, 2], id="rows-left-over",
         torch=conv(2, stride=(3, 2))),
    case("Conv", (2, 3, 8, 7), (4, 3, 3, 2), strides=[2, 3], pads=[1, 1, 0, 2], dilations=[2, 1],
         id="few-channels-dilated", torch=conv(2, (1, 1, 0, 2), stride=(2, 3), dilation=(2, 1))),
    case("Conv", (2, 9, 8, 9), (3, 9, 2, 3), strides=[2, 1], dilations=[3, 2], pads=[2, 1, 1, 0],
         id="dilated", torch=conv(2, (2, 1, 1, 0), stride=(2, 1), dilation=(3, 2))),
    case("Conv", (2, 2, 9, 8), (3, 2, 7, 6), strides=[2, 1], pads=[3, 3, 2, 1], id="large-kernel",
         torch=conv(2, (3, 3, 2, 1), stride=(2, 1))),
    case("Conv", (2, 5, 4, 3), (6, 5, 1, 1), (6,), id="pointwise", torch=conv(2)),
    case("Conv", (2, 5, 6, 7), (4, 5, 1, 1), strides=[2, 3], id="pointwise-strided",
         torch=conv(2, stride=(2, 3))),
    case("Conv", (2, 5, 4, 3), (4, 5, 1, 1), pads=[1, 0, 0, 2], id="pointwise-padded",
         torch=conv(2, (1, 0, 0, 2))),
    case("Conv", (2, 6, 5, 7), (4, 3, 2, 3), group=2, pads=[1, 0, 0, 1], id="grouped",
         torch=conv(2, (1, 0, 0, 1), groups=2)),
    case("Conv", (2, 6, 5, 7), (4, 3, 2, 3), group=2, strides=[2, 2], dilations=[1, 2],
         pads=[1, 1, 0, 1], id="grouped-strided",
         torch=conv(2, (1, 1, 0, 1), groups=2, stride=2, dilation=(1, 2))),
    case("Conv", (2, 3, 5, 7), (3, 1, 3, 2), (3,), group=3, pads=[1, 0, 1, 1], id="depthwise",
         torch=conv(2, (1, 0, 1, 1), groups=3)),
    case("Conv", (2, 3, 6, 7), (6, 1, 3, 2), group=3, strides=[2, 2], id="depthwise-multiplied",
         torch=conv(2, groups=3, stride=2)),
    case("Conv", (2, 4, 9), (3, 4, 3), (3,), strides=[2], pads=[1, 2], dilations=[2], id="1d",
         torch=conv(1, (1, 2), stride=2, dilation=2)),
    case("Conv", (2, 9, 8), (3, 9, 3), strides=[2], id="1d-many-channels", torch=conv(1, stride=2)),
    case("Conv", (2, 4, 8), (6, 2, 3), group=2, pads=[2, 0], id="1d-grouped",
         torch=conv(1, (2, 0), groups=2)),
    case("Conv", (1, 2, 4, 5, 6), (3, 2, 2, 3, 2), strides=[1, 2, 2], pads=[1, 0, 1, 0, 1, 0],
         id="3d", order=1, torch=conv(3, (1, 0, 1, 0, 1, 0), stride=(1, 2, 2))),
    case("Conv", (2, 8, 3, 4, 3), (2, 8, 2, 2, 1), id="3d-many-channels", order=1, torch=conv(3)),
    case("Conv", (1, 9, 5, 6, 5), (2, 9, 4, 5, 5), pads=[1, 2, 1, 1, 1, 1], strides=[2, 1, 1], order=1,
         id="3d-large-kernel", torch=conv(3, (1, 2, 1, 1, 1, 1), stride=(2, 1, 1))),
    case("Conv", (1, 4, 3, 4, 5), (6, 2, 2, 1, 2), group=2, id="3d-grouped", order=1,
         torch=conv(3, groups=2)),
    case("Conv", (2, 3, 7, 6), (4, 3, 3, 2), auto_pad="SAME_UPPER", strides=[2, 2], id="same-upper",
         torch=conv(2, (1, 0, 1, 0), stride=2)),
    case("Conv", (2, 3, 7, 5), (4, 3, 3, 2), auto_pad="SAME_LOWER", strides=[2, 3], id="same-lower",
         torch=conv(2, (1, 0, 1, 0), stride=(2, 3))),
    case("Conv", (2, 9, 7, 6), (2, 9, 2, 4), auto_pad="SAME_LOWER", id="same-lower-even",
         torch=conv(2, (1, 2, 0, 1))),
    case("Conv", (2, 3, 7, 6), (4, 3, 3, 2), auto_pad="VALID", strides=[2, 2], id="valid",
         torch=conv(2, stride=2)),
    case("ConvTranspose", (2, 3, 4, 5), (3, 4, 3, 2), (4,), id="bias", torch=transposed(2)),
    case("ConvTranspose", (2, 3, 4, 5), (3, 9, 3, 2), strides=[2, 3], pads=[1, 0, 1, 0],
         output_padding=[1, 2], id="strided",
         torch=transposed(2, stride=(2, 3), padding=(1, 0), output_padding=(1, 2))),
    case("ConvTranspose", (2, 4, 3, 5), (4, 3, 2, 3), group=2, strides=[2, 1], dilations=[2, 1],
         id="grouped-dilated", torch=transposed(2, groups=2, stride=(2, 1), dilation=(2, 1))),
    case("ConvTranspose", (2, 3, 4, 5), (3, 2, 3, 2), pads=[0, 1, 2, 0], id="asymmetric",
         torch=lambda x, w: functional().conv_transpose2d(x, w)[:, :, :-2, 1:]),
    case("ConvTranspose", (2, 3, 4, 5), (3, 2, 1, 1), strides=[2, 1], output_padding=[1, 0],
         id="pointwise", torch=transposed(2, stride=(2, 1), output_padding=(1, 0))),
    case("ConvTranspose", (2, 3, 4), (3, 2, 3), strides=[2], dilations=[3], output_padding=[2],
         id="padding-beyond-stride", torch=transposed(1, stride=2, dilation=3, output_padding=2)),
    case("ConvTranspose", (2, 3, 4), (3, 2, 3), (2,), strides=[2], id="1d",
         torch=transposed(1, stride=2)),
    case("ConvTranspose", (1, 2, 3, 2, 4), (2, 3, 2, 3, 2), strides=[2, 1, 2], order=1, id="3d",
         torch=transposed(3, stride=(2, 1, 2))),
    case("ConvTranspose", (2, 3, 3, 4), (3, 2, 3, 3), strides=[3, 2], output_shape=[10, 8],
         id="output-shape"),
    case("ConvTranspose", (2, 3, 3, 4), (3, 2, 3, 3), strides=[3, 2], output_shape=[6, 7],
         auto_pad="SAME_UPPER", id="output-shape-cropped"),
    case("ConvTranspose", (2, 3, 3, 4), (3, 2, 3, 4), strides=[2, 2], auto_pad="SAME_UPPER",
         id="same-upper"),
    case("ConvTranspose", (2, 3, 3, 4), (3, 2, 4, 3), strides=[1, 2], auto_pad="SAME_LOWER",
         id="same-lower"),
    case("Col2Im", (2, 6, 16), ints(5, 4), ints(2, 1), id="2d",
         torch=lambda x: functional().fold(x, (5, 4), (2, 1))),
    case("Col2Im", (1, 12, 9), ints(5, 5), ints(2, 3), strides=[2, 2], pads=[1, 1, 1, 1], id="strided",
         torch=lambda x: functional().fold(x, (5, 5), (2, 3), padding=1, stride=2)),
    case("Col2Im", (1, 8, 12), ints(5, 6), ints(2, 2), dilations=[2, 2], strides=[1, 1], id="dilated",
         torch=lambda x: functional().fold(x, (5, 6), 2, dilation=2)),
    case("Col2Im", (1, 4, 12), ints(3, 2, 3), ints(1, 1, 2), id="3d", order=1),
    case("Col2Im", (2, 6, 16), ints(5, 4), ints(2, 1), fed=True, id="block-known-when-run"),
    case("DeformConv", (1, 2, 4, 5), (3, 2, 2, 3), (1, 12, 3, 3), (3,), low=-0.9, high=0.9, tol=1e-4,
         order=1, id="bias"),
    case("DeformConv", (2, 4, 5, 4), (2, 2, 2, 2), (2, 16, 3, 2), None, (2, 8, 3, 2), group=2,
         offset_group=2, strides=[2, 2], pads=[1, 0, 1, 1], low=-0.9, high=0.9, tol=1e-4, order=1,
         id="mask-groups"),
    case("CausalConvWithState", (2, 3, 5), (3, 1, 4), (3,), (2, 3, 3), outputs=2, id="state", symbolic=False,
         torch=lambda x, w, b, s: (
             functional().conv1d(torch().cat([s, x], 2), w, b, groups=3),
             torch().cat([s, x], 2)[:, :, -3:],
         )),
    case("CausalConvWithState", (2, 3, 5), (3, 1, 4), outputs=2, activation="silu", id="silu",
         tol=1e-2, order=1, symbolic=False),
]

POOLING = [
    case("AveragePool", (2, 3, 6, 4), kernel_shape=[2, 2], strides=[2, 2], id="tiles",
         torch=lambda x: functional().avg_pool2d(x, 2)),
    case("AveragePool", (2, 3, 7, 5), kernel_shape=[3, 2], strides=[3, 2], id="tiles-left-over",
         torch=lambda x: functional().avg_pool2d(x, (3, 2))),
    case("AveragePool", (2, 3, 7, 6), kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1],
         id="padded"),
    case("AveragePool", (2, 3, 7, 6), kernel_shape=[3, 3], strides=[2, 1], pads=[1, 1, 1, 1],
         count_include_pad=1, id="padding-counted",
         torch=lambda x: functional().avg_pool2d(x, 3, (2, 1), 1)),
    case("AveragePool", (2, 3, 7, 6), kernel_shape=[3, 3], strides=[2, 1], pads=[1, 1, 1, 1],
         id="padding-not-counted",
         torch=lambda x: functional().avg_pool2d(x, 3, (2, 1), 1, count_include_pad=False)),
    case("AveragePool", (2, 3, 6, 7), kernel_shape=[3, 2], strides=[2, 2], ceil_mode=1, id="ceil",
         torch=lambda x: functional().avg_pool2d(x, (3, 2), 2, ceil_mode=True)),
    case("AveragePool", (2, 3, 6, 7), kernel_shape=[3, 3], strides=[2, 3], pads=[1, 1, 1, 1],
         ceil_mode=1, count_include_pad=1, id="ceil-padding-counted",
         torch=lambda x: functional().avg_pool2d(x, 3, (2, 3), 1, ceil_mode=True)),
    *(
        case("AveragePool", (1, 2, 7, 8), kernel_shape=[2, 3], dilations=[2, 2], strides=[2, 2],
             pads=[1, 1, 1, 0], ceil_mode=ceil, count_include_pad=include,
             id=f"dilated-{'ceil' if ceil else 'floor'}-{'all' if include else 'inside'}")
        for ceil in (0, 1)
        for include in (0, 1)
    ),
    case("AveragePool", (1, 2, 5, 6), kernel_shape=[2, 3], auto_pad="SAME_UPPER", strides=[2, 2],
         id="same-upper"),
    case("AveragePool", (1, 2, 5, 6), kernel_shape=[2, 3], auto_pad="SAME_LOWER", id="same-lower"),
    case("AveragePool", (2, 3, 8), kernel_shape=[3], strides=[2], id="1d",
         torch=lambda x: functional().avg_pool1d(x, 3, 2)),
    case("AveragePool", (1, 2, 4, 5, 6), kernel_shape=[2, 3, 2], strides=[1, 2, 1], id="3d", order=1,
         torch=lambda x: functional().avg_pool3d(x, (2, 3, 2), (1, 2, 1))),
    case("GlobalAveragePool", (2, 3, 4, 5), torch=lambda x: x.mean((2, 3), keepdim=True)),
    case("GlobalAveragePool", (2, 3, 5), id="1d", torch=lambda x: x.mean(2, keepdim=True)),
    case("MaxPool", spaced(2, 3, 6, 4), kernel_shape=[2, 2], strides=[2, 2], id="tiles",
         torch=lambda x: functional().max_pool2d(x, 2)),
    case("MaxPool", spaced(2, 3, 7, 5), kernel_shape=[3, 2], strides=[3, 2], id="tiles-left-over",
         torch=lambda x: functional().max_pool2d(x, (3, 2))),
    case("MaxPool", spaced(2, 3, 7, 5), kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1],
         id="overlapping"),
    case("MaxPool", spaced(2, 3, 7, 6), kernel_shape=[3, 3], pads=[1, 1, 1, 1], id="stride-one",
         torch=lambda x: functional().max_pool2d(x, 3, 1, 1)),
    case("MaxPool", spaced(2, 2, 6, 7), kernel_shape=[3, 2], strides=[2, 2], ceil_mode=1, id="ceil",
         torch=lambda x: functional().max_pool2d(x, (3, 2), 2, ceil_mode=True)),
    case("MaxPool", spaced(1, 2, 7, 8), kernel_shape=[2, 3], dilations=[3, 2], strides=[2, 1],
         id="dilated", torch=lambda x: functional().max_pool2d(x, (2, 3), (2, 1), dilation=(3, 2))),
    case("MaxPool", spaced(1, 2, 5, 6), kernel_shape=[3, 2], auto_pad="SAME_LOWER", id="same-lower"),
    case("MaxPool", spaced(1, 2, 5, 6), kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER",
         id="same-upper"),
    case("MaxPool", spaced(1, 2, 5, 6), kernel_shape=[3, 2], strides=[2, 1], storage_order=1,
         id="column-major", torch=lambda x: functional().max_pool2d(x, (3, 2), (2, 1))),
    case("MaxPool", spaced(1, 2, 6, 4), kernel_shape=[2, 2], strides=[2, 2], outputs=2,
         id="indices-wanted"),
    case("MaxPool", spaced(2, 3, 9), kernel_shape=[3], strides=[2], id="1d",
         torch=lambda x: functional().max_pool1d(x, 3, 2)),
    case("MaxPool", spaced(1, 2, 4, 5, 6), kernel_shape=[2, 2, 2], dilations=[2, 1, 2], id="3d-dilated",
         torch=lambda x: functional().max_pool3d(x, 2, 1, dilation=(2, 1, 2))),
    case("MaxPool", spaced(1, 2, 4, 6, 2), kernel_shape=[2, 3, 2], strides=[2, 3, 2], id="3d-tiles",
         torch=lambda x: functional().max_pool3d(x, (2, 3, 2))),
    case("GlobalMaxPool", spaced(2, 3, 4, 5), torch=lambda x: x.amax((2, 3), keepdim=True)),
    case("GlobalMaxPool", spaced(2, 3, 5), id="1d", torch=lambda x: x.amax(2, keepdim=True)),
    case("MaxUnpool", (1, 1, 2, 2), ints([[[[1, 3], [8, 14]]]]), kernel_shape=[2, 2], strides=[2, 2],
         torch=lambda x: functional().max_unpool2d(x, torch().tensor([[[[1, 3], [8, 14]]]]), 2)),
    case("MaxUnpool", (1, 1, 2, 2), ints([[[[5, 7], [13, 15]]]]), ints(1, 1, 5, 5), kernel_shape=[2, 2],
         strides=[2, 2], id="output-shape", torch=lambda x: functional().pad(
             functional().max_unpool2d(x, torch().tensor([[[[5, 7], [13, 15]]]]), 2), (0, 1, 0, 1))),
    case("LpPool", (2, 3, 6, 7), kernel_shape=[3, 2], strides=[2, 1], low=0.3, id="p2",
         torch=lambda x: functional().lp_pool2d(x, 2, (3, 2), (2, 1))),
    case("LpPool", spaced(1, 2, 5, 6), kernel_shape=[2, 3], p=1, pads=[1, 0, 0, 1], id="p1-padded"),
    case("LpPool", spaced(1, 2, 5, 6), kernel_shape=[2, 3], p=3, strides=[2, 2], ceil_mode=1, id="p3-ceil"),
    case("LpPool", spaced(1, 2, 7, 8), kernel_shape=[2, 3], p=4, dilations=[2, 2], id="p4-dilated"),
    case("LpPool", spaced(1, 2, 5, 6), kernel_shape=[2, 3], auto_pad="SAME_UPPER", strides=[2, 2],
         id="same-upper"),
    case("LpPool", spaced(2, 3, 7), kernel_shape=[3], id="1d"),
    case("GlobalLpPool", spaced(2, 3, 4, 5), torch=lambda x: torch().linalg.vector_norm(x, 2, (2, 3), True)),
    case("GlobalLpPool", spaced(2, 3, 5), p=3, id="p3",
         torch=lambda x: torch().linalg.vector_norm(x, 3, 2, True)),
    case("MaxRoiPool", spaced(2, 3, 7, 9), np.array([[0, 1, 2, 6, 5], [1, 0, 0, 8, 6], [0, 4, 1, 9, 9.0]]),
         pooled_shape=[2, 3], spatial_scale=0.9, wrt=[0]),
]

NORMALISATION = [
    case("BatchNormalization", (3, 2, 4, 5), (2,), (2,), (2,), np.array([0.7, 1.9]), id="inference",
         torch=lambda x, w, b, m, v: (x - m[:, None, None]) * (v + float(np.float32(1e-5)))[:, None, None] ** -0.5 * w[:, None, None]
         + b[:, None, None]),
    case("BatchNormalization", (5, 3), (3,), (3,), (3,), np.array([0.7, 1.9, 1.1]), epsilon=0.1,
         id="inference-2d"),
    case("BatchNormalization", (3, 2, 4, 5), (2,), (2,), (2,), (2,), training_mode=1, id="training",
         wrt=[0, 1, 2], low=0.5,
         torch=lambda x, w, b, m, v: functional().batch_norm(x, None, None, w, b, True)),
    case("BatchNormalization", (6, 3), (3,), (3,), (3,), (3,), training_mode=1, id="training-2d",
         wrt=[0, 1, 2], torch=lambda x, w, b, m, v: functional().batch_norm(x, None, None, w, b, True)),
    case("BatchNormalization", (2, 3, 5), (3,), (3,), (3,), (3,), training_mode=1, momentum=0.0, outputs=3,
         id="batch-statistics", wrt=[0, 1, 2],
         torch=lambda x, w, b, m, v: (
             functional().batch_norm(x, None, None, w, b, True),
             x.mean((0, 2)),
             x.var((0, 2), unbiased=False),
         )),
    case("LayerNormalization", (2, 3, 5), (5,), (5,), id="bias",
         torch=lambda x, w, b: functional().layer_norm(x, (5,), w, b)),
    case("LayerNormalization", (2, 3, 5), (5,), id="no-bias",
         torch=lambda x, w: functional().layer_norm(x, (5,), w)),
    case("LayerNormalization", (2, 3, 4), (3, 4), (3, 4), axis=1, epsilon=0.1, id="two-axes",
         torch=lambda x, w, b: functional().layer_norm(x, (3, 4), w, b, float(np.float32(0.1)))),
    case("LayerNormalization", (2, 3, 4), (4,), (1,), axis=-2, id="broadcast-scale"),
    case("LayerNormalization", (3, 5), (5,), (5,), outputs=3, id="statistics", tol=3e-2, order=1),
    case("RMSNormalization", (2, 3, 5), (5,),
         torch=lambda x, w: functional().rms_norm(x, (5,), w, float(np.float32(1e-5)))),
    case("RMSNormalization", (2, 3, 4), (3, 4), axis=1, epsilon=0.1, id="two-axes",
         torch=lambda x, w: functional().rms_norm(x, (3, 4), w, float(np.float32(0.1)))),
    case("InstanceNormalization", (2, 3, 4, 5), (3,), (3,),
         torch=lambda x, w, b: functional().instance_norm(x, weight=w, bias=b)),
    case("InstanceNormalization", (2, 3, 7), (3,), (3,), epsilon=0.1, id="1d",
         torch=lambda x, w, b: functional().instance_norm(x, weight=w, bias=b, eps=float(np.float32(0.1)))),
    case("GroupNormalization", (2, 6, 3, 4), (6,), (6,), num_groups=2, stash_type=11,
         torch=lambda x, w, b: functional().group_norm(x, 2, w, b, float(np.float32(1e-5)))),
    case("GroupNormalization", (2, 4, 5), (4,), (4,), num_groups=4, epsilon=0.1, stash_type=11, id="1d",
         torch=lambda x, w, b: functional().group_norm(x, 4, w, b, float(np.float32(0.1)))),
    case("LRN", (2, 7, 3, 4), size=3, alpha=0.3, beta=0.75, bias=1.5, id="odd"),
    case("LRN", (2, 7, 3), size=4, alpha=0.3, beta=0.5, bias=1.0, id="even"),
    case("LRN", (2, 3, 5, 4), size=9, id="wider-than-the-channels"),
    case("LpNormalization", (2, 3, 5), id="p2", torch=lambda x: functional().normalize(x, 2, -1)),
    case("LpNormalization", (2, 3, 5), p=1, axis=1, id="p1",
         torch=lambda x: functional().normalize(x, 1, 1)),
    case("MeanVarianceNormalization", (3, 2, 4, 5), torch=lambda x: (
        (x - x.mean((0, 2, 3), keepdim=True)) / (x.std((0, 2, 3), unbiased=False, keepdim=True) + 1e-9))),
    case("MeanVarianceNormalization", (3, 2, 4), axes=[2], id="axes"),
]


def attend(q: Any, k: Any, v: Any, mask: Any = None, **keywords: Any) -> Any:
    return functional().scaled_dot_product_attention(q, k, v, mask, **keywords)


SEEN = np.random.default_rng(5).random((3, 5)) < 0.7
SEEN[:, 0] = True

ATTENTION = [
    case("Attention", (2, 3, 4, 16), (2, 3, 5, 16), (2, 3, 5, 7), torch=attend),
    case("Attention", (2, 3, 12), (2, 5, 12), (2, 5, 8), q_num_heads=2, kv_num_heads=2, id="3d", symbolic=False),
    case("Attention", (2, 4, 3, 6), (2, 2, 5, 6), (2, 2, 5, 7), id="shared-heads", scale=0.25,
         torch=lambda q, k, v: attend(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), scale=0.25)),
    case("Attention", (2, 3, 24), (2, 5, 12), (2, 5, 6), q_num_heads=4, kv_num_heads=2, scale=0.3,
         id="3d-shared-heads", symbolic=False),
    case("Attention", (2, 3, 4, 6), (2, 3, 4, 6), (2, 3, 4, 7), is_causal=1, id="causal", scale=0.25,
         torch=lambda q, k, v: attend(q, k, v, is_causal=True, scale=0.25)),
    case("Attention", (2, 3, 3, 6), (2, 3, 5, 6), (2, 3, 5, 7), SEEN, id="boolean-mask", scale=0.25,
         torch=lambda q, k, v: attend(q, k, v, torch().tensor(SEEN), scale=0.25)),
    case("Attention", (2, 3, 3, 6), (2, 3, 5, 6), (2, 3, 5, 7), (3, 1, 5), id="float-mask", scale=0.25,
         torch=lambda q, k, v, m: attend(q, k, v, m, scale=0.25)),
    case("Attention", (2, 3, 3, 6), (2, 3, 5, 6), (2, 3, 5, 7), (2, 1, 3, 4), id="short-mask", symbolic=False),
    case("Attention", (2, 3, 4, 6), (2, 3, 5, 6), (2, 3, 5, 7), softcap=2.0, scale=1.1, id="softcap"),
    case("Attention", (1, 2, 3, 6), (1, 2, 3, 6), (1, 2, 3, 7), None, (1, 2, 2, 6), (1, 2, 2, 7), outputs=3,
         is_causal=1, id="past"),
    case("Attention", (2, 2, 3, 6), (2, 2, 5, 6), (2, 2, 5, 7), None, None, None, ints(5, 2), id="padding"),
    case("Attention", (1, 2, 5, 6), (1, 2, 6, 6), (1, 2, 6, 7), left_window_size=1, right_window_size=2,
         id="window"),
    *(
        case("Attention", nodes=f"y0, , , y1 = Attention<qk_matmul_output_mode={mode}, softcap={cap}>"
             "(x0, x1, x2, x3)", outputs=2, id=f"scores-{mode}", symbolic=False, *((1, 2, 3, 6), (1, 2, 5, 6), (1, 2, 5, 7), (3, 5)))
        for mode, cap in ((0, 0.0), (1, 2.0), (2, 2.0), (3, 2.0))
    ),
    case("RotaryEmbedding", (2, 3, 4, 6), (7, 3), (7, 3), ints([0, 2, 6, 2], [1, 1, 5, 3])),
    case("RotaryEmbedding", (2, 3, 4, 8), (2, 4, 3), (2, 4, 3), rotary_embedding_dim=6, id="partial"),
    case("RotaryEmbedding", (2, 4, 18), (7, 3), (7, 3), ints([0, 2, 6, 2], [1, 1, 5, 3]), num_heads=3,
         interleaved=1, id="3d-interleaved"),
    case("LinearAttention", (2, 4, 6), (2, 4, 6), (2, 4, 8), (2, 2, 3, 4), (2, 4, 6), (2, 4, 2), outputs=2,
         q_num_heads=2, kv_num_heads=2, tol=2e-2, order=1, id="gated-delta", low=-0.5, high=0.5),
    case("LinearAttention", (2, 4, 6), (2, 4, 6), (2, 4, 8), outputs=2, update_rule="linear", tol=2e-2,
         q_num_heads=2, kv_num_heads=2, order=1, id="linear", low=-0.5, high=0.5),
]

SIMPLE = [
    case("Dropout", (2, 3), np.array(0.4), id="inference", wrt=[0], torch=lambda x, r: x * 1),
    case("Dropout", (2, 3), np.array(0.4), np.array(False), id="not-training", wrt=[0], torch=lambda x, r: x * 1),
    case("Flatten", (2, 3, 4), axis=2, torch=lambda x: x.reshape(6, 4)),
    case("Flatten", (2, 3, 4), axis=0, id="all", torch=lambda x: x.reshape(1, 24)),
    case("Flatten", (2, 3, 4), axis=-1, id="negative-axis", torch=lambda x: x.reshape(6, 4)),
    case("Shrink", spaced(2, 12), lambd=0.7, id="hard", torch=lambda x: functional().hardshrink(x, 0.7)),
    case("Shrink", spaced(2, 12), lambd=0.7, bias=0.7, id="soft",
         torch=lambda x: functional().softshrink(x, float(np.float32(0.7)))),
]

CASES: list[Case] = [*CONVOLUTION, *POOLING, *NORMALISATION, *ATTENTION, *SIMPLE]
