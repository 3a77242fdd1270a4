"""The functions of tf2onnx's own tests through `sx.from_tensorflow`, in stock onnxruntime.

    TF2ONNX=…/tensorflow-onnx python -m tests.sweeps.tensorflow_graphs          all of them
    … --only test_loops,conv2d      those whose name has one of these words
    … --peer                        tf2onnx itself beside it, at its newest opset

All these tests call `run_test_case` with a function and its inputs; here that method imports the
function instead. TensorFlow's results are the truth, and the tolerance is that of the test. A case
is right, refused by name, wrong, or failed (the import broke). Batches run in processes of their
own, with a limit of memory and time. Fails where one is wrong, or where fewer are right than
`LEAST` of all. Needs the packages parameterized and tf_keras (Keras 2, for tests of its layers).
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import resource
import subprocess
import sys
import tempfile
import traceback
import unittest
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).parent.parent.parent
MODULES = {
    "test_backend": 8, "test_cond": 1, "test_const_fold": 1, "test_cudnn": 1, "test_gru": 1,
    "test_loops": 1, "test_lstm": 2, "test_onnx_shape_inference": 1, "test_string_ops": 1,
}  # fmt: skip
MEMORY = 16 << 30  # of addresses, most of which TensorFlow only reserves
SECONDS = 1200
LEAST = 0.987  # 1,240 of 1,256
RIGHT, REFUSED, WRONG, FAILED, SKIPPED = "right", "refused", "wrong", "failed", "not run by TF"


# -- one case -------------------------------------------------------------------------------------


def judged(function: Any, feeds: dict[str, Any], outputs: list[str], options: Any) -> Any:
    """The verdict of one case, and what there is to say about it."""
    import numpy as np

    import sardonyx as sx
    from sardonyx.importers import proof

    try:
        source, expected = traced(function, feeds, outputs, options)
    except Exception as error:
        return SKIPPED, f"{type(error).__name__}: {str(error)[:160]}"
    try:
        model = sx.from_tensorflow(**source)
        used = {v.name for v in model.inputs}
        named = {k.partition(":")[0]: v for k, v in feeds.items()}
        actual = list(proof.run(model, {n: a for n, a in named.items() if n in used}).values())
    except sx.errors.ImportRefused as refusal:
        return REFUSED, "; ".join(" ".join(map(str, row)) for row in refusal.where) or str(refusal)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        return FAILED, f"{type(error).__name__} {where}: {str(error)[:400]}"
    if len(actual) != len(expected):
        return WRONG, f"{len(actual)} outputs instead of {len(expected)}"
    for result, reference in zip(actual, expected, strict=True):
        result = np.asarray(result)
        if result.shape != reference.shape:
            return WRONG, f"shape {result.shape} instead of {reference.shape}"
        if reference.dtype.kind in "OSU":
            if not proof.equal(result, reference).all():
                return WRONG, "texts differ"
        elif result.dtype != reference.dtype:
            return WRONG, f"{result.dtype} instead of {reference.dtype}"
        elif options.get("check_value", True):
            rtol, atol = options.get("rtol", 1e-7), options.get("atol", 1e-5)
            if not np.allclose(result, reference, rtol=max(rtol, 1e-6), atol=atol, equal_nan=True):
                return WRONG, f"values differ by {np.max(np.abs(result - reference)):.1e}"
    return RIGHT, ""


def traced(
    function: Any, feeds: dict[str, Any], outputs: list[str], options: Any
) -> tuple[dict[str, Any], list[Any]]:
    """What to import, and the results of TensorFlow."""
    import numpy as np
    import tensorflow as tf

    np.random.seed(1)
    if options.get("as_session"):
        return in_session(function, feeds, outputs, options)
    tensors = [tf.convert_to_tensor(v, tf.as_dtype(v.dtype)) for v in feeds.values()]
    tf.random.set_seed(1)
    results = function(*tensors)
    results = results if isinstance(results, (list, tuple)) else [results]
    expected = [np.asarray(r.numpy()) for r in results]
    specs = [
        tf.TensorSpec(v.shape, tf.as_dtype(v.dtype), k.partition(":")[0]) for k, v in feeds.items()
    ]
    graph = tf.function(function, input_signature=specs).get_concrete_function()
    return {"source": graph, "example": list(feeds.values())}, expected


def in_session(
    function: Any, feeds: dict[str, Any], outputs: list[str], options: Any
) -> tuple[dict[str, Any], list[Any]]:
    """A graph of TensorFlow 1: saved with its tables and variables, or frozen."""
    import tensorflow as tf

    v1 = tf.compat.v1
    v1.reset_default_graph()
    with v1.Session() as session:
        v1.set_random_seed(1)
        places = []
        if not options.get("premade_placeholders"):
            places = [
                v1.placeholder(tf.as_dtype(v.dtype), v.shape, name=k.partition(":")[0])
                for k, v in feeds.items()
            ]
        function(*places)
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
        fetched = [session.graph.get_tensor_by_name(n) for n in outputs]
        expected = session.run(fetched, feed_dict=feeds)
        if any("Table" in n.type for n in session.graph.get_operations()):
            folder = Path(tempfile.mkdtemp()) / "model"
            save_tables(session, folder, named(feeds), fetched)
            return {"source": folder, "example": dict(named(feeds))}, expected
        definition = v1.graph_util.convert_variables_to_constants(
            session, session.graph.as_graph_def(), [n.partition(":")[0] for n in outputs]
        )
    return {
        "source": definition,
        "inputs": list(feeds),
        "outputs": outputs,
        "example": list(feeds.values()),
    }, expected


def save_tables(session: Any, folder: Path, feeds: dict[str, Any], fetched: list[Any]) -> None:
    """A SavedModel of TensorFlow 1, which fills its tables when it is loaded."""
    import tensorflow as tf

    saved, describe = tf.compat.v1.saved_model, tf.compat.v1.saved_model.build_tensor_info
    inputs = {k: describe(session.graph.get_tensor_by_name(f"{k}:0")) for k in feeds}
    results = {f"output_{i}": describe(t) for i, t in enumerate(fetched)}
    signature = saved.build_signature_def(inputs, results, "tensorflow/serving/predict")
    builder = saved.Builder(str(folder))
    builder.add_meta_graph_and_variables(
        session,
        ["serve"],
        {"serving_default": signature},
        main_op=tf.compat.v1.tables_initializer(),
    )
    builder.save()


def named(feeds: dict[str, Any]) -> dict[str, Any]:
    return {k.partition(":")[0]: v for k, v in feeds.items()}


# -- one process ----------------------------------------------------------------------------------


def work(module_name: str, part: int, parts: int, words: list[str], peer: bool) -> None:
    """Run a share of the tests of one module; one line of JSON per case."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    folder = Path(os.environ["TF2ONNX"])
    sys.path[:0] = [str(folder), str(folder / "tests")]
    sys.argv = ["pytest"]
    logging.disable(logging.WARNING)
    backend = importlib.import_module("backend_test_base")
    base = backend.Tf2OnnxBackendTestBase
    original, count = base.run_test_case, Counter[str]()

    def run_test_case(
        self: Any, func: Any, feed_dict: Any, inputs: Any, outputs: Any, *rest: Any, **options: Any
    ) -> Any:
        number = count[self.id()]
        count[self.id()] += 1
        for key, value in zip(("rtol", "atol"), rest, strict=False):
            options[key] = value
        verdict, detail = judged(func, feed_dict, outputs, options)
        row = {"case": f"{self.id()}#{number}", "verdict": verdict, "detail": detail}
        if peer:
            row["peer"] = peer_verdict(original, self, (func, feed_dict, inputs, outputs), options)
        print(json.dumps(row), flush=True)
        return mock.MagicMock()

    base.run_test_case = run_test_case
    module = importlib.import_module(module_name)
    tests = list(flat(unittest.defaultTestLoader.loadTestsFromModule(module)))
    for test in tests[part::parts]:
        if not words or any(w in test.id() for w in words):
            test.run(unittest.TestResult())


