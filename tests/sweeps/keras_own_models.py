"""Keras models of many kinds, imported and compared with Keras at other sizes than those of the
import: a batch of one, of none, sequences of one step.

    python -m tests.sweeps.keras_own_models
    python -m tests.sweeps.keras_own_models --only "masked*"
    KERAS_BACKEND=tensorflow python -m tests.sweeps.keras_own_models --only "text*"
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import onnxruntime

import sardonyx as sx

L, ops = keras.layers, keras.ops
Model, Input = keras.Model, keras.Input
ROWS = (1, 2, 5)
LENGTHS = (1, 4, 9)
TOLERANCE = 1e-4  # of the largest number of an output
CASES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {}


def case(**options: Any) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Remember a model; `high` bounds its integers, `lengths` are those of free sizes."""

    def remember(build: Callable[[], Any]) -> Callable[[], Any]:
        CASES[build.__name__.replace("_", " ")] = build, options
        return build

    return remember


# -- shared layers, several inputs and outputs ---------------------------------------------


@case()
def siamese_with_shared_layers() -> Any:
    a, b = Input((6,), name="a"), Input((6,), name="b")
    body = keras.Sequential([L.Dense(8, activation="relu"), L.BatchNormalization(), L.Dense(4)])
    u, v = body(a), body(b)
    return Model({"a": a, "b": b}, {"dot": L.Dot(1, normalize=True)([u, v]), "gap": abs(u - v)})


@case()
def a_model_in_a_model_in_a_model() -> Any:
    inner = keras.Sequential([Input((5,)), L.Dense(5, activation="tanh")])
    x = Input((5,))
    middle = Model(x, [inner(x), inner(inner(x))])
    x = Input((3, 5))
    a, b = middle(x[:, 0]), middle(x[:, 2])
    return Model(x, L.Concatenate()([*a, *b, L.Flatten()(x)]))


@case(lengths=(3, 8))
def residual_network_with_squeeze_and_excitation() -> Any:
    x = Input((None, None, 4))
    h = x
    for dilation in (1, 2):
        y = L.Conv2D(8, 3, padding="same", dilation_rate=dilation, use_bias=False)(h)
        y = L.Activation("silu")(L.BatchNormalization(epsilon=1e-3)(y))
        y = L.DepthwiseConv2D(3, padding="same", depth_multiplier=2)(y)
        gate = L.GlobalAveragePooling2D(keepdims=True)(y)
        gate = L.Conv2D(16, 1, activation="hard_sigmoid")(gate)
        h = L.Add()([L.Conv2D(16, 1)(h), y * gate])
    return Model(x, [L.GlobalMaxPooling2D()(h), L.Conv2D(2, 3, strides=2)(h)])


@case()
def dictionaries_in_and_out() -> Any:
    x = {"left": Input((3,)), "right": (Input((3,)), Input((2,)))}
    h = L.Concatenate()([x["left"], x["right"][0], x["right"][1]])
    return Model(x, {"sum": ops.sum(h, -1), "parts": [L.Dense(2)(h), L.ReLU()(h)]})


# -- classes of the user's own ---------------------------------------------------------------


@keras.saving.register_keras_serializable("own")
class Gated(L.Layer):
    def __init__(self, units: int, **options: Any):
        super().__init__(**options)
        self.units = units
        self.gate, self.body = L.Dense(units, activation="sigmoid"), L.Dense(units)

    def build(self, shape: Any) -> None:
        self.gate.build(shape)
        self.body.build(shape)
        self.scale = self.add_weight(shape=(self.units,), initializer="uniform", name="scale")

    def call(self, x: Any) -> Any:
        return self.gate(x) * self.body(x) * self.scale

    def get_config(self) -> Any:
        return {**super().get_config(), "units": self.units}


@keras.saving.register_keras_serializable("own")
class RunningMax(L.Layer):
    """Keeps the largest input that it has seen in inference."""

    def build(self, shape: Any) -> None:
        self.largest = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x: Any) -> Any:
        self.largest.assign(ops.maximum(self.largest, ops.max(x)))
        return x / self.largest


