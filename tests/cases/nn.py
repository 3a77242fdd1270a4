"""Cases of ONNX's nn family: convolution, and what is simple. Sizes differ pairwise."""

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
    pairs = (
        [p for i in reversed(range(rank)) for p in (pads[i], pads[rank + i])] if pads else [0, 0]
    )
    return lambda x, w, *b: getattr(functional(), f"conv{rank}d")(
        functional().pad(x, pairs), w, *b, **keywords
    )


def transposed(rank: int, **keywords: Any) -> Any:
    return lambda x, w, *b: getattr(functional(), f"conv_transpose{rank}d")(x, w, *b, **keywords)


CONVOLUTION = [
    case("Conv", (2, 3, 5, 6), (4, 3, 3, 2), (4,), torch=conv(2), id="bias"),
    case(
        "Conv",
        (2, 9, 5, 6),
        (4, 9, 3, 2),
        pads=[1, 0, 1, 1],
        id="many-channels",
        torch=conv(2, (1, 0, 1, 1)),
    ),
    case(
        "Conv",
        (2, 9, 8, 7),
        (3, 9, 3, 2),
        strides=[2, 3],
        pads=[1, 1, 0, 2],
        id="strided",
        torch=conv(2, (1, 1, 0, 2), stride=(2, 3)),
    ),
    case(
        "Conv",
        (2, 9, 8, 7),
        (3, 9, 3, 2),
        strides=[3, 2],
        id="rows-left-over",
        torch=conv(2, stride=(3, 2)),
    ),
    case(
        "Conv",
        (2, 3, 8, 7),
        (4, 3, 3, 2),
        strides=[2, 3],
        pads=[1, 1, 0, 2],
        dilations=[2, 1],
        id="few-channels-dilated",
        torch=conv(2, (1, 1, 0, 2), stride=(2, 3), dilation=(2, 1)),
    ),
    case(
        "Conv",
        (2, 9, 8, 9),
        (3, 9, 2, 3),
        strides=[2, 1],
        dilations=[3, 2],
        pads=[2, 1, 1, 0],
        id="dilated",
        torch=conv(2, (2, 1, 1, 0), stride=(2, 1), dilation=(3, 2)),
    ),
    case(
        "Conv",
        (2, 2, 9, 8),
        (3, 2, 7, 6),
        strides=[2, 1],
        pads=[3, 3, 2, 1],
        id="large-kernel",
        torch=conv(2, (3, 3, 2, 1), stride=(2, 1)),
    ),
    case("Conv", (2, 5, 4, 3), (6, 5, 1, 1), (6,), id="pointwise", torch=conv(2)),
    case(
        "Conv",
        (2, 5, 6, 7),
        (4, 5, 1, 1),
        strides=[2, 3],
        id="pointwise-strided",
        torch=conv(2, stride=(2, 3)),
    ),
    case(
        "Conv",
        (2, 5, 4, 3),
        (4, 5, 1, 1),
        pads=[1, 0, 0, 2],
        id="pointwise-padded",
        torch=conv(2, (1, 0, 0, 2)),
    ),
    case(
        "Conv",
        (2, 6, 5, 7),
        (4, 3, 2, 3),
        group=2,
        pads=[1, 0, 0, 1],
        id="grouped",
        torch=conv(2, (1, 0, 0, 1), groups=2),
    ),
    case(
        "Conv",
        (2, 6, 5, 7),
        (4, 3, 2, 3),
        group=2,
        strides=[2, 2],
        dilations=[1, 2],
        pads=[1, 1, 0, 1],
        id="grouped-strided",
        torch=conv(2, (1, 1, 0, 1), groups=2, stride=2, dilation=(1, 2)),
    ),
    case(
        "Conv",
        (2, 3, 5, 7),
        (3, 1, 3, 2),
        (3,),
        group=3,
        pads=[1, 0, 1, 1],
        id="depthwise",
        torch=conv(2, (1, 0, 1, 1), groups=3),
    ),
    case(
        "Conv",
        (2, 3, 6, 7),
        (3, 1, 3, 2),
        group=3,
        strides=[2, 3],
        dilations=[1, 2],
        pads=[0, 1, 2, 3],
        id="depthwise-strided",
        torch=conv(2, (0, 1, 2, 3), groups=3, stride=(2, 3), dilation=(1, 2)),
    ),
    case(
        "Conv",
        (1, 2, 3, 15),
        (2, 1, 2, 1),
        group=2,
        pads=[1, 0, 0, 0],
        id="depthwise-wide",
        torch=conv(2, (1, 0, 0, 0), groups=2),
    ),
    case(
        "Conv",
        (2, 3, 6, 7),
        (6, 1, 3, 2),
        group=3,
        strides=[2, 2],
        id="depthwise-multiplied",
        torch=conv(2, groups=3, stride=2),
    ),
    case(
        "Conv",
        (2, 4, 9),
        (3, 4, 3),
        (3,),
        strides=[2],
        pads=[1, 2],
        dilations=[2],
        id="1d",
        torch=conv(1, (1, 2), stride=2, dilation=2),
    ),
    case("Conv", (2, 9, 8), (3, 9, 3), strides=[2], id="1d-many-channels", torch=conv(1, stride=2)),
    case(
        "Conv",
        (2, 4, 8),
        (6, 2, 3),
        group=2,
        pads=[2, 0],
        id="1d-grouped",
        torch=conv(1, (2, 0), groups=2),
    ),
    case(
        "Conv",
        (1, 2, 4, 5, 6),
        (3, 2, 2, 3, 2),
        strides=[1, 2, 2],
        pads=[1, 0, 1, 0, 1, 0],
        id="3d",
        torch=conv(3, (1, 0, 1, 0, 1, 0), stride=(1, 2, 2)),
    ),
    case("Conv", (2, 8, 3, 4, 3), (2, 8, 2, 2, 1), id="3d-many-channels", torch=conv(3)),
    case(
        "Conv",
        (1, 9, 5, 6, 5),
        (2, 9, 4, 5, 5),
        pads=[1, 2, 1, 1, 1, 1],
        strides=[2, 1, 1],
        id="3d-large-kernel",
        torch=conv(3, (1, 2, 1, 1, 1, 1), stride=(2, 1, 1)),
    ),
    case(
        "Conv",
        (1, 4, 3, 4, 5),
        (6, 2, 2, 1, 2),
        group=2,
        id="3d-grouped",
        torch=conv(3, groups=2),
    ),
    case(
        "Conv",
        (2, 3, 7, 6),
        (4, 3, 3, 2),
        auto_pad="SAME_UPPER",
        strides=[2, 2],
        id="same-upper",
        torch=conv(2, (1, 0, 1, 0), stride=2),
    ),
    case(
        "Conv",
        (2, 3, 7, 5),
        (4, 3, 3, 2),
        auto_pad="SAME_LOWER",
        strides=[2, 3],
        id="same-lower",
        torch=conv(2, (1, 0, 1, 0), stride=(2, 3)),
    ),
    case(
        "Conv",
        (2, 9, 7, 6),
        (2, 9, 2, 4),
        auto_pad="SAME_LOWER",
        id="same-lower-even",
        torch=conv(2, (1, 2, 0, 1)),
    ),
    case(
        "Conv",
        (2, 3, 7, 6),
        (4, 3, 3, 2),
        auto_pad="VALID",
        strides=[2, 2],
        id="valid",
        torch=conv(2, stride=2),
    ),
    case("ConvTranspose", (2, 3, 4, 5), (3, 4, 3, 2), (4,), id="bias", torch=transposed(2)),
    case(
        "ConvTranspose",
        (2, 3, 4, 5),
        (3, 9, 3, 2),
        strides=[2, 3],
        pads=[1, 0, 1, 0],
        output_padding=[1, 2],
        id="strided",
        torch=transposed(2, stride=(2, 3), padding=(1, 0), output_padding=(1, 2)),
    ),
    case(
        "ConvTranspose",
        (2, 4, 3, 5),
        (4, 3, 2, 3),
        group=2,
        strides=[2, 1],
        dilations=[2, 1],
        id="grouped-dilated",
        torch=transposed(2, groups=2, stride=(2, 1), dilation=(2, 1)),
    ),
    case(
        "ConvTranspose",
        (2, 3, 4, 5),
        (3, 2, 3, 2),
        pads=[0, 1, 2, 0],
        id="asymmetric",
        torch=lambda x, w: functional().conv_transpose2d(x, w)[:, :, :-2, 1:],
    ),
    case(
        "ConvTranspose",
        (2, 3, 4, 5),
        (3, 2, 1, 1),
        strides=[2, 1],
        output_padding=[1, 0],
        id="pointwise",
        torch=transposed(2, stride=(2, 1), output_padding=(1, 0)),
    ),
    case(
        "ConvTranspose",
        (2, 3, 4),
        (3, 2, 3),
        strides=[2],
        dilations=[3],
        output_padding=[2],
        id="padding-beyond-stride",
        torch=transposed(1, stride=2, dilation=3, output_padding=2),
    ),
    case(
        "ConvTranspose",
        (2, 3, 4),
        (3, 2, 3),
        (2,),
        strides=[2],
        id="1d",
        torch=transposed(1, stride=2),
    ),
    case(
        "ConvTranspose",
        (1, 2, 3, 2, 4),
        (2, 3, 2, 3, 2),
        strides=[2, 1, 2],
        id="3d",
        torch=transposed(3, stride=(2, 1, 2)),
    ),
    case(
        "ConvTranspose",
        (2, 3, 3, 4),
        (3, 2, 3, 3),
        strides=[3, 2],
        output_shape=[10, 8],
        id="output-shape",
    ),
    case(
        "ConvTranspose",
        (2, 3, 3, 4),
        (3, 2, 3, 3),
        strides=[3, 2],
        output_shape=[6, 7],
        auto_pad="SAME_UPPER",
        id="output-shape-cropped",
    ),
    case(
        "ConvTranspose",
        (2, 3, 3, 4),
        (3, 2, 3, 4),
        strides=[2, 2],
        auto_pad="SAME_UPPER",
        id="same-upper",
    ),
    case(
        "ConvTranspose",
        (2, 3, 3, 4),
        (3, 2, 4, 3),
        strides=[1, 2],
        auto_pad="SAME_LOWER",
        id="same-lower",
    ),
    case(
        "Col2Im",
        (2, 6, 16),
        ints(5, 4),
        ints(2, 1),
        id="2d",
        torch=lambda x: functional().fold(x, (5, 4), (2, 1)),
    ),
    case(
        "Col2Im",
        (1, 12, 9),
        ints(5, 5),
        ints(2, 3),
        strides=[2, 2],
        pads=[1, 1, 1, 1],
        id="strided",
        torch=lambda x: functional().fold(x, (5, 5), (2, 3), padding=1, stride=2),
    ),
    case(
        "Col2Im",
        (1, 8, 12),
        ints(5, 6),
        ints(2, 2),
        dilations=[2, 2],
        strides=[1, 1],
        id="dilated",
        torch=lambda x: functional().fold(x, (5, 6), 2, dilation=2),
    ),
    case("Col2Im", (1, 4, 12), ints(3, 2, 3), ints(1, 1, 2), id="3d"),
    case("Col2Im", (2, 6, 16), ints(5, 4), ints(2, 1), fed=True, id="block-known-when-run"),
    case(
        "DeformConv",
        (1, 2, 4, 5),
        (3, 2, 2, 3),
        (1, 12, 3, 3),
        (3,),
        low=-0.9,
        high=0.9,
        id="bias",
    ),
    case(
        "DeformConv",
        (2, 4, 5, 4),
        (2, 2, 2, 2),
        (2, 16, 3, 2),
        None,
        (2, 8, 3, 2),
        group=2,
        offset_group=2,
        strides=[2, 2],
        pads=[1, 0, 1, 1],
        low=-0.9,
        high=0.9,
        id="mask-groups",
    ),
    case(
        "CausalConvWithState",
        (2, 3, 5),
        (3, 1, 4),
        (3,),
        (2, 3, 3),
        outputs=2,
        id="state",
        symbolic=False,
        torch=lambda x, w, b, s: (
            functional().conv1d(torch().cat([s, x], 2), w, b, groups=3),
            torch().cat([s, x], 2)[:, :, -3:],
        ),
    ),
    case(
        "CausalConvWithState",
        (2, 3, 5),
        (3, 1, 4),
        outputs=2,
        activation="silu",
        id="silu",
        step=3e-3,
        symbolic=False,
    ),
]

SIMPLE = [
    case("Dropout", (2, 3), np.array(0.4), id="inference", wrt=[0], torch=lambda x, r: x * 1),
    case(
        "Dropout",
        (2, 3),
        np.array(0.4),
        np.array(False),
        id="not-training",
        wrt=[0],
        torch=lambda x, r: x * 1,
    ),
    case("Flatten", (2, 3, 4), axis=2, torch=lambda x: x.reshape(6, 4)),
    case("Flatten", (2, 3, 4), axis=0, id="all", torch=lambda x: x.reshape(1, 24)),
    case("Flatten", (2, 3, 4), axis=-1, id="negative-axis", torch=lambda x: x.reshape(6, 4)),
    case(
        "Shrink",
        spaced(2, 12),
        lambd=0.7,
        id="hard",
        torch=lambda x: functional().hardshrink(x, 0.7),
    ),
    case(
        "Shrink",
        spaced(2, 12),
        lambd=0.7,
        bias=0.7,
        id="soft",
        torch=lambda x: functional().softshrink(x, float(np.float32(0.7))),
    ),
]

CASES: list[Case] = [*CONVOLUTION, *SIMPLE]