def peer_verdict(original: Any, test: Any, arguments: Any, options: Any) -> str:
    try:
        original(test, *arguments, **options)
        return RIGHT
    except AssertionError:
        return WRONG
    except Exception:
        return FAILED


def flat(suite: Any) -> Any:
    for test in suite:
        yield from flat(test) if isinstance(test, unittest.TestSuite) else [test]


# -- all ------------------------------------------------------------------------------------------


def batch(module: str, part: int, parts: int, options: Any) -> list[dict[str, str]]:
    """The rows of one process, and one for its own failure."""
    environment = {
        **os.environ, "TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF2ONNX_TEST_OPSET": "18", "TF2ONNX_SKIP_TFLITE_TESTS": "TRUE",
        "TF2ONNX_SKIP_TFJS_TESTS": "TRUE", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = [sys.executable, "-m", "tests.sweeps.tensorflow_graphs", "--work", module]
    command += [str(part), str(parts), "--only", ",".join(options.only)]
    command += ["--peer"] if options.peer else []
    with tempfile.TemporaryFile("w+") as out:
        try:
            code = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.DEVNULL,
                timeout=SECONDS, check=False,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            code = -1
        out.seek(0)
        rows = [json.loads(line) for line in out if line.startswith("{")]
    if code:
        detail = f"the process ended with {code}"
        rows.append({"case": f"{module} {part} of {parts}", "verdict": FAILED, "detail": detail})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", type=lambda s: [w for w in s.split(",") if w])
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--modules", default=",".join(MODULES), type=lambda s: s.split(","))
    parser.add_argument("--work", nargs=3)
    options = parser.parse_args()
    options.only = options.only or []
    if options.work:
        module, part, parts = options.work
        work(module, int(part), int(parts), options.only, options.peer)
        return 0
    if "TF2ONNX" not in os.environ:
        print("not run: TF2ONNX is to name a copy of the repository onnx/tensorflow-onnx")
        return 0
    modules = options.modules if isinstance(options.modules, list) else options.modules.split(",")
    rows = []
    for module in modules:
        parts = 1 if options.only else MODULES[module]
        for part in range(parts):
            rows += batch(module, part, parts, options)
            print(f"{module} {part + 1} of {parts}: {len(rows):,} cases so far", flush=True)
    return report(rows, bool(options.only))


def report(rows: list[dict[str, str]], partial: bool) -> int:
    verdicts = Counter(row["verdict"] for row in rows)
    for row in rows:
        if row["verdict"] != RIGHT:
            print(f"{row['verdict']:14} {row['case']}  {row['detail']}")
    total = len(rows) - verdicts[SKIPPED]
    print(f"{total:,} cases: " + ", ".join(f"{n:,} {v}" for v, n in verdicts.most_common()))
    if any("peer" in row for row in rows):
        theirs = Counter(row["peer"] for row in rows if "peer" in row)
        print("tf2onnx: " + ", ".join(f"{n:,} {v}" for v, n in theirs.most_common()))
    few = not partial and verdicts[RIGHT] < LEAST * total
    return int(bool(verdicts[WRONG] or few))


if __name__ == "__main__":
    sys.exit(main())
