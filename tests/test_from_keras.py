"""Keras models as ONNX models: Keras on the backend of this process is the oracle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx as sx
from sardonyx.errors import ArgumentError, ImportRefused

pytest.importorskip("jax")
keras = pytest.importorskip("keras")
ort = pytest.importorskip("onnxruntime")
# Keras 3.15 reads variables of TensorFlow by a signature that NumPy 2 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def small() -> Any:
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((8, 8, 3), name="image"),
            layers.Conv2D(4, 3, padding="same", name="conv"),
            layers.BatchNormalization(name="norm"),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Dropout(0.5),
            layers.Flatten(),
            layers.Dense(3, name="head"),
        ],
        name="net",
    )


def two_inputs() -> Any:
    layers = keras.layers
    tokens = layers.Input((None,), dtype="int64", name="tokens")  # JAX has 32 bits
    extra = layers.Input((6,), name="extra")
    x = layers.LSTM(5)(layers.Embedding(20, 8)(tokens))
    y = layers.Concatenate()([x, extra])
    return keras.Model(
        {"tokens": tokens, "extra": extra}, {"score": layers.Dense(2)(y), "state": x}
    )


def run(model: sx.Model, **feeds: np.ndarray) -> dict[str, np.ndarray]:
    proto = model.proto()
    onnx.checker.check_model(proto, full_check=True)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))


def test_a_model_keeps_its_names_and_its_free_batch() -> None:
    source = small()
    model = sx.from_keras(source)
    assert {"net/conv/kernel", "net/head/bias", "net/norm/moving_mean"} <= set(
        model.graph.initializers
    )
    for count in (1, 3):
        x = np.random.default_rng(0).normal(size=(count, 8, 8, 3)).astype(np.float32)
        (y,) = run(model, image=x).values()
        expected = keras.ops.convert_to_numpy(source(x, training=False))
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_inputs_and_outputs_by_name() -> None:
    source = two_inputs()
    model = sx.from_keras(source)
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 20, (2, 7)).astype(np.int32)
    extra = rng.normal(size=(2, 6)).astype(np.float32)
    outputs = run(model, tokens=tokens, extra=extra)
    expected = source({"tokens": tokens, "extra": extra}, training=False)
    for name, value in expected.items():
        value = keras.ops.convert_to_numpy(value)
        np.testing.assert_allclose(outputs[name], value, rtol=1e-4, atol=1e-5)


def test_a_file_is_imported(tmp_path: Path) -> None:
    source = small()
    source.save(tmp_path / "model.keras")
    model = sx.from_keras(tmp_path / "model.keras")
    x = np.ones((2, 8, 8, 3), np.float32)
    (y,) = run(model, image=x).values()
    expected = keras.ops.convert_to_numpy(source(x, training=False))
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_on_the_backend_itself() -> None:
    code = (
        "import keras, numpy as np, sardonyx as sx\n"
        "layers = [keras.layers.Input((4,)), keras.layers.Dense(3, name='head')]\n"
        "model = sx.from_keras(keras.Sequential(layers, name='net'))\n"
        "print([v.name for v in model.inputs], 'net/head/kernel' in model.graph.initializers)"
    )
    environment = {**os.environ, "KERAS_BACKEND": "jax"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "['input'] True"


def test_what_is_no_built_model_is_refused(tmp_path: Path) -> None:
    for name in ("bad.keras", "bad.h5"):
        (tmp_path / name).write_bytes(b"nothing of Keras")
        with pytest.raises(ImportRefused, match=f'"{name}" is no file of Keras'):
            sx.from_keras(tmp_path / name)
    with pytest.raises(ArgumentError, match="no Keras model"):
        sx.from_keras(3)
    with pytest.raises(ArgumentError, match="no file of Keras"):
        sx.from_keras(tmp_path / "missing.keras")


# What a process whose backend is JAX does: a compiled and fitted model is imported, and both take
# the same steps; dropout draws the same masks, because its random states are part of the record.
STEPS = """
import json, warnings
warnings.simplefilter("ignore")
import keras, numpy as np, onnx, sardonyx as sx
layers = keras.layers
keras.utils.set_random_seed(1)
x = layers.Input((6, 6, 2), name="image")
h = layers.Conv2D(3, 3, kernel_regularizer="l2", kernel_constraint="max_norm")(x)
h = layers.Dropout(0.4)(layers.ReLU()(layers.BatchNormalization(name="norm")(h)))
h = layers.Flatten()(h)
kind = layers.Dense(3, activation="softmax", name="kind")(h)
size = layers.Dense(1, name="size")(h)
source = keras.Model(x, {"kind": kind, "size": size}, name="net")
rate = keras.optimizers.schedules.CosineDecay(1e-2, 20)
source.compile(
    optimizer=keras.optimizers.SGD(rate, momentum=0.9, nesterov=True, clipnorm=1.0),
    loss={"kind": "sparse_categorical_crossentropy", "size": "mse"},
    loss_weights={"kind": 1.0, "size": 0.3}, metrics={"kind": ["accuracy"]},
)
rng = np.random.default_rng(0)
def draw():
    y = {"kind": rng.integers(0, 3, 5).astype(np.int32), "size": rng.normal(size=(5, 1))}
    return rng.normal(size=(5, 6, 6, 2)).astype(np.float32), {k: v.astype(
        np.int32 if k == "kind" else np.float32) for k, v in y.items()}
