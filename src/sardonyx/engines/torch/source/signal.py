"""How Fourier transforms are written: ONNX keeps complex numbers as pairs along a last axis."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.engines.torch.source.expression import PRODUCT, Expression, Size, binary, build
from sardonyx.engines.torch.source.reading import Reader, Unwritten, op


def _numbers(reader: Reader, x: ir.Value) -> tuple[Expression, bool]:
    """Real or complex numbers of torch, without the axis of pairs; whether they are complex."""
    pairs = reader.sizes(x)[-1]
    if pairs not in (1, 2):
        raise Unwritten("numbers that may be real or complex")
    text = "{0}.squeeze(-1)" if pairs == 1 else "torch.view_as_complex({0}.contiguous())"
    return build(text, x), pairs == 2


@op("DFT")
def dft(
    reader, node, x, dft_length = None, axis = None, *,
    inverse, onesided
):  # fmt: skip
    rank = reader.rank(x)
    place = (-2 if axis is None else int(reader.number(axis))) % rank
    data, is_complex = _numbers(reader, x)
    options = "" if place == rank - 2 else f", dim={place}"
    length: list[int | Size] = [] if dft_length is None else reader.listed(dft_length)
    options = f", n={{1}}{options}" if length else options
    if onesided and not inverse and is_complex:
        raise Unwritten("one side of a spectrum of complex numbers")
    name = ("i" if inverse else "") + ("rfft" if onesided else "fft")
    transformed = build(f"torch.fft.{name}({{0}}{options})", data, *length)
    if inverse and onesided:
        return build("{0}.unsqueeze(-1)", transformed)
    if inverse and not is_complex:
        transformed = build("{0}.resolve_conj()", transformed)
    return build("torch.view_as_real({0})", transformed)


@op("STFT")
def stft(
    reader, node, signal, frame_step, window = None,
    frame_length = None, *, onesided
):  # fmt: skip
    is_flat = reader.rank(signal) == 2  # exporters leave the axis of pairs out
    data, is_complex = (build("{0}", signal), False) if is_flat else _numbers(reader, signal)
    if onesided and is_complex:
        raise Unwritten("one side of a spectrum of complex numbers")
    if frame_length is None and window is None:
        raise Unwritten("frames of unknown length")
    length = reader.number(frame_length) if frame_length is not None else reader.sizes(window)[0]
    frames = build("{0}.unfold(1, {1}, {2})", data, length, int(reader.number(frame_step)))
    if window is not None:
        frames = binary("*", frames, window, PRODUCT)
    name = "rfft" if onesided else "fft"
    return build(f"torch.view_as_real(torch.fft.{name}({{0}}))", frames)
