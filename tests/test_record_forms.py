"""Several records in one file, the two forms of a record, and what happens to both in files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.parser import parse_model

import sardonyx as sx
from sardonyx.engines.onnxruntime import prepare_training
from sardonyx.record.expand import expand_records

from .networks import mlp
from .records import BATCH, SERVED, START, STEP, W, add, gradient, info_of, made, steps

# -- several records: a GAN, written by hand --------------------------------------------------

GENERATOR = """<ir_version: 8, opset_import: ["": 17, "ai.onnx.preview.training": 1]>
gan (float[N,2] z) => (float[N,1] fake) <float[2,1] g = {0.3, -0.2}> { fake = MatMul(z, g) }"""
# The discriminator is no part of the served graph: both records bring their own forward of it.
DISCRIMINATE = """
    {0}_p = Mul({1}, d)
    {0}_n = Neg({0}_p)
    {0}_e = Exp({0}_n)
    {0}_s = Add({0}_e, one)
    {0} = Log({0}_s)
"""
DISCRIMINATOR = (
    (
        """discriminator (float[N,1] real) => (float d_loss, float[1] d_new)
<float[1] d = {{0.7}}, float one = {{1}}, float rate = {{0.5}}> {{"""
        + DISCRIMINATE.format("on_real", "real")
        + " f = Neg(fake) "
        + DISCRIMINATE.format("on_fake", "f")
        + """
    sum = Add(on_real, on_fake)
    d_loss = ReduceMean<keepdims = 0>(sum)
    dd = ai.onnx.preview.training.Gradient<xs = ["d"], y = "d_loss">(d)
    du = Mul(dd, rate)
    d_new = Sub(d, du)
}}"""
    )
    .replace("{{", "{")
    .replace("}}", "}")
)
ADVERSARY = (
    (
        """generator () => (float g_loss, float[2,1] g_new)
