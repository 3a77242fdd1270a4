"""onnx2tf: the model as one of Keras; inputs keep ONNX's order of axes."""

import contextlib
import io
import tempfile
from importlib.metadata import version as version_of

import numpy
import onnx
import onnx2tf


def version():
    return version_of("onnx2tf")


def run(model, inputs):
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        converted = onnx2tf.convert(
            input_onnx_file_path=model,
            output_folder_path=folder,
            keep_shape_absolutely_input_names=list(inputs),
            disable_model_save=True,
            non_verbose=True,
        )
    found = converted(list(inputs.values()))
    found = found if isinstance(found, (list, tuple)) else [found]
    count = len(onnx.load(model).graph.output)
    return [numpy.asarray(value) for value in found[:count]]
