"""Source lines of `src/sardonyx` by package, at a former commit and now, new features apart.

    python bench/source_lines.py [COMMIT]

`FEATURES` lists by path what could not be done at all at the former commit; those files are counted
in a column of their own: importers and data frames; records as objects of a framework; TensorFlow
Lite, Keras and the layout of images; native steps, precision, devices; whole trainings, adapters,
quantization and pages that train; plug-ins, compiled runtimes and MATLAB code; pictures of graphs
and a few kinds of operators. What a feature needs in files that were there before counts as old.
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
    train/raw_frames.py record/front.py train/prepared.py train/learned_types.py

    record/torch_state.py record/keras_state.py record/reading.py record/directions.py
    engines/torch/objects.py engines/torch/optimizer_state.py engines/jax/objects.py
    engines/torch/source/training_script.py

    deploy.py engines/keras/ engines/tensorflow/lite.py engines/tensorflow/tflite.py
    passes/layout/ engines/channels.py

    record/native_step.py record/kinks.py engines/native_step.py
    engines/torch/native_step.py engines/torch/foreach.py engines/torch/loss_scale.py
    engines/mixed.py engines/jax/mesh.py lower/devices.py train/processes.py train/predictor.py

    train/whole/ record/hash_order.py cli/export_training.py web/ cli/export_web.py
    edit/lora.py edit/products.py edit/safetensors_file.py engines/adapters.py
    engines/onnxruntime/adapter.py cli/adapter.py
    quantize/ cli/quantize.py edit/dequantize.py passes/contrib.py
    engines/torch/source/quantized.py

    plugins.py engines/loading.py engines/declared.py engines/runtime.py engines/segments.py
    engines/plain_operators.py passes/pinning.py passes/inlining.py score/ours/general.py
    engines/openvino/ engines/iree/ engines/tract/ engines/matlab/

    picture.py engines/torch/source/loops.py engines/torch/source/signal.py
    grad/controlflow/unroll.py
"""
FEATURES = tuple(PATHS.split())


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


if __name__ == "__main__":
    main(*sys.argv[1:])