source.train_on_batch(*draw())
model = sx.from_keras(source)
onnx.checker.check_model(model.proto(), full_check=True)
stock = sx.prepare_training(model)
keras_again = sx.to_keras(model)
rows = []
for _ in range(3):
    image, y = draw()
    source.reset_metrics()
    keras_again.reset_metrics()
    feeds = {"image": image, "label_kind": y["kind"], "label_size": y["size"]}
    ours = {k.removeprefix("metrics/"): float(v) for k, v in stock.step(feeds).items()}
    rows.append([ours, source.train_on_batch(image, y, return_dict=True),
                 keras_again.train_on_batch(image, y, return_dict=True)])
back = sx.with_weights(model, source, optimizer=True)
state = stock.state()
differences = {n: float(np.abs(back.records[0].state[n].numpy() - state[n]).max())
               for n in state if n in back.records[0].state}
print(json.dumps({
    "rows": [[{k: float(v) for k, v in part.items()} for part in row] for row in rows],
    "differences": differences, "served": [n.op_type for n in model.graph],
    "gradient": any(n.op_type == "Gradient" for n in model.records[0].algorithm),
    "choices": [c.value for c in sx.choices(model)],
}))
"""


def in_jax(code: str) -> Any:
    environment = {**os.environ, "KERAS_BACKEND": "jax"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_compiled_model_takes_the_steps_of_keras() -> None:
    results = in_jax(STEPS)
    for ours, keras_logs, again in results["rows"]:
        assert set(ours) == set(keras_logs) == {"loss", "kind_loss", "size_loss", "kind_accuracy"}
        for name, value in keras_logs.items():
            assert ours[name] == pytest.approx(value, rel=1e-5, abs=1e-6)
            assert again[name] == pytest.approx(value, rel=1e-5, abs=1e-6)
    assert max(results["differences"].values()) < 1e-5
    assert {"BatchNormalization", "Dropout"} <= set(results["served"])
    assert results["gradient"]
    assert "that of Keras in training mode" in results["choices"]


# What a process whose backend is JAX imports: the outputs of each model in stock onnxruntime, the
# operators of its graph, and how far both are from each other.
FORMS = """
import json, logging, warnings
warnings.simplefilter("ignore")
import keras, numpy as np, onnxruntime, sardonyx as sx
from keras import Input, layers
keras.utils.set_random_seed(0)
def run(model, feeds):
    session = onnxruntime.InferenceSession(model.proto().SerializeToString())
    return session.run(None, feeds)
