"""What a person may ask of a training record: numbers out of range, words that mean nothing and
losses that cannot be called are errors, before any work.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import sardonyx as sx
from sardonyx.errors import ArgumentError, SardonyxError
from sardonyx.record import info
from sardonyx.record.settings import BOUNDS, LOOP, OPTIMIZER, RECORD
from tests.networks import cnn, mlp

WRONG = {
    "clip_norm": -1, "clip_value": 0, "l1": -0.1, "l2": float("nan"), "ema": 1.0, "lr": -1e-3,
    "accumulate": 1.5, "seed": "a",
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_numbers_out_of_range_are_refused(name: str) -> None:
    with pytest.raises(ArgumentError, match=f'out of range\n  "{name}" +is a'):
        sx.trainable(mlp(), **{name: WRONG[name]})  # type: ignore[arg-type]


def test_the_arguments_are_the_settings_of_the_table() -> None:
    parameters = inspect.signature(sx.trainable).parameters
    assert set(parameters) - {"model", "config", "unknown"} == set(RECORD)
    assert set(LOOP) < set(inspect.signature(sx.train).parameters)
    for name, bound in BOUNDS.items():
        if name in parameters:
            assert parameters[name].default is None or parameters[name].default in bound
    makers = [inspect.signature(maker).parameters for maker in sx.optim.MAKERS.values()]
    assert set(OPTIMIZER) < {name for names in makers for name in names}


def test_all_numbers_out_of_range_are_named_at_once() -> None:
    with pytest.raises(ArgumentError) as result:
        sx.trainable(mlp(), l1=-1, clip_norm=0, ema=2)
    assert [f'"{n}"' in str(result.value) for n in ("l1", "clip_norm", "ema")] == [True] * 3


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("adam", {"b1": 1.0}),
        ("adamw", {"lr": float("inf")}),
        ("sgd", {"momentum": -0.9}),
        ("rmsprop", {"eps": -1e-8}),
        ("lion", {"b2": -0.1}),
    ],
)
def test_optimizers_refuse_what_torch_refuses(name: str, settings: dict[str, float]) -> None:
    (setting,) = settings
    with pytest.raises(ArgumentError, match=f'settings of {name} .*\n  "{setting}"'):
        getattr(sx.optim, name)(**settings)


def test_a_schedule_is_no_learning_rate() -> None:
    with pytest.raises(ArgumentError, match="schedule by its keyword"):
        sx.optim.adamw(sx.schedule.cosine(100))  # type: ignore[arg-type]
    assert sx.optim.adamw(1e-3, schedule=sx.schedule.cosine(100)).settings["lr"] == 1e-3


def test_settings_of_a_group_are_those_of_the_optimizer() -> None:
    with pytest.raises(ArgumentError, match="adamw has no setting rate"):
        sx.trainable(mlp(), groups={"fc0.*": {"rate": 1}})


def test_modes_are_words_that_are_known_and_patterns_that_match() -> None:
    with pytest.raises(ArgumentError, match="a mode is one of train, frozen, not 'eval'"):
        sx.trainable(mlp(), batch_norm="eval")  # also where the model has none
    with pytest.raises(ArgumentError, match='no BatchNormalization matches\n  "norm') as result:
        sx.trainable(cnn(), batch_norm={"norm.*": "train"})
    assert "the model has" in str(result.value)
    assert sx.trainable(cnn(), batch_norm={"bn.*": "train"}).records


def no_arguments(op: Any) -> Any:
    return op.const(1.0)


def no_tensor(op: Any, prediction: Any, label: Any) -> Any:
    return 3.0


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (no_arguments, r"does not take \(op, prediction, label\)"),
        (no_tensor, "returns float, not a tensor"),
    ],
)
def test_losses_that_cannot_be_built_are_explained(function: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=f"the loss {function.__name__} {words}"):
        sx.trainable(mlp(), loss=function)


def test_a_gradient_without_a_name_is_called_by_its_result() -> None:
    net = sx.trainable(mlp())
    node = next(n for n in net.records[0].algorithm if n.op_type == "Gradient")
    node.name = ""
    node.attributes.add(ir.AttrString("y", "nowhere"))
    with pytest.raises(SardonyxError, match=f'Gradient "{node.outputs[0].name}" +"nowhere"'):
        info.check(net)


def test_a_run_says_what_it_did() -> None:
    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=(8, 6)).astype(np.float32), "label": rng.integers(0, 3, 8)}
    run = sx.train(mlp(), data, loss="cross_entropy", epochs=2, batch_size=4)
    loss = f"{run.history[-1]['loss']:.4g}"
    assert repr(run) == f"Run(2 epochs, 4 steps, loss {loss}, on onnxruntime)"
    assert sx.train(run.model, data, steps=1, batch_size=4, engine="numpy").engine == "numpy"
