"""Adapters of ONNX's family `traditionalml` (domain `ai.onnx.ml`), in the order of its versions."""

import onnx_ir as ir

from sardonyx.upgrades.driver import put, take, upgrade


@upgrade("LabelEncoder", to=2, domain="ai.onnx.ml", shapes=True)
def labelencoder_1_2(op, node):
    classes = take(node, "classes_strings", ())
    dtype = node.inputs[0].dtype
    if dtype == ir.DataType.STRING or (dtype is None and "default_int64" in node.attributes):
        take(node, "default_string")
        put(node, keys_strings=classes, values_int64s=range(len(classes)))
    else:
        take(node, "default_int64")
        put(node, keys_int64s=range(len(classes)), values_strings=classes)
