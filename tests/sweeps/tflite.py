"""TensorFlow Lite in and out, over everything there is.

python -m tests.sweeps.tflite                 functions of tensorflow, in every quantization
python -m tests.sweeps.tflite FILES …         files: .tflite is imported; .onnx goes out and back in

An import that is not refused is compared with LiteRT by `from_tflite` itself; a file out, by
`to_tflite`. A failure of either, or a refusal of what the first list has, is a failure here.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).parent.parent.parent))

import sardonyx as sx
from tests.tflite_functions import FUNCTIONS, converted

QUANTIZATIONS = (None, "dynamic", "float16", "int8")


def functions() -> int:
    failures = 0
    for name, (function, shapes) in FUNCTIONS.items():
        for quantize in QUANTIZATIONS:
            try:
                content = converted(function, shapes, quantize=quantize)
            except Exception as error:  # the converter's own: not ours to judge
                print(f"{name:<28} {quantize or 'float':<8} no file: {str(error)[:60]!r}")
                continue
            try:
                model = sx.from_tflite(content)
                words = model.metadata["sardonyx.verified"]
            except Exception as error:
                failures += "LiteRT itself does not run" not in str(error)
                words = f"FAILS {type(error).__name__}: {error}"
            print(f"{name:<28} {quantize or 'float':<8} {words}", flush=True)
    return failures


def operators() -> str:
    from ai_edge_litert import schema_py_generated as schema

    from sardonyx.importers.tflite.driver import CONTROL, RULES, STATE

    names = {n for n in vars(schema.BuiltinOperator) if not n.startswith("_")}
    left = names - {*RULES, *CONTROL, *STATE}
    others = sum(n.startswith("STABLEHLO") for n in left)
    return (
        f"{len(names - left)} of {len(names)} operators are read, {others} others are StableHLO's"
    )


def files(paths: list[Path]) -> int:
    failures = 0
    for path in paths:
        try:
            if path.suffix == ".tflite":
                words = sx.from_tflite(path).metadata["sardonyx.verified"]
            else:
                with tempfile.TemporaryDirectory() as folder:
                    file = sx.to_tflite(path, Path(folder) / "m.tflite", seeds=1)
                    words = (
                        f"{file.report.verdict}, {sum(file.operators.values())} operators; back "
                    )
                    words += sx.from_tflite(file.path).metadata["sardonyx.verified"]
        except sx.SardonyxError as error:
            words = f"refused: {str(error).splitlines()[0]}"
        except Exception as error:
            failures += 1
            words = f"FAILS {type(error).__name__}: {error}"
        print(f"{path.name:<40} {words}", flush=True)
    return failures


if __name__ == "__main__":
    print(operators())
    arguments = [Path(a) for a in sys.argv[1:]]
    sys.exit(1 if (files(arguments) if arguments else functions()) else 0)
