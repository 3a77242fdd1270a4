"""Cases of ONNX's `math` family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sardonyx.testing import Case, case


def torch_function(name: str, **options: Any) -> Callable[..., Any]:
    """`torch.<name>`, imported when it is called."""

    def call(*xs: Any) -> Any:
        import operator

        import torch

        return operator.attrgetter(name)(torch)(*xs, **options)

    return call


def functional(name: str, **options: Any) -> Callable[..., Any]:
    return torch_function(f"nn.functional.{name}", **options)


def ints(*values: Any) -> np.ndarray:
    return np.array(values[0] if len(values) == 1 else values, np.int64)


UNARY = [
    case("Abs", (2, 3), torch=torch_function("abs")),
    case("Acos", (2, 3), low=-0.9, high=0.9, torch=torch_function("acos")),
    case("Acosh", (2, 3), low=1.2, high=3.0, torch=torch_function("acosh")),
    case("Asin", (2, 3), low=-0.9, high=0.9, torch=torch_function("asin")),
    case("Asinh", (2, 3), torch=torch_function("asinh")),
    case("Atan", (2, 3), torch=torch_function("atan")),
    case("Atanh", (2, 3), low=-0.9, high=0.9, torch=torch_function("atanh")),
    case("Cos", (2, 3), torch=torch_function("cos")),
    case("Cosh", (2, 3), torch=torch_function("cosh")),
    case("Erf", (2, 3), torch=torch_function("erf")),
    case("Exp", (2, 3), torch=torch_function("exp")),
    case("Log", (2, 3), low=0.2, torch=torch_function("log")),
    case("Neg", (2, 3), torch=torch_function("neg")),
    case("Reciprocal", (2, 3), low=0.3, torch=torch_function("reciprocal")),
    case("Sigmoid", (2, 3), torch=torch_function("sigmoid")),
    case("Sigmoid", np.array([-800.0, -40.0, 40.0, 800.0]), id="saturated"),
    case("Sin", (2, 3), torch=torch_function("sin")),
    case("Sinh", (2, 3), torch=torch_function("sinh")),
    case("Softplus", (2, 3), torch=functional("softplus")),
    case(
        "Softplus",
        np.array([-700.0, -30.0, 30.0, 700.0]),
        order=0,
        torch=functional("softplus", threshold=1e9),
        id="no overflow",
    ),
    case("Sqrt", (2, 3), low=0.2, torch=torch_function("sqrt")),
    case("Tan", (2, 3), low=-1.2, high=1.2, torch=torch_function("tan")),
    case("Tanh", (2, 3), torch=torch_function("tanh")),
    case("Tanh", (), id="scalar"),
]


def celu(alpha: float) -> Callable[..., Any]:
    return functional("celu", alpha=alpha)


def softsign(x: Any) -> Any:
    return x / (1 + x.abs())


def swish(alpha: float) -> Callable[..., Any]:
    return lambda x: x * (alpha * x).sigmoid()


def clamp(x: Any, low: Any, high: Any) -> Any:
    import torch

    return torch.clamp(x, low, high)


LARGE = np.array([-900.0, -100.0, -1.5, 1.5, 100.0, 900.0])
ACTIVATION = [
    case("Celu", (2, 3), torch=celu(1.0)),
    case("Celu", (2, 3), alpha=2.0, torch=celu(2.0), id="alpha"),
    case("Celu", LARGE, alpha=2.0, torch=celu(2.0), id="large"),
    case("Clip", (3, 4), np.array(-0.7), np.array(0.8), torch=clamp),
    case("Clip", (3, 4), np.array(-0.7), torch=torch_function("clamp_min"), id="lower bound"),
    case("Clip", (3, 4), None, np.array(0.8), torch=torch_function("clamp_max"), id="upper bound"),
    case("Clip", (3, 4), id="no bounds"),
    case("Clip", (3, 4), np.array(0.8), np.array(-0.7), id="min over max"),
    case("Elu", (2, 3), torch=functional("elu")),
    case("Elu", (2, 3), alpha=0.5, torch=functional("elu", alpha=0.5), id="alpha"),
    case("Elu", LARGE, alpha=2.0, torch=functional("elu", alpha=2.0), id="large"),
    case("Gelu", (2, 3), torch=functional("gelu")),
    case(
        "Gelu", (2, 3), approximate="tanh", torch=functional("gelu", approximate="tanh"), id="tanh"
    ),
    case("HardSigmoid", (4, 5), low=-5, high=5),
    case("HardSigmoid", (4, 5), alpha=0.5, beta=0.6, id="alpha and beta"),
    case("HardSigmoid", (4, 5), low=-5, high=5, order=0, alpha=1 / 6, beta=0.5, id="values"),
    case("HardSwish", (4, 5), low=-5, high=5, torch=functional("hardswish")),
    case(
        "LeakyRelu", (2, 3), torch=functional("leaky_relu", negative_slope=float(np.float32(0.01)))
    ),
    case(
        "LeakyRelu",
        (2, 3),
        alpha=0.25,
        torch=functional("leaky_relu", negative_slope=0.25),
        id="alpha",
    ),
    case("Mish", (2, 3), torch=functional("mish")),
    case("Mish", LARGE, order=0, torch=functional("mish"), id="large"),
    case("PRelu", (2, 3), (2, 3), id="slope of each"),
    case("PRelu", (2, 3, 4), (3, 1), id="slope of each channel"),
    case("PRelu", (2, 3), (1,), torch=functional("prelu"), id="one slope"),
    case("Relu", (2, 3), torch=functional("relu")),
    case("Selu", (2, 3)),
    case("Selu", (2, 3), alpha=2.0, gamma=3.0, id="alpha and gamma"),
    case("Selu", LARGE, alpha=2.0, gamma=3.0, id="large"),
    case("Softsign", (2, 3), torch=softsign),
    case("SwiGLU", (2, 3), (2, 3), torch=lambda a, b: swish(1.0)(a) * b),
    case("SwiGLU", (2, 3), (2, 3), alpha=1.5, torch=lambda a, b: swish(1.5)(a) * b, id="alpha"),
    case("Swish", (2, 3), torch=functional("silu")),
    case("Swish", (2, 3), alpha=1.5, torch=swish(1.5), id="alpha"),
    case("ThresholdedRelu", (2, 5)),
    case("ThresholdedRelu", (2, 5), alpha=0.5, torch=lambda x: x * (x > 0.5), id="alpha"),
]


def reduced(function: str) -> Callable[..., Any]:
    """torch's function of two tensors, over many."""

    def call(*xs: Any) -> Any:
        import functools

        import torch

        return functools.reduce(getattr(torch, function), xs)

    return call