@keras.saving.register_keras_serializable("own")
class Subclass(Model):
    def __init__(self, depth: int = 2, **options: Any):
        super().__init__(**options)
        self.depth = depth
        self.blocks = [Gated(6) for _ in range(depth)]
        self.head = L.Dense(2)

    def call(self, x: Any, training: bool = False) -> Any:
        for block in self.blocks:
            x = block(x) + x
        return {"logits": self.head(x), "norm": ops.norm(x, axis=-1)}

    def get_config(self) -> Any:
        return {"depth": self.depth}


@case()
def a_subclassed_model() -> Any:
    model = Subclass()
    model(np.zeros((2, 6), np.float32))
    return model


@case()
def a_layer_of_ones_own_in_a_sequence() -> Any:
    return keras.Sequential([Input((None, 4)), L.TimeDistributed(Gated(3)), L.LSTM(4)])


@case(state=True)
def a_layer_with_state_in_inference() -> Any:
    return keras.Sequential([Input((4,)), L.Dense(3), RunningMax()])


@case()
def lambdas() -> Any:
    x = Input((None, 4))
    h = L.Lambda(lambda t: ops.concatenate([ops.sin(t), ops.cumsum(t, axis=1)], -1))(x)
    return Model(x, L.Lambda(lambda t: ops.top_k(t, 3)[0])(h))


@case()
def operations_of_keras() -> Any:
    x = Input((None, 6))
    h = ops.einsum("btc,bsc->bts", x, x) / ops.sqrt(6.0)
    h = ops.where(h > 0, ops.log1p(ops.abs(h)), ops.expm1(h))
    h = ops.softmax(h, axis=-1) @ x
    low, high = ops.split(ops.flip(h, axis=-1), 2, axis=-1)
    h = ops.stack([ops.erf(low), ops.clip(high, -0.5, 0.5)], axis=1)
    return Model(x, [ops.logsumexp(h, axis=(1, 3)), ops.argsort(ops.sum(h, (1, 2)), axis=-1)])


# -- sequences and masks ---------------------------------------------------------------------


@case(high=7)
def masked_embedding_and_lstm() -> Any:
    t = Input((None,), dtype="int32")
    h = L.Embedding(7, 5, mask_zero=True)(t)
    return Model(t, L.Dense(2)(L.LSTM(4)(L.LSTM(4, return_sequences=True)(h))))


@case(high=7)
def masked_bidirectional_merges() -> Any:
    t = Input((None,), dtype="int32")
    h = L.Embedding(7, 4, mask_zero=True)(t)
    results = [
        L.Bidirectional(L.GRU(3, return_sequences=how != "mul"), merge_mode=how)(h)
        for how in ("concat", "sum", "ave", "mul")
    ]
    pair = L.Bidirectional(L.LSTM(2), merge_mode=None)(h)
    return Model(t, [*results, *pair])


@case()
def masked_values() -> Any:
    x = Input((None, 3))
    h = L.Masking(0.0)(x)
    h = L.GRU(4, return_sequences=True, reset_after=False, go_backwards=True)(h)
    return Model(x, L.TimeDistributed(L.Dense(2))(h))


@case(high=7)
def masked_attention() -> Any:
    q, k = Input((None,), dtype="int32"), Input((None,), dtype="int32")
    e = L.Embedding(7, 8, mask_zero=True)
    u, v = e(q), e(k)
    h = L.MultiHeadAttention(2, 4, output_shape=6)(u, v)
    weights = L.Attention(use_scale=True)([u, v])
    return Model([q, k], [h, weights, L.AdditiveAttention()([u, v])])


@case()
def causal_attention_with_a_mask() -> Any:
    x, mask = Input((None, 8)), Input((None, None), dtype="bool")
    h, scores = L.MultiHeadAttention(2, 4)(
        x, x, attention_mask=mask, use_causal_mask=True, return_attention_scores=True
    )
    return Model([x, mask], [L.GroupQueryAttention(4, 4, 2)(x, x, use_causal_mask=True), h, scores])


@case(high=7)
def masked_means_over_time() -> Any:
    t = Input((None,), dtype="int32")
    h = L.Embedding(7, 4, mask_zero=True)(t)
    h = L.SpatialDropout1D(0.3)(L.LayerNormalization()(h))
    return Model(t, L.GlobalAveragePooling1D()(h))


