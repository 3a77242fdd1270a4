"""PyTorch: modules, exported programs and their training become ONNX models.

`convert.py` has `from_torch`. The forward pass is captured by `torch.export` and translated by
torch's own ONNX exporter (`capture.py`, `translate.py`), with translations of our own for what
training needs unfolded (`operators.py`, `recurrent.py`). The user's loss, optimizer and scheduler
become the training record (`loss.py`, `optimizers.py`, `schedulers.py`).
"""

from __future__ import annotations
