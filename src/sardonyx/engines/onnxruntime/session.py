"""Sessions of stock onnxruntime: any Model in, NumPy arrays out."""

from __future__ import annotations

import ctypes
import math
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.engines.onnxruntime import extensions
from sardonyx.engines.onnxruntime.narrow_io import from_carriers, to_carriers, widen_ends
from sardonyx.engines.onnxruntime.statistics import own_statistics
from sardonyx.errors import ArgumentError, EngineError, MissingExtra
from sardonyx.model import Model
from sardonyx.passes.nesting import graphs
from sardonyx.save import save
from sardonyx.versions import fit

try:
    import onnxruntime as ort
except ImportError as error:
    raise MissingExtra("onnxruntime", "cpu") from error

INLINE_LIMIT = 1 << 30
FILE_SIZE = 1 << 27  # weights from here on go through a file: a message is in memory twice
BORROW = 1 << 16  # weights from here on can be read where they lie
PLAIN = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16)
MOVERS = ("Flatten", "MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
# onnxruntime would round activations to 8 bits where a product reads dequantized integers.
EXACT = {"session.qdq_matmulnbits_accuracy_level": "1"}


def session(
    model: Model,
    *,
    providers: Sequence[Any] | None = None,
    threads: int | None = None,
    options: Mapping[str, Any] | None = None,
    borrow: bool = False,
) -> ort.InferenceSession:
    """A session over `model`, with versions that this onnxruntime takes.

    borrow -- large weights are read where they lie, neither copied nor rearranged for speed: for a
              session that runs a few times and ends before anything writes to them
    """
    fitted = own_statistics(fit(model))
    # onnxruntime 1.31.1 takes a Dropout for the identity although its training_mode is fed.
    # It also merges a Pad of zeros into a MaxPool, which pads with -inf.
    nodes = [node for part in graphs(fitted.graph) for node in part]
    optimizers = ["EliminateDropout"] if any(map(_has_switch, nodes)) else []
    optimizers += ["Pad_Fusion"] if any(map(_pools_padded, nodes)) else []
    optimizers += ["QDQPropagationTransformer"] if any(map(moves_integers, nodes)) else []
    extra: dict[str, Any] = {"disabled_optimizers": optimizers} if optimizers else {}
    extra["libraries"] = extensions.libraries(fitted)
    settings = {"providers": providers, "threads": threads, "options": options, **extra}
    if payload(fitted) < FILE_SIZE:
        return open_session(fitted.proto().SerializeToString(), **settings)
    weights = _plain_weights(fitted) if borrow else {}
    if payload(fitted) - sum(array.nbytes for array in weights.values()) < FILE_SIZE:
        # Folding would transpose weights into new ones, packing would copy them once more.
        settings["disabled_optimizers"] = [*optimizers, "ConstantFolding"]
        settings["options"] = {**(options or {}), "session.disable_prepacking": "1"}
        return open_session(_without(fitted, weights), weights=weights, **settings)
    with tempfile.TemporaryDirectory() as folder:
        return open_session(
            str(save(fitted, Path(folder) / "model.onnx", external=True)), **settings
        )


def _plain_weights(model: Model) -> dict[str, np.ndarray]:
    """The larger initializers of the outermost graph that onnxruntime can take as arrays."""
    weights = {}
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if tensor is not None and tensor.nbytes >= BORROW and tensor.dtype in PLAIN:
            weights[name] = np.ascontiguousarray(tensor.numpy())
    return weights


def _without(model: Model, names: Iterable[str]) -> bytes:
    """The model as bytes, in which some initializers are declared as lying elsewhere."""
    values = [model.graph.initializers[name] for name in names]
    tensors = [value.const_value for value in values]
    try:
        for value, tensor in zip(values, tensors, strict=True):
            assert tensor is not None
            value.const_value = ir.ExternalTensor(
                "weights", 0, tensor.nbytes, tensor.dtype,
                shape=ir.Shape(tensor.shape.numpy()), name=value.name or "",
            )  # fmt: skip
        return model.proto().SerializeToString()
    finally:
        for value, tensor in zip(values, tensors, strict=True):
            value.const_value = tensor


def open_session(
    source: bytes | str,
    *,
    providers: Sequence[Any] | None = None,
    threads: int | None = None,
    options: Mapping[str, Any] | None = None,
    libraries: Sequence[str] = (),
    weights: Mapping[str, np.ndarray] | None = None,
    **extra: Any,
) -> ort.InferenceSession:
    """A session over a serialized model or its path, as it stands.

    libraries -- of operators that are not onnxruntime's own
    weights   -- initializers that the model declares as lying elsewhere; they are not copied
    """
    settings = ort.SessionOptions()
    settings.log_severity_level = 4  # what fails is raised, or another engine takes over
    if threads is not None:
        is_whole = isinstance(threads, (int, np.integer)) and not isinstance(threads, bool)
        if not is_whole or threads < 0:
            raise ArgumentError(f"threads is a whole number from 0 on, not {threads!r}")
        settings.intra_op_num_threads = threads
    for name, value in {**EXACT, **(options or {})}.items():
        if name.startswith("session."):
            settings.add_session_config_entry(name, str(value))
        else:
            setattr(settings, name, value)
    provider_names = list(providers) if providers else ["CPUExecutionProvider"]
    for library in libraries:
        settings.register_custom_ops_library(library)
    held = [ort.OrtValue.ortvalue_from_numpy(array) for array in (weights or {}).values()]
    if held:
        settings.add_external_initializers(list(weights or {}), held)
        for name, value in zip(weights or {}, held, strict=True):
            settings.add_initializer(name, value)  # without this the session holds a copy
    try:
        opened = ort.InferenceSession(source, settings, providers=provider_names, **extra)
    except Exception as error:  # onnxruntime raises a class per status code
        raise EngineError(f"onnxruntime refused the model: {error}") from error
    opened.borrowed_weights = held  # they must live as long as the session
    return opened


def level_of(name: str | None) -> ort.GraphOptimizationLevel:
    """A level of optimization by its name; onnxruntime's default where there is no such level."""
    levels = ort.GraphOptimizationLevel
    return getattr(levels, name or "", levels.ORT_ENABLE_ALL)


def _has_switch(node: ir.Node) -> bool:
    return node.op_type == "Dropout" and len(node.inputs) > 2 and node.inputs[2] is not None


def _pools_padded(node: ir.Node) -> bool:
    source = node.inputs[0].producer() if node.op_type == "MaxPool" and node.inputs[0] else None
    return source is not None and source.op_type == "Pad"


def moves_integers(node: ir.Node) -> bool:
    """Whether onnxruntime would move a pair of nodes, and refuse what it has made then.

    Behind computed 8-bit integers with a sign and one scale, onnxruntime 1.31 puts a QuantizeLinear
    with an `output_dtype` that it does not take beside a zero point, from opset 21 on
    (github.com/microsoft/onnxruntime/issues/25526).
    """
    value = node.inputs[0] if node.op_type == "DequantizeLinear" and node.inputs else None
    if value is None or value.dtype != ir.DataType.INT8 or value.is_initializer():
        return False
    scale = node.inputs[1]
    is_one = scale is not None and scale.const_value is not None and scale.const_value.size == 1
    return is_one and any(reader.op_type in MOVERS for reader in node.outputs[0].consumers())


def payload(model: Model) -> int:
    """How many bytes the weights of a model take."""
    values = model.graph.initializers.values()
    return sum(v.const_value.nbytes for v in values if v.const_value is not None)


class Runner:
    """Runs a model: `Runner(model)({"x": array})` gives its outputs by name."""

    def __init__(self, model: Model, **settings: Any):
        model, self.narrow = widen_ends(model)
        self.session = session(model, **settings)
        self.inputs = [i.name for i in self.session.get_inputs()]
        self.outputs = [o.name for o in self.session.get_outputs()]
        ends = (*self.session.get_inputs(), *self.session.get_outputs())
        self.foreign = any(end.type in FOREIGN for end in ends)

    def __call__(self, feeds: Mapping[str, np.ndarray]) -> dict[str, Any]:
        used = to_carriers({k: v for k, v in feeds.items() if k in self.inputs}, self.narrow)
        try:
            if not self.foreign:
                outputs = self.session.run(None, used)
            else:
                values = {k: _to_ort(np.asarray(v)) for k, v in used.items()}
                outputs = [
                    _from_ort(v) for v in self.session.run_with_ort_values(self.outputs, values)
                ]
        except Exception as error:
            raise EngineError(f"onnxruntime failed: {error}") from error
        return from_carriers(dict(zip(self.outputs, outputs, strict=True)), self.narrow)


def interruptible_run(session: ort.InferenceSession, feeds: Mapping[str, Any]) -> list[Any]:
    """The outputs of a run that Ctrl-C ends: it is in another thread, and is told to stop."""
    options = ort.RunOptions()
    results: list[Any] = []
    errors: list[Exception] = []

    def work() -> None:
        try:
            results.extend(session.run(None, feeds, options))
        except Exception as error:  # handed over to the caller's thread
            errors.append(error)

    thread = threading.Thread(target=work, name="sardonyx-epoch")
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.2)
    except KeyboardInterrupt:
        options.terminate = True
        thread.join()
        raise
    if errors:
        raise EngineError(f"onnxruntime failed: {errors[0]}") from errors[0]
    return results