@case()
def states_of_recurrent_layers() -> Any:
    x, h0 = Input((None, 3)), Input((4,))
    y, h, c = L.LSTM(4, return_sequences=True, return_state=True)(x, initial_state=[h0, h0 * 2])
    z, last = L.GRU(4, return_sequences=True, return_state=True)(y, initial_state=h)
    return Model([x, h0], [z, last, c, L.SimpleRNN(2, activation="relu")(z)])


@case()
def cells_in_a_stack() -> Any:
    cells = [L.LSTMCell(4), L.GRUCell(3), L.SimpleRNNCell(2)]
    x = Input((None, 3))
    return Model(x, L.RNN(cells, return_sequences=True)(x))


@case(lengths=(1, 3))
def convolutional_lstms() -> Any:
    x = Input((None, 6, 6, 2))
    h = L.ConvLSTM2D(3, 3, padding="same", return_sequences=True)(x)
    return Model(x, L.TimeDistributed(L.MaxPooling2D())(L.BatchNormalization()(h)))


@case()
def convolutions_over_time() -> Any:
    x = Input((None, 4))
    h = L.Conv1D(6, 3, padding="causal", dilation_rate=2, activation="gelu")(x)
    h = L.SeparableConv1D(4, 3, padding="same")(h)
    h = L.Conv1DTranspose(4, 3, strides=2, padding="same")(h)
    return Model(x, [L.ZeroPadding1D((1, 2))(h), L.UpSampling1D(2)(h)])


# -- images and volumes ----------------------------------------------------------------------


@case(lengths=(16, 21))
def images_resized_and_cropped() -> Any:
    x = Input((None, None, 3))
    h = L.Rescaling(1 / 127.5, offset=-1)(x)
    fixed = L.CenterCrop(8, 9)(L.Resizing(12, 10, interpolation="bilinear")(h))
    ratio = L.Resizing(8, 8, interpolation="nearest", crop_to_aspect_ratio=False)(h)
    return Model(x, [fixed, ratio])


@case()
def random_augmentation_in_inference() -> Any:
    x = Input((8, 8, 3))
    h = x
    for layer in (
        L.RandomFlip(), L.RandomRotation(0.2), L.RandomZoom(0.1), L.RandomContrast(0.3),
        L.RandomTranslation(0.1, 0.1), L.RandomBrightness(0.2), L.GaussianNoise(0.1),
        L.RandomCrop(6, 6), L.GaussianDropout(0.2), L.AlphaDropout(0.1),
    ):  # fmt: skip
        h = layer(h)
    return Model(x, h)


@case(lengths=(8, 9))
def volumes() -> Any:
    x = Input((6, 8, 8, 2))
    h = L.Conv3D(4, 3, padding="same", groups=2, activation="elu")(x)
    h = L.Conv3DTranspose(3, 2, strides=2)(L.AveragePooling3D(2, padding="same")(h))
    return Model(x, L.GlobalAveragePooling3D()(L.Cropping3D(1)(h)))


@case()
def channels_first() -> Any:
    x = Input((3, 8, 8))
    h = L.Conv2D(4, 3, padding="same", data_format="channels_first")(x)
    h = L.BatchNormalization(axis=1)(h)
    h = L.PReLU(shared_axes=[2, 3])(h)
    return Model(x, L.Flatten(data_format="channels_first")(h))


@case()
def norms_of_every_kind() -> Any:
    x = Input((6, 6, 8))
    layers = [
        L.GroupNormalization(4), L.GroupNormalization(-1), L.LayerNormalization(axis=[1, 2]),
        L.UnitNormalization(), L.RMSNormalization(), L.SpectralNormalization(L.Conv2D(4, 2)),
        L.BatchNormalization(axis=1, center=False, scale=False),
    ]  # fmt: skip
    return Model(x, [layer(x) for layer in layers])


@case()
def activations_of_every_kind() -> Any:
    x = Input((5,))
    names = [n for n, v in vars(keras.activations).items() if callable(v) and n.islower()]
    skipped = ("get", "serialize", "deserialize", "glu", "threshold")
    return Model(x, [L.Activation(n)(x) for n in names if n not in skipped])


