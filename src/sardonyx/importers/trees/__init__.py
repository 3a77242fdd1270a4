"""Decision trees, rules and tables of any source, as ai.onnx.ml `TreeEnsemble` in double precision.

forest.py   the form in memory: tests on columns, leaves with vectors of values, trees
emit.py     the form as nodes: the leaf that each tree reaches, or the sums of the leaves' values
order.py    the branches of a large forest in the order that onnxruntime walks fastest
alike.py    the rows of a batch in the order in which it walks fastest
"""

from __future__ import annotations

from sardonyx.importers.trees.alike import alike_rows
from sardonyx.importers.trees.emit import leaf_means, leaf_rows, leaf_sums
from sardonyx.importers.trees.forest import Forest

__all__ = ["Forest", "alike_rows", "leaf_means", "leaf_rows", "leaf_sums"]
