"""Converted modules on a CPU against the original, onnx2torch and Flax; cost of converting.

    python bench/convert.py [--networks mlp,cnn,transformer] [--seconds 3] [--peers] [--memory]

Ratios are median times of the converted module (or jitted function) over those of the contender,
from one interleaved run; below 1, ours is faster. Training is forward and backward. `--peers`
installs onnx2torch into a temporary folder and takes it along where it converts. `--memory` writes
a model of 2 GB with external data and converts it in a fresh process: its private memory must stay
near one copy of the weights.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.architectures import Gpt

import sardonyx as sx
from networks import NETWORKS, Network, export

warnings.filterwarnings("ignore")
SHOWN = "mlp,cnn,resnet18,transformer,lstm"


def medians(turns: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Milliseconds of each, taking turns in changing order."""
    for run in turns.values():
        for _ in range(3):
            run()
    times: dict[str, list[float]] = {name: [] for name in turns}
    order = list(turns)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[order[0]]) < 5:
        for name in order:
            begun = time.perf_counter()
            turns[name]()
            times[name].append(1e3 * (time.perf_counter() - begun))
        order = order[1:] + order[:1]
    return {name: statistics.median(found) for name, found in times.items()}


def runs(module: Any, x: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """Inference and a training step without an optimizer."""
    parameters = [p for p in module.parameters() if p.requires_grad]

    def serve() -> None:
        with torch.no_grad():
            module.eval()(x)

    def train() -> None:
        for p in parameters:
            p.grad = None
        module.train()(x).square().mean().backward()

    return {"inference": serve, "training": train}


def peer(folder: str) -> Callable[..., Any] | None:
    """onnx2torch, installed aside; None with a word where it cannot be had."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder]
    done = subprocess.run([*command, "onnx2torch"], capture_output=True, text=True)
    sys.path.append(folder)
    try:
        from onnx2torch import convert
    except ImportError as error:
        reason = error if not done.returncode else done.stderr.strip().splitlines()[-1:]
        print(f"onnx2torch is left out: {reason}")
        return None
    return convert


def torch_rows(network: Network, seconds: float, convert: Any) -> None:
    module = network.module()
    proto = export(network, module)
    x = torch.tensor(network.batch()[0])
    contenders = {"converted": sx.to_torch(sx.load(proto)), "original": module}
    if convert is not None:
        try:
            contenders["onnx2torch"] = convert(proto)
        except Exception as error:
            print(f"  {network.name}: onnx2torch does not convert it ({type(error).__name__})")
    with torch.no_grad():
        wanted = module.eval()(x)
        for name, one in list(contenders.items()):
            found = one.eval()(x)
            if not torch.allclose(found, wanted, rtol=1e-3, atol=1e-4):
                print(f"  {network.name}: {name} is wrong by {(found - wanted).abs().max():.1e}")
                del contenders[name]
    for mode in ("inference", "training"):
        turns = {name: runs(one, x)[mode] for name, one in contenders.items()}
        times = medians(turns, seconds)
        ours = times.pop("converted")
        ratios = [f"{name} {ours / theirs:.2f}" for name, theirs in times.items()]
        print(f"  {network.name:<12} {mode:<10} {ours:8.2f} ms   ratio to {', '.join(ratios)}")


def flax_rows(seconds: float) -> None:
    """The jitted function of `to_jax` against the same network in Flax."""
    try:
        import jax
        from flax import nnx
    except ImportError:
        print("  jax or flax is not installed")
        return
    (network,) = (n for n in NETWORKS if n.name == "mlp")
    module = network.module()
    apply, params = sx.to_jax(sx.load(export(network, module)))
    x = network.batch()[0]

    class MLP(nnx.Module):
        def __init__(self) -> None:
            keys = nnx.Rngs(0)
            self.layers = nnx.List(
                [nnx.Linear(784, 512, rngs=keys), nnx.Linear(512, 512, rngs=keys),
                 nnx.Linear(512, 10, rngs=keys)]
            )  # fmt: skip

        def __call__(self, x: Any) -> Any:
            for layer in self.layers[:-1]:
                x = jax.nn.relu(layer(x))
            return self.layers[-1](x)

    theirs = MLP()
    definition, state = nnx.split(theirs)

    def flax_apply(state: Any, x: Any) -> Any:
        return nnx.merge(definition, state)(x)

    def step(function: Callable[..., Any]) -> Callable[..., Any]:
        return jax.jit(jax.grad(lambda p, x: (function(p, x) ** 2).mean()))

    pairs = {
        "inference": (jax.jit(apply), jax.jit(flax_apply)),
        "training": (step(apply), step(flax_apply)),
    }
    for mode, (ours, flax) in pairs.items():
        turns = {
            "converted": lambda f=ours: jax.block_until_ready(f(params, x)),
            "flax": lambda f=flax: jax.block_until_ready(f(state, x)),
        }
        times = medians(turns, seconds)
        ours_ms, ratio = times["converted"], times["converted"] / times["flax"]
        print(f"  mlp          {mode:<10} {ours_ms:8.2f} ms   ratio to flax {ratio:.2f}")


def conversion() -> None:
    """How long a 12-layer, 768-wide transformer takes to convert."""
    module = Gpt(fused=True).eval()
    ids = torch.randint(0, 100, (2, 16))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "gpt.onnx")
        axes = ({0: "batch", 1: "length"},)
        torch.onnx.export(
            module, (ids,), dynamo=True, verbose=False, dynamic_shapes=axes
        ).save(path, external_data=True)  # fmt: skip
        model = sx.load(path)
        for name, convert in (("to_torch", sx.to_torch), ("to_jax", sx.to_jax)):
            begun = time.perf_counter()
            convert(model)
            print(f"  {name:<16} {time.perf_counter() - begun:6.1f} s")
        begun = time.perf_counter()
        sx.to_torch_source(model, Path(folder, "source"))
        print(f"  {'to_torch_source':<16} {time.perf_counter() - begun:6.1f} s")


CHILD = """
import sys, torch
import sardonyx as sx
def private():
    rows = open("/proc/self/smaps_rollup").read().splitlines()
    found = {r.split(":")[0]: int(r.split()[1]) for r in rows[1:]}
    return found["Private_Dirty"] / 2**20
before = private()
module = sx.to_torch(sx.load(sys.argv[1]), share=sys.argv[2] == "share")
with torch.no_grad():
    module(torch.zeros(1, 8192))
print(f"{private() - before:.2f}")
"""


def memory() -> None:
    """Private memory of converting 2 GB of external weights, in a process of its own."""
    import onnx_ir as ir

    width, count = 8192, 8
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        path = Path(folder, "large.onnx")
        x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["N", width]))
        last, nodes, held = x, [], []
        array = np.full((width, width), 1e-4, np.float32)
        for i in range(count):
            name = f"layer{i}.weight"
            w = ir.Value(name=name, type=x.type, shape=ir.Shape(array.shape))
            w.const_value = ir.Tensor(array, name=name)
            held.append(w)
            nodes.append(ir.Node("", "MatMul", [last, w]))
            last = nodes[-1].outputs[0]
            last.name, last.type = f"y{i}", x.type
        graph = ir.Graph([x], [last], nodes=nodes, initializers=held, opset_imports={"": 20})
        ir.save(ir.Model(graph, ir_version=10), path, external_data="large.data")
        size = Path(folder, "large.data").stat().st_size / 2**30
        for how in ("copy", "share"):
            done = subprocess.run(
                [sys.executable, "-c", CHILD, str(path), how], capture_output=True, text=True
            )
            found = done.stdout.strip() or done.stderr[-300:]
            print(f"  {size:.2f} GiB of weights, {how:<6} private memory grows by {found} GiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--networks", default=SHOWN)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--memory", action="store_true")
    given = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    with tempfile.TemporaryDirectory() as folder:
        convert = peer(folder) if given.peers else None
        print("converted torch module")
        for network in NETWORKS:
            if network.name in given.networks.split(","):
                torch_rows(network, given.seconds, convert)
    print("converted JAX function")
    flax_rows(given.seconds)
    print("conversion of a 12-layer, 768-wide transformer")
    conversion()
    if given.memory:
        print("memory")
        memory()


if __name__ == "__main__":
    main()
