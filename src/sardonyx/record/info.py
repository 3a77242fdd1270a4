"""Training records as the standard defines them: join, check, initialize.

A record's algorithm is a partial graph: executed, it is joined to the model's graph, field by field
(`combine`). The official checker looks at none of it, so `check` does.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import onnx
import onnx.helper
import onnx_ir as ir

from sardonyx import opset
from sardonyx.errors import RecordError, quote
from sardonyx.model import STUB, Model, Record, _attach, _densify, _take_maps
from sardonyx.opset import TRAINING_DOMAIN
from sardonyx.passes.validity import complaint, without_payloads

TRAINING_OPS = ("Gradient", "Adam", "Adagrad", "Momentum")
TRAINING_DOMAINS = (TRAINING_DOMAIN, "ai.onnx.preview")


def combine(model: Model, record: Record) -> Model:
    """The graph that a step executes: the model's, then the algorithm's, joined field by field."""
    proto = model.skeleton()
    payload: dict[str, ir.TensorProtocol] = {}
    for tensor in proto.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            _mark(tensor, payload, model.graph.initializers[tensor.name].const_value)
    proto = _joined_proto(proto, record.algorithm)
    for name, tensor in record.state.items():
        stub = onnx.TensorProto(name=name, data_type=int(tensor.dtype), dims=tensor.shape.numpy())
        _mark(stub, payload, tensor)
        proto.graph.initializer.append(stub)
    _densify(proto, None)
    _take_maps(proto)
    joined = Model(ir.serde.deserialize_model(proto), [], model.source)
    _attach(joined, payload)
    return joined


def _joined_proto(proto: onnx.ModelProto, algorithm: onnx.GraphProto) -> onnx.ModelProto:
    for field in ("node", "output", "value_info", "sparse_initializer"):
        getattr(proto.graph, field).extend(getattr(algorithm, field))
    proto.graph.input.extend(algorithm.input)
    return proto


def _mark(tensor: onnx.TensorProto, payload: dict[str, Any], value: Any) -> None:
    key = f"{STUB}:{len(payload)}"
    payload[key] = value
    tensor.ClearField("raw_data")
    tensor.ClearField("external_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=key)


def state_names(model: Model, record: Record) -> list[str]:
    """The state variables of a record: the keys of either binding, each once, in order."""
    keys = [k for k, _ in (*record.update_binding, *record.initialization_binding)]
    return list(dict.fromkeys(keys))


def state_tensor(model: Model, record: Record, name: str) -> ir.TensorProtocol | None:
    """The current value of a state variable: an initializer of the algorithm or of the graph."""
    if name in record.state:
        return record.state[name]
    value = model.graph.initializers.get(name)
    return value.const_value if value is not None else None


def metrics(record: Record) -> list[str]:
    """The outputs of the algorithm that no binding uses: losses and other metrics."""
    bound = {value for _, value in record.update_binding}
    return list(dict.fromkeys(o.name for o in record.algorithm.output if o.name not in bound))


# -- the checker ----------------------------------------------------------------------


def check(model: Model) -> None:
    """Raise one RecordError with every defect of the model's training records."""
    problems: list[list[str]] = []
    if (model.ir.ir_version or 0) < 7:
        problems.append(["ir_version", str(model.ir.ir_version), "training records need 7 or more"])
    for index, record in enumerate(model.records):
        defects = [
            *_bindings(model, record),
            *_initialization(model, record),
            *_gradients(model, record),
            *_shapes(model, record),
            *_names_and_order(model, record),
        ]
        if not defects:
            defects = _official(model, record)
        problems += [[f"record {index}", *row] for row in defects]
    problems += _shared_state(model)
    _warn(model)
    if problems:
        count = len(problems)
        raise RecordError(
            f"the training record{'s' * (len(model.records) > 1)} of this model "
            f"break{'s' * (len(model.records) == 1)} {count} rule{'s' * (count > 1)}",
            problems,
            hint="docs/concepts/onnx-training.md lists the rules",
        )


