"""The noise ratio: how far a result is from the exact one, in units of what rounding does here.

`measure` takes a candidate's output `c`, the exact result `r` and the baseline `b` and stores plain
numbers; `Measurement.verdict` judges them by the bands. Numbers are stored, verdicts are not: a
saved report can be judged again. How the floor is derived is in docs/concepts/noise-ratio.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

SAME, LOOK, DIFFERENT, UNKNOWN = "same", "look", "different", "could not tell"
FAILS, NOT_COMPARABLE = "fails", "not comparable"
ORDER = (SAME, LOOK, UNKNOWN, NOT_COMPARABLE, FAILS, DIFFERENT)  # of many, the last one counts
BANDS = (3.0, 10.0)
GRADIENT_BANDS = (10.0, 50.0)
PEAK = 100.0
PLACES = "NaN or infinity at other places"
EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
BINS = (-6, 7)  # decades of |c - r| / floor that the histogram covers


@dataclass
class Measurement:
    """What was measured of one output of one candidate on one set of inputs."""

    subject: str
    output: str
    run: str
    shape: list[int]
    dtype: str
    rms_error: float = 0.0
    rms_noise: float = 0.0
    largest: float = 0.0
    peak_error: float = 0.0
    peak_noise: float = 0.0
    max_rel: float = 0.0
    eps: float = 0.0
    finite: int = 0  # elements that could be compared
    wrong: int = 0  # elements that differ where no rounding is allowed
    flipped: int = 0  # of those, the ones that rounding explains
    problem: str = ""  # what makes numbers pointless: another shape or type, a failure
    outcome: str = ""  # the verdict where there was nothing to measure: a failure, no such output
    within: bool | None = None  # judged by rtol and atol, where those were given
    forced: float | None = None  # largest ratio of all nodes replayed alone, where jumps need it
    accepted: bool = (
        False  # the first subject may be noisier than the baseline, up to the upper band
    )
    amplified: bool = False  # every node is right alone: what differs is rounding, blown up
    histogram: list[int] = field(default_factory=list)

    @property
    def floor(self) -> float:
        return max(self.rms_noise, 0.5 * self.eps * self.largest)

    @property
    def ratio(self) -> float:
        """The candidate's error over the floor; infinite if the outputs cannot be compared."""
        if self.outcome in (UNKNOWN, NOT_COMPARABLE):
            return 0.0
        if self.problem or self.wrong > self.flipped:
            return math.inf
        if self.rms_error == 0.0:
            return 0.0
        return self.rms_error / self.floor if self.floor else math.inf

    @property
    def peak(self) -> float:
        """The largest error of an element over the baseline's: above 100, a hint."""
        floor = max(self.peak_noise, 0.5 * self.eps * self.largest)
        if self.peak_error == 0.0:
            return 0.0
        return self.peak_error / floor if floor else math.inf

    def verdict(self, bands: tuple[float, float] = BANDS) -> str:
        if self.outcome:
            return self.outcome
        if self.within is not None:
            return SAME if self.within and not self.problem else DIFFERENT
        if self.forced is not None:
            return band(self.forced, bands)
        if self.eps and not self.finite and math.prod(self.shape) and not self.problem:
            return UNKNOWN  # NaN and infinities only
        by_ratio = band(self.ratio, bands)
        if self.amplified and by_ratio == DIFFERENT:
            return LOOK
        return SAME if self.accepted and by_ratio == LOOK else by_ratio


def band(ratio: float, bands: tuple[float, float]) -> str:
    """The verdict of one ratio."""
    if ratio <= bands[0]:
        return SAME
    return LOOK if ratio <= bands[1] else DIFFERENT


def worst(verdicts: Sequence[str]) -> str:
    """The gravest of several verdicts, in the order of `ORDER`."""
    return max(verdicts, key=ORDER.index, default=UNKNOWN)


def rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values)))) if values.size else 0.0


def finite_rms(a: Any, b: Any) -> float:
    """The rms of a difference, where both are finite."""
    with np.errstate(all="ignore"):
        apart = np.asarray(a).astype(np.float64) - np.asarray(b)
    return rms(apart[np.isfinite(apart)])


def measure(
    key: tuple[str, str, str],
    c: Any,
    r: Any,
    baselines: Sequence[Any],
    dtype: np.dtype | None = None,
    *,
    tolerances: tuple[float, float] | None = None,
    lenient: bool = False,
    noise: float = 0.0,
) -> Measurement:
    """Measure the output `c`; `key` is (subject, output, run), `dtype` the type that it must have.

    noise   -- what is known of the noise besides the baselines
    lenient -- types need only be of one kind: frameworks outside ONNX choose widths themselves
    """
    shape = list(np.shape(c)) if not isinstance(c, (list, dict)) else [len(c)]
    measurement = Measurement(*key, shape, _type_name(c))
    if isinstance(c, (list, dict)) or isinstance(r, (list, dict)):
        return _collection(measurement, c, r, baselines, tolerances, lenient)
    if c is None or r is None:
        measurement.problem = "" if c is None and r is None else "one is empty, the other is not"
        return measurement
    c, r = np.asarray(c), np.asarray(r)
    expected_dtype = (
        dtype if dtype is not None else np.asarray(baselines[0]).dtype if baselines else c.dtype
    )
    measurement.problem = _unlike(c, r, expected_dtype, lenient)
    if measurement.problem:
        return measurement
    if _is_float(expected_dtype):
        measurement.rms_noise = noise
        _floats(measurement, c, r, baselines, expected_dtype, tolerances)
    else:
        measurement.wrong = int(np.sum(c != r)) if c.size else 0
    return measurement


