"""An exported program becomes an ONNX graph, by torch's own exporter with our translations.

Weights keep their names in the module's `state_dict`, tied ones are one tensor, and none is folded
into another: while the graph is simplified, they are inputs.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import onnx_ir as ir
import torch
from torch.export.graph_signature import InputKind, OutputKind

from sardonyx.errors import ImportRefused, MissingExtra, quote
from sardonyx.grad.driver import STOPPED
from sardonyx.importers.torch.capture import Program, evaluation_mode, quiet, refused
from sardonyx.importers.torch.doubts import line_of, lines_of_operator
from sardonyx.importers.torch.recurrent import STOP_SEED
from sardonyx.importers.torch.source import Source
from sardonyx.importers.torch.wide_integers import compare_wide_integers
from sardonyx.model import Model

OPSET = 18  # the one that torch's translations are written in
PREFIX = "model."
KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
SCOPES = "pkg.torch.onnx.name_scopes"
CLASSES = "pkg.torch.onnx.class_hierarchy"
PLACEHOLDER = "sardonyx"
COPIED_BY_TORCH = (torch.float32, torch.float64, torch.float16)
KEPT_METADATA = (SCOPES, CLASSES, KIND, STOPPED)


def translated(program: Program, module: torch.nn.Module, source: Source | None = None) -> Model:
    """The program as one ONNX model; `program.inputs` and `outputs` are the names at its ends.

    source -- how the module is called, where that is known
    """
    try:
        import onnxscript  # noqa: F401

        from sardonyx.importers.torch import missing, operators
    except ImportError as error:
        raise MissingExtra("onnxscript", "torch") from error
    _refuse_random(operators.mark(program.exported))
    # Without gradients: their absence decides which kernel of attention, and so which strides,
    # torch assumes, and the views in the program were captured with those.
    lines = functools.partial(lines_of_operator, program.exported)
    with quiet(), refused(module, lines), torch.no_grad():
        result = torch.onnx.export(
            program.exported,
            dynamo=True,
            optimize=False,
            opset_version=OPSET,
            custom_translation_table={**missing.translations(), **operators.TRANSLATIONS},
            verbose=False,
        )
    assert result is not None
    model = result.model
    _refuse_writes(result.exported_program, program, source)
    _name_weights(model, module)
    with quiet(), refused(module):
        _simplify(model)
    _keep_padding(model.graph)
    compare_wide_integers(model.graph)
    _name_ends(model.graph, program)
    _name_sizes(model.graph, program)
    _read_sizes_early(model.graph)
    _tidy(model.graph)
    return Model(model)


# -- what cannot be taken over ----------------------------------------------------------


def _refuse_random(nodes: Iterable[torch.fx.Node]) -> None:
    rows = [[str(node.target), line_of(node)] for node in nodes]
    if rows:
        raise ImportRefused(
            "the module draws random numbers in evaluation mode: no two runs are the same",
            rows,
            hint="pass the random numbers as an input",
        )


def _refuse_writes(exported: Any, program: Program, source: Source | None) -> None:
    """Refuse a module that writes to inputs or parameters, or to buffers that outputs read."""
    signature = exported.graph_signature
    holders = {s.target: s.arg.name for s in signature.input_specs if s.kind == InputKind.BUFFER}
    users = [s.arg.name for s in signature.input_specs if s.kind == InputKind.USER_INPUT]
    lines = {node.name: line_of(node) for node in exported.graph.nodes}
    rows = []
    for spec in signature.output_specs:
        line = lines.get(spec.arg.name, "")
        if spec.kind == OutputKind.USER_INPUT_MUTATION:
            place = users.index(spec.target) if spec.target in users else 0
            rows.append([f"input {quote(program.inputs[place])}", "is written to in place", line])
        elif spec.kind == OutputKind.PARAMETER_MUTATION and _is_changed(source, spec.target):
            rows.append([f"parameter {quote(_bare(spec.target))}", "is written to in place", line])
        elif spec.kind == OutputKind.BUFFER_MUTATION and _is_read(
            exported, holders.get(spec.target, ""), signature
        ):
            name = quote(_bare(spec.target))
            rows.append([f"buffer {name}", "changes at every call, and is read", line])
    if rows:
        raise ImportRefused(
            "the module writes in place to tensors that outlive a call, in evaluation mode too",
            rows,
            hint="compute with a copy: x = x.clone()",
        )


def _is_changed(source: Source | None, target: str) -> bool:
    """Whether a call gives a parameter other numbers; some write what is there already."""
    if source is None or not target.startswith(PREFIX):
        return True
    parameter = source.module.get_parameter(_bare(target))
    before = parameter.detach().clone()
    with torch.no_grad(), quiet(), evaluation_mode(source.module):
        try:
            source.run(source.module, {})
            return not torch.equal(parameter, before)
        finally:
            parameter.copy_(before)


def _is_read(exported: Any, name: str, signature: Any) -> bool:
    """Whether an output of the user depends on a buffer."""
    users = {s.arg.name for s in signature.output_specs if s.kind == OutputKind.USER_OUTPUT}
    reached = {n for n in exported.graph.nodes if n.name == name}
    for node in exported.graph.nodes:
        if any(source in reached for source in node.all_input_nodes) and node.op != "output":
            reached.add(node)
    return any(node.name in users for node in reached)


# -- weights ----------------------------------------------------------------------------


def _bare(name: str) -> str:
    return name.removeprefix(PREFIX)


def _name_weights(model: ir.Model, module: torch.nn.Module) -> None:
    """Copies of the weights under their names in the module; tied ones become one."""
    graph = model.graph
    first: dict[tuple[Any, ...], ir.Value] = {}
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    names = {_place(t): n for n, t in reversed(tensors.items()) if t.numel()}
    order = {n: i for i, n in enumerate(tensors)}
    values = list(graph.initializers.values())
    graph.initializers.clear()
    for value in values:
        tensor = getattr(value.const_value, "raw", None)
        name = _bare(value.name or "")
        if isinstance(tensor, torch.Tensor) and tensor.numel():
            name = names.get(_place(tensor), name)
            if name in names.values() and _place(tensor) in first:
                value.replace_all_uses_with(first[_place(tensor)])
                continue
            first[_place(tensor)] = value
        value.name = name
    weights = [v for v in values if v in first.values() or v.uses()]
    for value in sorted(weights, key=lambda v: order.get(v.name or "", len(order))):
        is_parameter = value.metadata_props.get(KIND) == "PARAMETER"
        if value.uses() or value.is_graph_output() or is_parameter:
            value.const_value = _copy(value, value.name or "")
            graph.register_initializer(value)


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Where a tensor lies in memory: equal for tied weights only."""
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def _copy(value: ir.Value, name: str) -> ir.Tensor:
    """A tensor of our own: the module goes on training, and the model must not follow."""
    tensor = value.const_value
    assert tensor is not None
    raw: Any = getattr(tensor, "raw", None)
    if type(raw) in (torch.Tensor, torch.nn.Parameter) and raw.dtype in COPIED_BY_TORCH:
        # In fresh memory, torch copies twice as fast as NumPy.
        array = raw.detach().clone(memory_format=torch.contiguous_format).numpy()
    else:
        array = np.array(tensor.numpy(), copy=True)
    return ir.Tensor(array, tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=name)