SIGNED = np.array([[-4.3, 7.2, 5.1], [4.3, -7.2, 8.4]])
DIVISOR = np.array([2.1, -3.4, 5.3])
ARITHMETIC = [
    case("Add", (2, 3), (2, 3), torch=torch_function("add")),
    case("Add", (2, 3), (3,), torch=torch_function("add"), id="broadcast"),
    case("Add", (2, 1, 3), (4, 1), torch=torch_function("add"), id="broadcast both"),
    case("Add", (2, 3), (), torch=torch_function("add"), id="scalar"),
    case("Sub", (2, 3), (1, 3), torch=torch_function("sub")),
    case("Mul", (2, 3), (4, 1, 3), torch=torch_function("mul")),
    case("Div", (2, 3), (3,), low=0.5, torch=torch_function("div")),
    case("Div", (3,), (2, 3), low=0.5, torch=torch_function("div"), id="numerator broadcasts"),
    case("Max", (2, 3), (2, 3), (3,), torch=reduced("maximum")),
    case("Max", (2, 3), id="one input"),
    case("Max", (2, 3), (2, 1), torch=reduced("maximum"), id="two inputs"),
    case("Min", (2, 3), (2, 3), (3,), torch=reduced("minimum")),
    case("Min", (2, 3), id="one input"),
    case("Mean", (2, 3), (2, 3), (3,), torch=lambda a, b, c: (a + b + c) / 3),
    case("Mean", (2, 3), id="one input"),
    case("Sum", (2, 3), (2, 3), (3,), torch=lambda a, b, c: a + b + c),
    case("Sum", (2, 3), id="one input"),
    case("Mod", SIGNED, DIVISOR, fmod=1, torch=torch_function("fmod")),
    case("Mod", SIGNED, DIVISOR, torch=torch_function("remainder"), id="floor"),
    case("Pow", (2, 3), (2, 3), low=0.2, torch=torch_function("pow")),
    case("Pow", (3,), (2, 3), low=0.2, torch=torch_function("pow"), id="base broadcasts"),
    case("Pow", (2, 3), (), low=0.2, torch=torch_function("pow"), id="exponent broadcasts"),
    case("Pow", (2, 3), ints(2, 3, 4), torch=lambda x: x ** x.new_tensor([2, 3, 4]), id="integers"),
    case("Pow", (2, 3), ints(0, 1, 3), fed=True, id="computed integers"),
    case(
        "Pow", (2, 3), ints(0, 1, 3), torch=lambda x: x ** x.new_tensor([0, 1, 3]), id="with zero"
    ),
    *[
        case("Pow", (2, 3), np.array(e, np.int64), torch=lambda x, e=e: x**e, id=f"to the {e}")
        for e in (0, 1, 2, 3, 4, -1, -2)
    ],
    case("Expand", (3, 1), ints(2, 3, 4), fed=True, id="computed shape"),
    case("Expand", (3, 1), ints(2, 3, 4), torch=lambda x: x.expand(2, 3, 4), id="changes rank"),
    case("Expand", (3, 4), ints(3, 1), id="size one in shape"),
    case("Expand", (1, 4), ints(2, 4), torch=lambda x: x.expand(2, 4)),
]


