"""What an exporter did to the tensors of a network, undone for training.

A fresh network is full of equal tensors: scales and variances of ones, shifts and means of zeros.
torch's older exporter keeps one of them and writes `Identity` under the names of the others; its
newer one lets all readers read the same tensor. Training needs them apart: a running variance moves
with the data, a scale with its gradient, and each layer has its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator

import onnx_ir as ir

from sardonyx.build import Builder, constant
from sardonyx.edit.surgery import copy_weight
from sardonyx.edit.torch_names import (
    lacks_parameters,
    module_path,
    parameters,
    respelled,
    spelled,
    statistic,
)
from sardonyx.errors import quote
from sardonyx.model import Model
from sardonyx.passes.nesting import names as all_names
from sardonyx.weights import KIND, MAX_MOVES, MOVES, NORMALIZATIONS, TORCH_KIND, classified

COMPUTED = re.compile(r"onnx::\w+$")  # the names of tensors that torch's older exporter computed
SHOWN = 6
IMPORTED = "sardonyx.imported"  # metadata: from what one of our importers read the model
REPEATS = ("Tile", "Expand")
Use = tuple[ir.Node, int]


def separate_merged(model: Model, note: Callable[[str, str, str], None]) -> None:
    """Give running statistics, and weights that were merged as equal, tensors of their own.

    note -- is told what was done, to what, and why
    """
    names = Builder("separate")
    names.reserve(all_names(model.graph))
    _separate_fillers(model, names)
    statistics = [_copy(model, *part) for part in list(_merged_statistics(model, names))]
    statistics += _repeated_statistics(model, names)
    weights = [_copy(model, *part) for part in list(_merged_weights(model, names))]
    for kind, copies, why in (
        ("running statistics", statistics, "training moves them with the data"),
        ("weights", weights, "each layer trains its own"),
    ):
        if copies:
            listed = ", ".join(quote(n) for n in copies[:SHOWN])
            more = f" and {len(copies) - SHOWN} more" * (len(copies) > SHOWN)
            value = f"{len(copies)} {kind} separated from equal tensors: {listed}{more}"
            note("separated", value, f"the exporter had made equal tensors one; {why}")


def is_uniform(value: ir.Value) -> bool:
    """Whether a constant holds one number throughout, as fresh scales and shifts do."""
    array = constant(value)
    if array is None or array.size < 2:
        return False
    numbers = array.reshape(-1)
    return bool(numbers[0] == numbers[-1] and (numbers == numbers[0]).all())


def _copy(model: Model, source: ir.Value, uses: list[Use], name: str) -> str:
    """Let `uses` read a copy of `source` that is called `name`."""
    copy = copy_weight(model, source, name)
    for node, position in uses:
        identity = node.inputs[position].producer()  # type: ignore[union-attr]
        node.replace_input_with(position, copy)
        while identity is not None and not identity.outputs[0].uses():
            before = identity.inputs[0]
            model.graph.remove(identity, safe=True)
            identity = before.producer() if before is not None else None
    return name


# -- layers without weights -------------------------------------------------------------


def _separate_fillers(model: Model, names: Builder) -> None:
    """Give normalizations that have no scale and shift ones and zeros of their own.

    ONNX's operators want both. The newer exporter writes constants for them, and merges those with
    the fresh weights of another layer.
    """
    for node in [n for n in model.graph if n.op_type in NORMALIZATIONS and n.domain == ""]:
        if not lacks_parameters(node):
            continue
        for position, slot in ((1, "scale"), (2, "shift")):
            source = node.inputs[position] if len(node.inputs) > position else None
            if source is None or source.const_value is None or len(source.uses()) < 2:
                continue
            name = names.fresh(f"{node.name or node.outputs[0].name}.{slot}")
            _copy(model, source, [(node, position)], name)
            copy = model.graph.initializers[name]
            copy.metadata_props.pop(TORCH_KIND, None)
            copy.metadata_props[KIND] = "constant"


# -- running statistics -----------------------------------------------------------------


def _merged_statistics(model: Model, names: Builder) -> Iterator[tuple[ir.Value, list[Use], str]]:
    """(tensor, readers, new name) for every statistic that is more than the statistic of a module.

    A module that is called twice has one statistic, which several nodes read.
    """
    separated: set[Use] = set()
    for node in model.graph:
        if node.op_type != "BatchNormalization" or node.domain != "":
            continue
        for position in (3, 4):
            value = node.inputs[position]
            source = _source(value)
            if value is None or source is None or (node, position) in separated:
                continue
            if value is not source:  # an Identity has the name that was lost
                uses: list[Use] = [u for u in value.uses() if _is_statistic(u)]
                name = value.name or "statistic"
                value.name = names.fresh(f"{name}/merged")
            else:
                uses = _uses_by_module(source, node, position)
                if len(uses) == len(source.uses()) or _is_own(source, uses):
                    continue
                owner = node.name or node.outputs[0].name
                name = names.fresh(f"{owner}.{'running_mean' if position == 3 else 'running_var'}")
            separated.update(uses)
            yield source, uses, name


def _uses_by_module(source: ir.Value, node: ir.Node, position: int) -> list[Use]:
    """The uses of a tensor as this statistic of the module that `node` is a call of.

    Calls of the newer exporter name the buffer. The older one has a name for every other tensor
    that is equal, so that direct readers read one. Where neither tells, a tensor that is nothing
    but this statistic stays one.
    """
    uses = source.uses()
    readers: list[Use] = [u for u in uses if _is_statistic(u) and u[1] == position]
    buffer = statistic(node, position)
    if buffer:
        return [u for u in readers if statistic(*u) == buffer]
    is_older = any(reader.op_type == "Identity" for reader, _ in uses)
    return readers if is_older or len(readers) == len(uses) else [(node, position)]


def _is_own(source: ir.Value, uses: list[Use]) -> bool:
    """Whether a tensor that several modules have as a statistic is named after that of `uses`."""
    names = {statistic(*use) for use in uses}
    return names == {spelled(source.name)} and all(map(_is_statistic, source.uses()))


def _repeated_statistics(model: Model, names: Builder) -> list[str]:
    """Separate statistics that are repeated for every row, as torch exports those of InstanceNorm.

    Equal tensors are merged first, then the nodes that repeat them.
    """
    copies = []
    for node in [n for n in model.graph if n.op_type == "BatchNormalization" and n.domain == ""]:
        for position in (3, 4):
            value = node.inputs[position]
            repeat = value.producer() if value is not None else None
            if value is None or repeat is None or repeat.op_type not in REPEATS:
                continue
            source = _source(repeat.inputs[0])
            readers = [u for u in value.uses() if not (_is_statistic(u) and u[1] == position)]
            if source is None or (not readers and len(source.uses()) == 1):
                continue
            owner = node.name or node.outputs[0].name
            name = names.fresh(f"{owner}.{'running_mean' if position == 3 else 'running_var'}")
            copy = copy_weight(model, source, name)
            own = ir.Node(
                "", repeat.op_type, [copy, *repeat.inputs[1:]], repeat.attributes.values(),
                outputs=[ir.Value(name=names.fresh(f"{name}/repeated"), type=value.type)],
                name=names.fresh(f"{name}/repeat"),
            )  # fmt: skip
            own.outputs[0].shape = value.shape
            model.graph.insert_before(node, own)
            node.replace_input_with(position, own.outputs[0])
            copies.append(name)
    return copies


def _is_statistic(use: Use) -> bool:
    node, position = use
    return node.op_type == "BatchNormalization" and node.domain == "" and position in (3, 4)


def _source(value: ir.Value | None) -> ir.Value | None:
    """The initializer behind a value, through any number of Identity nodes."""
    while value is not None and value.const_value is None:
        node = value.producer()
        value = node.inputs[0] if node is not None and node.op_type == "Identity" else None
    return value if value is not None and value.is_initializer() else None


# -- weights ----------------------------------------------------------------------------


def _merged_weights(model: Model, names: Builder) -> Iterator[tuple[ir.Value, list[Use], str]]:
    """(tensor, readers, new name) for weights that were equal and became one.

    The older exporter writes an Identity for them. It writes none for what is really shared, unless
    it computed the tensor for each call of the module, such as the transpose of a weight. In files
    of the newer one the modules of the readers decide: see NOTE [shared or merged].
    """
    sources = [
        source
        for weight in classified(model.graph)
        if weight.kind == "weight" and (source := model.graph.initializers.get(weight.name))
        if len(source.uses()) > 1
    ]
    copies = {pair for source in sources for pair in _copied_modules(source)}
    for source in sources:
        direct = [u for u in source.uses() if u[0].op_type != "Identity"]
        renamed = [u[0].outputs[0] for u in source.uses() if u[0].op_type == "Identity"]
        renamed = [v for v in renamed if v.uses() and not v.is_graph_output()]
        for value in renamed if direct else renamed[1:]:
            if _same_module(next(iter(direct or renamed[0].uses()))[0], value):
                continue
            name = value.name or "weight"
            value.name = names.fresh(f"{name}/merged")
            yield source, list(value.uses()), name
        for name, uses in _own_readers(source, copies):
            yield source, uses, names.fresh(name)


def _same_module(reader: ir.Node, computed: ir.Value) -> bool:
    """Whether a tensor that the older exporter computed is read by another call of the module that
    `reader` is in: its nodes are called "/a/b/MatMul" in the first call, "/a/b_1/MatMul" or
    "/a/b/MatMul_1" in the second.
    """
    if not COMPUTED.match(computed.name or ""):
        return False
    first = (reader.name or "").split("/")
    return any(
        len(path := (node.name or "").split("/")) == len(first) > 1
        and all(re.fullmatch(rf"{re.escape(a)}(_\d+)?", b) for a, b in zip(first, path))
        for node, _ in computed.uses()
    )


# NOTE [shared or merged]
# A fresh nn.TransformerEncoder consists of copies of one layer, so that whole layers are equal.
# torch's newer exporter lets `layers.1` read the tensors of `layers.0` then; it does the same for
# a layer that really is shared. The calls that it keeps beside the nodes name the parameters, and
# so decide. Where there are none, the names of tensors tell: equal tensors have the name of the
# first of them, a shared one has its last name. One such name decides for all tensors that the two
# layers share, also for those that the exporter computed and whose names are lost.


def _own_readers(
    source: ir.Value, copies: Collection[tuple[str, str]]
) -> Iterator[tuple[str, list[Use]]]:
    """Names of tensors that modules had of their own, with their uses of the one that was kept."""
    modules = _readers(source)
    first, owner = next(iter(modules), ""), _owner(source, modules)
    slot = (source.name or "").rpartition(".")[2]
    for module, uses in list(modules.items())[1:]:
        another = _names_another(source, modules[first], uses)
        if another is None and "" not in modules:
            shared = _siblings(module, owner) is not None or _siblings(first, owner) is not None
            another = _siblings(first, module) in copies or (is_uniform(source) and not shared)
        if another:
            name = f"{module}.{slot}" if _module(uses[0][0]) else module
            yield _own_name(source, modules[first][0][0], uses[0][0]) or name, uses


def _names_another(source: ir.Value, first: list[Use], uses: list[Use]) -> bool | None:
    """Whether the calls of `uses` name another parameter than this, which `first` reads; None where
    they do not tell.
    """
    before, after = ([set(parameters(node)) for node, _ in part] for part in (first, uses))
    if not all(before) or not all(after):
        return None
    name = spelled(source.name)
    if all(name in names for names in before + after):
        return False
    if all(name in names for names in before):
        return not any(name in names for names in after) or None
    graph = source.graph
    kept = {spelled(n) for n in graph.initializers} if graph is not None else set()
    unknown = [set.intersection(*part) - kept for part in (before, after)]
    if not all(unknown):
        return None
    return unknown[0].isdisjoint(unknown[1])


def _own_name(source: ir.Value, first: ir.Node, reader: ir.Node) -> str:
    """The name that the call of `reader` has for what the call of `first` has this tensor for."""
    before, after = parameters(first), parameters(reader)
    if len(before) != len(after) or spelled(source.name) not in before:
        return ""
    return respelled(after[before.index(spelled(source.name))], source.name or "")


def _copied_modules(source: ir.Value) -> Iterator[tuple[str, str]]:
    """Pairs such as ("layers.0", "layers.1"), whose tensors were merged because they are equal."""
    modules = _readers(source)
    owner = _owner(source, modules)
    pairs = (_siblings(owner, module) for module in modules)
    return (pair for pair in pairs if pair is not None)


def _owner(source: ir.Value, modules: Iterable[str]) -> str:
    """The module that a tensor is named after, among those that read it."""
    name = source.name or ""
    return next((m for m in modules if m and name.startswith(f"{m}.")), "")


def _siblings(first: str, second: str) -> tuple[str, str] | None:
    """The containers in which two modules are, if those differ in their number alone, the first
    one lower: ("layers.0", "layers.1") for "layers.0.norm" and "layers.1.norm".
    """
    parts = first.split("."), second.split(".")
    if len(parts[0]) != len(parts[1]):
        return None
    where = [i for i, (a, b) in enumerate(zip(*parts)) if a != b]
    if len(where) != 1 or not all(part[where[0]].isdecimal() for part in parts):
        return None
    if int(parts[0][where[0]]) > int(parts[1][where[0]]):
        return None
    end = where[0] + 1
    return ".".join(parts[0][:end]), ".".join(parts[1][:end])


def _readers(source: ir.Value) -> dict[str, list[Use]]:
    """The uses of a tensor by the module that they are in, or, outside of all modules, by the one
    parameter that their call names; Identity nodes left out.
    """
    modules: dict[str, list[Use]] = {}
    for node, position in source.uses():
        if node.op_type != "Identity":
            names = parameters(node)
            module = _module(node) or (names[0] if len(names) == 1 else "")
            modules.setdefault(module, []).append((node, position))
    return modules


def _module(node: ir.Node) -> str:
    """The path of the module that a node is in. Nodes that a rewrite of the exporter added, such as
    the Split of a bias for queries and keys, say nothing: the readers of what they move tell.
    """
    path = module_path(node)
    if path or node.op_type not in MOVES:
        return path
    paths: set[str] = set()
    pending, visited = [node], {node}
    while pending:
        readers = {r for output in pending.pop().outputs for r, _ in output.uses()} - visited
        visited |= readers
        for reader in readers:
            path = module_path(reader)
            if path:
                paths.add(path)
            elif reader.op_type in MOVES and len(visited) <= MAX_MOVES:
                pending.append(reader)
            else:
                return ""
    return paths.pop() if len(paths) == 1 else ""
