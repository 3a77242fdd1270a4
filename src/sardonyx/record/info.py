"""Training records as the standard defines them: join, check, initialize.

A record's algorithm is a partial graph: `combine` joins it to the model's graph for execution.
ONNX's checker looks at none of it, so `check` does.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable

import onnx_ir as ir

from sardonyx import opset, partial
from sardonyx.build import array_bytes
from sardonyx.errors import RecordError, quote
from sardonyx.model import EARLY_READS, SPARSE, Model, Record
from sardonyx.opset import TRAINING_DOMAIN
from sardonyx.passes.validity import complaint, without_payloads

TRAINING_OPS = ("Gradient", "Adam", "Adagrad", "Momentum")
TRAINING_DOMAINS = (TRAINING_DOMAIN, "ai.onnx.preview")
IR_VERSION = 10


def combine(model: Model, record: Record) -> Model:
    """The graph that a step executes: the model's, then the algorithm's, joined by name."""
    joined = Model(model.ir.clone(), [], model.source)
    algorithm = partial.clone(record.algorithm)
    partial.add_initializers(algorithm, record.state)
    partial.join(joined.graph, algorithm)
    return joined


def initialization_model(model: Model, record: Record) -> Model:
    """The initialization of a record as a model, with the opsets and functions of `model`."""
    graph = partial.clone(record.initialization)
    graph.opset_imports.update(model.ir.opset_imports)
    functions = [function.clone() for function in model.ir.functions.values()]
    return Model(ir.Model(graph, ir_version=IR_VERSION, functions=functions))


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
    names = (output.name or "" for output in record.algorithm.outputs)
    return list(dict.fromkeys(name for name in names if name not in bound))


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
        uses_training_ops(r.algorithm) for r in model.records
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
    initializers -= record.algorithm.meta.get(SPARSE, set())
    outputs = {v.name for v in (*record.algorithm.outputs, *model.graph.outputs)}
    starts = {v.name for v in record.initialization.outputs}
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
    if graph.inputs:
        names = ", ".join(quote(v.name) for v in graph.inputs)
        problems.append(["initialization", names, "an initialization has no inputs"])
    free = dict.fromkeys(partial.free_values(graph))
    outputs = [v for v in graph.outputs if v in free]
    for value in free:
        if value not in outputs:
            outside = value.name in model.graph.initializers or value.name in record.state
            why = "is an initializer of another graph" if outside else "is not computed there"
            problems.append(["initialization", quote(value.name), why])
    problems += [
        ["initialization", quote(name), "is read before it is computed"]
        for _, name in graph.meta.get(EARLY_READS, ())
    ]
    problems += [
        ["initialization", quote(v.name), "is an output that is not computed"] for v in outputs
    ]
    return problems


def _gradients(model: Model, record: Record) -> list[list[str]]:
    graphs = (model.graph, record.algorithm)
    names = {*record.state, *(name for graph in graphs for name in partial.named_values(graph))}
    problems = []
    for node in record.algorithm:
        if node.op_type != "Gradient" or node.domain not in TRAINING_DOMAINS:
            continue
        outputs = [v.name for v in node.outputs if v.name]
        where = f"Gradient {quote(node.name or next(iter(outputs), None))}"
        xs = list(node.attributes.get_strings("xs", ()))
        zs = list(node.attributes.get_strings("zs", ()))
        y = node.attributes.get_string("y", "")
        problems += [
            [where, quote(n), "is not in the graph"] for n in (*xs, *zs, y) if n not in names
        ]
        if len(node.inputs) != len(xs) + len(zs):
            problems.append([where, f"{len(node.inputs)} inputs", f"for {len(xs) + len(zs)} names"])
        if len(node.outputs) > len(xs):
            problems.append([where, f"{len(node.outputs)} outputs", f"for {len(xs)} names in xs"])
    return problems


def _shapes(model: Model, record: Record) -> list[list[str]]:
    """Type and shape of an assigned output, where declared, must be those of the variable."""
    updates = {v.name: v for v in (*model.graph.outputs, *record.algorithm.outputs)}
    starts = {v.name: v for v in record.initialization.outputs}
    problems = []
    for kind, pairs, declared in (
        ("update_binding", record.update_binding, updates),
        ("initialization_binding", record.initialization_binding, starts),
    ):
        for key, name in pairs:
            tensor, value = state_tensor(model, record, key), declared.get(name)
            if tensor is not None and value is not None:
                where = [kind, f"{quote(key)} ← {quote(name)}"]
                problems += [[*where, what] for what in _differences(tensor, value)]
    return problems


def _differences(tensor: ir.TensorProtocol, declared: ir.Value) -> list[str]:
    differences = []
    if declared.dtype not in (None, ir.DataType.UNDEFINED, tensor.dtype):
        differences.append(f"{tensor.dtype} ← {declared.dtype}")
    if declared.shape is not None:
        dims = [d if isinstance(d, int) else None for d in declared.shape]
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
    defined: Counter[str] = Counter()
    for graph, tensors in (
        (model.graph, model.graph.initializers.keys()),
        (record.algorithm, record.state.keys()),
    ):
        defined.update({v.name for v in graph.inputs if v.name} | tensors)
        defined.update(v.name for node in graph for v in node.outputs if v.name)
    problems = [
        [f"node {quote(node)}", quote(name), "is read before it is computed"]
        for node, name in record.algorithm.meta.get(EARLY_READS, ())
    ]
    for free in partial.free_values(record.algorithm):
        if free.name not in defined:
            readers = (f"node {quote(node.name)}" for node, _ in free.uses())
            row = [next(readers, "algorithm"), quote(free.name), "is not computed anywhere"]
            problems.append(row)
    problems += [
        ["joined graph", quote(n), f"is defined {c} times"] for n, c in defined.items() if c > 1
    ]
    nodes = Counter(n.name for graph in (model.graph, record.algorithm) for n in graph)
    repeated = dict.fromkeys(n.name for n in record.algorithm if n.name and nodes[n.name] > 1)
    problems += [["joined graph", quote(n), f"is the name of {nodes[n]} nodes"] for n in repeated]
    return problems


def _official(model: Model, record: Record) -> list[list[str]]:
    """The complaint of ONNX's checker: unknown operators, attributes, versions."""
    proto = model.skeleton()
    for node in record.algorithm:
        ir.serde.serialize_node_into(proto.graph.node.add(), node)
    for value in record.algorithm.inputs:
        ir.serde.serialize_value_into(proto.graph.input.add(), value)
    for value in record.algorithm.outputs:
        ir.serde.serialize_value_into(proto.graph.output.add(), value)
    inputs = {v.name for v in record.algorithm.inputs}
    for name, tensor in record.state.items():
        if name not in inputs:
            kind = ir.TensorType(tensor.dtype)
            value = ir.Value(name=name, type=kind, shape=ir.Shape(tensor.shape.numpy()))
            ir.serde.serialize_value_into(proto.graph.input.add(), value)
    proto = without_payloads(proto)
    # Behind Gradient nothing is inferred, and a record need not declare what it computes.
    declared = [o for o in proto.graph.output if o.HasField("type")]
    proto.graph.ClearField("output")
    proto.graph.output.extend(declared)
    for info in (*proto.graph.input, *proto.graph.output):  # a file may leave ranks open
        if info.type.HasField("tensor_type") and not info.type.tensor_type.HasField("shape"):
            info.type.tensor_type.shape.SetInParent()
    domains = {i.domain for i in proto.opset_import}
    for domain in TRAINING_DOMAINS:
        if domain not in domains:
            proto.opset_import.add(domain=domain, version=1)
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
    if a is b:
        return True
    same_kind = a.dtype == b.dtype and a.shape == b.shape
    return same_kind and array_bytes(a.numpy()) == array_bytes(b.numpy())


def uses_training_ops(nodes: Iterable[ir.Node]) -> bool:
    return any(n.op_type in TRAINING_OPS and n.domain in TRAINING_DOMAINS for n in nodes)
