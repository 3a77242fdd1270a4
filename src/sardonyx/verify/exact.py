"""The reference: a model computed exactly (in float64), or as written, apart from any candidate.

A whole model runs on the numpy engine. Where that has no rule, or where every step must be seen, it
is walked node by node: numpy's rule first, ONNX's own reference evaluator second; If, Loop and Scan
are taken apart, so that the nodes of their bodies are steps as well. Dead values are dropped.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import FLOATS, HALF
from sardonyx.edit.widen import widen
from sardonyx.errors import EngineError, SardonyxError, UnsupportedOp, quote
from sardonyx.lower.run_limits import LimitReached
from sardonyx.model import Model
from sardonyx.normalize import NormalizedModel, normalize
from sardonyx.passes.nesting import graphs
from sardonyx.verify.coarse import coarse
from sardonyx.verify.segments import is_constant, piece, reads

WIDE = np.dtype(np.float64)
WIDENED_DTYPES = tuple(kind.numpy() for kind in FLOATS)
CONTROL = ("If", "Loop", "Scan")

Env = MutableMapping[str, Any]
Visit = Callable[[tuple[str, ...], ir.Node, Env], None]


def is_float(array: Any) -> bool:
    return isinstance(array, (np.ndarray, np.generic)) and array.dtype in WIDENED_DTYPES


def widened(value: Any) -> Any:
    """Floats of any width as float64; everything else as it is."""
    if isinstance(value, list):
        return [widened(v) for v in value]
    return np.asarray(value, WIDE) if is_float(value) else value


def computes_in_halves(model: NormalizedModel) -> bool:
    """Whether nodes compute in 16 bits (a Cast only rounds, and that is part of the model)."""
    return any(
        v.dtype in HALF
        for part in graphs(model.graph)
        for node in part
        if node.op_type != "Cast"
        for v in node.outputs
    )


def exact_form(model: Model) -> Model:
    """The model in float64: widened from float32, and from 16 bits where it computes in them."""
    regular = normalize(model)
    kinds = (ir.DataType.FLOAT, *HALF) if computes_in_halves(regular) else (ir.DataType.FLOAT,)
    return widen(regular, kinds)


class Reference:
    """A model run in float64 (`exact`) or as it is written, by numpy's rules where they exist.

    `by` says what computed it, once it has run.
    """

    def __init__(self, model: Model, *, exact: bool, coarsely: bool = False):
        self.exact = exact
        self.model = exact_form(model) if exact else normalize(model)
        self.by = "numpy"
        self._whole: Any = None
        if not coarsely:
            self._whole = _numpy_runner(self.model)
        self._walk = Walk(self.model, coarsely=coarsely)

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        values = {k: widened(v) for k, v in feeds.items()} if self.exact else dict(feeds)
        if self._whole is not None:
            try:
                return self._whole(values)
            except LimitReached:
                raise
            except SardonyxError:
                self._whole = None
        outputs = self._walk(values)
        self.by = "numpy, onnx reference" if self._walk.borrowed else "numpy"
        return outputs


def _numpy_runner(model: Model) -> Any:
    from sardonyx.engines.numpy import Runner

    try:
        return Runner(model)
    except SardonyxError:
        return None


class Walk:
    """Runs a normalized model node by node; `visit(path, node, values)` sees every step.

    path -- where inside If, Loop and Scan the node is; empty at the top
    coarsely -- long sums and transforms are computed as most engines do (see `coarse.py`)
    """

    def __init__(self, model: Model, visit: Visit | None = None, *, coarsely: bool = False):
        self.model = model
        self.visit = visit
        self.coarsely = coarsely
        self.borrowed: set[str] = set()
        self._kernels: dict[Any, Callable[[dict[str, Any]], list[Any]]] = {}

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        graph = self.model.graph
        env: Env = dict(feeds)
        for value in graph.inputs:
            if value.name not in env and value.const_value is not None:
                env[value.name or ""] = value.const_value.numpy()
        outputs = self.graph(graph, env, ())
        return {v.name or "": x for v, x in zip(graph.outputs, outputs, strict=True)}

    def graph(self, graph: ir.Graph, env: Env, path: tuple[str, ...]) -> list[Any]:
        """Run one graph; `env` holds what it reads and gets what it makes."""
        last = _last_reads(graph)
        for value in graph.initializers.values():
            if value.const_value is not None and value.name not in env:
                env[value.name or ""] = value.const_value.numpy()
        for node in graph:
            outputs = self.node(node, env, path)
            for value, array in zip(node.outputs, outputs):
                if value.name:
                    env[value.name] = array
            if self.visit is not None:
                self.visit(path, node, env)
            for name in last.get(node, ()):
                env.pop(name, None)
        return [env.get(v.name or "") for v in graph.outputs]

    def node(self, node: ir.Node, env: Env, path: tuple[str, ...]) -> list[Any]:
        if node.domain == "" and node.op_type in CONTROL:
            label = node.name or node.outputs[0].name or node.op_type
            return getattr(self, f"_{node.op_type.lower()}")(node, env, (*path, label))
        if self.coarsely:
            coarse_output = coarse(node, [_get(env, v) for v in node.inputs])
            if coarse_output is not None:
                return [coarse_output]
        feeds = {v.name or "": env[v.name or ""] for v in reads(node) if not is_constant(v)}
        feeds = {k: v for k, v in feeds.items() if v is not None}
        return self._kernel(node, feeds)(feeds)

    def _kernel(
        self, node: ir.Node, feeds: dict[str, Any]
    ) -> Callable[[dict[str, Any]], list[Any]]:
        key = (node, *(_signature(v) for v in feeds.values()))
        if key not in self._kernels:
            names = [v.name for v in node.outputs if v.name]
            model = piece(self.model, [node], feeds, names)
            run = kernel(model, node, self.borrowed)
            order = [v.name for v in node.outputs]

            def call(values: dict[str, Any]) -> list[Any]:
                outputs = run(values)
                return [outputs.get(name) if name else None for name in order]

            self._kernels[key] = call
        return self._kernels[key]

    # -- bodies -----------------------------------------------------------------------

    def _body(
        self, graph: ir.Graph, inputs: Sequence[Any], env: Env, path: tuple[str, ...]
    ) -> list[Any]:
        inner: Env = ChainMap({}, env)  # type: ignore[arg-type]
        for value, array in zip(graph.inputs, inputs, strict=True):
            inner[value.name or ""] = array
        return self.graph(graph, inner, path)

    def _if(self, node: ir.Node, env: Env, path: tuple[str, ...]) -> list[Any]:
        branch = "then_branch" if bool(np.asarray(_get(env, node.inputs[0]))) else "else_branch"
        return self._body(node.attributes[branch].as_graph(), [], env, (*path, branch))

    def _loop(self, node: ir.Node, env: Env, path: tuple[str, ...]) -> list[Any]:
        body = node.attributes["body"].as_graph()
        limit, condition, *carried = (_get(env, v) for v in node.inputs)
        count = len(carried)
        stacked: list[list[Any]] = [[] for _ in body.outputs[1 + count :]]
        going = True if condition is None else bool(np.asarray(condition))
        index = 0
        while going and (limit is None or index < int(np.asarray(limit))):
            inputs = [np.array(index, np.int64), np.array(going), *carried]
            outputs = self._body(body, inputs, env, (*path, f"iteration {index}"))
            going, carried = bool(np.asarray(outputs[0])), list(outputs[1 : 1 + count])
            for store, item in zip(stacked, outputs[1 + count :], strict=True):
                store.append(item)
            index += 1
        return carried + [_stack(s, 0, v) for s, v in zip(stacked, node.outputs[count:])]

    def _scan(self, node: ir.Node, env: Env, path: tuple[str, ...]) -> list[Any]:
        body = node.attributes["body"].as_graph()
        count = node.attributes["num_scan_inputs"].as_int()
        inputs = [_get(env, v) for v in node.inputs]
        state, scanned = inputs[: len(inputs) - count], inputs[len(inputs) - count :]
        axes = _ints(node, "scan_input_axes", count)
        back = _ints(node, "scan_input_directions", count)
        outputs = len(body.outputs) - len(state)
        out_axes = _ints(node, "scan_output_axes", outputs)
        out_back = _ints(node, "scan_output_directions", outputs)
        length = scanned[0].shape[axes[0]]
        stacked: list[list[Any]] = [[] for _ in range(outputs)]
        for index in range(length):
            items = [
                np.take(x, length - 1 - index if b else index, axis=a)
                for x, a, b in zip(scanned, axes, back, strict=True)
            ]
            results = self._body(body, [*state, *items], env, (*path, f"iteration {index}"))
            state = list(results[: len(state)])
            for store, item in zip(stacked, results[len(state) :], strict=True):
                store.append(item)
        scan_outputs = [
            _stack(s[::-1] if b else s, a, v)
            for s, a, b, v in zip(
                stacked, out_axes, out_back, node.outputs[len(state) :], strict=True
            )
        ]
        return state + scan_outputs


def kernel(
    model: Model, node: ir.Node, borrowed: set[str] | None = None
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A model of one node, ready to run: numpy's rule, else ONNX's reference evaluator."""
    numpy_run = _numpy_runner(model)
    if numpy_run is None:
        if borrowed is not None:
            borrowed.add(node.op_type)
        return onnx_kernel(model)

    def run(feeds: dict[str, Any]) -> dict[str, Any]:
        try:
            return numpy_run(feeds)
        except LimitReached:
            raise
        except EngineError as error:
            try:
                outputs = onnx_kernel(model)(feeds)
            except SardonyxError:
                raise error from None  # what our own rule said explains more
        if borrowed is not None:
            borrowed.add(node.op_type)
        return outputs

    return run


