"""torchvision's transforms as stored preprocessing: torchvision's own numbers are the oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch

import sardonyx as sx
from sardonyx.train.images import as_preprocessing

Image = pytest.importorskip("PIL.Image", reason="pictures need Pillow")
pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def transforms() -> Any:
    try:
        from torchvision import transforms
    except (ImportError, RuntimeError) as error:  # built for another torch
        pytest.skip(f"torchvision does not load: {error}")
    return transforms


def picture(*shape: int) -> Any:
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    return Image.fromarray(pixels)


def composed(T: Any) -> list[Any]:
    return [
        T.Compose(
            [
                T.Resize(80),
                T.CenterCrop(64),
                T.ToTensor(),
                T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
            ]
        ),
        T.Compose([T.Resize((50, 70), interpolation=T.InterpolationMode.BICUBIC), T.ToTensor()]),
        T.Compose([T.CenterCrop((33, 20)), T.PILToTensor(), T.ConvertImageDtype(torch.float32)]),
    ]


@pytest.mark.parametrize("shape", [(300, 401, 3), (97, 64, 3), (224, 224, 3), (257, 256, 3)])
def test_pictures_become_the_numbers_of_torchvision(
    shape: tuple[int, ...], transforms: Any
) -> None:
    for transform in composed(transforms):
        numbers = as_preprocessing(transform)(picture(*shape), 3, False)
        assert np.array_equal(numbers, transform(picture(*shape)).numpy())


def test_what_cannot_be_stored_is_named_at_once(transforms: Any) -> None:
    T = transforms
    several = T.Compose([T.RandomHorizontalFlip(), T.ToTensor(), T.Resize(9), T.ColorJitter()])
    with pytest.raises(sx.errors.ArgumentError, match="not those") as caught:
        as_preprocessing(several)
    assert [row[0] for row in caught.value.where] == [
        "RandomHorizontalFlip",
        "Resize",
        "ColorJitter",
    ]


def test_a_trained_model_prepares_pictures_as_torchvision_did(
    tmp_path: Path, transforms: Any
) -> None:
    T = transforms
    transform = T.Compose(
        [T.Resize(12), T.CenterCrop(8), T.ToTensor(), T.Normalize([0.5] * 3, [0.2] * 3)]
    )
    for number, name in enumerate(("cat", "dog")):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for k in range(4):
            pixels = np.random.default_rng(10 * number + k).integers(0, 256, (20, 17, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pictures" / name / f"{k}.png")
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[N,3,8,8] x, float[192,2] w) =>
    (float[N,2] y) { f = Flatten(x) y = MatMul(f, w) }"""
    proto = onnx.parser.parse_model(text)
    weights = np.random.default_rng(5).normal(0, 0.1, (192, 2)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    del proto.graph.input[1]
    model = sx.load(proto)
    run = sx.train(
        model, tmp_path / "pictures", loss="cross_entropy", epochs=1, preprocess=transform
    )
    path = sx.save(run.model, tmp_path / "tuned.onnx")
    scores = next(iter(sx.predict(path, tmp_path / "pictures").values()))
    files = sorted((tmp_path / "pictures").glob("*/*.png"))
    batch = np.stack([transform(Image.open(f).convert("RGB")).numpy() for f in files])
    session = ort.InferenceSession(str(path))
    (expected,) = session.run(None, {session.get_inputs()[0].name: batch})
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-6)
    assert '"dog"' in str(sx.load(path).metadata) and "resize" in str(sx.load(path).metadata)
