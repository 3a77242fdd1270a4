"""An ONNX model as Python source: torch modules that a person would keep and edit.

scopes → statements (`reading.py`) → modules (`structure.py`) → text (`forward.py`, `classes.py`).
No text of the model becomes code: names are rewritten into a fixed alphabet, numbers are printed.
"""

from __future__ import annotations

from sardonyx.engines.torch.source.write import to_torch_source

__all__ = ["to_torch_source"]
