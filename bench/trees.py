"""Forests in onnxruntime: our models in double against skl2onnx's in float; import of large ones.

    python bench/trees.py

    python bench/trees.py --alone

Prints milliseconds of processor time per batch of both, measured in turn, and their ratio (below 1:
ours is faster), then the time and memory of importing a booster of 5,000 trees. `--alone` measures
our TreeEnsemble node without what follows it as well: no form of the graph is faster than that.
"""

from __future__ import annotations

import argparse
import resource
import time
import warnings

import numpy as np
import onnx
import onnxruntime as ort

import sardonyx as sx

TREES, COLUMNS, REPEATS = 500, 20, 3


def session(model: bytes, threads: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def milliseconds(sessions: list[ort.InferenceSession], batch: np.ndarray) -> list[float]:
    """The best of several measurements of each session, in turn, each long enough to be one."""
    count = max(1, 500 // len(batch))
    best = [np.inf] * len(sessions)
    for repeat in range(REPEATS + 1):
        for i, one in enumerate(sessions):
            feeds = {one.get_inputs()[0].name: batch}
            start = time.process_time()
            for _ in range(count):
                one.run(None, feeds)
            if repeat:  # the first is for warming up
                best[i] = min(best[i], 1000 * (time.process_time() - start) / count)
    return best


def peer(forest) -> bytes:
    from skl2onnx import to_onnx

    options = {"zipmap": False} if hasattr(forest, "predict_proba") else {}
    example = np.zeros((1, COLUMNS), np.float32)
    model = to_onnx(forest, example, options={id(forest): options} if options else None,
                    target_opset={"": 18, "ai.onnx.ml": 3})  # fmt: skip
    return model.SerializeToString()


def ensemble_alone(source: bytes) -> bytes:
    """The model up to its TreeEnsemble, whose output it gives."""
    model = onnx.load_from_string(source)
    kinds = [node.op_type for node in model.graph.node]
    last = kinds.index("TreeEnsemble")
    del model.graph.node[last + 1 :]
    del model.graph.output[:]
    model.graph.output.append(onnx.ValueInfoProto(name=model.graph.node[last].output[0]))
    used = {name for node in model.graph.node for name in node.input}
    unused = [tensor for tensor in model.graph.initializer if tensor.name not in used]
    for tensor in unused:
        model.graph.initializer.remove(tensor)
    return model.SerializeToString()


def compare(name: str, forest, x: np.ndarray, alone: bool) -> None:
    model = sx.from_sklearn(forest, x[:50].astype(np.float32))
    sources = [sx.save(model, "/tmp/bench_trees.onnx").read_bytes(), peer(forest)]
    if alone:
        sources.append(ensemble_alone(sources[0]))
    for threads in (1, 2):
        sessions = [session(source, threads) for source in sources]
        for rows in (1, 10_000):
            batch = np.ascontiguousarray(x[:rows].astype(np.float32))
            ours, theirs, *rest = milliseconds(sessions, batch)
            node = f", the node alone {rest[0]:8.3f} ms" if rest else ""
            print(f"{name:30} threads {threads} batch {rows:6,}: ours {ours:8.3f} ms, skl2onnx "
                  f"{theirs:8.3f} ms, ratio {ours / theirs:.2f}{node}", flush=True)  # fmt: skip


def forests(alone: bool) -> None:
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    rng = np.random.default_rng(0)
    x = rng.normal(size=(10_000, COLUMNS))
    score = x[:, 0] + x[:, 1] * x[:, 2]
    part = slice(0, 2000)
    settings = {"n_estimators": TREES, "n_jobs": 2, "random_state": 0}
    regressor = RandomForestRegressor(**settings).fit(x[part], score[part])
    compare("regression", regressor, x, alone)
    for classes in (2, 3):
        y = np.searchsorted(np.quantile(score, np.arange(1, classes) / classes), score)
        classifier = RandomForestClassifier(**settings).fit(x[part], y[part])
        compare(f"classification, {classes} classes", classifier, x, alone)
    classifier = RandomForestClassifier(max_depth=8, **settings).fit(x[part], y[part])
    compare("the same, depth 8", classifier, x, alone)
    y = (score > np.median(score)).astype(int)
    classifier = RandomForestClassifier(min_samples_leaf=5, **settings).fit(x[part], y[part])
    compare("2 classes, 5 rows per leaf", classifier, x, alone)


def booster() -> None:
    import lightgbm

    rng = np.random.default_rng(0)
    x = rng.normal(size=(5_000, COLUMNS))
    data = lightgbm.Dataset(x, x[:, 0] + rng.normal(size=len(x)))
    parameters = {"num_leaves": 31, "learning_rate": 0.01, "verbose": -1, "num_threads": 2}
    model = lightgbm.train(parameters, data, 5_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    imported = sx.from_lightgbm(model)
    seconds = time.process_time() - start
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(
        f"import of {model.num_trees():,} trees: {seconds:.1f} s of processor time, "
        f"{grown:.0f} MB more memory"
    )
    print(imported.metadata["sardonyx.verified"])


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--alone", action="store_true", help="TreeEnsemble alone as well")
    options = parser.parse_args()
    booster()
    forests(options.alone)
