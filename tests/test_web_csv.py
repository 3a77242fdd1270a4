"""What the page reads in CSV files: `csv.js` in Node, against what is written here by hand."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sardonyx.train.tables import LABELS
from sardonyx.web.export import PAGE

READ = """
import { decoded, read } from "./csv.mjs";
const { bytes, manifest, classes } = JSON.parse(%s);
const text = decoded(Uint8Array.from(bytes).buffer);
const { fields, names } = read(text, manifest, classes);
const numbers = Object.values(fields).map(({ data }) => Array.from(data, Number));
console.log(JSON.stringify({ numbers, label: names.labels[0] }));
"""


def read_csv(
    content: str | bytes, folder: Path, kind: str = "float32", classes: tuple[str, ...] = ()
) -> dict[str, Any]:
    """What the page reads in a CSV file for a model of three numbers and four classes."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    x = {"name": "x", "type": kind, "shape": [3]}
    metrics = [{"name": "y", "shape": ["N", 4]}]
    manifest = {
        "fed": [x, {"name": "label", "type": "int64", "shape": []}],
        "labels": ["label"],
        "label_names": LABELS,
        "loss": "cross_entropy",
        "prediction": {"name": "y", "ignored": -100},
        "step": {"steps": [{"evaluate": {"metrics": metrics}}]},
    }
    shutil.copy(PAGE / "csv.js", folder / "csv.mjs")
    raw = content.encode() if isinstance(content, str) else content
    request = {"bytes": [*raw], "manifest": manifest, "classes": classes}
    (folder / "run.mjs").write_text(READ % json.dumps(json.dumps(request)))
    done = subprocess.run([node, folder / "run.mjs"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(done.stderr)
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("header", "order"),
    [
        ("a,b,c,label", [0, 1, 2, 3]),
        ("label,a,b,c", [3, 0, 1, 2]),
        ("a, label ,b,c", [0, 3, 1, 2]),
        ("0,1,2,label", [0, 1, 2, 3]),
        ("0,1,2,class", [0, 1, 2, 3]),
        ("0,1,2,3", [0, 1, 2, 3]),
        ("target,a,b,c", [3, 0, 1, 2]),
        ("", [0, 1, 2, 3]),
    ],
)
def test_a_label_is_read_from_the_column_of_its_name(tmp_path, header: str, order: Any) -> None:
    rows = [[0.5, 1.5, 2.5, 3], [4.5, 5.5, 6.5, 1]]
    lines = [",".join(str(row[i]) for i in order) for row in rows]
    content = read_csv("\n".join([header, *lines] if header else lines), tmp_path)
    assert content["numbers"] == [[0.5, 1.5, 2.5, 4.5, 5.5, 6.5], [3, 1]]


@pytest.mark.parametrize("line", ["1,2,3,0,9", "1,2,3"])
def test_a_row_with_other_columns_than_the_header_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(ValueError, match=f"row 2 has {line.count(',') + 1} columns, not 4"):
        read_csv(f"label,a,b,c\n1,2,3,4\n{line}", tmp_path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("1,,3,0\n4,5,6,1", 'row 1, column 2: "" is not a number'),
        ("1,NA,3,0\n4,5,6,1", 'row 1, column 2: "NA" is not a number'),
        ("1,2,inf,0\n4,5,6,1", 'row 1, column 3: "inf" is not a number'),
        ("a,b,c,label\n1,2,0x10,0", 'row 1, c: "0x10" is not a number'),
        ("a,b,c,label\n1,2,1e39,0", "row 1, c: float32 does not hold 1e39"),
        ("a,b,c,label\n1,2,3,1\n4,5,6,", "row 2 has no label"),
        ("a,label,c,label\n1,2,3,1", "several columns are called label"),
        ("1,2,3,bird\n4,5,6,cat", '"bird" is not a label'),
        ("größe,b,c,label\n1,2,3,1".encode("latin-1"), "save it as CSV in UTF-8"),
    ],
)
def test_a_cell_that_cannot_be_read_is_said(tmp_path: Path, content: Any, words: str) -> None:
    classes = ("cat", "dog") if "cat" in str(content) else ()
    with pytest.raises(ValueError) as error:
        read_csv(content, tmp_path, classes=classes)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("kind", "cell"),
    [
        ("uint8", "256"),
        ("uint8", "-1"),
        ("int32", "3000000000"),
        ("int64", "9007199254740993"),
        ("uint64", "-1"),
        ("bool", "2"),
    ],
)
def test_a_number_that_the_type_does_not_hold_is_refused(tmp_path, kind: str, cell: str) -> None:
    with pytest.raises(ValueError, match=f"{kind} does not hold {cell}"):
        read_csv(f"a,b,c,label\n1,0,{cell},1", tmp_path, kind)


@pytest.mark.parametrize(
    "content",
    [
        "a;b;c;label\n0,5;1,5;-2,5e1;3",
        "a|b|c|label\n0.5|1.5|-25|3",
        "a,b,c,label\r0.5,1.5,-25,3\r",
        "a\tb\tc\tlabel\r\n0.5\t1.5\t-25\t3\r\n".encode("utf-16"),
    ],
)
def test_other_separators_line_ends_and_encodings(tmp_path: Path, content: Any) -> None:
    assert read_csv(content, tmp_path)["numbers"] == [[0.5, 1.5, -25], [3]]


def test_a_label_that_the_loss_ignores_is_taken(tmp_path: Path) -> None:
    assert read_csv("1,2,3,-100\n4,5,6,2", tmp_path)["numbers"][1] == [-100, 2]
