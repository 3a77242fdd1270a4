"""The served graph of a trainable model: the one that was loaded, node for node, at its opset.

A record is written against the normalized model. Here it is fitted to the model as it was loaded:
its nodes are lowered to that opset, and constants that only normalization made become its own.
Where that is impossible, the normalized graph is served instead, and the choices give the reason.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from sardonyx import opset, partial
from sardonyx.errors import VersionError, quote
from sardonyx.model import Model, Record
from sardonyx.passes.nesting import graphs, names
from sardonyx.record.describe import Choices
from sardonyx.versions import lowered_records
from sardonyx.versions.signatures import is_same_at

FIRST_IR_WITH_PLAIN_INITIALIZERS = 4
FIRST_IR_WITH_RECORDS = 7
HIGHEST_WORTH_A_TRY = 18  # nothing that records are written with is newer


def as_loaded(
    original: Model, base: Model, records: Sequence[Record], choices: Choices
) -> Model | None:
    """`original` with `records`, which were written against `base`, its normalized form; None
    where the normalized form has to be served.
    """
    reason = _obstacle(original, base, records)
    if reason is None:
        for version in _versions(original):
            fitted = _fitted(original, base, records, version)
            if fitted is not None:
                if version != original.opset:
                    choices.add("opset", f"{original.opset} → {version}", "for the record's nodes")
                return fitted
        reason = f"the record has no equivalent at opset {original.opset}"
    choices.add("served graph", f"rewritten at opset {base.opset}", reason)
    return None


def _obstacle(original: Model, base: Model, records: Sequence[Record]) -> str | None:
    """Why records of `base` cannot read the graph of `original`, if so."""
    defined, initializers = partial.named_values(original.graph), original.graph.initializers
    for record in records:
        for name, _ in (*record.update_binding, *record.initialization_binding):
            if name not in record.state and name not in initializers:
                return f"{quote(name)} is no initializer of the graph as it was loaded"
        for value in partial.free_values(record.algorithm):
            name, sources = value.name or "", (record.state, defined, base.graph.initializers)
            if not any(name in names for names in sources):
                return f"{quote(name)} is computed inside a function or a node"
        domains = {n.domain for g in record.graphs for part in graphs(g) for n in part}
        for domain in domains - {"", opset.TRAINING_DOMAIN}:
            if original.ir.opset_imports.get(domain) != base.ir.opset_imports.get(domain):
                return f"the record has operators of {domain} at another version"
    return None


def _versions(original: Model) -> list[int]:
    """Its own opset, then those above it at which its nodes are what they are now."""
    functions = (function.graph for function in original.ir.functions.values())
    records = (graph for record in original.records for graph in record.graphs)
    every = (original.graph, *functions, *records)
    nodes = [n for g in every for part in graphs(g) for n in part if n.domain == ""]
    versions = [original.opset]
    for version in range(original.opset + 1, HIGHEST_WORTH_A_TRY + 1):
        if original.ir.functions or not all(is_same_at(n, original.opset, version) for n in nodes):
            break
        versions.append(version)
    return versions


def _free_name(name: str, taken: set[str]) -> str:
    """`name`, or a new one where the graph as it was loaded has something else of this name."""
    while name in taken:
        name = f"{name}_"
    return name


def _fitted(original: Model, base: Model, records: Sequence[Record], version: int) -> Model | None:
    complete, defined = [], partial.named_values(original.graph)
    taken = names(original.graph)
    for record in records:
        copy = record.copy()
        free: dict[str, list[ir.Value]] = {}
        for value in partial.free_values(copy.algorithm):
            if value.name not in defined and value.name not in copy.state:
                free.setdefault(value.name or "", []).append(value)
        for name, values in free.items():
            new = _free_name(name, taken)  # a body of the original may have a constant of this name
            copy.state[new] = base.initializer(name)
            for value in values:
                value.name = new
        complete.append(copy)
    try:
        lowered = lowered_records(complete, base, original, version)
    except VersionError:
        return None
    served = original.copy()
    served.records = [*served.records, *lowered]
    served.ir.opset_imports[""] = version
    served.ir.opset_imports.pop("ai.onnx", None)
    if (served.ir.ir_version or 0) < FIRST_IR_WITH_PLAIN_INITIALIZERS:
        inputs = served.inputs
        served.graph.inputs.clear()
        served.graph.inputs.extend(inputs)
    served.ir.ir_version = max(served.ir.ir_version or 0, FIRST_IR_WITH_RECORDS)
    return served
