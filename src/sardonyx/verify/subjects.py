"""What can be compared: an ONNX model on an engine, a torch module, a function, saved outputs.

A subject is called with inputs by name and gives outputs by name (or by place, "0", "1", … where it
has no names). Frameworks are not imported here: a module or function brings its own.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

from sardonyx import plugins
from sardonyx.engines import loading
from sardonyx.errors import ArgumentError, EngineError, MissingExtra, did_you_mean, quote
from sardonyx.model import Model, load
from sardonyx.verify.datasets import DataSet, read_folder, read_npz
from sardonyx.verify.exact import is_float

MOVED = 2**16  # elements of the largest weights that are moved by a rounding
SILENT = {"log_severity_level": 4}  # sizes are tried until one fits: failures are expected


class Subject:
    """One thing to compare; `model` is its ONNX model where it has one."""

    model: Model | None = None
    engine = ""
    lenient = False  # types need only be of one kind
    version = ""

    def __init__(self, name: str):
        self.name = name

    def __call__(self, feeds: Mapping[str, Any], run: str = "") -> dict[str, Any]:
        raise NotImplementedError

    def prepare(self) -> None:
        """Load or convert the model; raises where the engine refuses it."""

    def exact(self) -> Callable[[Mapping[str, Any]], dict[str, Any]] | None:
        """A runner of the subject in float64; None where it has none of its own."""
        return None

    def nudged(self, seed: int) -> Subject | None:
        """The subject with weights moved in the last place; None where it cannot move them."""
        return None


class OnnxSubject(Subject):
    """An ONNX model on one of the engines."""

    def __init__(self, model: Model, engine: str = "onnxruntime", name: str = "", **settings: Any):
        super().__init__(name or (model.source.name if model.source else "model"))
        if engine not in plugins.names():
            raise ArgumentError(
                f"there is no engine {quote(engine)}", hint=did_you_mean(engine, plugins.names())
            )
        self.model, self.engine, self.settings = model, engine, settings
        self.version = version_of(engine)
        self._runner: Any = None

    def __call__(self, feeds: Mapping[str, Any], run: str = "") -> dict[str, Any]:
        self.prepare()
        return dict(self._runner(self._renamed(feeds)))

    def prepare(self) -> None:
        if self._runner is None:
            assert self.model is not None
            self._runner = runner(self.engine)(self.model, **self.settings)

    def _renamed(self, feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        """The feeds by this model's names: by name where they agree, else by place."""
        assert self.model is not None
        names = [v.name or "" for v in self.model.inputs]
        if all(n in feeds for n in names):
            return {n: feeds[n] for n in names}
        free = [k for k in feeds if k not in names]
        missing = [n for n in names if n not in feeds]
        renamed = {n: feeds[n] for n in names if n in feeds}
        return {**renamed, **dict(zip(missing, (feeds[k] for k in free)))}


