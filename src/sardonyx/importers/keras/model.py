"""`from_keras`: a Keras 3 model, with its training, as an ONNX model.

A process has one backend of Keras. Where it is not JAX, the model is saved as a `.keras` file and
traced in a process of its own; the result is compared with the caller's model here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sardonyx.errors import (
    ArgumentError,
    EngineError,
    ImportDiffers,
    ImportRefused,
    MissingExtra,
    UnsupportedOp,
    quote,
)
from sardonyx.model import Model

try:
    import keras
except ImportError as error:
    raise MissingExtra("keras", "tensorflow") from error

from sardonyx.importers.keras import apart
from sardonyx.importers.keras.files import of_sardonyx, read, require_readable
from sardonyx.importers.keras.names import input_structure
from sardonyx.importers.state import STATE, described

SUFFIXES = (".keras", ".h5", ".hdf5")
HOW = ("record", "step")
IMPORTED = "sardonyx.imported"
LEAST = (2, 4, 8, 16, 32, 64, 128, 256, 512)  # free sizes to assume, where a trace needs to know
SMALLER = 8  # sizes below that which are compared


def from_keras(
    model_or_path: Any,
    *,
    training: bool | None = None,
    labels: Any = None,
    sample_weight: Any = False,
    example: Any = None,
    how: str = "record",
) -> Model:
    """Import a Keras 3 model, or a `.keras` or `.h5` file, as an ONNX model.

    Weights keep the paths of their variables as names, and sizes that the model leaves open stay
    free. The served graph is that of inference. A compiled model brings its training along: losses,
    regularizers, constraints, metrics, and the optimizer with its state, as a record that goes on
    where Keras stopped. The result is compared with Keras before it is returned: its outputs, and
    two training steps. A variable that inference assigns becomes an input and an output; the
    metadata `sardonyx.state` has both names and the first value. On the TensorFlow backend, what
    JAX cannot trace is read from TensorFlow's graph, without training.

    model_or_path -- a built model (it has been called, or has an `Input`), or the path of a file;
                     files with pickled code are refused, as Keras does by default
    training      -- whether to import what `compile()` set; if not given, where there is any
    labels        -- examples of the labels, in the structure of the outputs; if not given, the
                     losses decide
    sample_weight -- whether a training step also takes a weight for each sample; an example where
                     each step of a sequence has one
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
        require_readable(path)
        if of_sardonyx(path):
            return from_keras(
                read(path, training is not False), training=training, labels=labels,
                sample_weight=sample_weight, example=example, how=how,
            )  # fmt: skip
        if _is_jax():
            return from_model(read(path, training is not False), **options)
        try:
            return apart.imported(path, options)
        except ImportRefused as refusal:
            return _by_tensorflow(refusal, lambda: read(path, training is not False), options)
    if not isinstance(model_or_path, keras.Model):
        raise ArgumentError(
            f"{quote(type(model_or_path).__name__)} is no Keras model",
            hint="give a keras.Model, or the path of a .keras file",
        )
    own: Model | None = getattr(model_or_path, "to_onnx_model", lambda _: None)(training)
    if own is not None:  # a model of `sx.to_keras`
        return own
    if _is_jax():
        return from_model(model_or_path, **options)
    try:
        return apart.from_other_backend(model_or_path, options)
    except ImportRefused as refusal:
        return _by_tensorflow(refusal, lambda: model_or_path, options)


def _by_tensorflow(
    refusal: ImportRefused, read_model: Callable[[], keras.Model], options: Mapping[str, Any]
) -> Model:
    """The inference of a model that JAX cannot trace, read from the graph of TensorFlow."""
    if keras.backend.backend() != "tensorflow" or options["training"]:
        raise refusal
    try:
        model = read_model()
    except (ValueError, TypeError, ImportError, OSError):
        raise refusal from None
    if options["training"] is None and getattr(model, "compiled", False):
        more = "training=False imports the inference alone, from TensorFlow's graph"
        raise ImportRefused(refusal.what, refusal.where, f"{refusal.hint}; or {more}") from refusal
    from sardonyx.importers.tensorflow.graph import from_source
    from sardonyx.importers.tensorflow.sources import of_keras

    try:
        structure = input_structure(model, options["example"])
        imported_model = from_source(of_keras(model, structure))
    except ImportRefused as other:
        rows = [*refusal.where, *([f"TensorFlow: {row[0]}", *row[1:]] for row in other.where)]
        hint = "leave these parts out of the model, and apply them to the data before"
        raise ImportRefused(refusal.what, rows, hint=hint) from other
    imported_model.metadata[IMPORTED] = f"keras {keras.__version__}"
    return imported_model


def _is_jax() -> bool:
    return keras.backend.backend() == "jax"


