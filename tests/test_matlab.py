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
from sardonyx.engines.matlab import mat_file, octave
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
            if y.dtype.kind in "iu":
                same = same and np.array_equal(y, want)
            if not same or not np.allclose(y, want, rtol=1e-5, atol=1e-6, equal_nan=True):
                wrong.append(f"{name}: {y} is not {want}")
    assert not wrong, "\n".join(wrong)


INF, NAN = np.inf, np.nan
INT32 = np.iinfo(np.int32)
# Models whose numbers are chosen; what they must give is written down, or computed by numpy.
CHOSEN: dict[str, tuple[str, list[np.ndarray], list[np.ndarray]]] = {
    "products wrap around": (
        "g (int32[3] x, int32[3] z) => (int32[3] y) {y = Mul(x, z)}",
        [np.array([INT32.min, INT32.max, 70000], np.int32)] * 2,
        [np.array([0, 1, 70000**2 - 2**32], np.int32)],
    ),
    "the smallest integer has no opposite": (
        "g (int8[2] x) => (int8[2] y, int8[2] z) {y = Abs(x) z = Neg(x)}",
        [np.array([-128, -5], np.int8)],
        [np.array([-128, 5], np.int8)] * 2,
    ),
    "sums of integers wrap around": (
        "g (int32[3] x) => (int32[3] y) <int64 a = {0}> {y = CumSum(x, a)}",
        [np.array([INT32.max, 1, 5], np.int32)],
        [np.array([INT32.max, INT32.min, INT32.min + 5], np.int32)],
    ),
    "a sum without the element itself": (
        "g (float[3] x) => (float[3] y) <int64 a = {0}> {y = CumSum<exclusive=1>(x, a)}",
        [np.array([1, 1e8, INF], np.float32)],
        [np.array([0, 1, 1e8], np.float32)],
    ),
    "infinite numbers outside": (
        "g (float[3] x) => (float[3] y, float[3] z) {y = Shrink(x) z = ThresholdedRelu(x)}",
        [np.array([INF, -INF, 0.25], np.float32)],
        [np.array([INF, -INF, 0], np.float32), np.array([INF, 0, 0], np.float32)],
    ),
    "a sum of no exponentials": (
        "g (float[2,2] x) => (float[2] y) <int64[1] a = {1}>"
        "{y = ReduceLogSumExp<keepdims=0>(x, a)}",
        [np.array([[-INF, -INF], [2, -INF]], np.float32)],
        [np.array([-INF, 2], np.float32)],
    ),
    "powers of negative numbers": (
        "g (float[6] x, float[6] z) => (float[6] y) {y = Pow(x, z)}",
        [np.array([-2, -2, 0, -0.0, -INF, -1], np.float32),
         np.array([2, 0.5, 0, -3, 3, INF], np.float32)],
        [np.array([4, NAN, 1, -INF, -INF, 1], np.float32)],
    ),
    "names of constants and of the library": (
        "g (float[2] NaN, float[2] Inf, float[2] onnx_onnx_max)"
        "=> (float[2] y, bool[2] z, float[2] intmax)"
        "{y = Relu(NaN) z = IsInf(Inf) intmax = Relu(onnx_onnx_max)}",
        [np.array(a, np.float32) for a in ([-1, 2], [INF, 1], [-3, 4])],
        [np.array([0, 2], np.float32), np.array([True, False]), np.array([0, 4], np.float32)],
    ),
    "a loop whose states change places": (
        "g (float[1] h, float[1] k, float[1,3] x) => (float[1] m, float[1] n, float[1,3] y)"
        "{m, n, y = Scan<num_scan_inputs=1, scan_input_axes=[1], scan_output_axes=[1],"
        "scan_input_directions=[1], body = b (float[1] s, float[1] t, float[1] e)"
        "=> (float[1] t_out, float[1] u, float[1] v) {t_out = Identity(t) u = Add(s, e)"
        "v = Sub(u, t)}>(h, k, x)}",
        [np.array([1], np.float32), np.array([2], np.float32), np.array([[4, 8, 16]], np.float32)],
        # (1, 2) with 16: (2, 17); with 8: (17, 10); with 4: (10, 21)
        [np.array([10], np.float32), np.array([21], np.float32),
         np.array([[15, -7, 11]], np.float32)],
    ),
    "any and all": (
        "g (bool[2,2] x) => (bool[2] y, bool[2] z) <int64[1] a = {1}>"
        "{y = ReduceMax<keepdims=0>(x, a) z = ReduceMin<keepdims=0>(x, a)}",
        [np.array([[True, False], [True, True]])],
        [np.array([True, True]), np.array([False, True])],
    ),
}  # fmt: skip


@needs_octave
def test_chosen_numbers(tmp_path: Path) -> None:
    jobs = []
    for number, (text, feeds, _) in enumerate(CHOSEN.values()):
        loaded = model(text)
        sx.to_matlab_source(loaded, tmp_path / str(number))
        jobs.append(octave.Job(tmp_path / str(number), feeds, octave.ends_of(loaded.outputs)))
    for (name, (*_, expected)), outputs in zip(CHOSEN.items(), octave.run(jobs), strict=True):
        assert not isinstance(outputs, str), f"{name}: {outputs}"
        for y, want in zip(outputs, expected, strict=True):
            assert y.dtype == want.dtype, name
            np.testing.assert_array_equal(y, want, err_msg=name)


