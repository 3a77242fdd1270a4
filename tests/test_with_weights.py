"""`with_weights`: every kind of source, and what does not fit is refused alike in each of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

import sardonyx as sx
from sardonyx.errors import ArgumentError

WEIGHTS = {
    "0.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "0.bias": np.array([1, -1], np.float32),
}
NEW = {name: array + 0.5 for name, array in WEIGHTS.items()}


def linear() -> sx.Model:
    text = """<ir_version: 10, opset_import: ["": 20]>
    g (float[N, 3] x) => (float[N, 2] y) { y = Gemm<transB=1>(x, "0.weight", "0.bias") }"""
    proto = onnx.parser.parse_model(text.replace('"0.weight"', "w").replace('"0.bias"', "b"))
    proto.graph.node[0].input[1:] = list(WEIGHTS)
    proto.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in WEIGHTS.items())
    return sx.load(proto)


def torch_module() -> Any:
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(3, 2))
    module.load_state_dict({n: torch.from_numpy(a.copy()) for n, a in NEW.items()})
    return module


def jax_params() -> Any:
    numpy = pytest.importorskip("jax.numpy")
    return {"0": {key.removeprefix("0."): numpy.asarray(a) for key, a in NEW.items()}}


def nnx_module() -> Any:
    pytest.importorskip("flax")
    module = sx.to_jax(linear(), as_="nnx")
    for name, array in NEW.items():
        module.weights[name][...] = array
    return module


def tensorflow_module() -> Any:
    pytest.importorskip("tensorflow")
    module = sx.to_tensorflow(linear())
    for name, array in NEW.items():
        module.weights[name].assign(array)
    return module


def tf_variables() -> Any:
    tf = pytest.importorskip("tensorflow")
    module = tf.Module()
    module.held = [tf.Variable(array, name=name) for name, array in NEW.items()]
    return module


SOURCES = {
    "arrays": lambda: dict(NEW),
    "torch module": torch_module,
    "torch state dict": lambda: torch_module().state_dict(),
    "to_torch module": lambda: sx.to_torch(sx.with_weights(linear(), NEW)),
    "nested jax params": jax_params,
    "nnx module": nnx_module,
    "to_tensorflow module": tensorflow_module,
    "tf.Module": tf_variables,
}


@pytest.mark.parametrize("kind", SOURCES)
def test_source_is_read_bit_for_bit(kind: str) -> None:
    model = linear()
    tuned = sx.with_weights(model, SOURCES[kind]())
    for name, array in NEW.items():
        np.testing.assert_array_equal(tuned.initializer(name).numpy(), array)
        np.testing.assert_array_equal(model.initializer(name).numpy(), WEIGHTS[name])


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_file_is_read(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"weights{suffix}"
    if suffix == ".npz":
        np.savez(path, **NEW)
    else:
        pytest.importorskip("safetensors.numpy").save_file(NEW, path)
    tuned = sx.with_weights(linear(), path)
    np.testing.assert_array_equal(tuned.initializer("0.bias").numpy(), NEW["0.bias"])


def test_keras_variables_are_named_by_their_paths() -> None:
    keras = pytest.importorskip("keras")
    layer = keras.layers.Dense(2, name="head")
    network = keras.Sequential([keras.layers.Input((3,)), layer])
    paths = [variable.path for variable in network.variables]
    model = linear()
    for value, path in zip(list(model.graph.initializers.values()), paths, strict=True):
        value.name = path
    # Keras keeps the kernel as [in, out]: this model has it transposed, so the shapes differ.
    with pytest.raises(ArgumentError, match=r"\[2, 3\] ← \[3, 2\]"):
        sx.with_weights(model, network)
    sx.with_weights(model, {paths[0]: NEW["0.weight"], paths[1]: np.zeros(2, np.float32)})


FOREIGN = {
    "numpy": lambda arrays: arrays,
    "torch": lambda arrays: {
        n: pytest.importorskip("torch").from_numpy(a) for n, a in arrays.items()
    },
    "jax": lambda arrays: {
        n: pytest.importorskip("jax").numpy.asarray(a) for n, a in arrays.items()
    },
    "tensorflow": lambda arrays: {
        n: pytest.importorskip("tensorflow").constant(a) for n, a in arrays.items()
    },
}


@pytest.mark.parametrize("framework", FOREIGN)
def test_missing_and_unknown_names_are_errors_in_every_framework(framework: str) -> None:
    source = FOREIGN[framework]({"0.bias": NEW["0.bias"], "nowhere": np.zeros(1, np.float32)})
    with pytest.raises(ArgumentError) as caught:
        sx.with_weights(linear(), source)
    assert '"0.weight"  is missing' in str(caught.value)
    assert '"nowhere"' in str(caught.value) and "partial=True" in str(caught.value)
    tuned = sx.with_weights(linear(), source, partial=True)
    np.testing.assert_array_equal(tuned.initializer("0.bias").numpy(), NEW["0.bias"])
    np.testing.assert_array_equal(tuned.initializer("0.weight").numpy(), WEIGHTS["0.weight"])


def test_tied_weights_and_bookkeeping_of_torch_are_no_unknown_names() -> None:
    torch = pytest.importorskip("torch")
    module = torch_module()
    module.tied = module[0]
    module.register_buffer("num_batches_tracked", torch.tensor(3))
    tuned = sx.with_weights(linear(), module)
    np.testing.assert_array_equal(tuned.initializer("0.bias").numpy(), NEW["0.bias"])


@pytest.mark.parametrize("wrapper", ["compile", "data parallel", "average", "both"])
def test_what_torch_wraps_around_a_module_is_taken_off(wrapper: str) -> None:
    torch = pytest.importorskip("torch")
    net = sx.trainable(linear(), "cross_entropy", "adamw")
    module, loss, optimizer, _ = sx.to_torch(net, training=True)
    loss(module(torch.ones(4, 3)), torch.tensor([0, 1, 1, 0])).backward()
    optimizer.step()
    wrap = {
        "compile": lambda m: torch.compile(m, backend="eager"),
        "data parallel": torch.nn.DataParallel,
        "average": torch.optim.swa_utils.AveragedModel,
        "both": lambda m: torch.nn.DataParallel(torch.compile(m, backend="eager")),
    }[wrapper]
    wrapped = wrap(module)
    sources = [wrapped] if wrapper == "average" else [wrapped, wrapped.state_dict()]
    for source in sources:
        tuned = sx.with_weights(net, source)
        for name, parameter in module.named_parameters():
            np.testing.assert_array_equal(
                tuned.initializer(name).numpy(), parameter.detach().numpy()
            )
    if wrapper != "average":  # whose weights are copies that no optimizer has
        state = sx.with_weights(net, wrapped, optimizer=optimizer).records[0].state
        first = optimizer.state[module.get_parameter("0.bias")]["exp_avg"].numpy()
        np.testing.assert_allclose(state["0.bias/adam_m"].numpy(), first / 0.1, rtol=1e-5)


def test_parts_of_fully_sharded_parameters_are_gathered() -> None:
    torch = pytest.importorskip("torch")
    net = sx.trainable(linear(), "cross_entropy", "adamw")
    module, loss, _, _ = sx.to_torch(net, training=True)
    distributed = torch.distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = distributed.device_mesh.init_device_mesh("cpu", (1,))
        distributed.fsdp.fully_shard(module, mesh=mesh)
        optimizer = torch.optim.AdamW(module.parameters())
        loss(module(torch.ones(4, 3)), torch.tensor([0, 1, 1, 0])).backward()
        optimizer.step()
        tuned = sx.with_weights(net, module, optimizer=optimizer)
        bias = module.get_parameter("0.bias")
        whole = bias.full_tensor().detach().numpy()
        first = optimizer.state[bias]["exp_avg"].full_tensor().numpy()
    finally:
        distributed.destroy_process_group()
    np.testing.assert_array_equal(tuned.initializer("0.bias").numpy(), whole)
    slot = tuned.records[0].state["0.bias/adam_m"].numpy()
    np.testing.assert_allclose(slot, first / 0.1, rtol=1e-5)


def test_weights_of_which_none_fits_are_refused_even_in_part() -> None:
    with pytest.raises(ArgumentError, match="none of these weights has the name"):
        sx.with_weights(linear(), {"encoder.weight": NEW["0.weight"]}, partial=True)


def test_state_dicts_of_optimizers_are_refused_with_the_way() -> None:
    torch = pytest.importorskip("torch")
    net = sx.trainable(linear(), "cross_entropy", "adamw")
    module = torch_module()
    state = torch.optim.AdamW(module.parameters()).state_dict()
    with pytest.raises(ArgumentError, match=r"load the state dicts into") as caught:
        sx.with_weights(net, module.state_dict(), optimizer=state)
    assert "to_torch(model, training=True)" in str(caught.value)


def test_what_holds_no_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="cannot read weights from"):
        sx.with_weights(linear(), 3)
    with pytest.raises(ArgumentError, match="there are no weights in"):
        sx.with_weights(linear(), tmp_path / "nothing.npz")
