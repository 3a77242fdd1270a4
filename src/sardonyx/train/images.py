"""Images: how a picture becomes numbers, and a folder of pictures as a table.

The preprocessing is stored in the trained model with the names of the classes, so that evaluation
and prediction prepare pictures as training did.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx.errors import ArgumentError, DataError, MissingExtra, did_you_mean, quote
from sardonyx.model import Model
from sardonyx.train.tables import Rows, Table
from sardonyx.train.transforms import is_transform, settings_of

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm")
STORED = "sardonyx.images"
CHANNELS = (1, 3)


@dataclass(frozen=True)
class Preprocessing:
    """How a picture becomes numbers: crop, resize, then `(pixel * scale - mean) / std`.

    scale     -- what pixels from 0 to 255 are multiplied by
    mean, std -- one number for each channel, after scaling; not applied if empty
    crop      -- the share of the shorter side that a centred square keeps (0.875 for most ImageNet
                 models); without it, the whole picture is stretched to the size
    order     -- "RGB" or "BGR"
    size      -- height and width, for a model that takes any; otherwise the model's
    resize    -- before all else: the length of the shorter side, or height and width
    center    -- then: height and width of the part in the middle that is kept
    interpolation -- of both: "bilinear", "bicubic", "nearest" or "lanczos"

    `resize` and `center` are torchvision's Resize and CenterCrop, pixel for pixel.
    """

    scale: float = 1 / 255
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    crop: float | None = None
    order: str = "RGB"
    size: tuple[int, int] | None = None
    resize: tuple[int, ...] = ()
    center: tuple[int, int] | None = None
    interpolation: str = "bilinear"

    def __str__(self) -> str:
        resized = "stretched" if self.crop is None else f"{self.crop:g} of the centre"
        steps = [resized if self.size is None else f"{resized} to {self.size[0]} × {self.size[1]}"]
        if self.resize:
            steps.insert(0, f"resize {list(self.resize)} ({self.interpolation})")
        if self.center:
            steps.insert(1 if self.resize else 0, f"centre {list(self.center)}")
        steps.append(f"scale {self.scale:.6g}")
        steps += [f"{n} {list(v)}" for n in ("mean", "std") if (v := getattr(self, n))]
        return ", ".join([*steps, *([self.order] if self.order != "RGB" else [])])

    def __call__(self, picture: Any, channels: int, last: bool) -> np.ndarray:
        """The numbers of a picture of PIL, channels first or last."""
        mode = "L" if channels == 1 else "RGB"
        if self.resize or self.center:
            picture = self.resized(picture.convert(mode))
        if self.crop is not None:
            picture = _centre(picture, self.crop)
        picture = picture.convert(mode)
        if self.size is not None and picture.size != self.size[::-1]:
            picture = picture.resize(self.size[::-1], self.resampling)
        pixels: np.ndarray = np.asarray(picture, np.float32)
        pixels = pixels[:, :, None] if channels == 1 else pixels
        if self.order == "BGR":
            pixels = pixels[:, :, ::-1]
        # 1/255 is no float32: dividing by 255 is exact where multiplying is not
        pixels = (
            pixels / np.float32(255) if self.scale == 1 / 255 else pixels * np.float32(self.scale)
        )
        if self.mean:
            pixels = pixels - np.asarray(self.mean, np.float32)
        if self.std:
            pixels = pixels / np.asarray(self.std, np.float32)
        return np.ascontiguousarray(pixels if last else pixels.transpose(2, 0, 1))

    @property
    def resampling(self) -> Any:
        from PIL import Image

        return Image.Resampling[self.interpolation.upper()]

    def resized(self, picture: Any) -> Any:
        """The picture as torchvision's Resize and CenterCrop leave it."""
        width, height = picture.size
        if len(self.resize) == 1:
            (side,) = self.resize
            if width <= height:
                width, height = side, int(side * height / width)
            else:
                width, height = int(side * width / height), side
        elif self.resize:
            height, width = self.resize
        if (width, height) != picture.size:
            picture = picture.resize((width, height), self.resampling)
        if self.center is None:
            return picture
        tall, wide = self.center
        if tall > height or wide > width:
            raise DataError(
                f"a picture of {height} × {width} pixels is smaller than the centre of "
                f"{tall} × {wide}",
                hint="resize pictures before the centre is taken",
            )
        top, left = round((height - tall) / 2.0), round((width - wide) / 2.0)
        return picture.crop((left, top, left + wide, top + tall))