# Types that onnxruntime computes with and its Python binding does not hand over as arrays.
FOREIGN = {
    f"tensor({name})": dtype
    for name, dtype in {
        "bfloat16": ir.DataType.BFLOAT16,
        "float8e4m3fn": ir.DataType.FLOAT8E4M3FN,
        "float8e4m3fnuz": ir.DataType.FLOAT8E4M3FNUZ,
        "float8e5m2": ir.DataType.FLOAT8E5M2,
        "float8e5m2fnuz": ir.DataType.FLOAT8E5M2FNUZ,
        "float8e8m0": ir.DataType.FLOAT8E8M0,
    }.items()
}


def _to_ort(array: np.ndarray) -> ort.OrtValue:
    foreign = {d.numpy(): d for d in FOREIGN.values()}
    dtype = foreign.get(array.dtype)
    if dtype is None:
        return ort.OrtValue.ortvalue_from_numpy(array)
    bits = np.ascontiguousarray(array).view(f"u{array.itemsize}")
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, int(dtype))


def _from_ort(value: ort.OrtValue) -> Any:
    dtype = FOREIGN.get(value.data_type())
    if dtype is None:
        return value.numpy() if value.is_tensor() else value
    shape = value.shape()
    count = math.prod(shape) * dtype.numpy().itemsize
    raw = (ctypes.c_uint8 * count).from_address(value.data_ptr())
    return np.frombuffer(bytes(raw), dtype.numpy()).reshape(shape)