def onnx_kernel(model: Model) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A model on ONNX's reference evaluator, which shares no rule with ours."""
    from sardonyx.testing import reference_evaluator

    proto = model.proto()
    names = [o.name for o in proto.graph.output]
    label = proto.graph.node[0].name
    op = proto.graph.node[0].op_type
    try:
        evaluator = reference_evaluator(proto)
    except Exception as error:  # it raises whatever its loader meets
        raise UnsupportedOp(
            f"nothing computes {op} exactly", [[op, f"node {quote(label)}"]], hint=str(error)[:200]
        ) from error

    def run(feeds: dict[str, Any]) -> dict[str, Any]:
        try:
            with np.errstate(all="ignore"):
                return dict(zip(names, evaluator.run(None, feeds), strict=True))
        except Exception as error:
            raise EngineError(
                f"the onnx reference failed: {str(error)[:200]}", [[op, f"node {quote(label)}"]]
            ) from error

    return run


def _get(env: Mapping[str, Any], value: ir.Value | None) -> Any:
    if value is None:
        return None
    if is_constant(value):
        assert value.const_value is not None
        return value.const_value.numpy()
    return env[value.name or ""]


def _ints(node: ir.Node, name: str, count: int) -> Sequence[int]:
    attr = node.attributes.get(name)
    return list(attr.as_ints()) if attr is not None else [0] * count


def _stack(items: list[Any], axis: int, like: ir.Value) -> Any:
    if items:
        return np.stack(items, axis=axis)
    dims = [d if isinstance(d, int) else 0 for d in like.shape] if like.shape is not None else [0]
    dims[axis] = 0
    dtype = like.dtype.numpy() if like.dtype is not None else np.float32
    return np.zeros(dims, dtype)


def _signature(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return (value.shape, value.dtype)
    return (type(value), len(value)) if isinstance(value, list) else type(value)


def _last_reads(graph: ir.Graph) -> dict[ir.Node, list[str]]:
    """Which values nothing reads after a node."""
    interface = {*graph.outputs, *graph.inputs}
    last: dict[ir.Value, ir.Node] = {}
    for node in graph:
        for value in (*reads(node), *node.outputs):
            producer = value.producer()
            if value.graph is graph or (producer is not None and producer.graph is graph):
                last[value] = node
    dead_after: dict[ir.Node, list[str]] = {}
    for value, node in last.items():
        if value not in interface and not value.is_initializer() and value.name:
            dead_after.setdefault(node, []).append(value.name)
    return dead_after
