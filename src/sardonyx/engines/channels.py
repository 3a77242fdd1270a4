"""Models whose images have their channels last, for engines whose kernels want them so."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from sardonyx.lower.driver import attributes
from sardonyx.model import Model
from sardonyx.normalize import NormalizedModel
from sardonyx.passes.layout import Demands, Plan, lay_out


def channels_last(
    model: Model, demands: Demands, parameters: Collection[str] = ()
) -> NormalizedModel:
    """A copy of a normalized model, rewritten to the layout plan of an engine's demands.

    parameters -- initializers that are no constants: what trains
    """
    copy = model.copy()
    turn_channels(copy, demands, parameters)
    return NormalizedModel.of(copy)


def turn_channels(
    model: Model,
    demands: Demands,
    parameters: Collection[str] = (),
    turned: Collection[str] = (),
) -> Plan:
    """The same in place, and its plan.

    turned -- inputs and outputs of the model that get channels last
    """
    model.ir.opset_imports[demands.domain] = 1
    plan = lay_out(model.graph, demands, parameters=parameters, turned=turned)
    for node in model.graph:
        if node.domain == demands.domain:
            write_defaults(node)
    return plan


def write_defaults(node: ir.Node) -> None:
    """Operators of the engine's domain have no schema that would say what is omitted."""
    standard = ir.Node("", node.op_type, [], node.attributes.values())
    settings = {n: v for n, v in attributes(standard).items() if v is not None}
    node.attributes.update({a.name: a for a in ir.convenience.convert_attributes(settings)})
