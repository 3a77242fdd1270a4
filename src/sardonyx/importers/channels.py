"""Sources with their channels last: Transposes that cancel out are removed from a whole import.

Rules of such sources write each of ONNX's operators between two Transposes.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from sardonyx.passes.cse import merge_common
from sardonyx.passes.dead import remove_dead
from sardonyx.passes.layout import FIRST, Demands, lay_out


def cancel_transposes(graph: ir.Graph, weights: Collection[str] = ()) -> None:
    """Give images ONNX's layout wherever that saves Transposes, in place.

    weights -- initializers that keep their names and their layout
    """
    lay_out(graph, Demands(FIRST), parameters=weights)
    merge_common(graph)
    remove_dead(graph, keep=weights)
