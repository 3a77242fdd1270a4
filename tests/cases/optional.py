"""Cases of ONNX's optional family."""

from __future__ import annotations

from sardonyx.testing import case

CASES = [
    case(
        "Optional",
        (2, 3),
        nodes="o = Optional(x0) e = OptionalGetElement(o) y0 = Mul(e, e)",
        torch=lambda x: x * x,
        id="tensor",
    ),
    case(
        "OptionalGetElement",
        (2, 3),
        nodes="e = OptionalGetElement(x0) y0 = Mul(e, e)",
        torch=lambda x: x * x,
        id="of-a-tensor",
    ),
    case(
        "OptionalGetElement",
        (2, 3),
        (2, 3),
        nodes="s = SequenceConstruct(x0, x1) o = Optional(s) t = OptionalGetElement(o) "
        "i = Constant<value_int=1>() e = SequenceAt(t, i) y0 = Mul(e, e)",
        torch=lambda a, b: b * b,
        id="of-a-sequence",
    ),
    case(
        "OptionalHasElement",
        (2, 3),
        nodes="o = Optional(x0) y0 = OptionalHasElement(o)",
        order=0,
        id="something",
    ),
]
