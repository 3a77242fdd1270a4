"""What a TensorFlow graph can come from: a function, a module, a folder, a file.

Each becomes a `Source`: one graph with named inputs and outputs, the variables and constants that
it captured, and the function that TensorFlow itself runs.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from sardonyx.errors import ArgumentError, ImportRefused, did_you_mean, quote
from sardonyx.importers.keras.names import input_names, input_structure, require_built

DEFAULT = "serving_default"
# Operators whose results nobody reads, yet are no outputs of a graph.
NO_OUTPUTS = frozenset(["NoOp", "Assert", "Const", "Placeholder", "Print", "PrintV2", "SaveV2"])


@dataclass
class Source:
    """One graph of TensorFlow.

    inputs   -- placeholders by the names of the model's inputs
    outputs  -- tensors by the names of the model's outputs
    captures -- by name of their placeholder: variables, tensors, handles of tables
    function -- what TensorFlow runs, of tensors in the order of `inputs`
    frozen   -- whether the weights are constants of the graph
    """

    name: str
    graph: tf.Graph
    inputs: dict[str, tf.Tensor]
    outputs: dict[str, tf.Tensor]
    captures: dict[str, Any]
    function: Callable[..., Sequence[tf.Tensor]]
    frozen: bool = False
    names: dict[int, str] = field(default_factory=dict)  # of variables, by the id of their handle
    fetch: Callable[[tf.Tensor], Any] | None = None  # the handle of a table or variable inside


def source_of(
    thing: Any,
    signature: str | None,
    example: Any = None,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
) -> Source:
    """The graph of anything that `from_tensorflow` takes."""
    if isinstance(thing, (str, Path)):
        return _of_path(Path(thing), signature, inputs, outputs)
    if isinstance(thing, tf.compat.v1.GraphDef):
        return of_graph_def(thing, inputs, outputs)
    if hasattr(thing, "structured_input_signature") and hasattr(thing, "graph"):
        return of_concrete(thing)
    if hasattr(thing, "get_concrete_function"):
        return of_concrete(_traced(thing, example))
    if _is_keras(thing):
        return of_keras(thing)
    if isinstance(thing, (tf.Module, tf.__internal__.tracking.AutoTrackable)):
        return _of_module(thing, signature, example)
    if callable(thing):
        return of_concrete(_traced(tf.function(thing, autograph=True), example))
    raise ArgumentError(
        f"{quote(type(thing).__name__)} is nothing that TensorFlow computes",
        hint="give a tf.function, a ConcreteFunction, a tf.Module, a Keras model, a GraphDef, or "
        "the path of a SavedModel or of a frozen graph",
    )


# -- functions ------------------------------------------------------------------------------------


def _traced(function: Any, example: Any) -> Any:
    """The one ConcreteFunction of a tf.function."""
    if example is not None:
        args, kwargs = _arguments(example)
        return function.get_concrete_function(*args, **kwargs)
    if getattr(function, "input_signature", None) is not None:
        return function.get_concrete_function()
    traces = _traces(function)
    if len(traces) == 1:
        return traces[0]
    state = "has not been traced" if not traces else f"has {len(traces)} traces"
    raise ArgumentError(
        f"the tf.function {state}, and no input signature",
        hint="give example=[…] with arrays or tf.TensorSpec, or function.get_concrete_function(…)",
    )


def _traces(function: Any) -> list[Any]:
    for name in ("_list_all_concrete_functions", "concrete_functions"):
        traces = getattr(function, name, None)
        if traces is not None:
            return list(traces() if callable(traces) else traces)
    return []


def _arguments(example: Any) -> tuple[list[Any], dict[str, Any]]:
    if isinstance(example, Mapping):
        return [], {k: _spec(v) for k, v in example.items()}
    items = example if isinstance(example, (list, tuple)) else [example]
    return [_spec(v) for v in items], {}


def _spec(value: Any) -> Any:
    """The specification of an array; anything else is passed on as it is."""
    if isinstance(value, (np.ndarray, np.generic)):
        return tf.TensorSpec(value.shape, tf.as_dtype(value.dtype))
    if tf.is_tensor(value):
        return tf.TensorSpec(value.shape, value.dtype)
    if isinstance(value, (list, tuple)):
        return type(value)(_spec(v) for v in value)
    if isinstance(value, dict):
        return {k: _spec(v) for k, v in value.items()}
    return value


def of_concrete(function: Any, names: Mapping[int, str] | None = None, name: str = "") -> Source:
    """The source of a ConcreteFunction; `names` are those of variables, by id of their handle."""
    graph = function.graph
    captured = [t.name for _, t in _capture_pairs(function)]
    placeholders = [t for t in function.inputs if t.name not in captured]
    _require_tensors(placeholders, function.structured_input_signature)
    variables = list(getattr(graph, "variables", ())) or list(getattr(function, "variables", ()))
    handles = {id(v.handle): v for v in variables if hasattr(v, "handle")}
    captures = {t.name: handles.get(id(e), e) for e, t in _capture_pairs(function)}
    keywords = list(getattr(function, "_arg_keywords", None) or ())
    labels = keywords if len(keywords) == len(placeholders) else None
    labels = labels or [t.op.name for t in placeholders]
    source = Source(
        name or _function_name(function),
        graph,
        dict(zip(_distinct(labels), placeholders, strict=True)),
        _outputs(function),
        captures,
        lambda *tensors: tf.nest.flatten(
            function._call_flat(list(tensors), function.captured_inputs), expand_composites=True
        ),
    )
    source.fetch = _fetcher(function)
    source.names = dict(names or _variable_names(variables))
    return source


def _fetcher(function: Any) -> Callable[[tf.Tensor], Any] | None:
    """Graphs of TensorFlow 1 hold their tables and variables: pruned to a handle, they give it."""
    prune = getattr(function, "prune", None)
    if prune is None:
        return None
    return lambda tensor: tf.nest.flatten(prune([], [_read(function.graph, tensor)])())[0]


def _read(graph: tf.Graph, tensor: tf.Tensor) -> tf.Tensor:
    """What a variable of TensorFlow 1 holds: no function returns the variable itself."""
    if not tensor.dtype._is_ref_dtype:
        return tensor
    for node in tensor.consumers():
        if node.type == "Identity":
            return node.outputs[0]
    with graph.as_default():
        return tf.identity(tensor)


def _capture_pairs(function: Any) -> list[tuple[Any, tf.Tensor]]:
    internal = list(function.graph.internal_captures)
    count = len(internal)
    tail = list(function.inputs)[len(function.inputs) - count :] if count else []
    return list(zip(function.captured_inputs, tail, strict=True))


def _require_tensors(placeholders: Sequence[tf.Tensor], signature: Any) -> None:
    rows = [
        [quote(t.op.name), t.dtype.name]
        for t in placeholders
        if t.dtype in (tf.resource, tf.variant)
    ]
    rows += [
        [quote(getattr(leaf, "name", None) or f"argument {number}"), leaf.value_type.__name__]
        for number, leaf in enumerate(tf.nest.flatten(signature))
        if isinstance(leaf, tf.TypeSpec) and not isinstance(leaf, tf.TensorSpec)
    ]
    if rows:
        raise ImportRefused(
            "the function takes arguments that are no tensors",
            rows,
            hint="give dense tensors: ragged and sparse ones, tables and datasets have no form in "
            "ONNX",
        )


def _function_name(function: Any) -> str:
    name = getattr(function, "name", b"") or b"model"
    text = name.decode() if isinstance(name, bytes) else str(name)
    parts = text.removeprefix("__inference_").split("_")
    while len(parts) > 1 and parts[-1].isdigit():
        parts.pop()
    return "_".join(parts) or "model"


def _outputs(function: Any) -> dict[str, tf.Tensor]:
    """The results of a function by name: keys of dicts, else places."""
    structure = function.structured_outputs
    if structure is None:
        structure = list(function.outputs)
    names: list[str] = []
    rows: list[list[object]] = []
    for path, leaf in _leaves(structure):
        if leaf is None:
            continue
        if not isinstance(leaf, tf.TypeSpec) and not tf.is_tensor(leaf):
            continue
        spec = isinstance(leaf, tf.TypeSpec) and not isinstance(leaf, tf.TensorSpec)
        if spec or isinstance(leaf, tf.__internal__.CompositeTensor):
            rows.append([quote(path), type(leaf).__name__])
        names.append(path)
    if rows:
        raise ImportRefused(
            "the function returns something else than tensors",
            rows,
            hint="return dense tensors: ragged.to_tensor(), tf.sparse.to_dense(sparse)",
        )
    # A function that was differentiated has more results, after its own.
    tensors = list(function.outputs)[: len(names) or None]
    if len(names) != len(tensors):
        names = [str(i) for i in range(len(tensors))]
    if len(tensors) == 1 and names == [""]:
        return {"output": tensors[0]}
    labels = [f"output_{n}" if n.isdigit() else n for n in names]
    return dict(zip(_distinct(labels), tensors, strict=True))


def _leaves(structure: Any, path: str = "") -> list[tuple[str, Any]]:
    if isinstance(structure, Mapping):
        items: Any = sorted(structure.items())
    elif isinstance(structure, tuple) and hasattr(structure, "_asdict"):
        items = structure._asdict().items()
    elif isinstance(structure, (list, tuple)):
        items = enumerate(structure)
    else:
        return [(path, structure)]
    rows = ((f"{path}.{key}" if path else str(key), value) for key, value in items)
    return [leaf for key, value in rows for leaf in _leaves(value, key)]


def _distinct(names: Sequence[str]) -> list[str]:
    out: list[str] = []
    for name in names:
        label, count = name, 0
        while label in out:
            count += 1
            label = f"{name}_{count}"
        out.append(label)
    return out


def _variable_names(variables: Sequence[Any]) -> dict[int, str]:
    resources = [v for v in variables if hasattr(v, "handle")]
    labels = _distinct([v.name.partition(":")[0] for v in resources])
    return {id(v.handle): n for v, n in zip(resources, labels, strict=True)}


# -- modules and models ---------------------------------------------------------------------------


def _is_keras(thing: Any) -> bool:
    names = ("inputs", "outputs", "layers", "trainable_weights")
    return all(hasattr(thing, n) for n in names) or _is_keras_3(thing)


def _is_keras_3(thing: Any) -> bool:
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(thing, keras.Model) and hasattr(keras, "KerasTensor")


def of_keras(model: Any, structure: Any = None) -> Source:
    """The inference of a Keras model, of Keras 2 or 3, on TensorFlow.

    structure -- its inputs with tensors of Keras as leaves; those that it declares, if not given
    """
    structure = _structure(model) if structure is None else structure
    tensors = tf.nest.flatten(structure)
    labels = [n.partition(":")[0] for n in input_names(tensors, structure)]
    specs = [
        tf.TensorSpec(t.shape, tf.as_dtype(t.dtype), n)
        for t, n in zip(tensors, labels, strict=True)
    ]

    def call(*tensors: Any) -> Any:
        arguments = tf.nest.pack_sequence_as(structure, list(tensors))
        options = {"training": False} if getattr(model, "_call_has_training_arg", True) else {}
        return model(arguments, **options)

    function = tf.function(call, input_signature=specs).get_concrete_function()
    names = {}
    paths = _distinct([getattr(w, "path", w.name).partition(":")[0] for w in model.weights])
    for weight, path in zip(model.weights, paths, strict=True):
        variable = getattr(weight, "value", weight)
        variable = variable if hasattr(variable, "handle") else weight
        names[id(variable.handle)] = path
    return of_concrete(function, {**_all_names(function), **names}, model.name)


def _structure(model: Any) -> Any:
    """The inputs of a Keras model as it takes them."""
    if _is_keras_3(model):
        require_built(model)
        return input_structure(model)
    if not model.inputs:
        raise ArgumentError(
            "the Keras model is not built", hint="give it an Input, or call it on data once"
        )
    structure = getattr(model, "_nested_inputs", None)
    if isinstance(structure, (dict, list, tuple)):
        return structure
    return model.inputs[0] if len(model.inputs) == 1 else list(model.inputs)


def _all_names(function: Any) -> dict[int, str]:
    return _variable_names(list(function.graph.variables))


def _of_module(module: Any, signature: str | None, example: Any = None) -> Source:
    """One function of a module: a signature of a SavedModel, or a method."""
    signatures = dict(getattr(module, "signatures", None) or {})
    if signatures:
        function = signatures[_chosen(list(signatures), signature)]
    else:
        methods = _methods(module)
        if not methods and callable(module):
            return of_concrete(_traced(tf.function(module), example), _module_names(module))
        name = _chosen(list(methods), signature, "function")
        function = _traced(methods[name], example)
    return of_concrete(function, _module_names(module), type(module).__name__)


def _methods(module: Any) -> dict[str, Any]:
    names = [n for n in dir(module) if n == "__call__" or not n.startswith("_")]
    methods = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            try:
                value = getattr(module, name)
            except (AttributeError, ValueError, TypeError, NotImplementedError):
                continue
            if hasattr(value, "get_concrete_function"):
                methods[name] = value
    return methods


def _module_names(module: Any) -> dict[int, str]:
    """Names of variables: their own, or the path in the module where several share one."""
    variables = {}
    flatten = getattr(module, "_flatten", None)
    if flatten is None:
        return {}
    kinds = flatten(
        predicate=lambda v: hasattr(v, "handle") and hasattr(v, "trainable"), with_path=True
    )
    for path, variable in kinds:
        variables[id(variable.handle)] = (".".join(map(str, path)), variable.name.partition(":")[0])
    names = [name for _, name in variables.values()]
    return {
        key: path if names.count(name) > 1 or name == "Variable" else name
        for key, (path, name) in variables.items()
    }


def _chosen(names: Sequence[str], name: str | None, noun: str = "signature") -> str:
    """The name of the signature that is asked for, or of the only one."""
    if not names:
        raise ImportRefused(
            f"there is no {noun} to import",
            hint="save with tf.saved_model.save(module, path, signatures=…), or decorate a method "
            "with tf.function",
        )
    if name is not None:
        if name not in names:
            raise ArgumentError(
                f"there is no {noun} {quote(name)}, but {', '.join(map(quote, names))}",
                hint=did_you_mean(name, names),
            )
        return name
    if len(names) == 1:
        return names[0]
    for usual in (DEFAULT, "__call__"):
        if usual in names:
            return usual
    raise ArgumentError(
        f"there are {len(names)} {noun}s: {', '.join(map(quote, names))}",
        hint=f"choose one: from_tensorflow(…, signature={quote(names[0])})",
    )


# -- files ----------------------------------------------------------------------------------------


def _of_path(
    path: Path,
    signature: str | None,
    inputs: Sequence[str] | None,
    outputs: Sequence[str] | None,
) -> Source:
    if path.name in ("saved_model.pb", "saved_model.pbtxt"):
        path = path.parent
    if path.is_dir():
        return _of_folder(path, signature)
    if path.suffix in (".h5", ".hdf5", ".keras"):
        return of_keras(_keras_file(path))
    if not path.is_file():
        raise ArgumentError(f"{quote(path)} does not exist")
    definition = tf.compat.v1.GraphDef()
    try:
        definition.ParseFromString(path.read_bytes())
    except Exception as error:  # of the parser, whichever implementation protobuf has
        raise ArgumentError(
            f"{quote(path)} is no graph of TensorFlow",
            hint="give the folder of a SavedModel, or a file with a frozen GraphDef (.pb)",
        ) from error
    return of_graph_def(definition, inputs, outputs, path.stem)


def _keras_file(path: Path) -> Any:
    """The model of a file, read by Keras 2 (tf_keras) where that is installed, else by Keras 3."""
    if path.suffix != ".keras" and importlib.util.find_spec("tf_keras") is not None:
        try:
            return importlib.import_module("tf_keras").models.load_model(path, compile=False)
        except (TypeError, ValueError):  # a file of Keras 3
            pass
    import keras

    if keras.backend.backend() != "tensorflow":
        raise ArgumentError(
            f"Keras runs on {keras.backend.backend()} in this process",
            hint="import the file with sx.from_keras, or set KERAS_BACKEND=tensorflow",
        )
    return keras.models.load_model(path, compile=False)


def _of_folder(path: Path, signature: str | None) -> Source:
    if not any((path / name).is_file() for name in ("saved_model.pb", "saved_model.pbtxt")):
        raise ArgumentError(
            f"{quote(path)} is no SavedModel", hint="its folder has a file saved_model.pb"
        )
    module = tf.saved_model.load(str(path))
    source = _of_module(module, signature)
    source.name = path.name
    source.captures[""] = module  # its variables and tables live as long as it does
    return source


def of_graph_def(
    definition: Any,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    name: str = "model",
) -> Source:
    """The source of a frozen graph, whose weights are constants."""
    wrapped = tf.compat.v1.wrap_function(
        lambda: tf.compat.v1.import_graph_def(definition, name=""), []
    )
    graph = wrapped.graph
    placeholders = list(inputs or _placeholders(graph))
    results = list(outputs or _results(graph))
    if not results:
        raise ImportRefused("the graph has no outputs", hint="name them: outputs=[…]")
    fed = [_tensor(graph, n) for n in placeholders]
    fetched = [_tensor(graph, n) for n in results]
    function = wrapped.prune(fed, fetched)
    return Source(
        name,
        graph,
        dict(zip(_distinct([_plain(n) for n in placeholders]), fed, strict=True)),
        dict(zip(_distinct([_plain(n) for n in results]), fetched, strict=True)),
        {},
        lambda *tensors: tf.nest.flatten(function(*tensors)),
        frozen=True,
        fetch=_fetcher(wrapped),
    )


def _plain(name: str) -> str:
    return name.removesuffix(":0")


def _placeholders(graph: tf.Graph) -> list[str]:
    return [o.outputs[0].name for o in graph.get_operations() if o.type == "Placeholder"]


def _results(graph: tf.Graph) -> list[str]:
    """Tensors that no operator reads."""
    return [
        tensor.name
        for node in graph.get_operations()
        if node.type not in NO_OUTPUTS and not any(t.consumers() for t in node.outputs)
        for tensor in node.outputs
    ]


def _tensor(graph: tf.Graph, name: str) -> tf.Tensor:
    full = name if ":" in name else f"{name}:0"
    try:
        return graph.get_tensor_by_name(full)
    except (KeyError, ValueError) as error:
        names = [o.name for o in graph.get_operations()]
        raise ArgumentError(
            f"the graph has no tensor {quote(name)}", hint=did_you_mean(name, names)
        ) from error
