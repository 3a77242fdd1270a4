"""A process of its own for Keras on its JAX backend: reads a Keras file, writes an ONNX file."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from sardonyx.errors import SardonyxError
from sardonyx.save import save


def main(source: str, target: str, problem: str) -> int:
    from sardonyx.importers.keras.apart import HINT, undescribed
    from sardonyx.importers.keras.files import read
    from sardonyx.importers.keras.model import from_model

    message = json.loads(sys.stdin.read())
    options: dict[str, Any] = {key: undescribed(value) for key, value in message.items()}
    for name in options.pop("modules", []):
        importlib.import_module(name)
    safe = options.pop("safe", True)
    try:
        try:
            model = read(Path(source), options.get("training") is not False, safe)
        except (ValueError, TypeError) as error:
            report = {
                "kind": "ImportRefused",
                "what": "Keras cannot read this file on its JAX backend",
            }
            rows = [[line] for line in str(error).strip().splitlines()[:8]]
            Path(problem).write_text(json.dumps({**report, "where": rows, "hint": HINT}))
            return 1
        save(from_model(model, masked_metrics=True, **options), Path(target))
    except SardonyxError as error:
        rows = [[str(cell) for cell in row] for row in error.where]
        details = {"kind": type(error).__name__, "what": error.what, "hint": error.hint}
        Path(problem).write_text(json.dumps({**details, "where": rows}))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
