"""Images of Keras that are enlarged or resized, as Resize.

JAX multiplies by matrices of weights, which it has to compute for free sizes; repeated pixels are
a broadcast and a reshape for each axis.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import onnx_ir as ir

from sardonyx.importers.jax.calls import MARKED
from sardonyx.importers.jax.writer import Writer
from sardonyx.importers.keras.replaced import replaced

RESIZE = "keras_resize"
NEAREST, LINEAR, CUBIC = range(3)
METHODS = {"linear": LINEAR, "bilinear": LINEAR, "cubic": CUBIC, "bicubic": CUBIC}
# Keys's cubic kernel, as JAX has it; what lies outside of the image has no weight.
ATTRIBUTES: tuple[dict[str, Any], ...] = (
    {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    {"mode": "linear", "coordinate_transformation_mode": "half_pixel"},
    {
        "mode": "cubic", "coordinate_transformation_mode": "half_pixel", "cubic_coeff_a": -0.5,
        "exclude_outside": 1,
    },
)  # fmt: skip
MOST = 16  # times larger


@contextlib.contextmanager
def resizing_marks() -> Iterator[None]:
    """Within this, resized images and repeated pixels are traced as calls with a mark."""
    layers = keras.layers
    with contextlib.ExitStack() as stack:
        stack.enter_context(replaced(jax.image, "resize", _resize_or(jax.image.resize)))
        for layer in (layers.UpSampling1D, layers.UpSampling2D, layers.UpSampling3D):
            stack.enter_context(replaced(layer, "call", _repeated_or(layer.call)))
        yield


def _repeated_or(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, inputs: Any) -> Any:
        from sardonyx.importers.keras.marks import marked

        size = self.size if isinstance(self.size, (list, tuple)) else [self.size]
        is_plain = getattr(self, "interpolation", "nearest") == "nearest"
        if not is_plain or inputs.dtype != jnp.float32:
            return original(self, inputs)
        is_last = getattr(self, "data_format", "channels_last") == "channels_last"
        factors = {f"by{a + (1 if is_last else 2)}": int(n) for a, n in enumerate(size) if n != 1}
        if not factors:
            return inputs
        return marked(RESIZE, lambda x: original(self, x), method=NEAREST, **factors)(inputs)

    return call


def _resize_or(original: Callable[..., Any]) -> Callable[..., Any]:
    def resize(
        image: Any, shape: Sequence[Any], method: Any, antialias: bool = True, **options: Any
    ) -> Any:
        from sardonyx.importers.keras.marks import marked

        number = METHODS.get(getattr(method, "name", str(method)).lower())
        sizes = _settings(image, shape, antialias)
        if number is None or sizes is None or options or image.dtype != jnp.float32:
            return original(image, shape, method, antialias, **options)

        def function(x: Any) -> Any:
            return original(x, shape, method, antialias)

        return marked(RESIZE, function, method=number, **sizes)(image)

    return resize


def _settings(image: Any, shape: Sequence[Any], antialias: bool) -> dict[str, int] | None:
    """By how much, or to what size, each axis changes; None where Resize does something else."""
    if image.ndim != 4 or len(shape) != 4:
        return None
    settings: dict[str, int] = {}
    for axis, (old, new) in enumerate(zip(image.shape, shape, strict=True)):
        if old is new or old == new:
            continue
        factor = next((n for n in range(2, MOST + 1) if new == n * old), None)
        if factor is not None:
            settings[f"by{axis}"] = factor
        elif isinstance(new, (int, np.integer)):
            if antialias and not (isinstance(old, int) and new >= old):
                return None
            settings[f"to{axis}"] = int(new)
        else:
            return None
    return settings if len(settings) in (1, 2) else None


def resize(op: Writer, x: ir.Value, *, method: float, **settings: float) -> ir.Value:
    numbers = {int(k[2:]): int(v) for k, v in settings.items()}
    axes = sorted(numbers)
    rank = len(x.meta["aval"].shape)
    if rank == 4 and len(axes) == 1:  # onnxruntime resizes two axes of an image
        axes = sorted({*axes, 2 if axes[0] != 2 else 1})
    order = [*(a for a in range(rank) if a not in axes), *axes]
    image = op.transpose(x, order)
    scales = sizes = None
    if all(key.startswith("by") for key in settings):
        scales = op.const(np.array([numbers.get(a, 1) for a in order], np.float32))
    else:
        shape = x.meta["aval"].shape
        goals = [
            numbers[a] * shape[a] if f"by{a}" in settings else numbers.get(a, shape[a])
            for a in order
        ]
        sizes = op.vector(goals)
    y = op.Resize(image, None, scales, sizes, **ATTRIBUTES[int(method)])
    return op.transpose(y, np.argsort(order).tolist())


MARKED[RESIZE] = resize
