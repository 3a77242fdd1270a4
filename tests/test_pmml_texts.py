"""TextIndex, against counts made in Python."""

from __future__ import annotations

import math
import re
import string

import numpy as np
import pytest

import sardonyx as sx
from sardonyx.errors import ImportRefused
from tests.test_pmml import NAN, Y, document, run, same, schema

T = '<DataField name="t" optype="categorical" dataType="string"/>'
TEXTS = [
    "good film", "Good, film!", "(good) 'GOOD' _good_ $good$", "good\tfilm\n good  film",
    "a good-film film good", "", "film", "good good film film good film",
    "\u00c9t\u00e9 \u00e9t\u00e9.",
]  # fmt: skip


def counted(index: str, before: str = "", terms: str = "") -> bytes:
    model = f"""<RegressionModel functionName="regression">{schema("t")}<LocalTransformations>
    {before}<DerivedField name="q" optype="continuous" dataType="double">{index}</DerivedField>
    </LocalTransformations><RegressionTable intercept="0"><NumericPredictor name="q"
    coefficient="1"/></RegressionTable></RegressionModel>"""
    return document(model, T + Y, terms)


def index(term: str, settings: str = "", field: str = "t") -> str:
    return (
        f'<TextIndex textField="{field}" {settings}><Constant dataType="string">{term}</Constant>'
        "</TextIndex>"
    )


def occurrences(text: str, term: str, exact: bool = False) -> float:
    """Runs of words equal to those of the term, without punctuation around each."""
    if not text:
        return NAN
    marks = string.punctuation.translate(str.maketrans("", "", "$+<=>^`|~"))
    words = [w.strip(marks) for w in text.split()]
    if not exact:
        words, term = [w.lower() for w in words], term.lower()
    parts = term.split()
    return float(
        sum(words[i : i + len(parts)] == parts for i in range(len(words) - len(parts) + 1))
    )


@pytest.mark.parametrize("term", ["good", "film", "good film", "film good film", "\u00e9t\u00e9"])
@pytest.mark.parametrize("exact", [False, True])
def test_terms_are_counted(term: str, exact: bool) -> None:
    settings = 'isCaseSensitive="true"' if exact else ""
    out = run(counted(index(term, settings)), t=TEXTS)
    same(out["y"], [occurrences(t, term, exact) for t in TEXTS])


def test_weights_of_counts() -> None:
    counts = [occurrences(t, "good") for t in TEXTS]
    out = run(counted(index("good", 'localTermWeights="logarithmic"')), t=TEXTS)
    same(out["y"], [math.log10(1 + c) for c in counts])
    out = run(counted(index("good", 'localTermWeights="binary"')), t=TEXTS)
    same(out["y"], [c if math.isnan(c) else float(c > 0) for c in counts])


LOWER = """<DerivedField name="low" optype="categorical" dataType="string">
<Apply function="lowercase"><FieldRef field="t"/></Apply></DerivedField>"""


def test_a_text_in_lower_case() -> None:
    exact = 'isCaseSensitive="true"'
    for term in ("good", "good film"):
        out = run(counted(index(term, exact, "low"), LOWER), t=TEXTS)
        same(out["y"], [occurrences(t, term) for t in TEXTS])
    out = run(counted(index("Good", exact, "low"), LOWER), t=TEXTS)
    same(out["y"], [NAN if not t else 0.0 for t in TEXTS])


def test_a_text_in_lower_case_is_nothing_else() -> None:
    field = '<OutputField name="o" feature="transformedValue" dataType="string">'
    output = f'<Output>{field}<FieldRef field="low"/></OutputField></Output>'
    norm = '<NormDiscrete field="low" value="good"/>'
    shown = counted(index("good", "", "t"), LOWER).replace(
        b"</MiningSchema>", b"</MiningSchema>" + output.encode(), 1
    )
    assert output.encode() in shown
    for source in (counted(norm, LOWER), shown):
        with pytest.raises(ImportRefused, match="lowercase"):
            sx.from_pmml(source)


def test_runs_of_letters() -> None:
    texts = [*TEXTS, "good,good;good bad.good", "x" * 50 + " good" * 30, "good," * 9]
    out = run(counted(index("good", r'x-wordRE="\w+"')), t=texts)
    expected = [
        NAN if not t else float(re.findall(r"\w+", t.lower(), re.ASCII).count("good"))
        for t in texts
    ]
    expected[-1] = NAN  # more of them without a blank than are counted
    same(out["y"], expected)


def test_other_separators() -> None:
    out = run(counted(index("b", r'wordSeparatorCharacterRE="[\s,;]+"')), t=["a,b;b c", "a.b"])
    same(out["y"], [2.0, 0.0])


def test_a_function_with_a_text_index() -> None:
    body = """<TransformationDictionary><DefineFunction name="tf" optype="continuous"
    dataType="double"><ParameterField name="text"/><ParameterField name="term"/>
    <ParameterField name="weight"/><Apply function="*"><TextIndex textField="text">
    <FieldRef field="term"/></TextIndex><FieldRef field="weight"/></Apply></DefineFunction>
    </TransformationDictionary>"""
    call = """<Apply function="tf"><FieldRef field="low"/><Constant>film</Constant>
    <Constant>1.5</Constant></Apply>"""
    out = run(counted(call, LOWER, body), t=TEXTS)
    same(out["y"], [1.5 * occurrences(t, "film") for t in TEXTS])


def test_texts_that_are_all_empty() -> None:
    out = run(counted(index("good film")), t=["", ""])
    assert np.isnan(out["y"]).all()


@pytest.mark.parametrize(
    "settings",
    ['tokenize="false"', 'maxLevenshteinDistance="1"', 'wordSeparatorCharacterRE="(a|b)"',
     'localTermWeights="augmentedNormalizedTermFrequency"', 'x-wordRE="[a-z]+"'],
)  # fmt: skip
def test_what_cannot_be_counted_is_refused(settings: str) -> None:
    with pytest.raises(ImportRefused, match="TextIndex"):
        sx.from_pmml(counted(index("good", settings)))
