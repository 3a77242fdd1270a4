"""The error function of arrays, which NumPy lacks: to the last digit of float64.

Rational approximations by interval, with the coefficients that Sun's mathematical library published
and C libraries use. The result is within one unit in the last place of `math.erf`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

BLOCK = 1 << 14  # elements at a time: temporary arrays that fit into the cache
ONE = 8.45062911510467529297e-01  # erf(1), rounded to single precision

# erf(x) = x + x·P(x²)/Q(x²) up to 0.84375
NEAR_ZERO = (
    (
        *(1.28379167095512558561e-01, -3.25042107247001499370e-01, -2.84817495755985104766e-02),
        *(-5.77027029648944159157e-03, -2.37630166566501626084e-05),
    ),
    (
        *(1.0, 3.97917223959155352819e-01, 6.50222499887672944485e-02, 5.08130628187576562776e-03),
        *(1.32494738004321644526e-04, -3.96022827877536812320e-06),
    ),
)
# erf(x) = ONE + P(x-1)/Q(x-1) up to 1.25
NEAR_ONE = (
    (
        *(-2.36211856075265944077e-03, 4.14856118683748331666e-01, -3.72207876035701323847e-01),
        *(3.18346619901161753674e-01, -1.10894694282396677476e-01, 3.54783043256182359371e-02),
        -2.16637559486879084300e-03,
    ),
    (
        *(1.0, 1.06420880400844228286e-01, 5.40397917702171048937e-01, 7.18286544141962662868e-02),
        *(1.26171219808761642112e-01, 1.36370839120290507362e-02, 1.19844998467991074170e-02),
    ),
)
# erf(x) = 1 - exp(-x² - 0.5625 + P(1/x²)/Q(1/x²))/x up to 1/0.35, and from there on
MIDDLE = (
    (
        *(-9.86494403484714822705e-03, -6.93858572707181764372e-01, -1.05586262253232909814e01),
        *(-6.23753324503260060396e01, -1.62396669462573470355e02, -1.84605092906711035994e02),
        *(-8.12874355063065934246e01, -9.81432934416914548592e00),
    ),
    (
        *(1.0, 1.96512716674392571292e01, 1.37657754143519042600e02, 4.34565877475229228821e02),
        *(6.45387271733267880336e02, 4.29008140027567833386e02, 1.08635005541779435134e02),
        *(6.57024977031928170135e00, -6.04244152148580987438e-02),
    ),
)
LARGE = (
    (
        *(-9.86494292470009928597e-03, -7.99283237680523006574e-01, -1.77579549177547519889e01),
        *(-1.60636384855821916062e02, -6.37566443368389627722e02, -1.02509513161107724954e03),
        -4.83519191608651397019e02,
    ),
    (
        *(1.0, 3.03380607434824582924e01, 3.25792512996573918826e02, 1.53672958608443695994e03),
        *(3.19985821950859553908e03, 2.55305040643316442583e03, 4.74528541206955367215e02),
        -2.24409524465858183362e01,
    ),
)


def erf(x: np.ndarray) -> np.ndarray:
    """The error function of each element of a float64 array; of NaN it is NaN."""
    flat = x.reshape(-1)
    parts = [_part(flat[i : i + BLOCK]) for i in range(0, flat.size, BLOCK)]
    return np.concatenate([*parts, flat[:0]]).reshape(x.shape)


def _part(x: np.ndarray) -> np.ndarray:
    size = np.abs(x)
    result = np.ones_like(x)
    result[np.isnan(x)] = np.nan
    for start, stop, rule in (
        (0.0, 0.84375, _small),
        (0.84375, 1.25, _near_one),
        (1.25, 1 / 0.35, lambda v: _tail(v, MIDDLE)),
        (1 / 0.35, 6.0, lambda v: _tail(v, LARGE)),
    ):
        (places,) = np.nonzero((size >= start) & (size < stop))
        if places.size:
            result[places] = rule(size[places])
    return np.copysign(result, x)


def _ratio(x: np.ndarray, coefficients: tuple[Sequence[float], Sequence[float]]) -> np.ndarray:
    above, below = (_polynomial(x, c) for c in coefficients)
    above /= below
    return above


def _polynomial(x: np.ndarray, coefficients: Sequence[float]) -> np.ndarray:
    value = x * coefficients[-1]
    for c in reversed(coefficients[1:-1]):
        value += c
        value *= x
    value += coefficients[0]
    return value


def _small(x: np.ndarray) -> np.ndarray:
    return x + x * _ratio(x * x, NEAR_ZERO)


def _near_one(x: np.ndarray) -> np.ndarray:
    return ONE + _ratio(x - 1.0, NEAR_ONE)


def _tail(x: np.ndarray, coefficients: tuple[Sequence[float], Sequence[float]]) -> np.ndarray:
    # The square of the upper half of the digits is exact; the rest is a small correction.
    upper = (x.view(np.int64) & np.int64(-(1 << 32))).view(np.float64)
    rest = (upper - x) * (upper + x) + _ratio(1.0 / (x * x), coefficients)
    return 1.0 - np.exp(-upper * upper - 0.5625) * np.exp(rest) / x
