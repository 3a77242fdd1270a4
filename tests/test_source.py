"""Models as Python source: the text is read by `ast`, run in a process without sardonyx, and its
numbers are compared with onnxruntime's.
"""

from __future__ import annotations

import ast
import io
import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import sardonyx as sx
from sardonyx.engines.onnxruntime import Runner
from sardonyx.engines.torch.source.write import BFLOAT16, SubprocessModule
from sardonyx.errors import ArgumentError, EngineError, UnsupportedOp
from sardonyx.model import Model
from tests.networks import cnn, lstm, mlp, network, transformer

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

# Runs a generated folder: inputs from an .npz, outputs and the state dict's keys to another.
RUN = """
import sys, json, numpy, torch
sys.path.insert(0, sys.argv[1])
import model
assert not any(name.split(".")[0] in ("sardonyx", "onnx", "onnx_ir") for name in sys.modules)
net = model.load()
given = numpy.load(sys.argv[2])
with torch.no_grad():
    found = net(*(torch.from_numpy(given[str(i)]) for i in range(len(given))))
found = found if isinstance(found, tuple) else (found,)
numpy.savez(sys.argv[3], *(v.numpy() for v in found))
print(json.dumps(list(net.state_dict())))
"""


def ran(folder: Path, inputs: list[np.ndarray]) -> tuple[list[np.ndarray], list[str]]:
    """The outputs of a generated model in a process of its own, and the keys of its state."""
    np.savez(folder / "in.npz", **{str(i): x for i, x in enumerate(inputs)})  # type: ignore[arg-type]
    command = [sys.executable, "-I", "-c", RUN, str(folder)]
    done = subprocess.run(
        [*command, str(folder / "in.npz"), str(folder / "out.npz")],
        capture_output=True, text=True, env={"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = np.load(folder / "out.npz")
    return [result[k] for k in result.files], json.loads(done.stdout)


def expected(model: Model, inputs: list[np.ndarray]) -> list[np.ndarray]:
    names = [v.name or "" for v in model.inputs]
    return list(Runner(model)(dict(zip(names, inputs, strict=True))).values())


def same(found: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5)


def classes(text: str) -> dict[str, ast.ClassDef]:
    return {n.name: n for n in ast.parse(text).body if isinstance(n, ast.ClassDef)}


def exported(module: Any, inputs: tuple, names: list[str], axes: list, dynamo: bool) -> Model:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            program = torch.onnx.export(
                module, inputs, dynamo=True, input_names=names, dynamic_shapes=tuple(axes),
                verbose=False,
            )  # fmt: skip
            program.save(buffer)
        else:
            torch.onnx.export(
                module, inputs, buffer, dynamo=False, input_names=names,
                dynamic_axes=dict(zip(names, axes)),
            )  # fmt: skip
    return sx.load(onnx.load_from_string(buffer.getvalue()))


def architecture(name: str, dynamo: bool) -> tuple[Model, list[np.ndarray]]:
    """A small exported model, and inputs of other free sizes than it was exported with."""
    from tests import architectures as zoo

    rng = np.random.default_rng(0)
    ids = torch.from_numpy(rng.integers(0, 50, (2, 7)))
    free = {0: "batch", 1: "length"}
    if name == "resnet":
        x = torch.from_numpy(rng.normal(size=(2, 3, 32, 32)).astype(np.float32))
        module = zoo.varied(zoo.ResNet((2, 2), 4, 5))
        model = exported(module, (x,), ["x"], [{0: "batch"}], dynamo)
        return model, [rng.normal(size=(3, 3, 32, 32)).astype(np.float32)]
    if name == "bert":
        module = zoo.varied(zoo.Bert(8, 2, 2, 50, 16))
        names = ["input_ids", "attention_mask"]
        model = exported(module, (ids, torch.ones_like(ids)), names, [free, free], dynamo)
        return model, [rng.integers(0, 50, (3, 9)), rng.integers(0, 2, (3, 9)) | (np.arange(9) < 2)]
    if name == "gpt":
        model = exported(zoo.varied(zoo.Gpt(8, 2, 3, 50, 16)), (ids,), ["idx"], [free], dynamo)
        return model, [rng.integers(0, 50, (3, 9))]
    mel = torch.from_numpy(rng.normal(size=(2, 6, 20)).astype(np.float32))
    module = zoo.varied(zoo.WhisperEncoder(6, 10, 8, 2, 3))
    model = exported(module, (mel,), ["mel"], [{0: "batch"}], dynamo)
    return model, [rng.normal(size=(3, 6, 20)).astype(np.float32)]


# What a person would find in the source: layers, loops, calls.
WORDS = {
    "resnet": ["nn.Conv2d(", "nn.Sequential(", "nn.Linear(", "F.max_pool2d(", "downsample"],
    "bert": [
        "nn.Embedding(50, 8)", "nn.LayerNorm(8, eps=1e-12)", "F.gelu(", "for layer in self.layer:",
        "F.scaled_dot_product_attention(query, key, value, attn_mask=mask)",
        "nn.ModuleList([", "self.embeddings", "self.pooler",
    ],
    "gpt": [
        'approximate="tanh"', "is_causal=True", "for block in self.h:", "q, k, v = ",
        "self.lm_head.weight = self.wte.weight", "torch.arange(idx.shape[1], device=idx.device)",
    ],
    "whisper": [
        "nn.Conv1d(6, 8, 3, padding=1)", "for block in self.blocks:",
        "nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))",
        "self.key = nn.Linear(8, 8, bias=False)",
    ],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("dynamo", [False, True], ids=["script", "dynamo"])
@pytest.mark.parametrize("name", WORDS)
def test_architectures_are_written_as_people_write_them(
    name: str, dynamo: bool, tmp_path: Path
) -> None:
    model, inputs = architecture(name, dynamo)
    text = sx.to_torch_source(model, tmp_path).read_text()
    for word in WORDS[name]:
        assert word in text, text
    assert len(text.splitlines()) < 170 and max(map(len, text.splitlines())) <= 100
    assert not [w for w in ("Expand", "onnx", "val_", "_output_0") if w in text.split('"""')[2]]
    same(ran(tmp_path, inputs)[0], expected(model, inputs))


NETWORKS = {
    "mlp": (mlp, (3, 6)),
    "cnn": (cnn, (3, 3, 8, 8)),
    "transformer": (transformer, (3, 5)),
    "lstm": (lstm, (3, 5, 3)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_keep_the_names_of_their_weights(name: str, tmp_path: Path) -> None:
    make, shape = NETWORKS[name]
    model = make()
    rng = np.random.default_rng(0)
    x = rng.integers(0, 11, shape) if name == "transformer" else rng.normal(size=shape)
    inputs = [x if name == "transformer" else x.astype(np.float32)]
    sx.to_torch_source(model, tmp_path)
    result, keys = ran(tmp_path, inputs)
    same(result, expected(model, inputs))
    named = {w.name for w in sx.weights(model) if w.kind == "weight"}
    if name != "lstm":  # torch's own names for the four parts of its weights
        assert named <= set(keys)


def test_weights_are_the_models_bit_for_bit(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    model = mlp()
    sx.to_torch_source(model, tmp_path)
    result = load_file(tmp_path / "model.safetensors")
    for name in ("fc0.weight", "fc1.bias"):
        np.testing.assert_array_equal(result[name], model.initializer(name).numpy())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_layers_have_the_type_of_their_weights(dtype: Any, tmp_path: Path) -> None:
    layers = (torch.nn.Conv1d(3, 4, 2), torch.nn.PReLU(4), torch.nn.Flatten())
    module = torch.nn.Sequential(*layers, torch.nn.LayerNorm(20), torch.nn.Linear(20, 2)).to(dtype)
    x = torch.randn(5, 3, 6).to(dtype)
    sx.to_torch_source(exported(module, (x,), ["x"], [{0: "batch"}], dynamo=True), tmp_path)
    (y,), _ = ran(tmp_path, [x.numpy()])
    np.testing.assert_allclose(y, module(x).detach().numpy(), rtol=1e-2, atol=2e-3)
    assert y.dtype == x.numpy().dtype


def test_bfloat16_reaches_the_process_that_verifies(tmp_path: Path) -> None:
    module = torch.nn.Linear(4, 3).to(torch.bfloat16)
    x = torch.randn(5, 4).to(torch.bfloat16)
    sx.to_torch_source(exported(module, (x,), ["x"], [{0: "batch"}], dynamo=True), tmp_path)
    y = SubprocessModule(tmp_path)(x.view(torch.int16).numpy().view(BFLOAT16))
    assert y.dtype == BFLOAT16
    assert np.array_equal(y.view(np.int16), module(x).detach().view(torch.int16).numpy())


def test_a_weight_that_is_an_output_is_verified(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[N,2] x) => (float[N,2] y, float[2,2] w)
    <float[2,2] w = {1.0, 2.0, 3.0, 4.0}> {y = MatMul(x, w)}"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    command = [sys.executable, "-m", "sardonyx", "convert", "m.onnx", "-o", "out"]
    run = subprocess.run(
        [*command, "--to", "torch-source"], cwd=tmp_path, capture_output=True, text=True
    )
    assert run.returncode == 0 and "same on" in run.stdout + run.stderr


def test_source_trains(tmp_path: Path) -> None:
    sx.to_torch_source(cnn(), tmp_path)
    code = """
import sys; sys.path.insert(0, sys.argv[1])
import model, torch
torch.manual_seed(0)
net = model.load().train()
before = net.bn.running_mean.clone()
x = torch.randn(8, 3, 8, 8)
assert not torch.equal(net(x), net(x))
net(x).square().sum().backward()
assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in net.parameters())
assert not torch.equal(net.bn.running_mean, before)
"""
    subprocess.run([sys.executable, "-I", "-c", code, str(tmp_path)], check=True)


# Tunes a generated module, and writes its weights where they were.
TUNE = """
import sys; sys.path.insert(0, sys.argv[1])
import model, torch
torch.manual_seed(0)
net = model.load()
with torch.no_grad():
    for tensor in net.state_dict().values():
        if tensor.is_floating_point():
            tensor += 0.1 * torch.rand_like(tensor)
model.save(net)
"""


@pytest.mark.parametrize("name", ["gpt", "bert", "resnet", "cnn", "lstm"])
def test_tuned_weights_come_back_into_the_graph(name: str, tmp_path: Path) -> None:
    if name in ("cnn", "lstm"):
        shape = (3, 3, 8, 8) if name == "cnn" else (3, 4, 3)
        model = {"cnn": cnn, "lstm": lstm}[name]()
        inputs = [np.random.default_rng(0).normal(size=shape).astype(np.float32)]
    else:
        model, inputs = architecture(name, dynamo=True)
    sx.to_torch_source(model, tmp_path)
    before = expected(model, inputs)
    untouched = sx.with_weights(model, tmp_path)
    for key in model.graph.initializers:
        reference = model.initializer(key).numpy()
        np.testing.assert_array_equal(untouched.initializer(key).numpy(), reference)
    subprocess.run([sys.executable, "-I", "-c", TUNE, str(tmp_path)], check=True)
    tuned = sx.with_weights(model, tmp_path)
    result, _ = ran(tmp_path, inputs)
    same(result, expected(tuned, inputs))
    assert any(np.abs(a - b).max() > 1e-3 for a, b in zip(result, before))
    assert [n.op_type for n in tuned.graph] == [n.op_type for n in model.graph]


def test_one_tensor_that_became_two_is_named(tmp_path: Path) -> None:
    from tests import architectures as zoo

    # Fresh norms are all ones, which torch's exporter writes once for all of them.
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, 50, (2, 7)))
    module = zoo.Gpt(8, 2, 1, 50, 16).eval()
    model = exported(module, (ids,), ["idx"], [{0: "batch"}], dynamo=True)
    sx.to_torch_source(model, tmp_path)
    sx.with_weights(model, tmp_path)
    subprocess.run([sys.executable, "-I", "-c", TUNE, str(tmp_path)], check=True)
    with pytest.raises(
        ArgumentError, match=r'share one tensor of the model have different values\n.*"h.0.ln_'
    ):
        sx.with_weights(model, tmp_path)


def test_weights_of_another_source_are_refused(tmp_path: Path) -> None:
    sx.to_torch_source(mlp(), tmp_path)
    with pytest.raises(ArgumentError, match="not those of this model's source"):
        sx.with_weights(cnn(), tmp_path)
    with pytest.raises(ArgumentError, match="no weights in"):
        sx.with_weights(cnn(), tmp_path / "nowhere")


HOSTILE = [
    "class", "None", "__class__", 'a"); import os; os.system("x', "../../etc/passwd", "self",
    "import", "a\nb", "lambda", "forward", "torch", "F", "A", "a", "\\", "'''", '"""', "print",
    "weight.__init__", "x" * 300, "ü", "1", "", "nn.Linear", "{0}", "%s", "training",
]  # fmt: skip


def hostile_model() -> Model:
    """A chain of products whose every name is one of those that could become code."""
    rng = np.random.default_rng(0)
    nodes, tensors, last = [], [], HOSTILE[3]
    for i, name in enumerate(HOSTILE):
        weight = f"{name}.weight" if i % 2 else name or "empty"
        tensors.append(numpy_helper.from_array(rng.normal(size=(2, 2)).astype(np.float32), weight))
        made = f"{name}:{i}"
        node = helper.make_node("MatMul", [last, weight], [made], f"/{name}/{name}/MatMul")
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=repr(["", name, name]))
        node.metadata_props.add(key="pkg.torch.onnx.class_hierarchy", value=repr([name] * 3))
        nodes.append(node)
        last = made
    graph = helper.make_graph(
        nodes, 'g"""; import os',
        [helper.make_tensor_value_info(HOSTILE[3], 1, ['N"""', 2])],
        [helper.make_tensor_value_info(last, 1, ['N"""', 2])], tensors,
    )  # fmt: skip
    return sx.load(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    )


def test_hostile_names_become_no_code(tmp_path: Path) -> None:
    model = hostile_model()
    text = sx.to_torch_source(model, tmp_path).read_text()
    assert text.isascii()
    tree = ast.parse(text)
    kinds = [type(n).__name__ for n in tree.body]
    imports = {n: kinds.count(n) for n in ("Expr", "Import", "ImportFrom", "FunctionDef")}
    assert imports == {"Expr": 1, "Import": 1, "ImportFrom": 3, "FunctionDef": 2}
    assert set(kinds) <= {"Expr", "Import", "ImportFrom", "ClassDef", "FunctionDef"}
    called = {ast.unparse(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
    roots = {name.split(".")[0].split("[")[0] for name in called}
    assert roots <= {
        "nn",
        "torch",
        "super",
        "self",
        "load_model",
        "save_model",
        "str",
        "Path",
        "model",
        "super()",
    } | set(classes(text))
    assert not [n for n in ast.walk(tree) if isinstance(n, (ast.Lambda, ast.Global, ast.Try))]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.py", "model.safetensors"]
    x = np.random.default_rng(1).normal(size=(3, 2)).astype(np.float32)
    same(ran(tmp_path, [x])[0], expected(model, [x]))


def test_conversion_executes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    from sardonyx.engines.torch.source.write import generate

    asked: list[object] = []
    model = hostile_model()
    generate(mlp())  # modules are imported by now, which executes them
    with monkeypatch.context() as patch:
        for name in ("exec", "eval", "compile"):
            patch.setattr(builtins, name, lambda *given, **_: asked.append(given))
        _, text = generate(model)
    assert not asked and text


def test_layers_used_twice_are_called_twice(tmp_path: Path) -> None:
    text = """m (float[N,2] x) => (float[N,2] y) {
        a = Gemm <transB = 1> (x, fc.weight, fc.bias)  b = Tanh (a)
        y = Gemm <transB = 1> (b, fc.weight, fc.bias) }"""
    weights = {"fc.weight": np.eye(2) + 0.5, "fc.bias": np.ones(2)}
    model = network(text, weights)
    source = sx.to_torch_source(model, tmp_path).read_text()
    assert source.count("nn.Linear(2, 2)") == 1 and source.count("self.fc(") == 2
    x = [np.ones((3, 2), np.float32)]
    same(ran(tmp_path, x)[0], expected(model, x))


def test_one_weight_of_two_strides_is_two_layers(tmp_path: Path) -> None:
    text = """m (float[N,2,8] x) => (float[N,2,6] a, float[N,2,3] b) {
        a = Conv (x, filters.weight)  b = Conv <strides = [2]> (x, filters.weight) }"""
    weight = np.random.default_rng(0).normal(size=(2, 2, 3))
    model = network(text, {"filters.weight": weight})
    source = sx.to_torch_source(model, tmp_path).read_text()
    x = [np.random.default_rng(1).normal(size=(3, 2, 8)).astype(np.float32)]
    same(ran(tmp_path, x)[0], expected(model, x))
    assert source.count(".weight = self.filters.weight") == 1  # and still one parameter


def test_numbered_layers_outside_of_a_chain_are_found_again(tmp_path: Path) -> None:
    """A module that is no nn.Sequential has attributes, whose names begin with a letter."""
    text = """m (float[N,2] x) => (float[N,2] y) {
        a = Gemm <transB = 1> (x, net.0.weight, net.0.bias)  b = Relu (a)
        c = Gemm <transB = 1> (b, net.2.weight, net.2.bias)  d = Add (c, b)
        y = Gemm <transB = 1> (d, net.3.weight, net.3.bias) }"""
    rng = np.random.default_rng(0)
    names = ["net.0", "net.2", "net.3"]
    weights = {f"{n}.weight": rng.normal(size=(2, 2)) for n in names}
    weights |= {f"{n}.bias": rng.normal(size=2) for n in names}
    model = network(text, weights)
    sx.to_torch_source(model, tmp_path)
    x = [rng.normal(size=(3, 2)).astype(np.float32)]
    same(ran(tmp_path, x)[0], expected(model, x))
    tuned = sx.with_weights(model, tmp_path)
    np.testing.assert_array_equal(
        tuned.initializer("net.3.weight").numpy(), model.initializer("net.3.weight").numpy()
    )


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    text = "m (float[N,2] x) => (float[K] y) { y = Unique (x) }"
    with pytest.raises(UnsupportedOp, match='Unique  node "y"'):
        sx.to_torch_source(network(text, {}), tmp_path)
    assert not list(tmp_path.iterdir())


def test_command_line_writes_and_verifies_source(tmp_path: Path) -> None:
    sx.save(mlp(), tmp_path / "mlp.onnx")
    command = [sys.executable, "-m", "sardonyx.cli", "convert", str(tmp_path / "mlp.onnx")]
    command += ["--to", "torch-source", "-o", str(tmp_path / "out"), "--seeds", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / "out")
    for word in ("model.py", "model.safetensors", "verified", "same"):
        assert word in done.stderr
    assert "class " in (tmp_path / "out" / "model.py").read_text()


def test_a_source_that_raises_names_the_line(tmp_path: Path) -> None:
    from sardonyx.engines.torch.source.write import store

    stored = store(mlp(), tmp_path)
    file = tmp_path / "model.py"
    file.write_text(file.read_text().replace("return ", "return 1 / 0 + "))
    with pytest.raises(EngineError, match=r'ZeroDivisionError.*model.py:\d+ "return 1 / 0'):
        stored.function(np.zeros((2, 6), np.float32))
