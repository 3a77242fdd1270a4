"""PMML: how fast a document is imported, and how fast its model scores, against pypmml.

    python bench/pmml.py            # a document of 10 MB; 1,000,000 rows
    python bench/pmml.py --rows 100000
    python bench/pmml.py --threads 1    # as many as pypmml computes with

The model is a boosted ensemble behind a few transformations, over eight numbers and one text. It
scores all rows in onnxruntime, with all cores unless told otherwise; pypmml (PMML4S on the JVM)
scores fewer rows in the same run, once to warm up, and its time is scaled to all rows. The quickest
run counts. Both are given as elapsed time and as processor time, which other work on the machine
changes less. The TreeEnsemble node alone, over the rows that it gets in the model, is measured
too: no form of the graph around it is faster than that.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import sardonyx as sx

FIELDS = [f"x{i}" for i in range(8)]
TOWNS = ("Aachen", "Bonn", "Celle")
PEER_ROWS = 20_000
RUNS = 3  # of which the quickest counts


def node(depth: int, draw: random.Random, predicate: str) -> str:
    """A node of a tree, with everything below it."""
    if depth == 0:
        return f'<Node score="{draw.gauss(0, 1):.12f}">{predicate}</Node>'
    field, value = draw.choice([*FIELDS, "log"]), f"{draw.gauss(0, 1):.12f}"
    children = [
        node(
            depth - 1,
            draw,
            f'<SimplePredicate field="{field}" operator="{operator}" value="{value}"/>',
        )
        for operator in ("lessOrEqual", "greaterThan")
    ]
    return f'<Node score="0">{predicate}{"".join(children)}</Node>'


def document(trees: int, depth: int) -> str:
    """A PMML document: transformations, then a sum of trees, then a logistic function."""
    draw = random.Random(0)
    active = "".join(f'<MiningField name="{name}"/>' for name in [*FIELDS, "town"])
    target = '<MiningField name="y" usageType="target"/>'
    segments = "".join(
        f'<Segment id="{i}"><True/><TreeModel functionName="regression"><MiningSchema>'
        f'{active}<MiningField name="log"/></MiningSchema>{node(depth, draw, "<True/>")}'
        "</TreeModel></Segment>\n"
        for i in range(trees)
    )
    declared = "".join(
        f'<DataField name="{n}" optype="continuous" dataType="double"/>' for n in FIELDS
    )
    towns = "".join(f'<Value value="{town}"/>' for town in TOWNS)
    return f"""<PMML version="4.4" xmlns="http://www.dmg.org/PMML-4_4"><Header/><DataDictionary>
{declared}<DataField name="town" optype="categorical" dataType="string">{towns}</DataField>
<DataField name="y" optype="categorical" dataType="string"><Value value="no"/><Value value="yes"/>
</DataField></DataDictionary><TransformationDictionary>
<DerivedField name="log" optype="continuous" dataType="double"><Apply function="ln">
<Apply function="+"><Apply function="abs"><FieldRef field="x0"/></Apply><Constant>1</Constant>
</Apply></Apply></DerivedField></TransformationDictionary>
<MiningModel functionName="classification"><MiningSchema>{active}{target}</MiningSchema>
<Segmentation multipleModelMethod="modelChain"><Segment id="1"><True/>
<MiningModel functionName="regression"><MiningSchema>{active}</MiningSchema>
<Output><OutputField name="z" feature="predictedValue" optype="continuous" dataType="double"/>
</Output><Segmentation multipleModelMethod="sum">{segments}</Segmentation></MiningModel></Segment>
<Segment id="2"><True/><RegressionModel functionName="classification" normalizationMethod="logit">
<MiningSchema><MiningField name="z"/><MiningField name="town"/>{target}</MiningSchema>
<Output><OutputField name="p" feature="probability" value="yes" optype="continuous"
dataType="double"/></Output><RegressionTable intercept="0" targetCategory="yes">
<NumericPredictor name="z" coefficient="0.1"/>
<CategoricalPredictor name="town" value="Bonn" coefficient="0.5"/></RegressionTable>
<RegressionTable intercept="0" targetCategory="no"/></RegressionModel></Segment></Segmentation>
</MiningModel></PMML>"""


def to_onnx(source: str | Path | bytes) -> bytes:
    """The ONNX file of a PMML document: a converter for whoever judges one."""
    return sx.from_pmml(source).proto().SerializeToString()


def processor_time() -> float:
    """Seconds of processor time of this process and of those that it started (on Linux)."""
    total, pending = 0.0, [str(os.getpid())]
    while pending:
        place = Path("/proc") / pending.pop()
        try:
            fields = (place / "stat").read_text().rpartition(")")[2].split()
            for task in (place / "task").iterdir():
                pending += (task / "children").read_text().split()
        except OSError:
            continue  # it has ended
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def quickest(work: Callable[[], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The least elapsed and the least processor time of some runs, and the result of the last."""
    times = []
    for _ in range(RUNS):
        start = np.array([time.perf_counter(), processor_time()])
        result = work()
        times.append(np.array([time.perf_counter(), processor_time()]) - start)
    return np.min(times, axis=0), result