def _warn(model: Model) -> None:
    """Warn of what is allowed but probably unintended."""
    domains = {opset.domain_name(d) for d in model.ir.opset_imports}
    if TRAINING_DOMAIN not in domains and any(
        uses_training_ops(r.algorithm.node) for r in model.records
    ):
        warnings.warn(f"the model uses {TRAINING_DOMAIN} without importing it", stacklevel=4)
    counts = Counter(
        k for r in model.records for k in dict.fromkeys(k for k, _ in r.update_binding)
    )
    shared = [k for k, times in counts.items() if times > 1]
    if shared:
        listed = ", ".join(quote(k) for k in shared)
        warnings.warn(f"more than one training record updates {listed}", stacklevel=4)


def _bindings(model: Model, record: Record) -> list[list[str]]:
    initializers = set(model.graph.initializers) | set(record.state)
    outputs = {o.name for o in record.algorithm.output} | {v.name for v in model.graph.outputs}
    starts = {o.name for o in record.initialization.output}
    problems = []
    for kind, pairs, values in (
        ("update_binding", record.update_binding, outputs),
        ("initialization_binding", record.initialization_binding, starts),
    ):
        for key, times in Counter(k for k, _ in pairs).items():
            if times > 1:
                problems.append([kind, quote(key), f"is assigned {times} times"])
        for key, value in pairs:
            if key in values and value in initializers and key not in initializers:
                problems.append(
                    [kind, f"{quote(key)} ← {quote(value)}", "key and value are swapped"]
                )
                continue
            if key not in initializers:
                problems.append(
                    [kind, quote(key), "is no initializer of the graph or the algorithm"]
                )
            if value not in values:
                problems.append([kind, quote(value), "is no output"])
    return problems


def _initialization(model: Model, record: Record) -> list[list[str]]:
    problems = []
    graph = record.initialization
    if graph.input:
        names = ", ".join(quote(i.name) for i in graph.input)
        problems.append(["initialization", names, "an initialization has no inputs"])
    computed = {t.name for t in graph.initializer} | {i.name for i in graph.input} | {""}
    for node in graph.node:
        for name in node.input:
            if name not in computed:
                outside = name in model.graph.initializers or name in record.state
                why = "is an initializer of another graph" if outside else "is not computed there"
                problems.append(["initialization", quote(name), why])
        computed.update(node.output)
    problems += [
        ["initialization", quote(o.name), "is an output that is not computed"]
        for o in graph.output
        if o.name not in computed
    ]
    return problems


def _gradients(model: Model, record: Record) -> list[list[str]]:
    names = _names(model, record)
    problems = []
    for node in record.algorithm.node:
        if node.op_type != "Gradient" or node.domain not in TRAINING_DOMAINS:
            continue
        where = f"Gradient {quote(node.name or next(iter(node.output), None))}"
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        xs = [x.decode() for x in attributes.get("xs", [])]
        zs = [z.decode() for z in attributes.get("zs", [])]
        y = attributes.get("y", b"").decode()
        problems += [
            [where, quote(n), "is not in the graph"] for n in (*xs, *zs, y) if n not in names
        ]
        if len(node.input) != len(xs) + len(zs):
            problems.append([where, f"{len(node.input)} inputs", f"for {len(xs) + len(zs)} names"])
        if len(node.output) > len(xs):
            problems.append([where, f"{len(node.output)} outputs", f"for {len(xs)} names in xs"])
    return problems


def _names(model: Model, record: Record) -> set[str]:
    graph = model.graph
    names = {v.name for v in graph.inputs} | set(graph.initializers) | set(record.state)
    names |= {v.name for node in graph for v in node.outputs}
    names |= {i.name for i in record.algorithm.input}
    return {n for n in names | {o for n in record.algorithm.node for o in n.output} if n}


def _shapes(model: Model, record: Record) -> list[list[str]]:
    """Type and shape of an assigned output, where declared, must be those of the variable."""
    updates = {v.name: ir.serde.serialize_value(v).type.tensor_type for v in model.graph.outputs}
    updates |= {o.name: o.type.tensor_type for o in record.algorithm.output}
    starts = {o.name: o.type.tensor_type for o in record.initialization.output}
    problems = []
    for kind, pairs, declared in (
        ("update_binding", record.update_binding, updates),
        ("initialization_binding", record.initialization_binding, starts),
    ):
        for key, value in pairs:
            tensor, found = state_tensor(model, record, key), declared.get(value)
            if tensor is not None and found is not None:
                where = [kind, f"{quote(key)} ← {quote(value)}"]
                problems += [[*where, what] for what in _differences(tensor, found)]
    return problems


