"""What can be compared, and on what: subjects, saved outputs, random inputs, test data sets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx as sx
from sardonyx.errors import ArgumentError, DataError
from sardonyx.verify.inputs import sample, size_choices, symbols
from sardonyx.verify.noise import DIFFERENT, SAME
from tests.mutants import NETWORKS
from tests.networks import mlp, parse, torch_mlp


def test_torch_module_function_and_file_agree(tmp_path: Path) -> None:
    import torch

    model = mlp()
    parameters, forward = torch_mlp(model)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.held = torch.nn.ParameterDict(
                {k.replace(".", "_"): v for k, v in parameters.items()}
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = torch.nn.functional.linear(x, self.held["fc0_weight"], self.held["fc0_bias"])
            return torch.nn.functional.linear(
                torch.tanh(h), self.held["fc1_weight"], self.held["fc1_bias"]
            )

    path = sx.save(model, tmp_path / "net.onnx")
    report = sx.verify(path, Net(), lambda x: forward(torch.tensor(x)))
    assert report.verdict == SAME, str(report)
    assert len({m.subject for m in report.measurements}) == 3
    # With the module first it is the reference: its own float64 and float32 runs.
    export = sx.verify(Net(), path, inputs={"x": np.ones((2, 6), np.float32)})
    assert export.verdict == SAME and "Net" in export.reference


def test_saved_outputs_are_judged(tmp_path: Path) -> None:
    model = sx.save(mlp(), tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(1).normal(size=(4, 6)).astype(np.float32)
    (scores,) = session.run(None, {"x": x})
    np.savez(tmp_path / "in.npz", x=x)
    np.savez(tmp_path / "right.npz", scores=scores)
    np.savez(tmp_path / "wrong.npz", scores=scores * np.float32(1.001))
    verdicts = [
        sx.verify(model, tmp_path / name, inputs=tmp_path / "in.npz").verdict
        for name in ("right.npz", "wrong.npz")
    ]
    assert verdicts == [SAME, DIFFERENT]
    with pytest.raises(DataError, match="saved outputs belong to inputs"):
        sx.verify(model, tmp_path / "right.npz")


def test_model_zoo_folder_is_read_as_the_zoo_writes_it(tmp_path: Path) -> None:
    model = sx.save(mlp(), tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    for number in range(2):
        x = np.random.default_rng(number).normal(size=(2, 6)).astype(np.float32)
        (y,) = session.run(None, {"x": x})
        folder = tmp_path / f"test_data_set_{number}"
        folder.mkdir()
        off = np.float32(1.01 if number else 1)
        for name, array in (("input_0.pb", x), ("output_0.pb", y * off)):
            (folder / name).write_bytes(
                numpy_helper.from_array(array, "other name").SerializeToString()
            )
    report = sx.verify(model, tmp_path / "test_data_set_0")
    assert report.verdict == SAME
    report = sx.verify(model, inputs=tmp_path)
    assert {m.run: m.verdict() for m in report.measurements if m.subject.startswith("outputs")} == {
        "test_data_set_0": SAME,
        "test_data_set_1": DIFFERENT,
    }


def write_set(folder: Path, inputs: list[np.ndarray], outputs: list[np.ndarray]) -> None:
    folder.mkdir()
    for kind, arrays in (("input", inputs), ("output", outputs)):
        for number, array in enumerate(arrays):
            message = numpy_helper.from_array(array)  # without a name: only the number tells
            (folder / f"{kind}_{number}.pb").write_bytes(message.SerializeToString())


def test_files_of_the_zoo_are_counted_as_numbers_and_weights_are_no_inputs(tmp_path: Path) -> None:
    """Twelve inputs, so that input_10 comes after input_9; IR 3 lists weights among the inputs."""
    names = [f"x{i}" for i in range(12)]
    total = " ".join(f"t{i + 1} = Add (t{i}, s{i + 1})" for i in range(11))
    scaled = " ".join(f"w{i} = Constant <value = float {{{float(i + 1)}}}> ()" for i in range(12))
    parts = " ".join(f"s{i} = Mul (x{i}, w{i})" for i in range(12))
    inputs = ", ".join(f"float[3] {n}" for n in names)
    text = f"""<ir_version: 9, opset_import: ["": 9]> g ({inputs}) => (float[3] y)
    <float[3] k = {{1.0, 2.0, 3.0}}>
    {{ {scaled} {parts} t0 = Identity (s0) {total} y = Mul (t11, k) }}"""
    proto = onnx.parser.parse_model(text)
    proto.ir_version = 3
    proto.graph.input.insert(0, helper.make_tensor_value_info("k", TensorProto.FLOAT, [3]))
    onnx.save(proto, tmp_path / "model.onnx")
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=3).astype(np.float32) for _ in names]
    right = sum(a.astype(np.float64) * (i + 1) for i, a in enumerate(arrays)) * [1.0, 2.0, 3.0]
    write_set(tmp_path / "test_data_set_0", arrays, [np.asarray(right, np.float32)])
    report = sx.verify(tmp_path, inputs=tmp_path)
    assert report.verdict == SAME, str(report)
    assert {m.subject for m in report.measurements} >= {"outputs of test_data_set_0"}


def test_sequences_of_the_zoo(tmp_path: Path) -> None:
    text = """<ir_version: 9, opset_import: ["": 20]> g (seq(float[N]) s) => (float[M] y)
    { y = ConcatFromSequence <axis: int = 0> (s) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    folder = tmp_path / "test_data_set_0"
    parts = [np.array([1.0, 2.0], np.float32), np.array([3.0], np.float32)]
    write_set(folder, [], [np.array([1.0, 2.0, 3.0], np.float32)])
    (folder / "input_0.pb").write_bytes(numpy_helper.from_list(parts).SerializeToString())
    assert sx.verify(tmp_path, inputs=tmp_path).verdict == SAME
    (folder / "input_0.pb").write_bytes(numpy_helper.from_list(parts[::-1]).SerializeToString())
    report = sx.verify(tmp_path, inputs=tmp_path)
    assert [m.subject for m in report.measurements if m.verdict() == DIFFERENT] == [
        "outputs of test_data_set_0"
    ]


def test_texts_are_compared_exactly() -> None:
    text = """<ir_version: 9, opset_import: ["": 20]> g (string[N] x) => (string[N] y)
    { y = StringConcat (x, x) }"""
    words = {"x": np.array(["one", "two"], object)}
    model = parse(text)
    assert sx.verify(model, lambda x: x + x, inputs=words).verdict == SAME
    assert sx.verify(model, lambda x: x + x[::-1], inputs=words).verdict == DIFFERENT


def test_random_inputs_are_valid_and_repeat() -> None:
    model = sx.load(NETWORKS["transformer"]())
    sizes = next(size_choices(model, 0))
    first, again = sample(model, 5, sizes), sample(model, 5, sizes)
    assert all(np.array_equal(first[k], again[k]) for k in first)
    assert not np.array_equal(first["ids"], sample(model, 6, sizes)["ids"])
    many = np.concatenate([sample(model, seed, {"N": 9})["ids"].ravel() for seed in range(20)])
    assert (many.min(), many.max()) == (0, 10)  # the table has eleven rows
    assert first["mask"].min() < 0 < first["mask"].max()


@pytest.mark.parametrize("seeds", [0, -2, []])
def test_no_random_inputs_are_no_comparison(seeds: object) -> None:
    with pytest.raises(ArgumentError, match="0 random inputs"):
        sx.verify(mlp(), "numpy", seeds=seeds)  # type: ignore[arg-type]


def test_symbolic_sizes_differ_from_one_another_and_from_run_to_run() -> None:
    model = parse(
        """<ir_version: 9, opset_import: ["": 20]>
        g (float[A,B,C] x, float[B,D] z) => (float[A,B,C] y) { y = Relu(x) }"""
    )
    assert symbols(model) == ["A", "B", "C", "D"]
    chosen = [next(size_choices(model, seed)) for seed in range(3)]
    for sizes in chosen:
        assert len(set(sizes.values())) == 4
        drawn = sample(model, 0, sizes)
        assert drawn["x"].shape[1] == drawn["z"].shape[0] == sizes["B"]
    assert len({tuple(c.items()) for c in chosen}) == 3
    assert next(size_choices(model, 0, {"A": 11}))["A"] == 11
    with pytest.raises(ArgumentError, match="no dimensions"):
        next(size_choices(model, 0, {"Z": 1}))


def test_sizes_are_tried_until_the_model_takes_one() -> None:
    model = parse(
        """<ir_version: 9, opset_import: ["": 20]> g (float[1,1,H,W] x) => (float[1,1,a,b] y)
        { y = MaxPool<kernel_shape: ints = [20, 20]>(x) }"""
    )
    assert sx.verify(model, "numpy", seeds=1).verdict == SAME


def test_lengths_and_counts_stay_in_range() -> None:
    model = parse(
        """<ir_version: 9, opset_import: ["": 20]>
        g (float[T,N,2] x, float[1,9,2] w, float[1,9,3] r, int32[N] lengths, int64 count,
           float[K] p)
          => (float[T,1,N,3] y, float[c] o, float[K] l)
        { y = GRU<hidden_size: int = 3>(x, w, r, , lengths)
          z = Constant<value = int64 {0}>() one = Constant<value = int64 {1}>()
          range = Range(z, count, one) f = Cast<to: int = 1>(range) o = Identity(f) l = Log(p) }"""
    )
    for seed in range(10):
        drawn = sample(model, seed, {"T": 5, "N": 3, "K": 4})
        assert drawn["lengths"].min() >= 1 and drawn["lengths"].max() <= 5
        assert 1 <= drawn["count"] <= 4
        assert drawn["p"].min() > 0


def test_an_engine_that_is_none_is_not_taken_for_a_file() -> None:
    with pytest.raises(ArgumentError, match='no engine "onnx"'):
        sx.verify(mlp(), engine="onnx")
    with pytest.raises(ArgumentError, match=r"did you mean tensorflow\?"):
        sx.verify(mlp(), "tensorflw")