def _simplify(model: ir.Model) -> None:
    """Fold constants and remove what is redundant; weights are inputs meanwhile."""
    import onnxscript.optimizer

    graph = model.graph
    inputs = list(graph.inputs)
    weights = {n: (v, v.const_value) for n, v in graph.initializers.items()}
    graph.initializers.clear()
    for value, _ in weights.values():
        value.const_value = None
        graph.inputs.append(value)
    dropouts = [n for n in graph.all_nodes() if n.op_type == "Dropout"]
    for node in dropouts:
        node.domain = PLACEHOLDER  # the optimizer removes Dropout, which does nothing in inference
    try:
        with _exact_constants(), _only_where_rules_begin():
            onnxscript.optimizer.optimize_ir(model)
    finally:
        for node in dropouts:
            node.domain = ""
            if node.attributes.get_int("seed", 0) == STOP_SEED:
                _as_stopped_identity(node)
        model.opset_imports.pop(PLACEHOLDER, None)
        del graph.inputs[:]
        graph.inputs.extend(inputs)
        for result in (v for node in graph for v in node.outputs if v.name in weights):
            result.name = (
                f"{result.name}_out"  # the optimizer names a weight that is an output anew
            )
        for name, (value, tensor) in weights.items():
            value.name, value.const_value = name, tensor
            graph.register_initializer(value)


