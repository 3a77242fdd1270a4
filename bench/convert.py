"""Converted modules on a CPU against the original, onnx2torch and Flax; cost of converting.

    python bench/convert.py [--parts torch,jax,conversion,memory] [--networks mlp,cnn,lstm]
                            [--seconds 3] [--peers FOLDER] [--clock wall|processor]

Ratios are median times of the converted module (or jitted function) over those of the contender,
from one interleaved run; below 1, ours is faster. Training is forward and backward. `--peers` names
a folder in which onnx2torch is installed, which is taken along where it converts: the same file,
or what torch's older exporter writes, which folds batch normalization into convolutions (*). On a
machine that others use too, `--clock processor` with one thread (OMP_NUM_THREADS=1) counts the time
that the process ran rather than the time that passed. `memory` writes a model of 2 GB with external
data and converts it in a fresh process: memory that the process has written must stay far below the
weights. Each part prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import io
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.architectures import Gpt

import sardonyx as sx
from networks import NETWORKS, Network, export

# What torch's exporter and the peers say to themselves.
warnings.filterwarnings("ignore")
logging.disable(logging.ERROR)
PARTS = "torch,jax,conversion,memory"
SHOWN = "mlp,cnn,resnet18,transformer,gpt,lstm,separable"


CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
clock = CLOCKS["wall"]


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
            begun = clock()
            turns[name]()
            times[name].append(1e3 * (clock() - begun))
        order = order[1:] + order[:1]
    return {name: statistics.median(result) for name, result in times.items()}


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


def peer(folder: str | None) -> Callable[..., Any] | None:
    """onnx2torch from its own folder, over our torch; None with a word where it cannot be had."""
    if folder is None:
        return None
    sys.path.append(folder)
    # It imports torchvision for two operators that no network here has; another version of torch's
    # does not load.
    vision, ops = types.ModuleType("torchvision"), types.ModuleType("torchvision.ops")
    vision.ops, ops.roi_align = ops, None  # type: ignore[attr-defined]
    stubs = {"torchvision": vision, "torchvision.ops": ops}
    sys.modules.update(stubs)
    try:
        from onnx2torch import convert
    except ImportError as error:
        print(f"onnx2torch is left out: {error}")
        return None
    finally:
        sys.path.remove(folder)
        for name in stubs:
            del sys.modules[name]
    return convert


def older(network: Network, module: torch.nn.Module) -> Any:
    """The module as torch's older exporter writes it."""
    buffer = io.BytesIO()
    x = torch.tensor(network.batch()[0])
    torch.onnx.export(module.eval(), (x,), buffer, dynamo=False, opset_version=16)
    return onnx.load_from_string(buffer.getvalue())


def converted_by_peer(convert: Any, network: Network, module: torch.nn.Module, proto: Any) -> Any:
    """The peer's module, with a mark if it took the other file; a reason where it took none."""
    try:
        return convert(proto), ""
    except Exception:
        pass
    try:
        return convert(older(network, module)), " (*)"
    except Exception as error:
        return None, f"does not convert ({type(error).__name__})"


def varied(module: torch.nn.Module) -> torch.nn.Module:
    """Fresh norms are all alike, and exporters write them once: as if it had been trained."""
    with torch.no_grad():
        for p in module.parameters():
            p += 0.01 * torch.randn_like(p)
    return module


def torch_rows(network: Network, seconds: float, convert: Any) -> None:
    module = varied(network.module())
    proto = export(network, module)
    x = torch.tensor(network.batch()[0])
    contenders = {"converted": sx.to_torch(sx.load(proto)), "original": module}
    notes = {}
    mark = ""
    if convert is not None:
        made, mark = converted_by_peer(convert, network, module, proto)
        contenders |= {} if made is None else {"onnx2torch": made}
        notes |= {"onnx2torch": mark} if made is None else {}
    with torch.no_grad():
        expected = module.eval()(x)
        for name, one in list(contenders.items()):
            result = one.eval()(x)
            if not torch.allclose(result, expected, rtol=1e-3, atol=1e-4):
                notes[name] = f"wrong by {(result - expected).abs().max():.1e}"
                del contenders[name]
    for mode in ("inference", "training"):
        turns = {name: runs(one, x)[mode] for name, one in contenders.items()}
        times = medians(turns, seconds)
        ours = times["converted"]
        cells = [f"{ours / times[n]:.2f}" if n in times else notes.get(n, "not run")
                 for n in ("original", "onnx2torch")]  # fmt: skip
        cells[1] += mark if "onnx2torch" in times else ""
        if mode == "training" and "onnx2torch" in times:
            share = trained(contenders["onnx2torch"]) / trained(module)
            cells[1] += f", training {share:.0%} of the weights" if share < 0.995 else ""
        row(network.name, mode, f"{ours:.2f}", *cells)


