"""A whole training as one ONNX model: writing it, and running it one epoch at a time."""
