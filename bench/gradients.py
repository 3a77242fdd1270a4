"""Gradients as ONNX: operators covered, forward plus backward against torch and onnx-ad, cost of
building.

    python bench/gradients.py [--networks mlp,cnn] [--seconds 5] [--cpu] [--peers] [--curve]

Ratios are median times of our gradient graph on stock onnxruntime over those of the contender, from
one interleaved run; below 1, ours is faster. Weights are inputs of the graph, as in training.
`--peers` installs onnx-ad and onnxsim into a folder that is thrown away, and takes them along where
they install and convert.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import torch

sys.path.insert(0, str(Path(__file__).parent))

from train import measure

import sardonyx as sx
from networks import NETWORKS, Encoder, Network, export
from sardonyx import opset
from sardonyx.build import Builder
from sardonyx.engines.onnxruntime.session import session
from sardonyx.grad import GRADIENT_RULES, NO_GRADIENT
from sardonyx.versions import fit

FLOORS = {"mlp": 1.0, "cnn": 1.0, "transformer": 1.0, "lstm": 1.5, "separable": 1.5}
TIMED = ("mlp", "cnn", "resnet18", "transformer", "lstm", "separable")
# The operators tagged Differentiable for which onnxruntime-training registers no gradient (its
# source).
NOT_IN_ORT_TRAINING = """
    Acos Acosh Asin Asinh Atanh Cosh Sinh Tan Celu Elu HardSigmoid HardSwish Mish PRelu Selu
    Softplus Softsign SwiGLU Swish ThresholdedRelu Mean Mod Sum Det Einsum CumProd CumSum
    Hardmax NegativeLogLikelihoodLoss CausalConvWithState Col2Im GlobalLpPool LpPool
    MaxRoiPool MaxUnpool GroupNormalization InstanceNormalization LRN LpNormalization
    MeanVarianceNormalization LinearAttention Shrink CastLike CenterCropPad Compress
    DepthToSpace GridSample SpaceToDepth TensorScatter ReduceL1 ReduceLogSum ReduceMin
    ReduceProd ReduceSumSquare RNN
"""
# What prints the operators that a peer differentiates, by its own tables.
PEERS = {
    "onnx-ad": "from onnx_ad import rules, lower\n"
    "print(*rules.REVERSE, *lower.LOWERINGS, 'RNN', 'GRU', 'LSTM')",
    "onnxsim": "from onnxsim import graph_grad\nprint(*graph_grad.supported_ops())",
}
# It also takes an operator without a rule through ONNX's definition of it.
EXPANDS_BODIES = ("onnx-ad",)


def install(names: Iterable[str], folder: Path) -> dict[str, str]:
    """Install peers into a folder that is thrown away; why not, for those that do not install."""
    failed = {}
    for name in names:
        command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        command += ["--no-deps", "--target", str(folder), name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            failed[name] = f"does not install: {last_line(done.stderr)}"
    return failed


def last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1][:120]


def with_peers(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run code that may import what is installed in `folder`."""
    code = f"import sys; sys.path.insert(0, {str(folder)!r})\n{code}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def coverage(folder: Path | None, failed: dict[str, str]) -> None:
    tagged = opset.differentiable_ops()
    rules = {op for op in tagged if ("", op) in GRADIENT_RULES}
    body = {op for op in tagged if opset.has_body(op)} - rules
    zero = {op for op in tagged if ("", op) in NO_GRADIENT} - rules
    print(f"operators tagged Differentiable: {len(tagged)}")
    row("sardonyx", len(rules | body | zero), len(rules), len(body - zero), len(zero))
    listed = len(set(tagged) - set(NOT_IN_ORT_TRAINING.split()))
    print(f"  {'onnxruntime-training':22}{listed:4}  (by its list; discontinued)")
    if folder is None:
        return
    for name, code in PEERS.items():
        result = failed.get(name) or tables(folder, code)
        if isinstance(result, str):
            print(f"  {name:22}   -  {result}")
            continue
        known = result & set(tagged)
        bodies = {op for op in tagged if opset.has_body(op)} - known
        more = len(bodies) if name in EXPANDS_BODIES else 0
        row(name, len(known) + more, len(known), more)


def tables(folder: Path, code: str) -> set[str] | str:
    """The operators of a peer's tables; or why they cannot be read."""
    done = with_peers(folder, code)
    return last_line(done.stderr) if done.returncode else set(done.stdout.split())


def row(name: str, total: int, rules: int, body: int, zero: int = 0) -> None:
    parts = f"{rules} rules, {body} by body" + (f", {zero} zero" if zero else "")
    print(f"  {name:22}{total:4}  ({parts})")


def gradient(network: Network, module: torch.nn.Module) -> tuple[sx.Model, dict[str, np.ndarray]]:
    """Our gradient of the summed output with respect to all weights, which become inputs."""
    model = sx.load(export(network, module))
    names = [w.name for w in sx.weights(model) if w.kind == "weight"]
    result = sx.grad(model, wrt=names, outputs=False)
    feeds = {model.inputs[0].name or "": network.batch()[0]}
    for name in [
        n for n in names if n in result.graph.initializers
    ]:  # a sum needs no value of its last bias
        value = result.graph.initializers.pop(name)
        assert value.const_value is not None
        feeds[name] = value.const_value.numpy().copy()
        value.const_value = None
        result.graph.inputs.append(value)
    return result, feeds


def bound(run: ort.InferenceSession, feeds: dict[str, np.ndarray]) -> Callable[[], float]:
    """A call without copies: inputs bound once, outputs kept by onnxruntime."""
    binding = run.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, np.ascontiguousarray(array))
    for output in run.get_outputs():
        binding.bind_output(output.name, "cpu")

    def call() -> float:
        run.run_with_iobinding(binding)
        return 0.0

    return call


