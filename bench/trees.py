"""Forests in onnxruntime: our models in double against skl2onnx's in float; import of large ones.

    python bench/trees.py

Prints milliseconds per batch of both and their ratio (below 1: ours is faster), then the time and
memory of importing a booster of 5,000 trees.
"""

from __future__ import annotations

import resource
import time
import warnings

import numpy as np
import onnxruntime as ort

import sardonyx as sx

TREES, COLUMNS, REPEATS = 500, 20, 3


def session(model: bytes) -> ort.InferenceSession:
    return ort.InferenceSession(model, providers=["CPUExecutionProvider"])


def milliseconds(run, rows: int) -> float:
    """The best of several measurements, each long enough to be one."""
    count = max(1, 2000 // rows)
    run()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        for _ in range(count):
            run()
        times.append((time.perf_counter() - start) / count)
    return 1000 * min(times)


def peer(forest) -> bytes:
    from skl2onnx import to_onnx

    options = {"zipmap": False} if hasattr(forest, "predict_proba") else {}
    example = np.zeros((1, COLUMNS), np.float32)
    model = to_onnx(forest, example, options={id(forest): options} if options else None,
                    target_opset={"": 18, "ai.onnx.ml": 3})  # fmt: skip
    return model.SerializeToString()


def compare(name: str, forest, x: np.ndarray) -> None:
    model = sx.from_sklearn(forest, x[:50].astype(np.float32))
    ours = session(sx.save(model, "/tmp/bench_trees.onnx").read_bytes())
    theirs = session(peer(forest))
    for rows in (1, 10_000):
        batch = np.ascontiguousarray(x[:rows].astype(np.float32))
        one, two = (
            milliseconds(
                lambda s=s, batch=batch: s.run(None, {s.get_inputs()[0].name: batch}), rows
            )
            for s in (ours, theirs)
        )
        print(f"{name:30} batch {rows:6,}: ours {one:8.3f} ms, skl2onnx {two:8.3f} ms, "
              f"ratio {one / two:.2f}")  # fmt: skip


def forests() -> None:
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    rng = np.random.default_rng(0)
    x = rng.normal(size=(10_000, COLUMNS))
    score = x[:, 0] + x[:, 1] * x[:, 2]
    part = slice(0, 2000)
    settings = {"n_estimators": TREES, "n_jobs": 2, "random_state": 0}
    regressor = RandomForestRegressor(**settings).fit(x[part], score[part])
    compare("regression", regressor, x)
    for classes in (2, 3):
        y = np.searchsorted(np.quantile(score, np.arange(1, classes) / classes), score)
        classifier = RandomForestClassifier(**settings).fit(x[part], y[part])
        compare(f"classification, {classes} classes", classifier, x)
    classifier = RandomForestClassifier(max_depth=8, **settings).fit(x[part], y[part])
    compare("the same, depth 8", classifier, x)


def booster() -> None:
    import lightgbm

    rng = np.random.default_rng(0)
    x = rng.normal(size=(5_000, COLUMNS))
    data = lightgbm.Dataset(x, x[:, 0] + rng.normal(size=len(x)))
    parameters = {"num_leaves": 31, "learning_rate": 0.01, "verbose": -1, "num_threads": 2}
    model = lightgbm.train(parameters, data, 5_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    imported = sx.from_lightgbm(model)
    seconds = time.perf_counter() - start
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"import of {model.num_trees():,} trees: {seconds:.1f} s, {grown:.0f} MB more memory")
    print(imported.metadata["sardonyx.verified"])


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    forests()
    booster()