def cumprod(x: Any, axis: int = 0, exclusive: bool = False, reverse: bool = False) -> Any:
    import torch

    x = x.flip(axis) if reverse else x
    if exclusive:
        x = torch.cat(
            [torch.ones_like(x.narrow(axis, 0, 1)), x.narrow(axis, 0, x.shape[axis] - 1)], axis
        )
    y = torch.cumprod(x, axis)
    return y.flip(axis) if reverse else y


ZEROS = np.array([[1.5, 0.0, -0.7, 2.0], [0.0, 1.1, 0.0, 0.4], [-0.3, 0.9, 1.2, 0.8]])
AXISWISE = [
    case("Softmax", (2, 3, 4), axis=1, torch=functional("softmax", dim=1), id="inner axis"),
    case("Softmax", (2, 3, 4), axis=0, torch=functional("softmax", dim=0), id="first axis"),
    case("Softmax", (2, 3, 4), torch=functional("softmax", dim=-1)),
    case(
        "Softmax",
        np.array([[0.0, 1.0, 2.0], [10000.0, 10001.0, 10001.5]]),
        id="large",
    ),
    case("LogSoftmax", (2, 3, 4), axis=1, torch=functional("log_softmax", dim=1), id="inner axis"),
    case("LogSoftmax", (2, 3, 4), torch=functional("log_softmax", dim=-1)),
    case("CumSum", (2, 3), np.array(1), torch=torch_function("cumsum", dim=1)),
    case("CumSum", (2, 3), np.array(-2), torch=torch_function("cumsum", dim=0), id="negative axis"),
    case("CumSum", (2, 3), np.array(1), fed=True, id="computed axis"),
    case("CumSum", (5,), np.array(0), exclusive=1, id="exclusive"),
    case("CumSum", (5,), np.array(0), reverse=1, id="reverse"),
    case("CumSum", (5,), np.array(0), exclusive=1, reverse=1, id="reverse exclusive"),
    case("CumProd", (2, 4), np.array(1), torch=lambda x: cumprod(x, 1)),
    case("CumProd", (3, 2, 2), np.array(-3), torch=lambda x: cumprod(x, 0), id="negative axis"),
    case("CumProd", (2, 4, 3), np.array(1), torch=lambda x: cumprod(x, 1), id="inner axis"),
    case("CumProd", (2, 3), np.array(-2), fed=True, id="computed axis"),
    case("CumProd", (4,), np.array(0), fed=True, id="computed axis of a vector"),
    case("CumProd", ZEROS, np.array(1), torch=lambda x: cumprod(x, 1), id="zeros"),
    *[
        case(
            "CumProd",
            ZEROS,
            np.array(1),
            exclusive=int(e),
            reverse=int(r),
            torch=lambda x, e=e, r=r: cumprod(x, 1, e, r),
            id="zeros" + " reverse" * r + " exclusive" * e,
        )
        for e, r in ((True, False), (False, True), (True, True))
    ],
    case("TopK", (3, 7), ints([3]), outputs=2, torch=lambda x: x.topk(3)[0]),
    case(
        "TopK",
        (7, 3),
        ints([2]),
        outputs=2,
        axis=0,
        largest=0,
        torch=lambda x: x.topk(2, 0, False)[0],
        id="smallest",
    ),
    case("TopK", (3, 7), ints([3]), outputs=2, fed=True, id="computed k"),
    case("TopK", (2, 6, 3), ints([2]), outputs=2, axis=-2, sorted=1, id="negative axis"),
]


