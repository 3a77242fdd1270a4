"""Every adapter, against onnxruntime on the original model or the operator's old text."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import onnx.shape_inference
import onnx_ir as ir
import onnxruntime
import pytest

from sardonyx import opset
from sardonyx.errors import ModelError
from sardonyx.upgrades import upgrade_graph
from sardonyx.upgrades.driver import ADAPTERS
from tests.cases.opsets import CLASSIC, Old
from tests.cases.opsets_layers import MORE

OLD = [*CLASSIC, *MORE]
RUNTIME_OPSET = 26
# Kernels that onnxruntime lacks for the last version, which only adds bfloat16.
NO_KERNEL_FROM = {"GlobalLpPool": 22, "RoiAlign": 22}
ML = "ai.onnx.ml"
# ONNX marks them deprecated without a full replacement; see `upgrade_graph`.
KEPT = {(ML, "TreeEnsembleClassifier"), (ML, "TreeEnsembleRegressor")}
EXPERIMENTAL = {op for domain, op in ADAPTERS if not opset.history(op, domain)}
EXPERIMENTAL |= {"MeanVarianceNormalization"}
# Bumps that add an input, output or attribute and need no adapter, by the reason.
COMPATIBLE = {
    "select_last_index=0: the first of equal elements": "ArgMax-12 ArgMin-12",
    "nonpad_kv_seqlen left out: all keys; windows of -1: unbounded": "Attention-24 Attention-25",
    "count_include_pad=0: padding was never counted": "AveragePool-7",
    "ceil_mode=0, dilations of 1": "AveragePool-10 AveragePool-19 LpPool-18 MaxPool-10",
    "saturate=1, round_mode=up: for types that are new": "Cast-19 Cast-24 CastLike-19 CastLike-24",
    "another way to write the value": "Constant-11 Constant-12",
    "mode=DCR: the only order before": "DepthToSpace-11 SpaceToDepth-28",
    "axis means nothing for one scale; blocks and output types of 0: as before":
        "DequantizeLinear-13 DequantizeLinear-21 DequantizeLinear-23 QuantizeLinear-13"
        " QuantizeLinear-19 QuantizeLinear-21 QuantizeLinear-23",
    "layout=0: the sequence first": "GRU-14 LSTM-14 RNN-14",
    "batch_dims=0: no batch": "GatherND-12",
    "an input may be left out now": "Gemm-11 Loop-11 OptionalHasElement-18",
    "a second output may be asked for": "MaxPool-8",
    "axes left out: all axes": "Pad-18",
    "antialias=0, axes left out, stretch: as before": "Resize-18",
    "stash_type matters to 16-bit floats only, which are new": "Range-27",
    "allowzero=0: zero copies": "Reshape-14",
    "reduction=none: the last write wins": "ScatterElements-16 ScatterND-16",
    "start=0, end left out: the whole shape": "Shape-15",
    "largest=1, sorted=1": "TopK-11",
    "another way to write keys, values, weights":
        "LabelEncoder-4 TreeEnsembleClassifier-3 TreeEnsembleRegressor-3",
}  # fmt: skip
REASONS = {bump: reason for reason, bumps in COMPATIBLE.items() for bump in bumps.split()}
# They take or give what the one-node table cannot: bodies, optional values.
OUTSIDE_THE_TABLE = {"Loop", "Scan", "OptionalHasElement"}


def versions_of(case: Old) -> list[int]:
    """Every version that writes the node as the case does: up to the next adapter."""
    history = [s.since_version for s in opset.history(case.op, case.domain)]
    if case.op in EXPERIMENTAL:
        history = [7]
    later = [a.to for a in ADAPTERS.get((case.domain, case.op), ()) if a.to > case.since]
    last = 4 if case.domain else NO_KERNEL_FROM.get(case.op, RUNTIME_OPSET + 1) - 1
    end = min([*later, last + 1])
    return [v for v in history if max(case.since, min(history)) <= v < end]


def old_model(case: Old, version: int, shapes: bool = True) -> onnx.ModelProto:
    arrays = case.arrays()
    names = [f"x{i}" if a is not None else "" for i, a in enumerate(arrays)]
    node = onnx.helper.make_node(
        case.op, names, [f"y{i}" for i in range(case.outputs)], "the node", domain=case.domain,
        **case.attributes,
    )  # fmt: skip
    inputs, initializers = [], []
    for i, (name, a) in enumerate(zip(names, arrays, strict=True)):
        if a is None:
            continue
        kind = onnx.TensorProto.STRING if a.dtype == object else None
        kind = kind or onnx.helper.np_dtype_to_tensor_dtype(a.dtype)
        if i in case.constant:
            initializers.append(onnx.numpy_helper.from_array(a, name))
        else:
            shape = a.shape if shapes else None
            inputs.append(onnx.helper.make_tensor_value_info(name, kind, shape))
    types = case.types or (onnx.TensorProto.FLOAT,) * case.outputs
    outputs = [onnx.helper.make_tensor_value_info(f"y{i}", t, None) for i, t in enumerate(types)]
    graph = onnx.helper.make_graph([node], "old", inputs, outputs, initializers)
    return stamped(graph, {"": version} if not case.domain else {"": 8, case.domain: version})


def stamped(graph: onnx.GraphProto, imports: dict[str, int]) -> onnx.ModelProto:
    ids = [onnx.helper.make_opsetid(d, v) for d, v in imports.items()]
    return onnx.helper.make_model(graph, opset_imports=ids, ir_version=8)


def upgraded(proto: onnx.ModelProto, version: int | None = RUNTIME_OPSET) -> onnx.ModelProto:
    model = ir.serde.deserialize_model(proto)
    upgrade_graph(model.graph, dict(model.opset_imports))
    imports = dict.fromkeys(model.opset_imports, version) | {"": version}
    if ML in imports:
        imports[ML] = 4
    model.opset_imports.clear()
    model.opset_imports.update(imports)
    return ir.serde.serialize_model(model)


def run(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    # Rewriting a graph may fuse nodes: what is compared is the kernels.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    return session.run(None, feeds)


def feeds_of(case: Old) -> dict[str, np.ndarray]:
    pairs = enumerate(case.arrays())
    return {f"x{i}": a for i, a in pairs if a is not None and i not in case.constant}


def expected(case: Old, proto: onnx.ModelProto) -> list[Any]:
    if case.expect is None:
        return run(proto, feeds_of(case))
    with np.errstate(all="ignore"):
        result = case.expect(*(a for a in case.arrays() if a is not None))
    return result if isinstance(result, list) else [result]


def assert_same(got: list[Any], want: list[Any], tol: float) -> None:
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert g.shape == w.shape
        if tol:
            assert g.dtype == w.dtype or w.dtype.kind == g.dtype.kind
            np.testing.assert_allclose(g, w, rtol=tol, atol=tol)
        else:
            np.testing.assert_array_equal(g, w)


EACH = [
    pytest.param(case, version, id=f"{case}-at-{version}")
    for case in OLD
    for version in versions_of(case)
]


@pytest.mark.parametrize("shapes", [True, False], ids=["shapes", "no-shapes"])
@pytest.mark.parametrize(("case", "version"), EACH)
def test_values_stay(case: Old, version: int, shapes: bool) -> None:
    proto = old_model(case, version, shapes)
    new = upgraded(proto, NO_KERNEL_FROM.get(case.op, RUNTIME_OPSET + 1) - 1)
    result = run(new, feeds_of(case))
    if case.check is not None:
        case.check(case.arrays(), result)
    else:
        assert_same(result, expected(case, proto), case.tol)
    node = next(n for n in new.graph.node if "y0" in n.output)
    assert node.name == "the node"
    if (case.domain, case.op) not in KEPT:
        assert_valid(upgraded(proto, opset.OPSET))


def assert_valid(proto: onnx.ModelProto) -> None:
    """The checker's word on every node, and consistent types and shapes."""
    context = onnx.checker.C.CheckerContext()
    context.ir_version = proto.ir_version
    context.opset_imports = {o.domain: o.version for o in proto.opset_import}
    for node in proto.graph.node:
        onnx.checker.check_node(node, context)
    onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)