def _differences(tensor: ir.TensorProtocol, declared: onnx.TypeProto.Tensor) -> list[str]:
    differences = []
    if declared.elem_type and declared.elem_type != int(tensor.dtype):
        differences.append(f"{tensor.dtype} ← {onnx.TensorProto.DataType.Name(declared.elem_type)}")
    if declared.HasField("shape"):
        dims = [d.dim_value if d.HasField("dim_value") else None for d in declared.shape.dim]
        expected = list(tensor.shape.numpy())
        fits = len(dims) == len(expected) and all(
            a in (None, b) for a, b in zip(dims, expected, strict=True)
        )
        if not fits:
            differences.append(f"{expected} ← {dims}")
    return differences


def _names_and_order(model: Model, record: Record) -> list[list[str]]:
    """The joined graph must be an ordinary valid graph: unique names, every input computed
    before.
    """
    problems = []
    graph = model.graph
    defined = Counter(v.name for v in graph.inputs if v.name not in graph.initializers)
    defined.update(list(graph.initializers))
    defined.update(v.name for node in graph for v in node.outputs if v.name)
    names = set(record.state)
    defined.update(names)
    defined.update(i.name for i in record.algorithm.input if i.name not in names)
    late: set[str] = {o for n in record.algorithm.node for o in n.output if o}
    computed = {n for n in defined if n} | {""}
    for node in record.algorithm.node:
        for name in node.input:
            if name not in computed:
                why = (
                    "is read before it is computed" if name in late else "is not computed anywhere"
                )
                problems.append([f"node {quote(node.name)}", quote(name), why])
        defined.update(o for o in node.output if o)
        computed.update(node.output)
    problems += [
        ["joined graph", quote(n), f"is defined {c} times"]
        for n, c in defined.items()
        if n and c > 1
    ]
    return problems


def _official(model: Model, record: Record) -> list[list[str]]:
    """The complaint of ONNX's checker: unknown operators, attributes, versions."""
    proto = model.skeleton()
    for name, tensor in record.state.items():
        info = onnx.helper.make_tensor_value_info(
            name, int(tensor.dtype), list(tensor.shape.numpy())
        )
        if name not in {i.name for i in record.algorithm.input}:
            proto.graph.input.append(info)
    proto = without_payloads(_joined_proto(proto, record.algorithm))
    # Behind Gradient nothing is inferred, and a record need not declare what it computes.
    declared = [o for o in proto.graph.output if o.HasField("type")]
    proto.graph.ClearField("output")
    proto.graph.output.extend(declared)
    if TRAINING_DOMAIN not in {i.domain for i in proto.opset_import}:
        proto.opset_import.add(domain=TRAINING_DOMAIN, version=1)
    if "ai.onnx.preview" not in {i.domain for i in proto.opset_import}:
        proto.opset_import.add(domain="ai.onnx.preview", version=1)
    proto.ir_version = max(proto.ir_version, 8)
    message = complaint(proto)
    return [["joined graph", message.splitlines()[0]]] if message else []


def _shared_state(model: Model) -> list[list[str]]:
    """One name in two records is one variable, if both start it alike; constants are private."""
    problems, first = [], {}
    variables = {name for record in model.records for name in state_names(model, record)}
    for index, record in enumerate(model.records):
        for name, tensor in record.state.items():
            if name not in variables:
                continue
            if name not in first:
                first[name] = (index, tensor)
            elif not _equal(first[name][1], tensor):
                problems.append(
                    [
                        f"records {first[name][0]} and {index}",
                        quote(name),
                        "start at different values",
                    ]
                )
    return problems


def _equal(a: ir.TensorProtocol, b: ir.TensorProtocol) -> bool:
    return a is b or (a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())


def uses_training_ops(nodes: Sequence[onnx.NodeProto]) -> bool:
    return any(n.op_type in TRAINING_OPS and n.domain in TRAINING_DOMAINS for n in nodes)
