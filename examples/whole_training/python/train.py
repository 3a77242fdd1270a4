"""Train with onnxruntime and numpy alone: one call, then one call per epoch; prints both curves.

python train.py FOLDER
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime

EPOCHS = 8
folder = Path(sys.argv[1])
options = onnxruntime.SessionOptions()
options.log_severity_level = 3
session = onnxruntime.InferenceSession(folder / "whole.onnx", options)
names = [output.name for output in session.get_outputs()]
data = dict(np.load(folder / "data.npz"))


def train(epochs: int, **more: np.ndarray) -> dict[str, np.ndarray]:
    numbers = {"epochs": epochs, "batch_size": 32, "seed": 0}
    feeds = {**data, **{n: np.array(v, np.int64) for n, v in numbers.items()}, **more}
    return dict(zip(names, session.run(names, feeds), strict=True))


at_once = train(EPOCHS)["history/val_loss"].tolist()

one_by_one, position = [], {}
for epoch in range(len(at_once)):  # a place to show progress, to save, or to stop
    outputs = train(1, first_epoch=np.array(epoch), **position)
    one_by_one += outputs["history/val_loss"].tolist()
    position = {n[5:]: np.atleast_1d(a) for n, a in outputs.items() if n.startswith("last/")}
    position |= {"best_value": outputs["best_value/end"], "waited": outputs["waited/end"]}
print(json.dumps([at_once, one_by_one]))