def from_model(
    model: keras.Model,
    *,
    names: Sequence[str] = (),
    training: bool | None = None,
    labels: Any = None,
    weighted: Any = False,
    example: Any = None,
    how: str = "record",
    masked_metrics: bool = False,
) -> Model:
    """The import of a model in this process, whose backend is JAX.

    names          -- of its variables, the trained ones first; their paths, if not given
    masked_metrics -- whether metrics leave out what is masked, as on all backends but JAX
    """
    from sardonyx.importers.keras.source import Source

    source = Source(model, names, labels, weighted, example)
    source.masked_metrics = masked_metrics
    is_compiled = getattr(model, "compiled", False) and model.optimizer is not None
    if training and not is_compiled:
        raise ArgumentError(
            "the Keras model is not compiled", hint="model.compile(optimizer=…, loss=…)"
        )
    if training is None:
        training = is_compiled
    served = _served(source)
    if not training:
        return served
    if STATE in served.metadata:
        raise ImportRefused(
            "a model that keeps variables from call to call is imported without its training",
            [[quote(name)] for name in json.loads(served.metadata[STATE])],
            hint="training=False imports the inference; the variables are inputs and outputs of it",
        )
    return with_training(source, served, how)


def _served(source: Any) -> Model:
    """The model as it is in inference, its free sizes as independent as it allows."""
    refusal: ImportRefused | None = None
    for knows_more in (lambda: True, source.settle_sizes, source.bound_sizes):
        try:
            if knows_more():
                return serve(source)
        except ImportRefused as error:
            refusal = error
    assert refusal is not None
    return _served_above(source, refusal)


def _served_above(source: Any, refusal: ImportRefused) -> Model:
    """The model whose trace needs to know that sizes are not too small, as after a convolution.

    It is compared with Keras at smaller sizes as well, where Keras takes them.
    """
    import jax
    from jax._src.core import InconclusiveDimensionOperation

    from sardonyx.importers.jax.check import require_same
    from sardonyx.importers.jax.trace import flat

    for least in LEAST:
        if not isinstance(refusal.__cause__, InconclusiveDimensionOperation):
            break
        source.least = least
        try:
            model = serve(source)
        except ImportRefused as other:
            if isinstance(other.__cause__, InconclusiveDimensionOperation):
                continue
            raise
        except (ImportDiffers, EngineError):  # at sizes below the one that was assumed
            raise refusal from None
        smaller = [source.fixed_structs(size) for size in range(1, least)]
        smaller = [arguments for arguments in smaller if source.takes(arguments)]
        function = jax.jit(flat(source.inference, *source.fixed_structs(least)))
        for arguments in smaller[:: max(1, len(smaller) // SMALLER)]:
            inputs = dict(zip(source.input_names, arguments, strict=True))
            try:
                require_same(model, function, {}, inputs)
            except (ImportDiffers, EngineError):
                raise refusal from None
        return model
    raise refusal


def serve(source: Any) -> Model:
    """The model as it is in inference."""
    import jax

    from sardonyx.importers.jax import trees
    from sardonyx.importers.jax.finish import forward
    from sardonyx.importers.keras.marks import marks
    from sardonyx.importers.keras.refusals import tracing
    from sardonyx.importers.keras.replaced import repairs
    from sardonyx.importers.keras.states import next_name, with_states

    with tracing():
        moving = source.moving()
    values = dict(zip(source.names, source.values(), strict=True))
    values |= {n: v.value for n, v in zip(source.state_names, source.states, strict=True)}
    params = {n: v for n, v in values.items() if n not in moving}
    states = [jax.ShapeDtypeStruct(values[n].shape, values[n].dtype) for n in moving]
    structs = source.structs()

    def call(params: Any, *inputs: Any) -> Any:
        arguments, states = inputs[: len(structs)], inputs[len(structs) :]
        values = {**params, **dict(zip(moving, states, strict=True))}
        outputs, new = source.served_call(values, arguments)
        return with_states(outputs, new, moving)

    def reference(params: Any, *inputs: Any) -> Any:
        with repairs():
            return call(params, *inputs)

    def marked(params: Any, *inputs: Any) -> Any:
        with marks():
            return call(params, *inputs)

    marked.__name__ = source.model.name
    with tracing():
        model = forward(
            marked, params, (*structs, *states), names=[*source.input_names, *moving],
            reference=reference,
        )  # fmt: skip
    if moving:
        first = {n: trees.array(values[n]) for n in moving}
        model.metadata[STATE] = described({n: (next_name(n), first[n]) for n in moving})
    model.metadata[IMPORTED] = f"keras {keras.__version__}"
    return model


def with_training(source: Any, served: Model, how: str) -> Model:
    """The served model with the training that `compile()` described."""
    from sardonyx.importers.keras.check import require_same_steps
    from sardonyx.importers.keras.refusals import tracing
    from sardonyx.importers.keras.replaced import distribution
    from sardonyx.importers.keras.training import Training
    from sardonyx.versions import fit

    with tracing(), distribution():
        training = Training(source, served)
        is_step = how == "step" or training.needs_step
        model = training.whole_step() if is_step else _record(training)
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