<float[1] d = {{0.7}}, float one = {{1}}, float rate = {{0.25}}> {{"""
        + DISCRIMINATE.format("fooled", "fake")
        + """
    g_loss = ReduceMean<keepdims = 0>(fooled)
    gg = ai.onnx.preview.training.Gradient<xs = ["g"], y = "g_loss">(g)
    gu = Mul(gg, rate)
    g_new = Sub(g, gu)
}}"""
    )
    .replace("{{", "{")
    .replace("}}", "}")
)


def gan() -> onnx.ModelProto:
    model = parse_model(GENERATOR)
    add(model, DISCRIMINATOR, [("d", "d_new")])
    add(model, ADVERSARY, [("g", "g_new")])
    return model


def test_gan_alternates_as_in_torch() -> None:
    torch = pytest.importorskip("torch")
    rep = prepare_training(gan(), threads=1)
    g = torch.tensor([[0.3], [-0.2]], dtype=torch.float64, requires_grad=True)
    d = torch.tensor([0.7], dtype=torch.float64, requires_grad=True)
    rng = np.random.default_rng(0)
    for _ in range(10):
        z, real = rng.normal(size=(5, 2)), rng.normal(2.0, 1.0, size=(5, 1))
        result = rep.step({"z": z.astype(np.float32), "real": real.astype(np.float32)})
        tz, tr = torch.tensor(z), torch.tensor(real)
        softplus = torch.nn.functional.softplus
        d_loss = (softplus(-(tr * d)) + softplus((tz @ g).detach() * d)).mean()
        (dd,) = torch.autograd.grad(d_loss, d)
        d = (d - 0.5 * dd).detach().requires_grad_()
        g_loss = softplus(-((tz @ g) * d)).mean()
        (gg,) = torch.autograd.grad(g_loss, g)
        g = (g - 0.25 * gg).detach().requires_grad_()
        np.testing.assert_allclose(result["d_loss"], d_loss.item(), rtol=1e-5)
        np.testing.assert_allclose(result["g_loss"], g_loss.item(), rtol=1e-5)
    np.testing.assert_allclose(rep.state()["g"], g.detach().numpy(), rtol=1e-5)
    np.testing.assert_allclose(rep.state()["d"], d.detach().numpy(), rtol=1e-5)


def test_gan_saved_and_loaded_goes_on_bit_for_bit(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = [
        {
            "z": rng.normal(size=(5, 2)).astype(np.float32),
            "real": rng.normal(size=(5, 1)).astype(np.float32),
        }
        for _ in range(6)
    ]
    whole, half = prepare_training(gan(), threads=1), prepare_training(gan(), threads=1)
    for batch in data:
        whole.step(batch)
    for batch in data[:3]:
        half.step(batch)
    rest = prepare_training(sx.load(sx.save(half.to_model(), tmp_path / "gan.onnx")), threads=1)
    for batch in data[3:]:
        rest.step(batch)
    for name, value in whole.state().items():
        assert np.array_equal(rest.state()[name], value), name


def test_trainable_twice_keeps_the_records_apart(tmp_path: Path) -> None:
    first = sx.trainable(mlp(), "mse", sx.optim.adam(0.01), train="fc0.*", name="lower")
    both = sx.trainable(
        sx.load(sx.save(first, tmp_path / "one.onnx")),
        "l1",
        sx.optim.sgd(0.1, 0.9),
        train="fc1.*",
        name="upper",
    )
    keys = [{k for k, _ in r.update_binding} for r in both.records]
    assert not keys[0] & keys[1]
    rep = prepare_training(both, threads=1)
    rng = np.random.default_rng(0)
    batch = {"x": rng.normal(size=(4, 6)).astype(np.float32), "label": np.ones((4, 3), np.float32)}
    assert set(rep.step(batch)) == {"loss", "upper/loss"}
    alone = prepare_training(first, threads=1)
    other = prepare_training(first, threads=1)
    alone.step(batch)
    before = rep.state()
    rep.step(batch, which=0)
    assert np.array_equal(rep.state()["fc1.weight"], before["fc1.weight"])
    other.load_state({n: before[n] for n in other.state()})
    np.testing.assert_allclose(alone.state()["fc0.weight"], before["fc0.weight"], rtol=1e-6)


# -- forms, files, serving ------------------------------------------------------------------------


def data(count: int, seed: int = 1) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [
        {"x": rng.normal(size=(7, 6)).astype(np.float32), "label": rng.integers(0, 3, 7)}
        for _ in range(count)
    ]


OPTIMIZERS = {
    "sgd": sx.optim.sgd(0.1),
    "momentum": sx.optim.sgd(0.05, 0.9),
    "nesterov": sx.optim.sgd(0.05, 0.9, nesterov=True),
    "dampening": sx.optim.sgd(0.05, 0.9, dampening=0.3),
    "adagrad": sx.optim.adagrad(0.05, 0.1, initial=0.1),
    "onnx_adam": sx.optim.onnx_adam(0.01),
    "adamw": sx.optim.adamw(0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_symbolic_and_expanded_give_the_same_bits(name: str) -> None:
    symbolic = sx.trainable(mlp(), "cross_entropy", OPTIMIZERS[name])
    expanded = sx.trainable(mlp(), "cross_entropy", OPTIMIZERS[name], form="expanded")
    ops = {n.op_type for n in symbolic.records[0].algorithm if n.domain}
    standard = {"momentum": "Momentum", "nesterov": "Momentum", "dampening": "Momentum"}
    standard |= {"adagrad": "Adagrad", "onnx_adam": "Adam"}
    assert ops == {"Gradient", *([standard[name]] if name in standard else [])}
    assert not any(n.domain for n in expanded.records[0].algorithm)
    a, b = (prepare_training(m, threads=1) for m in (symbolic, expanded))
    for batch in data(5):
        assert a.step(batch)["loss"] == b.step(batch)["loss"]
    for key, value in a.state().items():
        assert np.array_equal(b.state()[key], value), key


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("momentum", lambda t, p: t.optim.SGD(p, 0.05, 0.9)),
        ("nesterov", lambda t, p: t.optim.SGD(p, 0.05, 0.9, nesterov=True)),
        ("dampening", lambda t, p: t.optim.SGD(p, 0.05, 0.9, dampening=0.3)),
        ("adagrad", lambda t, p: t.optim.Adagrad(p, 0.05, 0.1, 0.0, 0.1)),
    ],
)
def test_standard_operators_are_what_torch_does(name: str, make) -> None:  # type: ignore[no-untyped-def]
    torch = pytest.importorskip("torch")
    from .networks import torch_mlp

    parameters, forward = torch_mlp(mlp())
    optimizer = make(torch, list(parameters.values()))
    rep = prepare_training(sx.trainable(mlp(), "cross_entropy", OPTIMIZERS[name]), threads=1)
    for batch in data(20):
        rep.step(batch)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(
            forward(torch.tensor(batch["x"])), torch.tensor(batch["label"])
        )
        loss.backward()
        optimizer.step()
    for key, value in parameters.items():
        np.testing.assert_allclose(rep.state()[key], value.detach().numpy(), rtol=2e-4, atol=2e-6)


def test_onnx_adam_is_the_operator_of_the_reference_evaluator() -> None:
    """Twenty steps of the record against onnx.reference's own Adam, fed with torch's gradients."""
    torch = pytest.importorskip("torch")
    from onnx.reference import ReferenceEvaluator

    from .networks import torch_mlp

    text = """<ir_version: 8, opset_import: ["": 17, "ai.onnx.preview.training": 1]>
    a (float r, int64 t, float[A,B] x, float[A,B] g, float[A,B] v, float[A,B] h)
    => (float[A,B] x2, float[A,B] v2, float[A,B] h2) {
        x2, v2, h2 = ai.onnx.preview.training.Adam
        <alpha = 0.9, beta = 0.999, epsilon = 0.000001,
         norm_coefficient = 0.1, norm_coefficient_post = 0.01>(r, t, x, g, v, h) }"""
    adam = ReferenceEvaluator(parse_model(text))
    optimizer = sx.optim.onnx_adam(0.01, weight_decay=0.1, decay_after=0.01)
    rep = prepare_training(
        sx.trainable(mlp(), "cross_entropy", optimizer, train="fc0.weight"), threads=1
    )
    parameters, forward = torch_mlp(mlp())
    weight = parameters["fc0.weight"]
    v = h = np.zeros((5, 6), np.float32)
    for t, batch in enumerate(data(20), start=1):
        rep.step(batch)
        weight.grad = None
        torch.nn.functional.cross_entropy(
            forward(torch.tensor(batch["x"])), torch.tensor(batch["label"])
        ).backward()
        feeds = {
            "r": np.float32(0.01),
            "t": np.int64(t),
            "x": weight.detach().numpy(),
            "g": weight.grad.numpy(),
            "v": v,
            "h": h,
        }
        x, v, h = adam.run(None, {k: np.asarray(a) for k, a in feeds.items()})
        weight.data = torch.tensor(np.asarray(x, np.float32))
    np.testing.assert_allclose(
        rep.state()["fc0.weight"], weight.detach().numpy(), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("form", ["symbolic", "expanded"])
def test_thirty_and_thirty_steps_are_sixty(tmp_path: Path, form: str) -> None:
    net = sx.trainable(
        mlp(), "cross_entropy", sx.optim.adamw(0.01), clip_norm=0.5, ema=0.9, form=form
    )
    batches = data(60)
    whole, half = prepare_training(net, threads=1), prepare_training(net, threads=1)
    losses = [whole.step(b)["loss"] for b in batches]
    result = [half.step(b)["loss"] for b in batches[:30]]
    rest = prepare_training(sx.load(sx.save(half.to_model(), tmp_path / "half.onnx")), threads=1)
    result += [rest.step(b)["loss"] for b in batches[30:]]
    assert np.array_equal(losses, result)
    assert losses[-1] < losses[0]
    for name, value in whole.state().items():
        assert np.array_equal(rest.state()[name], value), name


@pytest.mark.parametrize("form", ["symbolic", "expanded"])
def test_file_with_a_record_serves_as_before(tmp_path: Path, form: str) -> None:
    plain = tmp_path / "plain.onnx"
    onnx.save(mlp().proto(), plain)
    path = sx.save(sx.trainable(sx.load(plain), "cross_entropy", form=form), tmp_path / "net.onnx")
    x = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
    before, after = (
        onnxruntime.InferenceSession(str(p)).run(None, {"x": x})[0] for p in (plain, path)
    )
    assert np.array_equal(before, after)
    onnx.checker.check_model(str(path), full_check=True)
    proto = onnx.load(path)
    assert [n.op_type for n in proto.graph.node] == ["Gemm", "Tanh", "Gemm"]
    assert len(proto.training_info) == 1
    del proto.training_info[:]
    onnx.checker.check_model(proto, full_check=True)


def test_record_survives_load_and_save_unchanged(tmp_path: Path) -> None:
    model = made(start=START, starts=[("w", "w0")])
    path = sx.save(sx.load(model), tmp_path / "again.onnx")
    for graph in (info_of(model).algorithm, info_of(model).initialization):
        for node in graph.node:
            if not node.domain:  # the parser writes an empty domain, which is the default
                node.ClearField("domain")
    assert onnx.load(path).training_info == model.training_info


def test_expanding_a_record_by_hand_changes_no_bit() -> None:
    loaded = sx.load(made())
    a, b = prepare_training(loaded, threads=1), prepare_training(expand_records(loaded), threads=1)
    for _ in range(5):
        assert a.step(BATCH)["loss"] == b.step(BATCH)["loss"]
    assert np.array_equal(a.state()["w"], b.state()["w"])


def test_functions_are_shared_by_all_graphs() -> None:
    model = made(STEP.replace("s = Mul(d, d)", "s = my.square(d)"))
    function = onnx.parser.parse_function(
        '<domain: "my", opset_import: ["": 17]> square (a) => (b) { b = Mul(a, a) }'
    )
    model.functions.append(function)
    model.opset_import.add(domain="my", version=1)
    np.testing.assert_allclose(steps(model)["w"], W - 0.1 * gradient(W), rtol=1e-5)


def test_symbolic_record_of_an_old_opset_runs() -> None:
    served = SERVED.replace('"": 17', '"": 12')
    np.testing.assert_allclose(steps(made(served=served))["w"], W - 0.1 * gradient(W), rtol=1e-5)


def test_nodes_of_an_expanded_record_have_names_of_their_own(tmp_path: Path) -> None:
    """Exporters repeat names of nodes; those of the record are not repeated."""
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1, 2, 3, 4}> {
        [dense] a = MatMul(x, w)
        [act] r = Relu(a)
        [act] t = Tanh(r)
        [last] y = Tanh(t)
    }"""
    model = onnx.parser.parse_model(text)
    model.graph.node[3].name = "train/act"
    net = sx.trainable(model, loss="mse", form="expanded")
    written = onnx.load(sx.save(net, tmp_path / "expanded.onnx"))
    names = [node.name for node in written.training_info[0].algorithm.node if node.name]
    served = {node.name for node in written.graph.node}
    assert len(names) == len(set(names)) and not served & set(names)
    outputs = [name for g in (written.graph, written.training_info[0].algorithm)
               for node in g.node for name in node.output if name]  # fmt: skip
    assert len(outputs) == len(set(outputs))
    step = sx.export_step(net, tmp_path / "step").with_name("train.onnx")
    onnxruntime.InferenceSession(step, providers=["CPUExecutionProvider"])
