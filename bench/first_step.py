"""Seconds from `sx.train(...)` to the first finished step, on onnxruntime.

    python bench/first_step.py [--networks cnn,transformer] [--threads 2] [--runs 3]

The convolutional network of `bench/train.py`, and a transformer of 12 layers, 768 wide, of 2 × 32
tokens, each from a file in a fresh process. Imports are not counted. CPU time is that of all
threads, which also count where they wait by spinning.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

FLOORS = {"cnn": 1.5, "transformer": 5.0}
RUN = """
import time, numpy as np, sardonyx as sx, onnxruntime
from sardonyx.engines import onnxruntime as engine
sx.train, sx.trainable
data = dict(np.load("data.npz"))
wall, cpu = time.perf_counter(), time.process_time()
def report(run):
    print(time.perf_counter() - wall, time.process_time() - cpu)
sx.train("net.onnx", data, steps=1, batch_size=len(data["label"]), loss="cross_entropy",
         engine_options={{"threads": {threads}}}, callbacks=[report])
"""


def cnn(folder: Path) -> None:
    from networks import NETWORKS, export

    network = next(n for n in NETWORKS if n.name == "cnn")
    proto = export(network, network.module())
    (folder / "net.onnx").write_bytes(proto.SerializeToString())
    x, y = network.batch()
    np.savez(folder / "data.npz", **{proto.graph.input[0].name: x, "label": y})


def transformer(folder: Path) -> None:
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = torch.nn.TransformerEncoderLayer(
                768, 12, 3072, 0.0, batch_first=True, norm_first=True
            )
            self.embedding = torch.nn.Embedding(1000, 768)
            self.body = torch.nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
            self.head = torch.nn.Linear(768, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(self.embedding(x)).mean(1))

    x = torch.randint(0, 1000, (2, 32))
    torch.onnx.export(
        Net().eval(), (x,), folder / "net.onnx", dynamo=True, input_names=["x"], verbose=False,
        external_data=False,
    )  # fmt: skip
    np.savez(folder / "data.npz", x=x.numpy(), label=np.zeros(2, np.int64))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--networks", default="cnn,transformer")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    chosen = parser.parse_args()
    code = RUN.format(threads=chosen.threads)
    for name in chosen.networks.split(","):
        with tempfile.TemporaryDirectory() as place:
            {"cnn": cnn, "transformer": transformer}[name](Path(place))
            lines = [
                subprocess.run(
                    [sys.executable, "-c", code], cwd=place, capture_output=True, text=True,
                    check=True,
                ).stdout.split()
                for _ in range(chosen.runs)
            ]  # fmt: skip
        wall, cpu = (statistics.median(float(line[i]) for line in lines) for i in (0, 1))
        met = "met" if wall <= FLOORS[name] else "MISSED"
        print(f"{name:12} wall {wall:.2f} s, CPU {cpu:.2f} s; floor {FLOORS[name]} s: {met}")


if __name__ == "__main__":
    main()
