"""The scoreboard: processes that crash or hang cost one case, classes are found by retrying,
results are kept by content, and what became worse is named.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.helper
import onnx.parser
import pytest

import sardonyx as sx
from sardonyx.errors import ArgumentError
from sardonyx.score import (
    engines,
    environments,
    judge,
    operators,
    run,
    select,
    suite,
    table,
    variants,
)
from sardonyx.score.engines import Engine
from sardonyx.score.judge import Cell
from sardonyx.score.pool import Crashed, Refused, TimedOut, Worker
from sardonyx.score.score import (
    AXES,
    Column,
    Score,
    changes,
    compared_with,
    load,
    to_baseline,
    together,
)
from sardonyx.score.store import Store

NUMPY = """
import numpy as np, onnx

def version():
    return "1.0"

def run(model, inputs):
    op = onnx.load(model).graph.node[-1].op_type
    if op == "Relu":
        return [np.maximum(value, 0) for value in inputs.values()]
    if op == "MatMul":
        return [np.matmul(*inputs.values())]
    {special}
    raise NotImplementedError(op)
"""
Make = Callable[..., Engine]


@pytest.fixture
def made(tmp_path: Path) -> Make:
    """An engine out of the text of an adapter."""

    def make(text: str, name: str = "mine") -> Engine:
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        return engines.given(path)

    return make


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    kept = Store(tmp_path / "kept.sqlite")
    yield kept
    kept.close()


def job(store: Store, *names: str, **settings: object) -> run.Job:
    cases = [suite.by_name()[name] for name in names]
    return run.Job({"forward": cases}, store=store, **settings)  # type: ignore[arg-type]


# -- processes --------------------------------------------------------------------------------

UNRULY = """
import os, sys, time
import numpy as np, onnx

def run(model, inputs):
    print("chatter on stdout")
    op = onnx.load(model).graph.node[-1].op_type
    if op == "Abs":
        os._exit(3)
    if op == "Neg":
        os.abort()
    if op == "Sign":
        time.sleep(60)
    if op == "Exp":
        sys.exit("no")
    open(model, "wb").write(b"spoilt")
    return [np.maximum(value, 0) for value in inputs.values()]
