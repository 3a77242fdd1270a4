"""Upgrades: nodes written for an older opset become nodes of the internal one.

One small function per signature change, named after it (`softmax_11_13`), in opset order, in the
file of ONNX's family of the operator. A bump that only widens types, or adds an input or attribute
whose default means what the operator did before, has none. `driver.py` walks the graph and applies
them.
"""

from sardonyx.upgrades import (  # noqa: F401  (importing a family registers its adapters)
    controlflow,
    experimental,
    logical,
    math,
    nn,
    object_detection,
    reduction,
    rnn,
    tensor,
    traditionalml,
)
from sardonyx.upgrades.driver import upgrade_graph

__all__ = ["upgrade_graph"]
