"""Round trips: load → save → onnxruntime, bit for bit against the original file, and the table.

    python tests/sweeps/roundtrip.py                          public models and the official suite
    python tests/sweeps/roundtrip.py --public --only silero   public models with a matching name
    python tests/sweeps/roundtrip.py --official --only lstm   the same of the official suite

Each file runs without onnxruntime's optimizations and with all of them: a graph that came back in
other words may be fused otherwise. What `load` or `save` refuse and onnxruntime runs counts as
different. Fails where one is. The normalized form is compared in tests/test_roundtrip.py.
"""

from __future__ import annotations

import argparse
import ctypes
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import numpy as np
import onnx
import onnxruntime as ort

from sardonyx.model import Model, load
from sardonyx.save import save
from tests import official, public_models, real_inputs

IDENTICAL, DIFFERS, NOT_RUN = "identical", "differs", "original not run by onnxruntime"
LEVELS = {
    "plain": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "optimized": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}

Feeds = dict[str, Any]


@dataclass
class Trip:
    """One model: its file, and one or more sets of inputs, made when the file has been loaded."""

    name: str
    path: Path
    feeds: Callable[[Model, list[str]], list[Feeds]]


@dataclass
class Verdict:
    """What came of one round trip, and why or by how much."""

    kind: str
    detail: str = ""
    opset: int = 0  # of the saved file

    def __str__(self) -> str:
        return {
            IDENTICAL: self.kind,
            DIFFERS: f"differs by {self.detail}",
        }.get(self.kind, f"{self.kind} ({self.detail})")


# Elements that the Python binding has no array for.
FOREIGN = re.compile(r"bfloat16|float8|float4|int4|int2")

# -- onnxruntime ----------------------------------------------------------------------


def session(path: Path, level: str = "plain") -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = LEVELS[level]
    options.intra_op_num_threads = 1
    ort.set_seed(0)  # generators without a seed of their own start here
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run(runner: ort.InferenceSession, feeds: Feeds) -> list[Any]:
    """The outputs; those that the Python binding has no array for come as their bytes."""
    ends = (*runner.get_inputs(), *runner.get_outputs())
    if not any(FOREIGN.search(end.type) for end in ends):
        return runner.run(None, feeds)
    names = [o.name for o in runner.get_outputs()]
    result = runner.run_with_ort_values(names, {k: _handed(v) for k, v in feeds.items()})
    return [_taken(value) for value in result]


def _handed(array: Any) -> ort.OrtValue:
    if array.dtype.isbuiltin == 1:
        return ort.OrtValue.ortvalue_from_numpy(array)
    element = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    if re.search("INT4|INT2|FLOAT4", onnx.TensorProto.DataType.Name(element)):
        raise TypeError(f"the Python binding takes no array of {array.dtype}")
    bits = np.ascontiguousarray(array).view(f"u{array.itemsize}")
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, element)


def _taken(value: ort.OrtValue) -> Any:
    if not value.is_tensor() or value.data_type() == "tensor(string)":
        return value.numpy()
    size = value.tensor_size_in_bytes()
    held = bytes((ctypes.c_uint8 * size).from_address(value.data_ptr())) if size else b""
    return (value.data_type(), tuple(value.shape()), held)


# -- comparison -----------------------------------------------------------------------


def difference(expected: Any, found: Any) -> str | None:
    """How two results differ, None where they are the same bit for bit."""
    if isinstance(expected, list):
        if not isinstance(found, list) or len(expected) != len(found):
            return "another number of results"
        parts = (difference(a, b) for a, b in zip(expected, found, strict=True))
        return next((part for part in parts if part is not None), None)
    if not isinstance(expected, np.ndarray):
        return None if type(expected) is type(found) and expected == found else "other values"
    if not isinstance(found, np.ndarray):
        return f"{type(found).__name__} instead of an array"
    was, now = (f"{a.dtype}{list(a.shape)}" for a in (expected, found))
    if was != now:
        return f"{now} instead of {was}"
    return _array_difference(expected, found)


def _array_difference(expected: np.ndarray, found: np.ndarray) -> str | None:
    if expected.dtype.kind in "OUS":
        return None if expected.tolist() == found.tolist() else "other strings"
    if expected.tobytes() == found.tobytes():
        return None
    with np.errstate(all="ignore"):
        apart = np.abs(found.astype(np.complex128) - expected.astype(np.complex128))
    largest = np.max(apart[np.isfinite(apart)], initial=0.0)
    return f"{largest:.3g} (greatest value {np.abs(expected.astype(np.complex128)).max():.3g})"


# -- one round trip -------------------------------------------------------------------