def test_resize_has_scales_or_sizes_and_a_region_only_to_crop() -> None:
    for case in (c for c in OLD if c.op == "Resize" and c.since < 13):
        new = upgraded(old_model(case, case.since), opset.OPSET)
        for node in (n for n in new.graph.node if n.op_type == "Resize"):
            assert sum(map(bool, node.input[2:])) == 1
            crops = case.attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize"
            assert bool(node.input[1]) == crops
            modes = {a.name: a.s for a in node.attribute}
            if modes.get("nearest_mode") == b"floor":
                assert modes["coordinate_transformation_mode"] != b"tf_half_pixel_for_nn"


OFFICIAL = Path(onnx.__file__).parent / "backend" / "test" / "data"


@pytest.mark.parametrize(
    "folder",
    sorted(p for kind in ("converted", "operator") for p in OFFICIAL.glob(f"pytorch-{kind}/*")),
    ids=lambda folder: folder.name,
)
def test_models_of_opset_6_give_the_outputs_that_the_suite_stored(folder: Path) -> None:
    proto = onnx.load(folder / "model.onnx")
    inputs = {i.name for i in proto.graph.initializer}
    names = [i.name for i in proto.graph.input if i.name not in inputs]
    new = upgraded(proto)
    new.ir_version = 8
    for data in folder.glob("test_data_set_*"):

        def read(kind: str, i: int, data: Path = data) -> np.ndarray:
            return onnx.numpy_helper.to_array(onnx.load_tensor(data / f"{kind}_{i}.pb"))

        result = run(new, {name: read("input", i) for i, name in enumerate(names)})
        want = [read("output", i) for i in range(len(result))]
        for g, w in zip(result, want, strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-3, atol=1e-5)  # the suite's own tolerance


