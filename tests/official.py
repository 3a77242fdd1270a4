"""The official backend suite of onnx: its cases, and its own comparison."""

from __future__ import annotations

import contextlib
import functools
import getpass
import glob
import hashlib
import io
import os
import pickle
import re
import tempfile
import tomllib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx.numpy_helper

from sardonyx import opset
from sardonyx.score.suite import light_data, plain, read

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")


@dataclass
class Official:
    """One case of the suite."""

    name: str
    kind: str
    test: Any

    @property
    def path(self) -> Path:
        if self.test.model_dir is not None:
            return Path(self.test.model_dir) / "model.onnx"
        return Path(onnx.__file__).parent.parent / self.test.url

    @property
    def model(self) -> onnx.ModelProto:
        return onnx.load(self.path) if self.test.model is None else self.test.model

    @property
    def ops(self) -> list[tuple[str, str]]:
        return [(node.domain, node.op_type) for node in self.model.graph.node]

    def family(self) -> str:
        """The family of the operator that a case is named after, or the part of the suite."""
        if self.kind != "node":
            return self.kind
        domain, op = self.ops[-1]
        last = opset.family(op, domain)
        if "_expanded" not in self.name:
            return last
        stem = self.name.removeprefix("test_").partition("_expanded")[0].replace("_", "")
        return next((f for key, f in families() if stem.startswith(key)), last)

    def sets(self) -> Iterator[tuple[list[Any], list[Any]]]:
        """Pairs of inputs and expected outputs."""
        if self.test.data_sets is not None:
            for inputs, expected in self.test.data_sets:
                yield [plain(v) for v in inputs], [plain(v) for v in expected]
        elif self.test.model_dir is None:
            yield light_data(self.path, self.model.graph)
        else:
            graph = self.model.graph
            for folder in sorted(glob.glob(os.path.join(self.test.model_dir, "test_data_set*"))):
                yield read(folder, "input", graph.input), read(folder, "output", graph.output)


@functools.cache
def families() -> list[tuple[str, str]]:
    """Names of operators in small letters with their family, longer names first."""
    pairs = [(op.lower(), opset.family(op, d)) for d in opset.INSIDE for op in opset.live_ops(d)]
    return sorted(pairs, key=lambda pair: -len(pair[0]))


@functools.cache
def cases() -> list[Official]:
    """All cases, in a fixed order; kept on disk, since onnx takes ten seconds to make them.

    They hold paths into the package, so each place where onnx is installed has cases of its own.
    """
    place = hashlib.sha256(str(Path(onnx.__file__).resolve()).encode()).hexdigest()[:8]
    name = f"onnx-suite-{onnx.__version__}-{getpass.getuser()}-{place}.pickle"
    kept = Path(tempfile.gettempdir()) / name
    if kept.exists():
        return pickle.loads(kept.read_bytes())
    result = _make_cases()
    partial = kept.with_suffix(f".{os.getpid()}")
    partial.write_bytes(pickle.dumps(result))
    partial.replace(kept)
    return result


def _make_cases() -> list[Official]:
    from onnx.backend.test.loader import load_model_tests

    result = []
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        for kind in KINDS:
            tests = sorted(load_model_tests(kind=kind), key=lambda t: t.name)
            result += [Official(t.name, kind, t) for t in tests]
    return result


def check(case: Official, prepare: Any, **settings: Any) -> None:
    """Raise unless the engine gives what the case expects, by the suite's own comparison."""
    from onnx.backend.test.runner import Runner

    ready = prepare(case.model, **settings)
    for inputs, expected in case.sets():
        result = ready.run(inputs)
        Runner.assert_similar_outputs(
            expected, list(result), case.test.rtol, case.test.atol, case.test.model_dir
        )


def known_failures(*sections: str) -> dict[str, str]:
    """Patterns of the cases that fail, with reasons: of `random`, `all`, or an engine."""
    listed = tomllib.loads((Path(__file__).parent / "known_failures.toml").read_text())["backend"]
    return {pattern: why for s in sections for pattern, why in listed.get(s, {}).items()}


def reason(known: dict[str, str], name: str) -> str | None:
    """Why a case is known to fail, or None."""
    return next((why for pattern, why in known.items() if re.fullmatch(pattern, name)), None)
