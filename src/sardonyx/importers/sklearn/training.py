"""Training records that continue an estimator: what `partial_fit` does, as one step of the record.

SGD estimators update after every row, so their step takes one row; perceptrons with layers take a
batch. Optimizers start with the state that the estimator has kept. Labels of classifiers are the
numbers of classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder
from sardonyx.importers.rules import public_name
from sardonyx.importers.special import softmax, softplus
from sardonyx.model import Model
from sardonyx.record import optim
from sardonyx.record.loss.kinds import Label, Loss, custom
from sardonyx.record.schedule import Schedule
from sardonyx.record.trainable import trainable
from sardonyx.record.transform import Parameter, UpdateContext, rate

F = np.float64
LINEAR = "sklearn.linear_model."
OTHER_RATE = 1e-2  # of estimators that have no steps of their own
TARGET = "target"  # the input of the step; `label` is an output of classifiers
MOST_SLOPE = 1e12


def continued(model: Model, estimator: Any) -> Model | None:
    """The model with a record that continues the estimator; None where there is none for it."""
    plan = PLANS.get(public_name(type(estimator)))
    settings = plan(estimator) if plan is not None else None
    if settings is None:
        return None
    loss, optimizer = settings
    kinds = ("coef", "intercept") if getattr(estimator, "fit_intercept", True) else ("coef",)
    weights = [n for n in model.graph.initializers if n.startswith(kinds)]
    scores = next(n for n in reversed(list(model.graph)) if n.op_type == "Gemm").outputs[0]
    return trainable(
        model, loss=loss, optimizer=optimizer, train=weights, prediction=scores.name,
        labels=[TARGET], form="expanded",
    )  # fmt: skip


# -- losses of raw scores -------------------------------------------------------------------------


def _signs(op: Builder, scores: ir.Value, label: ir.Value) -> ir.Value:
    """+1 for the class of a row, -1 for the others, in the shape of the scores."""
    assert scores.shape is not None
    count = scores.shape[1]
    numbers = np.array([[1]]) if count == 1 else np.arange(count)[None]  # type: ignore[arg-type]
    same = op.Equal(op.Unsqueeze(label, [1]), numbers)
    return op.Where(same, F(1), F(-1))


MARGINS: dict[str, Callable[[Builder, ir.Value], ir.Value]] = {
    "hinge": lambda op, z: _below(op, z, 1.0),
    "perceptron": lambda op, z: _below(op, z, 0.0),
    "squared_hinge": lambda op, z: _limited_square(op, op.Relu(op.Sub(F(1), z))),
    "log_loss": lambda op, z: softplus(op, op.Neg(z)),
    "modified_huber": lambda op, z: op.Where(
        op.GreaterOrEqual(z, F(-1)), _square(op, op.Relu(op.Sub(F(1), z))), op.Mul(z, F(-4))
    ),
}


def _below(op: Builder, z: ir.Value, limit: float) -> ir.Value:
    """How far z is below a limit; on it, the slope is that below, as SGD estimators have it."""
    return op.Where(op.LessOrEqual(z, F(limit)), op.Sub(F(limit), z), F(0))


def _square(op: Builder, x: ir.Value) -> ir.Value:
    return op.Mul(x, x)


def _limited_square(op: Builder, x: ir.Value, slope: float = MOST_SLOPE) -> ir.Value:
    """x² for x >= 0, with a slope of at most `slope`, at which SGD estimators cut derivatives."""
    edge = slope / 2
    line = op.Sub(op.Mul(x, F(slope)), F(edge**2))
    return op.Where(op.LessOrEqual(x, F(edge)), _square(op, op.Min(x, F(edge))), line)


def _distance(op: Builder, name: str, d: ir.Value, epsilon: float) -> ir.Value:
    """The losses of a difference between a prediction and its target."""
    size = op.Abs(d)
    if name == "squared_error":
        return op.Mul(_limited_square(op, size, 2 * MOST_SLOPE), F(0.5))
    if name == "huber":
        far = op.Sub(op.Mul(size, F(epsilon)), F(0.5 * epsilon**2))
        return op.Where(op.LessOrEqual(size, F(epsilon)), op.Mul(_square(op, d), F(0.5)), far)
    beyond = op.Relu(op.Sub(size, F(epsilon)))
    return _limited_square(op, beyond) if name.startswith("squared") else beyond


def _row_mean(op: Builder, losses: ir.Value) -> ir.Value:
    """The mean over rows of the sum over outputs."""
    return op.ReduceMean(op.ReduceSum(losses, [1], keepdims=0), keepdims=0)


def _loss(estimator: Any, name: str) -> Loss:
    if name in MARGINS:

        def compute(op: Builder, scores: ir.Value, label: ir.Value) -> ir.Value:
            losses = MARGINS[name](op, op.Mul(scores, _signs(op, scores, label)))
            return _row_mean(op, _weighted(op, estimator, losses, label))

        return custom(compute, [Label("classes")], name)

    epsilon = float(getattr(estimator, "epsilon", 0.1))
    if hasattr(estimator, "classes_"):

        def classify(op: Builder, scores: ir.Value, label: ir.Value) -> ir.Value:
            difference = op.Sub(scores, _signs(op, scores, label))
            losses = _distance(op, name, difference, epsilon)
            return _row_mean(op, _weighted(op, estimator, losses, label))

        return custom(classify, [Label("classes")], name)

    def compare(op: Builder, scores: ir.Value, label: ir.Value) -> ir.Value:
        return _row_mean(op, _distance(op, name, op.Sub(scores, label), epsilon))

    return custom(compare, None, name)


def _weighted(op: Builder, estimator: Any, losses: ir.Value, label: ir.Value) -> ir.Value:
    """The losses times the weights of classes; of several, each score has that of its own class."""
    weights = _class_weights(estimator)
    if weights is None:
        return losses
    index = op.Unsqueeze(label, [1])
    if len(weights) == 2:
        return op.Mul(losses, op.Where(op.Equal(index, np.array([[1]])), weights[1], weights[0]))
    hit = op.Equal(index, np.arange(len(weights))[None])
    return op.Mul(losses, op.Where(hit, weights[None], F(1)))


def _class_weights(estimator: Any) -> np.ndarray | None:
    """The weight of each class; None where all are one."""
    setting = getattr(estimator, "class_weight", None)
    if setting is None:
        return None
    if hasattr(estimator, "_expanded_class_weight"):
        return np.asarray(estimator._expanded_class_weight, F)
    return np.array([setting.get(name, 1.0) for name in estimator.classes_.tolist()], F)


def _logistic(estimator: Any) -> Loss | None:
    if getattr(estimator, "class_weight", None) == "balanced":
        return None  # the weights depend on the rows of the fit, and the estimator keeps no trace
    if len(estimator.classes_) <= 2:  # layers of one class have one score, which is for no class
        return _loss(estimator, "log_loss")
    weights = _class_weights(estimator)
    factors = np.ones(len(estimator.classes_)) if weights is None else weights

    def cross_entropy(op: Builder, scores: ir.Value, label: ir.Value) -> ir.Value:
        same = op.Equal(op.Unsqueeze(label, [1]), np.arange(len(factors))[None])
        right = op.Where(same, factors[None], F(0))
        return op.Neg(_row_mean(op, op.Mul(right, op.Log(softmax(op, scores)))))

    return custom(cross_entropy, [Label("classes")], "cross_entropy")


# -- optimizers -----------------------------------------------------------------------------------


def _is_weight(p: Parameter) -> bool:
    """Whether the penalty of an estimator is on this parameter: it is never on intercepts."""
    return p.name.startswith("coef")


def _penalty(alpha: float) -> optim.Update:
    """Add the gradient of half the squared weights times `alpha`, shared among the rows."""

    def update(step: UpdateContext, parameters: list[Parameter]) -> None:
        rows = step.op.Gather(step.op.Shape(step.builder.inputs[TARGET]), 0)
        factor = step.hyper("weight_decay", alpha)
        factor = step.op.Div(factor, step.op.cast(rows, ir.DataType.DOUBLE))
        for p in parameters:
            if _is_weight(p):
                p.update = step.op.Add(p.update, step.op.Mul(p.value, step.like(factor, p)))

    return update


def _descent(
    lr: float, schedule: Schedule | None, squared: float = 0.0, absolute: float = 0.0
) -> optim.Update:
    """A step down the gradient; before it, `squared` times the rate scales weights down, to zero at
    most, and behind it `absolute` times the rate brings them closer to zero."""

    def update(step: UpdateContext, parameters: list[Parameter]) -> None:
        op, now = step.op, rate(step, lr, schedule)
        decay = step.hyper("weight_decay", squared) if squared else None
        for p in parameters:
            value = p.value
            if decay is not None and _is_weight(p):
                taken = op.Mul(step.like(now, p), step.like(decay, p))
                value = op.Mul(value, op.Relu(op.Sub(F(1), taken)))
            p.final = op.Sub(value, op.Mul(p.update, step.like(now, p)))
            if absolute and _is_weight(p):
                least = op.Mul(step.like(now, p), F(absolute))
                p.final = op.Mul(op.Sign(p.final), op.Relu(op.Sub(op.Abs(p.final), least)))

    return update


def _momentum(lr: float, momentum: float, nesterov: bool, start: dict[str, Any]) -> optim.Update:
    def update(step: UpdateContext, parameters: list[Parameter]) -> None:
        op, now = step.op, rate(step, lr, None)
        for p in parameters:
            slot = step.slot(p, "velocity", start.get(p.name))
            with op:
                move = p.update * step.like(now, p)
                slot.next = slot.value * momentum - move
                moved = slot.next * momentum - move if nesterov else slot.next
                p.final = p.value + moved

    return update


def _adam(estimator: Any, start: dict[str, tuple[Any, Any]], count: int) -> optim.Update:
    """scikit-learn's Adam: epsilon is added before the bias is corrected."""
    b1, b2, epsilon = estimator.beta_1, estimator.beta_2, estimator.epsilon

    def update(step: UpdateContext, parameters: list[Parameter]) -> None:
        op = step.op
        with op:
            t = step.steps() + F(count)
            one, two = (op.Pow(op.const(F(b)), t) for b in (b1, b2))
            now = rate(step, estimator.learning_rate_init, None)
            now = now * op.Sqrt(F(1) - two) / (F(1) - one)
            for p in parameters:
                first, second = start.get(p.name, (None, None))
                m, v = step.slot(p, "adam_m", first), step.slot(p, "adam_v", second)
                m.next = m.value * b1 + p.update * (1 - b1)
                v.next = v.value * b2 + p.update * p.update * (1 - b2)
                moved = m.next * step.like(now, p) / (op.Sqrt(v.next) + epsilon)
                p.final = p.value - moved

    return update