# -- all changes are covered -----------------------------------------------------------------

Bump = tuple[opset.Schema, opset.Schema]


def bumps() -> Iterator[Bump]:
    for domain, op in sorted({(s.domain, s.name) for s in opset._all_schemas()}):
        history = opset.history(op, domain)
        yield from itertools.pairwise(history)


def named(bump: Bump) -> str:
    return f"{bump[1].name}-{bump[1].since_version}"


def breaks(bump: Bump) -> list[str]:
    """What a node written for the old version may have that the new one does not take."""
    a, b = bump
    result = ["deprecated"] if b.deprecated and not a.deprecated else []
    for kind, before, after in (("input", a.inputs, b.inputs), ("output", a.outputs, b.outputs)):
        result += [f"{kind} {p.name} is gone" for p in list(before)[len(after) :]]
        for i, new in enumerate(after):
            required = new.option not in (opset.Optional, opset.Variadic)
            if i >= len(before):
                result += [f"{kind} {new.name} is required"] if required else []
                continue
            if set(before[i].types) - set(new.types):
                result.append(f"{kind} {new.name} takes fewer types")
            if required and before[i].option == opset.Optional:
                result.append(f"{kind} {new.name} is required")
    for name, old in a.attributes.items():
        new = b.attributes.get(name)
        if new is None:
            result.append(f"attribute {name} is gone")
        elif old.type != new.type or (new.required and not old.required):
            result.append(f"attribute {name} is written otherwise")
        elif old.default_value != new.default_value:
            result.append(f"attribute {name} has another default")
    new_required = (n for n, v in b.attributes.items() if v.required and n not in a.attributes)
    return result + [f"attribute {name} is required" for name in new_required]


def adds(bump: Bump) -> bool:
    """Whether the new version has an input, output or attribute that the old one had not."""
    a, b = bump
    sizes = [(a.inputs, b.inputs), (a.outputs, b.outputs), (a.attributes, b.attributes)]
    relaxed = a.min_input > b.min_input or any(
        old.required and name in b.attributes and not b.attributes[name].required
        for name, old in a.attributes.items()
    )
    return relaxed or any(len(new) > len(old) for old, new in sizes)


def has_adapter(bump: Bump) -> bool:
    known = ADAPTERS.get((bump[1].domain, bump[1].name), ())
    return any(a.to == bump[1].since_version for a in known)