# -- features --------------------------------------------------------------------------------


@case()
def numbers_normalized_and_binned() -> Any:
    data = np.random.default_rng(0).normal(3, 2, (50, 4)).astype(np.float32)
    norm, bins = L.Normalization(), L.Discretization(num_bins=5, output_mode="one_hot")
    norm.adapt(data)
    bins.adapt(data[:, :1])
    x = Input((4,))
    return Model(x, [norm(x), L.Normalization(mean=2.0, variance=4.0, invert=True)(x),
                     bins(x[:, :1]), L.Discretization([-1.0, 0.0, 1.0])(x)])  # fmt: skip


@case(high=5)
def categories_encoded() -> Any:
    t, w = Input((3,), dtype="int32"), Input((3,))
    return Model([t, w], [L.CategoryEncoding(5, "multi_hot")(t),
                          L.CategoryEncoding(5, "count")(t, count_weights=w),
                          ops.one_hot(t, 5)])  # fmt: skip


@case(high=9)
def integers_looked_up() -> Any:
    t = Input((3,), dtype="int64")
    return Model(t, L.IntegerLookup(vocabulary=[3, 5, 7], num_oov_indices=2)(t))


@case(texts=["a", "b", "zebra", ""])
def text_looked_up() -> Any:
    t = Input((2,), dtype="string")
    index = L.StringLookup(vocabulary=["a", "b", "c"])(t)
    return Model(t, L.Embedding(5, 3)(index))


@case(texts=["a", "b", "zebra", ""])
def text_as_many_hot() -> Any:
    t = Input((3,), dtype="string")
    return Model(t, L.StringLookup(vocabulary=["a", "b", "c"], output_mode="multi_hot")(t))


@case(texts=["one two", "Two, three!", "", "four one one"])
def text_vectorized() -> Any:
    layer = L.TextVectorization(output_sequence_length=4, vocabulary=["one", "two", "three"])
    t = Input((1,), dtype="string")
    return Model(t, layer(t))


@case(texts=["a", "b", "zebra", ""])
def text_hashed() -> Any:
    t = Input((2,), dtype="string")
    return Model(t, L.Hashing(7)(t))


# -- types -----------------------------------------------------------------------------------


def _mixed(policy: str) -> Any:
    x = Input((None, 6))
    h = L.Dense(8, activation="gelu", dtype=policy)(x)
    h = L.LayerNormalization(dtype=policy)(h)
    h = L.MultiHeadAttention(2, 4, dtype=policy)(h, h)
    return Model(x, L.Dense(3, activation="softmax", dtype="float32")(h))


@case(tolerance=2e-2)
def mixed_float16() -> Any:
    return _mixed("mixed_float16")


@case(tolerance=2e-1)
def mixed_bfloat16() -> Any:
    return _mixed("mixed_bfloat16")


@case(tolerance=2e-2)
def mixed_convolutions() -> Any:
    x = Input((8, 8, 3))
    h = L.Conv2D(4, 3, dtype="mixed_float16")(x)
    h = L.BatchNormalization(dtype="mixed_float16")(h)
    h = L.GlobalAveragePooling2D(dtype="mixed_float16")(L.ReLU(dtype="mixed_float16")(h))
    return Model(x, L.Dense(2, dtype="float32")(h))