PRESETS = {
    "imagenet": Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), crop=0.875),
    "pixels": Preprocessing(scale=1.0),
}


def _centre(picture: Any, share: float) -> Any:
    width, height = picture.size
    side = max(round(min(width, height) * share), 1)
    left, top = (width - side) // 2, (height - side) // 2
    return picture.crop((left, top, left + side, top + side))


def as_preprocessing(settings: Any) -> Preprocessing:
    """Preprocessing out of a preset's name, settings by name, or torchvision's transforms."""
    if isinstance(settings, Preprocessing):
        return settings
    if is_transform(settings):
        settings = settings_of(settings)
    if isinstance(settings, str):
        if settings not in PRESETS:
            raise ArgumentError(
                f"no preprocessing is called {settings!r}", hint=did_you_mean(settings, PRESETS)
            )
        return PRESETS[settings]
    names = [f.name for f in fields(Preprocessing)]
    unknown = [[quote(n), did_you_mean(n, names)] for n in settings if n not in names]
    if unknown:
        raise ArgumentError("the preprocessing of images has no such settings", unknown)
    try:
        values = {n: _plain(n, v) for n, v in settings.items()}
        _check(preprocessing := Preprocessing(**values))
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"cannot read the preprocessing of images: {error}") from error
    return preprocessing


def _plain(name: str, value: Any) -> Any:
    if value is None or name in ("order", "interpolation"):
        return value
    if name in ("scale", "crop"):
        return float(value)
    numbers = [value] if np.ndim(value) == 0 else list(value)
    if name == "resize":
        return tuple(int(v) for v in numbers)
    if name in ("size", "center"):
        height, width = numbers if len(numbers) == 2 else numbers * 2
        return int(height), int(width)
    return tuple(float(v) for v in numbers)


def _check(preprocessing: Preprocessing) -> None:
    if preprocessing.order not in ("RGB", "BGR"):
        raise ValueError(f"order is RGB or BGR, not {preprocessing.order!r}")
    if preprocessing.crop is not None and not 0 < preprocessing.crop <= 1:
        raise ValueError(f"crop is a share above 0 and up to 1, not {preprocessing.crop:g}")
    if any(s == 0 for s in preprocessing.std) or preprocessing.scale == 0:
        raise ValueError("scale and std are not zero")
    if preprocessing.size is not None and min(preprocessing.size) < 1:
        raise ValueError(f"size is positive, not {list(preprocessing.size)}")
    if len(preprocessing.resize) > 2 or min([1, *preprocessing.resize]) < 1:
        raise ValueError(f"resize is one or two lengths, not {list(preprocessing.resize)}")
    if preprocessing.interpolation not in ("bilinear", "bicubic", "nearest", "lanczos"):
        raise ValueError(f"no interpolation is called {preprocessing.interpolation!r}")


def stored_preprocessing(model: Model) -> Preprocessing | None:
    """The preprocessing that the model was trained with, if that was on images."""
    try:
        return as_preprocessing(json.loads(model.metadata[STORED]))
    except (KeyError, ValueError, AttributeError):
        return None


def as_metadata(preprocessing: Preprocessing) -> dict[str, str]:
    return {STORED: json.dumps(asdict(preprocessing), sort_keys=True)}


@dataclass(frozen=True)
class Layout:
    """The form of pictures that a model takes: preprocessing, channels, and their axis."""

    preprocessing: Preprocessing = Preprocessing()
    channels: int = 3
    last: bool = False

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            numbers = getattr(self.preprocessing, name)
            if numbers and len(numbers) not in (1, self.channels):
                raise ArgumentError(
                    f"{name} has {len(numbers)} numbers; the model takes {self.channels} channels"
                )

    def pixels(self, picture: Any) -> np.ndarray:
        return self.preprocessing(picture, self.channels, self.last)


