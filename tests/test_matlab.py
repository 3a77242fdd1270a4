"""Models as MATLAB code: it runs in GNU Octave and gives the numbers of the model."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.reference
import pytest

import sardonyx as sx
from sardonyx.engines.matlab import octave
from sardonyx.engines.matlab.function import RULES
from sardonyx.engines.matlab.names import LONGEST, RESERVED, Names, identifier
from sardonyx.engines.matlab.write import LIBRARY, generate
from sardonyx.errors import UnsupportedOp

from .networks import cnn, lstm, mlp, transformer

needs_octave = pytest.mark.skipif(
    shutil.which(octave.COMMAND) is None, reason="GNU Octave is not installed"
)


def model(text: str) -> sx.Model:
    return sx.load(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 22]>\n{text}'))


def stack(layers: int = 3, prefix: str = "") -> sx.Model:
    """Layers that are alike, with weights of their own."""
    rng = np.random.default_rng(0)
    nodes, weights, value = [], [], "x"
    for i in range(layers):
        w = rng.normal(size=(4, 4)).astype(np.float32)
        b = rng.normal(size=(4,)).astype(np.float32)
        names = [f"layers.{i}.fc.weight", f"layers.{i}.fc.bias"]
        weights += [onnx.numpy_helper.from_array(a, n) for a, n in zip((w, b), names, strict=True)]
        scope = f"{prefix}/layers.{i}/" if prefix is not None else ""
        for op, inputs in (("MatMul", names[:1]), ("Add", names[1:]), ("Relu", [])):
            output = f"{op}{i}"
            nodes.append(onnx.helper.make_node(op, [value, *inputs], [output], f"{scope}{op}"))
            value = output
    graph = onnx.helper.make_graph(
        nodes,
        "stack",
        [onnx.helper.make_tensor_value_info("x", 1, ["N", 4])],
        [onnx.helper.make_tensor_value_info(value, 1, ["N", 4])],
        weights,
    )
    opsets = [onnx.helper.make_opsetid("", 20)]
    return sx.load(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9))


# -- in Octave -----------------------------------------------------------------------------------


@needs_octave
@pytest.mark.parametrize("network", [mlp, cnn, transformer, lstm, stack], ids=lambda f: f.__name__)
def test_numbers_are_those_of_the_model(network: Callable[[], sx.Model]) -> None:
    report = sx.verify(network(), "octave", seeds=1, culprit=False)
    assert report.verdict == "same"
    assert max(m.ratio for m in report.measurements) <= 3


CASES = {
    "trailing axes of one element": "g (float[1,1,3] x) => (float[3,1,1] y)"
    "{y = Transpose<perm=[2,1,0]>(x)}",
    "broadcasting from the last axis": "g (float[2,3,4] x) => (float[2,3,4] y)"
    "<float[3,1] w = {1,2,3}> {y = Mul(x, w)}",
    "rows and columns": "g (float[2,3] x, float[4,5,3,6] z) => (float[4,5,2,6] y)"
    "{y = MatMul(x, z)}",
    "one matrix and a vector": "g (float[3] x, float[3,6] z) => (float[6] y) {y = MatMul(x, z)}",
    "a scalar": "g (float[2,3] x) => (float y) {y = ReduceSum<keepdims=0>(x)}",
    "reductions of several axes": "g (float[2,3,4] x) => (float[3] y)"
    "<int64[2] axes = {0,-1}> {y = ReduceMax<keepdims=0>(x, axes)}",
    "groups and dilations": "g (float[1,4,7,6] x, float[6,2,3,2] w) => (float[N,M,H,W] y)"
    "{y = Conv<group=2, dilations=[2,1], pads=[1,0,2,1], strides=[1,2]>(x, w)}",
    "a negative step": "g (float[5,4] x) => (float[N,4] y)"
    "<int64[1] s = {-1}, int64[1] e = {-9}, int64[1] a = {0}, int64[1] t = {-2}>"
    "{y = Slice(x, s, e, a, t)}",
    "not a number": "g (float[4] x) => (float[4] y, float[4] z)"
    "{a = Log(x) y = Relu(a) b = Neg(x) z = Sqrt(b)}",
    "integers that wrap": "g (int32[3] x) => (int32[3] y) {a = Mul(x, x) y = Mul(a, a)}",
    "integer division": "g (int64[3] x) => (int64[3] y) <int64 d = {-2}> {y = Div(x, d)}",
    "names of functions": "g (float[3] sum) => (float[3] end) {size = Exp(sum) end = Neg(size)}",
    "an output that is an input": "g (float[3] x) => (float[3] y, float[3] z)"
    "{y = Identity(x) z = Exp(x)}",
    "doubles": "g (double[3] x) => (double[3] y) {y = Exp(x)}",
    "booleans": "g (float[3] x, float[3] z) => (bool[3] y) {a = Less(x, z) y = Not(a)}",
    "indices": "g (float[4,3] x, int64[2,2] i) => (float[2,2,3] y)"
    "<int64 one = {1}, int64 four = {4}> {j = Mod(i, four) y = Gather(x, j)}",
}


@needs_octave
def test_traps(tmp_path: Path) -> None:
    """One process for all of them: Octave takes a while to start."""
    rng = np.random.default_rng(0)
    jobs, expected = [], []
    for number, text in enumerate(CASES.values()):
        loaded = model(text)
        folder = tmp_path / str(number)
        sx.to_matlab_source(loaded, folder)
        feeds = {}
        for value in loaded.inputs:
            shape = [d if isinstance(d, int) else 3 for d in value.shape or ()]
            kind = value.dtype.numpy()
            drawn = rng.normal(size=shape) * (3e4 if kind == np.int32 else 3)
            feeds[value.name] = drawn.astype(kind)
        jobs.append(octave.Job(folder, list(feeds.values()), octave.ends_of(loaded.outputs)))
        session = onnx.reference.ReferenceEvaluator(loaded.proto())
        with np.errstate(all="ignore"):
            expected.append(session.run(None, feeds))
    wrong = []
    for name, outputs, reference in zip(CASES, octave.run(jobs), expected, strict=True):
        if isinstance(outputs, str):
            wrong.append(f"{name}: {outputs}")
            continue
        for y, want in zip(outputs, reference, strict=True):
            same = y.shape == np.shape(want) and y.dtype == np.asarray(want).dtype
            if not same or not np.allclose(y, want, rtol=1e-5, atol=1e-6, equal_nan=True):
                wrong.append(f"{name}: {y} is not {want}")
    assert not wrong, "\n".join(wrong)


@needs_octave
def test_gradients_train_a_model(tmp_path: Path) -> None:
    loaded = stack(2)
    sx.to_matlab_source(loaded, tmp_path, gradients=True)
    x = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    dy = np.random.default_rng(2).normal(size=(5, 4)).astype(np.float32)
    numbers = [f"reshape({a.reshape(-1).tolist()}, [4, 5])" for a in (x, dy)]
    script = (
        f"params = load('params.mat'); g = gradients({numbers[0]}, {numbers[1]}, params);"
        "v = [g.layers_0.fc_weight(:); g.layers_1.fc_bias(:)]; printf('%.9g ', v);"
    )
    done = subprocess.run(
        [octave.COMMAND, "--norc", "--quiet", "--eval", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    gradient = np.array(done.stdout.split(), float)
    torch = pytest.importorskip("torch")
    arrays = {w.name: torch.tensor(loaded.initializer(w.name).numpy()) for w in sx.weights(loaded)}
    tensors = {n: t.requires_grad_() for n, t in arrays.items()}
    y = torch.from_numpy(x)
    for i in range(2):
        y = torch.relu(y @ tensors[f"layers.{i}.fc.weight"] + tensors[f"layers.{i}.fc.bias"])
    (y * torch.from_numpy(dy)).sum().backward()
    expected = [tensors["layers.0.fc.weight"].grad, tensors["layers.1.fc.bias"].grad]
    np.testing.assert_allclose(
        gradient, np.concatenate([g.numpy().reshape(-1) for g in expected]), rtol=1e-4, atol=1e-5
    )


@needs_octave
def test_the_command_writes_and_verifies(tmp_path: Path) -> None:
    sx.save(mlp(), tmp_path / "mlp.onnx")
    line = [sys.executable, "-m", "sardonyx", "convert", "mlp.onnx", "--to", "matlab", "-o", "out"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "same on 3 random inputs" in done.stderr
    assert (tmp_path / "out" / "model.m").exists()


# -- the text ------------------------------------------------------------------------------------


def test_repeated_layers_are_one_function(tmp_path: Path) -> None:
    for prefix in ("", None):  # with scopes, and without any
        program = generate(stack(4, prefix))
        assert len(program.functions) == 2
        (name,) = program.functions.keys() - {"model"}
        assert program.functions["model"].count(f"{name}(") == 4
        assert program.functions[name].count("p.") == 2
    assert "layers" in generate(stack(3, "")).functions


def test_refused_before_anything_is_written(tmp_path: Path) -> None:
    text = """g (float16[3] x, float[1,1,4,4] i, float[1,4,4,2] f)
    => (float16[3] y, float[1,1,4,4] z) {y = Relu(x) z = GridSample(i, f)}"""
    with pytest.raises(UnsupportedOp, match="2 operators of this model cannot be written") as error:
        sx.to_matlab_source(model(text), tmp_path / "new")
    assert "MATLAB has no FLOAT16" in str(error.value)
    assert not (tmp_path / "new").exists()


def test_at_least_a_hundred_operators_have_rules() -> None:
    assert len(RULES.rules) >= 100


def test_names_fit_and_hide_nothing() -> None:
    names = Names()
    inputs = ["sum", "end", "a" * 100, "b" + "a" * 100, "0.weight", "", "x y", "x.y", "Sum", "é"]
    fresh = [names.fresh(text) for text in inputs]
    assert len({n.lower() for n in fresh}) == len(inputs)
    for name in fresh:
        assert re.fullmatch(r"[A-Za-z]\w*", name) and len(name) <= LONGEST
        assert name not in RESERVED
    assert identifier("onnx::Conv_17") == "Conv_17"


def test_the_library_calls_only_itself_and_matlab() -> None:
    files = {path.stem: path.read_text() for path in LIBRARY.glob("*.m")}
    for name, text in files.items():
        assert text.startswith("function ") and f"{name}(" in text.splitlines()[0]
        assert set(re.findall(r"onnx_\w+", text)) <= files.keys()
        assert not re.search(r"\+=|\+\+|!=|#|endif|endfunction", text)  # Octave's own syntax


# -- networks of torch, by both exporters --------------------------------------------------------


def residual_network():
    torch = pytest.importorskip("torch")
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, before: int, width: int, stride: int = 1):
            super().__init__()
            self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
            self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
            self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
            self.down = nn.Conv2d(before, width, 1, stride) if stride > 1 else nn.Identity()

        def forward(self, x):
            y = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
            return torch.relu(y + self.down(x))

    return nn.Sequential(
        nn.Conv2d(3, 8, 7, 2, 3),
        nn.MaxPool2d(3, 2, 1),
        nn.Sequential(*(Block(8, 8) for _ in range(3))),
        nn.Sequential(Block(8, 16, 2), Block(16, 16), Block(16, 16)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 5),
    ), torch.randn(2, 3, 32, 32)


def transformer_encoder():
    torch = pytest.importorskip("torch")
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    return encoder, torch.randn(2, 5, 16)


@needs_octave
@pytest.mark.nightly
@pytest.mark.parametrize("dynamo", [False, True], ids=["script", "dynamo"])
@pytest.mark.parametrize("network", [residual_network, transformer_encoder])
def test_networks_of_torch(network: Callable, dynamo: bool, tmp_path: Path) -> None:
    import torch

    torch.manual_seed(0)
    module, x = network()
    path = tmp_path / "model.onnx"
    torch.onnx.export(module.eval(), (x,), str(path), dynamo=dynamo, input_names=["x"])
    report = sx.verify(path, "octave", seeds=2, culprit=False)
    assert report.verdict == "same" and max(m.ratio for m in report.measurements) <= 3
    assert len(generate(sx.load(path)).functions) > 1, "repeated layers are functions"


@needs_octave
@pytest.mark.nightly
def test_the_official_suite() -> None:
    """Every float case is written and right, or refused; four in ten are written."""
    from .official import cases
    from .sweeps.matlab import RANDOM, is_float_case, sweep

    named = [c for c in cases() if c.kind != "real" and not any(w in c.name for w in RANDOM)]
    chosen = [c for c in named if is_float_case(c)]
    results = list(sweep(chosen, 150))
    assert not [(case.name, words) for case, kind, words in results if kind == "wrong"]
    assert sum(kind == "right" for _, kind, _ in results) >= 0.4 * len(results)


def test_weights_stay_as_they_are_so_that_training_changes_all_uses() -> None:
    # The table of scores is the transposed embedding: it must follow when the embedding changes.
    program = generate(transformer(), gradients=False)
    names = {identifier(w.name) for w in sx.weights(transformer()) if w.kind != "constant"}
    arrays = {n for n, a in program.params.items() if np.asarray(a).dtype.kind == "f"}
    assert arrays <= names
