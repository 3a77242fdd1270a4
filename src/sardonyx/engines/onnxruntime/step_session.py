"""How a step is run: one session optimizes it, a second one runs the optimized graph, rearranged.

The second session optimizes nothing, so that the order of nodes, writing in place and recomputation
stay as they are arranged between the two.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx.shape_inference import infer_shapes

from sardonyx.engines.c_library import find_compiler
from sardonyx.engines.onnxruntime import extensions
from sardonyx.engines.onnxruntime.blocks import update_in_blocks
from sardonyx.engines.onnxruntime.dense import block_dense
from sardonyx.engines.onnxruntime.depthwise import DOMAIN, block_depthwise
from sardonyx.engines.onnxruntime.fold import fold_batches
from sardonyx.engines.onnxruntime.in_place import write_in_place
from sardonyx.engines.onnxruntime.kernels.convolutions import can_transform
from sardonyx.engines.onnxruntime.kernels.fusion import fuse
from sardonyx.engines.onnxruntime.post_optimize import remove_copies, unfold_constants
from sardonyx.engines.onnxruntime.recompute import recompute
from sardonyx.engines.onnxruntime.schedule import arranged, places
from sardonyx.engines.onnxruntime.session import INLINE_LIMIT, open_session, payload, session
from sardonyx.engines.onnxruntime.updates import put_back, take_updates
from sardonyx.model import Model
from sardonyx.passes.dead import remove_dead
from sardonyx.record.step import StepGraph
from sardonyx.save import full_disk_reported
from sardonyx.versions import fit

REWRITES = {  # what can be left out of a step, to find an error
    "blocks": "updates of large variables block by block (blocks.py)",
    "dense": "other convolutions in blocks of channels (dense.py)",
    "depthwise": "depthwise convolutions in blocks of channels (depthwise.py)",
    "kernels": "elementwise operators and sums in compiled kernels of our own (kernels/)",
}
CPU = "CPUExecutionProvider"
OLDEST = 15  # the opset from which on the nodes that are added here exist
# Options that decide how a graph is optimized or ordered: where one is set, nothing is arranged.
DECIDED = ("optimized_model_filepath", "execution_order", "execution_mode")
AS_IT_STANDS = {
    "graph_optimization_level": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "execution_order": ort.ExecutionOrder.PRIORITY_BASED,
    # A planned reuse of buffers keeps them longer than the arena does, which frees at once.
    "enable_mem_reuse": False,
    # A run that is stopped on purpose (`in_place.py`) is no error to print.
    "log_severity_level": 4,
}


@dataclass
class StepSession:
    """A session that runs a step.

    in_place -- the variables that it writes over
    blocks   -- variable → the shape of blocks in which its new value comes
    """

    session: ort.InferenceSession
    in_place: set[str] = field(default_factory=set)
    blocks: dict[str, tuple[int, ...]] = field(default_factory=dict)


def plain_session(graph: StepGraph, settings: Mapping[str, Any]) -> StepSession:
    """The step as onnxruntime arranges it: every update goes to a buffer of its own."""
    options = settings.get("options") or {}
    if not graph.updates:  # an evaluation, in the layout of the steps
        options = {"graph_optimization_level": level(graph.model.graph), **options}
    return StepSession(session(graph.model, **{**settings, "options": options}))


def arranged_session(
    graph: StepGraph,
    settings: Mapping[str, Any],
    again: bool = False,
    without: Collection[str] = (),
) -> StepSession:
    """The step arranged for little memory; large variables are written in place.

    again   -- values of the forward pass are computed again rather than kept (`recompute.py`)
    without -- the rewrites of `REWRITES` that are left out
    """
    if not graph.updates or not _can_be_arranged(graph, settings):
        return plain_session(graph, settings)
    written = _fitted_copy(graph.model)
    compiles = "kernels" not in without and find_compiler() is not None
    blocks = _rewrite(written, graph, settings, without, compiles)
    position = {v.name: float(i) for i, n in enumerate(written.graph) for v in n.outputs if v.name}
    updates = take_updates(written.graph, graph.updates.values())
    step = _optimized(written, settings)
    put_back(step.graph, updates)
    unfold_constants(step.graph)
    remove_copies(step.graph)
    fold_batches(step.graph, can_transform if compiles else _none)
    libraries = extensions.libraries(graph.model)
    if compiles and (library := fuse(step.graph, settings.get("threads"))) is not None:
        libraries = [*libraries, library]
    place = places(step.graph, position)
    if again:
        _arrange(step.graph, place)
        recompute(step.graph, graph.metrics)
        place = {node: float(i) for i, node in enumerate(step.graph)}
    in_place = write_in_place(step.graph, graph.updates, graph.metrics)
    _arrange(step.graph, place)
    options = {**(settings.get("options") or {}), **AS_IT_STANDS}
    data = ir.serde.serialize_model(step).SerializeToString()
    arranged_settings = {**settings, "options": options, "libraries": libraries}
    return StepSession(open_session(data, **arranged_settings), in_place, blocks)


def _fitted_copy(model: Model) -> Model:
    """A step at versions that onnxruntime takes and that have the nodes which are added here."""
    fitted = fit(model)
    if fitted.opset < OLDEST:
        fitted = fit(model, opset=OLDEST)
    return fitted.copy() if fitted is model else fitted


def _none(node: ir.Node) -> bool:
    """No convolution is computed by a kernel of our own."""
    return False


def _rewrite(
    written: Model,
    graph: StepGraph,
    settings: Mapping[str, Any],
    without: Collection[str],
    compiles: bool,
) -> dict[str, tuple[int, ...]]:
    """Apply the rewrites in place; variable → the shape of blocks in which its new value comes.

    compiles -- whether kernels of our own compute some of it afterwards
    """
    rewritten = "depthwise" not in without and block_depthwise(written.graph)
    taken = can_transform if compiles else _none
    rewritten = ("dense" not in without and block_dense(written.graph, taken)) or rewritten
    if rewritten:
        remove_dead(written.graph)
        written.ir.graph.opset_imports[DOMAIN] = 1
    if "blocks" in without or compiles:
        return {}
    threads = settings.get("threads") or os.cpu_count() or 1
    return update_in_blocks(written.graph, graph.updates, threads)


def _arrange(graph: ir.Graph, place: Mapping[ir.Node, float]) -> None:
    graph.sort()
    order = arranged(graph, place)
    graph.remove(order)
    graph.extend(order)


def _can_be_arranged(graph: StepGraph, settings: Mapping[str, Any]) -> bool:
    alone = list(settings.get("providers") or [CPU]) == [CPU]
    free = not any(name in DECIDED for name in settings.get("options") or {})
    return alone and free and payload(graph.model) < INLINE_LIMIT


def _optimized(step: Model, settings: Mapping[str, Any]) -> ir.Model:
    """What onnxruntime makes of a step."""
    with tempfile.TemporaryDirectory() as folder, full_disk_reported(folder):
        path = Path(folder) / "step.onnx"
        options = {
            "graph_optimization_level": level(step.graph),
            **(settings.get("options") or {}),
            "optimized_model_filepath": str(path),
            "session.disable_prepacking": "1",
        }
        session(step, **{**settings, "options": options})
        # onnxruntime leaves out the shapes of what it has put in: Gemm for MatMul and Add, Split
        return ir.serde.deserialize_model(infer_shapes(onnx.load(path)))


def level(graph: ir.Graph) -> ort.GraphOptimizationLevel:
    """Layouts of images pay where a kernel is a constant; else they only add nodes that copy."""
    frozen = any(
        node.op_type == "Conv" and node.inputs[1] is not None and node.inputs[1].is_initializer()
        for node in graph
        if not (node.name or "").startswith("grad/")  # a gradient gathers windows by a constant
    )
    levels = ort.GraphOptimizationLevel
    return levels.ORT_ENABLE_ALL if frozen else levels.ORT_ENABLE_EXTENDED