class ConversionSubject(OnnxSubject):
    """An ONNX model converted for a framework and called as its users call it, with free sizes.

    The engine's own program of the model, which `OnnxSubject` runs, then shows the node at fault.
    """

    def __init__(self, model: Model, engine: str, name: str = ""):
        super().__init__(model, engine, name)
        self.lenient = engine == "jax"  # where integers have 32 bits unless a mode is set

    def __call__(self, feeds: Mapping[str, Any], run: str = "") -> dict[str, Any]:
        assert self.model is not None
        self.prepare()
        values = self._renamed(feeds)
        with reported(f"the conversion to {self.engine}"):
            result = self._runner(list(values.values()))
            outputs = [result] if len(self.model.outputs) == 1 else list(result)
            return {v.name or "": array_of(x) for v, x in zip(self.model.outputs, outputs)}

    def prepare(self) -> None:
        if self._runner is None and self.model is not None:
            runner(self.engine)  # a missing framework is not a failure
            with reported(f"the conversion to {self.engine}"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._runner = CONVERSIONS[self.engine](self.model)


def _as_torch_module(model: Model) -> Callable[[Sequence[Any]], Any]:
    import sardonyx

    module, torch = sardonyx.to_torch(model, fallback="allow"), sys.modules["torch"]

    def call(values: Sequence[Any]) -> Any:
        with torch.no_grad():
            return module(*map(torch_tensor, values))

    return call


def _as_compiled_jax(model: Model) -> Callable[[Sequence[Any]], Any]:
    import sardonyx

    apply, params = sardonyx.to_jax(model, fallback="allow")
    xp = importlib.import_module("sardonyx.engines.jax.xp")
    jax = xp.jax
    has_doubles = any(v.dtype == ir.DataType.DOUBLE for v in model.inputs)
    compiled = jax.jit(apply)

    def call(values: Sequence[Any]) -> Any:
        has_texts = any(np.asarray(v).dtype.kind in "OUS" for v in values)  # jax traces no texts
        with xp.enable_x64(has_doubles or bool(jax.config.jax_enable_x64)):
            return (apply if has_texts else compiled)(params, *values)

    return call


def _as_tensorflow_function(model: Model) -> Callable[[Sequence[Any]], Any]:
    import sardonyx

    module = sardonyx.to_tensorflow(model, fallback="allow")  # calls a tf.function with free sizes
    return lambda values: module(*values)


CONVERSIONS = {
    "torch": _as_torch_module,
    "jax": _as_compiled_jax,
    "tensorflow": _as_tensorflow_function,
}


def runner(engine: str) -> Callable[..., Any]:
    """The Runner class of an engine; a framework that is missing says how to install it."""
    extra = {"onnxruntime": "cpu"}.get(engine, engine)
    try:
        if engine == "onnxruntime":
            session = importlib.import_module("sardonyx.engines.onnxruntime.session")
            return functools.partial(session.Runner, options=SILENT, borrow=True)
        settings = {"fallback": "allow"} if engine in plugins.FRAMEWORKS else {}
        return loading.runner(engine, **settings)
    except ModuleNotFoundError as error:
        raise MissingExtra(engine, extra) from error


def version_of(engine: str) -> str:
    return plugins.engine(engine).version


@contextlib.contextmanager
def reported(name: str) -> Iterator[None]:
    """Turn whatever the code of a user or a framework raises into one kind of error."""
    try:
        yield
    except Exception as error:
        raise EngineError(f"{name} failed: {type(error).__name__}: {str(error)[:300]}") from error


class FunctionSubject(Subject):
    """A Python function of arrays: numpy, JAX or TensorFlow; called by name if it has the names."""

    lenient = True

    def __init__(self, function: Callable[..., Any], name: str = ""):
        inner = getattr(function, "func", function)  # what functools.partial binds weights to
        super().__init__(name or getattr(inner, "__name__", type(inner).__name__))
        self.function = function
        self.engine = _engine_of(inner)
        try:
            signature = inspect.signature(function)
            self.names = {p.name for p in signature.parameters.values() if p.kind in (1, 3)}
        except (TypeError, ValueError):
            self.names = set()

    def __call__(self, feeds: Mapping[str, Any], run: str = "") -> dict[str, Any]:
        with reported(self.name):
            if feeds and set(feeds) <= self.names:
                return named(self.function(**feeds))
            return named(self.function(*feeds.values()))


def _engine_of(function: Any) -> str:
    """The framework of a function or callable object, by where it was made."""
    for home in (type(function).__module__, getattr(function, "__module__", None) or ""):
        if home.startswith("sardonyx.engines."):
            return home.split(".")[2]
    home = type(function).__module__.split(".")[0]
    return {"builtins": "python", "jaxlib": "jax"}.get(home, home)


class ModuleSubject(Subject):
    """A torch module, in evaluation mode, on a copy: the caller's is not changed."""

    lenient = True
    engine = "torch"

    def __init__(self, module: Any, name: str = ""):
        super().__init__(name or type(module).__name__)
        self.module = copy.deepcopy(module).eval()
        self.version = version_of("torch")

    def __call__(self, feeds: Mapping[str, Any], run: str = "") -> dict[str, Any]:
        return self._call(self.module, feeds)

    def exact(self) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
        wide = copy.deepcopy(self.module).double()
        return lambda feeds: self._call(
            wide, {k: v.astype(np.float64) if is_float(v) else v for k, v in feeds.items()}
        )

    def nudged(self, seed: int) -> Subject:
        return ModuleSubject(nudged_copy(self.module, seed), self.name)

    def _call(self, module: Any, feeds: Mapping[str, Any]) -> dict[str, Any]:
        torch = sys.modules["torch"]
        names = set(inspect.signature(module.forward).parameters)
        with reported(self.name), torch.no_grad():
            tensors = {k: torch_tensor(v) for k, v in feeds.items()}
            if set(tensors) <= names:
                return named(module(**tensors))
            return named(module(*tensors.values()))


def nudged_copy(module: Any, seed: int) -> Any:
    """A copy of a torch module with parameters moved by a rounding, up or down.

    Large ones are shared with the module: to draw all rounding anew, it is enough to move others.
    """
    torch = sys.modules["torch"]
    generator = torch.Generator().manual_seed(seed)
    memo = {id(p): p for p in module.parameters() if p.numel() > MOVED}
    twin = copy.deepcopy(module, memo)
    with torch.no_grad():
        for parameter in twin.parameters():
            if parameter.is_floating_point() and parameter.numel() <= MOVED:
                signs = torch.randint(0, 2, parameter.shape, generator=generator) * 2 - 1
                step = torch.finfo(parameter.dtype).eps * signs.to(torch.float64)
                parameter.copy_((parameter.double() * (1.0 + step)).to(parameter.dtype))
    return twin


def torch_tensor(value: Any) -> Any:
    """An array as a torch tensor; texts and sequences, for which torch has none, as they are."""
    if not isinstance(value, (np.ndarray, np.generic)) or value.dtype.kind in "OUS":
        return value
    if value.dtype == np.dtype(ml_dtypes.bfloat16):
        return torch_tensor(value.astype(np.float32)).bfloat16()
    return sys.modules["torch"].from_numpy(np.array(value))


class SavedSubject(Subject):
    """Outputs computed elsewhere; they belong to the runs of their folder, or to the only run."""

    engine = "saved"
    lenient = True

    def __init__(self, path: Path, model: Model | None = None):
        super().__init__(path.name)
        self.path = path
        self.sets: list[DataSet] = []
        if path.is_dir():
            self.sets = read_folder(path, model)
            self.outputs = {s.name: s.outputs for s in self.sets if s.outputs}
        else:
            self.outputs = {"": dict(read_npz(path))}
        if not self.outputs:
            raise ArgumentError(f"{quote(path)} holds no outputs")

    def __call__(self, feeds: Mapping[str, Any], run: str = "") -> dict[str, Any]:
        outputs = self.outputs.get(run, self.outputs.get(""))
        if outputs is None:
            raise ArgumentError(
                f"{quote(self.path.name)} has no outputs for {quote(run)}",
                hint="give its own folder as inputs",
            )
        return {
            k.removeprefix("output/"): v for k, v in outputs.items() if not k.startswith("input/")
        }


def named(result: Any) -> dict[str, Any]:
    """The outputs of a function, as numpy arrays: by its own names, or by place."""
    if isinstance(result, Mapping):
        return {str(k): array_of(v) for k, v in result.items()}
    if isinstance(result, (list, tuple)):
        return {str(i): array_of(v) for i, v in enumerate(result)}
    return {"0": array_of(result)}


def array_of(value: Any) -> Any:
    """A framework's array as numpy's; sequences and maps of them alike."""
    if isinstance(value, (list, tuple)):
        return [array_of(v) for v in value]
    if isinstance(value, Mapping):
        return {k: array_of(v) if hasattr(v, "dtype") else v for k, v in value.items()}
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    return np.asarray(value.numpy() if hasattr(value, "numpy") else value)


def subject(thing: Any, first: Subject | None = None) -> Subject:
    """The subject for an argument of `sardonyx.verify`."""
    if isinstance(thing, Subject):
        return thing
    model = first.model if first is not None else None
    if isinstance(thing, str) and thing in plugins.names():
        return on_engine(thing, first)
    if isinstance(thing, (str, Path)):
        return _from_path(Path(thing), model)
    if isinstance(thing, (Model, onnx.ModelProto, bytes)):
        return OnnxSubject(load(thing))
    if any(c.__module__.startswith("torch.nn.") for c in type(thing).__mro__):
        return ModuleSubject(thing)
    if isinstance(thing, tuple) and thing and callable(thing[0]):  # a function and its weights
        return FunctionSubject(functools.partial(thing[0], *thing[1:]))
    if callable(thing):
        return FunctionSubject(thing)
    raise ArgumentError(
        f"cannot compare a {type(thing).__name__}",
        hint="a model, its file, an engine's name, a torch module, a function, saved outputs",
    )


def on_engine(name: str, first: Subject | None) -> Subject:
    """The model of the first subject on another engine."""
    if first is None or first.model is None:
        raise ArgumentError(
            f"{quote(name)} is an engine, but the first argument is not an ONNX model"
        )
    kind = ConversionSubject if name in CONVERSIONS else OnnxSubject
    return kind(first.model, name)


def _from_path(path: Path, model: Model | None) -> Subject:
    if not path.suffix and len(path.parts) == 1 and not path.exists():
        raise ArgumentError(
            f"there is neither an engine nor a file called {quote(path)}",
            hint=did_you_mean(str(path), plugins.names()),
        )
    if path.suffix == ".npz" or (path.is_dir() and not (path / "model.onnx").exists()):
        return SavedSubject(path, model)
    if path.is_dir():
        return OnnxSubject(load(path / "model.onnx"))
    return OnnxSubject(load(path))


def distinct_names(subjects: Sequence[Subject]) -> list[str]:
    """A label for each subject: its name, with the engine where names repeat."""
    labels: list[str] = []
    for item in subjects:
        label = (
            item.name
            if item.engine in ("", "saved", item.name)
            else f"{item.name} on {item.engine}"
        )
        number = sum(other.split(" (")[0] == label for other in labels)
        labels.append(f"{label} ({number + 1})" if number else label)
    return labels
