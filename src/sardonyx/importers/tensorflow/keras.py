"""`from_keras`: a Keras 3 model as an ONNX model, traced on Keras's JAX backend.

A process has one backend. Where it is another one, the model is saved as a `.keras` file and
traced in a process of its own; the result is compared with the caller's model here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx.errors import ArgumentError, ImportDiffers, ImportRefused, MissingExtra, quote
from sardonyx.importers.jax.finish import forward
from sardonyx.importers.jax.trees import structs
from sardonyx.model import Model, load
from sardonyx.verify import verify
from sardonyx.verify.noise import DIFFERENT, FAILS

try:
    import keras
except ImportError as error:
    raise MissingExtra("keras", "tensorflow") from error

SUFFIXES = (".keras", ".h5")
WORKER = "sardonyx.importers.tensorflow.keras_worker"
SECONDS = 60.0
SAMPLE_SIZE = 2


def from_keras(model_or_path: Any) -> Model:
    """Import a Keras 3 model, or a `.keras` or `.h5` file, as an ONNX model.

    Weights keep the paths of their variables as names, and sizes that the model leaves open stay
    free. The result is compared with the model itself before it is returned. Layers compute as in
    inference: dropout does nothing, batch normalization uses its running statistics.

    model_or_path -- a built model (it has been called, or has an `Input`), or the path of a file;
                     files with pickled code are refused, as Keras does by default

    >>> import keras, sardonyx as sx
    >>> layers = [keras.layers.Input((4,), name="x"), keras.layers.Dense(3, name="head")]
    >>> model = sx.from_keras(keras.Sequential(layers, name="net"))
    >>> sorted(weight.name for weight in sx.weights(model) if weight.kind == "weight")
    ['net/head/bias', 'net/head/kernel']
    """
    if isinstance(model_or_path, (str, Path)):
        path = Path(model_or_path)
        if not path.is_file() or path.suffix not in SUFFIXES:
            raise ArgumentError(
                f"{quote(path.name)} is no file of Keras", hint="give a .keras or .h5 file"
            )
        return (
            from_model(keras.models.load_model(path, compile=False)) if _traces() else _apart(path)
        )
    if not isinstance(model_or_path, keras.Model):
        raise ArgumentError(
            f"{quote(type(model_or_path).__name__)} is no Keras model",
            hint="give a keras.Model, or the path of a .keras file",
        )
    if _traces():
        return from_model(model_or_path)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # Keras 3.15 reads variables of TensorFlow by a signature that NumPy 2 deprecates.
        warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
        path = Path(folder) / "model.keras"
        model_or_path.save(path)
        model = _apart(path, _paths(_variables(model_or_path)))
        _require_same(model, model_or_path)
    return model


def _traces() -> bool:
    return keras.backend.backend() == "jax"


def _apart(path: Path, names: Sequence[str] = ()) -> Model:
    """The model of a file, imported by a process whose backend is JAX.

    names -- of the variables: those that Keras gives them when it reads the file may differ
    """
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "model.onnx"
        environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-m", WORKER, str(path), str(target), json.dumps(list(names))]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            raise ImportRefused(
                "Keras could not be traced on its JAX backend",
                [[line] for line in lines[-12:]],
                hint="classes of your own need @keras.saving.register_keras_serializable and an "
                "import there; or start this program with KERAS_BACKEND=jax",
            )
        model = load(target)
        for value in model.graph.initializers.values():  # the file is gone when this returns
            if value.const_value is not None:
                value.const_value.numpy()
        return model


def from_model(model: keras.Model, names: Sequence[str] = ()) -> Model:
    """The import of a model in this process, whose backend is JAX.

    names -- of its variables, the trained ones first; their paths, if not given
    """
    if not model.built or not getattr(model, "inputs", None):
        raise ArgumentError(
            "the Keras model is not built, or has no declared inputs",
            hint="give it a keras.Input: keras.Model(inputs, module(inputs))",
        )
    shapes = [_sizes(number, tensor.shape) for number, tensor in enumerate(model.inputs)]
    example = structs(shapes, [tensor.dtype for tensor in model.inputs])
    variables = _variables(model)
    paths = list(names) or _paths(variables)
    params = dict(zip(paths, (v.value for v in variables), strict=True))
    count = len(model.trainable_variables)

    def call(params: Any, *inputs: Any) -> Any:
        values = [params[path] for path in paths]
        outputs, _ = model.stateless_call(
            values[:count], values[count:], _structured(model, inputs), training=False
        )
        return outputs

    call.__name__ = model.name
    return forward(call, params, tuple(example), names=_input_names(model))


def _input_names(model: keras.Model) -> list[str]:
    """The names of a model's inputs; those that Keras made up differ from process to process."""
    names = [tensor.name for tensor in model.inputs]
    plain = ["input"] if len(names) == 1 else [f"input_{i}" for i in range(len(names))]
    return [p if n.startswith("keras_tensor") else n for n, p in zip(names, plain, strict=True)]


def _variables(model: keras.Model) -> list[Any]:
    return [*model.trainable_variables, *model.non_trainable_variables]


def _paths(variables: Sequence[Any]) -> list[str]:
    """A name for each variable: its path, numbered where layers share one."""
    paths: list[str] = []
    for variable in variables:
        path, count = variable.path, 0
        while path in paths:
            count += 1
            path = f"{variable.path}_{count}"
        paths.append(path)
    return paths


def _sizes(number: int, shape: Sequence[int | None]) -> list[int | str]:
    """The sizes of an input; the batch is one symbol for all, other open sizes are their own."""
    return [
        ("batch" if axis == 0 else f"size_{number}_{axis}") if size is None else int(size)
        for axis, size in enumerate(shape)
    ]


def _structured(model: keras.Model, inputs: Sequence[Any]) -> Any:
    """The inputs as the model takes them: one, a list, or a dictionary."""
    inner = getattr(model, "_functional", None) or model
    structure = getattr(inner, "_inputs_struct", None)
    if structure is None:
        return inputs[0] if len(inputs) == 1 else list(inputs)
    return keras.tree.pack_sequence_as(structure, list(inputs))


def _require_same(model: Model, source: keras.Model) -> None:
    """Compare with the caller's model, which runs on another backend than the import did."""
    names = [v.name or "" for v in model.outputs]
    used = [v.name for v in model.inputs]

    def keras_model(*arrays: Any) -> dict[str, Any]:
        fed = dict(zip(used, arrays, strict=True))
        pairs = zip(_input_names(source), source.inputs, strict=True)
        inputs = [keras.ops.convert_to_tensor(fed.get(n, _zeros(t))) for n, t in pairs]
        results = keras.tree.flatten(source(_structured(source, inputs), training=False))
        return dict(zip(names, map(keras.ops.convert_to_numpy, results), strict=True))

    report = verify(model, keras_model, seeds=2, seconds=SECONDS)
    if report.verdict in (DIFFERENT, FAILS):
        raise ImportDiffers(
            "the imported model and Keras differ",
            [[line] for line in str(report).splitlines()],
            hint="this is a defect of the import: please report the model; nothing was returned",
        )


def _zeros(tensor: Any) -> np.ndarray:
    shape = [SAMPLE_SIZE if size is None else size for size in tensor.shape]
    return np.zeros(shape, tensor.dtype)
