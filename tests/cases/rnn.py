"""RNN, LSTM and GRU: directions, lengths, initial states, activations, and what each has of its
own."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.testing import Case, case

STEPS, BATCH, INPUTS, HIDDEN = 4, 3, 5, 2
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
# Where torch's gates are in ONNX's: LSTM i, f, c, o in i, o, f, c; GRU r, z, n in z, r, h.
FROM_ONNX = {"RNN": [0], "LSTM": [0, 2, 3, 1], "GRU": [1, 0, 2]}
LENGTHS = np.array([4, 1, 3], np.int32)


def shapes(op: str, directions: int, batchwise: bool = False) -> dict[str, tuple[int, ...]]:
    rows = GATES[op] * HIDDEN
    state = (BATCH, directions, HIDDEN) if batchwise else (directions, BATCH, HIDDEN)
    return {
        "x": (BATCH, STEPS, INPUTS) if batchwise else (STEPS, BATCH, INPUTS),
        "w": (directions, rows, INPUTS),
        "r": (directions, rows, HIDDEN),
        "b": (directions, 2 * rows),
        "h": state,
        "c": state,
        "p": (directions, 3 * HIDDEN),
    }


def recurrent(op: str, given: str, id: str, lengths: Any = None, **attributes: Any) -> Case:
    """A case whose inputs are the letters in `given`: x, w, r, b(ias), h, c, p(eepholes)."""
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    every = shapes(op, directions, bool(attributes.get("layout")))
    inputs = [every[n] if n in given else None for n in ("x", "w", "r", "b")]
    inputs += [lengths, *(every[n] if n in given else None for n in ("h", "c", "p"))]
    while inputs[-1] is None:
        inputs.pop()
    options = {"low": -0.9, "high": 0.9, "outputs": 3 if op == "LSTM" else 2, **attributes}
    return case(op, *inputs, id=id, hidden_size=HIDDEN, **options)


def in_torch(op: str, direction: str = "forward") -> Any:
    """The same layer as torch.nn has it: all inputs but the lengths, in ONNX's layouts."""

    def run(x: Any, w: Any, r: Any, b: Any, *states: Any) -> Any:
        import torch

        both = direction == "bidirectional"
        layer = getattr(torch.nn, op)(INPUTS, HIDDEN, bidirectional=both, dtype=x.dtype)
        weights = {}
        for d in range(w.shape[0]):
            suffix = "_l0_reverse" if d else "_l0"
            halves = b[d].chunk(2)
            for name, value in zip(
                ("weight_ih", "weight_hh", "bias_ih", "bias_hh"), (w[d], r[d], *halves), strict=True
            ):
                parts = value.chunk(GATES[op])
                weights[name + suffix] = torch.cat([parts[i] for i in FROM_ONNX[op]])
        inputs = x.flip(0) if direction == "reverse" else x
        start = states if len(states) > 1 else states[0]
        y, last = torch.func.functional_call(layer, weights, (inputs, start))
        y = y.flip(0) if direction == "reverse" else y
        y = y.reshape(*y.shape[:2], w.shape[0], HIDDEN).transpose(1, 2)
        return (y, *last) if isinstance(last, tuple) else (y, last)

    return run


def of_all_three(op: str) -> list[Case]:
    every = "xwrbhc" if op == "LSTM" else "xwrbh"
    settings = {"linear_before_reset": 1} if op == "GRU" else {}
    cases = [
        recurrent(
            op, every, direction, direction=direction, torch=in_torch(op, direction), **settings
        )
        for direction in ("forward", "reverse", "bidirectional")
    ]
    cases += [
        recurrent(op, "xwr", "no bias, no state"),
        recurrent(op, every, "batchwise", layout=1, direction="bidirectional"),
        recurrent(op, every, "clipped", clip=0.4),
    ]
    cases += [
        recurrent(op, every, f"{direction}, lengths", LENGTHS, direction=direction)
        for direction in ("forward", "reverse", "bidirectional")
    ]
    return cases


# Away from the kinks of each: the slope there is a convention.
ACTIVATIONS: dict[str, dict[str, Any]] = {
    "Affine": {"activation_alpha": [0.7], "activation_beta": [0.2]},
    "LeakyRelu": {"activation_alpha": [0.3]},
    "ThresholdedRelu": {"activation_alpha": [0.2]},
    "ScaledTanh": {"activation_alpha": [1.5], "activation_beta": [0.6]},
    "HardSigmoid": {},
    "Elu": {"activation_alpha": [0.8]},
    "Softsign": {},
    "Softplus": {},
    "Relu": {},
    "Sigmoid": {},
}

MIXED = {
    "direction": "bidirectional",
    "activations": ["HardSigmoid", "Elu", "LeakyRelu", "Sigmoid", "Tanh", "ScaledTanh"],
    "activation_alpha": [0.3, 0.7, 0.2, 1.5],
    "activation_beta": [0.4, 0.6],
    "clip": 0.8,
}

CASES = [
    *(c for op in GATES for c in of_all_three(op)),
    *(
        recurrent("RNN", "xwrbh", f"activation {name}", activations=[name], **settings)
        for name, settings in ACTIVATIONS.items()
    ),
    recurrent(
        "GRU",
        "xwrbh",
        "reset before the product, activations",
        activations=["HardSigmoid", "Softsign"],
    ),
    recurrent(
        "GRU", "xwrbh", "linear, lengths", LENGTHS, linear_before_reset=1, direction="bidirectional"
    ),
    recurrent("GRU", "xwr", "linear, no bias", linear_before_reset=1),
    recurrent("LSTM", "xwrbhcp", "peepholes"),
    recurrent("LSTM", "xwrbhcp", "peepholes, lengths", LENGTHS, direction="bidirectional"),
    recurrent("LSTM", "xwrbhc", "input and forget coupled", input_forget=1),
    recurrent("LSTM", "xwrbhcp", "coupled, peepholes", input_forget=1),
    recurrent("LSTM", "xwrbhcp", "everything", LENGTHS, **MIXED),
]