@case()
def integers_of_every_kind() -> Any:
    inputs = [Input((3,), dtype=kind) for kind in ("uint8", "int8", "int16", "int64", "bool")]
    total = sum(ops.cast(x, "float32") for x in inputs)
    return Model(inputs, [total, inputs[0] // 3, inputs[1] % 4, ops.logical_not(inputs[4])])


@case()
def quantized_to_int8() -> Any:
    model = keras.Sequential([Input((16,)), L.Dense(12, activation="relu"), L.Dense(4)])
    model.quantize("int8")
    return model


@case()
def adapted_by_lora() -> Any:
    model = keras.Sequential([Input((8,)), L.Dense(6), L.EinsumDense("ab,bc->ac", 3)])
    for layer in model.layers:
        layer.enable_lora(2)
        layer.lora_kernel_b.assign(np.ones(layer.lora_kernel_b.shape))
    return model


# -- the comparison --------------------------------------------------------------------------


def arrays(model: Any, options: dict[str, Any], rows: int, length: int, seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    results = []
    for tensor in keras.tree.flatten(_structure(model)):
        shape = [rows, *(length if d is None else d for d in tensor.shape[1:])]
        kind = keras.backend.standardize_dtype(tensor.dtype)
        if kind == "string":
            results.append(rng.choice(np.array(options["texts"], object), shape))
        elif kind == "bool":
            results.append(rng.random(shape) < 0.7)
        elif "int" in kind:
            low = 0 if "u" in kind or "high" in options else -9
            results.append(rng.integers(low, options.get("high", 10), shape).astype(kind))
        else:
            array = rng.normal(size=shape).astype(kind)
            if length > 1 and len(shape) == 3:
                array[:, -1] = 0  # a step that masks leave out
            results.append(array)
    return results


def _structure(model: Any) -> Any:
    from sardonyx.importers.keras.names import input_structure

    return input_structure(model)


def compared(build: Callable[[], Any], options: dict[str, Any]) -> str:
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    source = build()
    try:
        model = sx.from_keras(source)
    except sx.errors.ImportDiffers as error:
        return f"WRONG  {' '.join(str(error).split())[:400]}"
    except sx.SardonyxError as error:
        return f"refused  {' '.join(str(error).split())[:400]}"
    if options.get("state"):
        return f"right  {model.metadata['sardonyx.state'][:60]}"
    session = onnxruntime.InferenceSession(model.proto().SerializeToString())
    inputs = [i.name for i in session.get_inputs()]
    worst = 0.0
    for rows in ROWS:
        for length in options.get("lengths", LENGTHS):
            fed = arrays(source, options, rows, length, rows * length)
            names = _names(source)
            packed = keras.tree.pack_sequence_as(_structure(source), _tensors(fed))
            # Layers of augmentation augment unless they are told not to.
            mode = {"training": False} if source._call_has_training_arg else {}
            results = keras.tree.flatten(source(packed, **mode))
            expected = [np.asarray(ops.convert_to_numpy(y)) for y in results]
            feeds = {n: _fed(a) for n, a in zip(names, fed, strict=True) if n in inputs}
            actual = session.run(None, feeds)
            worst = max(worst, *(map(_difference, actual, expected)))
    verdict = "right" if worst <= options.get("tolerance", TOLERANCE) else "WRONG"
    return f"{verdict}  {worst:.1e}, {len(model.graph)} nodes"


def _names(model: Any) -> list[str]:
    from sardonyx.importers.keras.names import input_names

    return input_names(keras.tree.flatten(_structure(model)))


def _tensors(fed: list[Any]) -> list[Any]:
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return [tf.constant(a.tolist() if a.dtype == object else a) for a in fed]
    return fed


def _fed(array: np.ndarray) -> np.ndarray:
    is_wide = keras.backend.backend() == "jax" and array.dtype == np.int64
    return array.astype(np.int32) if is_wide else array


def _difference(actual: np.ndarray, expected: np.ndarray) -> float:
    if actual.shape != expected.shape:
        return np.inf
    if not actual.size:
        return 0.0
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        return np.inf
    a, b = np.nan_to_num(a), np.nan_to_num(b)
    return float(np.abs(a - b).max() / max(1.0, np.abs(b).max()))


def main() -> int:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--only", default="*", help="patterns of names, with commas")
    options = parser.parse_args()
    counts: dict[str, int] = {}
    for name, (build, settings) in CASES.items():
        if not any(fnmatchcase(name, pattern) for pattern in options.only.split(",")):
            continue
        started = time.process_time()
        try:
            result = compared(build, settings)
        except Exception as error:
            result = f"failed  {type(error).__name__}: {' '.join(str(error).split())[:400]}"
        counts[result.split()[0]] = counts.get(result.split()[0], 0) + 1
        print(f"{name:45} {result}  {time.process_time() - started:.1f} s of CPU", flush=True)
    print(counts)
    return int(not set(counts) <= {"right", "refused"})


if __name__ == "__main__":
    sys.exit(main())