def _named(chain: optim.Optimizer, text: str) -> optim.Optimizer:
    return optim.Optimizer(chain.updates, text)


# -- estimators -----------------------------------------------------------------------------------


def _sgd(estimator: Any) -> tuple[Loss, optim.Optimizer] | None:
    penalty = getattr(estimator, "penalty", None)
    if getattr(estimator, "average", False):
        return None
    kind = "perceptron" if type(estimator).__name__ == "Perceptron" else estimator.loss
    rates = _sgd_rate(estimator, kind)
    if rates is None:
        return None
    alpha = float(estimator.alpha) if penalty is not None else 0.0
    share = {"l1": 1.0, "elasticnet": float(estimator.l1_ratio or 0.0)}.get(penalty or "", 0.0)
    step = _descent(*rates, squared=alpha * (1 - share), absolute=alpha * share)
    return _loss(estimator, kind), _named(optim.chain(step), "sgd")


def _sgd_rate(estimator: Any, kind: str) -> tuple[float, Schedule | None] | None:
    """The rate and its schedule; `t_` counts rows from 1."""
    start, alpha = float(estimator.t_), float(estimator.alpha)
    how = getattr(estimator, "learning_rate", "constant")
    if how in ("constant", "adaptive"):
        return float(estimator.eta0), None
    if how == "invscaling":
        power = float(estimator.power_t)

        def inverse(op: Builder, t: ir.Value) -> ir.Value:
            return op.Pow(op.Add(t, F(start)), F(-power))

        return float(estimator.eta0), Schedule(inverse, f"1 / t^{power:g}")
    if how != "optimal":
        return None
    usual = np.sqrt(1.0 / np.sqrt(alpha))
    slope = {"squared_error": -usual - 1.0}.get(kind)
    if slope is None:
        slope = _slope(estimator, kind, usual)
    first = 1.0 / (usual / max(1.0, slope) * alpha)

    def optimal(op: Builder, t: ir.Value) -> ir.Value:
        return op.Div(F(1), op.Add(t, F(first + start - 1)))

    return 1.0 / alpha, Schedule(optimal, "1 / (alpha (t0 + t))")