def score(
    model: bytes, rows: int, threads: int
) -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray]:
    """The times for all rows in onnxruntime, the rows, and their probabilities."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    draw = np.random.default_rng(0)
    feeds: dict[str, np.ndarray] = {name: draw.normal(size=rows) for name in FIELDS}
    feeds["town"] = draw.choice(np.array(TOWNS, object), rows)
    session.run(None, {name: column[:1000] for name, column in feeds.items()})
    seconds, probabilities = quickest(lambda: session.run(["p"], feeds)[0])
    return seconds, feeds, probabilities


def score_ensemble(model: bytes, feeds: dict[str, np.ndarray], threads: int) -> np.ndarray:
    """The times of the TreeEnsemble node alone, for the same rows."""
    import onnx
    import onnxruntime

    whole = onnx.load_from_string(model)
    # The last one: rows may be sorted by another, so that they take the same branches.
    node = [node for node in whole.graph.node if node.op_type == "TreeEnsemble"][-1]
    whole.graph.output.append(onnx.ValueInfoProto(name=node.input[0]))
    provider = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(whole.SerializeToString(), providers=provider)
    (columns,) = session.run([node.input[0]], feeds)
    kind = onnx.helper.np_dtype_to_tensor_dtype(columns.dtype)
    graph = onnx.helper.make_graph(
        [node],
        "ensemble",
        [onnx.helper.make_tensor_value_info(node.input[0], kind, ["N", columns.shape[1]])],
        [onnx.helper.make_tensor_value_info(node.output[0], kind, None)],
    )
    alone = onnx.helper.make_model(
        graph, opset_imports=whole.opset_import, ir_version=whole.ir_version
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(alone.SerializeToString(), options, providers=provider)
    return quickest(lambda: session.run(None, {node.input[0]: columns})[0])[0]


def score_peer(path: Path, feeds: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The times for some rows in pypmml, and their probabilities."""
    import pandas as pd
    from pypmml import Model

    model = Model.load(str(path))
    frame = pd.DataFrame({name: column[:PEER_ROWS] for name, column in feeds.items()})
    model.predict(frame)
    return quickest(lambda: np.asarray(model.predict(frame)["p"], np.float64))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=0, help="of onnxruntime; 0: its default")
    options = parser.parse_args()
    rows = options.rows
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.pmml"
        path.write_text(document(90, 9))
        sx.from_pmml(document(1, 1).encode())  # so that modules are loaded
        start, work = time.perf_counter(), time.process_time()
        sx.from_pmml(path)
        seconds, work = time.perf_counter() - start, time.process_time() - work
        print(
            f"import of {path.stat().st_size / 1e6:.1f} MB: {seconds:.2f} s"
            f" ({work:.2f} s of processor time)"
        )
        for trees in (1, 10, 100):
            path = Path(folder) / "model.pmml"
            path.write_text(document(trees, 5))
            model = to_onnx(path)
            seconds, feeds, ours = score(model, rows, options.threads)
            alone = score_ensemble(model, feeds, options.threads)
            peer_seconds, theirs = score_peer(path, feeds)
            scaled = peer_seconds * rows / PEER_ROWS
            difference = np.abs(ours[: len(theirs)] - theirs).max()
            print(f"{trees} trees, {rows:,} rows, largest difference {difference:.0e}")
            names = ("elapsed", "processor")
            for name, a, b, c in zip(names, seconds, scaled, alone, strict=True):
                print(
                    f"  {name} time: onnxruntime {a:.2f} s, pypmml {b:.1f} s (scaled),"
                    f" ratio {b / a:.0f}; TreeEnsemble alone {c:.2f} s, ratio {b / c:.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
