"""Cases of ONNX's `reduction` family: every reduction with every form of its axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sardonyx.testing import Case, case

AXES: dict[str, dict[str, Any]] = {
    "all axes": {},
    "all axes dropped": {"keepdims": 0},
    "kept": {"axes": [1]},
    "dropped": {"axes": [1], "keepdims": 0},
    "negative": {"axes": [-2, 0], "keepdims": 0},
    "descending": {"axes": [2, 1], "keepdims": 0},
    "empty axes": {"axes": []},
    "no-op": {"axes": [], "noop_with_empty_axes": 1},
}
TORCH: dict[str, Callable[..., Any]] = {
    "ReduceSum": lambda x, **a: x.sum(**a),
    "ReduceMean": lambda x, **a: x.mean(**a),
    "ReduceMax": lambda x, **a: x.amax(**a),
    "ReduceMin": lambda x, **a: x.amin(**a),
    "ReduceL1": lambda x, **a: x.abs().sum(**a),
    "ReduceL2": lambda x, **a: (x * x).sum(**a).sqrt(),
    "ReduceSumSquare": lambda x, **a: (x * x).sum(**a),
    "ReduceLogSum": lambda x, **a: x.sum(**a).log(),
    "ReduceLogSumExp": lambda x, **a: x.logsumexp(**a),
}


def in_torch(
    op: str, axes: list[int] | None, keepdims: int, noop: int
) -> Callable[..., Any] | None:
    if op not in TORCH or (noop and not axes):
        return None
    dim = tuple(axes) if axes else (0, 1, 2)
    return lambda x: TORCH[op](x, dim=dim, keepdim=bool(keepdims))


def cases_of(op: str) -> list[Case]:
    made = []
    for name, form in AXES.items():
        axes, keepdims = form.get("axes"), form.get("keepdims", 1)
        noop = form.get("noop_with_empty_axes", 0)
        attributes = {k: v for k, v in form.items() if k != "axes"}
        inputs = [(2, 3, 4)] + ([np.array(axes, np.int64)] if axes is not None else [])
        made.append(
            case(
                op,
                *inputs,
                low=0.3,
                torch=in_torch(op, axes, keepdims, noop),
                id=name,
                **attributes,
            )
        )
    return made


ZEROS = np.array([[1.5, 0.0, -0.7, 2.0], [0.0, 1.1, 0.0, 0.4], [-0.3, 0.9, 1.2, 0.8]])
NUMBERS = np.array([[500.0, 900.0, 899.0], [-900.0, -901.0, -1000.0]])
COMPUTED = {"computed axes": [-1, 0], "computed axes that are empty": []}
CASES = [
    *[c for op in [*TORCH, "ReduceProd"] for c in cases_of(op)],
    *[
        case(op, (2, 3, 4), np.array(axes, np.int64), low=0.3, fed=True, keepdims=0, id=name)
        for op in [*TORCH, "ReduceProd"]
        for name, axes in COMPUTED.items()
    ],
    case(
        "ReduceSumSquare",
        (2, 3),
        np.array([], np.int64),
        fed=True,
        keepdims=0,
        noop_with_empty_axes=1,
        id="computed axes, no-op",
    ),
    case("ReduceProd", ZEROS, np.array([1]), fed=True, id="zeros, computed axes"),
    case("ReduceProd", ZEROS, np.array([1]), torch=lambda x: x.prod(1, True), id="zeros"),
    case("ReduceProd", ZEROS, id="zeros everywhere"),
    case("ReduceProd", ZEROS[:1], keepdims=0, torch=lambda x: x.prod(), id="one zero"),
    case(
        "ReduceLogSumExp",
        NUMBERS,
        np.array([1]),
        order=0,
        torch=lambda x: x.logsumexp(1, True),
        id="no overflow",
    ),
    case("ReduceSum", (), keepdims=0, id="scalar"),
    case("ReduceMean", (), keepdims=0, id="scalar"),
    case("ReduceL1", (4, 5), np.array([1]), torch=lambda x: x.abs().sum(1, True), id="signs"),
    *[
        case(op, np.array([[2.0, 1.0, 2.0], [3.0, 3.0, 1.0]]), order=0, id=name, **attributes)
        for op in ("ArgMax", "ArgMin")
        for name, attributes in {
            "": {},
            "dropped": {"axis": 1, "keepdims": 0},
            "last index": {"axis": -1, "select_last_index": 1},
        }.items()
    ],
]
