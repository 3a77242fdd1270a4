"""The official backend suite of onnx over one engine, in one process: what passes, by ONNX family.

    python -m tests.sweeps.backend --engine torch [--op Conv,MaxPool] [--family nn] [--name softmax] [--native] [-v]
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import getpass
import glob
import importlib
import io
import os
import pickle
import re
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx.numpy_helper

from sardonyx import opset
from sardonyx.errors import UnsupportedOp

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")


@dataclass
class Official:
    """One case of the suite."""

    name: str
    kind: str
    test: Any

    @property
    def model(self) -> onnx.ModelProto:
        if self.test.model is not None:
            return self.test.model
        return onnx.load(self.path)

    @property
    def path(self) -> Path:
        if self.test.model_dir is not None:
            return Path(self.test.model_dir) / "model.onnx"
        return Path(onnx.__file__).parent.parent / self.test.url

    @property
    def ops(self) -> list[tuple[str, str]]:
        return [(node.domain, node.op_type) for node in self.model.graph.node]

    def family(self) -> str:
        """The family of the operator that the case is named after: that of its last node."""
        if self.kind != "node":
            return self.kind
        stem = re.sub(r"_expanded.*", "", self.name.removeprefix("test_"))
        named = [f for key, f in FAMILIES if stem.startswith(key)]
        if named and "_expanded" in self.name:
            return named[0]
        domain, op = self.ops[-1]
        return opset.family(op, domain)

    def sets(self) -> Iterator[tuple[list[Any], list[Any]]]:
        if self.test.data_sets is not None:
            for given, expected in self.test.data_sets:
                yield [plain(v) for v in given], [plain(v) for v in expected]
            return
        graph = self.model.graph
        if self.test.model_dir is None:
            yield light_data(self.path, graph)
            return
        for folder in sorted(glob.glob(os.path.join(self.test.model_dir, "test_data_set*"))):
            yield (read(folder, "input", graph.input), read(folder, "output", graph.output))


def plain(value: Any) -> Any:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def read(folder: str, kind: str, values: Any) -> list[Any]:
    found = []
    for i in range(len(glob.glob(os.path.join(folder, f"{kind}_*.pb")))):
        data = Path(folder, f"{kind}_{i}.pb").read_bytes()
        if values[i].type.HasField("sequence_type"):
            found.append(onnx.numpy_helper.to_list(onnx.SequenceProto.FromString(data)))
        elif values[i].type.HasField("optional_type"):
            found.append(onnx.numpy_helper.to_optional(onnx.OptionalProto.FromString(data)))
        else:
            found.append(onnx.numpy_helper.to_array(onnx.TensorProto.FromString(data)))
    return found


def light_data(path: Path, graph: onnx.GraphProto) -> tuple[list[Any], list[Any]]:
    from onnx.backend.test.runner import Runner

    held = {t.name for t in graph.initializer}
    inputs = [Runner.generate_dummy_data(v) for v in graph.input if v.name not in held]
    outputs = []
    for i in range(len(graph.output)):
        data = path.with_name(f"{path.stem}_output_{i}.pb").read_bytes()
        outputs.append(onnx.numpy_helper.to_array(onnx.TensorProto.FromString(data)))
    return inputs, outputs


def cases() -> list[Official]:
    """All cases of the suite, in a fixed order; kept on disk, since onnx takes ten seconds to make them."""
    kept = Path(tempfile.gettempdir()) / f"onnx-suite-{onnx.__version__}-{getpass.getuser()}.pickle"
    if kept.exists():
        return pickle.loads(kept.read_bytes())
    found = _make_cases()
    partial = kept.with_suffix(f".{os.getpid()}")
    partial.write_bytes(pickle.dumps(found))
    partial.replace(kept)
    return found


def _make_cases() -> list[Official]:
    from onnx.backend.test.loader import load_model_tests

    found = []
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        for kind in KINDS:
            tests = sorted(load_model_tests(kind=kind), key=lambda t: t.name)
            found += [Official(t.name, kind, t) for t in tests]
    return found


FAMILIES: list[tuple[str, str]] = sorted(
    (
        (re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", op).lower(), opset.family(op, domain))
        for domain in opset.INSIDE
        for op in opset.live_ops(domain)
    ),
    key=lambda pair: -len(pair[0]),
)


def backend(engine: str) -> Any:
    return importlib.import_module(f"sardonyx.engines.{engine}").Backend


def check(case: Official, prepare: Any, **settings: Any) -> None:
    """Raise unless the engine gives what the case expects, by the suite's own comparison."""
    from onnx.backend.test.runner import Runner

    ready = prepare(case.model, **settings)
    for inputs, expected in case.sets():
        found = ready.run(inputs)
        Runner.assert_similar_outputs(
            expected, list(found), case.test.rtol, case.test.atol, case.test.model_dir
        )


def chosen(args: argparse.Namespace) -> list[Official]:
    found = cases()
    if args.op:
        wanted = set(args.op.split(","))
        found = [c for c in found if wanted & {op for _, op in c.ops}]
    if args.family:
        found = [c for c in found if c.family() in args.family.split(",")]
    if args.name:
        found = [c for c in found if re.search(args.name, c.name)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", default="numpy")
    parser.add_argument("--op", default="")
    parser.add_argument("--family", default="")
    parser.add_argument("--name", default="")
    parser.add_argument("--native", action="store_true", help="no nodes outside of the framework")
    parser.add_argument("-v", action="store_true", help="print every failure")
    args = parser.parse_args()
    prepare = backend(args.engine).prepare
    settings = {"fallback": "error"} if args.native else {}
    counts: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
    missing: collections.Counter[str] = collections.Counter()
    started = time.perf_counter()
    for case in chosen(args):
        family = case.family()
        counts[family][1] += 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                check(case, prepare, **settings)
            counts[family][0] += 1
        except UnsupportedOp as error:
            missing.update({row[0] for row in error.where})
        except Exception as error:
            if args.v:
                print(f"FAIL {family:18} {case.name:60} {type(error).__name__}: {brief(error)}")
    for op, count in missing.most_common():
        print(f"no rule: {op:30} {count:5} cases")
    for family, (good, every) in sorted(counts.items()):
        print(f"{family:20} {good:5} of {every:5}")
    good, every = (sum(c[i] for c in counts.values()) for i in (0, 1))
    print(f"{args.engine}: {good} of {every} in {time.perf_counter() - started:.0f} s")


def brief(error: Exception) -> str:
    return " | ".join(line.strip() for line in str(error).splitlines() if line.strip())[:230]


if __name__ == "__main__":
    main()
