"""Start-up: `import sardonyx` and `sardonyx --help`, beside the packages that they stand on.

Medians over fresh processes that take turns. The bounds: one second for help, 1.5 for the import.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

ROUNDS = 9
CONTENDERS = {
    "python, nothing imported": ["-c", "pass"],
    "import numpy": ["-c", "import numpy"],
    "import onnx": ["-c", "import onnx"],
    "import onnxruntime": ["-c", "import onnxruntime"],
    "import sardonyx": ["-c", "import sardonyx"],
    "sardonyx --help": ["-m", "sardonyx.cli.__main__", "--help"],
}


def seconds(arguments: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    taken: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for _ in range(ROUNDS):
        for name, arguments in CONTENDERS.items():
            taken[name].append(seconds(arguments))
    onnx = statistics.median(taken["import onnx"])
    for name, times in taken.items():
        median = statistics.median(times)
        print(f"{name:26} {median:6.2f} s   {median / onnx:5.2f} x import onnx")


if __name__ == "__main__":
    main()
