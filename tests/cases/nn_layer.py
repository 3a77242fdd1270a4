"""Cases of ONNX's nn family: normalisation and attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.testing import Case, case

from .nn import functional, ints, torch

NORMALISATION = [
    case(
        "BatchNormalization",
        (3, 2, 4, 5),
        (2,),
        (2,),
        (2,),
        np.array([0.7, 1.9]),
        id="inference",
        torch=lambda x, w, b, m, v: (
            (x - m[:, None, None])
            * (v + float(np.float32(1e-5)))[:, None, None] ** -0.5
            * w[:, None, None]
            + b[:, None, None]
        ),
    ),
    case(
        "BatchNormalization",
        (5, 3),
        (3,),
        (3,),
        (3,),
        np.array([0.7, 1.9, 1.1]),
        epsilon=0.1,
        id="inference-2d",
    ),
    case(
        "BatchNormalization",
        (3, 2, 4, 5),
        (2,),
        (2,),
        (2,),
        (2,),
        training_mode=1,
        id="training",
        wrt=[0, 1, 2],
        low=0.5,
        torch=lambda x, w, b, m, v: functional().batch_norm(x, None, None, w, b, True),
    ),
    case(
        "BatchNormalization",
        (6, 3),
        (3,),
        (3,),
        (3,),
        (3,),
        training_mode=1,
        id="training-2d",
        wrt=[0, 1, 2],
        torch=lambda x, w, b, m, v: functional().batch_norm(x, None, None, w, b, True),
    ),
    case(
        "BatchNormalization",
        (2, 3, 5),
        (3,),
        (3,),
        (3,),
        (3,),
        training_mode=1,
        momentum=0.0,
        outputs=3,
        id="batch-statistics",
        wrt=[0, 1, 2],
        torch=lambda x, w, b, m, v: (
            functional().batch_norm(x, None, None, w, b, True),
            x.mean((0, 2)),
            x.var((0, 2), unbiased=False),
        ),
    ),
    case(
        "LayerNormalization",
        (2, 3, 5),
        (5,),
        (5,),
        id="bias",
        torch=lambda x, w, b: functional().layer_norm(x, (5,), w, b),
    ),
    case(
        "LayerNormalization",
        (2, 3, 5),
        (5,),
        id="no-bias",
        torch=lambda x, w: functional().layer_norm(x, (5,), w),
    ),
    case(
        "LayerNormalization",
        (2, 3, 4),
        (3, 4),
        (3, 4),
        axis=1,
        epsilon=0.1,
        id="two-axes",
        torch=lambda x, w, b: functional().layer_norm(x, (3, 4), w, b, float(np.float32(0.1))),
    ),
    case("LayerNormalization", (2, 3, 4), (4,), (1,), axis=-2, id="broadcast-scale"),
    case("LayerNormalization", (3, 5), (5,), (5,), outputs=3, id="statistics", step=1e-3),
    case(
        "RMSNormalization",
        (2, 3, 5),
        (5,),
        torch=lambda x, w: functional().rms_norm(x, (5,), w, float(np.float32(1e-5))),
    ),
    case(
        "RMSNormalization",
        (2, 3, 4),
        (3, 4),
        axis=1,
        epsilon=0.1,
        id="two-axes",
        torch=lambda x, w: functional().rms_norm(x, (3, 4), w, float(np.float32(0.1))),
    ),
    case(
        "InstanceNormalization",
        (2, 3, 4, 5),
        (3,),
        (3,),
        torch=lambda x, w, b: functional().instance_norm(x, weight=w, bias=b),
    ),
    case(
        "InstanceNormalization",
        (2, 3, 7),
        (3,),
        (3,),
        epsilon=0.1,
        id="1d",
        torch=lambda x, w, b: functional().instance_norm(
            x, weight=w, bias=b, eps=float(np.float32(0.1))
        ),
    ),
    case(
        "GroupNormalization",
        (2, 6, 3, 4),
        (6,),
        (6,),
        num_groups=2,
        stash_type=11,
        torch=lambda x, w, b: functional().group_norm(x, 2, w, b, float(np.float32(1e-5))),
    ),
    case(
        "GroupNormalization",
        (2, 4, 5),
        (4,),
        (4,),
        num_groups=4,
        epsilon=0.1,
        stash_type=11,
        id="1d",
        torch=lambda x, w, b: functional().group_norm(x, 4, w, b, float(np.float32(0.1))),
    ),
    case("LRN", (2, 7, 3, 4), size=3, alpha=0.3, beta=0.75, bias=1.5, id="odd"),
    case("LRN", (2, 7, 3), size=4, alpha=0.3, beta=0.5, bias=1.0, id="even"),
    case("LRN", (2, 3, 5, 4), size=9, id="wider-than-the-channels"),
    case("LpNormalization", (2, 3, 5), id="p2", torch=lambda x: functional().normalize(x, 2, -1)),
    case(
        "LpNormalization",
        (2, 3, 5),
        p=1,
        axis=1,
        id="p1",
        torch=lambda x: functional().normalize(x, 1, 1),
    ),
    case(
        "MeanVarianceNormalization",
        (3, 2, 4, 5),
        torch=lambda x: (
            (x - x.mean((0, 2, 3), keepdim=True))
            / (x.std((0, 2, 3), unbiased=False, keepdim=True) + 1e-9)
        ),
    ),
    case("MeanVarianceNormalization", (3, 2, 4), axes=[2], id="axes"),
]


def attend(q: Any, k: Any, v: Any, mask: Any = None, **keywords: Any) -> Any:
    return functional().scaled_dot_product_attention(q, k, v, mask, **keywords)


SEEN = np.random.default_rng(5).random((3, 5)) < 0.7
SEEN[:, 0] = True

ATTENTION = [
    case("Attention", (2, 3, 4, 16), (2, 3, 5, 16), (2, 3, 5, 7), torch=attend),
    case(
        "Attention",
        (2, 3, 12),
        (2, 5, 12),
        (2, 5, 8),
        q_num_heads=2,
        kv_num_heads=2,
        id="3d",
        symbolic=False,
    ),
    case(
        "Attention",
        (2, 4, 3, 6),
        (2, 2, 5, 6),
        (2, 2, 5, 7),
        id="shared-heads",
        scale=0.25,
        torch=lambda q, k, v: attend(
            q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), scale=0.25
        ),
    ),
    case(
        "Attention",
        (2, 3, 24),
        (2, 5, 12),
        (2, 5, 6),
        q_num_heads=4,
        kv_num_heads=2,
        scale=0.3,
        id="3d-shared-heads",
        symbolic=False,
    ),
    case(
        "Attention",
        (2, 3, 4, 6),
        (2, 3, 4, 6),
        (2, 3, 4, 7),
        is_causal=1,
        id="causal",
        scale=0.25,
        torch=lambda q, k, v: attend(q, k, v, is_causal=True, scale=0.25),
    ),
    case(
        "Attention",
        (2, 3, 3, 6),
        (2, 3, 5, 6),
        (2, 3, 5, 7),
        SEEN,
        id="boolean-mask",
        scale=0.25,
        torch=lambda q, k, v: attend(q, k, v, torch().tensor(SEEN), scale=0.25),
    ),
    case(
        "Attention",
        (2, 3, 3, 6),
        (2, 3, 5, 6),
        (2, 3, 5, 7),
        (3, 1, 5),
        id="float-mask",
        scale=0.25,
        torch=lambda q, k, v, m: attend(q, k, v, m, scale=0.25),
    ),
    case(
        "Attention",
        (2, 3, 3, 6),
        (2, 3, 5, 6),
        (2, 3, 5, 7),
        (2, 1, 3, 4),
        id="short-mask",
        symbolic=False,
    ),
    case(
        "Attention", (2, 3, 4, 6), (2, 3, 5, 6), (2, 3, 5, 7), softcap=2.0, scale=1.1, id="softcap"
    ),
    case(
        "Attention",
        (1, 2, 3, 6),
        (1, 2, 3, 6),
        (1, 2, 3, 7),
        None,
        (1, 2, 2, 6),
        (1, 2, 2, 7),
        outputs=3,
        is_causal=1,
        id="past",
    ),
    case(
        "Attention",
        (2, 2, 3, 6),
        (2, 2, 5, 6),
        (2, 2, 5, 7),
        None,
        None,
        None,
        ints(5, 2),
        id="padding",
    ),
    case(
        "Attention",
        (1, 2, 5, 6),
        (1, 2, 6, 6),
        (1, 2, 6, 7),
        left_window_size=1,
        right_window_size=2,
        id="window",
    ),
    *(
        case(
            "Attention",
            (1, 2, 3, 6),
            (1, 2, 5, 6),
            (1, 2, 5, 7),
            (3, 5),
            nodes=f"y0, , , y1 = Attention<qk_matmul_output_mode={mode}, softcap={cap}>"
            "(x0, x1, x2, x3)",
            outputs=2,
            id=f"scores-{mode}",
            symbolic=False,
        )
        for mode, cap in ((0, 0.0), (1, 2.0), (2, 2.0), (3, 2.0))
    ),
    case("RotaryEmbedding", (2, 3, 4, 6), (7, 3), (7, 3), ints([0, 2, 6, 2], [1, 1, 5, 3])),
    case(
        "RotaryEmbedding", (2, 3, 4, 8), (2, 4, 3), (2, 4, 3), rotary_embedding_dim=6, id="partial"
    ),
    case(
        "RotaryEmbedding",
        (2, 4, 18),
        (7, 3),
        (7, 3),
        ints([0, 2, 6, 2], [1, 1, 5, 3]),
        num_heads=3,
        interleaved=1,
        id="3d-interleaved",
    ),
    case(
        "LinearAttention",
        (2, 4, 6),
        (2, 4, 6),
        (2, 4, 8),
        (2, 2, 3, 4),
        (2, 4, 6),
        (2, 4, 2),
        outputs=2,
        q_num_heads=2,
        kv_num_heads=2,
        step=1e-3,
        id="gated-delta",
        low=-0.5,
        high=0.5,
    ),
    case(
        "LinearAttention",
        (2, 4, 6),
        (2, 4, 6),
        (2, 4, 8),
        outputs=2,
        update_rule="linear",
        step=1e-3,
        q_num_heads=2,
        kv_num_heads=2,
        id="linear",
        low=-0.5,
        high=0.5,
    ),
]

CASES: list[Case] = [*NORMALISATION, *ATTENTION]