def _slope(estimator: Any, kind: str, usual: float) -> float:
    """The derivative of the loss for the target 1 at the prediction -usual."""
    z, epsilon = -usual, float(getattr(estimator, "epsilon", 0.1))
    d = z - 1.0
    return {
        "hinge": -1.0,
        "perceptron": -1.0,
        "squared_hinge": -2.0 * (1 - z),
        "log_loss": -1.0 / (np.exp(z) + 1.0),
        "modified_huber": -2.0 * (1 - z) if z >= -1 else -4.0,
        "huber": d if abs(d) <= epsilon else -epsilon,
        "epsilon_insensitive": -1.0,
        "squared_epsilon_insensitive": 2 * (d + epsilon),
    }[kind]


def _mlp(estimator: Any) -> tuple[Loss, optim.Optimizer] | None:
    solver = getattr(estimator, "_optimizer", None)
    count = len(estimator.coefs_)
    names = [f"coefs.{i}" for i in range(count)] + [f"intercepts.{i}" for i in range(count)]
    if estimator.solver == "adam":
        state = {} if solver is None else dict(zip(names, zip(solver.ms, solver.vs)))
        step = _adam(estimator, state, 0 if solver is None else int(solver.t))
    elif estimator.solver == "sgd" and estimator.learning_rate == "constant":
        lr = estimator.learning_rate_init if solver is None else solver.learning_rate
        state = {} if solver is None else dict(zip(names, solver.velocities))
        step = _momentum(lr, estimator.momentum, estimator.nesterovs_momentum, state)
    else:
        return None
    optimizer = optim.chain(_penalty(float(estimator.alpha)), step)
    loss = _mlp_loss(estimator)
    return None if loss is None else (loss, _named(optimizer, estimator.solver))