def trained(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def row(*cells: str) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def header(*cells: str) -> None:
    print()
    row(*cells)
    print("|" + "---|" * len(cells))


def flax_rows(network: Network, seconds: float) -> None:
    """The jitted function of `to_jax` against the same network in Flax."""
    import jax
    from flax import nnx
    from networks_flax import FLAX

    module = network.module()
    apply, params = sx.to_jax(sx.load(export(network, module)))
    make, laid_out = FLAX[network.name]
    x = network.batch()[0]
    inputs = jax.numpy.asarray(x), jax.numpy.asarray(laid_out(x))
    definition, trained, rest = nnx.split(make(module.eval()), nnx.Param, ...)

    def flax_apply(trained: Any, x: Any) -> Any:
        return nnx.merge(definition, trained, rest)(x)

    def step(function: Callable[..., Any]) -> Callable[..., Any]:
        return jax.jit(jax.grad(lambda p, x: (function(p, x) ** 2).mean()))

    expected = module(torch.tensor(x)).detach().numpy()
    for name, result in (
        ("ours", apply(params, inputs[0])),
        ("flax", flax_apply(trained, inputs[1])),
    ):
        if not np.allclose(result, expected, rtol=1e-3, atol=1e-4):
            print(f"{network.name}: {name} is wrong by {np.abs(result - expected).max():.1e}")
            return
    pairs = {
        "inference": (jax.jit(apply), jax.jit(flax_apply)),
        "training": (step(apply), step(flax_apply)),
    }
    for mode, (ours, flax) in pairs.items():
        turns = {
            "converted": lambda f=ours: jax.block_until_ready(f(params, inputs[0])),
            "flax": lambda f=flax: jax.block_until_ready(f(trained, inputs[1])),
        }
        times = medians(turns, seconds)
        ratio = times["converted"] / times["flax"]
        row(network.name, mode, f"{times['converted']:.2f}", f"{ratio:.2f}")


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
        source = Path(folder, "source")
        ways = {
            "to_torch": sx.to_torch,
            "to_jax": sx.to_jax,
            "to_torch_source": lambda model: sx.to_torch_source(model, source),
        }
        for name, convert in ways.items():
            begun = clock()
            model = sx.load(path)
            loaded = clock()
            convert(model)
            row(name, f"{loaded - begun:.1f}", f"{clock() - loaded:.1f}")


CHILD = """
import os, sys, warnings
warnings.filterwarnings("ignore")
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
from pathlib import Path
import numpy as np
import sardonyx as sx

def written():
    rows = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(r.split()[1]) for r in rows if r.startswith("Anonymous:")) / 2**20

x = np.zeros((1, 8192), np.float32)
ways = {"to_torch": sx.to_torch, "to_jax": sx.to_jax, "to_tensorflow": sx.to_tensorflow}
ways["to_torch(share=False)"] = lambda model: sx.to_torch(model, share=False)
small, large, way = sys.argv[1:]
convert = ways[way]
convert(sx.load(small))
before = written()
made = convert(sx.load(large))
middle = written()
if way == "to_jax":
    np.asarray(made[0](made[1], x))
elif way == "to_tensorflow":
    made(x)
else:
    import torch
    with torch.no_grad():
        made(torch.from_numpy(x))
print(f"{middle - before:.2f} {written() - before:.2f}")
"""


def large(folder: Path, width: int, count: int) -> Path:
    """A chain of products with external weights."""
    import onnx_ir as ir

    folder.mkdir()
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
    ir.save(ir.Model(graph, ir_version=10), folder / "m.onnx", external_data="m.data")
    return folder / "m.onnx"


def memory() -> None:
    """Memory that is written while 2 GB of external weights are converted, and then run once."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        paths = [large(Path(folder, "small"), 8, 1), large(Path(folder, "large"), 8192, 8)]
        size = Path(folder, "large", "m.data").stat().st_size / 2**30
        for way in ("to_torch", "to_torch(share=False)", "to_jax", "to_tensorflow"):
            command = [sys.executable, "-c", CHILD, *map(str, paths), way]
            done = subprocess.run(command, capture_output=True, text=True)
            result = done.stdout.split() or [done.stderr[-300:], ""]
            row(way, f"{size:.2f}", *result[-2:])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--parts", default=PARTS)
    parser.add_argument("--networks", default=SHOWN)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--peers", metavar="FOLDER")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    options = parser.parse_args()
    global clock
    clock = CLOCKS[options.clock]
    parts, names = options.parts.split(","), options.networks.split(",")
    chosen = [n for n in NETWORKS if n.name in names]
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {options.clock} time")
    if "torch" in parts:
        header("network", "", "converted, ms", "to the original", "to onnx2torch")
        convert = peer(options.peers)
        for network in chosen:
            torch_rows(network, options.seconds, convert)
    if "jax" in parts:
        header("network", "", "converted, ms", "to Flax")
        for network in (n for n in chosen if n.name in ("mlp", "cnn", "transformer")):
            flax_rows(network, options.seconds)
    if "conversion" in parts:
        header("12 layers, 768 wide", "load, s", "convert, s")
        conversion()
    if "memory" in parts:
        header("", "weights, GiB", "written while converting, GiB", "and running, GiB")
        memory()


if __name__ == "__main__":
    main()