def gemm(
    transA: bool = False, transB: bool = False, alpha: float = 1.0, beta: float = 1.0
) -> Callable[..., Any]:
    def call(a: Any, b: Any, c: Any = 0.0) -> Any:
        return alpha * ((a.T if transA else a) @ (b.T if transB else b)) + beta * c

    return call


def einsum(equation: str) -> Callable[..., Any]:
    return lambda *xs: torch_function("einsum")(equation, *xs)


SINGULAR = np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [0.5, -1.0, 2.0]])
RANK_ONE = np.outer([1.0, 2.0, -1.0], [0.5, 1.5, 2.0])
EINSUM = {
    "ij->ji": [(2, 3)],
    "ij->i": [(2, 3)],
    "ij->": [(2, 3)],
    "ij": [(2, 3)],
    "ji": [(2, 3)],
    "i,i": [(4,), (4,)],
    "ij, jk": [(2, 3), (3, 4)],
    "bij,bjk->bik": [(2, 3, 4), (2, 4, 5)],
    "...ii->...i": [(2, 3, 3)],
    "ii->": [(3, 3)],
    "iij,j->i": [(3, 3, 2), (2,)],
    "iii->i": [(3, 3, 3)],
    "...ij,...jk->...ik": [(2, 3, 4), (5, 1, 4, 6)],
    "i...,ij->j...": [(3, 2), (3, 4)],
    "ik,jk,ij->": [(2, 4), (3, 4), (2, 3)],
    "ij,kl->ik": [(2, 3), (4, 5)],
    ",ij->ij": [(), (2, 3)],
    "->": [()],
    "bhid,bhjd->bhij": [(2, 3, 4, 5), (2, 3, 6, 5)],
}
PRODUCT = [
    case("MatMul", (3, 4), (4, 5), torch=torch_function("matmul")),
    case("MatMul", (2, 3, 4), (2, 4, 5), torch=torch_function("matmul"), id="batch"),
    case("MatMul", (2, 3, 4), (4, 5), torch=torch_function("matmul"), id="weight"),
    case("MatMul", (2, 6, 3, 4), (4, 5), torch=torch_function("matmul"), id="4-D weight"),
    case("MatMul", (3, 4), (2, 4, 5), torch=torch_function("matmul"), id="left broadcasts"),
    case("MatMul", (2, 1, 3, 4), (6, 4, 5), torch=torch_function("matmul"), id="both broadcast"),
    case("MatMul", (4,), (4,), torch=torch_function("matmul"), id="vectors"),
    case("MatMul", (4,), (2, 4, 5), torch=torch_function("matmul"), id="vector first"),
    case("MatMul", (2, 3, 4), (4,), torch=torch_function("matmul"), id="vector last"),
    case("Gemm", (3, 4), (4, 5), torch=gemm()),
    case("Gemm", (3, 4), (4, 5), (5,), torch=gemm(), id="bias"),
    case("Gemm", (3, 4), (4, 5), (1, 5), torch=gemm(), id="row bias"),
    case("Gemm", (3, 4), (4, 5), (3, 1), torch=gemm(), id="column bias"),
    case("Gemm", (3, 4), (4, 5), (3, 5), torch=gemm(), id="full bias"),
    case("Gemm", (3, 4), (4, 5), (1,), torch=gemm(), id="bias of one element"),
    case("Gemm", (3, 4), (4, 5), (), torch=gemm(), id="scalar bias"),
    *[
        case(
            "Gemm",
            (4, 3) if a else (3, 4),
            (5, 4) if b else (4, 5),
            (5,),
            transA=int(a),
            transB=int(b),
            alpha=0.5,
            beta=0.25,
            torch=gemm(a, b, 0.5, 0.25),
            id="all attributes" + " transA" * a + " transB" * b,
        )
        for a in (False, True)
        for b in (False, True)
    ],
    *[
        case("Einsum", *shapes, equation=equation, torch=einsum(equation), id=equation)
        for equation, shapes in EINSUM.items()
    ],
    case(
        "Einsum",
        (2, 3),
        (1, 4),
        equation="ij,jk->ik",
        torch=lambda a, b: a.sum(1, True) * b,
        id="one broadcasts",
    ),
    case(
        "Einsum",
        (2, 3),
        (1, 4),
        equation="ij,jk->ijk",
        torch=lambda a, b: a[:, :, None] * b,
        id="one broadcasts, kept",
    ),
    case("Det", (3, 3), torch=torch_function("linalg.det")),
    case("Det", (2, 4, 3, 3), torch=torch_function("linalg.det"), id="batch"),
    case("Det", (2, 2), torch=torch_function("linalg.det"), id="two by two"),
    case("Det", (4, 1, 1), id="one by one"),
    case("Det", SINGULAR, id="singular"),
    case("Det", RANK_ONE, id="rank one"),
]


