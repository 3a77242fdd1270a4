"""Adapters against full fine-tuning: peak memory and time of a step, each in a process of its own.

    python bench/lora.py [--networks transformer,gpt,gpt2] [--rank 8] [--steps 12]
                         [--rows 1] [--tokens 32] [--recompute]
    python bench/lora.py --large 1.0     LoRA steps of a generated model of so many 10⁹ parameters
    python bench/lora.py --quick         one small network: whether it runs at all

Every process reads the same file with external data and takes AdamW steps on the same batch, with
one thread. "peak" is the largest resident memory of the process; "above start" is that less what is
resident when everything is imported and the batch exists. The time is the median of CPU time.
Activations cost both alike: the larger the batch (`--rows`, by default that of bench/train.py, and
`--tokens` of a decoder, by default 128), the closer the ratios are to that of the forward pass and
the gradients of activations alone, 2/3. `--recompute` computes activations of the adapters' steps
twice instead of keeping them. The
interpreter and the libraries cost both alike, too: the larger the model, the less they count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

MEGABYTE = 2**20
FLOORS = {"peak": 0.35, "time": 0.45}


def status(field: str) -> float:
    """A field of this process's memory, in megabytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


def child(path: Path, rank: int, steps: int, recompute: bool) -> None:
    """Train `path` and print the figures; rank 0 trains all weights."""
    import sardonyx as sx
    from sardonyx.engines.onnxruntime import prepare_training

    with np.load(path.with_suffix(".npz")) as archive:
        batch = dict(archive)
    start = status("VmRSS")
    model = sx.lora(path, rank=rank) if rank else sx.load(path)
    net = sx.trainable(model, "cross_entropy", sx.optim.adamw(1e-3), labels=["label"])
    rep = prepare_training(net, threads=1, recompute=recompute)
    del model, net
    prepared = status("VmHWM")
    times, losses = [], []
    for _ in range(steps):
        begin = time.process_time()
        losses.append(float(rep.step(batch)["loss"]))
        times.append(time.process_time() - begin)
    figures = {
        "start": start,
        "prepared": prepared,
        "peak": status("VmHWM"),
        "time": statistics.median(times[2:] or times),
        "losses": [losses[0], losses[-1]],
    }
    print(json.dumps(figures))


