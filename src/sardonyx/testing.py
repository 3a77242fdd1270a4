"""For rule authors: `Case` describes one operator call, `check_grads` checks its gradient
numerically.

A table of cases per ONNX family (`tests/cases/math.py`, …) drives all tests of rules: first and
second order against finite differences in float64, symbolic against static shapes, every engine's
values.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.parser

from sardonyx import opset
from sardonyx.errors import VersionError
from sardonyx.grad import grad
from sardonyx.model import Model, from_proto

STEP = 6e-6
# onnxruntime takes these in float64, and computes them in float32, or fails when run.
COARSE = {"Shrink", "RNN", "GRU", "LSTM"}


@dataclass
class Case:
    """One call of an operator.

    op       -- its name
    inputs   -- per input: a shape (random floats from a fixed seed), an array (itself), None
                (omitted)
    low/high -- range of the random floats
    order    -- how often it can be differentiated and checked by differences (0: values only)
    tol      -- relative tolerance of the differences
    step     -- their step: larger for operators that compute in float32 whatever goes in
    outputs  -- how many outputs the node has
    wrt      -- positions of the inputs to differentiate; all float inputs if not given
    torch    -- the same in torch, for full gradients: a function of the float inputs
    fed      -- integer inputs are inputs of the model too: only a run knows them
    symbolic -- it also runs where no size is known (False: onnxruntime needs one to expand the
                operator)
    nodes    -- ONNX text from x0, x1, … to y0, y1, …, where one node is not enough (sequences)
    """

    op: str
    inputs: tuple[Any, ...]
    low: float = -2.0
    high: float = 2.0
    order: int = 2
    tol: float = 1e-5
    step: float = STEP
    outputs: int = 1
    wrt: Sequence[int] | None = None
    torch: Callable[..., Any] | None = None
    fed: bool = False
    symbolic: bool = True
    nodes: str = ""
    domain: str = ""
    id: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.op}-{self.id}" if self.id else self.op


def case(op: str, *inputs: Any, id: str = "", **settings: Any) -> Case:
    """`case("Softmax", (2, 3), axis=1, tol=1e-6)`: options by their names, the rest are
    attributes.
    """
    options = {k: settings.pop(k) for k in tuple(settings) if k in Case.__dataclass_fields__}
    return Case(op, inputs, id=id, attributes=settings, **options)


def arrays(case: Case, dtype: Any = np.float64) -> list[np.ndarray | None]:
    """The input arrays of a case: the same at every call."""
    rng = np.random.default_rng(abs(hash_of(str(case))))
    values: list[np.ndarray | None] = []
    for item in case.inputs:
        if item is None:
            values.append(None)
        elif isinstance(item, tuple) and all(isinstance(d, int) for d in item):
            values.append(rng.uniform(case.low, case.high, item).astype(dtype))
        else:
            array = np.asarray(item)
            values.append(array.astype(dtype) if array.dtype.kind == "f" else array)
    return values


def hash_of(text: str) -> int:
    """A number from a text, the same in every process."""
    import zlib

    return zlib.crc32(text.encode())


def model_of(case: Case, dtype: Any = np.float64, symbolic: bool = False) -> Model:
    """A model of one node at the opset inside; integer inputs are initializers, floats are
    inputs.
    """
    inputs, initializers = [], []
    for i, array in enumerate(arrays(case, dtype)):
        if array is None:
            continue
        if array.dtype.kind == "f" or case.fed:
            kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            free = symbolic and array.dtype.kind == "f"
            dims = [f"d{i}_{axis}" if free else d for axis, d in enumerate(array.shape)]
            inputs.append(onnx.helper.make_tensor_value_info(f"x{i}", kind, dims))
        else:
            initializers.append(onnx.numpy_helper.from_array(array, f"x{i}"))
    outputs = [onnx.ValueInfoProto(name=f"y{i}") for i in range(case.outputs)]
    graph = onnx.helper.make_graph(_nodes_of(case), case.op, inputs, outputs, initializers)
    versions = {"": opset.OPSET, case.domain: opset.INSIDE.get(case.domain, 1)}
    imports = [onnx.helper.make_opsetid(d, v) for d, v in versions.items()]
    return from_proto(onnx.helper.make_model(graph, opset_imports=imports, ir_version=10))


def _nodes_of(case: Case) -> Sequence[onnx.NodeProto]:
    outputs = [f"y{i}" for i in range(case.outputs)]
    if case.nodes:
        return onnx.parser.parse_graph(f"case () => ({', '.join(outputs)}) {{ {case.nodes} }}").node
    names = ["" if item is None else f"x{i}" for i, item in enumerate(case.inputs)]
    node = onnx.helper.make_node(
        case.op, names, outputs, "node", domain=case.domain, **case.attributes
    )
    return [node]


def feeds_of(case: Case, dtype: Any = np.float64) -> dict[str, np.ndarray]:
    """What the model of a case is given to run."""
    return {
        f"x{i}": a
        for i, a in enumerate(arrays(case, dtype))
        if a is not None and (case.fed or a.dtype.kind == "f")
    }


def wrt_of(case: Case) -> list[str]:
    """The inputs of a case to differentiate by."""
    if case.wrt is not None:
        return [f"x{i}" for i in case.wrt]
    return [name for name, array in feeds_of(case).items() if array.dtype.kind == "f"]


class Runner:
    """Runs a model in its own precision: onnxruntime where it has the kernels, else ONNX's
    reference.
    """

    def __init__(self, model: Model):
        self.names = [v.name for v in model.outputs]
        self.inputs = {v.name for v in model.inputs}
        proto = runnable(model)
        coarse = any(node.op_type in COARSE for node in proto.graph.node)
        self.session = None if coarse else _session(proto)
        if self.session is None:
            self.reference = reference_evaluator(proto)

    def __call__(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        used = {k: np.asarray(v) for k, v in feeds.items() if k in self.inputs}
        if self.session is not None:
            outputs = self.session.run(None, used)
        else:
            with np.errstate(all="ignore"):  # it computes both branches of a Where
                outputs = self.reference.run(None, used)
        return dict(zip([n or "" for n in self.names], outputs, strict=True))


def runnable(model: Model) -> onnx.ModelProto:
    """The model stamped with versions that onnxruntime takes; as it is where there are none."""
    from sardonyx.versions import fit

    try:
        return fit(model).proto()
    except VersionError:  # such as scales in float64: ONNX's reference still runs them
        return model.proto()


def _session(proto: onnx.ModelProto) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    # Beyond this level a factor becomes an attribute of a fused product, and that is a float32.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    try:
        return ort.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception:  # onnxruntime has many classes for "no kernel"
        return None


def reference_evaluator(proto: onnx.ModelProto) -> Any:
    """ONNX's reference evaluator, with kernels for what it lacks or gets wrong."""
    from onnx.reference import ReferenceEvaluator
    from onnx.reference.op_run import OpRun

    from sardonyx.reference import KERNELS

    # ONNX's own rounds to float32, too coarse for differences.
    class Erf(OpRun):
        def _run(self, x: np.ndarray) -> tuple[np.ndarray]:
            return (np.vectorize(math.erf, otypes=[x.dtype])(x),)

    class Gelu(OpRun):
        def _run(self, x: np.ndarray, approximate: str = "none") -> tuple[np.ndarray]:
            if approximate == "tanh":
                bend = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
            else:
                bend = np.vectorize(math.erf, otypes=[x.dtype])(x / math.sqrt(2))
            return ((x * (1 + bend) / 2).astype(x.dtype),)

    return ReferenceEvaluator(proto, new_ops=[Erf, Gelu, *KERNELS])  # type: ignore[type-abstract]


