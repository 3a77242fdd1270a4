"""Every kind of data feeds the loop alike; data that does not fit is refused before training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import sardonyx as sx
from sardonyx.errors import DataError
from sardonyx.train import batches
from sardonyx.train.data import open_data
from sardonyx.train.fields import Link
from sardonyx.train.images import Layout, Preprocessing
from sardonyx.train.tables import Subset, Table

from .networks import mlp

X = np.random.default_rng(0).normal(size=(203, 6)).astype(np.float32)
LABEL = (X[:, 0] > 0).astype(np.int64) + (X[:, 1] > 0)
DATA = {"x": X, "label": LABEL}


def losses(data: object, **settings: object) -> list[float]:
    return sx.train(mlp(), data, steps=7, shuffle=False, **settings).losses  # type: ignore[arg-type]


def test_every_kind_of_data_gives_the_same_losses(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    expected = losses(DATA)
    np.savez(tmp_path / "d.npz", **DATA)  # type: ignore[arg-type]
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "label.npy", LABEL)
    header = ",".join([*(f"c{i}" for i in range(6)), "label"])
    rows = [",".join([*(repr(float(v)) for v in x), str(y)]) for x, y in zip(X, LABEL, strict=True)]
    (tmp_path / "d.csv").write_text("\n".join([header, *rows]))
    batches = [{"x": X[i : i + 32], "label": LABEL[i : i + 32]} for i in range(0, 203, 32)]
    tensors = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(LABEL))
    sources = {
        "pair": (X, LABEL),
        "other names": {"pixels": X, "target": LABEL},
        "npz": tmp_path / "d.npz",
        "npy": tmp_path / "x.npy",
        "csv": tmp_path / "d.csv",
        "list of batches": batches,
        "generator": lambda: iter(batches),
        "torch": torch.utils.data.DataLoader(tensors, batch_size=32),
    }
    for name, source in sources.items():
        assert losses(source) == expected, name


def test_data_set_of_hugging_face(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    columns = {"x": X.tolist(), "label": LABEL.tolist(), "text": ["a word"] * 203}
    whole = datasets.Dataset.from_dict(columns)
    expected = losses(DATA)
    assert losses(whole, columns=["x", "label"]) == expected
    assert losses(whole) == expected  # what no input asks for is left alone
    assert losses(whole.with_format("numpy")) == expected
    assert losses(whole.with_format("torch", columns=["x", "label"])) == expected
    streamed = whole.to_iterable_dataset()
    assert losses(streamed) == expected
    with pytest.raises(DataError, match="lacks the columns"):
        losses(whole, columns=["x", "no such"])
    whole.save_to_disk(tmp_path / "kept")
    assert losses(datasets.load_from_disk(tmp_path / "kept")) == expected


def test_pictures_in_a_data_set_of_hugging_face() -> None:
    datasets = pytest.importorskip("datasets")
    image = pytest.importorskip("PIL.Image")
    pictures = [image.fromarray(np.full((4, 5, 3), 20 * i, np.uint8)) for i in range(6)]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(3)})
    whole = datasets.Dataset.from_dict({"image": pictures, "label": [0, 1, 2] * 2}, features)
    rows = open_data(whole, None, Layout(Preprocessing(size=(2, 2)))).take(np.array([5, 1]))  # type: ignore[union-attr]
    assert rows["image"].shape == (2, 3, 2, 2) and rows["image"].dtype == np.float32
    np.testing.assert_allclose(rows["image"][0], 100 / 255)
    assert rows["label"].tolist() == [2, 1]


def test_data_loader_end_to_end() -> None:
    torch = pytest.importorskip("torch")
    tensors = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(LABEL))
    loader = torch.utils.data.DataLoader(
        tensors, batch_size=32, shuffle=True, generator=torch.Generator().manual_seed(0)
    )
    held = torch.utils.data.DataLoader(tensors, batch_size=50)
    run = sx.train(mlp((6, 32, 3)), loader, epochs=30, validation=held, lr=0.02)
    assert run.position.step == 30 * 7
    assert run.history[-1]["val_accuracy"] > 0.9
    scores = sx.predict(run.model, DATA)["scores"]
    right = (scores.argmax(1) == LABEL).mean()
    assert run.history[-1]["val_accuracy"] == pytest.approx(right)


def test_parquet_with_columns(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    columns = {f"c{i}": X[:, i] for i in range(6)} | {"noise": X[:, 0], "kind": LABEL}
    parquet.write_table(pyarrow.table(columns), tmp_path / "d.parquet")
    chosen = [*(f"c{i}" for i in range(6)), "kind"]
    assert losses(tmp_path / "d.parquet", columns=chosen) == losses(DATA)
    with pytest.raises(DataError, match="lacks the columns"):
        losses(tmp_path / "d.parquet", columns=["c0", "no such"])


def test_folder_of_images(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for label, name in enumerate(("cat", "dog")):
        (tmp_path / name).mkdir()
        for i in range(3):
            pixels = np.full((4, 5, 3), 40 * i + 100 * label, np.uint8)
            image.fromarray(pixels).save(tmp_path / name / f"{i}.png")
    table = open_data(tmp_path, None, Layout(Preprocessing(size=(2, 2))))
    rows = table.take(np.arange(6))
    assert rows["label"].tolist() == [0, 0, 0, 1, 1, 1]
    assert rows["image"].shape == (6, 3, 2, 2)
    np.testing.assert_allclose(rows["image"][5], 180 / 255)


BAD = {
    "shape": ({"x": X[:, :5], "label": LABEL}, "rows of"),
    "type": ({"x": X.astype(str), "label": LABEL}, "field"),
    "missing": ({"x": X}, "no field of the data fits"),
    "nan": ({"x": np.where(X > 2, np.nan, X), "label": LABEL}, "nan"),
    "range": ({"x": X, "label": LABEL + 1}, "label 3, not from 0 to 2"),
    "empty": ({"x": X[:0], "label": LABEL[:0]}, "no rows"),
    "lengths": ({"x": X, "label": LABEL[:5]}, "different lengths"),
}


@pytest.mark.parametrize("kind", BAD)
def test_data_that_does_not_fit_is_refused_before_training(kind: str) -> None:
    data, words = BAD[kind]
    with pytest.raises(DataError) as caught:
        sx.train(mlp(), data, steps=1)
    assert words in str(caught.value)


def test_all_rows_are_looked_at_before_they_are_split() -> None:
    """Rows are counted as the user counts them, not within the part that is trained on."""
    x = np.zeros((6000, 6), np.float32)
    x[5000, 3] = np.inf
    data = {"x": x, "label": np.zeros(6000, np.int64)}
    with pytest.raises(DataError, match="row 5000"):
        sx.train(mlp(), data, steps=1, validation=0.1)


@pytest.mark.parametrize("drop_last", (False, True))
@pytest.mark.parametrize("start", (0, 3))
@pytest.mark.parametrize("block", (1, 70, 1 << 22))
@pytest.mark.parametrize("of", ("table", "share of a table"))
def test_batches_do_not_depend_on_how_many_are_gathered_at_once(
    of: str, block: int, start: int, drop_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "BLOCK", block)
    x = np.arange(50.0, dtype=np.float32).reshape(25, 2)
    links = [Link("x", "x", np.dtype(np.float32), (2,), "by name", False)]
    whole = Table({"x": np.concatenate([x - 100, x])}, "memory")
    source = Table({"x": x}, "memory") if of == "table" else Subset(whole, np.arange(25, 50))
    blocks = batches.epoch_blocks(
        source, links, 4, seed=5, epoch=2, start=start, drop_last=drop_last
    )
    result = [list(b) for b in blocks]
    count = 7 - start - drop_last  # 32 bytes are a batch of four rows
    assert max(map(len, result)) == min(max(block // 32, 1), count)
    order = np.random.default_rng([5, 2]).permutation(25)
    expected = [x[order[i : i + 4]] for i in range(4 * start, 24 if drop_last else 25, 4)]
    inputs = [batch["x"] for part in result for batch in part]
    assert len(inputs) == len(expected)
    for a, b in zip(inputs, expected, strict=True):
        np.testing.assert_array_equal(a, b)
