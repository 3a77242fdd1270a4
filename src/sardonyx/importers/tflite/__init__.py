"""TensorFlow Lite files as ONNX models.

convert.py      `from_tflite`
reader.py       the file as plain records, within its bounds
driver.py       the walk over a graph; quantization
rules.py        the registry · elementwise.py, nn.py, shapes.py   rules by the names of operators
proof.py        the comparison with LiteRT
"""
