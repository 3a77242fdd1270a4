"""`to_keras`: an ONNX model as a Keras 3 model; and the weights of Keras models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx.engines.native import Stored
from sardonyx.errors import MissingExtra, quote
from sardonyx.model import ModelSource, load

try:
    import keras
except ImportError as error:
    raise MissingExtra("keras", "tensorflow") from error

if TYPE_CHECKING:
    from sardonyx.engines.keras.network import OnnxModel


def to_keras(model: ModelSource) -> OnnxModel:
    """An ONNX model as a Keras 3 model on the backend that Keras has: TensorFlow, JAX or PyTorch.

    Every weight is a variable of Keras under the model's own name. A model with a training record
    is compiled with it: `fit` and `train_on_batch` take the record's steps, with its loss, its
    optimizer and the optimizer's state; `compile` replaces them. `save` writes a `.keras` file,
    which `keras.models.load_model` reads where sardonyx is imported. `with_weights` takes the
    trained weights back.

    >>> import numpy as np, sardonyx as sx
    >>> network = sx.to_keras("model.onnx")
    >>> sorted(variable.path for variable in network.trainable_variables)
    ['body.bias', 'body.weight', 'head.bias', 'head.weight']
    >>> network.predict(np.zeros((2, 8), np.float32), verbose=0).shape
    (2, 3)
    """
    from sardonyx.engines.keras.network import OnnxModel

    loaded = load(model)
    network = OnnxModel(loaded, name=_identifier(loaded.graph.name or "model"))
    if loaded.records:
        network.compile_record()
    return network


def _identifier(name: str) -> str:
    allowed = "".join(c if c.isalnum() or c in "_-." else "_" for c in name)
    return allowed or "model"


def weight_arrays(network: Any) -> dict[str, np.ndarray]:
    """The weights of a Keras model by name: the paths of its variables."""
    layer = getattr(network, "layer", None)
    held = getattr(layer, "variables_by_name", None)
    if held is not None:
        return {name: array_of(variable) for name, variable in held.items()}
    names: dict[str, np.ndarray] = {}
    for variable in [*network.trainable_variables, *network.non_trainable_variables]:
        path, count = variable.path, 0
        while path in names:
            count += 1
            path = f"{variable.path}_{count}"
        names[path] = array_of(variable)
    return names


def array_of(tensor: Any) -> np.ndarray:
    """A variable or tensor of Keras as NumPy has it; TensorFlow's variables are read first."""
    value = tensor.value if hasattr(tensor, "path") else tensor
    value = value.read_value() if hasattr(value, "read_value") else value
    return np.array(keras.ops.convert_to_numpy(value))


def store(model: ModelSource, path: Path) -> Stored:
    """Write a model as a `.keras` file."""
    network = to_keras(model)
    network.save(path)
    loaded = keras.models.load_model(path)

    def run(*arrays: Any) -> Any:
        names = list(loaded.layer.inputs_by_name)
        outputs = loaded(loaded.layer.feeds(dict(zip(names, arrays, strict=True))), training=False)
        values = list(outputs.values()) if isinstance(outputs, dict) else [outputs]
        return tuple(keras.ops.convert_to_numpy(v) for v in values)

    rows = [
        [f"input {quote(n)}", f"{v.dtype}{v.shape}"] for n, v in loaded.layer.inputs_by_name.items()
    ]
    trained = network.trainable_variables
    count = sum(int(np.prod(v.shape)) for v in trained)
    rows.append(["parameters", f"{count:,} in {len(trained)} variables"])
    rows.append(["to load it", "import sardonyx.engines.keras.network; keras.models.load_model(…)"])
    return Stored(path, run, rows)