def labels(
    *shape: int, classes: int, ignored: int | None = None, dtype: Any = np.int64
) -> np.ndarray:
    rng = np.random.default_rng(sum(shape) + classes)
    result = rng.integers(0, classes, shape)
    if ignored is not None:
        result.reshape(-1)[::3] = ignored
    return result.astype(dtype)


def loss_cases(op: str, function: str, outputs: int) -> list[Case]:
    """All reductions, weights, ignored labels, and shapes of the official tests."""
    rows = [
        ("", (3, 5), False, None),
        ("weights", (3, 5), True, None),
        ("1-D", (3, 5, 2), False, None),
        ("2-D weights", (3, 5, 2, 4), True, None),
        ("5-D weights", (2, 3, 1, 2, 1, 2, 1), True, None),
        ("ignored", (4, 5), False, 2),
        ("ignored weights", (4, 5, 2), True, 1),
        ("negative ignored weights", (4, 5, 2), True, -1),
        ("high ignored weights", (4, 5), True, 10),
        ("negative ignored", (4, 5), False, -5),
    ]
    made = []
    for name, shape, weighted, ignored in rows:
        for reduction in ("mean", "sum", "none"):
            target = labels(shape[0], *shape[2:], classes=shape[1], ignored=ignored)
            options = {} if ignored is None else {"ignore_index": ignored}
            made.append(
                case(
                    op,
                    shape,
                    target,
                    *([(shape[1],)] if weighted else []),
                    low=0.2,
                    outputs=outputs,
                    reduction=reduction,
                    wrt=(0, 2) if weighted else (0,),
                    torch=None if weighted else _torch_loss(function, target, reduction, options),
                    id=f"{name} {reduction}".strip() + " log_prob" * (outputs - 1),
                    **options,
                )
            )
    return made


def _torch_loss(function: str, target: np.ndarray, reduction: str, options: dict[str, int]) -> Any:
    def call(x: Any) -> Any:
        import torch

        loss = getattr(torch.nn.functional, function)
        return loss(x, torch.tensor(target), reduction=reduction, **options)

    return call


LOSS = [
    *loss_cases("NegativeLogLikelihoodLoss", "nll_loss", 1),
    *loss_cases("SoftmaxCrossEntropyLoss", "cross_entropy", 1),
    case(
        "SoftmaxCrossEntropyLoss",
        (3, 5, 2),
        labels(3, 2, classes=5),
        (5,),
        low=0.2,
        outputs=2,
        id="log_prob weights",
    ),
    case(
        "SoftmaxCrossEntropyLoss",
        (3, 5),
        labels(3, classes=5, dtype=np.int32),
        outputs=2,
        reduction="none",
        id="log_prob none int32",
    ),
]


def fft(
    inverse: bool, axis: int, n: int | None = None, onesided: bool = False
) -> Callable[..., Any]:
    def call(x: Any) -> Any:
        import torch

        z = torch.view_as_complex(x.contiguous()) if x.shape[-1] == 2 else x[..., 0]
        name = ("ir" if inverse else "r") if onesided else ("i" if inverse else "")
        y = getattr(torch.fft, f"{name}fft")(z, n, axis)
        return torch.view_as_real(y) if y.is_complex() else y[..., None]

    return call