def test_every_breaking_change_has_an_adapter() -> None:
    missing = {
        named(b): breaks(b)
        for b in bumps()
        if breaks(b) and not has_adapter(b) and (b[1].domain, b[1].name) not in KEPT
    }
    assert not missing


def test_every_addition_has_an_adapter_or_a_reason() -> None:
    added = {named(b) for b in bumps() if adds(b) and not has_adapter(b)}
    assert added - set(REASONS) == set()
    assert set(REASONS) - added == set()


def test_every_addition_has_a_case_on_both_sides() -> None:
    """The old form at a version before the addition; the run at 26 is the other side."""
    covered = {(c.op, v) for c in OLD for v in versions_of(c)}
    missing = [
        named(b)
        for b in bumps()
        if named(b) in REASONS
        and b[1].name not in OUTSIDE_THE_TABLE
        and not any(op == b[0].name and v == b[0].since_version for op, v in covered)
    ]
    assert not missing


def test_every_adapter_has_a_case_of_the_version_before() -> None:
    missing = []
    for (domain, op), adapters in ADAPTERS.items():
        starts = [s.since_version for s in opset.history(op, domain)]
        for adapter in adapters:
            if op in EXPERIMENTAL | OUTSIDE_THE_TABLE:
                continue
            before = max(v for v in starts if v < adapter.to)
            if not any(c.op == op and before in versions_of(c) for c in OLD):
                missing.append(f"{op}-{adapter.to}")
    assert not missing
    assert {c.op for c in OLD} >= EXPERIMENTAL


def test_adapters_live_with_their_family_and_are_named_after_their_versions() -> None:
    shared = {"broadcast_1_7": "math", "reducesum_11_13": "reduction"}
    for (domain, op), adapters in ADAPTERS.items():
        for adapter in adapters:
            name = adapter.function.__name__
            home = adapter.function.__module__.rpartition(".")[2]
            if home != "experimental":
                assert home == shared.get(name, opset.family(op, domain)), name
            start, end = map(int, re.fullmatch(r"[a-z_]+_(\d+)_(\d+)", name).groups())
            assert start < adapter.to
            assert end == adapter.to or name in shared
            assert list(inspect.signature(adapter.function).parameters) == ["op", "node"]


@pytest.mark.parametrize("version", range(1, opset.OPSET + 1))
def test_other_bumps_leave_nodes_alone(version: int) -> None:
    nodes = []
    for op in sorted({s.name for s in opset._all_schemas() if s.domain == ""}):
        schema = opset.schema(op, "", version)
        if schema is None or any(a.to > version for a in ADAPTERS.get(("", op), ())):
            continue
        inputs = [f"{op}{i}" for i in range(schema.min_input)]
        outputs = [f"{op}-out{i}" for i in range(max(schema.min_output, 1))]
        nodes.append(onnx.helper.make_node(op, inputs, outputs, op))
    assert len(nodes) > 25
    graph = onnx.helper.make_graph(nodes, "bare", [], [])
    for name in {name for node in nodes for name in node.input}:
        graph.input.add().name = name
    model = ir.serde.deserialize_model(stamped(graph, {"": version}))
    upgrade_graph(model.graph, {"": version})
    assert list(ir.serde.serialize_model(model).graph.node) == nodes


# -- bodies, names, versions -----------------------------------------------------------------

SCAN_8 = """<ir_version: 8, opset_import: ["": 8]>
agraph (HEAD float[2, 3] start, float[2, 4, 3] xs)
    => (float[2, 3] last, float[2, 4, 3] sums) {
    last, sums = Scan <num_scan_inputs = 1, DIRECTIONS body = step
        (float[3] before, float[3] x) => (float[3] after, float[3] out) {
            after = Add(before, x)
            out = Mul(after, two)
        }> (LENGTHS, start, xs)
}"""


