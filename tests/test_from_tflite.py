"""TensorFlow Lite files as ONNX models: onnxruntime gives what LiteRT gives."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

import sardonyx as sx
from sardonyx.errors import ArgumentError, ImportRefused
from tests.test_tflite import model_of

pytest.importorskip("tensorflow")
interpreter = pytest.importorskip("ai_edge_litert.interpreter")

SAMPLE = (
    *("conv strided", "depthwise", "transposed conv", "pools", "dense", "slices", "reductions"),
    *("resize bilinear", "comparisons", "space to batch", "group of images", "arg max"),
    *("loop", "branches", "segments", "unsorted segments", "extremes of segments"),
    *("reverse sequence", "matrix diagonal", "set diagonal", "dynamic update", "bucketize"),
    *("dynamic update of all", "bitwise xor", "unique", "sparse to dense", "suppression"),
    *("suppression with scores", "broadcast shapes", "spectrum", "parts of a spectrum"),
    *("frames of sound", "transposed conv of volumes", "right shift", "bits"),
    *("one hot of negatives", "branches of integers"),
    *("symmetric padding", "gather in groups", "matrices of places", "product of two matrices"),
)


def _place(name: str) -> int:
    """Where an input stood in the function: the converter orders them anew."""
    found = re.search(r"input_(\d+)", name)
    return int(found[1]) if found else 0


def outputs_of(content: bytes, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """What LiteRT gives."""
    program = interpreter.Interpreter(model_content=content)
    details = sorted(program.get_input_details(), key=lambda d: _place(d["name"]))
    for detail, array in zip(details, arrays, strict=True):
        program.resize_tensor_input(detail["index"], array.shape)
    program.allocate_tensors()
    for detail, array in zip(details, arrays, strict=True):
        program.set_tensor(detail["index"], array)
    program.invoke()
    return [program.get_tensor(d["index"]) for d in program.get_output_details()]


def results_of(model: sx.Model, arrays: list[np.ndarray]) -> list[np.ndarray]:
    from sardonyx.engines.onnxruntime.backend import Runner

    names = sorted((v.name or "" for v in model.inputs), key=_place)
    return list(Runner(model)(dict(zip(names, arrays, strict=True))).values())


@pytest.mark.parametrize("name", SAMPLE)
def test_floats(name: str) -> None:
    from tests.tflite_functions import FUNCTIONS, converted

    function, shapes = FUNCTIONS[name]
    content = converted(function, shapes)
    model = sx.from_tflite(content)
    arrays = [np.random.default_rng(3).normal(size=s).astype(np.float32) for s in shapes]
    for ours, theirs in zip(results_of(model, arrays), outputs_of(content, arrays), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def _with_operator(name: str, options: object = None, **result: object) -> bytes:
    """A file with one operator that tensorflow's converter does not write."""
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    from tests.tflite_functions import FUNCTIONS, converted

    file = schema.ModelT.InitFromPackedBuf(converted(*FUNCTIONS["abs"]), 0)
    code = getattr(schema.BuiltinOperator, name)
    file.operatorCodes[0].builtinCode = code
    file.operatorCodes[0].deprecatedBuiltinCode = min(code, 127)
    (operator,) = file.subgraphs[0].operators
    if options is not None:
        kind = type(options).__name__.removesuffix("T")
        operator.builtinOptionsType = getattr(schema.BuiltinOptions, kind)
        operator.builtinOptions = options
    for field, value in result.items():
        setattr(file.subgraphs[0].tensors[operator.outputs[0]], field, value)
    builder = flatbuffers.Builder(1024)
    builder.Finish(file.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _ranges() -> list[tuple[float, float, int]]:
    rng = np.random.default_rng(0)
    drawn = [(-a, b, 8) for a, b in rng.exponential(1, (6, 2))]
    return [*drawn, (0.0, 3.0, 4), (-3.0, 0.0, 8)]


def _fake_quantization(low: float, high: float, bits: int, narrow: bool = False) -> bytes:
    from ai_edge_litert import schema_py_generated as schema

    options = schema.FakeQuantOptionsT()
    options.min, options.max, options.numBits, options.narrowRange = low, high, bits, narrow
    return _with_operator("FAKE_QUANT", options)


def test_what_litert_does_not_run_is_refused_in_its_words() -> None:
    with pytest.raises(ImportRefused, match="LiteRT itself does not run this file"):
        sx.from_tflite(_fake_quantization(-1.0, 2.0, 8, narrow=True))


@pytest.mark.parametrize(("low", "high", "bits"), _ranges())
def test_fake_quantization(low: float, high: float, bits: int) -> None:
    content = _fake_quantization(low, high, bits)
    model = sx.from_tflite(content)
    for seed in range(20):
        arrays = [np.random.default_rng(seed).normal(size=(2, 5)).astype(np.float32)]
        (ours,), (theirs,) = results_of(model, arrays), outputs_of(content, arrays)
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)


