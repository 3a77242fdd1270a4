"""Train from exported files with onnxruntime, numpy and json alone; prints one loss per step as
JSON.

python train.py FOLDER
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime

folder = Path(sys.argv[1])
step = json.loads((folder / "step.json").read_text())
train = step["steps"][0]["train"]
session = lambda file: onnxruntime.InferenceSession(
    folder / file, providers=["CPUExecutionProvider"]
)

# The state starts as initialize.onnx gives it.
start = session(step["initialize"]["file"])
values = dict(zip([o.name for o in start.get_outputs()], start.run(None, {}), strict=True))
state = {name: values[output] for name, output in step["initialize"]["state"].items()}

trainer = session(train["file"])
hyper = {h["name"]: np.array(h["default"], h["type"]) for h in train["hyperparameters"]}
wanted = [f["name"] for f in train["metrics"]] + list(train["updates"].values())
losses = []
for batch in json.loads((folder / "batches.json").read_text()):
    data = {
        i["name"]: np.array(batch[i["name"]]["data"], i["type"]).reshape(batch[i["name"]]["shape"])
        for i in train["inputs"]
    }
    fed = {**data, **hyper, **{name: state[name] for name in train["state"]}}
    found = dict(zip(wanted, trainer.run(wanted, fed), strict=True))
    state.update({name: found[output] for name, output in train["updates"].items()})
    losses.append(float(found["loss"]))
print(json.dumps(losses))

# What was learned is served by infer.onnx, with the same state.
infer = session(step["infer"]["file"])
fed = {"x": data["x"], **{name: state[name] for name in step["infer"]["state"]}}
correct = infer.run(None, fed)[0].argmax(1) == data["label"]
print(f"{correct.mean():.0%} of the last batch is right", file=sys.stderr)
