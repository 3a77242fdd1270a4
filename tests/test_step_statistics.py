"""Running statistics of batch normalization on onnxruntime, whose kernel overwrites its inputs.

Layers share weights, biases and statistics, start from equal values or read the same tensor: every
number must be torch's, in training steps and in models that are served in training mode.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx.parser import parse_model
from onnx.reference import ReferenceEvaluator

import sardonyx as sx
from sardonyx.engines.onnxruntime import prepare

torch = pytest.importorskip("torch")

ROWS, WIDTH, CLASSES, STEPS, RATE = 12, 5, 3, 3, 0.1
PARALLEL = {"options": {"execution_mode": ort.ExecutionMode.ORT_PARALLEL}}
RECORDED = ("weight", "bias", "running_mean", "running_var")


class Network(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Two normalizations, one behind the other or beside it, that share the tensors named."""

    def __init__(self, shared: Sequence[str], parallel: bool = False):
        super().__init__()
        torch.manual_seed(0)
        self.parallel = parallel
        self.first, self.second = torch.nn.Linear(4, WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.norm1, self.norm2 = torch.nn.BatchNorm1d(WIDTH), torch.nn.BatchNorm1d(WIDTH)
        self.head = torch.nn.Linear(WIDTH, CLASSES)
        for norm in (self.norm1, self.norm2):
            # No two of these tensors are equal: the exporter would make one of them.
            for name in RECORDED:
                getattr(norm, name).data.copy_(torch.rand(WIDTH) + 0.5)
        for name in shared:
            setattr(self.norm2, name, getattr(self.norm1, name))

    def forward(self, x: Any) -> Any:
        h = self.first(x)
        if self.parallel:
            return self.head(torch.relu(self.norm1(h)) + torch.tanh(self.norm2(h)))
        return self.head(torch.relu(self.norm2(self.second(torch.relu(self.norm1(h))))))


def exported(network: Network) -> onnx.ModelProto:
    file = io.BytesIO()
    torch.onnx.export(
        network.eval(), (torch.zeros(ROWS, 4),), file, dynamo=False, do_constant_folding=False,
        input_names=["x"], output_names=["y"], keep_initializers_as_inputs=False,
    )  # fmt: skip
    return onnx.load_from_string(file.getvalue())


def trained_by_torch(network: Network, x: np.ndarray, label: np.ndarray) -> dict[str, np.ndarray]:
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE)
    network.train()
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(torch.tensor(x)), torch.tensor(label)).backward()
        optimizer.step()
    return {n: t.detach().numpy() for n, t in network.state_dict().items()}


@pytest.mark.filterwarnings("ignore")  # of torch's older exporter
@pytest.mark.parametrize("engine", ["onnxruntime", "numpy"])
@pytest.mark.parametrize("parallel", [False, True], ids=["chain", "parallel"])
@pytest.mark.parametrize(
    "shared",
    [[], ["bias"], ["weight"], ["weight", "bias"], ["running_mean"], ["running_var"], RECORDED],
    ids="+".join,
)
def test_layers_that_share_tensors(shared: Sequence[str], parallel: bool, engine: str) -> None:
    if parallel and shared is RECORDED:
        pytest.skip("the exporter writes two equal layers on one tensor as one")
    network = Network(shared, parallel)
    _compare(network, sx.load(exported(network)), engine, {})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("options", [{}, PARALLEL, {"recompute": True}])
def test_equal_values_under_every_arrangement(options: dict[str, Any], threads: int) -> None:
    network = Network(["bias"])
    model = sx.load(exported(network))
    for name in ("weight", "running_mean", "running_var"):
        value = getattr(network.norm1, name).data
        getattr(network.norm2, name).data.copy_(value)
        model.graph.initializers[f"norm2.{name}"].const_value = ir.tensor(value.numpy().copy())
    _compare(network, model, "onnxruntime", {"threads": threads, **options})


def _compare(network: Network, model: sx.Model, engine: str, options: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(1, 3, (ROWS, 4)).astype(np.float32)
    label = rng.integers(0, CLASSES, ROWS)
    net = sx.trainable(model, "cross_entropy", optimizer=sx.optim.sgd(RATE))
    expected = trained_by_torch(network, x, label)
    run = sx.train(
        net, {"x": x, "label": label}, steps=STEPS, batch_size=ROWS, shuffle=False,
        engine=engine, engine_options=options,
    )  # fmt: skip
    initializers = run.model.graph.initializers
    names = [n for n in expected if n in initializers and n.startswith("norm")]
    assert len(names) >= 4
    for name in names:
        result = initializers[name].const_value.numpy()
        np.testing.assert_allclose(result, expected[name], rtol=2e-4, atol=2e-5, err_msg=name)


SERVED = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[N,2] x) => (float[N,2] y, float[2] m1, float[2] v1, float[2] m2, float[2] v2)
    <float[2] s = {1, 1}, float[2] b = {0, 0}, float[2] m = {0, 0}, float[2] v = {1, 1}> {
        y1, a1, c1 = BatchNormalization<training_mode=1, momentum=MOMENTUM>(x, s, b, m, v)
        z = SECOND
        y2, a2, c2 = BatchNormalization<training_mode=1, momentum=0.5>(z, s, b, m, v)
        y = Add(y1, y2)
        m1 = Neg(a1)
        v1 = Neg(c1)
        m2 = Neg(a2)
        v2 = Neg(c2)
    }"""


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("second", ["Mul(x, x)", "Identity(x)"])
def test_a_model_served_in_training_mode_stays_as_it_is(second: str, momentum: float) -> None:
    model = parse_model(SERVED.replace("SECOND", second).replace("MOMENTUM", str(momentum)))
    x = np.random.default_rng(0).normal(1, 3, (6, 2)).astype(np.float32)
    expected = ReferenceEvaluator(model).run(None, {"x": x})
    rep = prepare(model)
    for _ in range(3):
        for result, right in zip(rep.run([x]), expected, strict=True):
            np.testing.assert_allclose(result, right, rtol=1e-5, atol=1e-5)