def test_the_rank_of_a_tensor() -> None:
    content = _with_operator("RANK", type=2, shape=[])
    arrays = [np.zeros((2, 5), np.float32)]
    (ours,), (theirs,) = results_of(sx.from_tflite(content), arrays), outputs_of(content, arrays)
    assert ours == theirs == 2 and ours.dtype == theirs.dtype


def test_boxes_whose_overlap_is_the_limit_are_dropped_as_in_litert() -> None:
    import tensorflow as tf

    from tests.tflite_functions import converted

    def chosen(boxes, scores, limit=0.5):
        return tf.image.non_max_suppression_padded(
            boxes, scores, 5, limit, pad_to_max_output_size=True
        )

    shapes: list[tuple[int, ...]] = [(9, 4), (9,)]
    content = converted(chosen, shapes)
    model = sx.from_tflite(content)
    rng = np.random.default_rng(0)
    for _ in range(5):
        corners = rng.integers(0, 3, (9, 2))
        boxes = np.concatenate([corners, corners + rng.integers(1, 3, (9, 2))], 1)
        arrays = [boxes.astype(np.float32), rng.random(9).astype(np.float32)]
        for ours, theirs in zip(
            results_of(model, arrays), outputs_of(content, arrays), strict=True
        ):
            np.testing.assert_array_equal(ours, theirs)
    with pytest.raises(ImportRefused, match="an overlap of 0"):
        sx.from_tflite(converted(lambda b, s: chosen(b, s, 0.0), shapes))


@pytest.mark.parametrize("name", ["depthwise", "group of images"])
def test_integers_are_within_one_quantum(name: str) -> None:
    from tests.tflite_functions import FUNCTIONS, converted

    function, shapes = FUNCTIONS[name]
    content = converted(function, shapes, quantize="all int8")
    model = sx.from_tflite(content)
    kinds = {node.op_type for node in model.graph}
    assert {"QuantizeLinear", "DequantizeLinear", "Conv"} <= kinds
    rng = np.random.default_rng(5)
    arrays = [rng.integers(-128, 128, size=s).astype(np.int8) for s in shapes]
    for ours, theirs in zip(results_of(model, arrays), outputs_of(content, arrays), strict=True):
        assert ours.dtype == theirs.dtype == np.int8
        assert np.abs(ours.astype(int) - theirs.astype(int)).max() <= 1


@pytest.mark.parametrize(
    "name",
    [
        *("one hot", "matrix diagonal", "set diagonal", "sparse to dense", "reductions"),
        *("scattered rows", "threshold", "turned around"),
    ],
)
def test_integers_whose_scales_litert_does_not_look_at(name: str) -> None:
    from tests.tflite_functions import FUNCTIONS, converted

    function, shapes = FUNCTIONS[name]
    content = converted(function, shapes, quantize="int8")
    model = sx.from_tflite(content)
    arrays = [np.random.default_rng(5).normal(size=s).astype(np.float32) for s in shapes]
    for ours, theirs in zip(results_of(model, arrays), outputs_of(content, arrays), strict=True):
        atol = 0.2 if name == "reductions" else 1e-5  # there, two operators may round otherwise
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=atol)


def _averaged() -> bytes:
    """Products and averages of integers; of a few elements, more than one in a hundred differ."""
    import tensorflow as tf

    from tests.tflite_functions import converted, weights

    def function(x):
        y = tf.nn.avg_pool1d((x @ weights(48, 9))[None], 3, 1, "SAME")
        return tf.nn.elu(y @ weights(9, 3))

    return converted(function, [(16, 48)], quantize="int8")