def _exact_constants() -> Any:
    """Inside, onnxscript's rules match a constant only if it is the very number.

    Its matcher takes 1e-8 for 0 and 1.00001 for 1: x + 1e-8 became x.
    """
    from onnxscript.rewriter import _matcher

    def equal(a: float, b: float, **_: float) -> bool:
        return a == b

    return mock.patch.object(_matcher, "math", SimpleNamespace(isclose=equal))


def _only_where_rules_begin() -> Any:
    """Inside, onnxscript's rules look at nodes of the operator only that their pattern ends in.

    It would try each rule at each node, and list the whole graph for rules of several outputs.
    """
    from onnxscript.rewriter import _basics, _matcher

    matcher = _matcher.SimplePatternMatcher
    original = matcher.match

    def match(self: Any, model: Any, graph: Any, node: ir.Node, **settings: Any) -> Any:
        if self.pattern.output_nodes[0].op.matches(node.op_type):
            return original(self, model, graph, node, **settings)
        return _basics.MatchResult().fail("another operator")

    return mock.patch.object(matcher, "match", match)


def _keep_padding(graph: ir.Graph) -> None:
    """Pad what is pooled afterwards with the smallest number instead of 0.

    onnxruntime merges a Pad of zeros into a MaxPool, which pads with -inf; other numbers it keeps.
    """
    pools = [n for n in graph.all_nodes() if n.op_type == "MaxPool" and n.inputs[0] is not None]
    for node in {n.inputs[0].producer() for n in pools}:  # type: ignore[union-attr]
        if node is None or node.op_type != "Pad":
            continue
        if node.attributes.get_string("mode", "constant") != "constant":
            continue
        x, dtype = node.inputs[0], node.outputs[0].dtype
        number = node.inputs[2] if len(node.inputs) > 2 else None
        is_zero = number is None or (
            number.const_value is not None and not number.const_value.numpy().any()
        )
        if x is None or dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE) or not is_zero:
            continue
        array = np.asarray(np.finfo(dtype.numpy()).tiny, dtype.numpy())
        name = f"{node.outputs[0].name}_padding"
        smallest = ir.Value(name=name, const_value=ir.Tensor(array, name=name))
        smallest.type, smallest.shape = ir.TensorType(dtype), ir.Shape(())
        graph.register_initializer(smallest)
        node.resize_inputs(max(3, len(node.inputs)))
        node.replace_input_with(2, smallest)


def _as_stopped_identity(node: ir.Node) -> None:
    node.op_type = "Identity"
    node.attributes.clear()
    node.resize_inputs(1)
    node.resize_outputs(1)
    node.metadata_props[STOPPED] = "detached in torch"


# -- names ------------------------------------------------------------------------------


def _name_ends(graph: ir.Graph, program: Program) -> None:
    """Give inputs and outputs their names; outputs that repeat a tensor get a copy of it."""
    count = len(graph.inputs)
    if count != len(program.inputs) or len(graph.outputs) != len(program.outputs):
        raise ImportRefused(
            f"torch exported {count} inputs and {len(graph.outputs)} outputs, "
            f"not {len(program.inputs)} and {len(program.outputs)}"
        )
    used = {v.name for node in graph.all_nodes() for v in node.outputs}
    ends = {*program.inputs, *program.outputs}
    for node in graph.all_nodes():
        for value in node.outputs:
            if value.name in ends:
                fresh = f"{value.name}_inside"
                while fresh in used:
                    fresh += "_2"
                value.name = fresh
                used.add(fresh)
    for value, name in zip(graph.inputs, program.inputs, strict=True):
        value.name = name
    outputs = list(graph.outputs)
    values: set[ir.Value] = set()
    for index, (value, name) in enumerate(zip(outputs, program.outputs, strict=True)):
        if value in values or value.producer() is None:
            node = ir.Node("", "Identity", [value], num_outputs=1)
            graph.append(node)
            node.outputs[0].type, node.outputs[0].shape = value.type, value.shape
            value = graph.outputs[index] = node.outputs[0]
        value.name = _unlike_inputs(name, program.inputs)
        values.add(value)


def _unlike_inputs(name: str, inputs: Iterable[str]) -> str:
    while name in inputs:
        name = f"{name}_out"
    return name