@pytest.mark.parametrize("lengths", [False, True], ids=["all", "lengths"])
@pytest.mark.parametrize("back", [False, True], ids=["forward", "back"])
def test_scan_8_keeps_its_batch(lengths: bool, back: bool) -> None:
    text = SCAN_8.replace("DIRECTIONS", "directions = [1]," if back else "")
    text = text.replace("HEAD", "int64[2] n, float[1] two," if lengths else "float[1] two,")
    proto = onnx.parser.parse_model(text.replace("LENGTHS", "n" if lengths else '""'))
    if not lengths:
        assert proto.graph.node[0].input[0] == ""
    random = np.random.default_rng(0)
    feeds = {"start": random.normal(size=(2, 3)), "xs": random.normal(size=(2, 4, 3)), "two": [2.0]}
    feeds = {k: np.array(v, np.float32) for k, v in feeds.items()}
    if lengths:
        feeds["n"] = np.array([4, 2])
    assert_same(run(upgraded(proto), feeds), run(proto, feeds), 0.0)


LOOP_1 = """<ir_version: 8, opset_import: ["": 1]>
agraph (int64 n, bool go, float[2, 2] x) => (float[2, 2] y, float all) {
    y, all = Loop (n, go, x) <body = step
        (int64 i, bool going, float[2, 2] before)
            => (bool on, float[2, 2] after, float[2, 2] seen) {
            on = Identity(going)
            after = Mul(before, before)
            seen = Softmax <axis = 0> (after)
        }>
}"""


def test_loop_1_and_its_body() -> None:
    x = np.float32([[0.1, 0.2], [0.3, 0.4]])
    feeds = {"n": np.array(2), "go": np.array(True), "x": x}
    y, seen = run(upgraded(onnx.parser.parse_model(LOOP_1)), feeds)
    soft = [np.exp(v) / np.exp(v).sum() for v in (x**2, x**4)]
    np.testing.assert_allclose(y, x**4, rtol=1e-6)
    np.testing.assert_allclose(seen, soft, rtol=1e-6)


BODIES = """<ir_version: 8, opset_import: ["": 11]>
agraph (bool c, float[2, 3, 4] x) => (float[2, 3, 4] y, float[2, 3, 4] z) {
    probabilities = Softmax <axis = 1> (x)
    y = If (c) <
        then_branch = yes () => (float[2, 3, 4] a) {
            inner = Softmax <axis = 1> (probabilities)
            a = Clip (inner, low)
        },
        else_branch = no () => (float[2, 3, 4] b) {
            flat = Squeeze <axes = [0]> (wide)
            b = Add (flat, probabilities)
        }
    >
    low = Constant <value_float = 0.05> ()
    wide = Unsqueeze <axes = [0]> (x)
    z = Hardmax <axis = 1> (x)
}"""


def bodies() -> onnx.ModelProto:
    proto = onnx.parser.parse_model(BODIES.replace("value_float = 0.05", "value = float {0.05}"))
    nodes = list(proto.graph.node)
    order = [0, 2, 3, 1, 4]
    proto.graph.ClearField("node")
    proto.graph.node.extend(nodes[i] for i in order)
    return proto


@pytest.mark.parametrize("condition", [True, False])
def test_bodies_and_what_they_capture(condition: bool) -> None:
    proto = bodies()
    x = np.random.default_rng(1).normal(size=(2, 3, 4)).astype(np.float32)
    feeds = {"c": np.array(condition), "x": x}
    new = upgraded(proto)
    assert_same(run(new, feeds), run(proto, feeds), 0.0)
    onnx.checker.check_model(upgraded(proto, opset.OPSET), full_check=True)


def names_in(graph: onnx.GraphProto) -> set[str]:
    result = {name for node in graph.node for name in node.output}
    for node in graph.node:
        for attribute in node.attribute:
            result |= names_in(attribute.g) if attribute.HasField("g") else set()
    return result


def test_names_and_metadata_stay() -> None:
    proto = bodies()
    for node in proto.graph.node:
        node.name = f"named/{node.op_type}"
        node.metadata_props.add(key="scope", value=node.op_type)
    new = upgraded(proto)
    assert names_in(proto.graph) <= names_in(new.graph)
    assert [o.name for o in new.graph.output] == ["y", "z"]
    by_name = {n.name: n for n in new.graph.node}
    for node in proto.graph.node:
        kept = by_name[node.name]
        assert set(kept.output) == set(node.output)
        assert {p.key: p.value for p in kept.metadata_props} == {"scope": node.op_type}
    values = [name for node in new.graph.node for name in node.output]
    assert len(values) == len(set(values))


