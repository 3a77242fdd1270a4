"""The count before expansion: what it costs, what it counts, and that it comes first."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from onnx import ModelProto, TensorProto, helper

from sardonyx.errors import LimitExceeded, ModelError
from sardonyx.limits import Limits, parse, read_file, scan

from .measure import COMMANDS
from .models import (
    PAYLOAD,
    PLACES,
    as_initializer,
    call_in_if,
    chain,
    doubling_calls,
    function,
    graph,
    graph_argument,
    many,
    model,
    nested_ifs,
    nested_type,
    node,
    raw,
    same_names,
)
from .ways_in import scanned

FLOAT = TensorProto.FLOAT


def test_scan_01_work_is_linear() -> None:
    """Counted in executed lines, which unlike seconds are the same on every machine."""
    counts = []
    for length in (1000, 2000, 4000):
        proto, lines = chain(length), [0]

        def trace(frame, event, arg, lines=lines):
            lines[0] += event == "line"
            return trace

        sys.settrace(trace)
        try:
            scan(proto, Limits())
        finally:
            sys.settrace(None)
        counts.append(lines[0])
    assert counts[1] < 2.1 * counts[0] and counts[2] < 2.1 * counts[1]


def expanded_nodes(proto: ModelProto) -> int:
    """The independent count: onnx's own inliner, then every node of every graph."""
    from onnx import inliner

    pending, count = [inliner.inline_local_functions(proto).graph], 0
    while pending:
        for n in pending.pop().node:
            count += 1
            pending += [a.g for a in n.attribute if a.HasField("g")]
    return count


@pytest.mark.parametrize(
    "build",
    [lambda: doubling_calls(14), call_in_if, same_names],
    ids=["14-levels", "in-if", "same-names"],
)
def test_scan_02_count_equals_the_inlined_count(build) -> None:
    proto = build()
    assert scanned(proto, expansion=10**6).nodes == expanded_nodes(proto)


def test_scan_02_graphs_given_to_functions_count_per_use() -> None:
    counts = scanned(graph_argument())
    assert counts.nodes == 2 * (2 + 2 * 3)  # twice: Cast, If, and three nodes in each branch
    assert (counts.call_depth, counts.subgraph_depth) == (2, 1)


def long_names() -> ModelProto:
    return model(graph([node("Relu", "x", "y", "n" * 50)]))


def imports() -> ModelProto:
    proto = model(graph([node("Relu", "x", "y")]))
    proto.opset_import.extend(helper.make_opsetid(f"d{i}", 1) for i in range(3))
    return proto


BOUNDARIES = {
    "nodes": (doubling_calls(4), 16),
    "expansion": (doubling_calls(13), -(-(2**13) // 28)),
    "call_depth": (doubling_calls(4), 5),
    "subgraph_depth": (nested_ifs(4), 4),
    "name_bytes": (long_names(), 50),
    "total_name_bytes": (long_names(), len("x" + "y" + "n" * 50 + "Relu" + "xyg" + "local")),
    "node_inputs": (many(), 7),
    "node_outputs": (many(), 7),
    "node_attributes": (many(), 7),
    "opset_imports": (imports(), 5),
    "type_depth": (nested_type(), 2),
    "tensor_rank": (as_initializer(raw(FLOAT, [1, 2, 1], PAYLOAD)), 3),
    "dense_bytes": (PLACES["sparse"](raw(FLOAT, [2], PAYLOAD)), 32),
}


@pytest.mark.parametrize("field", BOUNDARIES)
def test_scan_03_each_limit(field: str) -> None:
    proto, exact = BOUNDARIES[field]
    scanned(proto, **{field: exact})
    with pytest.raises(LimitExceeded) as caught:
        scanned(proto, **{field: exact - 1})
    assert f"{field} is {exact}" in str(caught.value)
    assert f"limit {exact - 1}" in str(caught.value)
    assert f"Limits({field}=...)" in caught.value.hint


def test_scan_03_file_bytes(tmp_path: Path) -> None:
    data = chain(3).SerializeToString()
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    parse(read_file(path, Limits(file_bytes=len(data))), Limits(file_bytes=len(data)))
    for refused in (lambda e: read_file(path, e), lambda e: parse(data, e)):
        with pytest.raises(LimitExceeded, match="file_bytes"):
            refused(Limits(file_bytes=len(data) - 1))


def test_scan_03_inlined_bytes() -> None:
    """A constant in a function counts once per call."""
    weights = raw(FLOAT, [1000], bytes(4000))
    body = [node("Constant", "", "w", value=weights), node("Add", "a w", "b")]
    calls = [node("local:f", "x" if i == 0 else f"t{i}", f"t{i + 1}") for i in range(100)]
    proto = model(graph(calls, "t100"), [function("f", body)])
    assert scanned(proto).inlined_bytes > 400_000
    with pytest.raises(LimitExceeded, match="inlined_bytes"):
        scanned(proto, inlined_bytes=400_000)


STAGES = {
    "in-memory form": ("onnx_ir.serde", "deserialize_model"),
    "inliner": ("sardonyx.normalize", "inline"),
    "version upgrade": ("sardonyx.normalize", "upgrade_graph"),
    "shape inference": ("sardonyx.normalize", "infer_shapes"),
    "folding": ("sardonyx.passes.folding", "evaluate"),
}


@pytest.mark.parametrize("command", ["load", "inspect", "check", "convert", "grad"])
@pytest.mark.parametrize("stage", STAGES)
def test_scan_04_the_scan_comes_first(
    command: str, stage: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A refused model reaches nothing that transforms it; a sound one does."""
    module, name = STAGES[stage]
    home = importlib.import_module(module)
    work, calls = getattr(home, name), []

    def spy(*given, **options):
        calls.append(name)
        return work(*given, **options)

    monkeypatch.setattr(home, name, spy)
    refused, sound = tmp_path / "refused.onnx", tmp_path / "sound.onnx"
    refused.write_bytes(doubling_calls(30).SerializeToString())
    sound.write_bytes(sized().SerializeToString())
    with pytest.raises(ModelError):
        COMMANDS[command](str(refused))
    assert not calls
    COMMANDS[command](str(sound))
    assert calls or (command == "load" and stage != "in-memory form")


def sized() -> ModelProto:
    """Shape arithmetic inside a function: every stage has something to do."""
    body = [
        node("Shape", "a", "s"),
        node("Constant", "", "k", value=helper.make_tensor("", TensorProto.INT64, [1], [-1])),
        node("Concat", "k s", "d", axis=0),
        node("Reshape", "a d", "b"),
    ]
    return model(graph([node("local:f", "x", "y")]), [function("f", body)])


def test_scan_05_unused_functions_do_not_count() -> None:
    assert scanned(doubling_calls(40, used=False)).nodes == 1
    with pytest.raises(LimitExceeded, match="nodes is about 2"):
        scanned(doubling_calls(60))
    with pytest.raises(LimitExceeded, match="nodes is without end"):
        scanned(doubling_calls(300))
