"""Compiled kernels of a step: fused nodes against onnxruntime's own, node by node.

Random graphs of elementwise operators, broadcast operands and sums are fused and compared with the
same graph as it was. Where only basic operators occur, the numbers are the same to the bit.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from onnx.shape_inference import infer_shapes

import sardonyx as sx
from sardonyx.engines import c_library
from sardonyx.engines.onnxruntime import prepare_training, step_session
from sardonyx.engines.onnxruntime.kernels import fusion, library, loops
from sardonyx.engines.onnxruntime.kernels.program import FORMULAS, is_fused
from sardonyx.engines.onnxruntime.session import open_session

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(c_library.find_compiler() is None, reason="no C compiler")
LEVEL = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
FLAGS = ("And", "Or", "Not")
COMPARISONS = ("Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Equal")
BASIC = ("Add", "Sub", "Mul", "Neg", "Abs", "Relu", "Max", "Min", "Sqrt", "Div", "Reciprocal")
ROUNDED = ("Exp", "Erf", "Tanh", "Sigmoid")  # by polynomials of our own


@pytest.fixture(autouse=True)
def small_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion, "LEAST_SAVED", 0)
    monkeypatch.setattr(fusion, "SMALLEST", 1)


def session(model: onnx.ModelProto, path: str | None = None) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level, options.log_severity_level = LEVEL, 4
    options.intra_op_num_threads = 2
    if path is not None:
        options.register_custom_ops_library(path)
    data = model.SerializeToString()
    return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def fused(model: onnx.ModelProto) -> tuple[ort.InferenceSession, list[ir.Node]]:
    """The model with its groups put together, and its nodes."""
    graph = ir.serde.deserialize_model(infer_shapes(model, strict_mode=True))
    path = fusion.fuse(graph.graph)
    graph.graph.sort()
    return session(ir.serde.serialize_model(graph), path), list(graph.graph)


class Graph:
    """A graph that is written node by node."""

    def __init__(self, **inputs: tuple[Any, ...]):
        self.inputs = [helper.make_tensor_value_info(n, 1, s) for n, s in inputs.items()]
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def add(self, op_type: str, *names: str, **attributes: Any) -> str:
        name = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, names, [name], name=name, **attributes))
        return name

    def constant(self, array: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(onnx.numpy_helper.from_array(np.asarray(array), name))
        return name

    def model(self, *outputs: str) -> onnx.ModelProto:
        ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
        graph = helper.make_graph(self.nodes, "g", self.inputs, ends, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def results(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> Any:
    """What the graph gives as it is and fused, and the nodes of the fused one."""
    ours, nodes = fused(model)
    return session(model).run(None, feeds), ours.run(None, feeds), nodes


def feed(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("op_type", sorted(FORMULAS))
def test_an_operator_gives_what_onnxruntime_gives(op_type: str) -> None:
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 88.0, -88.0, 1e30], np.float32)
    rng = np.random.default_rng(0)
    a = np.concatenate([special.repeat(9), rng.normal(size=1000).astype(np.float32) * 3])
    b = np.concatenate([np.tile(special, 9), rng.normal(size=1000).astype(np.float32)])
    graph = Graph(a=("n",), b=("n",))
    flags = [graph.add("Greater", "a", "b"), graph.add("Less", "a", graph.constant(np.float32(0)))]
    if op_type in FLAGS:
        value = graph.add(op_type, *flags[: 1 if op_type == "Not" else 2])
    elif op_type == "Where":
        value = graph.add("Where", flags[0], "a", "b")
    elif op_type == "Cast":
        value = graph.add("Cast", flags[1], to=TensorProto.FLOAT)
    elif op_type in (*ROUNDED, "Abs", "Identity", "Neg", "Sqrt", "Relu", "Sign", "Reciprocal"):
        value = graph.add(op_type, "a")
    else:
        value = graph.add(op_type, "a", "b")
    if op_type in (*FLAGS, *COMPARISONS):
        value = graph.add("Cast", value, to=TensorProto.FLOAT)
    two = graph.constant(np.float32(2))
    model = graph.model(graph.add("Mul", value, two), graph.add("Mul", two, value))
    plain, ours, nodes = results(model, {"a": a, "b": b})
    assert [n for n in nodes if is_fused(n)]
    if op_type in ROUNDED:  # onnxruntime's own are less accurate
        with np.errstate(over="ignore"):
            exact = (2 * getattr(torch, op_type.lower())(torch.tensor(a).double())).float()
        np.testing.assert_allclose(ours[0], exact, rtol=4e-7, atol=1e-44)
    else:
        np.testing.assert_array_equal(ours[0], plain[0])


SHAPES: dict[str, list[tuple[int, ...]]] = {
    "images": [(4, 6, 5, 7), (6, 1, 1), (1, 6, 1, 1), (), (1, 1, 5, 7), (4, 1, 1, 1), (7,)],
    "rows": [(33, 48), (48,), (33, 1), (), (1, 48)],
    "sequences": [(3, 5, 64), (64,), (3, 5, 1), (3, 1, 64), (5, 64), (1,)],
    "one image": [(1, 3, 4, 4), (3, 1, 1), (), (4,)],
    "one number": [(1, 1), (1,), ()],
    "many": [(9, 3000), (3000,), (9, 1), ()],
}


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(s, marks=pytest.mark.slow) for s in range(2, 40))]
)
def test_random_graphs_keep_their_numbers(shapes: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    whole, *others = SHAPES[shapes]
    sizes = {f"x{i}": s for i, s in enumerate([whole, whole, *others])}
    names = {
        n: tuple("batch" if s is whole and i == 0 else d for i, d in enumerate(s))
        for n, s in sizes.items()
    }
    graph = Graph(**names)
    values, rounded = list(sizes), False
    shape_of: dict[str, tuple[int, ...]] = dict(sizes)
    for _ in range(14):
        kind = rng.choice(["binary", "binary", "unary", "where", "row"])
        pick = [str(v) for v in rng.choice(values, 3)]
        if rng.random() < 0.7:  # a graph, not a heap of nodes
            pick[0] = values[-1]
        if kind == "unary":
            op_type = str(rng.choice(["Neg", "Abs", "Relu", "Tanh", "Sigmoid", "Erf"]))
            rounded |= op_type in ROUNDED
            pick = pick[:1]
            new = graph.add(op_type, *pick)
        elif kind == "where":
            pick = pick[:2]
            flag = graph.add("Greater", *pick)
            new = graph.add("Where", flag, *pick)
        elif kind == "row" and shape_of[pick[0]] and shape_of[pick[0]][-1] >= 16:
            axes = graph.constant(np.array([-1]))
            new = graph.add("ReduceMean", pick[0], axes)
            rounded, pick = True, pick[:1]
            values.append(new)
            shape_of[new] = (*shape_of[pick[0]][:-1], 1)
            continue
        else:
            pick = pick[:2]
            new = graph.add(str(rng.choice(["Add", "Sub", "Mul", "Max", "Min"])), *pick)
        values.append(new)
        shape_of[new] = np.broadcast_shapes(*(shape_of[p] for p in pick))
    last = graph.add("Add", values[-1], "x0")
    shape_of[last] = whole
    rank = len(whole)
    axes = [int(a) for a in np.flatnonzero(rng.random(rank) < 0.6)] or [0]
    total = graph.add(
        "ReduceSum", last, graph.constant(np.array(axes)), keepdims=int(rng.integers(2))
    )
    inner = [v for v in values if v.startswith("n")][::3]
    model = graph.model(last, total, *inner)
    feeds = {n: feed(rng, *s) for n, s in sizes.items()}
    plain, ours, nodes = results(model, feeds)
    assert [n for n in nodes if is_fused(n)]
    for name, first, second in zip([last, total, *inner], plain, ours, strict=True):
        assert first.shape == second.shape, name
        if name == total or rounded:
            scale = np.abs(first).max(initial=1.0) * (50 if name == total else 5)
            np.testing.assert_allclose(second, first, rtol=2e-5, atol=1e-6 * scale, err_msg=name)
        else:
            np.testing.assert_array_equal(second, first, err_msg=name)


def test_no_rows_at_all() -> None:
    graph = Graph(x=("batch", 32), y=("batch", 32))
    product = graph.add("Mul", "x", "y")
    mean = graph.add("ReduceMean", product, graph.constant(np.array([-1])))
    value = graph.add("Sub", product, mean)
    total = graph.add("ReduceSum", value, graph.constant(np.array([0])), keepdims=0)
    empty = np.zeros((0, 32), np.float32)
    plain, ours, nodes = results(graph.model(value, total), {"x": empty, "y": empty})
    assert any(is_fused(n) for n in nodes)
    for first, second in zip(plain, ours, strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("flag", [False, True])
def test_a_free_size_may_be_one(rows: int, flag: bool) -> None:
    """A column of one number, as the last batch of an epoch has it, is read for a whole row."""
    rng = np.random.default_rng(0)
    graph = Graph(x=("batch", 600), y=("batch", 1))
    column = graph.add("Greater", "y", graph.constant(np.float32(9))) if flag else "y"
    outside = graph.add("Flatten", column)  # no member of a group
    value = graph.add("Where", outside, "x", "y") if flag else graph.add("Mul", "x", outside)
    model = graph.model(graph.add("Add", value, "x"))
    plain, ours, nodes = results(model, {"x": feed(rng, rows, 600), "y": feed(rng, rows, 1)})
    assert any(is_fused(n) for n in nodes)
    np.testing.assert_array_equal(plain[0], ours[0])


def test_a_layer_normalization_and_its_sums_are_one_node() -> None:
    rng = np.random.default_rng(0)
    graph = Graph(x=("batch", 96), g=("batch", 96), w=(96,))
    axes, first = graph.constant(np.array([-1])), graph.constant(np.array([0]))
    centred = graph.add("Sub", "x", graph.add("ReduceMean", "x", axes))
    variance = graph.add("ReduceMean", graph.add("Mul", centred, centred), axes)
    deviation = graph.add("Sqrt", graph.add("Add", variance, graph.constant(np.float32(1e-5))))
    normal = graph.add("Div", centred, deviation)
    scale = graph.add("ReduceSum", graph.add("Mul", "g", normal), first, keepdims=0)
    weighted = graph.add("Mul", "g", "w")
    mean = graph.add("ReduceMean", weighted, axes)
    along = graph.add("ReduceMean", graph.add("Mul", weighted, normal), axes)
    rest = graph.add("Sub", graph.add("Sub", weighted, mean), graph.add("Mul", normal, along))
    model = graph.model(graph.add("Div", rest, deviation), scale)
    feeds = {"x": feed(rng, 700, 96), "g": feed(rng, 700, 96), "w": feed(rng, 96)}
    plain, ours, nodes = results(model, feeds)
    assert [n.op_type for n in nodes] == ["Fused"]
    np.testing.assert_allclose(ours[0], plain[0], atol=3e-6)
    np.testing.assert_allclose(ours[1], plain[1], atol=2e-4)


@pytest.mark.parametrize("swapped", [False, True])
def test_numbers_of_rows_meet_numbers_of_columns_of_one_element(swapped: bool) -> None:
    """A node over (batch, 1) that reads a sum of rows, and a group that has this shape itself."""
    rng = np.random.default_rng(0)
    graph = Graph(x=("batch", 40), y=("batch", 1))
    mean = graph.add("ReduceMean", graph.add("Abs", "x"), graph.constant(np.array([-1])))
    scaled = graph.add("Mul", graph.add("Neg", "y"), graph.constant(np.float32(3)))
    both = graph.add("Add", *((scaled, mean) if swapped else (mean, scaled)))
    model = graph.model(both, graph.add("Sub", "x", both), graph.add("Mul", scaled, scaled))
    plain, ours, nodes = results(model, {"x": feed(rng, 30, 40), "y": feed(rng, 30, 1)})
    assert any(is_fused(n) for n in nodes)
    for first, second in zip(plain, ours, strict=True):
        assert first.shape == second.shape
        np.testing.assert_allclose(first, second, atol=2e-6)


def test_a_flag_that_is_read_outside_is_computed_there_too() -> None:
    rng = np.random.default_rng(0)
    graph = Graph(x=("batch", 40), y=(40, 8))
    doubled = graph.add("Mul", "x", graph.constant(np.float32(2)))
    flag = graph.add("Greater", doubled, graph.constant(np.float32(0.5)))
    kept = graph.add("Where", flag, doubled, graph.constant(np.float32(0)))
    count = graph.add("Cast", flag, to=TensorProto.INT64)
    outside = graph.add("Cast", count, to=TensorProto.FLOAT)
    model = graph.model(graph.add("Neg", kept), graph.add("MatMul", outside, "y"))
    plain, ours, nodes = results(model, {"x": feed(rng, 30, 40), "y": feed(rng, 40, 8)})
    assert any(is_fused(n) for n in nodes)
    for first, second in zip(plain, ours, strict=True):
        np.testing.assert_array_equal(first, second)


def test_no_group_reads_what_comes_after_it() -> None:
    """Groups that would wait for each other stay apart: a product lies between their members."""
    rng = np.random.default_rng(0)
    graph = Graph(x=("batch", 32), w=(32, 32))
    first = graph.add("Neg", "x")
    product = graph.add("MatMul", first, "w")
    second = graph.add("Mul", first, product)
    third = graph.add("MatMul", second, "w")
    model = graph.model(graph.add("Add", graph.add("Mul", first, third), second))
    plain, ours, _ = results(model, {"x": feed(rng, 20, 32), "w": feed(rng, 32, 32)})
    np.testing.assert_array_equal(plain[0], ours[0])


def network(width: int = 300) -> sx.Model:
    rng = np.random.default_rng(1)
    graph = Graph(x=("batch", 20))
    w, v = (graph.constant(feed(rng, *s) * 0.1) for s in ((20, width), (width, 4)))
    hidden = graph.add("Relu", graph.add("MatMul", "x", w))
    model = graph.model(graph.add("MatMul", hidden, v))
    model.graph.output[0].CopyFrom(
        helper.make_tensor_value_info(model.graph.output[0].name, 1, ("batch", 4))
    )
    return sx.load(model)


def steps(net: sx.Model, count: int = 4, **settings: Any) -> tuple[list[float], Any]:
    rng = np.random.default_rng(2)
    rep = prepare_training(net, threads=2, **settings)
    feeds = [{"x": feed(rng, 8, 20), "label": rng.integers(0, 4, 8)} for _ in range(count)]
    return [float(rep.step(f)["loss"]) for f in feeds], rep


@pytest.mark.parametrize("width", [300, 1200])  # below and above what is written in place
@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        ("adamw", {}),
        ("adamw", {"clip_norm": 0.1, "ema": 0.9}),
        ("sgd", {"accumulate": 2}),
        ("adam", {"l1": 1e-3, "l2": 1e-2}),
        ("lion", {}),
        ("rmsprop", {}),
    ],
)
def test_updates_in_place_are_those_of_single_operators(
    width: int, optimizer: str, settings: dict[str, Any]
) -> None:
    net = sx.trainable(network(width), "cross_entropy", optimizer, **settings)
    losses, rep = steps(net)
    plain_losses, plain = steps(net, without=["kernels"])
    exact = "clip_norm" not in settings and "l1" not in settings  # no sums over all parameters
    np.testing.assert_allclose(losses, plain_losses, rtol=0 if exact else 1e-6)
    state, plain_state = rep.state(), plain.state()
    assert rep.steps[0].session.in_place >= plain.steps[0].session.in_place
    for name, value in plain_state.items():
        np.testing.assert_allclose(
            state[name], value, rtol=0 if exact else 2e-5, atol=0 if exact else 1e-7
        )


def test_a_machine_without_a_compiler_trains_the_same_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = sx.trainable(network(), "cross_entropy", "adamw")
    compiled, _ = steps(net)
    monkeypatch.setattr(step_session, "find_compiler", lambda: None)
    assert steps(net)[0] == compiled


def test_a_compiler_that_fails_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    losses, _ = steps(sx.trainable(network(), "cross_entropy", "adamw"))
    monkeypatch.delenv("CC")
    assert losses == steps(sx.trainable(network(), "cross_entropy", "adamw"))[0]


def test_a_library_is_compiled_once(tmp_path: Path) -> None:
    """By two processes: the second finds what the first has left."""
    code = (
        "from sardonyx.engines.onnxruntime.kernels import library\n"
        "print(library.library('static const Body BODIES[1];'))"
    )
    environment = {"XDG_CACHE_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}

    def run(**extra: str) -> str:
        settings = {**os.environ, **environment, **extra}
        done = subprocess.run(
            [sys.executable, "-c", code], env=settings, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    path = Path(run())
    before = path.stat().st_ino
    assert path.parent == tmp_path / "sardonyx"
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert Path(run()) == path
    assert path.stat().st_ino == before


@pytest.mark.parametrize("damage", ["short", "empty", "changed", "removed"])
def test_a_damaged_library_is_compiled_again(
    damage: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    net = sx.trainable(network(), "cross_entropy", "adamw")
    losses, _ = steps(net)
    (path,) = (tmp_path / "sardonyx").iterdir()
    whole = path.read_bytes()
    path.unlink()  # a session has it in its memory: what is written over it would end this process
    if damage != "removed":
        middle = len(whole) // 2
        changed = whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :]
        path.write_bytes({"short": whole[:middle], "empty": b"", "changed": changed}[damage])
    assert steps(net)[0] == losses
    (path,) = (tmp_path / "sardonyx").iterdir()
    assert path.read_bytes() == whole


def test_a_library_that_cannot_be_loaded_is_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A compiler for another machine, or folders from which nothing may be run."""
    compiler = tmp_path / "cc"
    compiler.write_text(
        '#!/bin/sh\nfor a in "$@"; do [ "$last" = -o ] && echo none > "$a"; last=$a; done\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    net = sx.trainable(network(), "cross_entropy", "adamw")
    losses, _ = steps(net)
    assert losses == steps(net, without=["kernels"])[0]


def test_a_folder_that_is_not_written_to_is_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(c_library, "_folder", full)
    path = library.library("static const Body BODIES[3];")
    assert path is not None
    assert "sardonyx-kernels-" in path


def test_a_folder_that_others_write_to_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "sardonyx"
    folder.mkdir()
    folder.chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = library.library("static const Body BODIES[2];")
    assert path is not None
    assert not list(folder.iterdir())
    assert not Path(path).parent.stat().st_mode & 0o077


def test_the_body_of_a_loop_is_fused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recurrent layer, whose steps are a Scan, trains as without kernels.

    Its matrix is taken to be too large for what `loops.py` does.
    """
    monkeypatch.setattr(loops, "LARGEST", 0)
    torch.manual_seed(0)
    module = torch.nn.LSTM(12, 24, batch_first=True)
    program = torch.onnx.export(
        module.eval(), (torch.randn(3, 7, 12),), dynamo=True, verbose=False, input_names=["x"]
    )
    seen: list[onnx.ModelProto] = []

    def spied(data: bytes, **settings: Any) -> Any:
        seen.append(onnx.load_from_string(data))
        return open_session(data, **settings)

    monkeypatch.setattr(step_session, "open_session", spied)
    output = program.model_proto.graph.output[0].name
    net = sx.trainable(sx.load(program.model_proto), "mse", "adam", prediction=output)
    ours = prepare_training(net, threads=1)
    scans = [n for n in seen[0].graph.node if n.op_type == "Scan"]
    inner = [n for scan in scans for a in scan.attribute if a.name == "body" for n in a.g.node]
    assert len(scans) == 2
    assert {"Fused", "Product"} <= {n.op_type for n in inner}
    assert "Pack" in {n.op_type for n in seen[0].graph.node}
    plain = prepare_training(net, threads=1, without=["kernels"])
    rng = np.random.default_rng(0)
    batches = [{"x": feed(rng, 3, 7, 12), "label": feed(rng, 3, 7, 24)} for _ in range(4)]
    assert sx.verify_training(net, ours, plain, data=batches, steps=4).verdict == "same"
