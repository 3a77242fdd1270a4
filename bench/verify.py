"""Finding faults: `verify` beside a fixed tolerance and beside Polygraphy, over the same mutants.

For each fault of `tests/mutants.py`: whether it is found, and whether the right node is named; then
correct conversions, where nothing may be found. Polygraphy is put into a folder of its own for this
run and judges with its own defaults (inputs uniform in [0, 1), tolerances of 1e-5); where it cannot
be had its column says so.

    python bench/verify.py [engine ...]     for the correct conversions; default: numpy torch
    python bench/verify.py --markdown docs/reference/faults.md      the table as a page as well
"""

from __future__ import annotations

import argparse
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
    result = subprocess.run(
        [*command, "--target", str(folder / "packages"), "polygraphy"], capture_output=True
    )
    if result.returncode:
        return {}
    (folder / "pairs.json").write_text(json.dumps([[n, str(a), str(b)] for n, a, b in pairs]))
    done = subprocess.run(
        [sys.executable, "-c", POLYGRAPHY, str(folder / "pairs.json")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(folder / "packages")},
    )
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}


HEADER = ["fault", "tolerance 1e-3", "Polygraphy", "verify", "ratio", "node named"]
SHOWN = {None: "-", False: "found", True: "missed"}
WIDTHS = (58, 14, 10, 7, 9, 10)


def faults(others: dict[str, bool | str]) -> tuple[list[list[str]], list[str]]:
    """The table of all faults, and what it amounts to; printed as it grows."""
    rows, counts = [], dict.fromkeys(("tolerance", "polygraphy", "verify", "named"), 0)
    print("  ".join(f"{c:{w}.{w}}" for c, w in zip(HEADER, WIDTHS, strict=True)))
    for mutant in MUTANTS:
        right, wrong = NETWORKS[mutant.network](), mutant.model()
        report = sx.verify(OnnxSubject(sx.load(right), name="right"), wrong, seeds=SEEDS)
        caught = not all(tolerated(right, wrong, d.inputs) for d in report.data)
        other = others.get(str(mutant))
        result = report.verdict == "different"
        culprit = report.culprit
        named = culprit is not None and culprit.node == f"node/{mutant.node}"
        counts["tolerance"] += caught
        counts["polygraphy"] += other is False
        counts["verify"] += result
        counts["named"] += result and named
        shown = SHOWN.get(other, "failed") if not isinstance(other, str) else "failed"
        node = "the right" if named else culprit.node if culprit else "-"
        words = ["found" if x else "missed" for x in (caught, result)]
        rows.append([str(mutant), words[0], shown, words[1], f"{report.ratio:.3g}", node])
        cells = zip(rows[-1], WIDTHS, strict=True)
        print("  ".join(f"{c:{w}.{w}}" for c, w in cells), flush=True)
    return rows, summed(counts, bool(others))


def summed(counts: dict[str, int], installed: bool) -> list[str]:
    total, result = len(MUTANTS), counts["verify"]
    other = f"Polygraphy finds {counts['polygraphy']} and names none"
    return [
        f"{total} faults: a tolerance of 1e-3 finds {counts['tolerance']} and names none",
        other if installed else "Polygraphy could not be installed here",
        f"verify finds {result} ({result / total:.0%}), the right node for {counts['named']} "
        f"({counts['named'] / max(result, 1):.0%} of them)",
    ]


def page(rows: list[list[str]], words: list[str]) -> str:
    """The table as a page of the documentation."""
    lines = [
        "# Faults that are found",
        "",
        "What a converter could get wrong, in seven small networks, and who notices. `infinite` is",
        "a difference where no rounding is allowed. Written by `bench/verify.py --markdown`.",
        "",
        *(f"- {text}" for text in words),
        "",
        f"| {' | '.join(HEADER)} |",
        f"|{'---|' * len(HEADER)}",
        *(f"| {' | '.join(row).replace('inf', 'infinite')} |" for row in rows),
    ]
    return "\n".join([*lines, ""])


def tolerated(right: onnx.ModelProto, wrong: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> bool:
    try:
        return within(run(right, feeds), run(wrong, feeds), LOOSE)
    except (ValueError, RuntimeError):  # another shape, or it does not run
        return False


def correct(engines: list[str], others: dict[str, bool | str]) -> list[str]:
    """Correct conversions: how often each judge raises an alarm."""
    count, alarms = 0, {"verify": 0, f"{TIGHT:g}": 0, f"{LOOSE:g}": 0}
    top = 0.0
    for make in NETWORKS.values():
        for engine in engines:
            report = sx.verify(make(), engine, seeds=SEEDS)
            count += 1
            alarms["verify"] += report.verdict == "different"
            top = max(top, report.ratio)
            for tolerance in (TIGHT, LOOSE):
                fine = [
                    within(
                        run(make(), d.inputs), runner(engine)(sx.load(make()))(d.inputs), tolerance
                    )
                    for d in report.data
                ]
                alarms[f"{tolerance:g}"] += not all(fine)
    listed = ", ".join(f"{judge} {n}" for judge, n in alarms.items())
    words = [
        f"{count} correct conversions ({', '.join(engines)}), alarms: {listed}; largest ratio of a "
        f"correct one: {top:.2f}"
    ]
    same = [k for k in others if k.startswith("correct")]
    if same:
        wrong = sum(others[k] is not True for k in same)
        words.append(f"Polygraphy, each file against its optimized self: {wrong} of {len(same)}")
    return words


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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("engines", nargs="*", default=["numpy", "torch"])
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        others = polygraphy(files(Path(scratch)), Path(scratch))
        rows, words = faults(others)
        words += correct(options.engines, others)
    print("", *words, sep="\n")
    if options.markdown:
        options.markdown.write_text(page(rows, words), encoding="utf-8")


if __name__ == "__main__":
    main()
