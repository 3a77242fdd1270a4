"""Files and objects of data as people have them: what is read, what is refused and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx as sx
from sardonyx.errors import DataError
from sardonyx.train.data import open_data

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 3)).round(3)
LABELS = np.arange(12) % 3
NAMES = np.array(["ant", "bee", "cow, big"])
HEADER = "a,b,c,label"


def lines(separator: str = ",", point: str = ".") -> list[str]:
    numbers = [[str(v).replace(".", point) for v in row] for row in X]
    return [separator.join([*row, str(y)]) for row, y in zip(numbers, LABELS, strict=True)]


def written(folder: Path, text: str, name: str = "d.csv", encoding: str = "utf-8") -> Path:
    path = folder / name
    path.write_bytes(text.encode(encoding))
    return path


SPELLINGS = {
    "plain": "\n".join([HEADER, *lines()]),
    "a byte order mark": "\ufeff" + "\n".join([HEADER, *lines()]),
    "semicolons": "\n".join([HEADER.replace(",", ";"), *lines(";")]),
    "semicolons and decimal commas": "\n".join([HEADER.replace(",", ";"), *lines(";", ",")]),
    "tabs": "\n".join([HEADER.replace(",", "\t"), *lines("\t")]),
    "bars": "\n".join([HEADER.replace(",", "|"), *lines("|")]),
    "quotes": "\n".join('"' + row.replace(",", '","') + '"' for row in [HEADER, *lines()]),
    "Windows": "\r\n".join([HEADER, *lines()]),
    "empty lines": "\n\n".join([HEADER, *lines(), ""]),
    "a space after the comma": "\n".join([HEADER.replace(",", ", "), *lines(", ")]),
    "no header": "\n".join(lines()),
    "a semicolon in a name": "\n".join(['a,"b;c",c,label', *lines()]),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_spellings_of_a_table(spelling: str, tmp_path: Path) -> None:
    table = open_data(written(tmp_path, SPELLINGS[spelling]))
    rows = table.take(np.arange(12))
    np.testing.assert_allclose(rows["x"], X, rtol=1e-6)
    np.testing.assert_array_equal(rows["label"], LABELS)


REFUSED = {
    "a header alone": (HEADER + "\n", "has no rows"),
    "nothing": ("", "has no rows"),
    "a line that is too long": ("\n".join([HEADER, *lines()]) + ",9", "number of columns"),
    "two columns of one name": ("\n".join(["a,a,c,label", *lines()]), r"same name\s+\"a\""),
    "a word among numbers": ("\n".join([HEADER, *lines()[:4], "1,x,2,0"]), r"\"b\"\s+row 4\s+'x'"),
    "a missing number first": ("1,NA,2,0\n" + "\n".join(lines()), r"\"column2\"\s+row 0\s+'NA'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_tables(case: str, tmp_path: Path) -> None:
    text, message = REFUSED[case]
    with pytest.raises(DataError, match=message):
        open_data(written(tmp_path, text))


def test_another_encoding_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, "a,label\n1,café\n", encoding="latin-1")
    with pytest.raises(DataError, match=r"save it in UTF-8"):
        open_data(path)


# -- training ---------------------------------------------------------------------------


def classifier() -> sx.Model:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[N,3] x) => (float[N,4] y)
    <float[3,4] w = {1,2,3,4, 4,3,2,1, 1,1,1,1}> { y = MatMul(x, w) }"""
    return sx.load(onnx.parser.parse_model(text))


def trained(data: Any) -> list[float]:
    run = sx.train(classifier(), data, loss="cross_entropy", steps=2, display="quiet")
    return [float(loss) for loss in run.losses]


EXPECTED = {"x": X.astype(np.float32), "label": LABELS}


def test_names_with_commas_are_classes(tmp_path: Path) -> None:
    rows = [f'{line.rpartition(",")[0]},"{NAMES[y]}"' for line, y in zip(lines(), LABELS)]
    assert trained(written(tmp_path, "\n".join([HEADER, *rows]))) == trained(EXPECTED)


def test_lists_are_columns() -> None:
    assert trained((EXPECTED["x"].tolist(), LABELS.tolist())) == trained(EXPECTED)


@pytest.mark.parametrize("kind", ["dict", "pair"])
def test_a_list_of_rows_is_told_from_a_list_of_batches(kind: str) -> None:
    rows = [(x, int(y)) for x, y in zip(EXPECTED["x"], LABELS, strict=True)]
    data = rows if kind == "pair" else [{"x": x, "label": y} for x, y in rows]
    with pytest.raises(DataError, match=r"not a batch[\s\S]*every element is a batch"):
        trained(data)


@pytest.mark.parametrize("missing", [None, float("nan"), ""])
def test_a_missing_name_is_no_class(missing: Any) -> None:
    names = NAMES[LABELS].astype(object)
    names[4] = missing
    with pytest.raises(DataError, match=r"lacks 1 label[\s\S]*row 4"):
        trained({**EXPECTED, "label": names})


def test_columns_of_a_frame_that_are_no_numbers() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(EXPECTED["x"], columns=list("abc")).assign(label=LABELS)
    assert trained(frame) == trained(EXPECTED)
    with pytest.raises(DataError, match=r"\"b\"\s+row 0\s+'2020-01-01"):
        trained(frame.assign(b=pandas.Timestamp("2020-01-01")))
    with pytest.raises(DataError, match=r"consists of the columns \"id\", \"a\""):
        trained(frame.assign(id=1)[["id", "a", "b", "c", "label"]])


def test_a_class_that_comes_late_is_a_class() -> None:
    """Names are collected from all rows of a data set, not from the first ones."""

    class Rows:
        def __len__(self) -> int:
            return 300

        def __getitem__(self, index: int) -> tuple[np.ndarray, str]:
            return np.ones(3, np.float32), "late" if index == 299 else "early"

    run = sx.train(classifier(), Rows(), loss="cross_entropy", epochs=1, display="quiet")
    assert len(run.losses) == 10


def test_an_empty_folder_of_a_class_is_named(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for name in ("ant", "bee"):
        (tmp_path / name).mkdir()
    image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(tmp_path / "ant" / "0.png")
    assert ("note", 'no images in "bee": such a class is never seen') in open_data(tmp_path).facts
