"""tinygrad's runner of ONNX files; gradients by its own autograd."""

import os
import shutil
from importlib.metadata import version as version_of

# Its CPU needs a compiler; without one there is its emulator, slow and as exact.
os.environ.setdefault("DEV", "CPU" if shutil.which("clang") else "PYTHON")

import ml_dtypes
from tinygrad import Tensor, dtypes
from tinygrad.nn.onnx import OnnxRunner

# Its numpy() hands these over as float32.
NARROW = {
    dtypes.bfloat16: ml_dtypes.bfloat16,
    dtypes.fp8e4m3: ml_dtypes.float8_e4m3fn,
    dtypes.fp8e5m2: ml_dtypes.float8_e5m2,
    dtypes.fp8e4m3fnuz: ml_dtypes.float8_e4m3fnuz,
    dtypes.fp8e5m2fnuz: ml_dtypes.float8_e5m2fnuz,
}


def version():
    return version_of("tinygrad")


def run(model, inputs):
    return {name: _plain(value) for name, value in OnnxRunner(model)(inputs).items()}


def gradient(model, inputs, seeds, wrt):
    tensors = {n: Tensor(value) for n, value in inputs.items() if n in wrt}
    outputs = OnnxRunner(model)({**inputs, **tensors})
    objective = sum((outputs[name] * Tensor(seed)).sum() for name, seed in seeds.items())
    gradients = objective.gradient(*(tensors[name] for name in wrt))
    return {name: value.numpy() for name, value in zip(wrt, gradients)}


def _plain(value):
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if not isinstance(value, Tensor):
        return value
    array = value.numpy()
    return array.astype(NARROW[value.dtype]) if value.dtype in NARROW else array