def judge(trip: Trip, folder: Path) -> Verdict:
    """Load and save one model, and run the original and what was saved on the same inputs."""
    try:
        names = [i.name for i in session(trip.path).get_inputs()]
    except Exception as error:  # onnxruntime's errors have no class of their own in common
        return Verdict(NOT_RUN, brief(error))
    try:
        model = load(trip.path)
        saved = save(model, folder / "saved.onnx")
    except Exception as error:
        return Verdict(DIFFERS, f"a refusal: {type(error).__name__}: {brief(error)}")
    if {v.name for v in model.inputs} != set(names):
        return Verdict(DIFFERS, f"its inputs: {[v.name for v in model.inputs]}, not {names}")
    verdict = Verdict(NOT_RUN, "no inputs are known", load(saved).opset)
    for level, feeds in product(LEVELS, trip.feeds(model, names)):
        verdict.kind, verdict.detail = _compare(trip.path, saved, feeds, level)
        if verdict.kind != IDENTICAL:
            break
    return verdict


def _compare(path: Path, saved: Path, feeds: Feeds, level: str) -> tuple[str, str]:
    try:
        expected = run(session(path, level), feeds)
    except Exception as error:
        return NOT_RUN, brief(error)
    try:
        result = run(session(saved, level), feeds)
    except Exception as error:
        return DIFFERS, f"a failure, {level}: {brief(error)}"
    apart = difference(expected, result)
    return (IDENTICAL, "") if apart is None else (DIFFERS, f"{apart}, {level}")


def brief(error: Exception) -> str:
    text = " ".join(str(error).split())
    status = r"^\[ONNXRuntimeError\] : \d+ : |Load model from \S+ failed:"
    place = r"/onnxruntime_src/.*?\)>? (\[with .*?\] )?(?=\w)"  # a line of its source, a signature
    return re.sub(f"{status}|{place}", "", text)[:200]


# -- the models -----------------------------------------------------------------------


def public(names: list[str] | None = None) -> Iterator[Trip]:
    """The real models, on inputs that are valid for each."""
    for name, path in public_models.models().items():
        if names is None or name in names:
            yield Trip(name, path, partial(_real, name))


def _real(name: str, model: Model, _: list[str]) -> list[Feeds]:
    return [real_inputs.inputs(name, model)]


def official_suite(folder: Path, pattern: str = "") -> Iterator[Trip]:
    """The cases of the official suite, on their own inputs; `folder` takes those without a file.

    Stored files of an earlier release follow where their opset is another one: onnxruntime takes
    them when the newest is beyond it.
    """
    stored = public_models.official_cases()
    for case in official.cases():
        if not re.search(pattern, case.name):
            continue
        path = case.path if case.test.model is None else folder / "original.onnx"
        if case.test.model is not None:
            path.write_bytes(case.model.SerializeToString())
        opset = _opset(path)
        yield Trip(case.name, path, partial(_given, case))
        older = stored[case.name] / "model.onnx" if case.name in stored else None
        if older is not None and _opset(older) != opset:
            yield Trip(f"{case.name} (stored)", older, partial(_stored, older))


def _given(case: official.Official, _: Model, wanted: list[str]) -> list[Feeds]:
    return [_named(wanted, inputs) for inputs, _ in case.sets()]


def _stored(path: Path, _: Model, wanted: list[str]) -> list[Feeds]:
    values = onnx.load(path, load_external_data=False).graph.input
    folders = sorted(path.parent.glob("test_data_set_*"))
    return [_named(wanted, official.read(str(folder), "input", values)) for folder in folders]


def _named(wanted: list[str], given: list[Any]) -> Feeds:
    arrays = [np.asarray(v) if isinstance(v, np.generic) else v for v in given]
    return dict(zip(wanted, arrays, strict=True))


def _opset(path: Path) -> int:
    proto = onnx.load(path, load_external_data=False)
    return max((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), default=0)


# -- the table ------------------------------------------------------------------------


def row(trip: Trip, verdict: Verdict) -> str:
    nodes = len(onnx.load(trip.path, load_external_data=False).graph.node)
    opset = _opset(trip.path)
    stamp = f"{opset}" if verdict.opset in (0, opset) else f"{opset}→{verdict.opset}"
    return f"{trip.name:60} {nodes:6}  {stamp:>6}  {verdict}"


def table(title: str, trips: Iterator[Trip], folder: Path) -> Counter[str]:
    print(f"{title:60} {'nodes':>6}  {'opset':>6}  verdict")
    counts: Counter[str] = Counter()
    for trip in trips:
        verdict = judge(trip, folder)
        counts[verdict.kind] += 1
        print(row(trip, verdict), flush=True)
    listed = ", ".join(f"{n} {kind}" for kind, n in counts.most_common())
    print(f"{title}: {counts.total()} models: {listed}\n")
    return counts


def main() -> int:
    raw = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--public", action="store_true", help="only the public models")
    parser.add_argument("--official", action="store_true", help="only the official suite")
    parser.add_argument("--only", default="", metavar="PATTERN", help="a regular expression")
    args = parser.parse_args()
    both = args.public == args.official
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if both or args.public:
            trips = (t for t in public() if re.search(args.only, t.name))
            counts += table("public models", trips, folder)
        if both or args.official:
            counts += table("official suite", official_suite(folder, args.only), folder)
    return int(counts[DIFFERS] > 0)


if __name__ == "__main__":
    sys.exit(main())