AXIS_1 = np.array(1)
SIGNAL = [
    case("DFT", (2, 5, 1), torch=fft(False, 1), id="real"),
    case("DFT", (2, 5, 2), torch=fft(False, 1), id="complex"),
    case("DFT", (2, 5, 3, 2), None, AXIS_1, torch=fft(False, 1), id="axis"),
    case("DFT", (2, 5, 2), None, AXIS_1, inverse=1, torch=fft(True, 1), id="inverse"),
    case("DFT", (2, 5, 1), np.array(8), AXIS_1, torch=fft(False, 1, 8), id="padded"),
    case("DFT", (2, 5, 1), np.array(8), fed=True, id="computed length"),
    case("DFT", (2, 5, 1), np.array(8), fed=True, onesided=1, id="computed length onesided"),
    case("DFT", (2, 5, 1), np.array(4), AXIS_1, torch=fft(False, 1, 4), id="cut"),
    case(
        "DFT",
        (2, 6, 1),
        None,
        AXIS_1,
        onesided=1,
        torch=fft(False, 1, None, True),
        id="onesided even",
    ),
    case(
        "DFT",
        (2, 5, 1),
        None,
        AXIS_1,
        onesided=1,
        torch=fft(False, 1, None, True),
        id="onesided odd",
    ),
    case(
        "DFT",
        (2, 5, 1),
        np.array(8),
        AXIS_1,
        onesided=1,
        torch=fft(False, 1, 8, True),
        id="onesided padded",
    ),
    case(
        "DFT",
        (2, 4, 2),
        None,
        AXIS_1,
        onesided=1,
        inverse=1,
        torch=fft(True, 1, None, True),
        id="irfft even",
    ),
    case(
        "DFT",
        (2, 4, 3, 2),
        np.array(7),
        AXIS_1,
        onesided=1,
        inverse=1,
        torch=fft(True, 1, 7, True),
        id="irfft odd",
    ),
    *[
        case(
            "DFT",
            shape,
            length,
            np.array(axis),
            fed=True,
            **attributes,
            id=f"computed axis, {name}",
        )
        for name, shape, length, axis, attributes in [
            ("real", (2, 5, 1), None, 1, {}),
            ("inverse", (2, 5, 3, 2), None, -3, {"inverse": 1}),
            ("padded", (2, 5, 1), np.array(8), 1, {}),
            ("cut onesided", (2, 5, 3, 1), np.array(4), 1, {"onesided": 1}),
            ("irfft", (2, 4, 2), None, -2, {"onesided": 1, "inverse": 1}),
        ]
    ],
    case("STFT", (2, 12, 1), np.array(3), (4,), onesided=1, id="window"),
    case("STFT", (2, 12, 1), np.array(3), (4,), onesided=0, id="window twosided"),
    case("STFT", (2, 12, 1), np.array(2), None, np.array(5), onesided=1, id="frame length"),
    case(
        "STFT",
        (2, 12, 1),
        np.array(2),
        None,
        np.array(5),
        fed=True,
        onesided=1,
        id="computed frames",
    ),
    case(
        "STFT", (2, 12, 1), np.array(4), (5,), np.array(5), onesided=1, id="window and frame length"
    ),
    case("STFT", (2, 12, 2), np.array(3), (4,), onesided=0, id="complex"),
]

HALVES = np.array([-2.5, -1.5, -0.5, 0.0, 0.5, 1.5, 2.4])
VALUES = [
    *[case(op, HALVES, order=0) for op in ("Ceil", "Floor", "Round", "Sign")],
    case("Hardmax", (2, 3, 4), order=0),
    case("Hardmax", np.array([[3.0, 3.0, 1.0]]), axis=0, order=0, id="axis"),
    case("BlackmanWindow", np.array(10), order=0),
    case("HammingWindow", np.array(10), periodic=0, order=0, id="symmetric"),
    case("HannWindow", np.array(10), order=0),
    case(
        "MelWeightMatrix",
        *[np.array(n) for n in (8, 16, 8192)],
        *[np.array(f) for f in (0.0, 4096.0)],
        order=0,
    ),
    case(
        "MatMulInteger",
        np.array([[11, 7, 3], [10, 6, 2]], np.uint8),
        np.array([[1, 4], [2, 5], [3, 6]], np.uint8),
        np.array([12], np.uint8),
        np.array([0], np.uint8),
        order=0,
    ),
]

CASES = VALUES + UNARY + ACTIVATION + ARITHMETIC + AXISWISE + PRODUCT + LOSS + SIGNAL
