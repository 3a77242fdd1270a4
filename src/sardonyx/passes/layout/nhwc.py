"""A graph whose images have their channels last, as a standard ONNX file.

ONNX has no convolution with channels last. Each such node calls a function of the file instead, in
the domain `NHWC`: `Conv2D` takes and gives an image with its channels last, and its body is ONNX's
own operator between two Transposes. A runtime with kernels for channels last knows the function by
its name; every other runtime inlines the body.
"""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.passes.dead import remove_dead
from sardonyx.passes.layout.axes import LAST, rank_of, to_first, to_last
from sardonyx.passes.layout.plan import Demands, Plan, plan_layout
from sardonyx.passes.layout.rewrite import apply_layout

NHWC = "sardonyx.nhwc"
POOLS = frozenset(("Conv", "ConvTranspose", "MaxPool", "AveragePool"))
# Operators that have had these attributes in every version since 13.
KERNELS = POOLS | {
    *("LpPool", "LRN", "DepthToSpace", "SpaceToDepth"),
    *("InstanceNormalization", "BatchNormalization"),
}
DEMANDS = Demands(LAST, POOLS, frozenset(KERNELS), NHWC)
USUAL_INPUTS = {"Conv": 3, "ConvTranspose": 3}


def turn_images(model: ir.Model) -> Plan:
    """Rewrite the normalized graph of a model in place; nodes with channels last are in `NHWC`."""
    plan = plan_layout(model.graph, DEMANDS)
    apply_layout(model.graph, plan)
    remove_dead(model.graph)
    model.opset_imports[NHWC] = 1
    for node in model.graph:
        if node.domain == NHWC:
            _trim(node)
    return plan


def _trim(node: ir.Node) -> None:
    """Remove attributes that later versions added, where they say what earlier ones do."""
    node.attributes.pop("training_mode", None)
    dilations = node.attributes.get("dilations")
    is_pool = node.op_type in ("AveragePool", "LpPool")
    if is_pool and dilations is not None and all(d == 1 for d in dilations.value):
        node.attributes.pop("dilations")


def add_functions(model: ir.Model) -> None:
    """Add the functions that nodes of `NHWC` call, at the version that the model has."""
    for node in model.graph:
        if node.domain == NHWC:
            _call(model, node)


def _call(model: ir.Model, node: ir.Node) -> None:
    """Let a node call its function, which is added to the model where it is not there yet."""
    operator, rank = node.op_type, rank_of(node.inputs[0])
    count = len(node.inputs)
    arity = "" if count == USUAL_INPUTS.get(operator, count) else f"_{count}_inputs"
    extra = "".join(f"_{n}" for n in sorted(node.attributes) if n.startswith("output_"))
    names = sorted(node.attributes)
    name = f"{operator}{rank - 2}D{arity}{extra}"
    existing = model.functions.get((NHWC, name, ""))
    if existing is not None and sorted(existing.attributes) != names:
        name += "_" + "_".join(names)
        existing = model.functions.get((NHWC, name, ""))
    node.op_type = name
    if existing is None:
        function = _function(name, operator, node, rank, dict(model.opset_imports))
        model.functions[function.identifier()] = function


def _function(
    name: str, operator: str, node: ir.Node, rank: int, versions: dict[str, int]
) -> ir.Function:
    inputs = [ir.Value(name=f"input_{i}") for i in range(len(node.inputs))]
    first = ir.Node("", "Transpose", [inputs[0]], [ir.AttrInt64s("perm", to_first(rank))])
    settings = [ir.RefAttr(n, n, a.type) for n, a in node.attributes.items()]
    inner = ir.Node("", operator, [first.outputs[0], *inputs[1:]], settings)
    last = ir.Node("", "Transpose", [inner.outputs[0]], [ir.AttrInt64s("perm", to_last(rank))])
    values = (first.outputs[0], inner.outputs[0], last.outputs[0])
    for value, label in zip(values, ("image", "result", "output")):
        value.name = label
    graph = ir.Graph(
        inputs,
        [last.outputs[0]],
        nodes=[first, inner, last],
        opset_imports={"": versions.get("", 0)},
        name=name,
    )
    parameters = [ir.Attr(n, a.type, None) for n, a in node.attributes.items()]
    return ir.Function(NHWC, name, graph=graph, attributes=parameters)