def check_grads(case: Case, order: int | None = None) -> None:
    """Raise AssertionError unless gradients up to `order` agree with central differences in
    float64.
    """
    model = model_of(case)
    feeds = feeds_of(case)
    wrt = wrt_of(case)
    _check(case, model, feeds, wrt, case.order if order is None else order, 1)


def _check(
    case: Case, model: Model, feeds: dict[str, np.ndarray], wrt: list[str], order: int, level: int
) -> None:
    if order == 0:
        return
    forward = Runner(model)
    floats = [n for n, v in forward(feeds).items() if v.dtype.kind == "f"]
    with warnings.catch_warnings():
        if level > 1:  # the gradient of a linear operator does not depend on its input
            warnings.filterwarnings("ignore", message=".* do not depend on each other")
        gradient = grad(model, of=floats, wrt=wrt, seeds="input", outputs=False)
    rng = np.random.default_rng(level)
    values = forward(feeds)
    seeds = {f"seed/{n}": rng.normal(size=values[n].shape).astype(values[n].dtype) for n in floats}
    gradients = Runner(gradient)({**feeds, **seeds})
    direction = {n: rng.normal(size=feeds[n].shape) for n in wrt}

    def objective(scale: float) -> float:
        point = {
            n: (x + scale * direction[n]).astype(x.dtype) if n in direction else x
            for n, x in feeds.items()
        }
        out = forward(point)
        return sum(float(np.sum(out[n] * seeds[f"seed/{n}"])) for n in floats)

    expected = (objective(case.step) - objective(-case.step)) / (2 * case.step)
    actual = sum(float(np.sum(gradients[f"grad/{n}"] * direction[n])) for n in wrt)
    size = sum(float(np.sum(np.abs(gradients[f"grad/{n}"] * direction[n]))) for n in wrt)
    for n in wrt:
        assert gradients[f"grad/{n}"].shape == feeds[n].shape, (
            n,
            gradients[f"grad/{n}"].shape,
            feeds[n].shape,
        )
    assert np.isfinite(actual), f"order {level}: gradient is not finite"
    tol = case.tol * 10 ** (level - 1)
    assert abs(actual - expected) <= tol * max(size, abs(expected), 1e-3), (
        f"order {level} of {case}: gradient {actual:.10g}, differences {expected:.10g}"
    )
    more = {**feeds, **seeds}
    _check(case, gradient, more, wrt + list(seeds), order - 1, level + 1)


def check_symbolic(case: Case) -> None:
    """Raise AssertionError unless the gradient built for unknown sizes equals the one for known
    sizes.
    """
    feeds = feeds_of(case)
    wrt = wrt_of(case)
    results = []
    for symbolic in (False, True):
        model = model_of(case, symbolic=symbolic)
        values = Runner(model)(feeds)
        floats = [n for n, v in values.items() if v.dtype.kind == "f"]
        gradient = grad(model, of=floats, wrt=wrt, seeds="input", outputs=False)
        rng = np.random.default_rng(7)
        seeds = {
            f"seed/{n}": rng.normal(size=values[n].shape).astype(values[n].dtype) for n in floats
        }
        results.append(Runner(gradient)({**feeds, **seeds}))
    for name, expected in results[0].items():
        np.testing.assert_allclose(results[1][name], expected, rtol=1e-9, atol=1e-12, err_msg=name)
