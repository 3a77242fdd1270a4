"""The official cases of the installed onnx, written out once: a model file and its data for each.

onnx makes most of its cases in memory, which takes a while; they are kept per version of onnx,
with an index (`Case`). Workers read the files, so that no engine needs the onnx of this process.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import hashlib
import io
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import onnx
import onnx.numpy_helper

from sardonyx import opset
from sardonyx.score import folders
from sardonyx.score.worker import pack, unpack

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")
FORM = 2  # of the files below: another form is another folder


@dataclass(frozen=True)
class Case:
    """One official case: a model, data sets of inputs with expected outputs, tolerances.

    op     -- the operator that the case is about, as `domain::name`; empty for whole networks
    ops    -- every operator in it, those of bodies too
    digest -- of everything that an engine is given and compared with
    """

    name: str
    kind: str
    op: str
    ops: tuple[str, ...]
    rtol: float
    atol: float
    sets: int
    digest: str

    @property
    def folder(self) -> Path:
        return folder() / self.name

    @property
    def model(self) -> Path:
        return self.folder / "model.onnx"

    def proto(self) -> onnx.ModelProto:
        return onnx.load(self.model)

    def inputs(self, index: int = 0) -> dict[str, Any]:
        """The values of one data set, by the names of the model's inputs."""
        return unpack((self.folder / f"inputs_{index}").read_bytes())

    def expected(self, index: int = 0) -> dict[str, Any]:
        return unpack((self.folder / f"expected_{index}").read_bytes())


def folder() -> Path:
    """Where the cases of the installed onnx are."""
    return folders.suite() / f"onnx-{onnx.__version__}-{FORM}"


def is_made() -> bool:
    """Whether the cases are written out already."""
    return (folder() / "index.json").exists()


@functools.cache
def cases() -> tuple[Case, ...]:
    """Every case, in a fixed order; made on the first call, which takes a minute."""
    if not is_made():
        _write_all(folder())
    rows = json.loads((folder() / "index.json").read_text())
    return tuple(Case(**{**row, "ops": tuple(row["ops"])}) for row in rows)


def by_name() -> dict[str, Case]:
    return {case.name: case for case in cases()}


def operators() -> dict[str, list[Case]]:
    """Operators with the cases about them; whole networks are under the name of their part."""
    cases_by_op: dict[str, list[Case]] = {}
    for case in cases():
        cases_by_op.setdefault(case.op or case.kind, []).append(case)
    return cases_by_op


# -- writing them out -------------------------------------------------------------------


def _write_all(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent))
    written = {test.name: _write(scratch / test.name, test, kind) for kind, test in _tests()}
    rows = [asdict(_of_its_sibling(case, written)) for case in written.values()]
    (scratch / "index.json").write_text(json.dumps(rows))
    try:
        scratch.rename(folder)
    except OSError:  # another process was quicker
        shutil.rmtree(scratch)


def _of_its_sibling(case: Case, cases: dict[str, Case]) -> Case:
    """A case made of a function's body is about the operator whose body it is."""
    sibling = cases.get(unexpanded(case.name), case)
    return replace(case, op=sibling.op)


def unexpanded(name: str) -> str:
    """The case that a case with an expanded body was made from."""
    return name.partition("_expanded")[0]


def _tests() -> Iterator[tuple[str, Any]]:
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # cases compute infinities and roll over integers
        for kind in KINDS:
            for test in sorted(load_model_tests(kind=kind), key=lambda t: t.name):
                yield kind, test


def _write(folder: Path, test: Any, kind: str) -> Case:
    folder.mkdir()
    model = test.model if test.model is not None else onnx.load(_path_of(test))
    data = model.SerializeToString(deterministic=True)
    (folder / "model.onnx").write_bytes(data)
    digest = hashlib.sha256(data)
    initializers = {t.name for t in model.graph.initializer}
    names = [i.name for i in model.graph.input]
    input_names = [n for n in names if n not in initializers]
    outputs = [o.name for o in model.graph.output]
    count = 0
    for count, (feeds, expected) in enumerate(_sets(test, model), 1):
        # Old files list weights as inputs; their data may or may not have them.
        inputs = dict(zip(names if len(feeds) > len(input_names) else input_names, feeds))
        for part, values in (
            ("inputs", inputs),
            ("expected", dict(zip(outputs, expected))),
        ):
            packed = pack(values)
            (folder / f"{part}_{count - 1}").write_bytes(packed)
            digest.update(packed)
    digest.update(f"{test.rtol} {test.atol}".encode())
    op, ops = _subject(test.name, kind, model)
    rtol, atol = float(test.rtol), float(test.atol)
    return Case(test.name, kind, op, ops, rtol, atol, count, digest.hexdigest())


