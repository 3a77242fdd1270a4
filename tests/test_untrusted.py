"""Files nobody vouches for: bombs, broken structure, hostile names and random damage.

External data has its own file, `test_external.py`. Ids carry the number of the case.
"""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import onnx
import pytest
from google.protobuf.message import DecodeError
from onnx import AttributeProto, ModelProto, TensorProto, helper

import sardonyx
from sardonyx.errors import LimitExceeded, ModelError, SardonyxError
from sardonyx.limits import Limits, parse, read_file, scan
from tests.untrusted_models import (
    PAYLOAD,
    PLACES,
    X,
    as_initializer,
    attribute,
    chain,
    doubling_calls,
    endless_loop,
    external,
    function,
    graph,
    model,
    nested_ifs,
    node,
    raw,
    recursive_function,
)

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def through_gate(data: bytes) -> None:
    scan(parse(data, Limits()), Limits())


@pytest.fixture(params=[through_gate, sardonyx.load], ids=["gate", "load"])
def door(request):
    return request.param


def scanned(proto: ModelProto, **limits: int):
    return scan(proto, Limits(**limits))


def refusal(door, proto: ModelProto, error: type[Exception] = ModelError) -> str:
    with pytest.raises(error) as caught:
        door(proto.SerializeToString())
    message = str(caught.value)
    assert caught.value.hint
    assert len(message.encode()) < 4096
    assert all(c == "\n" or c.isprintable() for c in message)
    return message


# Bombs: what they cost is measured in one child process.

LIMITED = {
    "BOMB-02": doubling_calls(20),
    "BOMB-03": doubling_calls(30),
    "BOMB-04-direct": recursive_function(1),
    "BOMB-04-through-two": recursive_function(3),
    "BOMB-19": as_initializer(raw(FLOAT, [2**40, 2**30], bytes(4))),
    "BOMB-20": as_initializer(raw(FLOAT, [-1, 4], bytes(16))),
    "BOMB-21": as_initializer(raw(FLOAT, [2**32, 2**32 + 1], bytes(4))),
    "BOMB-21-zero": as_initializer(raw(FLOAT, [0, 2**62, 2**62], b"")),
    "BOMB-sparse": PLACES["sparse"](raw(FLOAT, [2], PAYLOAD)),
}
LIMITED["BOMB-sparse"].graph.sparse_initializer[0].dims[:] = [2**30]
LOADED = {
    "BOMB-01": doubling_calls(14),
    "BOMB-16": endless_loop(4 * 10**12),
    "BOMB-17": endless_loop(10**6, nested=True),
    "BOMB-18": nested_ifs(31),
}
MEASURE = """
import resource, sys, time
import sardonyx
from sardonyx.errors import ModelError
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
empty = open(sys.argv[1], "rb").read()
sardonyx.load(empty)
before = peak()
for name in sys.argv[2:]:
    start = time.perf_counter()
    try:
        sardonyx.load(name)
        outcome = "loaded"
    except ModelError:
        outcome = "refused"
    print(outcome, round(time.perf_counter() - start, 3), peak() - before)
"""


def test_bombs_stay_within_one_second_and_200_mb(tmp_path: Path) -> None:
    """The bound is the promise made to users, not a benchmark, so it is asserted here."""
    cases = {"empty": model(graph([node("Relu", "x", "y")]))} | LIMITED | LOADED
    for name, proto in cases.items():
        (tmp_path / name).write_bytes(proto.SerializeToString())
    run = [sys.executable, "-c", MEASURE, *(str(tmp_path / name) for name in cases)]
    done = subprocess.run(run, capture_output=True, text=True, check=True, timeout=60)
    rows = dict(zip(list(cases)[1:], (line.split() for line in done.stdout.splitlines())))
    assert len(rows) == len(LIMITED) + len(LOADED)
    assert {n for n, (outcome, *_) in rows.items() if outcome == "refused"} == set(LIMITED)
    assert {n: r for n, r in rows.items() if float(r[1]) > 1 or int(r[2]) > 200} == {}


