"""Finding faults: `verify` beside a fixed tolerance and beside Polygraphy, over the same mutants.

For each fault of `tests/mutants.py`: whether it is found, and whether the right node is named; then
correct conversions, where nothing may be found. Polygraphy is put into a folder of its own for this
run and judges with its own defaults (inputs uniform in [0, 1), tolerances of 1e-5); where it cannot
be had its column says so.

    python bench/verify.py [engine ...]     for the correct conversions; default: numpy torch
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests.mutants import MUTANTS, NETWORKS  # noqa: E402

import sardonyx as sx  # noqa: E402
from sardonyx.verify.subjects import OnnxSubject, runner  # noqa: E402

SEEDS = 2
LOOSE, TIGHT = 1e-3, 1e-5
POLYGRAPHY = """
import json, sys
from polygraphy.backend.onnxrt import OnnxrtRunner, SessionFromOnnx
from polygraphy.comparator import Comparator
from polygraphy.logger import G_LOGGER
G_LOGGER.module_severity = G_LOGGER.CRITICAL
found = {}
for name, a, b in json.load(open(sys.argv[1])):
    runners = [OnnxrtRunner(SessionFromOnnx(p), name=n) for n, p in (("a", a), ("b", b))]
    try:
        found[name] = bool(Comparator.compare_accuracy(Comparator.run(runners)))
    except Exception as error:
        found[name] = str(error)[:80]
print(json.dumps(found))
"""


def within(a: dict[str, np.ndarray], b: dict[str, np.ndarray], tolerance: float) -> bool:
    return all(
        x.shape == y.shape and np.allclose(y, x, rtol=tolerance, atol=tolerance)
        for x, y in zip(a.values(), b.values(), strict=True)
    )


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))


def polygraphy(pairs: list[tuple[str, Path, Path]], folder: Path) -> dict[str, bool | str]:
    """Its verdict for each pair of files; empty where it cannot be installed."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps"]
    got = subprocess.run(
        [*command, "--target", str(folder / "packages"), "polygraphy"], capture_output=True
    )
    if got.returncode:
        return {}
    (folder / "pairs.json").write_text(json.dumps([[n, str(a), str(b)] for n, a, b in pairs]))
    done = subprocess.run(
        [sys.executable, "-c", POLYGRAPHY, str(folder / "pairs.json")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(folder / "packages")},
    )
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}


def faults(others: dict[str, bool | str]) -> None:
    print(f"{'fault':58} {'1e-3':>7} {'polygraphy':>10} {'verify':>7} {'ratio':>9}  node")
    counts = {"tolerance": 0, "polygraphy": 0, "verify": 0, "named": 0}
    for mutant in MUTANTS:
        right, wrong = NETWORKS[mutant.network](), mutant.model()
        report = sx.verify(OnnxSubject(sx.load(right), name="right"), wrong, seeds=SEEDS)
        caught = not all(tolerated(right, wrong, d.inputs) for d in report.data)
        other = others.get(str(mutant))
        found = report.verdict == "different"
        named = bool(report.culprit) and report.culprit.node == f"node/{mutant.node}"
        counts["tolerance"] += caught
        counts["polygraphy"] += other is False
        counts["verify"] += found
        counts["named"] += found and named
        shown = {None: "-", False: "found", True: "missed"}.get(other, "failed")  # type: ignore[call-overload]
        node = "right" if named else report.culprit.node if report.culprit else "-"
        print(
            f"{mutant!s:58.58} {'found' if caught else 'missed':>7} {shown:>10} "
            f"{'found' if found else 'missed':>7} {report.ratio:9.3g}  {node}"
        )
    total = len(MUTANTS)
    print(f"\n{total} faults: tolerance 1e-3 finds {counts['tolerance']} and names none,")
    if others:
        print(f"Polygraphy finds {counts['polygraphy']} and names none,")
    else:
        print("Polygraphy could not be installed here,")
    share = counts["verify"] / total
    right_node = counts["named"] / counts["verify"]
    print(
        f"verify finds {counts['verify']} ({share:.0%}), the right node for {right_node:.0%} "
        f"of them"
    )


def tolerated(right: onnx.ModelProto, wrong: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> bool:
    try:
        return within(run(right, feeds), run(wrong, feeds), LOOSE)
    except (ValueError, RuntimeError):  # another shape, or it does not run
        return False


def correct(engines: list[str], others: dict[str, bool | str]) -> None:
    """Correct conversions: how often each judge raises an alarm."""
    count, alarms = 0, {"verify": 0, f"{TIGHT:g}": 0, f"{LOOSE:g}": 0}
    top = 0.0
    for make in NETWORKS.values():
        for engine in engines:
            report = sx.verify(make(), engine, seeds=SEEDS)
            count += 1
            alarms["verify"] += report.verdict == "different"
            top = max(
                top, *(m.ratio if m.forced is None else m.forced for m in report.measurements)
            )
            for tolerance in (TIGHT, LOOSE):
                fine = [
                    within(
                        run(make(), d.inputs), runner(engine)(sx.load(make()))(d.inputs), tolerance
                    )
                    for d in report.data
                ]
                alarms[f"{tolerance:g}"] += not all(fine)
    listed = ", ".join(f"{judge} {n}" for judge, n in alarms.items())
    print(f"\n{count} correct conversions ({', '.join(engines)}), alarms: {listed}")
    print(f"largest ratio of a correct conversion: {top:.2f}")
    same = [k for k in others if k.startswith("correct")]
    if same:
        wrong = sum(others[k] is not True for k in same)
        print(f"Polygraphy, each file against its optimized self: {wrong} alarms of {len(same)}")


def files(folder: Path) -> list[tuple[str, Path, Path]]:
    """Every pair that Polygraphy is asked about, on disk."""
    pairs = []
    for name, make in NETWORKS.items():
        onnx.save(make(), folder / f"{name}.onnx")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.optimized_model_filepath = str(folder / f"{name}.optimized.onnx")
        onnxruntime.InferenceSession(
            str(folder / f"{name}.onnx"), options, providers=["CPUExecutionProvider"]
        )
        pairs.append(
            (f"correct {name}", folder / f"{name}.onnx", folder / f"{name}.optimized.onnx")
        )
    for index, mutant in enumerate(MUTANTS):
        path = folder / f"mutant{index}.onnx"
        onnx.save(mutant.model(), path)
        pairs.append((str(mutant), folder / f"{mutant.network}.onnx", path))
    return pairs


def main() -> None:
    engines = sys.argv[1:] or ["numpy", "torch"]
    with tempfile.TemporaryDirectory() as scratch:
        others = polygraphy(files(Path(scratch)), Path(scratch))
        faults(others)
        correct(engines, others)


if __name__ == "__main__":
    main()