def _path_of(test: Any) -> Path:
    if test.model_dir is not None:
        return Path(test.model_dir) / "model.onnx"
    return Path(onnx.__file__).parent.parent / test.url


def _sets(test: Any, model: onnx.ModelProto) -> Iterator[tuple[list[Any], list[Any]]]:
    if test.data_sets is not None:
        for inputs, expected in test.data_sets:
            yield [plain(v) for v in inputs], [plain(v) for v in expected]
    elif test.model_dir is None:
        yield light_data(_path_of(test), model.graph)
    else:
        for folder in sorted(glob.glob(os.path.join(test.model_dir, "test_data_set*"))):
            graph = model.graph
            yield read(folder, "input", graph.input), read(folder, "output", graph.output)


def plain(value: Any) -> Any:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def read(folder: str, kind: str, values: Any) -> list[Any]:
    """The values of one data set, in the message that the model's types ask for."""
    arrays: list[Any] = []
    for i in range(len(glob.glob(os.path.join(folder, f"{kind}_*.pb")))):
        data = Path(folder, f"{kind}_{i}.pb").read_bytes()
        if values[i].type.HasField("sequence_type"):
            arrays.append(onnx.numpy_helper.to_list(onnx.SequenceProto.FromString(data)))
        elif values[i].type.HasField("optional_type"):
            arrays.append(onnx.numpy_helper.to_optional(onnx.OptionalProto.FromString(data)))
        else:
            arrays.append(onnx.numpy_helper.to_array(onnx.TensorProto.FromString(data)))
    return arrays


def light_data(path: Path, graph: onnx.GraphProto) -> tuple[list[Any], list[Any]]:
    """The data of the real models, whose weights are made up: outputs lie beside the model."""
    from onnx.backend.test.runner import Runner

    initializers = {t.name for t in graph.initializer}
    inputs = [Runner.generate_dummy_data(v) for v in graph.input if v.name not in initializers]
    outputs = []
    for i in range(len(graph.output)):
        data = path.with_name(f"{path.stem}_output_{i}.pb").read_bytes()
        outputs.append(onnx.numpy_helper.to_array(onnx.TensorProto.FromString(data)))
    return inputs, outputs


# -- what a case is about -----------------------------------------------------------------


def nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph and of all graphs inside of it."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                yield from nodes(inner)


def every_node(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a model, those of its functions too."""
    yield from nodes(model.graph)
    for function in model.functions:
        for node in function.node:
            yield from nodes(onnx.GraphProto(node=[node]))


def spelled(op: str, domain: str = "") -> str:
    domain = opset.domain_name(domain)
    return f"{domain}::{op}" if domain else op


def _subject(name: str, kind: str, model: onnx.ModelProto) -> tuple[str, tuple[str, ...]]:
    ops = tuple(dict.fromkeys(spelled(n.op_type, n.domain) for n in every_node(model)))
    if kind != "node":
        return (ops[0] if len(ops) == 1 else ""), ops
    stem = name.removeprefix("test_").replace("_", "").lower()
    subject = next((spelled(op, d) for key, op, d in _known_ops() if stem.startswith(key)), "")
    top = [spelled(n.op_type, n.domain) for n in model.graph.node]
    return (subject if subject in top or unexpanded(name) != name else top[-1]), ops


@functools.cache
def _known_ops() -> tuple[tuple[str, str, str], ...]:
    """Operators with their name in small letters, longer names first."""
    every: Iterable[tuple[str, str, str]] = (
        (op.lower(), op, domain) for domain in opset.INSIDE for op in opset.live_ops(domain)
    )
    return tuple(sorted(every, key=lambda row: -len(row[0])))
