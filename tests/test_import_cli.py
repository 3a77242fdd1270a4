"""`sardonyx import`: files are known by their content, and pickles stay closed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from sardonyx.cli.__main__ import main

pytestmark = pytest.mark.filterwarnings("ignore")
X = np.random.default_rng(0).normal(size=(80, 3))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys, *arguments: str, code: int = 0) -> str:
    """What the command prints, on both streams."""
    with pytest.raises(SystemExit) as stop:
        main(["import", *arguments])
    out = capsys.readouterr()
    assert stop.value.code == code, out.err
    return out.out + out.err


def predicted(path: str, rows: np.ndarray) -> dict:
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    (only,) = session.get_inputs()
    kind = np.float32 if only.type == "tensor(float)" else np.float64
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(None, {only.name: rows.astype(kind)})))


def classifier():
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression().fit(X, X[:, 0] > 0)


def test_skops(capsys) -> None:
    import skops.io

    skops.io.dump(classifier(), "model.bin")
    words = run(capsys, "model.bin", "-o", "out.onnx")
    assert "out.onnx" in words and "verified" in words
    np.testing.assert_allclose(
        predicted("out.onnx", X)["probabilities"], classifier().predict_proba(X), rtol=1e-12
    )


@pytest.mark.parametrize("name", ["model.pkl", "model.dat", "model.joblib"])
def test_pickles_are_opened_only_on_request(name, capsys) -> None:
    import joblib

    class Trap:
        def __reduce__(self):
            return open, ("trapped", "w")

    joblib.dump(Trap(), name)
    assert "--trust-pickle" in run(capsys, name, code=2)
    assert not Path("trapped").exists()
    joblib.dump(classifier(), name)
    assert "may run anything" in run(capsys, name, "--trust-pickle", "-o", "out.onnx")
    assert predicted("out.onnx", X)["label"].tolist() == classifier().predict(X).tolist()


def test_boosters_by_content(capsys) -> None:
    import lightgbm
    import xgboost

    y = X[:, 0] + X[:, 1]
    booster = xgboost.train({}, xgboost.DMatrix(X, label=y), 3)
    light = lightgbm.train({"verbose": -1}, lightgbm.Dataset(X, y), 3)
    booster.save_model("a.json")
    booster.save_model("b.ubj")
    light.save_model("c.txt")
    for name in ("a.json", "b.ubj", "c.txt"):
        Path(name).rename("booster.model")
        run(capsys, "booster.model", "-o", "out.onnx", "--raw")
        source = light.predict(X) if name == "c.txt" else booster.predict(xgboost.DMatrix(X))
        np.testing.assert_allclose(predicted("out.onnx", X)["raw"], source, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "iso-8859-1"])
def test_pmml_by_content(encoding, capsys) -> None:
    declared = encoding.removesuffix("-sig")
    text = f"""<?xml version="1.0" encoding="{declared}"?><!-- {"long " * 200} -->
    <PMML version="4.3"><Header/><DataDictionary>
    <DataField name="gr\xf6\xdfe" optype="continuous" dataType="double"/>
    <DataField name="y" optype="continuous" dataType="double"/></DataDictionary>
    <RegressionModel functionName="regression"><MiningSchema><MiningField name="gr\xf6\xdfe"/>
    <MiningField name="y" usageType="target"/></MiningSchema><RegressionTable intercept="1">
    <NumericPredictor name="gr\xf6\xdfe" coefficient="2"/></RegressionTable></RegressionModel>
    </PMML>"""
    Path("model.bin").write_bytes(text.encode(encoding))
    assert "out.onnx" in run(capsys, "model.bin", "-o", "out.onnx")
    assert predicted("out.onnx", X[:, 0])["y"].tolist() == (1 + 2 * X[:, 0]).tolist()


def test_what_is_not_known_is_refused(folder, capsys) -> None:
    (folder / "notes.txt").write_text("hello")
    assert "none of the formats" in run(capsys, "notes.txt", code=2)


def test_networks_of_torch(capsys) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh()).eval()
    rows = X.astype(np.float32)
    expected = net(torch.from_numpy(rows)).detach().numpy()
    np.save("rows.npy", rows[:5])
    torch.jit.script(net).save("script.pt")
    sizes = {"input": {0: torch.export.Dim.AUTO}}
    program = torch.export.export(net, (torch.ones(2, 3),), dynamic_shapes=sizes)
    torch.export.save(program, "program.pt2")
    torch.save(net, "pickle.pt")
    for name, more in (("script.pt", ["--data", "rows.npy"]), ("program.pt2", [])):
        assert "same" in run(capsys, name, "-o", "out.onnx", *more)
        np.testing.assert_allclose(predicted("out.onnx", rows)["output"], expected, atol=1e-6)
    assert "example arguments" in run(capsys, "script.pt", code=2)
    assert "trust" in run(capsys, "pickle.pt", "--data", "rows.npy", code=2)
    assert "same" in run(capsys, "pickle.pt", "--data", "rows.npy", "--trust-pickle")