def test_names_that_are_taken_are_not_given_again() -> None:
    text = """<ir_version: 8, opset_import: ["": 11]>
    agraph (float[2, 3, 4] x) => (float[2, 3, 4] y, float const) {
        y = Softmax <axis = 1> (x)
        const = ReduceSum <axes = [0, 1, 2], keepdims = 0> (x)
    }"""
    new = upgraded(onnx.parser.parse_model(text))
    values = [name for node in new.graph.node for name in node.output]
    assert len(values) == len(set(values))
    assert values.count("const") == 1


def graph_of(text: str) -> ir.Graph:
    return ir.serde.deserialize_model(onnx.parser.parse_model(text)).graph


SUM = """<ir_version: 8, opset_import: ["": 11, "com.acme": 3]>
agraph (float[2, 3] x) => (float[2] y) { y = %s <axes = [1], keepdims = 0> (x) }"""


def test_the_versions_that_count() -> None:
    custom = graph_of(SUM % "com.acme.ReduceSum")
    upgrade_graph(custom, {"": 11, "com.acme": 3})
    assert "axes" in custom[0].attributes
    current = graph_of(SUM % "ReduceSum")
    upgrade_graph(current, {"com.acme": 3})
    assert "axes" in current[0].attributes
    spelled = graph_of(SUM % "ReduceSum")
    upgrade_graph(spelled, {"ai.onnx": 11})
    assert "axes" not in spelled[-1].attributes
    own = graph_of(SUM % "ReduceSum")
    own[0].version = 12
    upgrade_graph(own, {"": opset.OPSET})
    assert "axes" not in own[-1].attributes


def test_a_function_gets_constant_nodes_and_no_initializers() -> None:
    text = """<ir_version: 8, opset_import: ["": 11, "local": 1]>
    agraph (float[2, 3] x) => (float[2] y) { y = local.total (x) }
    <domain: "local", opset_import: ["": 11]>
    total (x) => (y) { y = ReduceSum <axes = [1], keepdims = 0> (x) }"""
    model = ir.serde.deserialize_model(onnx.parser.parse_model(text))
    (function,) = model.functions.values()
    upgrade_graph(function.graph, dict(function.opset_imports))
    assert [n.op_type for n in function] == ["Constant", "ReduceSum"]
    function.opset_imports[""] = model.opset_imports[""] = RUNTIME_OPSET
    (y,) = run(ir.serde.serialize_model(model), {"x": np.float32([[1, 2, 3], [4, 5, 6]])})
    np.testing.assert_array_equal(y, [6, 15])


def test_an_attribute_of_the_function_around_is_an_error() -> None:
    text = """<ir_version: 8, opset_import: ["": 11, "local": 1]>
    agraph (float[2, 3] x) => (float[2] y) { y = local.total <over = [1]> (x) }
    <domain: "local", opset_import: ["": 11]>
    total <over> (x) => (y) { y = ReduceSum <axes: ints = @over, keepdims = 0> (x) }"""
    model = ir.serde.deserialize_model(onnx.parser.parse_model(text))
    (function,) = model.functions.values()
    with pytest.raises(ModelError, match="inline"):
        upgrade_graph(function.graph, {"": 11})


@pytest.mark.parametrize(
    "node",
    [
        "Slice (x)",
        "Slice <starts = 1, ends = 2> (x)",
        "Tile (x)",
        'Cast <to = "SHOE"> (x)',
        "Cast <to = 1> (x)",
        "Upsample (x)",
        "Scan (x)",
        "BatchNormalization (x)",
        "Add <broadcast = 1, axis = 0> (x)",
        'Softmax <axis = "first"> (x)',
    ],
)
def test_a_malformed_node_is_one_clear_error(node: str) -> None:
    text = """<ir_version: 8, opset_import: ["": 1]>
    agraph (float[2, 3] x) => (float[2] y) { y = %s }"""
    graph = graph_of(text % node)
    graph[0].name = "bad"
    with pytest.raises(ModelError, match='node "bad"'):
        upgrade_graph(graph, {"": 1})