@pytest.mark.parametrize("case", LIMITED)
def test_bomb_message(door, case: str) -> None:
    words = {
        "BOMB-02": "nodes is 1,048,576",
        "BOMB-03": "nodes is 1,073,741,824",
        "BOMB-04-direct": 'function "f0" → function "f0"',
        "BOMB-04-through-two": 'function "f0" → function "f1" → function "f2" → function "f0"',
        "BOMB-19": "about 2^72 bytes of data and has 4",
        "BOMB-20": "negative dimension -1",
        "BOMB-21": "about 2^66 bytes of data and has 4",
        "BOMB-21-zero": "about 2^126 bytes",
        "BOMB-sparse": "dense_bytes is 4,294,967,296",
    }
    assert words[case] in refusal(door, LIMITED[case])


def test_bomb_22_long_honest_chain_passes() -> None:
    assert scanned(chain(200_000)).nodes == 200_000


# The scan


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


def call_in_if() -> ModelProto:
    then = graph([node("local:f", "a", "t"), node("local:f", "t", "u")], "u", ())
    other = graph([node("Relu", "a", "e")], "e", ())
    condition = node("Cast", "a", "c", to=TensorProto.BOOL)
    branch = node("If", "c", "b", then_branch=then, else_branch=other)
    functions = [
        function("f", [node("Relu", "a", "p"), node("Neg", "p", "b")]),
        function("h", [condition, branch]),
    ]
    calls = [node("local:h", "x", "z"), node("local:h", "z", "y")]
    return model(graph(calls), functions)


def same_names() -> ModelProto:
    """Functions that differ only in domain or overload, of one, two and three nodes."""
    relus = [node("Relu", "a", "p"), node("Relu", "p", "q"), node("Relu", "q", "b")]
    two = [node("Relu", "a", "p"), node("Relu", "p", "b")]
    functions = [
        function("f", [node("Relu", "a", "b")]),
        function("f", two, domain="other"),
        function("f", relus, overload="wide"),
    ]
    calls = [node("local:f", "x", "s"), node("other:f", "s", "t"), node("local:f", "t", "y")]
    calls[2].overload = "wide"
    proto = model(graph(calls), functions)
    proto.opset_import.append(helper.make_opsetid("other", 1))
    return proto


@pytest.mark.parametrize("build", [lambda: doubling_calls(14), call_in_if, same_names])
def test_scan_02_count_equals_the_inlined_count(build) -> None:
    proto = build()
    assert scanned(proto).nodes == expanded_nodes(proto)


def graph_argument() -> ModelProto:
    """A function that puts the graph it is given into both branches, called by one that doubles."""
    branch = node("If", "c", "b")
    for name in ("then_branch", "else_branch"):
        kind = AttributeProto.GRAPH
        branch.attribute.append(AttributeProto(name=name, type=kind, ref_attr_name="body"))
    inner = function("f", [node("Cast", "a", "c", to=TensorProto.BOOL), branch])
    outer = function("h", [node("local:f", "a", "t"), node("local:f", "t", "b")])
    for made in (inner, outer):
        made.attribute.append("body")
    for n in outer.node:
        reference = AttributeProto(name="body", type=AttributeProto.GRAPH, ref_attr_name="body")
        n.attribute.append(reference)
    body = graph([node("Relu", "x", "p"), node("Neg", "p", "q"), node("Abs", "q", "r")], "r", ())
    return model(graph([node("local:h", "x", "y", body=body)]), [inner, outer])


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


def nested_type() -> ModelProto:
    proto = model(graph([node("Relu", "x", "y")]))
    tensor = helper.make_tensor_type_proto(FLOAT, [1])
    sequence = helper.make_sequence_type_proto(helper.make_sequence_type_proto(tensor))
    proto.graph.input.append(helper.make_value_info("s", sequence))
    return proto


def many() -> ModelProto:
    node_ = node("Split", " ".join(["x"] * 7), " ".join(f"o{i}" for i in range(7)), "s")
    node_.attribute.extend(helper.make_attribute(f"a{i}", i) for i in range(7))
    return model(graph([node_], "o0"))


