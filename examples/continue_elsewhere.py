"""Stop here, go on there: a training continued in another process ends in the same bytes.

The checkpoint is the model. It holds the weights, the optimizer's state, the recipe, the random
state and the place in the data; another process, or another machine with the same software, needs
the file and the data. Dropout is on, so that a lost random state would show.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx

import sardonyx as sx

OUT = Path("out/continue_elsewhere")
EPOCHS, STOP_AT = 4, 17

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
net (float[N, 8] x) => (float[N, 3] scores)
<float[8, 32] w0, float[32] b0, float[32, 3] w1, float[3] b1, float ratio = {0.2}>
{
  h = Gemm(x, w0, b0)
  a = Relu(h)
  d = Dropout(a, ratio)
  scores = Gemm(d, w1, b1)
}"""


def model() -> onnx.ModelProto:
    """The graph above, with weights drawn for what it declares."""
    proto = onnx.parser.parse_model(MODEL)
    rng = np.random.default_rng(0)
    for value in proto.graph.value_info:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        array = rng.normal(scale=0.3, size=shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
    proto.graph.ClearField("value_info")
    return proto


def data() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(300, 8)).astype(np.float32)
    return {"x": x, "label": (x @ rng.normal(size=(8, 3))).argmax(axis=1)}


def settings() -> dict:
    return {"epochs": EPOCHS, "validation": 0.1, "optimizer": sx.optim.adamw(1e-2)}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def main() -> tuple[bytes, bytes]:
    straight, stopped = OUT / "straight" / "tuned.onnx", OUT / "stopped" / "tuned.onnx"
    for path in (straight, stopped):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
    onnx.save(model(), OUT / "model.onnx")
    np.savez(OUT / "data.npz", **data())

    sx.train(OUT / "model.onnx", OUT / "data.npz", output=straight, **settings())

    def stop(run) -> None:
        if run.position.step == STOP_AT:
            run.stop("the laptop is closed")

    again = {"output": stopped, "callbacks": [stop], **settings()}
    run = sx.train(OUT / "model.onnx", OUT / "data.npz", **again)
    print(f"stopped in the middle of epoch {run.position.epoch}, after {run.position.step} steps")

    command = [sys.executable, "-m", "sardonyx.cli.__main__", "train"]
    command += [OUT / "model.onnx", OUT / "data.npz", "-o", stopped, "--resume"]
    command += ["--epochs", str(EPOCHS), "--validation", "0.1", "--quiet"]
    subprocess.run(command, check=True)

    print(f"never stopped            {digest(straight)}")
    print(f"continued in process two {digest(stopped)}")
    return straight.read_bytes(), stopped.read_bytes()


if __name__ == "__main__":
    main()
