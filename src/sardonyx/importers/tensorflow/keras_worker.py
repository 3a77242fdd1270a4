"""A process of its own for Keras on its JAX backend: reads a `.keras` file, writes an ONNX file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from sardonyx.errors import SardonyxError
from sardonyx.save import save


def main(source: str, target: str, names: str) -> int:
    import keras

    from sardonyx.importers.tensorflow.keras import from_model

    try:
        model = from_model(keras.models.load_model(source, compile=False), json.loads(names))
    except (SardonyxError, ValueError, TypeError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    save(model, Path(target))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