"""


def test_what_crashes_or_hangs_costs_one_case(made: Make) -> None:
    cases = suite.by_name()
    relu = cases["test_relu"]

    def ask(name: str) -> object:
        return worker.run(cases[name].model, cases[name].folder / "inputs_0")

    with Worker(made(UNRULY), 2.0) as worker:
        with pytest.raises(Crashed, match="exit code 3"):
            ask("test_abs")
        with pytest.raises(Crashed, match="SIGABRT"):
            ask("test_neg")
        with pytest.raises(TimedOut, match="2 s"):
            ask("test_sign")
        with pytest.raises(Refused, match="no") as caught:
            ask("test_exp")
        assert caught.value.kind == "SystemExit"
        for _ in range(2):  # it overwrites the file that it is given, which is a copy
            assert judge.judge(worker, relu).kind == "pass"
        cell = judge.judge(worker, cases["test_abs"])
        assert cell == Cell("crash", "exit code 3: chatter on stdout")


def test_a_broken_wrapper_is_broken_and_not_zero(made: Make, store: Store) -> None:
    for text, words in (
        ("import no_such_package", "does not start: ModuleNotFoundError"),
        ("def run(model, inputs): return [0]", "test_relu: wrong numbers"),
        ("x = 1", "no function run"),
    ):
        score = run.score([made(text)], job(store, "test_abs"))
        (column,) = score.columns
        assert words in column.canary
        assert not column.cells
        assert "broken" in table.text(score)


# -- classes ------------------------------------------------------------------------------------


def classify(engine: Engine, store: Store, *names: str) -> dict[str, Cell]:
    (column,) = run.score([engine], job(store, *names)).columns
    assert not column.canary
    return column.cells["forward"]


def test_classes_are_found_by_retrying(made: Make, store: Store) -> None:
    special = """
    proto = onnx.load(model)
    label = proto.opset_import[0].version
    if op == "Identity" and label > 20:
        raise ValueError("too new")
    if op in ("Identity", "Abs"):
        return list(inputs.values())
    if op == "Cast" and proto.graph.output[0].type.tensor_type.elem_type == 16:
        raise TypeError("no bfloat16 in Python")
    if op == "Cast" and len(proto.graph.node) == 2:
        (x,) = inputs.values()
        import ml_dtypes
        return [x.astype(ml_dtypes.bfloat16).astype(np.float32)]
    if op == "Bernoulli":
        return [np.ones_like(value) for value in inputs.values()]"""
    result = classify(
        made(NUMPY.format(special=special)),
        store,
        *("test_relu", "test_identity", "test_cast_FLOAT_to_BFLOAT16", "test_bernoulli"),
        *("test_abs", "test_neg"),
    )
    assert {name: cell.kind for name, cell in result.items()} == {
        "test_relu": "pass",
        "test_identity": "version skew",
        "test_cast_FLOAT_to_BFLOAT16": "binding limit",
        "test_bernoulli": "nondeterministic",
        "test_abs": "wrong numbers",
        "test_neg": "unsupported",
    }
    assert result["test_identity"].message.startswith("ValueError: too new")
    assert result["test_neg"].message.startswith("NotImplementedError: Neg [mine.py:")


def test_labels_are_lowered_while_the_model_can_be_said() -> None:
    softmax = onnx.parser.parse_model(
        '<ir_version: 14, opset_import: ["": 28]> g (float[2,3] x) => (float[2,3] y)'
        "{ y = Softmax(x) }"
    )
    labels = [form.opset_import[0].version for form in variants.relabelled(softmax)]
    assert labels == [26, 9]  # of Softmax there are 1, 11 and 13
    assert {form.ir_version for form in variants.relabelled(softmax)} == {8}
    gelu = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 22]> g (float[2] x) => (float[2] y) { y = Gelu(x) }'
    )
    assert [f.opset_import[0].version for f in variants.relabelled(gelu)] == [22]  # IR alone
    resize = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 19]> g (float[1,1,2,2] x, float[4] s) => (float[N] y)'
        '{ y = Resize<antialias = 1, mode = "linear">(x, , s) }'
    )
    assert [f.opset_import[0].version for f in variants.relabelled(resize)] == []
    for form in variants.relabelled(softmax):
        form.ir_version, form.opset_import[0].version = 14, 28
        assert form == softmax


def test_baked_models_are_valid_and_mean_the_same() -> None:
    from onnx.reference import ReferenceEvaluator

    case = suite.by_name()["test_cast_BFLOAT16_to_FLOAT"]
    model, baked = variants.bake(case.proto(), case.inputs(), list(case.expected().values()))
    onnx.checker.check_model(model, full_check=True)
    assert not baked.inputs and not model.graph.input
    (result,) = ReferenceEvaluator(model).run(None, baked.inputs)
    np.testing.assert_array_equal(result, baked.expected[0])


# -- results that are kept ----------------------------------------------------------------------


COUNTING = NUMPY.format(
    special="""
    if op == "Abs":
        open({log!r}, "a").write("x")
        return [np.abs(value) for value in inputs.values()]"""
)


def test_results_are_kept_by_content(
    made: Make, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    text = COUNTING.replace("{log!r}", repr(str(log)))

    def times() -> int:
        return len(log.read_text())

    engine = made(text)
    assert classify(engine, store, "test_abs")["test_abs"].kind == "pass"
    assert times() == 1
    assert classify(engine, store, "test_abs")["test_abs"].kind == "pass"
    assert times() == 1, "nothing changed: nothing runs"
    monkeypatch.setattr(Worker, "_start", lambda worker: pytest.fail("a process was started"))
    classify(engine, store, "test_abs")
    monkeypatch.undo()
    run._harness.cache_clear()
    engine = made(text + "\n# another adapter\n")
    classify(engine, store, "test_abs")
    assert times() == 2
    run.score([engine], job(store, "test_abs", fresh=True))
    assert times() == 3


def test_the_scoreboard_from_python(made: Make, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    made(NUMPY.format(special=""))
    result = sx.score(str(path), case="^test_relu$", axes=["forward"], jobs=1)
    assert repr(result) == "<Score: mine 1 of 1>"
    assert "1 cases of onnx" in str(result) and "a sample" not in str(result)
    one_in_three = sx.score(str(path), ops=["Relu"], sample=1, axes=["forward"], jobs=1)
    one_in_three.sample = 3
    assert "a sample: mine: one case in 3" in str(one_in_three)


def test_what_is_known_is_shown_without_running(
    made: Make, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = NUMPY.format(special="") + "\ndef gradient(model, inputs, seeds, wrt): return {}\n"
    engine = made(text)
    classify(engine, store, "test_relu")
    monkeypatch.setattr(Worker, "_start", lambda worker: pytest.fail("a process was started"))
    score = run.score([engine], job(store, "test_relu", "test_abs", known=True))
    (column,) = score.columns
    assert column.cells == {"forward": {"test_relu": Cell("pass")}}
    assert score.sampled(column) == "1 of 2 cases were run"
    again = Score.from_json(score.to_json()).columns[0]
    assert [again.share(axis) for axis in AXES] == ["1 of 1", "not run", "–"]


def test_timeouts_are_kept_of_peers_only_and_until_more_time_is_given(
    made: Make, store: Store
) -> None:
    text = NUMPY.format(special="import time\n    time.sleep(60)")
    short, longer = (job(store, "test_abs", limit=limit) for limit in (1.0, 2.0))
    abs_case = suite.by_name()["test_abs"]
    engine = made(text)
    for kind in ("given", "peer"):
        engine = replace(engine, kind=kind)
        (column,) = run.score([engine], short).columns
        assert column.cells["forward"]["test_abs"].kind == "time-out"
        kept = run._kept(engine, short, "forward", abs_case)
        assert (kept is not None) == (kind == "peer")
    assert run._kept(engine, longer, "forward", abs_case) is None


def test_a_form_that_hangs_is_the_last_that_is_tried(
    made: Make, store: Store, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    special = f"""
    import time
    if op == "Identity":
        open({str(log)!r}, "a").write("x")
        if onnx.load(model).ir_version == 8:
            time.sleep(60)"""
    assert len(list(variants.relabelled(suite.by_name()["test_identity"].proto()))) > 1
    engine = made(NUMPY.format(special=special))
    (column,) = run.score([engine], job(store, "test_identity", limit=3.0)).columns
    cell = column.cells["forward"]["test_identity"]
    assert cell.kind == "unsupported" and cell.message.startswith("NotImplementedError")
    assert log.read_text() == "xx", "as it is, and once again"


# -- scores ---------------------------------------------------------------------------------


def scored(**cells: str) -> Score:
    column = Column("mine", "given", "1.0")
    column.cells["forward"] = {name: Cell(kind, f"{kind}!") for name, kind in cells.items()}
    return Score("0.1", "1.23.2", "2026-01-01", [column], {"forward": list(cells)})


def test_a_score_survives_its_file(tmp_path: Path) -> None:
    score = scored(test_a="pass", test_b="crash", test_c="wrong numbers")
    again = load(score.save(tmp_path / "deep" / "score.json"))
    assert again.columns[0].count() == score.columns[0].count()
    assert again.columns[0].cells["forward"]["test_b"] == Cell("crash", "crash!")
    data = json.loads(score.to_json())
    assert "test_a" not in data["engines"]["mine"]["not passing"]["forward"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"engines": 3, "cases": {}}', "\x00"])
def test_what_is_no_score_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "score.json"
    path.write_text(text)
    with pytest.raises(ArgumentError, match="not a saved score"):
        load(path)
    with pytest.raises(ArgumentError, match="not a saved score"):
        compared_with(path, scored(test_a="pass"))


@pytest.mark.parametrize("as_baseline", [False, True])
def test_what_became_worse(as_baseline: bool, tmp_path: Path) -> None:
    old = scored(
        test_a="pass", test_b="unsupported", test_c="pass", test_d="pass", test_e="version skew"
    )
    new = scored(
        test_a="crash",
        test_b="pass",
        test_c="nondeterministic",
        test_d="pass",
        test_e="unsupported",
        test_f="pass",
    )
    path = tmp_path / "old.json"
    path.write_text(to_baseline(old) if as_baseline else old.to_json())
    result = {change.case: change.is_worse for change in changes(new, compared_with(path, new))}
    assert result == {"test_a": True, "test_b": False, "test_c": False, "test_e": True}
    broken = Score("0.1", "1.23.2", "2026-01-02", [Column("mine", "given", canary="dead")], {})
    assert [c.is_worse for c in changes(broken, old)] == [True]


def test_the_table_counts(made: Make, store: Store) -> None:
    score = run.score([made(NUMPY.format(special=""))], job(store, "test_relu", "test_abs"))
    lines = table.text(score).splitlines()
    assert lines[0].split()[:5] == ["engine", "version", "operators", "pass", "unsupported"]
    assert lines[1].split()[:7] == ["mine", "1.0", "1", "of", "2", "1", "1"]
    assert table.markdown(score).splitlines()[2].startswith("| mine | 1.0 | 1 of 2 | 1 |")


def test_an_operator_is_whole_if_no_case_of_it_fails() -> None:
    score = scored(
        test_relu="pass",
        test_abs="wrong numbers",
        test_bernoulli="nondeterministic",
        test_softmax_axis_0="pass",
        test_softmax_axis_1="tolerance only",
        test_resnet50="pass",
    )
    subjects = operators.subjects(score)
    assert list(subjects) == ["Abs", "Bernoulli", "Relu", "Softmax", "real"]
    assert operators.whole(score.columns[0], subjects) == (2, 4)
    assert operators.whole(score.columns[0], subjects, "gradient") == (0, 0)


# -- engines --------------------------------------------------------------------------------


def test_engines_by_name(tmp_path: Path, made: Make) -> None:
    mine = made("def run(model, inputs): ...")
    assert [e.name for e in engines.find(f"numpy,numpy,{mine.adapter}")] == ["numpy", "mine"]
    with pytest.raises(ArgumentError, match="tensorrrt"):
        engines.find("tensorrrt")
    with pytest.raises(ArgumentError, match="no file"):
        engines.find(str(tmp_path / "nowhere.py"))
    taken = tmp_path / "torch.py"
    taken.write_text("")
    with pytest.raises(ArgumentError, match="taken"):
        engines.find(str(taken))


def test_peers_that_are_not_set_up_say_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path))
    assert engines.find("peers") == []
    with pytest.raises(ArgumentError, match="--setup plain-openvino"):
        engines.find("plain-openvino")


@pytest.mark.parametrize("name", environments.PEERS)
def test_peers_import_nothing_of_sardonyx(name: str) -> None:
    path = engines.HERE / "peers" / f"{environments.PEERS[name].module}.py"
    text = path.read_text()
    assert "sardonyx" not in text
    assert any(f"def {function}(" in text for function in ("run", "gradient"))


def test_the_worker_needs_numpy_alone() -> None:
    text = (engines.HERE / "worker.py").read_text()
    assert "import sardonyx" not in text and "from sardonyx" not in text


def test_selection() -> None:
    result = select.cases(["forward"], ops=["Softplus"])
    assert {case.op for case in result["forward"]} >= {"Softplus"}
    assert all("Softplus" in (case.op, *case.ops) for case in result["forward"])
    assert [c.name for c in select.cases(["forward"], pattern="^test_relu$")["forward"]] == [
        "test_relu"
    ]
    drawn = select.cases(["forward"], sample=10)["forward"]
    assert drawn == select.cases(["forward"], sample=10)["forward"]
    assert 150 < len(drawn) < 260 and len({case.op for case in drawn}) > 60
    with pytest.raises(ArgumentError, match="no case"):
        select.cases(["forward"], pattern="no such case")
    with pytest.raises(ArgumentError, match="no axis"):
        select.cases(["backward"])


def test_our_engines_are_scored_and_their_rules_written_down(store: Store) -> None:
    engine = engines.ours_of("numpy")
    assert engine.python == Path(sys.executable)
    case = suite.by_name()["test_hardsigmoid_expanded_ver18"]
    score = run.score([engine], run.Job({"forward": [case]}, store=store))
    assert score.columns[0].cells["forward"][case.name] == Cell("pass")
    entry = store.get(run._key(engine, "forward", case))
    assert set(case.ops) - {"Constant"} <= set(entry["used"])


def command(*arguments: str) -> int:
    from sardonyx.cli.__main__ import main

    with pytest.raises(SystemExit) as caught:
        main(["score", *arguments])
    return int(caught.value.code or 0)


def test_the_command_shows_saves_and_compares(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], made: Make
) -> None:
    saved = tmp_path / "score.json"
    only = ["--case", "^test_relu$", "--axis", "forward", "--jobs", "1", "--fresh"]
    good = made(NUMPY.format(special=""))
    assert command("--engine", str(good.adapter), *only, "--json", "--save", str(saved)) == 0
    assert json.loads(capsys.readouterr().out)["cases"] == {"forward": ["test_relu"]}
    assert command("--load", str(saved), "--markdown", "--html", str(tmp_path / "pages")) == 0
    assert capsys.readouterr().out.startswith("| engine |")
    assert (tmp_path / "pages" / "op" / "Relu.html").is_file()
    assert command("--load", str(saved), "--baseline", str(saved)) == 0
    worse = load(saved)
    worse.columns[0].cells["forward"]["test_relu"] = Cell("wrong numbers", "off by one")
    worse.save(tmp_path / "worse.json")
    assert command("--load", str(tmp_path / "worse.json"), "--baseline", str(saved)) == 1
    assert "worse  mine  forward  test_relu  pass → wrong numbers" in capsys.readouterr().err


def test_the_command_refuses_what_it_cannot_do(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (["--setup", "nobody"], 'no peer "nobody"'),
        (["--engine", "nobody"], 'no engine "nobody"'),
        (["--load", "nowhere.json"], "no file"),
        (["--axis", "sideways"], "no axis"),
    ):
        assert command(*arguments) == 2
        assert words in capsys.readouterr().err


def test_scores_are_put_together() -> None:
    first, second = scored(test_a="crash"), scored(test_a="pass", test_b="pass")
    second.date, second.columns[0].version = "2026-02-01", "2.0"
    other = scored(test_c="pass")
    other.columns[0].name = "other"
    result = together([second, other, first])
    assert [(c.name, c.version) for c in result.columns] == [("mine", "2.0"), ("other", "1.0")]
    assert result.cases["forward"] == ["test_a", "test_b", "test_c"]
    assert result.date == "2026-02-01"


def test_axes_of_an_engine_are_put_together_and_nothing_passes_unrun(tmp_path: Path) -> None:
    forward, gradient = scored(test_a="crash", test_b="pass"), scored(test_a="pass")
    gradient.columns[0].cells["gradient"] = gradient.columns[0].cells.pop("forward")
    gradient.cases = {"gradient": ["test_a"]}
    wider = scored(test_a="pass", test_b="pass", test_c="pass")
    wider.columns[0].name, wider.columns[0].kind = "other", "ours"
    result = load(together([forward, gradient, wider]).save(tmp_path / "score.json"))
    other, mine = result.columns  # ours first
    assert (other.name, other.count().total()) == ("other", 3)
    assert mine.count() == {"crash": 1, "pass": 1}, "the third case was not run"
    assert mine.count("gradient") == {"pass": 1}
    assert result.sampled(mine) == "2 of 3 cases were run" and not result.sampled(other)
    for shown in (table.text(result), table.markdown(result)):
        assert "a sample: mine: 2 of 3 cases were run" in shown


def test_the_nightly_fails_where_anything_is_worse_or_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.sweeps import backend

    path = tmp_path / "baseline.json"
    path.write_text(to_baseline(scored(test_a="pass", test_b="unsupported")))
    monkeypatch.setattr(backend, "BASELINE", path)
    same, worse, better = (
        scored(test_a="pass", test_b=kind) for kind in ("unsupported", "crash", "pass")
    )
    assert backend.regressed(same, whole=True) == (False, False)
    assert backend.regressed(worse, whole=False) == (True, False)
    assert backend.regressed(better, whole=True) == (False, True)
    other = scored(test_a="pass", test_b="unsupported")
    other.columns[0].name = "other"
    assert backend.regressed(other, whole=False) == (False, False)
    assert backend.regressed(other, whole=True) == (True, True)
    said = capsys.readouterr().out
    assert "gone  mine  forward" in said and "new  other  forward" in said


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["jax", "tensorflow"])
def test_what_no_graph_can_hold_is_run_without_one(engine: str) -> None:
    """Sizes in inputs, sizes that depend on values, texts."""
    pytest.importorskip(engine)
    names = ("test_affine_grid_2d", "test_compress_0", "test_reduce_l1_keep_dims_example")
    known = suite.by_name()
    with Worker(engines.ours_of(engine), 120.0) as worker:
        for name in (*names, "test_string_concat", "test_unique_sorted_without_axis"):
            assert judge.judge(worker, known[name]) == Cell("pass"), name
