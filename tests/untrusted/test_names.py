"""Structure and names: files that are no models, graphs that cannot be, texts that attack."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from google.protobuf.message import DecodeError
from onnx import AttributeProto, ModelProto, TensorProto, helper

import sardonyx
from sardonyx.errors import LimitExceeded, ModelError
from sardonyx.limits import Limits, parse, scan

from .models import (
    PAYLOAD,
    PLACES,
    X,
    as_initializer,
    attribute,
    chain,
    function,
    graph,
    graph_argument,
    model,
    nested_ifs,
    node,
    raw,
)
from .ways_in import DOORS, refusal, scanned

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


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
@DOORS
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


@DOORS
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


@DOORS
def test_str_02_cycle_through_a_subgraph(door) -> None:
    then = graph([node("Relu", "z", "t")], "t", ())
    other = graph([node("Relu", "x", "e")], "e", ())
    branch = node("If", "c", "y", "branch", then_branch=then, else_branch=other)
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    proto = model(graph([branch, node("Relu", "y", "z", "back")], inputs=(X, condition)))
    assert "a cycle of 2 nodes" in refusal(door, proto)


@DOORS
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
@DOORS
def test_str_02_legal_graphs_pass(door, case: str) -> None:
    door(LEGAL[case].SerializeToString())


@DOORS
def test_str_03_long_names(door) -> None:
    message = refusal(door, model(graph([node("Relu", "x", "y", "n" * 5000)])), LimitExceeded)
    assert "name_bytes is 5,000" in message and "n" * 200 not in message
    many_names = chain(2000)
    for i, n in enumerate(many_names.graph.node):
        n.name = f"{i:04}" * 1000
    with pytest.raises(LimitExceeded, match=r"total_name_bytes is 8,0\d\d,\d\d\d"):
        scanned(many_names, total_name_bytes=8_000_000)


HOSTILE = {
    "nul": "nul\0",
    "escape": "esc\x1b[31m",
    "newline": "line\nbreak",
    "right-to-left": "rtl\u202e",
    "script": "<script>alert(1)</script>",
}
ODD = {
    "call": 'a"); x(',
    "dunder": "__class__",
    "keyword": "class",
    "path": "../x",
    "case": "X",
    "forward": "forward",
}


@DOORS
@pytest.mark.parametrize("case", HOSTILE | ODD)
def test_str_04_hostile_names_load_and_print_escaped(door, case: str) -> None:
    name = (HOSTILE | ODD)[case]
    fine = model(graph([node("Relu", "x", "t", name), node("Neg", "t", "y", name)]))
    fine.doc_string = fine.graph.doc_string = fine.graph.node[0].doc_string = name
    fine.metadata_props.add(key=name, value=name)
    door(fine.SerializeToString())
    bad = model(graph([helper.make_node("Relu", [name + "?"], ["y"], name)]))
    message = refusal(door, bad)
    assert "which nothing makes" in message
    assert json.loads(json.dumps(message)) == message


def named(name: str) -> ModelProto:
    """A small network in which everything that can have a name has this one."""
    weight = raw(FLOAT, [2], PAYLOAD, name)
    makes = helper.make_node("Mul", ["x", name], [f"{name}/out"], name, doc_string=name)
    main = helper.make_graph([makes], name, [X], [], [weight], doc_string=name)
    main.output.append(helper.make_tensor_value_info(f"{name}/out", FLOAT, [2]))
    proto = model(main)
    proto.producer_name = proto.doc_string = proto.domain = name
    proto.metadata_props.add(key=name, value=name)
    return proto


@pytest.mark.parametrize("case", HOSTILE | ODD)
def test_str_04_tables_and_json_are_escaped(case: str, tmp_path: Path, capsys) -> None:
    from sardonyx.cli.__main__ import main

    name = (HOSTILE | ODD)[case]
    path = tmp_path / "m.onnx"
    path.write_bytes(named(name).SerializeToString())
    for arguments in (["inspect", str(path)], ["check", str(path)], ["diff", str(path), str(path)]):
        with pytest.raises(SystemExit):
            main(arguments)
        shown = capsys.readouterr()
        assert all(c == "\n" or c.isprintable() for c in shown.out + shown.err), arguments
    with pytest.raises(SystemExit):
        main(["inspect", str(path), "--json"])
    result = json.loads(capsys.readouterr().out)
    assert result["tensors"][0]["name"] == name


def test_str_04_pages_are_escaped() -> None:
    from sardonyx import html_page as html

    for text in HOSTILE.values():
        page = html.page(text, text, html.section(text, html.table([text], [[text]])))
        assert "<script>alert" not in page
        assert not any(ord(c) < 32 and c not in "\n\t" for c in page)


@pytest.mark.parametrize("case", HOSTILE | ODD)
def test_str_05_a_name_becomes_no_attribute(case: str) -> None:
    """Names are keys of a state dict; a module's own attributes stay what they are."""
    torch = pytest.importorskip("torch")
    name = (HOSTILE | ODD)[case]
    module = sardonyx.to_torch(sardonyx.load(named(name)))
    plain = sardonyx.to_torch(sardonyx.load(named("w")))
    assert module.__class__ is plain.__class__
    assert callable(module.forward) and module.forward.__func__ is plain.forward.__func__
    assert set(dir(module)) - set(dir(plain)) <= {k.split(".")[0] for k in module.state_dict()}
    x = torch.ones(2)
    assert torch.equal(module(x), torch.tensor([1.0, 2.0]))


def test_str_05_names_that_differ_only_in_case() -> None:
    pytest.importorskip("torch")
    weights = [raw(FLOAT, [2], PAYLOAD, "W"), raw(FLOAT, [2], PAYLOAD[::-1], "w")]
    nodes = [node("Mul", "x W", "h"), node("Mul", "h w", "y")]
    proto = model(graph(nodes, initializer=weights))
    assert sorted(sardonyx.to_torch(sardonyx.load(proto)).state_dict()) == ["W", "w"]


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
@DOORS
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


LOW_RECURSION = """
import sys
from sardonyx.errors import SardonyxError
from tests.untrusted import bombs, measure, models, test_names
files = {name: p.SerializeToString() for name, p in bombs.BOMBS.items()}
files |= {name: p.SerializeToString() for name, (p, _) in test_names.MALFORMED.items()}
files |= test_names.not_models()
files["functions"] = models.doubling_calls(500).SerializeToString()
files["deep"] = models.nested_ifs(32).SerializeToString()
files["chain"] = models.chain(400).SerializeToString()
empty = models.chain(1).SerializeToString()
commands = [measure.COMMANDS[name] for name in ("load", "inspect", "check", "convert", "grad")]
for command in commands:  # what it imports, and what it caches, takes more than its work
    open("empty", "wb").write(empty)
    command("empty")
sys.setrecursionlimit(200)
for name, data in files.items():
    open("hostile", "wb").write(data)
    for command in commands:
        try:
            command("hostile")
        except SardonyxError:
            pass
        except BaseException as error:
            raise SystemExit(f"{command.__name__} {name}: {error!r}")
"""


def test_str_08_low_recursion_limit(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'src'}"}
    run = [sys.executable, "-c", LOW_RECURSION]
    done = subprocess.run(
        run, cwd=tmp_path, env=environment, timeout=120, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
