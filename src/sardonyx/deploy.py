"""Files for devices: a model is converted, run there and compared, and only then written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx.errors import ArgumentError, DataError, EngineError, quote
from sardonyx.model import Model, ModelSource, load
from sardonyx.save import full_disk_reported
from sardonyx.values import static
from sardonyx.verify import Report, verify
from sardonyx.verify.noise import DIFFERENT, FAILS, NOT_COMPARABLE

if TYPE_CHECKING:
    from sardonyx.engines.tensorflow.tflite import Prepared

AMPLIFIED = 3.0  # times the original's own distance from its exact values that is accepted
SAMPLES = 100  # rows of data that calibrate a quantization at most
COMPARED = 16  # rows on which a quantized model is compared with the original at most


@dataclass
class TFLiteFile:
    """What `to_tflite` wrote.

    path       -- the file
    operators  -- how many operators of each kind it has
    transposed -- the bytes that changes of layout move in it: the least that is possible
    report     -- the comparison with the original, in LiteRT, before any quantization
    quantized  -- of each output, what quantization changed: the root mean square of the difference
                  relative to the output's own, and how often the largest class is the same
    """

    path: Path
    operators: dict[str, int]
    transposed: int
    report: Report
    quantized: dict[str, tuple[float, float]] = field(default_factory=dict)

    def __str__(self) -> str:
        count = sum(self.operators.values())
        turns = self.operators.get("TRANSPOSE", 0)
        lines = [
            f"file        {self.path} ({self.path.stat().st_size:,} bytes)",
            f"operators   {count}, of which {turns} TRANSPOSE; changes of layout move "
            f"{self.transposed:,} bytes",
            f"verified    {self.report.verdict} in LiteRT, ratio {self.report.ratio_of_others:.2g}",
        ]
        lines += [
            f"quantized   {name}: relative difference {difference:.2g}, same class {same:.0%}"
            for name, (difference, same) in self.quantized.items()
        ]
        return "\n".join(lines)


def to_tflite(
    model: ModelSource,
    path: str | Path,
    *,
    quantize: str | None = None,
    data: Any = None,
    inputs: str = "nchw",
    outputs: str = "nchw",
    sizes: Mapping[str, int] | None = None,
    seeds: int = 3,
) -> TFLiteFile:
    """Write a model as a TensorFlow Lite file, after comparing it with the original in LiteRT.

    Images are carried with their channels last and transposed as little as possible.

    quantize -- None, "dynamic" (weights as integers), "float16" (weights as halves) or "int8"
                (weights and activations as integers; inputs and outputs stay floats)
    data     -- rows of inputs that are typical, for "int8": an array, a mapping of arrays by input,
                or an .npz file
    inputs   -- "nhwc": the file takes images with their channels last
    outputs  -- "nhwc": it gives them so
    sizes    -- numbers for free sizes, by name; a free first axis is 1 if it is not there
    seeds    -- the number of random inputs on which both are compared

    >>> import sardonyx as sx
    >>> file = sx.to_tflite("model.onnx", "model.tflite")
    >>> file.report.verdict, file.operators
    ('same', {'FULLY_CONNECTED': 2})
    """
    from sardonyx.engines.tensorflow import tflite

    if quantize not in tflite.QUANTIZATIONS:
        raise ArgumentError(
            f"there is no quantization {quantize!r}", hint="None, 'dynamic', 'float16' or 'int8'"
        )
    if quantize == "int8" and data is None:
        raise ArgumentError(
            "int8 needs typical inputs, whose ranges it measures", hint="data=rows, or --data FILE"
        )
    path = Path(path)
    fixed = tflite.specialized(load(model), sizes)
    rows = list(_rows(fixed, data)) if data is not None else []
    prepared = tflite.prepare(fixed, inputs, outputs)
    content = tflite.converted(prepared)
    report = verify(fixed, tflite.runner(content, prepared), seeds=seeds, culprit=False)
    if report.verdict in (DIFFERENT, FAILS, NOT_COMPARABLE) and not _is_amplified(report):
        raise EngineError(
            "the converted model gives other numbers than the original; nothing was written",
            [[line] for line in str(report).splitlines()],
        )
    quantized: dict[str, tuple[float, float]] = {}
    if quantize is not None:
        exact = tflite.runner(content, prepared)
        content = tflite.converted(prepared, quantize, _calibration(prepared, rows))
        samples = rows[:COMPARED] or _random_rows(fixed, seeds)
        quantized = _compared(fixed, exact, tflite.runner(content, prepared), samples)
    with full_disk_reported(path.parent):
        path.write_bytes(content)
    return TFLiteFile(path, tflite.operators(content), prepared.plan.bytes, report, quantized)


def _is_amplified(report: Report) -> bool:
    """Whether the original in single precision is itself far from its exact values, and the
    converted model is not much farther: then the model amplifies rounding, whatever runs it.
    """
    ratios: dict[str, float] = {}
    for m in report.measurements:
        if m.problem or m.wrong:
            return False
        ratios[m.subject] = max(ratios.get(m.subject, 0.0), m.ratio)
    original = next(iter(report.subjects))["name"]
    noise = ratios.pop(original, 0.0)
    return noise > report.bands[0] and max(ratios.values(), default=0.0) <= AMPLIFIED * noise


def _rows(model: Model, data: Any) -> Iterator[list[np.ndarray]]:
    """Feeds of the model, cut from arrays of many rows."""
    if isinstance(data, (str, Path)):
        with np.load(data, allow_pickle=False) as file:
            data = {name: file[name] for name in file.files} if hasattr(file, "files") else file
    names = [v.name or "" for v in model.inputs]
    arrays = data if isinstance(data, Mapping) else {names[0]: data}
    missing = [[quote(n), "is missing"] for n in names if n not in arrays]
    if missing:
        raise DataError("the data does not fit the model", missing)
    shapes = [static(v) for v in model.inputs]
    types = [v.dtype.numpy() for v in model.inputs]  # type: ignore[union-attr]
    held = [np.asarray(arrays[n]) for n in names]
    wrong = [
        [quote(n), f"rows {a.shape[1:]}", f"the model takes {shape[1:]}"]
        for n, a, shape in zip(names, held, shapes)
        if not a.ndim or a.shape[1:] != shape[1:]
    ]
    if wrong:
        raise DataError("the data does not fit the model", wrong)
    counts = [len(a) // max(shape[0], 1) for a, shape in zip(held, shapes)]
    if not min(counts):
        raise DataError("the data has fewer rows than one batch of the model")
    for i in range(min(*counts, SAMPLES)):
        yield [
            a[i * shape[0] : (i + 1) * shape[0]].astype(t)
            for a, shape, t in zip(held, shapes, types)
        ]


def _random_rows(model: Model, count: int) -> list[list[np.ndarray]]:
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(max(count, 1)):
        rows.append(
            [
                rng.normal(size=static(v)).astype(v.dtype.numpy())  # type: ignore[union-attr]
                for v in model.inputs
            ]
        )
    return rows


def _calibration(prepared: Prepared, rows: Sequence[Sequence[np.ndarray]]) -> list[Any]:
    """The rows as the file takes them."""
    names = prepared.program.names
    return [
        [
            np.moveaxis(array, 1, -1) if name in prepared.turned else array
            for name, array in zip(names, row)
        ]
        for row in rows
    ]


def _compared(
    model: Model, exact: Any, quantized: Any, rows: Sequence[Sequence[np.ndarray]]
) -> dict[str, tuple[float, float]]:
    results: dict[str, tuple[float, float]] = {}
    pairs = [(_several(exact(*row)), _several(quantized(*row))) for row in rows]
    for place, value in enumerate(model.outputs):
        a = np.concatenate([np.atleast_2d(p[0][place]) for p in pairs]).astype(np.float64)
        b = np.concatenate([np.atleast_2d(p[1][place]) for p in pairs]).astype(np.float64)
        size = float(np.sqrt(np.mean(a**2))) or 1.0
        same = float(np.mean(a.argmax(-1) == b.argmax(-1)))
        results[value.name or ""] = (float(np.sqrt(np.mean((a - b) ** 2))) / size, same)
    return results


def _several(outputs: Any) -> tuple[Any, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)
