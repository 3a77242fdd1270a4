"""`from_keras`: a Keras 3 model, with its training, as an ONNX model.

A process has one backend of Keras. Where it is not JAX, the model is saved as a `.keras` file and
traced in a process of its own; the result is compared with the caller's model here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sardonyx.errors import ArgumentError, ImportRefused, MissingExtra, UnsupportedOp, quote
from sardonyx.model import Model

try:
    import keras
except ImportError as error:
    raise MissingExtra("keras", "tensorflow") from error

from sardonyx.importers.keras import apart
from sardonyx.importers.keras.files import read

SUFFIXES = (".keras", ".h5", ".hdf5")
HOW = ("record", "step")
IMPORTED = "sardonyx.imported"


def from_keras(
    model_or_path: Any,
    *,
    training: bool | None = None,
    labels: Any = None,
    sample_weight: bool = False,
    example: Any = None,
    how: str = "record",
) -> Model:
    """Import a Keras 3 model, or a `.keras` or `.h5` file, as an ONNX model.

    Weights keep the paths of their variables as names, and sizes that the model leaves open stay
    free. The served graph is that of inference. A compiled model brings its training along: losses,
    regularizers, constraints, metrics, and the optimizer with its state, as a record that goes on
    where Keras stopped. The result is compared with Keras before it is returned: its outputs, and
    two training steps.

    model_or_path -- a built model (it has been called, or has an `Input`), or the path of a file;
                     files with pickled code are refused, as Keras does by default
    training      -- whether to import what `compile()` set; if not given, where there is any
    labels        -- examples of the labels, in the structure of the outputs; if not given, the
                     losses decide
    sample_weight -- whether a training step also takes a weight for each sample
    example       -- examples of the inputs, where the model does not declare them
    how           -- "record": the loss is differentiated by sardonyx, and the record can be edited
                     like any other; "step": the whole step as JAX computes it

    >>> import keras, sardonyx as sx
    >>> layers = [keras.layers.Input((4,), name="x"), keras.layers.Dense(3, name="head")]
    >>> model = sx.from_keras(keras.Sequential(layers, name="net"))
    >>> sorted(weight.name for weight in sx.weights(model) if weight.kind == "weight")
    ['net/head/bias', 'net/head/kernel']
    """
    if how not in HOW:
        raise ArgumentError(f'how is "record" or "step", not {quote(how)}')
    options = {
        "training": training, "labels": labels, "weighted": sample_weight, "example": example,
        "how": how,
    }  # fmt: skip
    if isinstance(model_or_path, (str, Path)):
        path = Path(model_or_path)
        if not path.is_file() or path.suffix not in SUFFIXES:
            raise ArgumentError(
                f"{quote(path.name)} is no file of Keras", hint="give a .keras or .h5 file"
            )
        if not _is_jax():
            return apart.imported(path, options)
        return from_model(read(path, training is not False), **options)
    if not isinstance(model_or_path, keras.Model):
        raise ArgumentError(
            f"{quote(type(model_or_path).__name__)} is no Keras model",
            hint="give a keras.Model, or the path of a .keras file",
        )
    if _is_jax():
        return from_model(model_or_path, **options)
    return apart.from_other_backend(model_or_path, options)


def _is_jax() -> bool:
    return keras.backend.backend() == "jax"


def from_model(
    model: keras.Model,
    *,
    names: Sequence[str] = (),
    training: bool | None = None,
    labels: Any = None,
    weighted: bool = False,
    example: Any = None,
    how: str = "record",
) -> Model:
    """The import of a model in this process, whose backend is JAX.

    names -- of its variables, the trained ones first; their paths, if not given
    """
    from sardonyx.importers.keras.source import Source

    source = Source(model, names, labels, weighted, example)
    is_compiled = getattr(model, "compiled", False) and model.optimizer is not None
    if training and not is_compiled:
        raise ArgumentError(
            "the Keras model is not compiled", hint="model.compile(optimizer=…, loss=…)"
        )
    if training is None:
        training = is_compiled
    served = serve(source)
    return with_training(source, served, how) if training else served


def serve(source: Any) -> Model:
    """The model as it is in inference."""
    from sardonyx.importers.jax.finish import forward
    from sardonyx.importers.keras.marks import marks

    def call(params: Any, *inputs: Any) -> Any:
        outputs, _ = source.call([params[n] for n in source.names], inputs, training=False)
        return outputs

    call.__name__ = source.model.name
    params = dict(zip(source.names, source.values(), strict=True))
    with marks():
        model = forward(call, params, tuple(source.structs()), names=source.input_names)
    model.metadata[IMPORTED] = f"keras {keras.__version__}"
    return model


def with_training(source: Any, served: Model, how: str) -> Model:
    """The served model with the training that `compile()` described."""
    from sardonyx.importers.keras.check import require_same_steps
    from sardonyx.importers.keras.training import Training
    from sardonyx.versions import fit

    training = Training(source, served)
    model = training.whole_step() if how == "step" or training.needs_step else _record(training)
    model = fit(model)
    require_same_steps(model, training)
    return model


def _record(training: Any) -> Model:
    """The record; where sardonyx cannot differentiate the losses, JAX does."""
    try:
        model: Model = training.record()
    except (ImportRefused, UnsupportedOp):
        model = training.whole_step()
    return model
