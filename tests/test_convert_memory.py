"""Conversion of models whose weights lie in other files: one copy in memory at most, and whose.

Memory is what the system says that a process has written (`Anonymous`): pages of a file that were
only read belong to the system, and are not counted.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import sardonyx as sx
from sardonyx.model import Model

WIDTH = 1024
BYTES = 4 * WIDTH * WIDTH
PREFIX = 8192  # an offset that every framework takes
ROLLUP = Path("/proc/self/smaps_rollup")
measures = pytest.mark.skipif(not ROLLUP.exists(), reason="the system does not say")


def external(folder: Path, layers: int, width: int = WIDTH, shift: int = 0, zero: bool = True):
    """Products with `layers` matrices in one file; zeros cost no disk."""
    nodes, tensors, size = [], [], 4 * width * width
    for i in range(layers):
        nodes.append(helper.make_node("MatMul", [f"y{i}", f"layer{i}.weight"], [f"y{i + 1}"]))
        tensor = TensorProto(name=f"layer{i}.weight", data_type=TensorProto.FLOAT)
        tensor.dims.extend([width, width])
        tensor.data_location = TensorProto.EXTERNAL
        place = {"location": "m.data", "offset": PREFIX + shift + i * size, "length": size}
        for key, value in place.items():
            tensor.external_data.add(key=key, value=str(value))
        tensors.append(tensor)
    ends = [helper.make_tensor_value_info(n, 1, ["N", width]) for n in ("y0", f"y{layers}")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], tensors)
    opsets = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), folder / "m.onnx")
    with open(folder / "m.data", "wb") as file:
        file.truncate(PREFIX + shift + layers * size)
        if not zero:
            file.seek(PREFIX + shift)
            file.write(np.random.default_rng(0).normal(size=size // 4).astype("<f4").tobytes())
    return folder / "m.onnx"


def written() -> int:
    """Bytes of memory that this process has written."""
    lines = ROLLUP.read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))


def test_torch_weights_are_the_pages_of_the_file_until_they_are_written(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = external(tmp_path, 2, zero=False)
    before = (tmp_path / "m.data").read_bytes()
    model = sx.load(path)
    first, second = sx.to_torch(model), sx.to_torch(model)
    weights = [p for _, p in sorted(first.named_parameters())]
    assert weights[1].data_ptr() - weights[0].data_ptr() == BYTES, "one mapping, two tensors"
    with torch.no_grad():
        weights[0].add_(1.0)
        weights[1].add_(2.0)
    expected = np.frombuffer(before, np.float32, WIDTH * WIDTH, PREFIX).reshape(WIDTH, WIDTH)
    np.testing.assert_array_equal(weights[0].detach().numpy(), expected + np.float32(1))
    np.testing.assert_array_equal(model.initializer("layer0.weight").numpy(), expected)
    np.testing.assert_array_equal(second.layer0.weight.detach().numpy(), expected)
    assert (tmp_path / "m.data").read_bytes() == before
    tuned = sx.with_weights(model, first)
    np.testing.assert_array_equal(tuned.initializer("layer1.weight").numpy(), np.float32(2))


def test_torch_weights_outlive_the_file(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = external(tmp_path, 1, zero=False)
    expected = np.fromfile(tmp_path / "m.data", np.float32, offset=PREFIX).reshape(WIDTH, WIDTH)
    module = sx.to_torch(path)
    (tmp_path / "m.data").unlink()
    np.testing.assert_array_equal(module.layer0.weight.detach().numpy(), expected)


def test_a_file_that_was_replaced_is_not_mapped_again(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = external(tmp_path, 1, zero=False)
    model = sx.load(path)
    expected = model.initializer("layer0.weight").numpy()
    (tmp_path / "new").write_bytes(bytes(PREFIX + BYTES))
    (tmp_path / "new").replace(tmp_path / "m.data")
    result = sx.to_torch(model).layer0.weight.detach().numpy()
    np.testing.assert_array_equal(result, expected)
    assert expected.any()


@pytest.mark.parametrize("shift", [1, 4], ids=["between elements", "between lines"])
@pytest.mark.parametrize("engine", ["torch", "jax", "tensorflow"])
def test_any_offset_gives_the_same_numbers(tmp_path: Path, engine: str, shift: int) -> None:
    pytest.importorskip(engine)
    path = external(tmp_path, 1, shift=shift, zero=False)
    whole = np.frombuffer((tmp_path / "m.data").read_bytes()[PREFIX + shift :], np.float32)
    result = weights_of(engine, sx.load(path))["layer0.weight"]
    np.testing.assert_array_equal(result, whole.reshape(WIDTH, WIDTH))


def weights_of(engine: str, model: Model) -> dict[str, Any]:
    if engine == "jax":
        return sx.to_jax(model)[1]
    if engine == "tensorflow":
        return {n: v.numpy() for n, v in sx.to_tensorflow(model).weights.items()}
    return {n: p.numpy() for n, p in sx.to_torch(model).state_dict().items()}


def test_torch_constants_are_not_copied_either(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = external(tmp_path, 1, zero=False)
    proto = onnx.load(path, load_external_data=False)
    proto.graph.initializer[0].data_type = TensorProto.INT32
    proto.graph.input[0].type.tensor_type.elem_type = TensorProto.INT32
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.INT32
    onnx.save(proto, path)
    module = sx.to_torch(path)
    assert not module.state_dict(), "integers are no weights"
    (held,) = (b for b in module.served.buffers() if b.numel() == WIDTH * WIDTH)
    mapped = Path("/proc/self/maps")
    if mapped.exists():
        rows = [r.split() for r in mapped.read_text().splitlines() if "m.data" in r]
        spans = [[int(n, 16) for n in r[0].split("-")] for r in rows]
        assert any(a <= held.data_ptr() < b for a, b in spans)
    eye = torch.eye(WIDTH, dtype=torch.int32)[:2]
    expected = np.fromfile(tmp_path / "m.data", np.int32, offset=PREFIX).reshape(WIDTH, WIDTH)[:2]
    np.testing.assert_array_equal(module(eye).numpy(), expected)


def test_jax_weights_are_the_pages_of_the_file(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")
    path = external(tmp_path, 1, zero=False)
    model = sx.load(path)
    array = model.initializer("layer0.weight").numpy()
    _, params = sx.to_jax(model)
    assert params["layer0.weight"].unsafe_buffer_pointer() == array.ctypes.data
    # Given away, the memory must not be written to: it is the file's.
    step = jax.jit(lambda p: {n: w + 1 for n, w in p.items()}, donate_argnums=0)
    np.testing.assert_array_equal(step(params)["layer0.weight"], array + np.float32(1))
    np.testing.assert_array_equal(
        np.fromfile(tmp_path / "m.data", np.float32, offset=PREFIX), array.reshape(-1)
    )


def test_tensorflow_copies_a_weight_when_it_writes(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    path = external(tmp_path, 1, zero=False)
    model = sx.load(path)
    array = model.initializer("layer0.weight").numpy()
    first, second = sx.to_tensorflow(model), sx.to_tensorflow(model)
    first.weights["layer0.weight"].assign_add(np.ones((WIDTH, WIDTH), np.float32))
    np.testing.assert_array_equal(first.weights["layer0.weight"], array + np.float32(1))
    np.testing.assert_array_equal(second.weights["layer0.weight"], array)
    np.testing.assert_array_equal(
        np.fromfile(tmp_path / "m.data", np.float32, offset=PREFIX), array.reshape(-1)
    )


@measures
@pytest.mark.parametrize("engine", ["torch", "jax", "tensorflow"])
def test_conversion_takes_no_memory_for_the_weights(tmp_path: Path, engine: str) -> None:
    pytest.importorskip(engine)
    weights_of_nothing = external(tmp_path, 1, width=8)
    convert(engine, weights_of_nothing)  # what a framework sets up once
    layers = 16
    path = external(tmp_path, layers)
    before = written()
    held = convert(engine, path)
    assert written() - before < layers * BYTES / 4
    del held


def convert(engine: str, path: Path) -> Any:
    return {"torch": sx.to_torch, "jax": sx.to_jax, "tensorflow": sx.to_tensorflow}[engine](path)


CHILD = """
import sys
from pathlib import Path
import numpy as np
import sardonyx as sx
from tests.test_convert_memory import convert, written
engine, small, large, width = sys.argv[1:]
convert(engine, Path(small))
before = written()
held = convert(engine, Path(large))
if engine == "torch":
    import torch
    with torch.no_grad():
        held(torch.zeros(1, int(width)))
