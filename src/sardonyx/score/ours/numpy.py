"""sardonyx on numpy: gradients as ONNX models."""

from sardonyx.score import ours
from sardonyx.score.ours import used  # noqa: F401  (the worker asks for it)

version, run, train = ours.functions("numpy")
gradient = ours.onnx_gradient("numpy")
