"""torchvision's transforms as the preprocessing of images that a model stores.

The deterministic transforms of evaluation are read: Resize, CenterCrop, ToTensor and its parts,
Normalize, and the presets of torchvision's weights. Random ones change training data; they have no
place in a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sardonyx.errors import ArgumentError

NOTHING = ("ToImage", "ToPILImage", "ToPureTensor", "Identity")
TO_TENSOR = ("ToImage", "ToTensor", "PILToTensor")  # Resize of a tensor rounds otherwise


def is_transform(settings: Any) -> bool:
    return type(settings).__module__.startswith("torchvision.transforms")


def settings_of(transform: Any) -> dict[str, Any]:
    """The settings of `Preprocessing` that a transform of torchvision means."""
    settings: dict[str, Any] = {"scale": 1.0}
    problems: list[list[str]] = []
    is_tensor = False
    for step in _steps(transform):
        kind = type(step).__name__
        is_tensor = is_tensor or kind in TO_TENSOR
        problem: str | None
        if kind == "Resize" and is_tensor:
            problem = "resizes a tensor; put it before the picture becomes one"
        elif kind in READERS and not _is_late(kind, settings):
            problem = READERS[kind](step, settings)
        elif kind in NOTHING:
            problem = None
        else:
            problem = "comes too late" if kind in READERS else "has no rule"
        if problem:
            problems.append([kind, problem])
    if problems:
        raise ArgumentError(
            "the transforms are not those that a model can store",
            problems,
            hint="Resize, CenterCrop, ToTensor and Normalize are; random transforms belong into "
            "the data set",
        )
    return settings


def _steps(transform: Any) -> Sequence[Any]:
    return list(transform.transforms) if hasattr(transform, "transforms") else [transform]


def _is_late(kind: str, settings: dict[str, Any]) -> bool:
    """Whether a transform of pictures comes after one of numbers, or a resize after the crop."""
    if kind in ("Resize", "CenterCrop", "ImageClassification") and settings.get("mean"):
        return True
    return kind == "Resize" and ("center" in settings or "resize" in settings)


def _numbers(value: Any) -> tuple[int, ...]:
    return (int(value),) if isinstance(value, int) else tuple(int(v) for v in value)


def _resize(step: Any, settings: dict[str, Any]) -> str | None:
    if getattr(step, "max_size", None) is not None:
        return "max_size has no rule"
    settings["resize"] = _numbers(step.size)
    return _interpolation(step, settings)


def _interpolation(step: Any, settings: dict[str, Any]) -> str | None:
    name = str(getattr(step.interpolation, "value", step.interpolation))
    if name not in ("bilinear", "bicubic", "nearest", "lanczos"):
        return f"the interpolation {name} has no rule"
    settings["interpolation"] = name
    return None


def _center_crop(step: Any, settings: dict[str, Any]) -> str | None:
    size = _numbers(step.size)
    settings["center"] = size if len(size) == 2 else size * 2
    return None


def _to_tensor(step: Any, settings: dict[str, Any]) -> str | None:
    settings["scale"] = 1 / 255
    return None


def _to_type(step: Any, settings: dict[str, Any]) -> str | None:
    dtype = getattr(step, "dtype", None)
    if "float32" not in str(dtype):
        return f"{dtype} is not float32"
    if type(step).__name__ == "ConvertImageDtype" or getattr(step, "scale", False):
        settings["scale"] = 1 / 255
    return None


def _normalize(step: Any, settings: dict[str, Any]) -> str | None:
    if settings.get("mean"):
        return "is there twice"
    settings["mean"] = tuple(float(v) for v in step.mean)
    settings["std"] = tuple(float(v) for v in step.std)
    return None


def _preset(step: Any, settings: dict[str, Any]) -> str | None:
    """`weights.transforms()`: resize, crop, scale and normalize at once."""
    settings["resize"], size = _numbers(step.resize_size), _numbers(step.crop_size)
    settings["center"] = size if len(size) == 2 else size * 2
    settings["scale"] = 1 / 255
    return _normalize(step, settings) or _interpolation(step, settings)


READERS = {
    "Resize": _resize,
    "CenterCrop": _center_crop,
    "ToTensor": _to_tensor,
    "PILToTensor": lambda step, settings: None,
    "ConvertImageDtype": _to_type,
    "ToDtype": _to_type,
    "Normalize": _normalize,
    "ImageClassification": _preset,
}