elif engine == "jax":
    np.asarray(held[0](held[1], np.zeros((1, int(width)), np.float32)))
else:
    held(np.zeros((1, int(width)), np.float32))
print(written() - before)
"""


@measures
@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["torch", "jax", "tensorflow"])
def test_gigabytes_are_converted_and_run_without_a_copy(tmp_path: Path, engine: str) -> None:
    pytest.importorskip(engine)
    folders = [tmp_path / "small", tmp_path / "large"]
    for folder in folders:
        folder.mkdir()
    small = external(folders[0], 1, width=8)
    width, layers = 8192, 8
    large = external(folders[1], layers, width=width)
    command = [sys.executable, "-c", CHILD, engine, str(small), str(large), str(width)]
    root = Path(__file__).parent.parent
    done = subprocess.run(command, capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) < layers * width * width * 4 / 8


DETECTOR = """
import resource, sys
import numpy as np
import sardonyx as sx
from tests.networks import mlp, network
rng = np.random.default_rng(0)
text = '''m (float[N,3,H,W] x) => (float[N,3,H,W] y) {
    a = MaxPool <kernel_shape = [32, 32], strides = [32, 32]> (x)
    b = ConvTranspose <strides = [32, 32]> (a, w)  y = Add (x, b) }'''
model = network(text, {"w": rng.normal(size=(3, 3, 32, 32))})
sx.to_torch(mlp())
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
module = sx.to_torch(model)
assert module.untraced == "", module.untraced
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@measures
def test_free_sizes_take_no_memory() -> None:
    """A detector that accepts round sizes only is traced at large ones, but not over numbers."""
    pytest.importorskip("torch")
    command = [sys.executable, "-c", DETECTOR]
    root = Path(__file__).parent.parent
    done = subprocess.run(command, capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) < 200 * 1024  # kilobytes