x = Input((None, 4), name="x")
m = Input((None,), dtype="bool", name="m")
image = Input((None, None, 2), name="x")
small = layers.Conv2D(3, 3, padding="same")(image)
models = {
    "lstm": keras.Model(x, layers.Bidirectional(layers.LSTM(3, return_sequences=True))(x)),
    "gru": keras.Model(x, [layers.GRU(3, reset_after=a)(x) for a in (True, False)]),
    "backwards": keras.Model(x, layers.SimpleRNN(3, go_backwards=True, use_bias=False)(x)),
    "steps": keras.Model(x, layers.TimeDistributed(layers.Dense(3))(x)),
    "masked": keras.Model(x, layers.LSTM(3)(layers.Masking()(x))),
    "attention": keras.Model(
        [x, m], layers.MultiHeadAttention(2, 3, value_dim=5)(x, x, attention_mask=m[:, None])),
    "halves": keras.Model(image, layers.Concatenate()(
        [layers.UpSampling2D()(layers.MaxPooling2D()(small)), small])),
}
source = layers.Input((16,), name="x")
models["spectrum"] = keras.Model(source, layers.MelSpectrogram(
    fft_length=8, sequence_stride=4, num_mel_bins=3)(source))
rng = np.random.default_rng(0)
results = {}
for name, model in models.items():
    sizes = enumerate(model.inputs[0].shape)
    shape = [{1: 6, 2: 6}.get(a, 2) if d is None else d for a, d in sizes]
    feeds = {"x": rng.normal(size=shape).astype(np.float32)}
    if name == "attention":
        feeds["m"] = rng.random((2, 6)) < 0.7
        feeds["m"][:, 0] = True
    imported = sx.from_keras(model)
    actual = run(imported, feeds)
    expected = None
    if name != "attention":  # Keras 3.15 itself fails on JAX where values have a depth of their own
        expected = [np.asarray(y) for y in keras.tree.flatten(model(feeds["x"]))]
    results[name] = {
        "operators": sorted({n.op_type for n in imported.graph}),
        "shape": [str(d) for d in imported.inputs[0].shape],
        "difference": 0.0 if expected is None else max(
            float(np.abs(a - e).max()) for a, e in zip(actual, expected)),
    }
    if name == "attention":
        layer = model.layers[-1]
        q, k, v = (np.einsum("btd,dnh->btnh", feeds["x"], np.asarray(w.kernel)) + np.asarray(w.bias)
                   for w in (layer.query_dense, layer.key_dense, layer.value_dense))
        s = np.einsum("btnh,bsnh->bnts", q, k) / np.sqrt(3)
        s = np.where(feeds["m"][:, None, None], s, -1e30)
        s = np.exp(s - s.max(-1, keepdims=True))
        y = np.einsum("bnts,bsnh->btnh", s / s.sum(-1, keepdims=True), v)
        w = layer.output_dense
        y = np.einsum("btnh,nhd->btd", y, np.asarray(w.kernel)) + np.asarray(w.bias)
        results[name]["difference"] = float(np.abs(actual[0] - y).max())
print(json.dumps(results))
"""


@pytest.mark.slow
def test_layers_become_operators_and_free_sizes_are_settled() -> None:
    results = in_jax(FORMS)
    assert all(row["difference"] < 1e-5 for row in results.values()), results
    operators = {name: set(row["operators"]) for name, row in results.items()}
    assert "LSTM" in operators["lstm"] and "GRU" in operators["gru"]
    assert "RNN" in operators["backwards"] and "DFT" in operators["spectrum"]
    assert "Scan" in operators["masked"]  # what ONNX's operator cannot say stays a loop
    assert not operators["steps"] & {"Loop", "Scan"}
    assert results["halves"]["shape"][1].startswith("2*")


STATES = """
import json, warnings
warnings.simplefilter("ignore")
import keras, numpy as np, onnxruntime, sardonyx as sx
keras.utils.set_random_seed(0)
class Counter(keras.layers.Layer):
    def build(self, shape):
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False, name="count")
    def call(self, x):
        self.count.assign_add(1.0)
        return x * self.count
