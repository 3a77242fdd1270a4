"""Nodes as older opsets write them: layers, and bumps without an adapter; see `opsets.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.helper

from tests.cases.opsets import BOOL, INT32, INT64, LEGACY, STRING, ULPS, f32, i64, old

# -- nn and object detection ------------------------------------------------------------------


def pooled(x: np.ndarray, p: float, size: int = 2) -> np.ndarray:
    windows = np.lib.stride_tricks.sliding_window_view(x, (size, size), (2, 3))
    return (np.abs(windows) ** p).sum((-1, -2)) ** (1 / p)


def whole(x: np.ndarray, p: float) -> np.ndarray:
    return (np.abs(x) ** p).sum((2, 3), keepdims=True) ** (1 / p)


def normalized(x: np.ndarray, scale: Any, bias: Any, mean: Any, var: Any, eps: float = 1e-5) -> Any:
    return (x - mean) / np.sqrt(var + eps) * scale + bias


def batch_norm(x: np.ndarray, *parameters: np.ndarray) -> np.ndarray:
    return normalized(x, *(v[:, None] for v in parameters))


def trained(x: np.ndarray, scale: Any, bias: Any, mean: Any, var: Any) -> list[np.ndarray]:
    m, v = x.mean((0, 2)), x.var((0, 2))
    running = [mean * 0.9 + m * 0.1, var * 0.9 + v * 0.1]
    return [batch_norm(x, scale, bias, m, v), *running, m, 1 / np.sqrt(v + 1e-5)]


def trained_elements(x: np.ndarray, *parameters: np.ndarray) -> np.ndarray:
    return normalized(x, *parameters[:2], x.mean(0), x.var(0))


def instance_norm(x: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> np.ndarray:
    mean, var = x.mean((2, 3), keepdims=True), x.var((2, 3), keepdims=True)
    return normalized(x, scale[:, None, None], bias[:, None, None], mean, var)


def dropped(inputs: list[np.ndarray], outputs: list[np.ndarray]) -> None:
    (x,), (y, mask) = inputs, outputs
    assert mask.dtype == x.dtype and set(np.unique(mask)) == {0.0, 1.0}
    np.testing.assert_allclose(y, x * mask / 0.75, rtol=1e-6)
    assert 0.65 < mask.mean() < 0.85  # 2000 draws: five standard deviations


C = (3,)
VAR = f32(0.5, 1.5, 2.0)
VARS = np.linspace(0.5, 2, 12, dtype=np.float32).reshape(3, 4)
NN = [
    *(
        old(
            "LpPool",
            1,
            (1, 2, 4, 4),
            expect=lambda x, p=p: pooled(x, p),
            tol=ULPS,
            p=p,
            id=f"{p}",
            kernel_shape=[2, 2],
        )
        for p in (1.0, 2.0, 3.0, 2.5)
    ),
    *(
        old(
            "GlobalLpPool",
            1,
            (1, 2, 4, 4),
            expect=lambda x, p=p: whole(x, p),
            tol=ULPS,
            p=p,
            id=f"{p}",
        )
        for p in (1.0, 2.0, 2.5)
    ),
    old("GlobalLpPool", 1, (1, 2, 4, 4), expect=lambda x: whole(x, 2.0), tol=ULPS, id="default"),
    old("LpPool", 2, (1, 2, 5, 5), kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1], p=3),
    old(
        "BatchNormalization",
        1,
        (2, 3, 4),
        C,
        C,
        C,
        VAR,
        expect=batch_norm,
        tol=1e-5,
        is_test=1,
        **LEGACY,
    ),
    old(
        "BatchNormalization",
        6,
        (2, 3, 4),
        C,
        C,
        C,
        VAR,
        expect=trained,
        tol=1e-5,
        outputs=5,
        id="training",
    ),
    old(
        "BatchNormalization",
        6,
        (2, 3, 4),
        C,
        C,
        C,
        VAR,
        tol=1e-5,
        id="training-alone",
        expect=lambda *a: trained(*a)[0],
    ),
    old(
        "BatchNormalization",
        6,
        (4, 3, 4),
        *[(3, 4)] * 3,
        VARS,
        tol=1e-5,
        spatial=0,
        expect=trained_elements,
        id="training-elements",
    ),
    old("BatchNormalization", 7, (2, 3, 4), C, C, C, VAR),
    old(
        "BatchNormalization", 7, (2, 3, 4), *[(3, 4)] * 3, VARS, spatial=0, tol=1e-5, id="elements"
    ),
    old("BatchNormalization", 7, (2, 3), C, C, C, VAR, spatial=0, tol=1e-5, id="elements-flat"),
    *(
        old(
            "BatchNormalization",
            since,
            (2, 3, 4),
            C,
            C,
            C,
            VAR,
            outputs=5,
            momentum=0.7,
            tol=1e-5,
            epsilon=1e-3,
            id="training",
        )
        for since in (7, 9)
    ),
    old("BatchNormalization", 9, (2, 3, 4), C, C, C, VAR),
    old("BatchNormalization", 14, (2, 3, 4), C, C, C, VAR, outputs=3, training_mode=1),
    old("InstanceNormalization", 1, (2, 3, 4, 4), C, C, expect=instance_norm, tol=1e-5, **LEGACY),
    old("Dropout", 1, (3, 4), expect=lambda x: x, is_test=1, **LEGACY),
    old("Dropout", 1, (40, 50), outputs=2, ratio=0.25, check=dropped, low=0.5, id="training"),
    old("Dropout", 6, (3, 4), expect=lambda x: x, is_test=1),
    old("Dropout", 6, (40, 50), outputs=2, ratio=0.25, check=dropped, low=0.5, id="training"),
    old("Dropout", 7, (3, 4), ratio=0.3),
    old("Dropout", 7, (3, 4), outputs=2, id="mask"),
    old("Dropout", 10, (3, 4), ratio=0.3),
    old("Dropout", 10, (3, 4), outputs=2, types=(1, BOOL), id="mask"),
    old("GroupNormalization", 18, (2, 6, 3), (3,), (3,), num_groups=3, tol=1e-5),
    old(
        "RoiAlign",
        10,
        (1, 2, 8, 8),
        f32([0.4, 0.7, 5.2, 6.1], [1, 1, 3, 3]),
        i64(0, 0),
        output_height=3,
        output_width=2,
        sampling_ratio=2,
        spatial_scale=0.8,
    ),
    old("RoiAlign", 10, (1, 2, 8, 8), f32([0.4, 0.7, 5.2, 6.1]), i64(0), mode="max", id="max"),
]

# -- recurrent --------------------------------------------------------------------------------


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def gru(x: np.ndarray, w: np.ndarray, r: np.ndarray) -> list[np.ndarray]:
    (wz, wr, wh), (rz, rr, rh) = np.split(w[0], 3), np.split(r[0], 3)
    h, out = np.zeros((x.shape[1], rz.shape[1]), np.float32), []
    for step in x:
        z, reset = sigmoid(step @ wz.T + h @ rz.T), sigmoid(step @ wr.T + h @ rr.T)
        new = np.tanh(step @ wh.T + (reset * h) @ rh.T)
        h = (1 - z) * new + z * h
        out.append(h[None])
    return [np.stack(out), h[None]]


def lstm(x: np.ndarray, w: np.ndarray, r: np.ndarray) -> list[np.ndarray]:
    h = c = np.zeros((x.shape[1], r.shape[2]), np.float32)
    out = []
    for step in x:
        i, o, f, g = np.split(step @ w[0].T + h @ r[0].T, 4, 1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        out.append(h[None])
    return [np.stack(out), h[None]]


def rnn(x: np.ndarray, w: np.ndarray, r: np.ndarray) -> list[np.ndarray]:
    h, out = np.zeros((x.shape[1], r.shape[2]), np.float32), []
    for step in x:
        h = np.tanh(step @ w[0].T + h @ r[0].T)
        out.append(h[None])
    return [np.stack(out), h[None]]


SEQUENCE = (4, 2, 3)
RNN = [
    old(
        "GRU",
        1,
        SEQUENCE,
        (1, 15, 3),
        (1, 15, 5),
        outputs=2,
        expect=gru,
        tol=1e-4,
        hidden_size=5,
        output_sequence=1,
    ),
    old(
        "GRU",
        1,
        SEQUENCE,
        (1, 15, 3),
        (1, 15, 5),
        outputs=2,
        expect=gru,
        tol=1e-4,
        hidden_size=5,
        direction="foward",
        id="misspelt",
    ),
    old(
        "GRU",
        3,
        SEQUENCE,
        (1, 15, 3),
        (1, 15, 5),
        outputs=2,
        expect=gru,
        tol=1e-4,
        hidden_size=5,
        output_sequence=1,
    ),
    old(
        "LSTM",
        1,
        SEQUENCE,
        (1, 20, 3),
        (1, 20, 5),
        outputs=2,
        expect=lstm,
        tol=1e-4,
        hidden_size=5,
        output_sequence=1,
    ),
    old(
        "RNN",
        1,
        SEQUENCE,
        (1, 5, 3),
        (1, 5, 5),
        outputs=2,
        expect=rnn,
        tol=1e-4,
        hidden_size=5,
        output_sequence=1,
    ),
    old("LSTM", 7, SEQUENCE, (1, 20, 3), (1, 20, 5), outputs=3, hidden_size=5, id="today"),
]

# -- ai.onnx.ml, and what was experimental ----------------------------------------------------

LABELS = ["cat", "dog", "owl"]
TREES = {
    "nodes_treeids": [0, 0, 0],
    "nodes_nodeids": [0, 1, 2],
    "nodes_featureids": [1, 0, 0],
    "nodes_values": [0.25, 0.0, 0.0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_truenodeids": [1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0],
}
ML = [
    old(
        "LabelEncoder",
        1,
        np.array(["owl", "emu", "cat"], object),
        types=(INT64,),
        default_int64=-7,
        classes_strings=LABELS,
        domain="ai.onnx.ml",
    ),
    old(
        "LabelEncoder",
        1,
        i64(2, 5, 0),
        types=(STRING,),
        default_string="none",
        id="back",
        classes_strings=LABELS,
        domain="ai.onnx.ml",
    ),
    old(
        "LabelEncoder",
        2,
        i64(2, 5, 0),
        keys_int64s=[0, 2],
        values_floats=[0.5, 1.5],
        default_float=9.0,
        domain="ai.onnx.ml",
    ),
    old(
        "TreeEnsembleRegressor",
        1,
        (4, 2),
        domain="ai.onnx.ml",
        n_targets=2,
        **TREES,
        target_treeids=[0, 0, 0],
        target_nodeids=[1, 1, 2],
        target_ids=[0, 1, 0],
        target_weights=[1.0, 2.0, 3.0],
    ),
    old(
        "TreeEnsembleClassifier",
        1,
        (4, 2),
        domain="ai.onnx.ml",
        outputs=2,
        types=(INT64, 1),
        **TREES,
        classlabels_int64s=[3, 8],
        class_treeids=[0, 0, 0],
        class_nodeids=[1, 1, 2],
        class_ids=[0, 1, 1],
        class_weights=[0.4, 0.6, 1.0],
    ),
]
EXPERIMENTAL = [
    old("Affine", 1, (2, 3), alpha=0.5, beta=2.0, tol=ULPS),
    old("ImageScaler", 1, (1, 3, 2, 2), scale=0.5, bias=[1.0, 2.0, 3.0], tol=ULPS),
    old("Scale", 1, (2, 3), scale=0.5),
    old("ScaledTanh", 1, (2, 3), alpha=0.5, beta=2.0, tol=ULPS),
    old("ParametricSoftplus", 1, (2, 3), alpha=0.5, beta=2.0, tol=ULPS),
    old("Crop", 1, (1, 2, 6, 7), border=[1, 2, 0, 1]),
    old("Crop", 1, (1, 2, 6, 7), border=[1, 2, 0, 0], scale=[3, 4], id="size"),
    *(
        old(
            "MeanVarianceNormalization",
            1,
            (2, 3, 4, 4),
            across_channels=across,
            tol=1e-4,
            normalize_variance=scaled,
            id=f"{across}-{scaled}",
        )
        for across in (0, 1)
        for scaled in (0, 1)
    ),
    old("DynamicSlice", 1, (4, 5), i64(1), i64(3), i64(1)),
]

# -- bumps without an adapter, whose new defaults must mean what there was before --------------


def averaged(x: np.ndarray) -> np.ndarray:
    """Over the pixels in a window of 3 x 3, without the padding."""

    def sums(x: np.ndarray) -> np.ndarray:
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (0, 1)))
        return np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3)).sum((-1, -2))

    return sums(x) / sums(np.ones_like(x))


IMAGE = (1, 2, 5, 6)
U8 = np.array([[0, 3, 200], [9, 128, 255]], np.uint8)
HEADS = {"q_num_heads": 2, "kv_num_heads": 2}
SAME = [
    *(
        old(op, 1, np.float32([[1, 3, 3], [2, 0, 0]]), axis=1, types=(INT64,))
        for op in ("ArgMax", "ArgMin")
    ),
    old("Attention", 23, (1, 3, 4), (1, 5, 4), (1, 5, 4), is_causal=1, tol=ULPS, **HEADS),
    old("AveragePool", 1, IMAGE, expect=averaged, tol=ULPS, kernel_shape=[3, 3], pads=[1, 0, 1, 1]),
    old(
        "AveragePool",
        10,
        IMAGE,
        kernel_shape=[3, 2],
        strides=[3, 3],
        pads=[0, 1, 1, 1],
        ceil_mode=1,
        id="ceil",
    ),
    old(
        "AveragePool",
        7,
        IMAGE,
        kernel_shape=[2, 2],
        auto_pad="SAME_LOWER",
        count_include_pad=1,
        tol=ULPS,
        id="same",
    ),
    old("Cast", 6, (2, 3), to=INT32, types=(INT32,)),
    old("CastLike", 15, (2, 3), i64(0), types=(INT64,)),
    old("Constant", 1, value=onnx.helper.make_tensor("v", 1, [2], [1.5, 2.5])),
    old("ConvTranspose", 1, (1, 2, 4, 4), (2, 3, 3, 3), strides=[2, 2], output_shape=[8, 8]),
    old(
        "ConvTranspose",
        1,
        (1, 2, 4, 4),
        (2, 3, 3, 3),
        strides=[2, 2],
        auto_pad="SAME_UPPER",
        id="same",
    ),
    old("DepthToSpace", 1, (1, 8, 2, 3), blocksize=2),
    old("DequantizeLinear", 10, U8, np.array(0.5, np.float32), np.array(128, np.uint8)),
    old("Flatten", 1, (2, 3, 4), axis=2),
    old("Gather", 1, (4, 3), np.array([[2, 0]]), axis=0),
    old("GatherND", 11, (2, 3, 4), np.array([[0, 2], [1, 0]])),
    old("Gemm", 7, (2, 3), (3, 4), (4,), tol=ULPS, id="today"),
    *(
        old(op, 7, SEQUENCE, (1, n * 5, 3), (1, n * 5, 5), outputs=2, hidden_size=5, id="today")
        for op, n in (("RNN", 1), ("LSTM", 4), ("GRU", 3))
    ),
    old("LpPool", 2, IMAGE, kernel_shape=[3, 2], strides=[2, 2], auto_pad="SAME_UPPER", id="same"),
    old("MaxPool", 1, IMAGE, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 0, 1, 1]),
    old(
        "MaxPool",
        8,
        IMAGE,
        kernel_shape=[2, 2],
        strides=[2, 2],
        outputs=2,
        types=(1, INT64),
        id="indices",
    ),
    old(
        "MaxPool",
        10,
        IMAGE,
        kernel_shape=[2, 2],
        strides=[3, 3],
        pads=[0, 0, 1, 1],
        ceil_mode=1,
        id="ceil",
    ),
    old("Mod", 10, i64(-7, 7, 5), i64(3, -3, 2), types=(INT64,)),
    old("OneHot", 9, i64(0, 2, 5), np.array(4), f32(0, 1)),
    old(
        "QuantizeLinear",
        10,
        (2, 3),
        np.array(0.02, np.float32),
        np.array(128, np.uint8),
        types=(onnx.TensorProto.UINT8,),
    ),
    old("Range", 11, np.array(1, np.float32), np.array(7, np.float32), np.array(2, np.float32)),
    old("Reshape", 5, (2, 6), i64(0, -1, 3), id="today"),
    old("ScatterElements", 11, (3, 3), np.array([[1, 0, 2]]), (1, 3)),
    old("ScatterND", 11, (4, 3), np.array([[2], [0]]), (2, 3)),
    old("Shape", 1, (2, 3), types=(INT64,)),
    old("SpaceToDepth", 1, (1, 2, 4, 6), blocksize=2),
    old("TopK", 10, (3, 5), i64(2), outputs=2, types=(1, INT64), id="today"),
]

MORE = [*NN, *RNN, *ML, *EXPERIMENTAL, *SAME]
