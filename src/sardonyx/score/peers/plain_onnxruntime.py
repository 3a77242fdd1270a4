"""onnxruntime, as it comes."""

import onnxruntime


def version():
    return onnxruntime.__version__


def run(model, inputs):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)