BOUNDARIES = {
    "nodes": (doubling_calls(4), 16),
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


def test_scan_04_the_scan_comes_first(monkeypatch) -> None:
    """A refused model reaches neither the in-memory form nor anything that transforms it."""
    import onnx_ir

    def reached(*args, **options):
        raise AssertionError("a refused model went on")

    monkeypatch.setattr(onnx_ir.serde, "deserialize_model", reached)
    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", reached)
    with pytest.raises(LimitExceeded):
        sardonyx.load(doubling_calls(30))
    with pytest.raises(AssertionError):
        sardonyx.load(doubling_calls(3))


def test_scan_05_unused_functions_do_not_count() -> None:
    assert scanned(doubling_calls(40, used=False)).nodes == 1
    with pytest.raises(LimitExceeded, match="nodes is about 2"):
        scanned(doubling_calls(60))
    with pytest.raises(LimitExceeded, match="nodes is without end"):
        scanned(doubling_calls(300))


# Structure


def not_models() -> dict[str, bytes]:
    whole = chain(50).SerializeToString()
    rng = random.Random(7)
    deep = nested_ifs(33)
    return {
        "STR-01-33-nested-ifs": deep.SerializeToString(),
        "STR-01-truncated": whole[: len(whole) // 2],
        "STR-01-random": rng.randbytes(2000),
        "STR-01-empty": b"",
        "STR-01-text": b'<ir_version: 8, opset_import: ["" : 18]>\nagraph (float[N] x) => (y) {}',
        "STR-01-lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n",
        "STR-01-zip": b"PK\x03\x04" + bytes(40),
    }


@pytest.mark.parametrize("case", not_models())
def test_str_01_not_a_model(door, case: str) -> None:
    with pytest.raises(ModelError) as caught:
        door(not_models()[case])
    assert caught.value.hint
    if case != "STR-01-empty":
        cause = caught.value.__cause__
        assert isinstance(cause, DecodeError) or "no graph" in str(caught.value)
    if case == "STR-01-lfs":
        assert "git lfs pull" in caught.value.hint


def test_str_01_the_model_path(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe.onnx")
    for name in ("none.onnx", "pipe.onnx", "", "nul\0.onnx"):
        with pytest.raises(ModelError):
            sardonyx.load(str(tmp_path / name))


def test_str_02_everything_wrong_with_names_at_once(door) -> None:
    nodes = [
        node("Relu", "x", "a", "first"),
        node("Neg", "x", "a", "second"),
        node("Add", "x q", "p", "in_cycle_1"),
        node("Relu", "p", "q", "in_cycle_2"),
        node("Relu", "p", "after_cycle", "innocent"),
        node("Relu", "ghost", "y", "reader"),
        node("Relu", "y", "x", "writes_input"),
    ]
    message = refusal(door, model(graph(nodes, "y nobody")))
    assert "malformed in 5 places" in message
    assert 'node "second" (Neg)' in message and 'makes "a"' in message
    assert "a cycle of 2 nodes" in message and '"in_cycle_1"' in message
    assert '"innocent"' not in message
    assert 'reads "ghost", which nothing makes' in message
    assert 'output "nobody"' in message and "is made by nothing" in message
    assert 'makes "x", which is also an input' in message


def test_str_02_cycle_through_a_subgraph(door) -> None:
    then = graph([node("Relu", "z", "t")], "t", ())
    other = graph([node("Relu", "x", "e")], "e", ())
    branch = node("If", "c", "y", "branch", then_branch=then, else_branch=other)
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    proto = model(graph([branch, node("Relu", "y", "z", "back")], inputs=(X, condition)))
    assert "a cycle of 2 nodes" in refusal(door, proto)


def test_str_02_undefined_name_in_a_subgraph_and_a_function(door) -> None:
    then = graph([node("Relu", "ghost", "t", "deep")], "t", ())
    branch = node("If", "x", "y", "branch", then_branch=then, else_branch=then)
    body = [node("Add", "a x", "b", "looks_out")]
    proto = model(graph([branch]), [function("f", body)])
    message = refusal(door, proto)
    assert '"then_branch" › node "deep" (Relu)' in message
    assert 'function "f" › node "looks_out" (Add)' in message


LEGAL = {
    "unsorted": model(graph([node("Relu", "t", "y"), node("Neg", "x", "t")])),
    "numeric-and-odd-names": model(graph([node("Relu", "x", "1"), node("Neg", "1", "☃/:")], "☃/:")),
    "skipped-optionals": model(
        graph(
            [helper.make_node("Clip", ["x", "", ""], ["y"]), helper.make_node("LSTM", ["x"], [""])]
        )
    ),
    "initializer-is-input": model(
        graph(
            [node("Add", "x w", "y")],
            inputs=(X, helper.make_tensor_value_info("w", FLOAT, [2])),
            initializer=[raw(FLOAT, [2], PAYLOAD)],
        )
    ),
    "initializer-is-no-input": as_initializer(raw(FLOAT, [2], PAYLOAD)),
    "input-is-output": model(graph([], "x")),
    "initializer-is-output": model(graph([], "w", initializer=[raw(FLOAT, [2], PAYLOAD)])),
    "subgraph-captures-and-shadows": nested_ifs(3),
    "training-graph-reads-the-model": PLACES["training"](raw(FLOAT, [2], PAYLOAD)),
    "function-defined-after-its-caller": model(
        graph([node("local:f", "x", "y")]),
        [function("f", [node("local:g", "a", "b")]), function("g", [node("Relu", "a", "b")])],
    ),
    "graph-given-to-a-function": graph_argument(),
    "case-differs": model(graph([node("Relu", "x", "Y"), node("Neg", "Y", "y")])),
}


@pytest.mark.parametrize("case", LEGAL)
def test_str_02_legal_graphs_pass(door, case: str) -> None:
    door(LEGAL[case].SerializeToString())


def test_str_03_long_names(door) -> None:
    message = refusal(door, model(graph([node("Relu", "x", "y", "n" * 5000)])), LimitExceeded)
    assert "name_bytes is 5,000" in message and "n" * 200 not in message
    many_names = chain(2000)
    for i, n in enumerate(many_names.graph.node):
        n.name = f"{i:04}" * 1000
    with pytest.raises(LimitExceeded, match=r"total_name_bytes is 8,0\d\d,\d\d\d"):
        scanned(many_names, total_name_bytes=8_000_000)


HOSTILE = ["nul\0", "esc\x1b[31m", "line\nbreak", "rtl\u202e", "<script>", 'a"); x(', "__class__"]


@pytest.mark.parametrize("name", [*HOSTILE, "class", "../x", "X"])
def test_str_04_and_05_hostile_names_load_and_print_escaped(door, name: str) -> None:
    fine = model(graph([node("Relu", "x", "t", name), node("Neg", "t", "y", name)]))
    fine.doc_string = fine.graph.doc_string = fine.graph.node[0].doc_string = name
    fine.metadata_props.add(key=name, value=name)
    door(fine.SerializeToString())
    bad = model(graph([helper.make_node("Relu", [name + "?"], ["y"], name)]))
    message = refusal(door, bad)
    assert "which nothing makes" in message
    assert json.loads(json.dumps(message)) == message


def test_str_04_invalid_utf8_is_escaped_in_place() -> None:
    proto = model(graph([node("Relu", "x", "#t#", "#n#"), node("Neg", "#t#", "y")]))
    proto.doc_string = proto.graph.node[0].doc_string = proto.graph.node[1].doc_string = "#doc#"
    proto.metadata_props.add(key="#k#", value="#v#")
    data = proto.SerializeToString()
    damaged = parse(data.replace(b"#", b"\xff"), Limits())
    counts = scan(damaged, Limits())
    assert counts.repaired_texts == 8
    damaged.SerializeToString()
    assert damaged.graph.node[0].output[0] == damaged.graph.node[1].input[0] == r"\xfft\xff"
    assert damaged.doc_string == damaged.graph.node[1].doc_string == r"\xffdoc\xff"
    loaded = sardonyx.load(data.replace(b"#", b"\xff")).proto()
    assert loaded.graph.node[0].name == r"\xffn\xff"


@pytest.mark.parametrize("kind", ["inputs", "attributes", "defined-twice"])
def test_str_06_a_million_on_one_node(kind: str) -> None:
    proto = model(graph([node("Sum", "x", "y", "s")]))
    if kind == "inputs":
        proto.graph.node[0].input.extend(["x"] * 1_000_000)
    elif kind == "attributes":
        proto.graph.node[0].attribute.extend([AttributeProto(name="a", type=2, i=1)] * 1_000_000)
    else:
        proto.graph.node[0].output.extend(["y"] * 60_000)
    expected = "malformed in 60,000" if kind == "defined-twice" else f"node_{kind} is"
    with pytest.raises(ModelError, match=expected) as caught:
        scanned(proto)
    assert len(str(caught.value).encode()) < 4096


def tensor_of(data_type: int, dims: list[int], **fields: object) -> ModelProto:
    return as_initializer(TensorProto(name="w", data_type=data_type, dims=dims, **fields))


def reference_outside() -> ModelProto:
    return attribute(name="alpha", type=AttributeProto.FLOAT, ref_attr_name="alpha")


def sequence_of_nothing() -> ModelProto:
    proto = model(graph([node("Relu", "x", "y")]))
    proto.graph.input.add(name="s").type.sequence_type.SetInParent()
    return proto


def sparse_with(**fields: object) -> ModelProto:
    proto = PLACES["sparse"](raw(FLOAT, [2], PAYLOAD))
    sparse = proto.graph.sparse_initializer[0]
    for name, value in fields.items():
        getattr(sparse, name).CopyFrom(value)
    return proto


def indices(*numbers: int, dims: list[int] | None = None) -> TensorProto:
    return helper.make_tensor("", INT64, dims or [len(numbers)], numbers)


G = graph([node("Relu", "x", "y")])
MALFORMED = {
    "unknown-dtype": (tensor_of(99, [1], raw_data=b"1234"), "unknown data type 99"),
    "undefined-dtype": (tensor_of(0, [1], raw_data=b"1234"), "unknown data type 0"),
    "no-data": (tensor_of(FLOAT, [2]), "needs 2 entries of data and has 0"),
    "too-much-data": (tensor_of(FLOAT, [1], float_data=[1, 2]), "needs 1 entries"),
    "wrong-field": (tensor_of(FLOAT, [1], int64_data=[1]), "data in int64_data"),
    "two-fields": (tensor_of(FLOAT, [1], float_data=[1], raw_data=b"1234"), "data twice"),
    "raw-strings": (tensor_of(TensorProto.STRING, [1], raw_data=b"1234"), "data in raw_data"),
    "segment": (tensor_of(FLOAT, [1], raw_data=b"1234", segment={"begin": 0}), "segment"),
    "external-and-inline": (tensor_of(FLOAT, [1], raw_data=b"1", data_location=1), "both in"),
    "tag-disagrees": (attribute(name="v", type=AttributeProto.INT, f=1.0), "tagged INT"),
    "no-type": (attribute(name="v", i=1), "no type"),
    "no-value": (attribute(name="v", type=AttributeProto.TENSOR), "no value"),
    "no-name": (attribute(type=AttributeProto.INT, i=1), "has no name"),
    "two-graphs": (attribute(name="v", type=AttributeProto.GRAPH, g=G, graphs=[G]), "'graphs'"),
    "graphs-as-graph": (attribute(name="v", type=AttributeProto.GRAPH, graphs=[G, G]), "'graphs'"),
    "reference-outside": (reference_outside(), "outside any function"),
    "sequence-of-nothing": (sequence_of_nothing(), "without its elements' type"),
    "index-outside": (sparse_with(indices=indices(0, 8)), "index outside"),
    "index-negative": (sparse_with(indices=indices(-1, 2)), "index outside"),
    "index-count": (sparse_with(indices=indices(1)), "2 values and indices of shape [1]"),
    "indices-float": (sparse_with(indices=raw(FLOAT, [2], PAYLOAD, "")), "not INT64"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_str_07_malformed_tensors_and_attributes(door, case: str) -> None:
    proto, words = MALFORMED[case]
    message = refusal(door, proto)
    assert words in message
    assert ('node "k" (Relu), ' in message) == bool(proto.graph.node[0].attribute)


@pytest.mark.parametrize("name", sorted(set(TensorProto.DataType.keys()) - {"UNDEFINED"}))
@pytest.mark.parametrize("count", [0, 1, 5])
def test_str_07_tensors_of_every_type_pass(name: str, count: int) -> None:
    """As onnx itself writes them, packed and unpacked; one entry more or less is refused."""
    data_type = TensorProto.DataType.Value(name)
    filler = ["s"] * count if name == "STRING" else [1] * count
    typed = helper.make_tensor("w", data_type, [count], filler)
    scanned(as_initializer(typed))
    if name == "STRING":
        return
    packed = onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(typed), "w")
    assert packed.data_type == data_type
    scanned(as_initializer(packed))
    for wrong in (packed.raw_data + b"\0", packed.raw_data[1:] if count else b"\0"):
        with pytest.raises(ModelError, match="of data and has"):
            scanned(as_initializer(raw(data_type, [count], wrong)))


def test_str_08_low_recursion_limit() -> None:
    script = """
    import sys
    from tests import test_untrusted as t
    from sardonyx.limits import Limits, parse, scan
    from sardonyx.errors import ModelError
    deep = t.nested_ifs(90)
    functions = t.doubling_calls(500)
    chain = t.chain(5000)
    sys.setrecursionlimit(200)
    for name, proto in (t.LIMITED | dict(deep=deep, functions=functions)).items():
        try:
            scan(proto, Limits())
        except ModelError:
            continue
        raise SystemExit(name)
    for data in t.not_models().values():
        try:
            parse(data, Limits())
        except ModelError:
            continue
        raise SystemExit("parsed")
    scan(chain, Limits())
    """
    root = Path(__file__).parent.parent
    run = [sys.executable, "-c", textwrap.dedent(script)]
    subprocess.run(run, cwd=root, check=True, timeout=60)


def test_exe_03_no_network(monkeypatch) -> None:
    def refuse(*args, **options):
        raise AssertionError("a model made us open a socket")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    url = "https://example.com/x"
    proto = model(graph([node("Relu", "x", "y", url, doc=url)]))
    proto.doc_string = proto.producer_name = proto.domain = url
    proto.metadata_props.add(key=url, value=url)
    sardonyx.load(proto.SerializeToString())
    with pytest.raises(ModelError):
        sardonyx.load(as_initializer(external(location=url)).SerializeToString())


# Damage at random


def fuzz_seeds() -> list[bytes]:
    protos = [
        *LIMITED.values(),
        *LOADED.values(),
        *LEGAL.values(),
        *(p for p, _ in MALFORMED.values()),
    ]
    protos += [build(external(location="w.bin", length=8)) for build in PLACES.values()]
    protos += [same_names(), call_in_if(), graph_argument(), nested_type(), many(), chain(10)]
    return [p.SerializeToString() for p in protos]


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Damage in place keeps lengths right and gets past the parser; the rest tests the parser."""
    changed = bytearray(data)
    in_place = rng.random() < 0.7
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(changed) or 1)
        kind = rng.randrange(2 if in_place else 5)
        if kind == 0 and changed:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and changed:
            changed[at] = rng.choice((0, 1, 127, 128, 255))
        elif kind == 2:
            del changed[at : at + rng.randrange(1, 9)]
        elif kind == 3:
            changed[at:at] = rng.randbytes(rng.randrange(1, 9))
        else:
            start = rng.randrange(len(changed) or 1)
            changed[at:at] = changed[start : start + rng.randrange(1, 40)]
    return bytes(changed)


def outcome(data: bytes) -> str:
    """Which step refused `data`, if any; an exception that is not ours is a failure."""
    stage = "parse"
    try:
        proto = parse(data, Limits())
        stage = "scan"
        scan(proto, Limits())
        stage = "load"
        sardonyx.load(data)
        return "passed"
    except SardonyxError as error:
        assert len(str(error).encode()) < 4096
        return stage
    except Exception as error:
        raise AssertionError(f"{type(error).__name__} from {data.hex()}") from error


def fuzz(rounds: int, seed: int) -> None:
    rng, seeds = random.Random(seed), fuzz_seeds()
    outcomes = Counter(outcome(mutated(rng.choice(seeds), rng)) for _ in range(rounds))
    # All three ways out are taken: a fuzz that only ever met the parser would say nothing.
    assert all(outcomes[way] > rounds / 50 for way in ("parse", "scan", "passed")), outcomes


def test_err_03_fuzz() -> None:
    fuzz(2000, seed=1)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(2, 7))
def test_err_03_fuzz_nightly(seed: int) -> None:
    fuzz(10_000, seed)
