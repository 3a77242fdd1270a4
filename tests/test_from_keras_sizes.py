"""Free sizes of Keras models: they cost no nodes, and every size that Keras takes is right."""

from __future__ import annotations

import pytest

from tests.test_from_keras import in_jax

pytest.importorskip("jax")
pytest.importorskip("keras")

NETWORKS = """
import json, warnings
warnings.simplefilter("ignore")
import keras, numpy as np, onnxruntime, sardonyx as sx
keras.utils.set_random_seed(0)
L = keras.layers

def unet(x, how):
    skips = []
    for width in (4, 6):
        x = L.ReLU()(L.BatchNormalization()(L.Conv2D(width, 3, padding="same")(x)))
        skips.append(x)
        x = L.MaxPooling2D()(x)
    for width, skip in zip((6, 4), reversed(skips)):
        if how == "transpose":
            x = L.Conv2DTranspose(width, 3, strides=2, padding="same")(x)
        else:
            x = L.UpSampling2D(interpolation=how)(x)
        x = L.Conv2D(width, 3, padding="same")(L.Concatenate()([x, skip]))
    return L.Conv2D(2, 1)(x)

def strided(x):
    x = L.Conv2D(8, 3, strides=2, padding="same")(x)
    x = L.MaxPooling2D(3, 2, padding="same")(x)
    x = L.SeparableConv2D(8, 5, strides=2, padding="same")(x)
    x = L.GroupNormalization(2)(L.AveragePooling2D(3, 2, padding="same")(x))
    return L.Dense(2)(L.GlobalAveragePooling2D()(x))

def transformer(x):
    for _ in range(2):
        x = L.LayerNormalization()(x + L.MultiHeadAttention(2, 4)(x, x))
        x = L.LayerNormalization()(x + L.Dense(8)(L.Dense(16, activation="gelu")(x)))
    return L.Dense(3, activation="softmax")(L.GlobalAveragePooling1D()(x))

def words(x):
    x = L.MaxPooling1D()(L.Conv1D(8, 5, activation="relu")(x))
    return L.Dense(2)(L.GlobalMaxPooling1D()(L.Conv1D(8, 3)(x)))

NETWORKS = {
    "transposed": (lambda x: unet(x, "transpose"), (None, None, 3), 16),
    "nearest": (lambda x: unet(x, "nearest"), (None, None, 3), 16),
    "bilinear": (lambda x: unet(x, "bilinear"), (None, None, 3), 16),
    "bicubic": (lambda x: unet(x, "bicubic"), (None, None, 3), 16),
    "strided": (strided, (None, None, 3), 33),
    "transformer": (transformer, (None, 8), 7),
    "words": (words, (None, 8), 14),
}
rows = {}
for name, (build, shape, size) in NETWORKS.items():
    x = keras.Input(shape, name="x")
    source = keras.Model(x, build(x))
    free = sx.from_keras(source)
    x = keras.Input([size if d is None else d for d in shape], batch_size=2, name="x")
    fixed = sx.from_keras(keras.Model(x, build(x)))
    session = onnxruntime.InferenceSession(free.proto().SerializeToString())
    worst = 0.0
    for rows_of, length in ((2, size), (1, size + (4 if len(shape) == 3 else 1))):
        shape_of = [rows_of, *(length if d is None else d for d in shape)]
        array = np.random.default_rng(1).normal(size=shape_of).astype(np.float32)
        expected, actual = np.asarray(source(array)), session.run(None, {"x": array})[0]
        assert actual.shape == expected.shape, (name, actual.shape, expected.shape)
        worst = max(worst, float(np.abs(actual - expected).max()))
    rows[name] = {"ratio": len(free.graph) / len(fixed.graph), "worst": worst,
                  "operators": sorted({n.op_type for n in free.graph})}
print(json.dumps(rows))
"""


@pytest.mark.slow
def test_free_sizes_cost_few_nodes() -> None:
    rows = in_jax(NETWORKS)
    assert all(row["worst"] < 1e-4 for row in rows.values()), rows
    assert all(row["ratio"] <= 1.1 for row in rows.values()), rows
    operators = {name: set(row["operators"]) for name, row in rows.items()}
    assert "ConvTranspose" in operators["transposed"]
    assert all("Resize" in operators[n] for n in ("nearest", "bilinear", "bicubic"))
    assert operators["transformer"] >= {"LayerNormalization", "Gelu", "Softmax", "ReduceMean"}


