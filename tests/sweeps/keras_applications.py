"""Every architecture of keras.applications with random weights, imported with a free batch.

    python -m tests.sweeps.keras_applications                       smallest images, with the head
    python -m tests.sweeps.keras_applications --without-top         without it
    python -m tests.sweeps.keras_applications --only "MobileNet*" --usual-size

`from_keras` compares each with Keras by the noise ratio. Architectures run in processes of their
own, with a limit of memory and time; those above `--parameters` millions are left out by name.
"""

from __future__ import annotations

import argparse
import inspect
import os
import resource
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

SECONDS, MEMORY = 1800, 24 << 30  # of addresses, most of which TensorFlow only reserves
SIZES = (32, 71, 75, 96, 128, 224)  # of images: the first that an architecture takes
TOGETHER = 4  # architectures in one process


def architectures() -> dict[str, Any]:
    import keras

    functions = vars(keras.applications).items()
    return {n: f for n, f in functions if inspect.isfunction(f) and n[0].isupper()}


def built(name: str, options: argparse.Namespace) -> Any:
    """The model with random weights, of the smallest images that it takes."""
    build = architectures()[name]
    more = {"weights": None, "include_top": not options.without_top}
    if options.usual_size:
        return build(**more)
    for size in SIZES:
        try:
            return build(input_shape=(size, size, 3), **more)
        except ValueError:
            continue
    return build(**more)


def work(names: list[str], options: argparse.Namespace) -> None:
    """Import some, one line each; they are compared with Keras on the spot."""
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    import keras

    import sardonyx as sx

    for name in names:
        keras.backend.clear_session()
        model = built(name, options)
        parameters = model.count_params()
        if parameters > options.parameters * 1e6:
            print(f"{name:24} left out  {parameters:,} parameters", flush=True)
            continue
        started = time.process_time()
        try:
            imported = sx.from_keras(model)
        except sx.SardonyxError as error:
            result = f"{type(error).__name__}  {' '.join(str(error).split())[:300]}"
        except Exception as error:
            result = f"failed  {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        else:
            seconds = time.process_time() - started
            sizes = " × ".join(str(d) for d in imported.inputs[0].shape)
            result = f"right  {len(imported.graph)} nodes, {parameters:,} parameters, {sizes}"
            result += f", {seconds:.1f} s of CPU"
        print(f"{name:24} {result}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", default="", help=argparse.SUPPRESS)
    parser.add_argument("--only", default="*", help="patterns of names, with commas")
    parser.add_argument("--without-top", action="store_true", help="without the classifier")
    parser.add_argument("--usual-size", action="store_true", help="images of the usual size")
    parser.add_argument("--parameters", type=float, default=150.0, help="millions, at most")
    options = parser.parse_args()
    if options.work:
        work(options.work.split(","), options)
        return 0
    patterns = options.only.split(",")
    names = [n for n in architectures() if any(fnmatchcase(n, p) for p in patterns)]
    counts: dict[str, int] = {}
    for start in range(0, len(names), TOGETHER):
        for line in lines_of(names[start : start + TOGETHER], options):
            word = line.split()[1]
            counts[word] = counts.get(word, 0) + 1
            print(line, flush=True)
    print(counts)
    return int(not set(counts) <= {"right", "left"})


def lines_of(names: list[str], options: argparse.Namespace) -> Iterator[str]:
    """What a process says of some architectures as it goes, and what did not come."""
    command = [sys.executable, "-W", "ignore", "-m", __spec__.name, "--work", ",".join(names)]
    command += ["--parameters", str(options.parameters)]
    command += ["--without-top"] if options.without_top else []
    command += ["--usual-size"] if options.usual_size else []
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )  # fmt: skip
    clock = threading.Timer(SECONDS, process.kill)
    clock.start()
    missing = list(names)
    assert process.stdout is not None
    for line in process.stdout:
        name = line.partition(" ")[0]
        if name in missing:
            missing.remove(name)
            yield line.rstrip()
    process.wait()
    clock.cancel()
    yield from (f"{name:24} died  memory, time or a crash" for name in missing)


if __name__ == "__main__":
    sys.exit(main())
