"""onnx2tf: the model as one of Keras.

Inputs keep ONNX's order of axes, by its own option. Outputs come with the channels last, which is
what the converter is for: where a shape shows that, they are moved back.
"""

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
    said = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(said):
        try:
            converted = onnx2tf.convert(
                input_onnx_file_path=model,
                output_folder_path=folder,
                keep_shape_absolutely_input_names=list(inputs),
                disable_model_save=True,
                verbosity="error",
            )
        except SystemExit:  # it prints what is wrong, and leaves
            lines = [line for line in said.getvalue().splitlines() if "ERROR" in line]
            raise RuntimeError(lines[-1] if lines else said.getvalue()[-300:]) from None
    found = converted(list(inputs.values()))
    found = found if isinstance(found, (list, tuple)) else [found]
    declared = onnx.load(model).graph.output
    return [_channels_first(numpy.asarray(v), d) for v, d in zip(found, declared)]


def _channels_first(value, declared):
    shape = tuple(d.dim_value for d in declared.type.tensor_type.shape.dim)
    if value.ndim in (3, 4, 5) and value.shape != shape:
        moved = numpy.moveaxis(value, -1, 1)
        return moved if moved.shape == shape else value
    return value