THRESHOLD = """
import json, warnings
warnings.simplefilter("ignore")
import keras, numpy as np, onnxruntime, sardonyx as sx

class Threshold(keras.layers.Layer):
    def compute_output_shape(self, shape):
        return shape
    def call(self, x):
        return x * 2 if x.shape[1] >= 10 else x

def text_of(layer, shape):
    x = keras.Input(shape)
    try:
        sx.from_keras(keras.Model(x, layer(x)))
    except sx.errors.ImportRefused as refusal:
        return str(refusal)
    return "imported"

image = keras.Input((None, None, 1), name="x")
pool = keras.Model(image, keras.layers.MaxPooling2D(3, 2, padding="same")(image))
session = onnxruntime.InferenceSession(sx.from_keras(pool).proto().SerializeToString())
array = np.full((1, 8, 9, 1), -np.inf, np.float32)
array[0, 4, 4, 0], array[0, 7, 0, 0] = np.nan, 1.0
same = np.array_equal(session.run(None, {"x": array})[0], np.asarray(pool(array)), equal_nan=True)
crop, resize = keras.layers.CenterCrop(5, 5), keras.layers.Resizing(5, 7)
crops = [crop, lambda x: [crop(x), resize(x)]]
print(json.dumps({
    "threshold": text_of(Threshold(), (None, 3)), "same": bool(same),
    "crops": [text_of(layer, (None, None, 3)) for layer in crops],
}))
"""


@pytest.mark.slow
def test_what_depends_on_a_size_is_refused_and_pools_of_nothing_are_infinite() -> None:
    results = in_jax(THRESHOLD)
    assert "Threshold" in results["threshold"] and "inconclusive" in results["threshold"]
    assert results["same"]
    assert all("CenterCrop" in text for text in results["crops"])


POSITIONS = """
import json, warnings
warnings.simplefilter("ignore")
import keras, numpy as np, onnxruntime, sardonyx as sx
L, ops = keras.layers, keras.ops

class Positions(L.Layer):
    def __init__(self, count):
        super().__init__()
        self.count = count
    def build(self, shape):
        self.table = self.add_weight(shape=(self.count, shape[-1]), initializer="uniform")
    def compute_output_shape(self, shape):
        return shape
    def call(self, x):
        _, length, width = ops.shape(x)
        return x + ops.slice(ops.convert_to_tensor(self.table), (0, 0), (length, width))

rows = {}
for count in (3, 5, 77, 512):
    words, mask = L.Input((None,), dtype="int32"), L.Input((None,), dtype="int32")
    h = Positions(count)(L.Embedding(9, 8)(words))
    source = keras.Model([words, mask], h * ops.cast(mask, "float32")[..., None])
    session = onnxruntime.InferenceSession(sx.from_keras(source).proto().SerializeToString())
    names, worst = [i.name for i in session.get_inputs()], 0.0
    for length in {1, 2, count - 1, count}:
        arrays = [np.random.default_rng(i).integers(0, 9, (3, length), "i4") for i in (0, 1)]
        expected = np.asarray(source(arrays))
        actual = session.run(None, dict(zip(names, arrays)))[0]
        worst = max(worst, float(np.abs(actual - expected).max()))
    arrays = [np.ones((3, count + 1), "i4")] * 2
    try:
        session.run(None, dict(zip(names, arrays)))
        longer = "accepted"
    except Exception:
        longer = "refused"
    rows[count] = [worst, longer, session.get_inputs()[0].shape[1]]
print(json.dumps(rows))
"""


@pytest.mark.slow
def test_sizes_up_to_the_length_of_a_table_stay_free() -> None:
    rows = in_jax(POSITIONS)
    assert list(rows) == ["3", "5", "77", "512"]
    assert all(worst < 1e-6 for worst, _, _ in rows.values()), rows
    assert all(longer == "refused" for _, longer, _ in rows.values()), rows
    assert all(isinstance(size, str) for _, _, size in rows.values()), rows


UNBUILT = """
import json, warnings
warnings.simplefilter("ignore")
import keras, numpy as np, onnxruntime, sardonyx as sx
L = keras.layers

class Gated(L.Layer):  # Keras cannot tell its output shape inside TimeDistributed
    def build(self, shape):
        self.gate = self.add_weight(shape=(shape[-1], 3), initializer="uniform")
    def call(self, x):
        return keras.ops.sigmoid(keras.ops.matmul(x, self.gate))

source = keras.Sequential([L.Input((None, 4)), L.TimeDistributed(Gated()), L.LSTM(4)])
model = sx.from_keras(source)
session = onnxruntime.InferenceSession(model.proto().SerializeToString())
x = np.random.default_rng(0).normal(size=(2, 5, 4)).astype(np.float32)
actual = session.run(None, {session.get_inputs()[0].name: x})[0]
print(json.dumps(float(np.abs(actual - np.asarray(source(x))).max())))
"""


@pytest.mark.slow
def test_layers_that_keras_left_unbuilt_are_built() -> None:
    assert in_jax(UNBUILT) < 1e-6