def layout_of(model: Model, settings: Any = None) -> Layout:
    """How pictures become inputs: by `settings`, else as the model was trained, else by default."""
    chosen = stored_preprocessing(model) if settings is None else as_preprocessing(settings)
    preprocessing = chosen or Preprocessing()
    for value in model.inputs:
        if value.shape is None or len(value.shape) != 4:
            continue
        dims = [d if isinstance(d, int) else None for d in value.shape]
        last = dims[3] in CHANNELS and dims[1] not in CHANNELS
        channels = (dims[3] if last else dims[1]) or 3
        height, width = dims[1:3] if last else dims[2:4]
        if height is not None and width is not None:
            preprocessing = replace(preprocessing, size=(height, width))
        return Layout(preprocessing, channels, last)
    return Layout(preprocessing)


class Images(Table):
    """A folder with one sub-folder of images per class, or of images alone, read when needed."""

    def __init__(self, folder: Path, layout: Layout, classes: Sequence[str] = ()):
        folders = sorted(d.name for d in folder.iterdir() if d.is_dir())
        files = [(folder / n / p.name, n) for n in folders for p in _pictures(folder / n)]
        if not files:
            files = [(path, "") for path in _pictures(folder)]
        if not files:
            raise DataError(
                f"{quote(str(folder))} holds no images",
                hint="one sub-folder per class, with .png or .jpg files in it",
            )
        self.labelled = files[0][1] != ""
        self.classes = tuple(classes) if classes else tuple(folders) if self.labelled else ()
        unknown = [n for n in folders if n not in self.classes] if self.labelled else []
        if unknown:
            raise DataError(
                f"{quote(str(folder))} has classes that the model was not trained on",
                [[quote(n)] for n in unknown],
                hint=f"the model knows {', '.join(map(quote, self.classes))}",
            )
        self.paths = [path for path, _ in files]
        index = {name: i for i, name in enumerate(self.classes)}
        self.labels = np.array([index.get(name, 0) for _, name in files], np.int64)
        self.layout = layout
        self.origin, self.length = str(folder), len(files)
        self.facts = (("preprocessing", str(layout.preprocessing)),)
        without = [n for n in folders if n not in {name for _, name in files}]
        if self.labelled and without:
            listed = ", ".join(map(quote, without))
            self.facts += (("note", f"no images in {listed}: such a class is never seen"),)
        self.names = [path.relative_to(folder).as_posix() for path in self.paths]

    def take(self, rows: np.ndarray, names: Collection[str] | None = None) -> Rows:
        columns: Rows = {"label": self.labels[rows]} if self.labelled else {}
        if names is None or "image" in names:
            columns["image"] = self._stack([self._read(self.paths[i]) for i in rows])
        return columns

    def row_bytes(self, names: Collection[str]) -> int | None:
        return None

    def sample(self, name: str) -> np.ndarray:
        """Labels are known; pictures are finite numbers, so that one shows the type."""
        return self.labels if name == "label" else self.take(np.array([0]), [name])[name]

    def fingerprint(self, names: Collection[str]) -> str:
        """From the names and sizes of the files, which cost no reading."""
        listed = [f"{n} {p.stat().st_size}" for n, p in zip(self.names, self.paths, strict=True)]
        return hashlib.blake2b("\n".join(listed).encode(), digest_size=8).hexdigest()

    def _stack(self, pictures: list[np.ndarray]) -> np.ndarray:
        if len({p.shape for p in pictures}) > 1:
            raise DataError(
                "the images have different sizes, and the model takes any size",
                hint="choose one: preprocess={'size': 224}, --preprocess size=224",
            )
        return np.stack(pictures)

    def _read(self, path: Path) -> np.ndarray:
        try:
            from PIL import Image
        except ImportError as error:
            raise MissingExtra("pillow", "images") from error
        try:
            with Image.open(path) as picture:
                return self.layout.pixels(picture)
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise DataError(
                f"cannot read the image {quote(str(path))}: {error}",
                hint="replace or remove the file",
            ) from error

    def unreadable(self) -> list[list[str]]:
        """The files whose first bytes are not those of an image."""
        try:
            from PIL import Image
        except ImportError as error:
            raise MissingExtra("pillow", "images") from error
        problems = []
        for path in self.paths:
            try:
                Image.open(path).close()
            except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
                problems.append([quote(str(path)), str(error).partition("<")[0].strip()])
        return problems


def _pictures(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES and p.is_file())