def _name_sizes(graph: ir.Graph, program: Program) -> None:
    """Free sizes get the names that were asked for; torch numbers its symbols.

    Two symbols for which one name was asked are one size.
    """
    names: dict[str, str] = {}
    fresh_names: dict[str, str] = {}
    for value in graph.inputs:
        for axis, size in enumerate(value.shape or ()):
            name = program.free.get((value.name or "", axis))
            symbol = size.value if isinstance(size, ir.SymbolicDim) else None
            if name and symbol and symbol.isidentifier() and symbol not in names:
                if name not in fresh_names:
                    fresh_names[name] = _distinct(name, fresh_names.values())
                names[symbol] = fresh_names[name]
    pattern = re.compile(r"\b(" + "|".join(map(re.escape, names or ["$^"])) + r")\b")
    for value in [*graph.inputs, *(v for n in graph.all_nodes() for v in n.outputs)]:
        if value.shape is not None and any(isinstance(d, ir.SymbolicDim) for d in value.shape):
            value.shape = ir.Shape([_renamed(d, pattern, names) for d in value.shape])
    for value in graph.inputs:
        for axis, size in enumerate(value.shape or ()):
            if isinstance(size, int):  # the network fixes it
                program.free.pop((value.name or "", axis), None)


def _distinct(name: str, used_names: Iterable[str]) -> str:
    used_names, base, number = set(used_names), name.replace(".", "_"), 2
    name = base
    while name in used_names:
        name, number = f"{base}_{number}", number + 1
    return name


def _renamed(size: Any, pattern: Any, names: Mapping[str, str]) -> Any:
    if not isinstance(size, ir.SymbolicDim) or size.value is None:
        return size
    if size.value.isdigit():  # torch has found that the network fixes this size
        return int(size.value)
    return ir.SymbolicDim(pattern.sub(lambda m: names[m.group()], size.value))


def _read_sizes_early(graph: ir.Graph) -> None:
    """Read a size that several inputs have from the first: served graphs have no labels."""
    places: dict[str, tuple[ir.Value, int]] = {}
    for value in graph.inputs:
        for axis, size in enumerate(value.shape or ()):
            if isinstance(size, ir.SymbolicDim) and size.value:
                places.setdefault(size.value, (value, axis))
    for node in graph.all_nodes():
        source = node.inputs[0] if node.op_type == "Shape" else None
        if source is None or source.shape is None or source not in graph.inputs:
            continue
        axis = node.attributes.get_int("start", 0)
        if node.attributes.get_int("end", 0) != axis + 1:
            continue
        size = source.shape[axis]
        if isinstance(size, ir.SymbolicDim) and size.value in places:
            first, place = places[size.value]
            node.replace_input_with(0, first)
            node.attributes.add(ir.AttrInt64("start", place))
            node.attributes.add(ir.AttrInt64("end", place + 1))


def _tidy(graph: ir.Graph) -> None:
    """Keep the scopes of the module in the metadata; paths and traces of the machine go."""
    for value in graph.initializers.values():
        _keep(value.metadata_props)
    for value in graph.inputs:
        _keep(value.metadata_props)
    for node in graph.all_nodes():
        _keep(node.metadata_props)
        scopes = _listed(node.metadata_props.get(SCOPES))
        classes = _listed(node.metadata_props.get(CLASSES))
        if len(scopes) > 1 and scopes[1] == "model":  # the outermost two are our own
            scopes = ["", *(s.removeprefix(PREFIX) for s in scopes[2:])]
            node.metadata_props[SCOPES] = repr(scopes)
            node.metadata_props[CLASSES] = repr(classes[1:])
        for value in node.outputs:
            _keep(value.metadata_props)


def scopes_of(node: ir.Node) -> list[str]:
    """The paths of the modules that a node is in, outermost first; the last is its own name."""
    return _listed(node.metadata_props.get(SCOPES))


def _keep(metadata: dict[str, str]) -> None:
    for key in [k for k in metadata if k not in KEPT_METADATA]:
        del metadata[key]


def _listed(text: str | None) -> list[str]:
    try:
        value = ast.literal_eval(text or "[]")
    except (ValueError, SyntaxError):
        return []
    return list(value) if isinstance(value, list) else []