def _mlp_loss(estimator: Any) -> Loss | None:
    if not hasattr(estimator, "classes_"):
        return _loss(estimator, "squared_error") if estimator.loss == "squared_error" else None
    if estimator._label_binarizer.y_type_.startswith("multilabel"):
        return custom(_each_label, None, "log_loss")
    return _logistic(estimator)


def _each_label(op: Builder, scores: ir.Value, label: ir.Value) -> ir.Value:
    signs = op.Sub(op.Mul(label, F(2)), F(1))
    return _row_mean(op, softplus(op, op.Neg(op.Mul(scores, signs))))


def _regression(estimator: Any) -> tuple[Loss, optim.Optimizer]:
    return _loss(estimator, "squared_error"), optim.sgd(OTHER_RATE)


def _classification(estimator: Any) -> tuple[Loss, optim.Optimizer] | None:
    loss = _logistic(estimator)
    return None if loss is None else (loss, optim.sgd(OTHER_RATE))


PLANS: dict[str, Callable[[Any], Any]] = {
    LINEAR + "SGDClassifier": _sgd,
    LINEAR + "SGDRegressor": _sgd,
    LINEAR + "Perceptron": _sgd,
    LINEAR + "LogisticRegression": _classification,
    LINEAR + "LogisticRegressionCV": _classification,
    **{
        LINEAR + name: _regression
        for name in ("LinearRegression", "Ridge", "RidgeCV", "Lasso", "ElasticNet", "BayesianRidge")
    },
    "sklearn.neural_network.MLPClassifier": _mlp,
    "sklearn.neural_network.MLPRegressor": _mlp,
}
