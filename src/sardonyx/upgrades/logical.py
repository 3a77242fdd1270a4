"""Adapters of ONNX's family `logical`, in opset order."""

from sardonyx.upgrades.driver import upgrade
from sardonyx.upgrades.math import broadcast_1_7

upgrade("And", "Or", "Xor", "Equal", "Greater", "Less", to=7, shapes=True)(broadcast_1_7)
