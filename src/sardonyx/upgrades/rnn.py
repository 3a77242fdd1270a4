"""Adapters of ONNX's family `rnn`, in opset order."""

from sardonyx.upgrades.driver import put, take, upgrade


@upgrade("GRU", to=3)
def gru_1_3(op, node):
    if take(node, "direction") in (None, "foward"):  # the schema of version 1 misspells its default
        put(node, direction="forward")


@upgrade("RNN", "LSTM", "GRU", to=7)
def rnn_1_7(op, node):
    take(node, "output_sequence")  # it only allowed to leave the first output out
