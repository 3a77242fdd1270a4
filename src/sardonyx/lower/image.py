"""Lowerings of ONNX's family image: decoding, with Pillow, on the host in every engine."""

from __future__ import annotations

import io

import numpy as np

from sardonyx.errors import ArgumentError, MissingExtra
from sardonyx.lower.driver import lowering

MODES = {"RGB": "RGB", "BGR": "RGB", "Grayscale": "L"}


@lowering("ImageDecoder", only="numpy")
def image_decoder(xp, encoded_stream, *, pixel_format):
    try:
        import PIL.Image
    except ImportError as error:
        raise MissingExtra("pillow", "images") from error
    if pixel_format not in MODES:
        raise ArgumentError(f"ImageDecoder has no pixel_format {pixel_format!r}")
    image = PIL.Image.open(io.BytesIO(encoded_stream.tobytes())).convert(MODES[pixel_format])
    pixels = np.asarray(image)
    if pixel_format == "BGR":
        return pixels[:, :, ::-1]
    return pixels if pixel_format == "RGB" else pixels[:, :, None]
