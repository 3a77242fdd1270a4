"""Cases of ai.onnx.preview: FlexAttention, plain and with bodies."""

from __future__ import annotations

from sardonyx.testing import Case, case

DOMAIN = "ai.onnx.preview"
QUERIES, KEYS, VALUES = (2, 4, 3, 6), (2, 2, 5, 6), (2, 2, 5, 4)
SCORES = "double[2, 4, 3, 5]"

CASES: list[Case] = [
    case("FlexAttention", QUERIES, KEYS, VALUES, domain=DOMAIN, order=0, id="shared-heads"),
    case("FlexAttention", QUERIES, KEYS, VALUES, domain=DOMAIN, order=0, scale=0.5, id="scaled"),
    case(
        "FlexAttention",
        QUERIES,
        KEYS,
        VALUES,
        domain=DOMAIN,
        order=0,
        id="bodies",
        symbolic=False,
        nodes=f"""y0 = {DOMAIN}.FlexAttention <
            score_mod = cap ({SCORES} s) => ({SCORES} t) {{ t = Tanh(s) }},
            prob_mod = square ({SCORES} p) => ({SCORES} q) {{ q = Mul(p, p) }}
        > (x0, x1, x2)""",
    ),
]