def _floats(
    measurement: Measurement,
    c: np.ndarray,
    r: np.ndarray,
    baselines: Sequence[Any],
    dtype: np.dtype,
    tolerances: tuple[float, float] | None,
) -> None:
    c, exact = c.astype(np.float64), r.astype(np.float64)
    others = [np.asarray(b).astype(np.float64) for b in baselines]
    with np.errstate(all="ignore"):
        rounded = exact.astype(dtype).astype(np.float64)
    # Where the model overflows in its own precision, the baseline shows where: both are right.
    if not any(_same_places(c, like) for like in (rounded, *others)):
        measurement.problem = PLACES
        return
    finite = np.isfinite(c) & np.isfinite(exact)
    for other in others:
        finite &= np.isfinite(other)
    c, exact = c[finite], exact[finite]
    error = np.abs(c - exact)
    measurement.eps, measurement.finite = EPS[dtype.name], c.size
    measurement.largest = float(np.max(np.abs(exact), initial=0.0))
    measurement.rms_error, measurement.peak_error = rms(error), float(np.max(error, initial=0.0))
    for other in others:
        noise = np.abs(other[finite] - exact)
        measurement.rms_noise = max(measurement.rms_noise, rms(noise))
        measurement.peak_noise = max(measurement.peak_noise, float(np.max(noise, initial=0.0)))
    with np.errstate(all="ignore"):
        relative = np.where(exact == 0, 0.0, error / np.abs(exact))
    measurement.max_rel = float(np.max(relative, initial=0.0))
    measurement.histogram = _histogram(error, measurement.floor)
    if tolerances is not None:
        rtol, atol = tolerances
        measurement.within = bool(np.all(error <= atol + rtol * np.abs(exact)))


def _collection(
    measurement: Measurement,
    c: Any,
    r: Any,
    baselines: Sequence[Any],
    tolerances: tuple[float, float] | None,
    lenient: bool,
) -> Measurement:
    """Sequences and maps: element by element, the worst counts."""
    if isinstance(c, dict) and isinstance(r, dict):
        if c.keys() != r.keys():
            measurement.problem = "other keys"
            return measurement
        order = list(r)
        c, r = [_single(c[k]) for k in order], [r[k] for k in order]
        baselines = [[_single(b[k]) for k in order] for b in baselines]
    if type(c) is not type(r) or len(c) != len(r):
        measurement.problem = (
            f"{len(c) if isinstance(c, list) else 'not a sequence'}, not {len(r)} elements"
        )
        return measurement
    key = (measurement.subject, measurement.output, measurement.run)
    parts = [
        measure(key, x, y, [b[i] for b in baselines], tolerances=tolerances, lenient=lenient)
        for i, (x, y) in enumerate(zip(c, r, strict=True))
    ]
    if not parts:
        return measurement
    top = max(parts, key=lambda m: m.ratio)
    top.shape, top.dtype = measurement.shape, f"sequence of {top.dtype}"
    return top


def _single(value: Any) -> Any:
    """The floats of a map are float32 in ONNX; Python hands them over as its own."""
    return np.float32(value) if isinstance(value, float) else value


def _unlike(c: np.ndarray, r: np.ndarray, dtype: np.dtype, lenient: bool) -> str:
    if c.shape != r.shape:
        return f"shape {list(c.shape)}, not {list(r.shape)}"
    kinds = {"f": "float", "i": "integer", "u": "integer", "b": "bool"}
    actual_kind, expected_kind = (
        "float" if _is_float(d) else kinds.get(d.kind, "text") for d in (c.dtype, dtype)
    )
    if (lenient and actual_kind != expected_kind) or (
        not lenient and c.dtype != dtype and actual_kind != "text"
    ):
        return f"type {c.dtype}, not {dtype}"
    return ""


def _same_places(c: np.ndarray, like: np.ndarray) -> bool:
    if c.shape != like.shape or not np.array_equal(np.isnan(c), np.isnan(like)):
        return False
    infinite = np.isinf(c)
    return bool(
        np.array_equal(infinite, np.isinf(like)) and np.array_equal(c[infinite], like[infinite])
    )


def _histogram(error: np.ndarray, floor: float) -> list[int]:
    """A histogram of the errors in floors: exact elements, then a count per decade."""
    low, high = BINS
    wrong = error[error > 0]
    counts = [int(error.size - wrong.size)] + [0] * (high - low)
    if wrong.size and floor:
        decade = np.clip(np.floor(np.log10(wrong / floor)), low, high - 1).astype(int) - low
        for place, count in zip(*np.unique(decade, return_counts=True), strict=True):
            counts[1 + int(place)] = int(count)
    return counts


def _is_float(dtype: np.dtype) -> bool:
    return dtype.kind == "f" or dtype == np.dtype(ml_dtypes.bfloat16)


def _type_name(value: Any) -> str:
    if isinstance(value, (list, dict)):
        return "sequence" if isinstance(value, list) else "map"
    return "none" if value is None else str(np.asarray(value).dtype)
