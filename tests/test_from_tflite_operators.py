"""Files of one operator, which tensorflow's converter does not write: onnxruntime gives what LiteRT
gives, over calls that pass the state on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sardonyx as sx
from sardonyx.errors import ImportRefused

interpreter = pytest.importorskip("ai_edge_litert.interpreter")
schema = pytest.importorskip("ai_edge_litert.schema_py_generated")


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32) / 2


def integers(*shape: int, low: int = -9, high: int = 9, kind: Any = np.int32) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(low, high, shape).astype(kind)


class State(tuple):
    """The shape of a variable."""


def file_of(
    name: str, inputs: list[Any], outputs: list[np.ndarray], options: Any = None, more: Any = ()
) -> bytes:
    """A file with one operator.

    inputs  -- arrays are constants, a list holds the example of an input, `State` is a variable
    outputs -- arrays of the types and shapes of the results
    options -- the operator's, by their names in the schema
    more    -- other graphs
    """
    import flatbuffers

    file, graph, operator = schema.ModelT(), schema.SubGraphT(), schema.OperatorT()
    file.version, file.buffers, graph.tensors = 3, [schema.BufferT()], []
    file.operatorCodes = [_code(name)]
    graph.inputs, operator.inputs, operator.outputs = [], [], []
    for value in inputs:
        if value is None:
            operator.inputs.append(-1)
            continue
        operator.inputs.append(len(graph.tensors))
        if isinstance(value, list):
            graph.inputs.append(len(graph.tensors))
        graph.tensors.append(_tensor(file, value, len(graph.tensors)))
    for value in outputs:
        operator.outputs.append(len(graph.tensors))
        graph.tensors.append(_tensor(file, [value], len(graph.tensors)))
    graph.outputs = list(operator.outputs)
    if options is not None:
        second = "2" if hasattr(schema.BuiltinOptions2, type(options).__name__[:-1]) else ""
        kinds = getattr(schema, f"BuiltinOptions{second}")
        setattr(
            operator, f"builtinOptions{second}Type", getattr(kinds, type(options).__name__[:-1])
        )
        setattr(operator, f"builtinOptions{second}", options)
    graph.operators, file.subgraphs = [operator], [graph]
    for build in more:
        file.subgraphs.append(build(file))
    builder = flatbuffers.Builder(1024)
    builder.Finish(file.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _code(name: str) -> Any:
    code, number = schema.OperatorCodeT(), getattr(schema.BuiltinOperator, name)
    code.builtinCode, code.deprecatedBuiltinCode, code.version = number, min(number, 127), 1
    return code


def _tensor(file: Any, value: Any, number: int) -> Any:
    tensor = schema.TensorT()
    tensor.name, tensor.buffer = f"t{number}".encode(), 0
    example = value[0] if isinstance(value, list) else value
    if isinstance(value, State):
        tensor.shape, tensor.isVariable, kind = list(value), True, "FLOAT32"
    else:
        tensor.shape, kind = list(example.shape), example.dtype.name.upper()
    tensor.type = getattr(schema.TensorType, kind)
    if isinstance(value, np.ndarray):
        buffer = schema.BufferT()
        buffer.data = np.frombuffer(value.tobytes(), np.uint8)
        tensor.buffer = len(file.buffers)
        file.buffers.append(buffer)
    return tensor


def branch(name: str, example: np.ndarray, count: int) -> Any:
    """A graph of one operator of `count` inputs."""

    def build(file: Any) -> Any:
        graph, operator = schema.SubGraphT(), schema.OperatorT()
        operator.opcodeIndex = len(file.operatorCodes)
        file.operatorCodes.append(_code(name))
        graph.tensors = [_tensor(file, [example], i) for i in range(count + 1)]
        operator.inputs, operator.outputs = list(range(count)), [count]
        graph.inputs, graph.outputs, graph.operators = operator.inputs, [count], [operator]
        return graph

    return build


def options(kind: str, **settings: Any) -> Any:
    table = getattr(schema, f"{kind}OptionsT")()
    for name, value in settings.items():
        assert hasattr(table, name), name
        setattr(table, name, value)
    return table


def check(content: bytes, examples: list[np.ndarray], calls: int = 3) -> None:
    """Compare over calls on other numbers, the state passed on."""
    from sardonyx.engines.onnxruntime.backend import Runner

    model = sx.from_tflite(content)
    run, program = Runner(model), interpreter.Interpreter(model_content=content)
    program.allocate_tensors()
    places = [d["index"] for d in program.get_input_details()]
    count = len(examples)
    held = {v.name: np.zeros(list(v.shape or ()), np.float32) for v in model.inputs[count:]}
    for call in range(calls):
        arrays = [np.roll(x, call).copy() for x in examples]
        for place, array in zip(places, arrays, strict=True):
            program.set_tensor(place, array)
        program.invoke()
        feeds = {v.name: a for v, a in zip(model.inputs, arrays, strict=False)}
        results = list(run({**feeds, **held}).values())
        details = program.get_output_details()
        for ours, detail in zip(results, details, strict=False):
            theirs = program.get_tensor(detail["index"])
            assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
        held = dict(zip(held, results[len(details) :], strict=True))


UNITS, FEATURES, TIMES, ROWS = 4, 3, 5, 2
SEQUENCE = floats(ROWS, TIMES, FEATURES)


def layer(units: int = UNITS) -> list[Any]:
    """Weights of a simple layer and its state."""
    return [floats(units, FEATURES), floats(units, units), floats(units), State((ROWS, units))]


@pytest.mark.parametrize("activation", range(5))
def test_a_simple_layer_and_its_state(activation: int) -> None:
    settings = options("RNN", fusedActivationFunction=activation)
    x = floats(ROWS, FEATURES) * 6
    check(file_of("RNN", [[x], *layer()], [floats(ROWS, UNITS)], settings), [x])


@pytest.mark.parametrize(("activation", "time_major"), [(1, False), (3, False), (4, True)])
def test_a_simple_layer_over_sequences(activation: int, time_major: bool) -> None:
    settings = options(
        "SequenceRNN", fusedActivationFunction=activation, timeMajor=time_major
    )  # fmt: skip
    x = (SEQUENCE.transpose(1, 0, 2).copy() if time_major else SEQUENCE) * 6
    y = floats(*x.shape[:2], UNITS)
    check(file_of("UNIDIRECTIONAL_SEQUENCE_RNN", [[x], *layer()], [y], settings), [x])


@pytest.mark.parametrize("merged", [False, True])
def test_simple_layers_in_both_directions(merged: bool) -> None:
    settings = options(
        "BidirectionalSequenceRNN", fusedActivationFunction=4, mergeOutputs=merged
    )  # fmt: skip
    inputs = [[SEQUENCE], *layer(), *layer(6), None, None, None]
    units = [UNITS + 6] if merged else [UNITS, 6]
    outputs = [floats(ROWS, TIMES, u) for u in units]
    check(file_of("BIDIRECTIONAL_SEQUENCE_RNN", inputs, outputs, settings), [SEQUENCE])


def gates(coupled: bool, peepholes: bool, seed: int = 0) -> list[Any]:
    """Weights of a layer of gates: input, forget, cell, output."""
    shapes = [(UNITS, FEATURES)] * 4 + [(UNITS, UNITS)] * 4 + [(UNITS,)] * 7
    rng = np.random.default_rng(seed)
    weights: list[Any] = [rng.normal(size=s).astype(np.float32) / 2 for s in shapes]
    missing = [0, 4, 8, 11] if coupled else []
    missing += [] if peepholes else [8, 9, 10]
    return [None if i in missing else w for i, w in enumerate(weights)] + [None, None]


CELLS = [State((ROWS, UNITS)), State((ROWS, UNITS))]


@pytest.mark.parametrize(("coupled", "peepholes"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_a_layer_of_gates_over_sequences(coupled: int, peepholes: int) -> None:
    settings = options("UnidirectionalSequenceLSTM", fusedActivationFunction=4)
    inputs = [[SEQUENCE], *gates(bool(coupled), bool(peepholes)), *CELLS, *[None] * 4]
    content = file_of(
        "UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, [floats(ROWS, TIMES, UNITS)], settings
    )
    check(content, [SEQUENCE])


@pytest.mark.parametrize("merged", [False, True])
def test_layers_of_gates_in_both_directions(merged: bool) -> None:
    settings = options(
        "BidirectionalSequenceLSTM", fusedActivationFunction=4, mergeOutputs=merged, timeMajor=True
    )
    x = SEQUENCE.transpose(1, 0, 2).copy()
    inputs = [[x], *gates(False, False), *gates(False, False, 1), *CELLS, *CELLS, *[None] * 9]
    units = [2 * UNITS] if merged else [UNITS, UNITS]
    outputs = [floats(TIMES, ROWS, u) for u in units]
    check(file_of("BIDIRECTIONAL_SEQUENCE_LSTM", inputs, outputs, settings), [x])


def test_one_step_of_gates() -> None:
    x = floats(ROWS, FEATURES)
    settings = options("LSTM", fusedActivationFunction=4, kernelType=0)
    inputs = [[x], *gates(False, True), *CELLS]
    check(file_of("LSTM", inputs, [floats(ROWS, UNITS)], settings), [x])


def test_one_step_of_gates_in_one_matrix() -> None:
    x, y, c = floats(ROWS, FEATURES), floats(ROWS, UNITS), floats(ROWS, UNITS) + 1
    settings = options("LSTM", fusedActivationFunction=4, kernelType=1)
    weights = [floats(4 * UNITS, FEATURES + UNITS), floats(4 * UNITS)]
    inputs = [[x], [y], *weights, [c]]
    outputs = [y, c, floats(ROWS, FEATURES + UNITS), floats(ROWS, 4 * UNITS)]
    check(file_of("LSTM", inputs, outputs, settings), [x, y, c])


@pytest.mark.parametrize("activation", [0, 1])
def test_filters_over_time(activation: int) -> None:
    x, rank, memory = floats(ROWS, FEATURES), 2, 6
    filters = UNITS * rank
    state = State((ROWS, filters * memory))
    weights = [floats(filters, FEATURES), floats(filters, memory), floats(UNITS)]
    settings = options("SVDF", rank=rank, fusedActivationFunction=activation)
    inputs = [[x], *weights, state]
    check(file_of("SVDF", inputs, [floats(ROWS, UNITS)], settings), [x], calls=8)


@pytest.mark.parametrize("name", ["ADD", "MULTIPLY", "MAXIMUM", "MINIMUM"])
def test_operators_of_stablehlo(name: str) -> None:
    for a, b in ((floats(3, 4), floats(4, 3).reshape(3, 4)), (integers(3, 4), integers(4, 3).T)):
        content = file_of(f"STABLEHLO_{name}", [[a], [b]], [a])
        check(content, [a, np.ascontiguousarray(b)])


def test_bits_of_stablehlo() -> None:
    for a, b in (
        (integers(3, 4), integers(4, 3).T),
        (integers(3, 4) > 0, integers(4, 3).T > 0),
        (integers(9, kind=np.int8), integers(9, kind=np.int8) * 3),
    ):
        a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
        check(file_of("STABLEHLO_AND", [[a], [b]], [a]), [a, b])
    for kind, most in ((np.int8, 7), (np.int16, 15), (np.int32, 31)):
        a = integers(9, kind=kind)
        count = np.linspace(0, most, 9).astype(kind)
        check(file_of("STABLEHLO_SHIFT_LEFT", [[a], count], [a]), [a])
        with pytest.raises(ImportRefused, match="depends on data"):
            sx.from_tflite(file_of("STABLEHLO_SHIFT_LEFT", [[a], [count]], [a]))
        with pytest.raises(ImportRefused, match="beyond its bits"):
            sx.from_tflite(file_of("STABLEHLO_SHIFT_LEFT", [[a], count + 1], [a]))


@pytest.mark.parametrize(
    ("low", "high", "inner"),
    [((1, 2), (0, 3), (0, 0)), ((0, 1), (1, 0), (2, 1)), ((-1, 1), (0, -2), (0, 1))],
)
def test_padding_with_elements_in_between(low: Any, high: Any, inner: Any) -> None:
    x, value = floats(3, 4), np.array(7, np.float32)
    shape = [
        (n - 1) * (i + 1) + 1 + a + b for n, a, b, i in zip(x.shape, low, high, inner, strict=True)
    ]
    settings = options(
        "StablehloPad", edgePaddingLow=low, edgePaddingHigh=high, interiorPadding=inner
    )
    check(file_of("STABLEHLO_PAD", [[x], value], [np.zeros(shape, np.float32)], settings), [x])


def test_elements_spread_out() -> None:
    x, steps = floats(2, 3, 4), np.array([3, 1, 2], np.int32)
    y = np.zeros((4, 3, 7), np.float32)
    content = file_of("DILATE", [[x], steps, np.float32(5).reshape(1)], [y], options("Dilate"))
    check(content, [x])


WINDOWS = [((1, 2), (1, 2), (1, 1)), ((2, 3), (1, 1), (2, 1)), ((1, 1), (2, 3), (1, 1))]


@pytest.mark.parametrize(("size", "strides", "steps"), WINDOWS)
@pytest.mark.parametrize("function", [1, 2, 3, 4])
def test_windows(size: Any, strides: Any, steps: Any, function: int) -> None:
    x, start = floats(5, 7), np.float32(0.25).reshape(1)
    settings = options("ReduceWindow", reduceFunction=function)
    numbers = [np.array(v, np.int64) for v in (size, strides, steps)]
    y = np.zeros(_count(x.shape, size, strides, steps), np.float32)
    check(file_of("REDUCE_WINDOW", [[x], start, *numbers], [y], settings), [x])


def _count(shape: Any, size: Any, strides: Any, steps: Any) -> list[int]:
    settings = zip(shape, size, strides, steps, strict=True)
    return [(n - (w - 1) * d - 1) // s + 1 for n, w, s, d in settings]


@pytest.mark.parametrize("body", ["STABLEHLO_ADD", "STABLEHLO_MAXIMUM", "STABLEHLO_MULTIPLY"])
def test_windows_of_stablehlo(body: str) -> None:
    x, start = floats(5, 7), np.array(0.25, np.float32)
    size, strides, steps = [2, 3], [1, 2], [2, 1]
    padded = [(5 - 1) * 2 + 1 + 1, 7 + 2 - 1]
    settings = options(
        "StablehloReduceWindow", windowDimensions=size, windowStrides=strides,
        windowDilations=steps, baseDilations=[2, 1], padding=[1, 0, 2, -1], bodySubgraphIndex=1,
    )  # fmt: skip
    y = np.zeros(_count(padded, size, strides, steps), np.float32)
    more = [branch(body, start, 2)]
    check(file_of("STABLEHLO_REDUCE_WINDOW", [[x], start], [y], settings, more), [x])


@pytest.mark.parametrize("number", [0, 1, 2, -1, 9])
def test_one_of_several_graphs(number: int) -> None:
    x, choice = floats(3, 4), np.array([number], np.int32)
    settings = options("StablehloCase", branchSubgraphIndices=[1, 2, 3])
    more = [branch(name, x, 1) for name in ("SIN", "COS", "TANH")]
    content = file_of("STABLEHLO_CASE", [[choice], [x]], [x], settings, more)
    check(content, [choice, x], calls=1)


@pytest.mark.parametrize("shape", [(5,), (5, 2, 3)])
def test_rows_by_their_keys(shape: tuple[int, ...]) -> None:
    keys, values = np.array([-4, 0, 1, 7, 90], np.int32), floats(*shape)
    x = np.array([7, 3, 0, 90, -4, 8], np.int32)
    outputs = [np.zeros((6, *shape[1:]), np.float32), np.zeros(6, np.uint8)]
    check(file_of("HASHTABLE_LOOKUP", [[x], keys, values], outputs), [x])
    content = file_of("HASHTABLE_LOOKUP", [[x], keys[::-1], values], outputs)
    with pytest.raises(ImportRefused, match="do not ascend"):
        sx.from_tflite(content)


def test_a_layer_that_is_not_read_is_named() -> None:
    settings = options("UnidirectionalSequenceLSTM", fusedActivationFunction=4, cellClip=1.0)
    inputs = [[SEQUENCE], *gates(False, False), *CELLS, *[None] * 4]
    content = file_of(
        "UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, [floats(ROWS, TIMES, UNITS)], settings
    )
    with pytest.raises(ImportRefused, match="projections, clipping"):
        sx.from_tflite(content)