def torch_call(network: Network, module: torch.nn.Module) -> Callable[[], float]:
    x = torch.tensor(network.batch()[0])
    module.eval()

    def call() -> float:
        for p in module.parameters():
            p.grad = None
        module(x).sum().backward()
        return 0.0

    return call


def onnx_ad_call(
    network: Network, module: torch.nn.Module, peers: Path, threads: int
) -> Callable[[], float] | str:
    """onnx-ad's adjoint graph of the same model, weights as inputs; or why there is none."""
    model = fit(sx.normalize(sx.load(export(network, module))))
    proto = model.proto()
    feeds = {model.inputs[0].name or "": network.batch()[0]}
    weights = {w.name for w in sx.weights(model) if w.kind == "weight"}
    for tensor in [t for t in proto.graph.initializer if t.name in weights]:
        feeds[tensor.name] = onnx.numpy_helper.to_array(tensor)
        proto.graph.input.append(
            onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        )
        proto.graph.initializer.remove(tensor)
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "f.onnx", Path(folder) / "adj.onnx"
        onnx.save(proto, source)
        code = (
            "import onnx; from onnx_ad import reverse; "
            f"onnx.save(reverse(onnx.load({str(source)!r})), {str(target)!r})"
        )
        done = with_peers(peers, code)
        if done.returncode:
            return last_line(done.stderr)
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 4
        try:
            run = ort.InferenceSession(str(target), options)
        except Exception as error:
            return f"onnxruntime refuses its graph: {str(error)[:100]}"
    for item in run.get_inputs():
        if item.name not in feeds:
            # one seed direction: a size "nadj_x10" is 10 then
            shape = [d if isinstance(d, int) else int(d.rpartition("x")[2]) for d in item.shape]
            feeds[item.name] = np.ones(shape, np.float32)
    call = bound(run, feeds)
    try:
        call()
    except Exception as error:
        return f"its graph fails: {str(error)[:100]}"
    return call


def curve() -> None:
    """Seconds to build the gradient of longer and longer chains, and of a large transformer."""
    for count in (3125, 6250, 12500, 25000, 50000):
        model = chain(count)
        begin = time.process_time()
        sx.grad(model, wrt="x")
        spent = time.process_time() - begin
        print(f"  {count:6} nodes  {spent:6.2f} s  {spent / count * 1e6:6.0f} us a node")
    large = Network(
        "large",
        lambda: Encoder(768, 12, 12, 1000, 128),
        lambda rng: rng.integers(0, 1000, (2, 128)),
        lambda rng: rng.integers(0, 10, 2),
    )
    model = sx.load(export(large, large.module()))
    begin = time.process_time()
    names = [w.name for w in sx.weights(model) if w.kind == "weight"]
    result = sx.grad(model, wrt=names)
    print(
        f"  12 layers, 768 wide: {len(model.graph)} nodes to {len(result.graph)} in "
        f"{time.process_time() - begin:.1f} s"
    )


def chain(count: int) -> sx.Model:
    """x -> Tanh -> Mul by a constant -> … , `count` nodes."""
    op = Builder()
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["N", 4]))
    y = x
    for i in range(count):
        y = op.Tanh(y) if i % 2 else op.Mul(y, 1.01)
    y.name = "y"
    graph = ir.Graph(
        [x],
        [y],
        nodes=op.nodes,
        initializers=list(op.constants.values()),
        opset_imports={"": opset.OPSET},
        name="chain",
    )
    return sx.Model(ir.Model(graph, ir_version=10))


def line(
    network: Network, peers: Path | None, threads: int, seconds: float, clock: Callable[[], float]
) -> str:
    """One network, timed: ours over each of the others."""
    module = network.module()
    result, feeds = gradient(network, module)
    steps = {
        "sardonyx": bound(session(result, threads=threads), feeds),
        "torch": torch_call(network, module),
    }
    note = ""
    if peers is not None:
        peer = onnx_ad_call(network, module, peers, threads)
        if isinstance(peer, str):
            note = f"  onnx-ad: {peer}"
        else:
            steps["onnx-ad"] = peer
    outcome = measure(steps, seconds, clock)
    mine = outcome["sardonyx"]
    ratios = "  ".join(f"/ {n} {mine / t:.2f}" for n, t in outcome.items() if n != "sardonyx")
    verdict = ""
    if network.name in FLOORS:
        floor = FLOORS[network.name]
        verdict = f"  floor {floor}: {'met' if mine / outcome['torch'] <= floor else 'MISSED'}"
    return f"  {network.name:12} {mine * 1e3:8.2f} ms  {ratios}{verdict}{note}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--networks", default=",".join(TIMED))
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu", action="store_true", help="process CPU time at one thread")
    parser.add_argument(
        "--peers", action="store_true", help="install onnx-ad and onnxsim, and measure"
    )
    parser.add_argument("--curve", action="store_true", help="cost of building, up to 50,000 nodes")
    arguments = parser.parse_args()
    threads = 1 if arguments.cpu else arguments.threads
    torch.set_num_threads(threads)
    clock = time.process_time if arguments.cpu else time.perf_counter
    with tempfile.TemporaryDirectory() as folder:
        peers = Path(folder) if arguments.peers else None
        failed = install(PEERS, peers) if peers is not None else {}
        coverage(peers, failed)
        print("forward plus backward, ours over theirs:")
        for network in NETWORKS:
            if network.name in arguments.networks.split(","):
                takes = peers if "onnx-ad" not in failed else None
                print(line(network, takes, threads, arguments.seconds, clock), flush=True)
        if arguments.curve:
            print("building a gradient:")
            curve()


if __name__ == "__main__":
    main()
