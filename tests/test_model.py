"""The way in and the way out: what survives, what a kill leaves, which versions come out."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import numpy as np
import onnx
import onnx.external_data_helper as external_data
import onnx.helper as helper
import onnx.numpy_helper as numpy_helper
import onnx.parser
import onnxruntime as ort
import pytest

from sardonyx import versions
from sardonyx.errors import ModelError, SardonyxError, VersionError
from sardonyx.model import Model, load
from sardonyx.normalize import normalize
from sardonyx.save import save
from sardonyx.versions import fit, target
from sardonyx.versions.features import least_ir

FLOAT = onnx.TensorProto.FLOAT


def parsed(text: str, opset: int = 22, ir: int = 10) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(f'<ir_version: {ir}, opset_import: ["": {opset}]> ' + text)
    for node in proto.graph.node:
        node.ClearField("domain")
    return proto


def linear(size: int = 32, value: float = 1.0) -> onnx.ModelProto:
    proto = parsed(f"g (float[N,{size}] x) => (float[N,{size}] y) {{ y = MatMul(x, w) }}")
    weight = np.full((size, size), value, np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    return proto


def session(source: str | Path | onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    data = source.SerializeToString() if isinstance(source, onnx.ModelProto) else str(source)
    return ort.InferenceSession(data, options)


def siblings(path: Path) -> list[str]:
    return sorted(p.name for p in path.parent.iterdir())


# -- what survives ----------------------------------------------------------------------


def with_record(proto: onnx.ModelProto, slot: np.ndarray) -> onnx.ModelProto:
    info = proto.training_info.add()
    info.algorithm.CopyFrom(
        helper.make_graph(
            [
                helper.make_node("Add", ["w", "slot"], ["w_new"], name="update"),
                helper.make_node("ReduceSum", ["slot", "axes"], ["total"], keepdims=0),
            ],
            "algorithm",
            [helper.make_tensor_value_info("target", FLOAT, ["N"])],
            [helper.make_tensor_value_info("w_new", FLOAT, None)],
            [
                numpy_helper.from_array(slot, "slot"),
                numpy_helper.from_array(np.array([0]), "axes"),
            ],
        )
    )
    info.update_binding.add(key="w", value="w_new")
    info.initialization.CopyFrom(
        helper.make_graph(
            [helper.make_node("RandomNormal", [], ["start"], shape=[2, 2])],
            "initialization",
            [],
            [helper.make_tensor_value_info("start", FLOAT, [2, 2])],
        )
    )
    info.initialization_binding.add(key="w", value="start")
    return proto


@pytest.mark.parametrize("external", [None, True], ids=["inline", "external"])
def test_training_records_survive(tmp_path: Path, external: bool | None) -> None:
    slot = np.arange(1024, dtype=np.float32).reshape(32, 32)
    original = with_record(linear(), slot)
    path = save(load(original), tmp_path / "m.onnx", external=external)
    (record,) = load(path).records
    np.testing.assert_array_equal(record.state["slot"].numpy(), slot)
    assert record.update_binding == [("w", "w_new")]
    assert record.initialization_binding == [("w", "start")]
    written = onnx.load(path, load_external_data=False)
    info, before = written.training_info[0], original.training_info[0]
    assert info.algorithm.node == before.algorithm.node
    assert info.algorithm.input == before.algorithm.input
    assert info.algorithm.output == before.algorithm.output
    assert info.initialization == before.initialization
    outside = {t.name: t.data_location for t in written.training_info[0].algorithm.initializer}
    assert outside["slot"] == (onnx.TensorProto.EXTERNAL if external else onnx.TensorProto.DEFAULT)


def test_names_metadata_and_documentation_survive(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Add", ["1", "a b"], ["ß/c:0"], name="7", doc_string="why")],
        "odd",
        [helper.make_tensor_value_info(n, FLOAT, ["", 2]) for n in ("1", "a b")],
        [helper.make_tensor_value_info("ß/c:0", FLOAT, ["N", 2])],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    proto.metadata_props.add(key="author", value="somebody")
    proto.producer_name, proto.doc_string = "maker", "a model"
    proto.graph.node[0].metadata_props.add(key="k", value="v")
    save(load(proto), tmp_path / "m.onnx")
    assert onnx.load(tmp_path / "m.onnx") == proto


def test_map_and_sequence_types_survive(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [
            helper.make_node(
                "ZipMap", ["x"], ["m"], domain="ai.onnx.ml", classlabels_int64s=[4, 5]
            ),
            helper.make_node("SequenceConstruct", ["x", "x"], ["s"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", FLOAT, ["N", 2])],
        [
            helper.make_value_info(
                "m",
                helper.make_sequence_type_proto(
                    helper.make_map_type_proto(
                        onnx.TensorProto.INT64, helper.make_tensor_type_proto(FLOAT, [])
                    )
                ),
            ),
            helper.make_tensor_sequence_value_info("s", FLOAT, None),
        ],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=8)
    for model in (load(proto), normalize(load(proto))):
        path = save(model, tmp_path / "m.onnx")
        maps, sequence = session(path).run(None, {"x": np.array([[1, 2]], np.float32)})
        assert maps == [{4: 1.0, 5: 2.0}]
        assert len(sequence) == 2


def test_sparse_tensors_become_dense(tmp_path: Path) -> None:
    values = numpy_helper.from_array(np.array([1.0, 2.0], np.float32), "w")
    indices = numpy_helper.from_array(np.array([0, 3]))
    sparse = helper.make_sparse_tensor(values, indices, [5])
    proto = parsed("g (float[5] x) => (float[5] y) { t = Add(x, w) y = Add(t, c) }")
    proto.graph.sparse_initializer.append(sparse)
    proto.graph.node.insert(0, helper.make_node("Constant", [], ["c"], sparse_value=sparse))
    path = save(load(proto), tmp_path / "m.onnx")
    (result,) = session(path).run(None, {"x": np.zeros(5, np.float32)})
    assert result.tolist() == [2, 0, 0, 4, 0]


def test_an_unsorted_graph_is_sorted(tmp_path: Path) -> None:
    proto = parsed("g (float[2] x) => (float[2] y) { h = Neg(x) y = Exp(h) }")
    proto.graph.node.reverse()
    path = save(load(proto), tmp_path / "m.onnx")
    onnx.checker.check_model(path)


# -- external data ----------------------------------------------------------------------


def test_external_data_lies_beside_the_model(tmp_path: Path) -> None:
    path = save(load(linear(value=3.0)), tmp_path / "tuned.onnx", external=True)
    data = [name for name in siblings(path) if name != "tuned.onnx"]
    assert len(data) == 1 and data[0].startswith("tuned.onnx.") and data[0].endswith(".data")
    (y,) = session(path).run(None, {"x": np.ones((1, 32), np.float32)})
    assert (y == 96).all()
    np.testing.assert_array_equal(load(path).initializer("w").numpy(), np.full((32, 32), 3.0))
    reference = onnx.load(path)
    np.testing.assert_array_equal(numpy_helper.to_array(reference.graph.initializer[0]), 3.0)


def test_a_threshold_decides_what_goes_outside(tmp_path: Path) -> None:
    proto = parsed("g (float[2] x) => (float[2] y) { h = Add(x, small) y = Add(h, large) }")
    for name, size in (("small", 2), ("large", 2000)):
        proto.graph.initializer.append(numpy_helper.from_array(np.zeros(size, np.float32), name))
    path = save(load(proto), tmp_path / "m.onnx", external=4000)
    written = onnx.load(path, load_external_data=False)
    where = {t.name: external_data.uses_external_data(t) for t in written.graph.initializer}
    assert where == {"small": False, "large": True}


@pytest.mark.parametrize("name", ["BFLOAT16", "FLOAT8E4M3FN", "INT4", "UINT4", "BOOL", "DOUBLE"])
def test_every_element_type_round_trips_outside(tmp_path: Path, name: str) -> None:
    kind = onnx.TensorProto.DataType.Value(name)
    raw = np.random.default_rng(0).integers(0, 2, 4001)
    tensor = helper.make_tensor("w", kind, [4001], raw)
    graph = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["y"])],
        "g",
        [],
        [helper.make_tensor_value_info("y", kind, [4001])],
        [tensor],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    path = save(load(proto), tmp_path / "m.onnx", external=True)
    (written,) = onnx.load(path).graph.initializer
    np.testing.assert_array_equal(numpy_helper.to_array(written), numpy_helper.to_array(tensor))
    assert load(path).initializer("w").tobytes() == load(proto).initializer("w").tobytes()


def test_saving_over_itself_keeps_the_data(tmp_path: Path) -> None:
    path = save(load(linear(value=5.0)), tmp_path / "m.onnx", external=True)
    first = siblings(path)
    model = load(path)
    save(model, path, external=True)
    assert len(siblings(path)) == 2 and siblings(path) != first
    np.testing.assert_array_equal(load(path).initializer("w").numpy(), np.full((32, 32), 5.0))
    save(load(path), path, external=False)
    assert siblings(path) == ["m.onnx"]
    assert load(path).initializer("w").numpy()[0, 0] == 5.0


def test_files_of_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    others = [
        "m.onnx.data",
        "m.onnx.zzzzzz.data",
        "other.onnx.abcdef.data",
        "m.onnx.abcdef.data.bak",
    ]
    for name in others:
        (tmp_path / name).write_bytes(b"theirs")
    (tmp_path / "m.onnx.abcdef.data").write_bytes(b"left by an earlier save")
    save(load(linear()), path, external=True)
    assert set(others) <= set(siblings(path)) and "m.onnx.abcdef.data" not in siblings(path)


def test_the_layout_of_a_download_cache(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "0a1b"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    staged = tmp_path / "staged"
    staged.mkdir()
    onnx.save(
        linear(value=2.0),
        staged / "model.onnx",
        save_as_external_data=True,
        location="model.onnx_data",
        size_threshold=0,
    )
    for name, blob in (("model.onnx", "a" * 64), ("model.onnx_data", "b" * 64)):
        (staged / name).rename(blobs / blob)
        (snapshot / name).symlink_to(f"../../blobs/{blob}")
    model = load(snapshot / "model.onnx")
    np.testing.assert_array_equal(model.initializer("w").numpy(), np.full((32, 32), 2.0))
    save(model, snapshot / "model.onnx", external=True)
    assert not (snapshot / "model.onnx").is_symlink()
    assert (blobs / ("a" * 64)).exists() and (blobs / ("b" * 64)).exists()
    assert load(snapshot / "model.onnx").initializer("w").numpy()[0, 0] == 2.0


# -- a save is whole or it is not ---------------------------------------------------------


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(load(linear(value=1.0)), tmp_path / "m.onnx", external=True)
    before = {name: (tmp_path / name).read_bytes() for name in siblings(path)}

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SardonyxError, match="No space left"):
        save(load(linear(value=2.0)), path, external=True)
    assert {name: (tmp_path / name).read_bytes() for name in siblings(path)} == before


def test_a_disk_that_is_full_at_the_end_of_a_file_leaves_nothing_behind(tmp_path: Path) -> None:
    """The last bytes wait in a buffer, which closing the file tries to write once more."""
    resource = pytest.importorskip("resource")
    model = load(linear(value=1.0))
    size = save(model, tmp_path / "m.onnx").stat().st_size
    (tmp_path / "m.onnx").unlink()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size - 100, limits[1]))
    try:
        with pytest.raises(SardonyxError, match="File too large"):
            save(model, tmp_path / "m.onnx")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert not list(tmp_path.iterdir())


def test_a_missing_folder_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(SardonyxError, match="cannot write"):
        save(load(linear()), tmp_path / "nowhere" / "m.onnx")


# -- versions ------------------------------------------------------------------------------


def test_a_model_that_the_target_takes_is_not_touched(tmp_path: Path) -> None:
    proto = parsed("g (float[2] x) => (float[2] y) { y = Relu(x) }", 15, 8)
    assert onnx.load(save(load(proto), tmp_path / "m.onnx")) == proto


def test_the_defaults_of_the_onnx_package_come_out_loadable(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", FLOAT, [2])],
        [helper.make_tensor_value_info("y", FLOAT, [2])],
    )
    proto = helper.make_model(graph)
    with pytest.raises(Exception, match=r"(?i)opset|ir.version"):
        session(proto)
    session(save(load(proto), tmp_path / "m.onnx"))


RESTAMPED = [
    ("y = Relu(x)", 13),
    ("y = Softmax(x)", 13),
    ("s = Shape(x) y = Reshape(x, s)", 13),
    ("s = Shape(x) y = Reshape<allowzero=1>(x, s)", 14),
    ("s = Shape<start=0>(x) y = Reshape(x, s)", 13),
    ("s = Shape<end=2>(x) y = Reshape(x, s)", 15),
    ("a = Constant<value_ints=[1]>() y = ReduceMean(x, a)", 18),
    ("a = Constant<value_ints=[1]>() y = ReduceSum(x, a)", 13),
    ("y = Gelu(x)", 20),
    ("y = LayerNormalization(x, x)", 17),
    ("y = RMSNormalization(x, x)", 23),
]


@pytest.mark.parametrize(("body", "expected"), RESTAMPED, ids=[b for b, _ in RESTAMPED])
def test_the_lowest_opset_that_the_graph_needs(body: str, expected: int) -> None:
    # The numbers are from ONNX's change log: the version that brought the form, 13 for older ones.
    model = load(parsed(f"g (float[2,3] x) => (float[n,m] y) {{ {body} }}", 28, 14))
    assert fit(model, runtime="onnxruntime==1.31").opset == expected


DOWNGRADED = [
    ("y = ReduceMean(x, a)", 17),
    ("y = ReduceMax(x)", 17),
    ("y = ReduceLogSumExp(x, a)", 17),
    ("y, z = Split<axis=2, num_outputs=2>(x)", 17),
    ("y = Gelu(x)", 17),
    ('y = Gelu<approximate="tanh">(x)', 17),
    ("y = Swish(x)", 20),
    ("y = RMSNormalization(x, s)", 21),
    ("y = GroupNormalization<num_groups=2>(x, g, g)", 18),
    ("y = HardSwish(x)", 13),
    ("y = Mish(x)", 17),
    ("y = LayerNormalization(x, s)", 16),
    ("y = SwiGLU(x, x)", 26),
    ("y = Clip(x, lo)", 13),
    ('y = GridSample<mode="cubic">(i, q)', 19),
]


@pytest.mark.parametrize(("body", "ceiling"), DOWNGRADED, ids=[b for b, _ in DOWNGRADED])
def test_older_words_say_the_same(body: str, ceiling: int) -> None:
    rank = "n,m,k,l" if "GridSample" in body else "n,m,k"
    proto = parsed(
        f"""g (float[2,4,6] x, float[1,1,4,5] i, float[1,3,3,2] q) => (float[{rank}] y)
        <int64[1] a = {{1}}, float[6] s = {{1.0, 2.0, 3.0, 4.0, 5.0, 6.0}},
         float[4] g = {{1.0, 2.0, 3.0, 4.0}}, float lo = {{-0.25}}> {{ {body} }}""",
        28,
        14,
    )
    rng = np.random.default_rng(3)
    feeds = {
        "x": rng.standard_normal((2, 4, 6)).astype(np.float32),
        "i": rng.standard_normal((1, 1, 4, 5)).astype(np.float32),
        "q": rng.uniform(-0.9, 0.9, (1, 3, 3, 2)).astype(np.float32),
    }
    if target("onnxruntime").opset < ceiling:
        pytest.skip(f"this onnxruntime does not take opset {ceiling}")
    fitted = fit(load(proto), opset=ceiling)
    assert fitted.opset == ceiling
    onnx.checker.check_model(fitted.proto(), full_check=True)
    from onnx.reference import ReferenceEvaluator

    expected = ReferenceEvaluator(proto).run(None, feeds)
    (result,) = session(fitted.proto()).run(["y"], feeds)
    np.testing.assert_allclose(result, expected[0], rtol=2e-4, atol=1e-5)


def test_random_operators_come_out_where_onnxruntime_has_them(tmp_path: Path) -> None:
    proto = parsed("g (float[2] x) => (float[2] y) { y = RandomNormalLike(x) }", 22)
    with pytest.raises(Exception, match=r"(?i)not_implemented|implementation"):
        session(proto)
    (y,) = session(save(load(proto), tmp_path / "m.onnx")).run(None, {"x": np.zeros(2, np.float32)})
    assert y.shape == (2,)


def test_opsets_below_what_the_runtime_takes_come_up(tmp_path: Path) -> None:
    proto = parsed(
        "g (float[2,3] x) => (float[2,3] y) <float[2] b = {1.0, 2.0}>"
        "{ y = Add<axis=0, broadcast=1>(x, b) }",
        6,
        3,
    )
    proto.graph.input.append(helper.make_tensor_value_info("b", FLOAT, [2]))
    with pytest.raises(Exception, match=r"(?i)implementation"):
        session(proto)
    (y,) = session(save(load(proto), tmp_path / "m.onnx")).run(
        None, {"x": np.zeros((2, 3), np.float32)}
    )
    assert y.tolist() == [[1, 1, 1], [2, 2, 2]]


def test_everything_that_blocks_is_listed_at_once() -> None:
    text = """g (float[2] x) => (int32[2] y, float[2] z) {
        y = BitCast<to=6>(x)
        z = CumProd(x, a)
    }"""
    proto = parsed(text, 28, 14)
    proto.graph.initializer.append(numpy_helper.from_array(np.array(0), "a"))
    with pytest.raises(VersionError) as caught:
        fit(load(proto), runtime="onnxruntime==1.20")
    assert {row[0] for row in caught.value.where} == {"BitCast", "CumProd"}


def test_types_decide_how_far_down_an_operator_goes() -> None:
    # ONNX's change log: Relu of integers came with 14, Relu of floats was there before.
    for kind, expected in (("float", 13), ("int32", 14)):
        text = f"g ({kind}[2] x) => ({kind}[2] y) {{ y = Relu(x) }}"
        assert fit(load(parsed(text, 28, 14)), runtime="onnxruntime==1.31").opset == expected


def test_records_are_fitted_with_the_graph() -> None:
    proto = with_record(linear(), np.zeros((32, 32), np.float32))
    proto.opset_import[0].version, proto.ir_version = 28, 14
    node = proto.training_info[0].algorithm.node.add()
    node.CopyFrom(helper.make_node("ReduceMax", ["slot", "axes"], ["most"], keepdims=0))
    fitted = fit(load(proto), opset=17)
    nodes = {n.op_type: n for n in fitted.records[0].algorithm}
    assert [v.name for v in nodes["ReduceSum"].inputs if v is not None] == ["slot", "axes"]
    assert fitted.opset == 17 and fitted.ir.ir_version == 7
    assert load(proto).proto().training_info[0].algorithm.node[-1] == node


def test_ir_follows_the_features() -> None:
    plain = parsed("g (float[2] x) => (float[2] y) { y = Relu(x) }", 22)
    assert least_ir(load(plain)) == 3
    assert least_ir(load(linear())) == 4
    defaulted = parsed("g (float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }", 22)
    defaulted.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(2, np.float32), "w"))
    assert least_ir(load(defaulted)) == 4
    assert least_ir(load(with_record(linear(), np.zeros((2, 2), np.float32)))) == 7
    noted = parsed("g (float[2] x) => (float[2] y) { y = Relu(x) }", 22)
    noted.graph.node[0].metadata_props.add(key="k", value="v")
    assert least_ir(load(noted)) == 10
    small = parsed("g (float4e2m1[2] x) => (float4e2m1[2] y) { y = Identity(x) }", 23, 11)
    assert least_ir(load(small)) == 11
    with pytest.raises(VersionError, match=r"FLOAT4E2M1|IR 11"):
        fit(load(small), runtime="onnxruntime==1.31", ir=10)


def test_a_release_of_the_runtime_is_a_target() -> None:
    assert (target("onnxruntime==1.31.1").opset, target("onnxruntime==1.31").ir) == (26, 13)
    assert target("onnxruntime==1.19").opset == target("onnxruntime==1.18").opset
    assert target(None).opset == versions.NEWEST[""]
    for wrong in ("tensorrt", "onnxruntime==0.5"):
        with pytest.raises(SardonyxError):
            target(wrong)


# What releases said when they refused a file, in public reports: "max supported IR version".
REFUSALS = {"1.14": 8, "1.17": 9, "1.20": 10, "1.22": 10, "1.23": 11, "1.31": 13}
# The opset of the ONNX release that each was built with, by the notes of its release.
BUILT_WITH = {"1.10": 15, "1.14": 18, "1.17": 20, "1.18": 21, "1.20": 21, "1.22": 22, "1.31": 26}
BODIES = {
    "plain": "g (float[2] x) => (float[2] y) { y = Relu(x) }",
    "swish": "g (float[2] x) => (float[2] y) { y = Swish<alpha = 1.5>(x) }",
    "gelu": "g (float[2] x) => (float[2] y) { y = Gelu(x) }",
    "layer": "g (float[2,3] x, float[3] s) => (float[2,3] y) { y = LayerNormalization(x, s) }",
    "reduce": "g (float[2,3] x) => (float[2] y) { y = ReduceMean<keepdims = 0>(x, a) "
    "a = Constant<value_ints = [1]>() }",
}


@pytest.mark.parametrize("release", sorted({*REFUSALS, *BUILT_WITH}))
@pytest.mark.parametrize("body", BODIES)
def test_a_file_for_a_release_is_not_above_what_it_takes(
    tmp_path: Path, body: str, release: str
) -> None:
    inputs = load(parsed(BODIES[body], 28, 14))
    path = save(inputs, tmp_path / "m.onnx", runtime=f"onnxruntime=={release}")
    written = onnx.load(path)
    assert written.ir_version <= REFUSALS.get(release, 14)
    assert written.opset_import[0].version <= BUILT_WITH.get(release, 28)
    feeds = {v.name: np.linspace(-1, 1, v.shape[-1], dtype=np.float32) for v in inputs.inputs}
    feeds["x"] = np.broadcast_to(feeds["x"], [int(d) for d in inputs.inputs[0].shape]).copy()
    (expected,) = session(save(inputs, tmp_path / "now.onnx")).run(None, feeds)
    np.testing.assert_allclose(session(path).run(None, feeds)[0], expected, rtol=1e-5, atol=1e-6)


def test_the_installed_runtime_takes_what_the_table_says() -> None:
    """The table, probed: an Identity model at its versions loads, one above does not."""
    known = target("onnxruntime")
    for opset, ir, loads in (
        (known.opset, known.ir, True),
        (known.opset + 1, known.ir, False),
        (known.opset, known.ir + 1, False),
    ):
        proto = parsed("g (float[2] x) => (float[2] y) { y = Identity(x) }", opset, ir)
        if loads:
            session(proto)
        else:
            with pytest.raises(Exception, match=r"(?i)opset|ir.version"):
                session(proto)


def test_functions_come_out_inlined_where_they_are_too_new(tmp_path: Path) -> None:
    text = """<ir_version: 14, opset_import: ["": 28, "l": 1]>
        g (float[2] x) => (float[2] y) { y = l.f(x) }
        <domain: "l", opset_import: ["": 28]> f (x) => (y) { h = Swish(x) y = Neg(h) }"""
    path = save(
        load(onnx.parser.parse_model(text)), tmp_path / "m.onnx", runtime="onnxruntime==1.20"
    )
    x = np.array([1.0, -2.0], np.float32)
    (y,) = session(path).run(None, {"x": x})
    np.testing.assert_allclose(y, -x / (1 + np.exp(-x)), rtol=1e-5)


def test_what_is_not_a_model_is_one_error() -> None:
    for junk in (b"", b"not a model", b"PK\x03\x04" + bytes(100)):
        with pytest.raises(ModelError):
            load(junk)


def test_a_model_is_loaded_once() -> None:
    model = load(linear())
    assert load(model) is model and isinstance(model, Model)


def test_a_model_in_a_notebook_shows_its_inputs_and_outputs() -> None:
    proto = parsed("g (float[N,2] x) => (float[N,2] y) { y = Relu(x) }", 22)
    proto.graph.name = "<b>"
    page = load(proto)._repr_html_()
    assert "<table" in page and "FLOAT" in page and "[N,2]" in page
    assert "&lt;b&gt;" in page and "<b>" not in page