def measured(path: Path, rank: int, steps: int, recompute: bool = False) -> dict[str, Any]:
    arguments = ["--child", str(path), "--rank", str(rank), "--steps", str(steps)]
    arguments += ["--recompute"] * recompute
    done = subprocess.run(
        [sys.executable, __file__, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def write(name: str, folder: Path, rows: int | None, tokens: int | None) -> Path:
    """A network of the benchmark as a file with external data, and its batch."""
    import sardonyx as sx
    from networks import NETWORKS, export

    decoders = {"gpt": (384, 6, 6), "gpt2": (768, 12, 12)}  # 17 and 97·10⁶ parameters
    if name in decoders:
        network = decoder(name, decoders[name], rows or 8, tokens or 128)
    else:
        network = fewer_rows(next(n for n in NETWORKS if n.name == name), rows)
    model = sx.load(export(network, network.module()))
    x, labels = network.batch()
    path = sx.save(model, folder / f"{name}.onnx", external=True)
    np.savez(path.with_suffix(".npz"), **{model.inputs[0].name or "x": x, "label": labels})
    return path


def decoder(name: str, sizes: tuple[int, int, int], rows: int, tokens: int) -> Any:
    """A decoder of the benchmark's kind that reads `rows` texts of so many tokens."""
    from networks import Decoder, Network

    def integers(*shape: int) -> Any:
        return lambda rng: rng.integers(0, 8000, shape)

    return Network(
        name,
        lambda: Decoder(*sizes, length=tokens),
        integers(rows, tokens),
        integers(rows * tokens),
    )


def fewer_rows(network: Any, rows: int | None) -> Any:
    from dataclasses import replace

    inputs, labels = network.batch()
    count = rows or len(inputs)
    some = inputs[:count], labels[: len(labels) * count // len(inputs)]
    return replace(network, inputs=lambda _: some[0], labels=lambda _: some[1])


def compare(name: str, options: argparse.Namespace, steps: int, folder: Path) -> None:
    path = write(name, folder, options.rows, options.tokens)
    full = measured(path, 0, steps)
    adapters = measured(path, options.rank, steps, options.recompute)
    above = {k: v["peak"] - v["start"] for k, v in (("full", full), ("lora", adapters))}
    print(
        f"| {name} | {full['peak']:.0f} | {adapters['peak']:.0f} "
        f"| {adapters['peak'] / full['peak']:.2f} "
        f"| {above['full']:.0f} | {above['lora']:.0f} | {above['lora'] / above['full']:.2f} "
        f"| {1e3 * full['time']:.0f} | {1e3 * adapters['time']:.0f} "
        f"| {adapters['time'] / full['time']:.2f} |",
        flush=True,
    )


def large(billions: float, rank: int, steps: int, folder: Path) -> None:
    """LoRA steps of a generated stack of matrices, against the size of its file."""
    import onnx
    from onnx import helper

    import sardonyx as sx

    width = 4096
    count = max(1, round(billions * 1e9 / width**2))
    nodes, tensors = [], []
    data = folder / "large.data"
    rng = np.random.default_rng(0)
    row = (rng.normal(size=width * width) / width**0.5).astype(np.float32)
    with data.open("wb") as file:
        for i in range(count):
            np.roll(row, 7919 * i).tofile(file)
            tensor = onnx.TensorProto(name=f"w{i}", data_type=1, dims=[width, width])
            tensor.data_location = onnx.TensorProto.EXTERNAL
            for key, value in (("offset", i * row.nbytes), ("length", row.nbytes)):
                tensor.external_data.add(key=key, value=str(value))
            tensor.external_data.add(key="location", value=data.name)
            tensors.append(tensor)
            before = f"h{i - 1}" if i else "x"
            nodes += [
                helper.make_node("MatMul", [before, f"w{i}"], [f"m{i}"], name=f"product{i}"),
                helper.make_node("Tanh", [f"m{i}"], [f"h{i}"], name=f"tanh{i}"),
            ]
    graph = helper.make_graph(
        nodes,
        "large",
        [helper.make_tensor_value_info("x", 1, ["N", width])],
        [helper.make_tensor_value_info(f"h{count - 1}", 1, ["N", width])],
        tensors,
    )
    path = folder / "large.onnx"
    imports = [helper.make_opsetid("", 17)]
    path.write_bytes(helper.make_model(graph, opset_imports=imports).SerializeToString())
    sx.check(path)
    batch = rng.normal(size=(4, width)).astype(np.float32)
    np.savez(path.with_suffix(".npz"), x=batch, label=rng.integers(0, width, 4))
    size = data.stat().st_size / MEGABYTE
    figures = measured(path, rank, steps)
    print(
        f"{count * width**2 / 1e9:.2f}·10⁹ parameters, {size:.0f} MB: peak {figures['peak']:.0f} MB"
        f" ({figures['peak'] / size:.2f} × the file), losses {figures['losses']}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", default="transformer,gpt")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--large", type=float)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--child", type=Path)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.rank, options.steps, options.recompute)
        return
    with tempfile.TemporaryDirectory() as folder:
        if options.large:
            large(options.large, options.rank, options.steps, Path(folder))
            return
        print("| network | full, MB | LoRA, MB | ratio | above start, full | LoRA | ratio ", end="")
        print("| full, ms | LoRA, ms | ratio |\n|---|---|---|---|---|---|---|---|---|---|")
        names = "transformer" if options.quick else options.networks
        for name in names.split(","):
            compare(name, options, 3 if options.quick else options.steps, Path(folder))
        print(f"\nfloors: peak {FLOORS['peak']}, time {FLOORS['time']}")


if __name__ == "__main__":
    main()
