"""Cases of ONNX's tensor family. Sizes differ pairwise, so that a wrong permutation shows."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.testing import Case, case

LAST = np.iinfo(np.int64).max


def torch() -> Any:
    import torch

    return torch


def functional() -> Any:
    return torch().nn.functional


def ints(*values: Any) -> np.ndarray:
    return np.array(values, np.int64)


def scalar(value: int) -> np.ndarray:
    return np.array(value, np.int64)


LAYOUT = [
    case("Identity", (2, 3), torch=lambda x: x * 1),
    case("Cast", (2, 3), to=11, id="to-float64", torch=lambda x: x.double() * 1),
    case("CastLike", (2, 3), (1,), wrt=[0], id="same-type"),
    case("Reshape", (2, 3, 4), ints(4, 6), torch=lambda x: x.reshape(4, 6)),
    case(
        "Reshape", (2, 3, 4), ints(0, -1), id="zero-and-minus-one", torch=lambda x: x.reshape(2, 12)
    ),
    case("Reshape", (2, 3, 4), ints(4, 6), fed=True, id="shape-known-when-run"),
    case("Reshape", (0, 3, 4), ints(3, 4, 0), allowzero=1, id="empty-allowzero"),
    case("Reshape", (1,), np.zeros(0, np.int64), id="to-scalar", torch=lambda x: x.reshape(())),
    case("Squeeze", (1, 3, 1, 5), ints(0, -2), torch=lambda x: x.squeeze(2).squeeze(0)),
    case("Squeeze", (1, 3, 1, 5), id="no-axes"),
    case("Squeeze", (1, 3, 1, 5), ints(0, 2), fed=True, id="axes-known-when-run"),
    case("Unsqueeze", (3, 4), ints(0, -1), torch=lambda x: x[None, :, :, None]),
    case("Unsqueeze", (3, 4), ints(1, 2), fed=True, id="axes-known-when-run"),
    case("Transpose", (2, 3, 4), perm=[2, 0, 1], torch=lambda x: x.permute(2, 0, 1)),
    case("Transpose", (2, 3, 4), id="no-perm", torch=lambda x: x.permute(2, 1, 0)),
    case("Concat", (2, 3), (2, 1), (2, 4), axis=1, torch=lambda *x: torch().cat(x, 1)),
    case("Concat", (2, 3), (4, 3), axis=-2, id="negative-axis", torch=lambda *x: torch().cat(x, 0)),
    case("Concat", (2, 3), axis=0, id="one-input"),
    case("Split", (2, 6), outputs=3, axis=1, num_outputs=3, torch=lambda x: x.split(2, 1)),
    case(
        "Split",
        (2, 7),
        outputs=3,
        axis=1,
        num_outputs=3,
        id="uneven",
        torch=lambda x: x.split(3, 1),
    ),
    case(
        "Split", (7, 2), ints(2, 5), outputs=2, axis=-2, id="sizes", torch=lambda x: x.split((2, 5))
    ),
    case(
        "Split",
        (7, 2),
        ints(2, 1, 4),
        nodes="a, b, c = Split<axis=0>(x0, x1) y0 = Mul(b, b)",
        id="unused-outputs",
        torch=lambda x: x[2:3] ** 2,
    ),
    case("Tile", (2, 3), ints(2, 4), torch=lambda x: x.repeat(2, 4)),
    case("Tile", (2, 3, 4), ints(1, 3, 1), id="one-axis", torch=lambda x: x.repeat(1, 3, 1)),
    case("Tile", (2, 3), ints(3, 2), fed=True, id="repeats-known-when-run"),
    case("DepthToSpace", (2, 12, 3, 5), blocksize=2, id="DCR"),
    case(
        "DepthToSpace",
        (2, 12, 3, 5),
        blocksize=2,
        mode="CRD",
        id="CRD",
        torch=lambda x: functional().pixel_shuffle(x, 2),
    ),
    case("SpaceToDepth", (2, 3, 4, 6), blocksize=2, id="DCR"),
    case(
        "SpaceToDepth",
        (2, 3, 4, 6),
        blocksize=2,
        mode="CRD",
        id="CRD",
        torch=lambda x: functional().pixel_unshuffle(x, 2),
    ),
    case("Where", np.array([[True], [False]]), (2, 3), (2, 3), id="condition-broadcasts"),
    case(
        "Where",
        np.arange(6).reshape(2, 3) % 2 == 0,
        (3,),
        (2, 1),
        id="values-broadcast",
        torch=lambda x, y: torch().where(torch().arange(6).reshape(2, 3) % 2 == 0, x, y),
    ),
    case("Where", np.arange(3) > 0, (), (2, 3), fed=True, id="scalar-broadcasts"),
    case("Trilu", (3, 4), torch=lambda x: x.triu()),
    case("Trilu", (2, 3, 4), scalar(-1), upper=0, id="lower-k", torch=lambda x: x.tril(-1)),
    case("Trilu", (4, 3), scalar(7), id="k-out-of-range", torch=lambda x: x.triu(7)),
    case("ReverseSequence", (4, 3, 2), ints(4, 1, 2), id="time-first"),
    case("ReverseSequence", (3, 4, 2), ints(1, 3, 4), batch_axis=0, time_axis=1, id="batch-first"),
]

WINDOW = [
    case("Slice", (5, 6), ints(1), ints(4), ints(0), torch=lambda x: x[1:4]),
    case("Slice", (5, 6, 4), ints(0, 1), ints(3, LAST), id="no-axes", torch=lambda x: x[:3, 1:]),
    case("Slice", (5, 6), ints(-4, 1), ints(-1, 100), ints(0, -1), id="negative-and-beyond"),
    case(
        "Slice", (5, 7), ints(1), ints(7), ints(1), ints(3), id="step", torch=lambda x: x[:, 1:7:3]
    ),
    case("Slice", (5, 7), ints(100), ints(-100), ints(1), ints(-2), id="negative-step"),
    case("Slice", (5, 7), ints(-2, 0), ints(0, 7), ints(0, 1), ints(-1, 2), id="both-directions"),
    case("Slice", (5, 7), ints(4), ints(2), ints(0), id="empty"),
    case("Slice", (5, 7), ints(9), ints(12), ints(0), id="start-out-of-range"),
    case("Slice", (5, 7), ints(1, -6), ints(4, LAST), fed=True, id="bounds-known-when-run"),
    case("Slice", (5, 7), ints(6), ints(-9), ints(1), ints(-3), fed=True, id="all-known-when-run"),
    case("Slice", (5, 7), *(np.array([v], np.int32) for v in (-3, 5, 0)), id="int32"),
    case("Pad", (3, 4), ints(1, 0, 2, 3), torch=lambda x: functional().pad(x, (0, 3, 1, 2))),
    case("Pad", (3, 4), ints(1, 0, 2, 3), (), id="trainable-value"),
    case("Pad", (3, 4), ints(1, 2), (), ints(-1), id="axes"),
    case("Pad", (5, 6), ints(-1, 2, 1, -3), (), id="negative-pads"),
    case("Pad", (3, 4), ints(1, 0, 2, 3), (), fed=True, id="pads-known-when-run"),
    case(
        "Pad",
        (2, 1, 4, 5),
        ints(2, 1, 3, 2),
        None,
        ints(2, 3),
        mode="reflect",
        id="reflect",
        torch=lambda x: functional().pad(x, (1, 2, 2, 3), "reflect"),
    ),
    case(
        "Pad",
        (2, 1, 4, 5),
        ints(0, 0, 2, 6, 0, 0, 3, 1),
        mode="edge",
        id="edge",
        torch=lambda x: functional().pad(x, (6, 1, 2, 3), "replicate"),
    ),
    case(
        "Pad",
        (2, 1, 4, 5),
        ints(2, 1, 3, 2),
        None,
        ints(-2, -1),
        mode="wrap",
        id="wrap",
        torch=lambda x: functional().pad(x, (1, 2, 2, 3), "circular"),
    ),
    case("Pad", (5, 6), ints(-1, 2, 1, -3), mode="edge", id="edge-negative-pads"),
    case("Pad", (4, 5), ints(2, 1, 3, 2), None, fed=True, mode="reflect", id="reflect-when-run"),
    case("Pad", (4, 5), ints(2, 3), None, ints(1), fed=True, mode="wrap", id="wrap-axes-when-run"),
    case("CenterCropPad", (5, 8, 3), ints(8, 5, 3), id="crop-and-pad"),
    case("CenterCropPad", (5, 8, 3), ints(2, 6), axes=[0, -1], id="axes"),
    case("CenterCropPad", (5, 8), ints(8, 5), fed=True, id="shape-known-when-run"),
]

ROWS = ints([0, 2], [-1, 2], [1, 0])

GATHER = [
    case("Gather", (4, 3), ROWS, torch=lambda x: x[torch().tensor(ROWS)], id="embedding"),
    case("Gather", (4, 3), ROWS, fed=True, id="indices-known-when-run"),
    case("Gather", (4, 3), ROWS.astype(np.int32), fed=True, id="int32"),
    case(
        "Gather", (2, 4, 3), ROWS, axis=1, torch=lambda x: x[:, torch().tensor(ROWS)], id="axis-1"
    ),
    case("Gather", (2, 4, 3), ROWS, axis=-2, fed=True, id="negative-axis-known-when-run"),
    case("Gather", (2, 4, 3), scalar(2), axis=1, id="scalar", torch=lambda x: x[:, 2]),
    case("Gather", (2, 4, 3), scalar(-1), axis=2, id="scalar-from-end", torch=lambda x: x[..., -1]),
    case("Gather", (2, 4, 3), scalar(-1), axis=1, fed=True, id="scalar-known-when-run"),
    case("Gather", (4, 3), scalar(1), fed=True, id="scalar-row-known-when-run"),
    case("Gather", (2, 4), ints(1), axis=1, id="one-index"),
    case(
        "GatherElements",
        (3, 4),
        ints([0, -1, 1], [0, 0, 2]),
        axis=1,
        id="duplicates",
        torch=lambda x: x[:2].gather(1, torch().tensor([[0, 3, 1], [0, 0, 2]])),
    ),
    case("GatherElements", (3, 4), ints([0, 1, 2, -1]), axis=0, fed=True, id="known-when-run"),
    case("GatherND", (3, 4), ints([0, 1], [0, 1], [-1, 2]), id="duplicates"),
    case("GatherND", (3, 4, 2), ints([[0], [2]], [[2], [2]]), fed=True, id="rows"),
    case("GatherND", (2, 3, 4), ints([1], [-1]), batch_dims=1, id="batch"),
    case(
        "GatherND", (2, 3, 4), ints([[1], [0], [3]], [[2], [2], [1]]), batch_dims=2, id="two-batch"
    ),
    case(
        "GatherND",
        (2, 3, 4),
        ints([[1, 0], [2, 2]], [[0, 3], [0, 3]]),
        batch_dims=1,
        fed=True,
        id="batch-known-when-run",
    ),
    case("Compress", (3, 4), np.array([False, True, True]), axis=0, torch=lambda x: x[1:]),
    case("Compress", (3, 4), np.array([False, True]), axis=-1, fed=True, id="short-condition"),
    case("Compress", (3, 4), np.arange(12) % 3 > 0, id="flat"),
    case("OneHot", ints([0, 2, -1], [4, 1, 9]), scalar(5), (2,), id="values"),
    case("OneHot", ints(0, 2), scalar(3), (2,), axis=0, id="first-axis"),
    case("Unique", (3, 4), order=2, id="flat"),
    case("Unique", (3, 4), axis=1, sorted=0, id="axis-unsorted"),
    case(
        "Unique",
        np.array([[1.5, 0.5], [0.25, 2.0], [1.5, 0.5]]),
        axis=0,
        order=0,
        id="repeated-rows",
    ),
]

TARGETS = ints([0, 2, 0, -1], [1, 2, 0, 1])

SCATTER = [
    case("ScatterElements", (3, 4), ints([2, 0], [0, 1]), (2, 2), axis=0, id="distinct"),
    case("ScatterElements", (3, 4), TARGETS, (2, 4), axis=1, id="duplicates"),
    case("ScatterElements", (3, 4), TARGETS, (2, 4), axis=1, fed=True, id="duplicates-when-run"),
    *(
        case(
            "ScatterElements",
            (3, 4),
            TARGETS,
            (2, 4),
            axis=1,
            reduction=how,
            id=f"{how}-duplicates",
            low=0.2,
            torch=lambda x, u, how=torch_name: x.scatter_reduce(
                1, torch().tensor(TARGETS) % 4, u, how
            ),
        )
        for how, torch_name in [("add", "sum"), ("mul", "prod"), ("max", "amax"), ("min", "amin")]
    ),
    case(
        "ScatterElements", (3, 4), TARGETS, (2, 4), axis=-1, reduction="mul", fed=True, id="mul-run"
    ),
    case(
        "ScatterElements",
        (3,),
        ints(0, 0, 1, 1, 1, 2),
        np.array([2.0, 0.0, 0.0, 3.0, 0.0, 5.0]),
        reduction="mul",
        id="mul-zeros",
        torch=lambda x, u: x.scatter_reduce(0, torch().tensor([0, 0, 1, 1, 1, 2]), u, "prod"),
    ),
    case("ScatterND", (3, 4), ints([2], [0]), (2, 4), id="rows"),
    case("ScatterND", (3, 4), ints([2], [0], [2]), (3, 4), id="duplicates"),
    case("ScatterND", (3, 4), ints([2], [0], [-1]), (3, 4), fed=True, id="duplicates-when-run"),
    case("ScatterND", (3, 4), ints([2, 1], [0, 0], [2, 1]), (3,), fed=True, id="elements-when-run"),
    *(
        case(
            "ScatterND",
            (3, 4, 2),
            ints([[2, 0], [1, 3]], [[2, 0], [0, -1]]),
            (2, 2, 2),
            reduction=how,
            fed=fed,
            id=f"{how}-duplicates{'-when-run' * fed}",
        )
        for how in ("add", "mul", "max", "min")
        for fed in (False, True)
    ),
    case("TensorScatter", (2, 3, 5, 4), (2, 3, 2, 4), ints(1, 3), id="linear"),
    case("TensorScatter", (2, 5, 4), (2, 2, 4), axis=1, id="no-indices"),
    case("TensorScatter", (2, 5, 3), (2, 4, 3), ints(4, 2), mode="circular", id="circular"),
    case(
        "TensorScatter", (2, 5, 3), (2, 4, 3), ints(4, 2), mode="circular", fed=True, id="when-run"
    ),
]


def attribute_text(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def resized(
    shape: Any, id: str, *, by: Any = None, to: Any = None, roi: Any = None, **given: Any
) -> Case:
    """Scales, sizes and region are constants: their types do not follow the type of the data."""
    options = {k: given.pop(k) for k in ("torch", "order", "tol") if k in given}
    constants = {"roi": ("floats", roi), "scales": ("floats", by), "sizes": ("ints", to)}
    made = "".join(
        f"{name} = Constant<value_{kind}={list(values)}>() "
        for name, (kind, values) in constants.items()
        if values is not None
    )
    names = ", ".join(name if values is not None else "" for name, (_, values) in constants.items())
    attributes = ", ".join(f"{k}={attribute_text(v)}" for k, v in given.items())
    attributes = f"<{attributes}>" if attributes else ""
    nodes = f"{made} y0 = Resize{attributes}(x0, {names})"
    return case("Resize", shape, nodes=nodes, id=id, **options)


def interpolate(x: Any, mode: str, **given: Any) -> Any:
    return functional().interpolate(x, mode=mode, **given)


UP, DOWN, SHAPE = (1.0, 1.0, 2.0, 1.5), (1.0, 1.0, 0.6, 0.8), (1, 2, 4, 5)
COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
)

RESIZE = [
    *(
        resized(SHAPE, f"{mode}-{how}-{word}", by=by, mode=mode, coordinate_transformation_mode=how)
        for mode in ("nearest", "linear", "cubic")
        for how in COORDINATES
        for word, by in (("up", UP), ("down", DOWN))
    ),
    *(
        resized(SHAPE, f"nearest-{how}", by=(1.0, 1.0, 1.7, 0.7), nearest_mode=how)
        for how in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    ),
    resized(
        SHAPE,
        "nearest-repeats",
        by=(1.0, 1.0, 2.0, 3.0),
        torch=lambda x: interpolate(x, "nearest", scale_factor=(2, 3)),
    ),
    resized(
        SHAPE,
        "nearest-repeats-asymmetric",
        by=(1.0, 1.0, 2.0, 3.0),
        nearest_mode="floor",
        coordinate_transformation_mode="asymmetric",
        torch=lambda x: interpolate(x, "nearest", scale_factor=(2, 3)),
    ),
    resized(
        SHAPE,
        "linear-sizes",
        to=(1, 2, 7, 3),
        mode="linear",
        torch=lambda x: interpolate(x, "bilinear", size=(7, 3)),
    ),
    resized(
        SHAPE,
        "linear-align-corners-sizes",
        to=(1, 2, 7, 3),
        mode="linear",
        coordinate_transformation_mode="align_corners",
        torch=lambda x: interpolate(x, "bilinear", size=(7, 3), align_corners=True),
    ),
    resized(
        SHAPE,
        "cubic-sizes",
        to=(1, 2, 8, 10),
        mode="cubic",
        torch=lambda x: interpolate(x, "bicubic", size=(8, 10)),
    ),
    resized(SHAPE, "cubic-coefficient", by=UP, mode="cubic", cubic_coeff_a=-0.5),
    *(
        resized(SHAPE, f"{mode}-exclude-outside{word}", by=by, mode=mode, exclude_outside=1, **more)
        for mode in ("linear", "cubic")
        for word, by, more in (("", UP, {}), ("-antialias", DOWN, {"antialias": 1}))
    ),
    *(
        resized(SHAPE, f"{mode}-antialias-{word}", by=by, mode=mode, antialias=1)
        for mode in ("linear", "cubic")
        for word, by in (("up", UP), ("down", DOWN))
    ),
    *(
        resized(
            SHAPE,
            f"{policy}",
            to=(7, 3),
            axes=[2, 3],
            mode="linear",
            keep_aspect_ratio_policy=policy,
        )
        for policy in ("not_larger", "not_smaller")
    ),
    resized(SHAPE, "axes", by=(1.5, 2.0), axes=[3, 2], mode="linear"),
    resized((3, 2, 4), "any-axis", by=(2.0, 1.5, 0.5), mode="linear"),
    resized((5,), "vector", to=(8,), mode="linear"),
    resized(
        SHAPE,
        "crop",
        to=(3, 3),
        axes=[2, 3],
        roi=(0.1, 0.3, 0.7, 1.4),
        mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize",
        extrapolation_value=9.0,
    ),
    resized(
        SHAPE,
        "crop-cubic",
        to=(1, 2, 3, 4),
        roi=(0.0, 0.0, 0.4, 0.6, 1.0, 1.0, 0.6, 0.8),
        mode="cubic",
        coordinate_transformation_mode="tf_crop_and_resize",
    ),
    *(
        case(
            "Resize",
            SHAPE,
            ints(7, 9),
            fed=True,
            id=f"{mode}-sizes-known-when-run",
            nodes=f'y0 = Resize<mode="{mode}", axes=[2, 3]>(x0, , , x1)',
        )
        for mode in ("nearest", "linear", "cubic")
    ),
    case(
        "Resize",
        SHAPE,
        ints(2, 4),
        fed=True,
        id="antialias-not-larger-known-when-run",
        nodes='y0 = Resize<mode="cubic", antialias=1, axes=[2, 3], '
        'keep_aspect_ratio_policy="not_larger">(x0, , , x1)',
    ),
]

# Coordinates in pixels, away from whole ones, where linear samples have kinks; some lie outside.
PIXELS = np.array([[-1.3, 0.2], [0.4, 1.7], [1.6, -0.7], [2.3, 2.6], [4.4, 3.3], [7.2, -4.6]])


def sampled(id: str, align: int, **given: Any) -> Case:
    height, width = 4, 5
    sizes = np.array([width, height])
    grid = 2 * PIXELS / (sizes - 1) - 1 if align else (2 * PIXELS + 1) / sizes - 1
    grid = np.stack([grid, 0.9 * grid]).reshape(2, 3, 2, 2)
    names = {"linear": "bilinear", "cubic": "bicubic", "nearest": "nearest"}
    mode, padding = given.get("mode", "linear"), given.get("padding_mode", "zeros")
    return case(
        "GridSample",
        (2, 3, height, width),
        grid,
        align_corners=align,
        id=id,
        wrt=[0] if mode == "nearest" else None,
        torch=lambda x, grid: functional().grid_sample(x, grid, names[mode], padding, bool(align)),
        **given,
    )


GRID = [
    *(
        sampled(f"{mode}-{padding}{'-aligned' * align}", align, mode=mode, padding_mode=padding)
        for mode in ("linear", "cubic", "nearest")
        for padding in ("zeros", "border", "reflection")
        for align in (0, 1)
    ),
    case(
        "GridSample",
        (1, 2, 3, 4, 5),
        (1, 2, 3, 2, 3),
        low=-1.1,
        high=1.1,
        id="volume",
        torch=lambda x, grid: functional().grid_sample(x, grid, align_corners=False),
    ),
    case(
        "GridSample",
        (1, 2, 3, 4, 5),
        (1, 2, 3, 2, 3),
        low=-1.1,
        high=1.1,
        padding_mode="reflection",
        id="volume-reflection",
        torch=lambda x, grid: functional().grid_sample(
            x, grid, padding_mode="reflection", align_corners=False
        ),
    ),
    case(
        "AffineGrid",
        (2, 2, 3),
        ints(2, 1, 4, 5),
        id="plane",
        torch=lambda t: functional().affine_grid(t, (2, 1, 4, 5), align_corners=False),
    ),
    case(
        "AffineGrid",
        (2, 2, 3),
        ints(2, 1, 4, 5),
        align_corners=1,
        fed=True,
        id="plane-aligned",
        torch=lambda t: functional().affine_grid(t, (2, 1, 4, 5), align_corners=True),
    ),
    case(
        "AffineGrid",
        (1, 2, 3),
        ints(1, 1, 4, 5),
        id="plane-of-one",
        torch=lambda t: functional().affine_grid(t, (1, 1, 4, 5), align_corners=False),
    ),
    case(
        "AffineGrid",
        (2, 3, 4),
        ints(2, 1, 3, 4, 5),
        align_corners=1,
        id="space-aligned",
        torch=lambda t: functional().affine_grid(t, (2, 1, 3, 4, 5), align_corners=True),
    ),
]

CASES = [*LAYOUT, *WINDOW, *GATHER, *SCATTER, *RESIZE, *GRID]
