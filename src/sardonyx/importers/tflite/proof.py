"""The comparison of an imported model with its file in LiteRT.

Floats are judged by the noise ratio. Where activations are integers, results may differ by one
quantum: both round, and a tie may fall to either side. Where that grows to more at the end, each
operator is judged by itself (`replay.py`). Where weights alone are integers, LiteRT also rounds
activations to eight bits as it goes, which ONNX does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.errors import ImportDiffers, ImportRefused, quote
from sardonyx.importers.tflite.driver import Variable
from sardonyx.importers.tflite.reader import Graph, Operator, Signature, Tensor
from sardonyx.importers.tflite.replay import replayed
from sardonyx.model import Model
from sardonyx.verify import Report, verify
from sardonyx.verify.noise import DIFFERENT, FAILS, NOT_COMPARABLE
from sardonyx.verify.subjects import OnnxSubject

HYBRID = 0.05  # the relative difference that activations of eight bits may make
STRAY = 0.01  # the share of integers that may be off by more than one quantum: a chain of
FEW_QUANTA = 3.001  # operators, each off by one of its own, may add up to a few
AMPLIFIED = 3.0
WHOLE = 0.2  # the relative difference up to which roundings of single operators may have grown
SINGLE = 1e-4  # of floats, where the state of earlier calls is read
SAMPLES = 4
# Operators that LiteRT computes by tables of a few hundred entries where numbers have 16 bits, and
# one whose factors have ten bits there.
TABLES = frozenset(["EXP", "GELU", "LOG", "LOGISTIC", "RSQRT", "SOFTMAX", "TANH"])
COARSE = TABLES | {"RESIZE_BILINEAR"}
ENTRIES = 4096  # elements to compare where there are such tables
MOST_SAMPLES = 256
SECONDS = 20.0  # for the comparison of floats
LARGEST = 1 << 32  # bytes of tensors, beyond which a file is not run


def prove(
    model: Model,
    graph: Graph,
    content: bytes,
    state: Mapping[str, Variable],
    entry: tuple[str, Signature] | None = None,
) -> str:
    """Compare, and say how; raises `ImportDiffers`.

    state -- variables of the file, by the names of the inputs that they are
    entry -- the signature that was imported, if it is another one than the file's first graph
    """
    memory = sum(_bytes(t) for t in graph.tensors)
    if memory > LARGEST:
        return f"not run: its tensors take {memory:,} bytes"
    run = Interpreted(graph, content, entry)
    computed = {i for o in graph.operators for i in o.outputs}
    if any(graph.tensors[i].is_quantized for i in computed):
        return _in_quanta(model, graph, run, state)
    if any(t.is_quantized for t in graph.tensors):
        difference = _by_tolerance(model, graph, run, state, HYBRID)
        return f"within {difference:.2g} of LiteRT, which rounds activations to eight bits"
    if state:
        difference = _by_tolerance(model, graph, run, state, SINGLE)
        return f"within {difference:.2g} of LiteRT, over calls that pass the state on"
    report = verify(model, run, seeds=2, culprit=False, seconds=SECONDS)
    if run.refusal is not None:
        raise run.refusal
    ratio = f"noise ratio {report.ratio_of_others:.2g}"
    if report.verdict not in (DIFFERENT, FAILS, NOT_COMPARABLE):
        return f"{report.verdict} in LiteRT, {ratio}"
    if own := _amplified_noise(report):
        return (
            f"as near to exact numbers in LiteRT as in onnxruntime, {ratio} and {own:.2g}: "
            "the model amplifies rounding"
        )
    raise ImportDiffers(
        "the imported model and LiteRT differ",
        [[line] for line in str(report).splitlines()],
        hint="this is a defect of the import: please report the file; nothing was returned",
    )


def _amplified_noise(report: Report) -> float:
    """The noise ratio of the model itself, where that explains the difference; else 0."""
    ratios: dict[str, float] = {}
    for m in report.measurements:
        if m.problem or m.wrong:
            return 0.0
        ratios[m.subject] = max(ratios.get(m.subject, 0.0), m.ratio)
    noise = ratios.pop(report.subjects[0]["name"], 0.0)
    is_enough = noise > report.bands[0] and max(ratios.values(), default=0.0) <= AMPLIFIED * noise
    return noise if is_enough else 0.0


class Interpreted:
    """A file as a function of arrays, in LiteRT."""

    def __init__(self, graph: Graph, content: bytes, entry: tuple[str, Signature] | None = None):
        from ai_edge_litert.interpreter import Interpreter

        self.graph, self.content, self.entry = graph, content, entry
        self.interpreter = Interpreter(model_content=content)
        self.shapes: list[tuple[int, ...]] | None = None
        self.refusal: ImportRefused | None = None

    def __call__(self, *arrays: Any) -> Any:
        try:
            return self._results(arrays)
        except (RuntimeError, ValueError) as error:  # LiteRT's own
            self.refusal = ImportRefused(
                "LiteRT itself does not run this file, so nothing can be compared",
                [[line] for line in str(error).strip().splitlines()[:3]],
                hint="convert the model again, maybe with another quantization",
            )
            raise self.refusal from error

    def _results(self, arrays: Sequence[Any]) -> Any:
        values = [np.ascontiguousarray(a) for a in arrays]
        if self.entry is not None:
            return self._by_signature(*self.entry, values)
        shapes = [v.shape for v in values]
        if shapes != self.shapes:
            for index, shape in zip(self.graph.inputs, shapes):
                self.interpreter.resize_tensor_input(index, shape)
            self.interpreter.allocate_tensors()
            self.shapes = shapes
        for index, value in zip(self.graph.inputs, values, strict=True):
            self.interpreter.set_tensor(index, value)
        self.interpreter.invoke()
        results = tuple(self.interpreter.get_tensor(i) for i in self.graph.outputs)
        return results[0] if len(results) == 1 else results

    def _by_signature(self, name: str, signature: Signature, values: Sequence[Any]) -> Any:
        names = signature.names("inputs", self.graph.inputs)
        feeds = {n: v for n, v in zip(names, values, strict=True) if n is not None}
        outputs = self.interpreter.get_signature_runner(name)(**feeds)
        results = tuple(outputs[n] for n in signature.names("outputs", self.graph.outputs) if n)
        return results[0] if len(results) == 1 else results


def _bytes(tensor: Tensor) -> int:
    size = 1
    for dim in tensor.shape:
        size *= dim or 1
    return size * (0 if tensor.dtype is None else np.dtype(tensor.dtype).itemsize)


def _coarse(graph: Graph) -> list[Operator]:
    """The operators that LiteRT computes by tables or factors that are coarser than 16 bits."""
    return [
        operator
        for operator in graph.operators
        if operator.name in COARSE and graph.tensors[operator.inputs[0]].kind == "INT16"
    ]


def _samples(graph: Graph) -> int:
    if not _coarse(graph):
        return SAMPLES
    elements = sum(int(np.prod([d or 1 for d in graph.tensors[i].shape])) for i in graph.outputs)
    return int(np.clip(ENTRIES // max(elements, 1), SAMPLES, MOST_SAMPLES))


def _draws(model: Model, graph: Graph) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    draws = []
    for _ in range(_samples(graph)):
        feeds = {}
        for value, index in zip(model.inputs, graph.inputs, strict=False):
            shape = [d if isinstance(d, int) else 2 for d in value.shape or ()]
            dtype = np.dtype(graph.tensors[index].dtype)
            if dtype.kind == "f":
                feeds[value.name or ""] = rng.normal(size=shape).astype(dtype)
            elif dtype.kind == "b":
                feeds[value.name or ""] = rng.random(shape) < 0.5
            elif graph.tensors[index].is_quantized:
                limits = np.iinfo(dtype)
                integers = rng.integers(limits.min, limits.max, shape, endpoint=True)
                feeds[value.name or ""] = integers.astype(dtype)
            else:
                feeds[value.name or ""] = rng.integers(0, 2, shape).astype(dtype)
        draws.append(feeds)
    return draws


def _pairs(
    model: Model, graph: Graph, run: Interpreted, state: Mapping[str, Variable]
) -> list[list[tuple[Any, Any]]]:
    """For each output, what both give on each draw; variables go from call to call."""
    subject = OnnxSubject(model)
    passed = {variable.output for variable in state.values()}
    held = {name: variable.start for name, variable in state.items()}
    pairs: list[list[tuple[Any, Any]]] = [[] for _ in graph.outputs]
    for feeds in _draws(model, graph):
        results = subject({**feeds, **held})
        held = {name: results[v.output] for name, v in state.items()}
        ours = [value for name, value in results.items() if name not in passed]
        theirs = run(*feeds.values())
        theirs = theirs if isinstance(theirs, tuple) else (theirs,)
        for place, pair in enumerate(zip(ours, theirs)):
            pairs[place].append(pair)
    return pairs


def _quantum(graph: Graph, index: int) -> float:
    """The step of an output: 1 of integers; of floats, that of the integers they come from."""
    tensor = graph.tensors[index]
    if tensor.is_quantized:
        return _step(graph, index) / _scale(tensor)
    if np.dtype(tensor.dtype).kind != "f":
        return 1.0
    maker = _maker(graph, index)
    return max((_step(graph, i) for i in _quantized(graph, maker)), default=0.0)


def _step(graph: Graph, index: int) -> float:
    """What a tensor may be off by: its own step, and of a sum also that of the numbers in it."""
    maker = _maker(graph, index)
    parts = _quantized(graph, maker) if maker is not None and maker.name in ("ADD", "SUB") else []
    rounded = [_scale(graph.tensors[i]) for i in parts if _maker(graph, i) is not None]
    return _scale(graph.tensors[index]) + max(rounded, default=0.0)


def _scale(tensor: Tensor) -> float:
    assert tensor.scale is not None
    return float(tensor.scale.max())


def _maker(graph: Graph, index: int) -> Operator | None:
    """The operator that computes a tensor, if it may round otherwise than ONNX."""
    makers = (o for o in graph.operators if index in o.outputs and o.name != "QUANTIZE")
    return next(makers, None)


def _quantized(graph: Graph, operator: Operator | None) -> list[int]:
    places = [] if operator is None else operator.inputs
    return [i for i in places if i >= 0 and graph.tensors[i].is_quantized]


def _in_quanta(model: Model, graph: Graph, run: Interpreted, state: Mapping[str, Variable]) -> str:
    rows: list[list[object]] = []
    largest, strays, apart = 0.0, 0.0, 0.0
    for index, pairs in zip(graph.outputs, _pairs(model, graph, run, state)):
        quantum = _quantum(graph, index)
        if not _are_alike(pairs):
            rows.append([quote(graph.tensors[index].name), "has another shape"])
            apart = np.inf
            continue
        ours, theirs = _joined(pairs)
        steps = np.abs(ours - theirs) / (
            quantum or max(np.abs(theirs).max(initial=0.0) / 127, 1e-30)
        )
        stray = float((steps > 1.001).mean()) if steps.size else 0.0
        largest, strays = max(largest, float(steps.max(initial=0.0))), max(strays, stray)
        apart = max(apart, _relative(ours, theirs))
        if stray > STRAY or not (steps <= FEW_QUANTA).all():
            name = graph.tensors[index].name
            rows.append([quote(name), f"off by {steps.max():.1f} quanta", f"{stray:.1%} by over 1"])
    tables = _coarse(graph) if rows else []
    if tables:
        raise ImportRefused(
            "LiteRT computes these operators of 16 bits by coarse tables or factors, ONNX does not",
            [*([o.name, quote(graph.tensors[o.outputs[0]].name)] for o in tables), *rows],
            hint="import the file in float32 or int8; ONNX's operators are the more precise ones",
        )
    if rows and apart <= WHOLE and not state and run.entry is None:
        count = _alike(graph, run.content, _draws(model, graph))
        if count:
            return (
                f"within one quantum of LiteRT in each of {count} operators; within {largest:.2g} "
                f"quanta at the end, {1 - strays:.2%} within one"
            )
    if rows:
        raise ImportDiffers(
            "the imported model and LiteRT differ by more than one quantum", rows,
            hint="this is a defect of the import: please report the file; nothing was returned",
        )  # fmt: skip
    return f"within {largest:.2g} quanta of LiteRT, {1 - strays:.2%} within one"


def _relative(ours: np.ndarray, theirs: np.ndarray) -> float:
    size = float(np.sqrt(np.mean(theirs**2))) if theirs.size else 0.0
    return float(np.sqrt(np.mean((ours - theirs) ** 2))) / (size or 1.0) if theirs.size else 0.0


def _alike(graph: Graph, content: bytes, draws: Sequence[Mapping[str, Any]]) -> int:
    """How many operators give what LiteRT gives, each by itself; 0 if one of them does not."""
    places = set()
    for operator, index, array, other in replayed(graph, content, draws):
        if array.shape != other.shape:
            return 0
        ours, theirs = array.astype(np.float64).ravel(), other.astype(np.float64).ravel()
        if np.dtype(array.dtype).kind == "f":
            is_same = _relative(ours, theirs) <= (HYBRID if _quantized(graph, operator) else SINGLE)
        else:
            steps = np.abs(ours - theirs)
            is_same = bool((steps > 1.001).mean() <= STRAY and (steps <= FEW_QUANTA).all())
        if not is_same:
            return 0
        places.add(index)
    return len(places)


def _are_alike(pairs: Sequence[tuple[Any, Any]]) -> bool:
    return all(np.shape(a) == np.shape(b) for a, b in pairs)


def _joined(pairs: Sequence[tuple[Any, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """What both give on all draws, whose shapes may depend on the data, as two vectors."""
    ours, theirs = ([np.ravel(p[i]).astype(np.float64) for p in pairs] for i in (0, 1))
    return np.concatenate(ours), np.concatenate(theirs)


def _by_tolerance(
    model: Model, graph: Graph, run: Interpreted, state: Mapping[str, Variable], tolerance: float
) -> float:
    """The largest relative difference, which must be within a tolerance."""
    rows: list[list[object]] = []
    largest = 0.0
    for index, pairs in zip(graph.outputs, _pairs(model, graph, run, state)):
        if not _are_alike(pairs):
            rows.append([quote(graph.tensors[index].name), "has another shape"])
            continue
        ours, theirs = _joined(pairs)
        if not theirs.size:
            continue
        difference = _relative(ours, theirs)
        largest = max(largest, difference)
        if not difference <= tolerance:
            rows.append([quote(graph.tensors[index].name), f"relative difference {difference:.2g}"])
    if rows:
        raise ImportDiffers("the imported model and LiteRT differ", rows)
    return largest