def test_roundings_that_grow_over_operators_are_no_difference() -> None:
    content = _averaged()
    words = sx.from_tflite(content).metadata["sardonyx.verified"]
    assert words.startswith("within one quantum of LiteRT in each of")


def test_a_wrong_operator_is_told_from_roundings_that_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    from sardonyx.errors import ImportDiffers
    from sardonyx.importers.tflite.rules import RULES

    content, average = _averaged(), RULES["AVERAGE_POOL_2D"]
    wrong = np.float32(1.1)
    monkeypatch.setitem(
        RULES, "AVERAGE_POOL_2D", lambda op, node, x: op.Mul(average(op, node, x), wrong)
    )
    with pytest.raises(ImportDiffers, match="more than one quantum"):
        sx.from_tflite(content)


@pytest.mark.parametrize("own", [9.0, 0.5])
def test_rounding_that_the_model_amplifies_is_no_difference(
    own: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sardonyx.errors import ImportDiffers
    from sardonyx.importers.tflite import proof
    from tests.tflite_functions import FUNCTIONS, converted

    measured = [
        SimpleNamespace(subject=name, ratio=ratio, problem="", wrong=0)
        for name, ratio in (("onnxruntime", own), ("LiteRT", 11.0))
    ]
    report = SimpleNamespace(
        verdict="different", ratio_of_others=11.0, bands=(3.0, 10.0), measurements=measured,
        subjects=[{"name": "onnxruntime"}],
    )  # fmt: skip
    monkeypatch.setattr(proof, "verify", lambda *_, **__: report)
    content = converted(*FUNCTIONS["sqrt"])
    if own < 1:
        with pytest.raises(ImportDiffers):
            sx.from_tflite(content)
        return
    words = sx.from_tflite(content).metadata["sardonyx.verified"]
    assert words.startswith("as near to exact numbers in LiteRT as in onnxruntime")
    assert "11 and 9: the model amplifies rounding" in words


@pytest.mark.parametrize("quantize", ["int8", "int16"])
def test_a_kernel_of_few_integers_keeps_the_scale_of_each_channel(quantize: str) -> None:
    import tensorflow as tf

    from sardonyx.importers.tflite.reader import read
    from tests.tflite_functions import converted, weights

    kernel = weights(3, 3, 4, 1) * np.array([1.0, 0.1, 0.01, 3.0], np.float32)[:, None]

    def function(x):
        return tf.nn.depthwise_conv2d(x, kernel, [1, 1, 1, 1], "SAME")

    content = converted(function, [(1, 8, 8, 4)], quantize=quantize)
    model = sx.from_tflite(content)
    x = np.random.default_rng(5).normal(size=(1, 8, 8, 4)).astype(np.float32)
    (ours,), (theirs,) = results_of(model, [x]), outputs_of(content, [x])
    graph = read(content).graphs[0]
    step = graph.tensors[graph.operators[-1].inputs[0]].scale.item()
    assert np.abs(ours - theirs).max() <= 1.1 * step
    assert np.mean(np.abs(ours - theirs) > step / 2) < (0.01 if quantize == "int8" else 0.3)


@pytest.mark.parametrize("quantize", [None, "int8"])
def test_transposed_convolutions_of_a_free_batch(quantize: str | None) -> None:
    import tensorflow as tf

    from tests.tflite_functions import weights

    def function(x):
        count = tf.shape(x)[0]
        rows = tf.reshape(x, [count, 1, 6, 3])
        y = tf.nn.conv2d_transpose(rows, weights(1, 3, 4, 3), [count, 1, 12, 4], [1, 1, 2, 1])
        return tf.reshape(y, [count, 12, 4])

    traced = tf.function(function, autograph=False).get_concrete_function(
        tf.TensorSpec([None, 6, 3], tf.float32)
    )
    converter = tf.lite.TFLiteConverter.from_concrete_functions([traced], tf.Module())
    if quantize:
        rows = np.random.default_rng(0).normal(size=(16, 1, 6, 3)).astype(np.float32)
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = lambda: ([row] for row in rows)
    content = converter.convert()
    x = np.random.default_rng(1).normal(size=(3, 6, 3)).astype(np.float32)
    (ours,), (theirs,) = results_of(sx.from_tflite(content), [x]), outputs_of(content, [x])
    step = np.abs(theirs).max() / 127
    np.testing.assert_allclose(ours, theirs, atol=1.1 * step if quantize else 1e-5)


@pytest.mark.parametrize("quantize", ["int8", "int16"])
def test_averages_and_biases_of_integers_are_within_one_quantum(quantize: str) -> None:
    import tensorflow as tf

    from tests.tflite_functions import converted

    rng = np.random.default_rng(0)
    kernel = rng.normal(size=(3, 3, 4, 6)).astype(np.float32) / 4

    def network(x: tf.Tensor) -> tf.Tensor:
        y = tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME"), np.arange(6, dtype=np.float32) - 2)
        return tf.nn.avg_pool2d(tf.nn.relu(y), 3, 1, "SAME")

    content = converted(network, [(1, 8, 8, 4)], quantize=quantize)
    model = sx.from_tflite(content)
    x = rng.normal(size=(1, 8, 8, 4)).astype(np.float32)
    (ours,), (theirs,) = results_of(model, [x]), outputs_of(content, [x])
    quantum = np.unique(np.abs(np.diff(np.sort(theirs.reshape(-1)))))[1]
    assert np.abs(ours - theirs).max() <= 1.01 * quantum
    exact = network(tf.constant(x)).numpy()
    assert np.abs(ours - exact).max() < 0.1 * np.abs(exact).max()


def test_a_file_that_litert_does_not_run_is_refused() -> None:
    import tensorflow as tf

    from tests.tflite_functions import converted

    def network(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        kernel = np.ones((3, 3, 2, 4), np.float32)
        y = tf.nn.conv2d_transpose(x, kernel, [1, 8, 8, 2], 2, "SAME")
        return y, tf.nn.depth_to_space(x, 2)

    content = converted(network, [(1, 4, 4, 4)], quantize="int16")
    with pytest.raises(RuntimeError, match="failed to prepare"):
        outputs_of(content, [np.zeros((1, 4, 4, 4), np.float32)])
    with pytest.raises(ImportRefused, match="LiteRT itself"):
        sx.from_tflite(content)


def test_an_operator_of_16_bits_that_litert_reads_off_a_table_is_refused_by_name() -> None:
    import tensorflow as tf

    from tests.tflite_functions import converted

    content = converted(tf.tanh, [(200, 10)], quantize="int16")
    x = np.linspace(-2.5, 2.5, 2000, dtype=np.float32).reshape(10, 200).T.copy()
    (actual,) = outputs_of(content, [x])
    program = interpreter.Interpreter(model_content=content)
    scales = {d["name"]: d["quantization"][0] for d in program.get_tensor_details()}
    quantum = max(scales.values())
    assert np.median(np.abs(actual - np.tanh(x))) < quantum  # the file itself is a good one
    with pytest.raises(ImportRefused, match="TANH"):
        sx.from_tflite(content)


@pytest.mark.parametrize("quantize", ["float16", "dynamic"])
def test_weights_of_fewer_bits_stay_so(quantize: str) -> None:
    import tensorflow as tf

    from tests.tflite_functions import converted, weights

    content = converted(lambda x: tf.nn.relu(x @ weights(64, 40)), [(2, 64)], quantize=quantize)
    model = sx.from_tflite(content)
    stored = {v.dtype.name for v in model.graph.initializers.values() if v.dtype is not None}
    assert {"float16": "FLOAT16", "dynamic": "INT8"}[quantize] in stored


def test_variables_are_inputs_and_outputs() -> None:
    import tensorflow as tf

    class Counter(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.total = tf.Variable(np.full((1, 3), 2, np.float32), name="total")

        @tf.function(input_signature=[tf.TensorSpec((1, 3), tf.float32)])
        def __call__(self, x):  # type: ignore[no-untyped-def]
            self.total.assign(self.total * 0.5 + x)
            return self.total * 3.0

    module = Counter()
    function = module.__call__.get_concrete_function()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function], module)
    converter.experimental_enable_resource_variables = True
    model = sx.from_tflite(converter.convert())
    x = np.ones((1, 3), np.float32)
    names = [v.name or "" for v in model.inputs]
    first, held = results_of(model, [x, np.full((1, 3), 2, np.float32)])
    np.testing.assert_allclose(first, 6.0 * x)
    np.testing.assert_allclose(held, 2.0 * x)
    described = json.loads(model.metadata["sardonyx.state"])
    assert described == {names[1]: {"output": model.outputs[1].name, "first": 2.0}}


def _entries(tmp_path: Path, names: list[str]) -> bytes:
    import tensorflow as tf

    row = tf.TensorSpec((2, 3), tf.float32)

    class Entries(tf.Module):
        @tf.function(input_signature=[row])
        def encode(self, x):
            return {"code": tf.tanh(x)}

        @tf.function(input_signature=[row, row])
        def decode(self, p, q):
            return {"difference": p - q, "again": p - q, "product": p * q}

    module = Entries()
    functions = {name: getattr(module, name) for name in names}
    tf.saved_model.save(module, str(tmp_path / "saved"), signatures=functions)
    converter = tf.lite.TFLiteConverter.from_saved_model(str(tmp_path / "saved"), names)
    return converter.convert()


def test_every_signature_of_a_file_can_be_imported(tmp_path: Path) -> None:
    from sardonyx.engines.onnxruntime.backend import Runner

    content = _entries(tmp_path, ["encode", "decode"])
    with pytest.raises(ArgumentError, match=r"2 signatures: .decode., .encode."):
        sx.from_tflite(content)
    with pytest.raises(ArgumentError, match=r"no signature .decoded."):
        sx.from_tflite(content, signature="decoded")
    p, q = np.random.default_rng(0).normal(size=(2, 2, 3)).astype(np.float32)
    expected = {"encode": {"code": np.tanh(p)}}
    expected["decode"] = {"difference": p - q, "again": p - q, "product": p * q}
    for name, outputs in expected.items():
        model = sx.from_tflite(content, signature=name)
        arrays = {"x": p, "p": p, "q": q}
        results = Runner(model)({v.name: arrays[v.name] for v in model.inputs})
        assert results.keys() == outputs.keys()
        for key, value in outputs.items():
            np.testing.assert_allclose(results[key], value, rtol=1e-5, atol=1e-6)


def test_a_tensor_that_is_two_outputs_stays_two_outputs(tmp_path: Path) -> None:
    model = sx.from_tflite(_entries(tmp_path, ["decode"]))
    assert sorted(v.name for v in model.outputs) == ["again", "difference", "product"]
    assert model.metadata["sardonyx.verified"].startswith("same")


def test_integers_of_sizes_that_depend_on_data() -> None:
    import tensorflow as tf

    from tests.tflite_functions import converted

    def function(x):
        return tf.unique(tf.cast(x[0] * 3.0, tf.int32))

    model = sx.from_tflite(converted(function, [(2, 14)], quantize="int8"))
    assert "100.00%" in model.metadata["sardonyx.verified"]


def test_a_composite_operator_is_its_decomposition() -> None:
    import flatbuffers
    import tensorflow as tf
    from ai_edge_litert import schema_py_generated as schema
    from flatbuffers import flexbuffers

    from tests.tflite_functions import converted

    def function(x):
        return tf.cond(tf.reduce_sum(x) > 0, lambda: tf.sin(x), lambda: tf.cos(x) - 1.0)

    file = schema.ModelT.InitFromPackedBuf(converted(function, [(2, 5)]), 0)
    main = file.subgraphs[0]
    kinds = [code.builtinCode for code in file.operatorCodes]
    place = kinds.index(schema.BuiltinOperator.IF)
    (branch,) = (o for o in main.operators if o.opcodeIndex == place)
    file.operatorCodes[place].builtinCode = schema.BuiltinOperator.STABLEHLO_COMPOSITE
    file.operatorCodes[place].deprecatedBuiltinCode = 127
    packed = flexbuffers.Builder()
    with packed.Map():
        pass
    options = schema.StableHLOCompositeOptionsT()
    options.name, options.compositeAttributes = "branch", list(packed.Finish())
    options.decompositionSubgraphIndex = branch.builtinOptions.elseSubgraphIndex
    branch.inputs = branch.inputs[1:]
    branch.builtinOptionsType, branch.builtinOptions = 0, None
    branch.builtinOptions2Type = schema.BuiltinOptions2.StableHLOCompositeOptions
    branch.builtinOptions2 = options
    main.operators = [branch]
    builder = flatbuffers.Builder(1024)
    builder.Finish(file.Pack(builder), b"TFL3")
    x = np.random.default_rng(0).normal(size=(2, 5)).astype(np.float32)
    (result,) = results_of(sx.from_tflite(bytes(builder.Output())), [x])
    np.testing.assert_allclose(result, np.cos(x) - 1.0, rtol=1e-5, atol=1e-6)


def test_out_in_and_back(tmp_path: Path) -> None:
    original = model_of("norms, pools and a join")
    path = tmp_path / "m.tflite"
    file = sx.to_tflite(original, path, inputs="nhwc", outputs="nhwc", seeds=1)
    model = sx.from_tflite(path)
    perms = [list(n.attributes["perm"].value) for n in model.graph if n.op_type == "Transpose"]
    assert perms == [[0, 3, 1, 2], [0, 2, 3, 1]], "no Transposes but at the input and the output"
    onnx.checker.check_model(str(sx.save(model, tmp_path / "m.onnx")), full_check=True)
    x = np.random.default_rng(0).normal(size=(1, 3, 12, 12)).astype(np.float32)
    (expected,) = results_of(original, [x])
    (result,) = results_of(model, [x.transpose(0, 2, 3, 1)])
    np.testing.assert_allclose(result.transpose(0, 3, 1, 2), expected, rtol=1e-4, atol=1e-5)
    again = sx.to_tflite(model, tmp_path / "again.tflite", seeds=1)
    assert again.operators == file.operators


def test_what_cannot_be_imported_is_named_at_once() -> None:
    import tensorflow as tf

    from tests.tflite_functions import converted

    def function(x):
        drawn = tf.cast(tf.random.categorical(x, 3), tf.float32)
        return tf.random.uniform((2, 1)) + drawn, tf.signal.rfft2d(x)

    content = converted(function, [(2, 4)])
    with pytest.raises(ImportRefused) as refusal:
        sx.from_tflite(content)
    for name in ("MULTINOMIAL", "COMPLEX64", "RANDOM_UNIFORM"):
        assert name in str(refusal.value)


def test_damaged_files_are_refused() -> None:
    from sardonyx.importers.tflite.reader import read
    from tests.tflite_functions import FUNCTIONS, converted

    with pytest.raises(ImportRefused, match="no TensorFlow Lite file"):
        sx.from_tflite(b"nothing of the kind")
    content = converted(*FUNCTIONS["sqrt"])
    rng = np.random.default_rng(0)
    refusals = 0
    for _ in range(300):  # only the reader: LiteRT does not survive every file
        damaged = bytearray(content[: int(rng.integers(64, len(content) + 1))])
        for place in rng.integers(8, len(damaged), 3):
            damaged[place : place + 4] = struct.pack("<I", int(rng.integers(0, 1 << 32)))
        try:
            read(bytes(damaged))
        except ImportRefused:
            refusals += 1
    assert refusals > 100


def test_the_command_imports_a_file(tmp_path: Path) -> None:
    from sardonyx.cli.__main__ import main
    from tests.tflite_functions import FUNCTIONS, converted

    path = tmp_path / "dense.tflite"
    path.write_bytes(converted(*FUNCTIONS["sqrt"]))
    with pytest.raises(SystemExit) as done:
        main(["import", str(path), "-o", str(tmp_path / "m.onnx")])
    assert done.value.code == 0
    with pytest.raises(SystemExit) as done:
        target = ["--to", "tflite", "-o", str(tmp_path / "again.tflite"), "--seeds", "1"]
        main(["convert", str(tmp_path / "m.onnx"), *target])
    assert done.value.code == 0 and (tmp_path / "again.tflite").exists()
    onnx.checker.check_model(str(tmp_path / "m.onnx"))