@needs_octave
def test_integers_that_a_double_does_not_hold_are_refused(tmp_path: Path) -> None:
    large = 2**53 + 1
    with pytest.raises(UnsupportedOp, match="an integer is too large to be exact"):
        generate(model(f"g (int64[2] i) => (int64[2] y) <int64[2] t = {{{large}, 1}}>"
                       "{y = Gather(t, i)}"))  # fmt: skip
    # A Slice that ends far away, as exporters write it, is none of these.
    flip = (
        f"<int64[1] s={{-1}}, int64[1] e={{{-(2**63) + 1}}}, int64[1] a={{0}}, int64[1] t={{-1}}>"
    )
    generate(model(f"g (float[3] x) => (float[3] y) {flip} {{y = Slice(x, s, e, a, t)}}"))
    loaded = model("g (int64[1] x, int64[1] z) => (bool[1] y) {y = Equal(x, z)}")
    sx.to_matlab_source(loaded, tmp_path)
    feeds = [np.array([large]), np.array([large - 1])]
    (outputs,) = octave.run([octave.Job(tmp_path, feeds, octave.ends_of(loaded.outputs))])
    assert isinstance(outputs, str) and "an integer is too large to be exact" in outputs


def trained_in_octave(folder: Path, arrays: list[np.ndarray], dy: np.ndarray, steps: int) -> str:
    """Steps of gradient descent, by the written code; its results are in `outputs.mat`."""
    with open(folder / "feeds.mat", "wb") as file:
        named = {f"x{i}": a for i, a in enumerate(arrays)}
        mat_file.write(file, {**named, "dy": dy})
    inputs = ", ".join(f"v.x{i}" for i in range(len(arrays)))
    script = f"""1;
    function p = updated(p, g)
        for [value, name] = g
            if isstruct(value)
                p.(name) = updated(p.(name), value);
            else
                p.(name) = p.(name) - 0.05 * value;
            end
        end
    end
    params = load('params.mat'); v = load('feeds.mat');
    for k = 1:{steps}
        params = updated(params, gradients({inputs}, v.dy, params));
    end
    y = model({inputs}, params); printf('%.9g ', y);"""
    (folder / "run_training.m").write_text(script)
    command = [octave.COMMAND, "--norc", "--quiet", "run_training.m"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def equal_layers():
    """Normalizations that an exporter makes one tensor, and a head that is the embedding."""
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(7, 6)
            self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6), nn.GELU())
                                        for _ in range(3))  # fmt: skip

        def forward(self, words):
            x = self.embedding(words)
            for layer in self.layers:
                x = x + layer(x)
            return x @ self.embedding.weight.T

    return Net(), torch.tensor([[1, 2, 6], [0, 3, 3]])


def recurrent_network():
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.GRU(3, 4, bidirectional=True, batch_first=True)
            self.lstm = nn.LSTM(8, 4, batch_first=True)
            self.out = nn.Linear(4, 2)

        def forward(self, x):
            return self.out(self.lstm(self.cell(x)[0])[0])

    return Net(), torch.randn(2, 5, 3)


def plain_convolutions():
    import torch
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.ConvTranspose2d(4, 2, 2, 2),
        nn.GroupNorm(2, 2), nn.Conv2d(2, 1, 1),
    ), torch.randn(2, 2, 6, 6)  # fmt: skip


@needs_octave
@pytest.mark.parametrize("network", [equal_layers, recurrent_network, plain_convolutions])
def test_several_steps_follow_torch(network: Callable, tmp_path: Path) -> None:
    """What is computed from weights, such as a transposed one, follows when they change."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    module, x = network()
    path = tmp_path / "model.onnx"
    torch.onnx.export(module, (x,), str(path), dynamo=False, do_constant_folding=False)
    sx.to_matlab_source(path, tmp_path, gradients=True)
    shape = module(x).shape
    dy = np.random.default_rng(0).normal(size=shape).astype(np.float32) / 4
    numbers = np.array(trained_in_octave(tmp_path, [x.numpy()], dy, 4).split(), float)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    for _ in range(4):
        optimizer.zero_grad()
        (module(x) * torch.from_numpy(dy)).sum().backward()
        optimizer.step()
    np.testing.assert_allclose(
        numbers.reshape(shape), module(x).detach().numpy(), rtol=1e-4, atol=1e-4
    )


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


def test_no_variable_hides_the_function_of_a_layer() -> None:
    loaded = stack(3)
    loaded.inputs[0].name = "layers"
    functions = generate(loaded, gradients=True).functions
    assert functions["model"].startswith("function Relu2 = model(layers_2, params)")
    assert functions["model"].count("= layers(") == 3
    loaded.inputs[0].name = "grads"
    gradients = generate(loaded, gradients=True).functions["gradients"]
    assert gradients.startswith("function grads = gradients(grads_2, ")


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


@needs_octave
@pytest.mark.nightly
def test_public_models() -> None:
    """Every public model of at most 300 nodes is written and gives the same numbers."""
    from .public_models import models
    from .sweeps.matlab_models import LARGEST, judged

    small = {n: p for n, p in models().items() if len(list(sx.load(p).graph)) <= LARGEST}
    verdicts = {name: judged(name, path) for name, path in small.items()}
    assert len(small) >= 60
    assert not {n: v for n, v in verdicts.items() if v[0] != "same"}


def test_weights_stay_as_they_are_so_that_training_changes_all_uses() -> None:
    # The table of scores is the transposed embedding: it must follow when the embedding changes.
    program = generate(transformer(), gradients=False)
    names = {identifier(w.name) for w in sx.weights(transformer()) if w.kind != "constant"}
    arrays = {n for n, a in program.params.items() if np.asarray(a).dtype.kind == "f"}
    assert arrays <= names
