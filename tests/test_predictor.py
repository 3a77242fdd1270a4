"""`Predictor`: what it gives is what onnxruntime gives, in every form, also after a journey."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import sardonyx as sx
from sardonyx.errors import DataError, EngineError
from sardonyx.train import predictor as module
from tests.networks import mlp

X = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)


@pytest.fixture
def expected() -> np.ndarray:
    data = mlp().proto().SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": X})[0]  # type: ignore[no-any-return]


def test_arrays(expected: np.ndarray) -> None:
    predictor = sx.Predictor(mlp())
    np.testing.assert_allclose(predictor(X)["scores"], expected, rtol=1e-6)
    np.testing.assert_allclose(predictor({"x": X})["scores"], expected, rtol=1e-6)
    wide = predictor({"x": X.astype(np.float64), "other": np.arange(5)})
    np.testing.assert_allclose(wide["scores"], expected, rtol=1e-6)
    (first, second) = predictor.map([X[:2], X[2:]])
    joined = np.concatenate([first["scores"], second["scores"]])
    np.testing.assert_allclose(joined, expected, rtol=1e-6)


def test_frames(expected: np.ndarray) -> None:
    pandas = pytest.importorskip("pandas")
    predictor = sx.Predictor(mlp())
    features = pandas.DataFrame(X, columns=list("abcdef"), index=list("vwxyz"))
    scores = predictor(features)
    assert list(scores.index) == list("vwxyz") and list(scores.columns) == ["scores"]
    np.testing.assert_allclose(np.stack(scores["scores"]), expected, rtol=1e-6)
    cells = pandas.DataFrame({"x": [row.tolist() for row in X], "id": range(5)})
    np.testing.assert_allclose(np.stack(predictor(cells)["scores"]), expected, rtol=1e-6)


def test_arrow(expected: np.ndarray) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    predictor = sx.Predictor(mlp())
    columns = {name: X[:, i] for i, name in enumerate("abcdef")}
    for batch in (pyarrow.table(columns), pyarrow.RecordBatch.from_pydict(columns)):
        result = predictor(batch)
        assert type(result) is type(batch)
        outcome = np.array(result.column("scores").to_pylist(), np.float32)
        np.testing.assert_allclose(outcome, expected, rtol=1e-6)


ELSEWHERE = """
import pickle, sys
import numpy as np
predictor, x = pickle.load(open(sys.argv[1], "rb"))
np.save(sys.argv[2], predictor(x)["scores"])
"""


def test_it_travels_to_another_process(tmp_path: Path, expected: np.ndarray) -> None:
    predictor = sx.Predictor(mlp())
    predictor(X)  # an open session stays here
    file, results = tmp_path / "predictor.pickle", tmp_path / "scores.npy"
    file.write_bytes(pickle.dumps((predictor, X)))
    subprocess.run([sys.executable, "-c", ELSEWHERE, str(file), str(results)], check=True)
    np.testing.assert_allclose(np.load(results), expected, rtol=1e-6)


def test_copies_share_one_session() -> None:
    module._RUNNERS.clear()
    predictor = sx.Predictor(mlp())
    for copy in (predictor, pickle.loads(pickle.dumps(predictor)), sx.Predictor(mlp())):
        copy(X)
    assert len(module._RUNNERS) == 1


def test_what_does_not_fit_is_refused() -> None:
    predictor = sx.Predictor(mlp())
    with pytest.raises(DataError, match="takes 1 inputs, not 2"):
        predictor(X, X)
    with pytest.raises(DataError, match="takes float32, and the batch has <U1"):
        predictor(np.array([["a"] * 6]))
    with pytest.raises(EngineError, match="no device"):
        sx.Predictor("absent.onnx", device="cuda:97")


# -- Dask, where it is installed ------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize("scheduler", ["threads", "processes"])
def test_partitions_of_dask(scheduler: str, expected: np.ndarray) -> None:
    """`map_partitions` sends the predictor to the workers, which open sessions of their own."""
    pandas = pytest.importorskip("pandas")
    frames = pytest.importorskip("dask.dataframe")
    dask = pytest.importorskip("dask")
    table = pandas.DataFrame(X, columns=list("abcdef"))
    shape = pandas.DataFrame({"scores": pandas.Series(dtype=object)})
    with dask.config.set({"dataframe.convert-string": False}):
        parts = frames.from_pandas(table, npartitions=3)
        scores = parts.map_partitions(sx.Predictor(mlp()), meta=shape).compute(scheduler=scheduler)
    assert list(scores.index) == list(table.index) and parts.npartitions == 3
    np.testing.assert_allclose(np.stack(scores["scores"]), expected, rtol=1e-6)


@pytest.mark.nightly
def test_blocks_of_a_dask_array(expected: np.ndarray) -> None:
    arrays = pytest.importorskip("dask.array")
    predictor = sx.Predictor(mlp())
    blocks = arrays.from_array(X, chunks=(2, 6)).map_blocks(
        lambda rows: predictor(rows)["scores"], dtype=np.float32, chunks=(2, expected.shape[1])
    )
    result = blocks.compute(scheduler="processes")
    np.testing.assert_allclose(result, expected, rtol=1e-6)


# -- Ray, where it is installed -------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")  # Ray's own
@pytest.mark.parametrize("form", ["numpy", "pandas", "pyarrow"])
def test_batches_of_ray(form: str, expected: np.ndarray) -> None:
    """`map_batches` sends the predictor to the workers, which are processes."""
    ray = pytest.importorskip("ray")
    data = pytest.importorskip("ray.data")
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 << 20)
    try:
        rows = data.from_items([{"x": row} for row in X])
        scores = rows.map_batches(sx.Predictor(mlp()), batch_format=form, batch_size=3).take_all()
    finally:
        ray.shutdown()
    result = sorted(tuple(np.asarray(row["scores"])) for row in scores)  # blocks come in any order
    np.testing.assert_allclose(result, sorted(map(tuple, expected)), rtol=1e-6)
