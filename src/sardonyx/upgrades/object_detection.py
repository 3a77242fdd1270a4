"""Adapters of ONNX's family `object_detection`, in opset order."""

from sardonyx.upgrades.driver import put, upgrade


@upgrade("RoiAlign", to=16)
def roialign_10_16(op, node):
    put(node, coordinate_transformation_mode="output_half_pixel")
