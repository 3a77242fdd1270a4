"""Source lines of `src/sardonyx` at a former commit and now, new features apart, counted twice.

    python bench/source_lines.py [COMMIT]

By file: `FEATURES` lists by path what could not be done at all at the former commit; those files
are counted in a column of their own: importers and data frames; records as objects of a framework;
TensorFlow Lite, Keras and the layout of images; native steps, precision, devices; whole trainings,
adapters, quantization and pages that train; plug-ins, compiled runtimes and MATLAB code; pictures
of graphs and a few kinds of operators. What a feature or a mended defect needs in files that were
there before counts as old, so this count is too high for the frame alone.

By change: the lines at the former commit and what the commits of `RESTRUCTURING` added and removed.
Those gave the code other names, files and types and no user anything new; all other commits brought
features or mended defects, and none of their lines is counted, neither added nor removed.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
BEFORE = "4b71392"  # the last commit before importers, devices, adapters and quantization

PATHS = """
    importers/ frames.py edit/compose.py passes/stages.py cli/import_model.py
    train/raw_frames.py train/transforms.py record/front.py train/prepared.py train/learned_types.py

    record/torch_state.py record/keras_state.py record/reading.py record/directions.py
    engines/torch/objects.py engines/torch/optimizer_state.py engines/jax/objects.py
    engines/torch/source/training_script.py

    deploy.py engines/keras/ engines/tensorflow/lite.py engines/tensorflow/tflite.py
    passes/layout/ engines/channels.py

    record/native_step.py record/kinks.py engines/native_step.py
    engines/torch/native_step.py engines/torch/foreach.py engines/torch/loss_scale.py
    engines/mixed.py engines/jax/mesh.py lower/devices.py train/processes.py train/predictor.py
    engines/rows/ engines/torch/processes.py engines/torch/parted_step.py

    engines/onnxruntime/blocks.py engines/onnxruntime/dense.py engines/onnxruntime/depthwise.py

    train/whole/ record/hash_order.py cli/export_training.py web/ cli/export_web.py
    edit/lora.py edit/products.py edit/safetensors_file.py engines/adapters.py
    engines/onnxruntime/adapter.py cli/adapter.py
    quantize/ cli/quantize.py edit/dequantize.py passes/contrib.py passes/contrib_transformer.py
    engines/torch/source/quantized.py

    plugins.py engines/loading.py engines/declared.py engines/runtime.py engines/segments.py
    engines/plain_operators.py passes/pinning.py passes/inlining.py score/ours/general.py
    engines/openvino/ engines/iree/ engines/tract/ engines/matlab/

    picture.py engines/torch/source/loops.py engines/torch/source/signal.py
    grad/controlflow/unroll.py
"""
FEATURES = tuple(PATHS.split())

COMMITS = """
    5d95852 f6b6276 83583bc a86c2a6 36df1fb 2d5252c af1eb35 52a1771 7778e82 6281211 c85f16a 46a50fb
    30a8d34 9fd40cd 0bc4a2a ac9e773 4ecc87b a4f4509 1f45a96 4a4e229 584ad43 896a834 f5155c3 4c746e2
    b35ddad 4457da1 e43729b db8f072 44cc659 0447e1f e21aeed c0b90e7 81bdc77 2ae4a96 c8cc928 ce87e62
    6231c1a 10c3ec9 23af2b4 eda931c 3475cae cd1d5c9 c38731b 593e1e4 d14e6f2 dc7b7bf 6ffda99 dbf72f7
    2ff35a9 b8b1f22 3c65319 d3e778e 5eb465c e2d489d 74fb1c2 4f362e0 c4a46a1 7411c5c a51951d
"""
RESTRUCTURING = tuple(COMMITS.split())


def git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, text=True, capture_output=True).stdout


def lines_at(commit: str) -> Iterator[tuple[str, int]]:
    """The path below `src/sardonyx` and the number of lines of every Python file at `commit`."""
    for path in git("ls-tree", "-r", "--name-only", commit, "src/sardonyx").splitlines():
        if path.endswith(".py"):
            yield path.removeprefix("src/sardonyx/"), git("show", f"{commit}:{path}").count("\n")


def lines_now() -> Iterator[tuple[str, int]]:
    package = ROOT / "src" / "sardonyx"
    for path in package.rglob("*.py"):
        yield path.relative_to(package).as_posix(), path.read_text().count("\n")


def changes_of(commit: str) -> tuple[int, int]:
    """The lines of Python that a commit added to and removed from `src/sardonyx`."""
    table = git("show", "--numstat", "--format=", "-M", commit, "--", "src/sardonyx/*.py")
    pairs = [line.split()[:2] for line in table.splitlines()]
    return sum(int(new) for new, _ in pairs), sum(int(old) for _, old in pairs)


def print_changes(start: int) -> None:
    added, removed = map(sum, zip(*map(changes_of, RESTRUCTURING), strict=True))
    print(f"\n{len(RESTRUCTURING)} commits that restructure: +{added:,} -{removed:,} lines")
    print(f"{start:,} lines before, {start + added - removed:,} after them")


def main(commit: str = BEFORE) -> None:
    before, now, features = Counter[str](), Counter[str](), Counter[str]()
    try:
        for path, count in lines_at(commit):
            before[path.split("/")[0]] += count
    except (OSError, subprocess.CalledProcessError):
        print(f"{commit} is not in this checkout: its column is empty", file=sys.stderr)
    for path, count in lines_now():
        (features if path.startswith(FEATURES) else now)[path.split("/")[0]] += count
    print(f"{'package':22}{commit:>9}{'now':>9}{'new features':>15}")
    for name in sorted(before | now | features):
        print(f"{name:22}{before[name]:9,}{now[name]:9,}{features[name]:15,}")
    print(f"{'all':22}{before.total():9,}{now.total():9,}{features.total():15,}")
    if before and commit == BEFORE:
        print_changes(before.total())


if __name__ == "__main__":
    main(*sys.argv[1:])
