"""TensorFlow Lite files as ONNX models.

convert.py      `from_tflite`
reader.py       the file as plain records, within its bounds
driver.py       the walk over a graph; quantization
rules.py        the registry; the other files have rules by the names of operators
proof.py        the comparison with LiteRT · replay.py   operators one by one
"""
