"""Pipelines as PMML of sklearn2pmml, imported and held against the pipeline and JPMML.

    python -m tests.sweeps.pmml_pipelines [part of a name ...] [--keep folder]

Needs sklearn2pmml, jpmml_evaluator and jpype1. One line per pipeline: right, refused, wrong, or
that sklearn2pmml does not convert it; then totals. Where JPMML differs from the pipeline as well,
the document is to blame, and what JPMML gives is what counts.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from sklearn.exceptions import NotFittedError

import sardonyx as sx
from sardonyx.errors import ImportRefused
from tests.sweeps.pmml_cases import all_cases

RELATIVE, ABSOLUTE = 1e-6, 1e-9
TRAINING_ROWS = 200


def start_java() -> None:
    """One machine for all conversions and evaluations."""
    import jpmml_evaluator
    import jpype
    from sklearn2pmml.resources import _package_classpath

    jpype.startJVM(
        "-Xmx1g", "-XX:+UseSerialGC",
        classpath=[*_package_classpath(), *jpmml_evaluator._classpath([])],
    )  # fmt: skip


def convert(pipeline: Any, path: Path) -> None:
    """What `sklearn2pmml.sklearn2pmml` does, without starting Java."""
    import jpype
    import sklearn2pmml

    escaped = sklearn2pmml._escape(pipeline, escape_func=sklearn2pmml._escape)
    dump = sklearn2pmml._joblib_dump(escaped, "estimator")
    main = jpype.JClass("com.sklearn2pmml.Main")
    application = main()
    for name, place in {"inputFile": dump, "outputFile": str(path)}.items():
        field = main.class_.getDeclaredField(name)
        field.setAccessible(True)
        field.set(application, jpype.JClass("java.io.File")(place))
    run = main.class_.getDeclaredMethod("run")
    run.setAccessible(True)
    try:
        run.invoke(application)
    except jpype.JException as error:
        cause = error.getCause() or error
        raise RuntimeError(str(cause.getMessage())) from None
    finally:
        Path(dump).unlink()


def feeds(session: Any, x: Any) -> dict[str, np.ndarray]:
    made = {}
    x = x.to_frame() if x.ndim == 1 else x
    for value in session.get_inputs():
        column = x[value.name] if value.name in x.columns else np.zeros(len(x))
        if "string" in value.type:
            made[value.name] = np.array(
                ["" if v is None or v != v else _written(v) for v in column], object
            )
        else:
            made[value.name] = np.asarray(column, np.float64)
    return made


def _written(value: Any) -> str:
    """A cell as a table of text has it."""
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def score(model: sx.Model, x: Any) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(
        model.proto().SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [v.name for v in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds(session, x)), strict=True))


def jpmml(path: Path, x: Any, errors: list[str | None] | None = None) -> dict[str, list[Any]]:
    """The results of JPMML, by field; None where it gives none, and `errors` says why."""
    from jpmml_evaluator import make_evaluator

    evaluator = make_evaluator(str(path), backend="jpype")
    names = [f.getName() for f in (*evaluator.getTargetFields(), *evaluator.getOutputFields())]
    fields = {f.getName() for f in evaluator.getInputFields()}
    x = x.to_frame() if x.ndim == 1 else x
    table = x[[c for c in x.columns if c in fields]] if fields else x
    for name in table.columns:
        if table[name].dtype.kind == "M":
            table = table.assign(**{name: [_written(v) for v in table[name]]})
    results = evaluator.evaluateAll(table)
    if errors is not None and "errors" in results:
        errors += [None if e is None or e != e else str(e) for e in results["errors"]]
    return {n: list(results[n]) for n in names if n in results}


def same(actual: Any, expected: Any) -> bool:
    if expected is None or expected != expected:
        return actual == "" or actual != actual
    try:
        a, b = float(actual), float(expected)
    except (TypeError, ValueError):
        return str(actual) == str(expected)
    return a == b or abs(a - b) <= ABSOLUTE + RELATIVE * abs(b)


def wrong_columns(actual: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    problems = []
    for name, values in expected.items():
        if name not in actual:
            problems.append(f"{name}: not there")
            continue
        rows = [
            (i, a, b)
            for i, (a, b) in enumerate(zip(actual[name], values, strict=True))
            if not same(a, b)
        ]
        if rows:
            problems.append(f"{name}: {len(rows)} rows, {rows[:2]}")
    return problems


def of_pipeline(pipeline: Any, x: Any, y: Any) -> dict[str, Any]:
    """What the pipeline itself gives, under the names that sklearn2pmml uses."""
    names = [y.name] if y.ndim == 1 else list(y.columns)
    predicted = np.asarray(pipeline.predict(x)).reshape(len(x), -1)
    wants = {str(n): predicted[:, i] for i, n in enumerate(names) if i < predicted.shape[1]}
    if hasattr(pipeline, "predict_proba") and hasattr(pipeline, "classes_"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                probabilities = pipeline.predict_proba(x)
            except Exception:
                return wants
        if not isinstance(probabilities, list) and y.ndim == 1:
            for i, label in enumerate(pipeline.classes_):
                wants[f"probability({label})"] = probabilities[:, i]
    return wants


def tried(case: Any, path: Path) -> tuple[str, str]:
    try:
        pipeline, x, y = case()
        pipeline.fit(x[:TRAINING_ROWS], y[:TRAINING_ROWS])
        convert(pipeline, path)
    except Exception as error:
        return "unconverted", str(error).strip().splitlines()[0][:150] if str(error) else repr(
            error
        )
    try:
        model = sx.from_pmml(path)
    except ImportRefused as error:
        return "refused", " ".join(str(error).splitlines()[:2])
    except Exception as error:
        return "failed", "".join(traceback.format_exception(error))[-600:]
    actual = score(model, x)
    theirs = jpmml(path, x)
    try:
        wants = of_pipeline(pipeline, x, y)
    except NotFittedError:  # steps without a state are never said to be fitted
        wants = {}
    of_jpmml = wrong_columns(actual, theirs)
    if of_jpmml:
        source = wrong_columns(actual, {n: v for n, v in wants.items() if n in actual})
        return "wrong" if source else "JPMML differs", f"against JPMML: {of_jpmml[:3]} {source[:2]}"
    mine = {n: v for n, v in wants.items() if n in actual}
    of_source = wrong_columns(actual, mine)
    if of_source:
        return "differs", f"as JPMML does: {of_source[:2]}"
    return "right", f"{len(theirs)} columns, {len(mine)} of the pipeline"


def main(arguments: list[str] | None = None) -> Counter[str]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--start", default="", help="the case to begin with")
    parser.add_argument("--keep", help="a folder in which the documents stay")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    import sklearn.base

    # The converter refuses patch releases that came after it.
    sklearn.base.__version__ = ".".join([*sklearn.base.__version__.split(".")[:2], "0"])
    start_java()
    import jpype

    jpype.JClass("java.util.logging.LogManager").getLogManager().reset()
    totals: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.keep or temporary)
        folder.mkdir(exist_ok=True)
        names = list(all_cases())
        first = names.index(options.start) if options.start else 0
        for name, case in list(all_cases().items())[first:]:
            if options.names and not any(part in name for part in options.names):
                continue
            path = folder / f"{name.replace(' ', '_').replace('/', '')}.pmml"
            try:
                verdict, reason = tried(case, path)
            except Exception as error:
                verdict, reason = "unjudged", str(error).strip()[:200]
            totals[verdict] += 1
            print(f"{name:40} {verdict:12} {reason}", flush=True)
    print(dict(totals))
    return totals


if __name__ == "__main__":
    sys.exit(1 if main()["wrong"] else 0)