x = keras.Input(batch_shape=(2, 3, 4), name="x")
source = keras.Model(x, Counter(name="c")(keras.layers.GRU(3, stateful=True)(x)))
model = sx.from_keras(source)
state = json.loads(model.metadata["sardonyx.state"])
feeds = {n: np.full([int(d) for d in v.shape], s["first"], np.float32)
         for n, s in state.items() for v in model.inputs if v.name == n}
session = onnxruntime.InferenceSession(model.proto().SerializeToString())
names = [v.name for v in model.outputs]
worst = 0.0
for seed in range(3):
    array = np.random.default_rng(seed).normal(size=(2, 3, 4)).astype(np.float32)
    results = dict(zip(names, session.run(None, {"x": array, **feeds})))
    feeds = {n: results[s["output"]] for n, s in state.items()}
    expected = np.asarray(source(array))
    worst = max(worst, float(np.abs(results["output"] - expected).max()))
print(json.dumps({"worst": worst, "states": len(state)}))
"""


def test_what_inference_assigns_is_passed_on_from_call_to_call() -> None:
    results = in_jax(STATES)
    assert results["states"] == 2 and results["worst"] < 1e-5, results


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's graph is read")
def test_what_jax_cannot_trace_is_read_from_the_graph_of_tensorflow() -> None:
    import tensorflow as tf

    class Clipped(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            return tf.clip_by_value(inputs, 0.0, 1.0)

    words = keras.Input((1,), dtype="string", name="word")
    numbers = keras.Input((3,), name="numbers")
    index = keras.layers.StringLookup(vocabulary=["red", "blue"])(words)
    source = keras.Model([words, numbers], [index, keras.layers.Dense(2)(Clipped()(numbers))])
    model = sx.from_keras(source)
    text = np.array([["blue"], ["green"]], object)
    x = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    first, second = run(model, word=text, numbers=x).values()
    assert first.tolist() == [[2], [0]]
    kernel, bias = (v.numpy() for v in source.weights)
    np.testing.assert_allclose(second, np.clip(x, 0, 1) @ kernel + bias, rtol=1e-5, atol=1e-6)
    source.compile("sgd", "mse")
    with pytest.raises(ImportRefused, match="training=False"):
        sx.from_keras(source)


def test_layers_that_jax_has_nothing_for_are_named_at_once() -> None:
    code = (
        "import keras, sardonyx as sx\n"
        "word = keras.Input((1,), dtype='string', name='word')\n"
        "number = keras.Input((1,), dtype='int32', name='number')\n"
        "outputs = [keras.layers.StringLookup(vocabulary=['a'], name='texts')(word),\n"
        "           keras.layers.Hashing(3, name='buckets')(number)]\n"
        "try:\n    sx.from_keras(keras.Model([word, number], outputs))\n"
        "except sx.errors.ImportRefused as refusal:\n    print(str(refusal).replace('\\n', ' '))"
    )
    environment = {**os.environ, "KERAS_BACKEND": "jax"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert all(word in done.stdout for word in ('"texts"', '"buckets"', '"word"', "hint"))


def test_double_precision_is_kept_or_refused() -> None:
    source = keras.Sequential(
        [keras.Input((3,), dtype="float64"), keras.layers.Dense(2, dtype="float64")]
    )
    model = sx.from_keras(source)
    x = np.random.default_rng(0).normal(size=(4, 3))
    (values,) = run(model, **{model.inputs[0].name: x}).values()
    kernel, bias = (v.numpy() for v in source.weights)
    assert values.dtype == kernel.dtype == np.float64
    np.testing.assert_allclose(values, x @ kernel + bias, rtol=1e-13)
    source.compile("sgd", "mse")
    with pytest.raises(ImportRefused, match="training=False"):
        sx.from_keras(source)


def test_training_of_another_backend_continues() -> None:
    source = keras.Sequential(
        [keras.layers.Input((4,), name="x"), keras.layers.Dense(3, name="head")], name="net"
    )
    source.compile(optimizer=keras.optimizers.RMSprop(1e-2, momentum=0.5), loss="mse")
    rng = np.random.default_rng(0)
    batches = [rng.normal(size=(2, 5, n)).astype(np.float32) for n in (4, 3)]
    source.train_on_batch(batches[0][0], batches[1][0])
    model = sx.from_keras(source)
    step = sx.prepare_training(model).step({"x": batches[0][1], "label": batches[1][1]})
    source.reset_metrics()
    expected = source.train_on_batch(batches[0][1], batches[1][1])
    assert float(step["loss"]) == pytest.approx(float(expected), rel=1e-5)
    assert {"net/head/kernel/velocity", "optimizer/iteration"} <= set(model.records[0].state)


def test_an_h5_file_goes_on_where_its_optimizer_stands(tmp_path: Path) -> None:
    layers = [keras.layers.Input((4,), name="x"), keras.layers.Dense(3, name="head")]
    source = keras.Sequential(layers, name="net")
    source.compile(optimizer=keras.optimizers.Adam(1e-2), loss="mse")
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(5, n)).astype(np.float32) for n in (4, 3))
    for _ in range(3):
        source.train_on_batch(x, y)
    source.save(tmp_path / "net.h5")
    steps = sx.prepare_training(sx.from_keras(tmp_path / "net.h5"))
    for _ in range(2):
        source.reset_metrics()
        loss = float(steps.step({"x": x, "label": y})["loss"])
        assert loss == pytest.approx(float(source.train_on_batch(x, y)), rel=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="it writes TensorFlow's files")
def test_the_command_imports_files_of_every_kind(tmp_path: Path) -> None:
    import tensorflow as tf

    source = small()
    source.save(tmp_path / "net.keras")
    source.save(tmp_path / "net.h5")
    source.export(tmp_path / "net", verbose=False)
    converter = tf.lite.TFLiteConverter.from_saved_model(str(tmp_path / "net"))
    (tmp_path / "net.tflite").write_bytes(converter.convert())
    spec = tf.TensorSpec([None, 6], tf.float32, "x")
    graph = tf.function(lambda x: tf.nn.softmax(x), input_signature=[spec]).get_concrete_function()
    (tmp_path / "net.pb").write_bytes(graph.graph.as_graph_def().SerializeToString())
    for name in ("net.keras", "net.h5", "net", "net.tflite", "net.pb"):
        target = tmp_path / f"{name}.onnx"
        command = [sys.executable, "-m", "sardonyx", "import", str(tmp_path / name), "-o"]
        done = subprocess.run([*command, str(target)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        session = ort.InferenceSession(target.read_bytes(), providers=["CPUExecutionProvider"])
        (entry,) = session.get_inputs()
        is_image = len(entry.shape) == 4
        shape = (1, 8, 8, 3) if is_image else (2, 6)
        x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        expected = (source if is_image else tf.nn.softmax)(x)
        (y,) = session.run(None, {entry.name: x})
        np.testing.assert_allclose(
            y, keras.ops.convert_to_numpy(expected), rtol=1e-4, atol=1e-5, err_msg=name
        )


def test_parts_that_another_process_cannot_import_are_named() -> None:
    class Doubled(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            return 2 * inputs

    def own_loss(y_true: Any, y_pred: Any) -> Any:
        return keras.ops.mean((y_true - y_pred) ** 2)

    model = keras.Sequential([keras.layers.Input((4,)), Doubled()])
    model.compile("sgd", own_loss)
    with pytest.raises(ImportRefused, match="KERAS_BACKEND=jax") as refusal:
        sx.from_keras(model)
    assert all(name in str(refusal.value) for name in ("Doubled", "own_loss"))
