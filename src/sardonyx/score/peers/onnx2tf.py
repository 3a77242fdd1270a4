"""onnx2tf: the model as one of Keras.

Inputs keep ONNX's order of axes, by its own option. Outputs come with the channels last, which is
what the converter is for: where a shape shows that, they are moved back.
"""

import contextlib
import io
import re
import tempfile
from importlib.metadata import version as version_of

import numpy
import onnx
import onnx2tf

# It compares with sample images, which it looks for here before it asks the network: any will do.
SAMPLES = "calibration_image_sample_data_20x128x128x3_float32.npy"
numpy.save(SAMPLES, numpy.random.default_rng(0).random((20, 128, 128, 3), numpy.float32))


def version():
    return version_of("onnx2tf")


def run(model, inputs):
    log = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(log):
        try:
            converted = onnx2tf.convert(
                input_onnx_file_path=model,
                output_folder_path=folder,
                keep_shape_absolutely_input_names=list(inputs),
                disable_model_save=True,
                verbosity="error",
            )
        except SystemExit:
            raise RuntimeError(_reason(log.getvalue())) from None
    outputs = converted(list(inputs.values()))
    outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    declared = onnx.load(model).graph.output
    return [_channels_first(numpy.asarray(v), d) for v, d in zip(outputs, declared)]


def _reason(log):
    """Why it left: it prints what is wrong, then advice, in colours."""
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in log.splitlines()]
    errors = [line.partition("ERROR:")[2].strip() for line in lines if "ERROR:" in line]
    return errors[0] if errors else " ".join(lines)[-300:] or "it left without a word"


def _channels_first(value, declared):
    shape = tuple(d.dim_value for d in declared.type.tensor_type.shape.dim)
    if value.ndim in (3, 4, 5) and value.shape != shape:
        moved = numpy.moveaxis(value, -1, 1)
        return moved if moved.shape == shape else value
    return value
