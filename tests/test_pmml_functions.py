"""PMML's transformations, function by function, against Python's own mathematics."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import pytest

from sardonyx.errors import ImportRefused, LimitExceeded
from tests.test_pmml import NAN, document, run, same, schema

FIELDS = """<DataField name="i" optype="continuous" dataType="integer"/>
<DataField name="j" optype="continuous" dataType="integer"/>
<DataField name="x" optype="continuous" dataType="double"/>
<DataField name="f" optype="continuous" dataType="float"/>
<DataField name="s" optype="categorical" dataType="string"><Value value="ab"/><Value value=" Cd "/>
<Value value="e"/></DataField>
<DataField name="y" optype="continuous" dataType="double"/>"""
ROWS: dict[str, list[Any]] = {
    "i": [1, 7, NAN, -3],
    "j": [2, 2, 3, NAN],
    "x": [1.5, -2.5, NAN, 0.25],
    "f": [0.1, 16777216, NAN, -1.7],
    "s": ["ab", " Cd ", "", "e"],
}


def evaluate(
    expression: str, dtype: str = "double", before: str = "", version: str = "4.4"
) -> list[Any]:
    optype = "categorical" if dtype == "string" else "continuous"
    model = f"""<RegressionModel functionName="regression">{schema(*ROWS)}
    <Output><OutputField name="o" feature="transformedValue" dataType="{dtype}" optype="{optype}">
    {expression}</OutputField></Output><RegressionTable intercept="0"/></RegressionModel>"""
    return run(document(model, FIELDS, before, version), **ROWS)["o"]


def call(function: str, *arguments: str, **settings: str) -> str:
    attributes = "".join(f' {key}="{value}"' for key, value in settings.items())
    inner = "".join(
        f'<FieldRef field="{a}"/>' if a in ROWS else f"<Constant>{a}</Constant>"
        if not a.startswith("<") else a
        for a in arguments
    )  # fmt: skip
    return f'<Apply function="{function}"{attributes}>{inner}</Apply>'


def mapped(rule: Callable[..., float], *names: str) -> list[float]:
    """The rule over the rows; missing where an argument is, or where it is not defined."""
    out = []
    for row in zip(*(ROWS[n] for n in names), strict=True):
        try:
            out.append(NAN if any(math.isnan(v) for v in row) else float(rule(*row)))
        except ValueError:
            out.append(NAN)
    return out


UNARY: dict[str, Callable[[float], float]] = {
    "ln": math.log,
    "log10": math.log10,
    "sqrt": math.sqrt,
    "exp": math.exp,
    "expm1": math.expm1,
    "ln1p": math.log1p,
    "abs": abs,
    "floor": math.floor,
    "ceil": math.ceil,
    "round": lambda x: math.floor(x + 0.5),
    "rint": lambda x: float(round(x)),
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "asin": math.asin,
    "acos": math.acos,
    "atan": math.atan,
    "sinh": math.sinh,
    "cosh": math.cosh,
    "tanh": math.tanh,
    "erf": math.erf,
    "stdNormalCDF": NormalDist().cdf,
    "stdNormalPDF": NormalDist().pdf,
}


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_number(name: str) -> None:
    same(evaluate(call(name, "x")), mapped(UNARY[name], "x"))


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("+", lambda a, b: a + b),
        ("-", lambda a, b: a - b),
        ("*", lambda a, b: a * b),
        ("/", lambda a, b: math.trunc(a / b)),
        ("modulo", lambda a, b: a % b),
        ("pow", lambda a, b: a**b),
        ("threshold", lambda a, b: a > b),
        ("hypot", math.hypot),
        ("equal", lambda a, b: a == b),
        ("notEqual", lambda a, b: a != b),
        ("lessThan", lambda a, b: a < b),
        ("greaterOrEqual", lambda a, b: a >= b),
    ],
)
def test_functions_of_two_integers(name: str, rule: Callable[[float, float], float]) -> None:
    same(evaluate(call(name, "i", "j")), mapped(rule, "i", "j"))


def test_floats_are_rounded_to_32_bits() -> None:
    import numpy as np

    single = np.float32
    expected = [float(single(v) * single(3)) for v in (0.1, 16777216)]
    same(evaluate(call("*", "f", "3"))[:2], expected)
    same(evaluate(call("+", "f", "1"))[1:2], [16777216.0])
    same(evaluate(call("*", "f", "0.1"))[:1], [float(single(0.1)) * 0.1])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("min", [1, 2, 3, -3]),
        ("max", [2, 7, 3, -3]),
        ("sum", [3, 9, 3, -3]),
        ("product", [2, 14, 3, -3]),
        ("avg", [1.5, 4.5, 3, -3]),
        ("median", [1.5, 4.5, 3, -3]),
    ],
)
def test_aggregates_skip_what_is_missing(name: str, expected: list[float]) -> None:
    same(evaluate(call(name, "i", "j")), [float(v) for v in expected])


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (call("isMissing", "x"), [0, 0, 1, 0]),
        (call("isNotMissing", "x"), [1, 1, 0, 1]),
        (call("isIn", "i", "1", "-3"), [1, 0, 0, 1]),
        # A missing value is in a list that names a missing one.
        (call("isIn", "i", "1", '<Constant dataType="integer" missing="true"/>'), [1, 0, 1, 0]),
        (call("isNotIn", "i", "1", '<Constant dataType="integer" missing="true"/>'), [0, 1, 0, 1]),
        (call("isIn", "s", "e", '<Constant dataType="string" missing="true"/>'), [0, 0, 1, 1]),
        (call("isNotIn", "i", "7", "i"), [0, 0, 0, 0]),
        (call("isNotIn", "i", "1", "-3"), [0, 1, 1, 0]),
        (call("if", call("isMissing", "x"), "9", "x"), [1.5, -2.5, 9, 0.25]),
        (call("if", call("greaterThan", "x", "0"), "1"), [1, NAN, NAN, 1]),
        (call("and", call("greaterThan", "x", "0"), call("equal", "i", "1")), [1, 0, NAN, 0]),
        (call("or", call("isMissing", "x"), call("equal", "i", "1")), [1, 0, 1, 0]),
        (call("not", call("equal", "i", "1")), [0, 1, NAN, 1]),
        (call("+", "x", "j", mapMissingTo="7"), [3.5, -0.5, 7, 7]),
        (call("+", "x", "j", defaultValue="8"), [3.5, -0.5, 8, 8]),
        # Of an `if`, only the condition and the value that it chooses are looked at.
        (call("if", call("isNotMissing", "x"), "x", "j", mapMissingTo="5"), [1.5, -2.5, 3, 0.25]),
        (call("if", call("isMissing", "j"), "x", mapMissingTo="5"), [NAN, NAN, NAN, 0.25]),
        (call("if", call("greaterThan", "x", "0"), "j", "9", mapMissingTo="5"), [2, 9, 5, 5]),
        (call("pow", "x", "0"), [1, 1, NAN, 1]),  # in ONNX, NaN to the power of 0 is 1
        (call("equal", "s", "e"), [0, 0, NAN, 1]),
        (call("stringLength", "s"), [2, 4, NAN, 1]),
        (call("matches", "s", "[a-d]"), [1, 1, NAN, 0]),
        ('<NormDiscrete field="s" value="e" mapMissingTo="0.5"/>', [0, 0, 0.5, 1]),
        (
            '<NormContinuous field="i" outliers="asExtremeValues"><LinearNorm orig="0" norm="0"/>'
            '<LinearNorm orig="2" norm="1"/><LinearNorm orig="4" norm="5"/></NormContinuous>',
            [0.5, 5, NAN, 0],
        ),
        (
            '<NormContinuous field="i" outliers="asMissingValues"><LinearNorm orig="0" norm="0"/>'
            '<LinearNorm orig="2" norm="1"/></NormContinuous>',
            [0.5, NAN, NAN, NAN],
        ),
        (
            '<MapValues outputColumn="o" defaultValue="3" mapMissingTo="4" dataType="double">'
            '<FieldColumnPair field="s" column="a"/><FieldColumnPair field="i" column="b"/>'
            "<InlineTable><row><a>ab</a><b>1</b><o>7</o></row><row><a>e</a><b>5</b><o>8</o></row>"
            "</InlineTable></MapValues>",
            [7, 3, 4, 3],
        ),
    ],
)
def test_expressions(expression: str, expected: list[float]) -> None:
    same(evaluate(expression), [float(v) for v in expected])


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (call("uppercase", "s"), ["AB", " CD ", "", "E"]),
        (call("lowercase", "s"), ["ab", " cd ", "", "e"]),
        (call("trimBlanks", "s"), ["ab", "Cd", "", "e"]),
        (call("substring", "s", "2", "1"), ["b", "C", "", ""]),
        (call("replace", "s", "[ae]", "_"), ["_b", " Cd ", "", "_"]),
        (call("concat", "s", "<Constant>-</Constant>", "s"), ["ab-ab", " Cd - Cd ", "-", "e-e"]),
        (
            '<Discretize field="x" defaultValue="none" mapMissingTo="gone">'
            '<DiscretizeBin binValue="low"><Interval closure="openOpen" rightMargin="0.25"/>'
            '</DiscretizeBin><DiscretizeBin binValue="high">'
            '<Interval closure="openClosed" leftMargin="0.25" rightMargin="1.5"/></DiscretizeBin>'
            "</Discretize>",
            ["high", "low", "gone", "none"],
        ),
    ],
)
def test_text(expression: str, expected: list[str]) -> None:
    assert evaluate(expression, "string") == expected


@pytest.mark.parametrize(
    ("text", "pattern", "by", "expected"),
    [
        ("aé1", r"\w", "W", "WéW"),  # letters and digits of ASCII, as in Java
        ("1٣", r"\d", "D", "D٣"),
        ("aé1", r"(a)(.)", "$2$1", "éa1"),
        ("aé1", r"(a)(.)", "[$0]", "[aé]1"),
        ("ab", "(a)", "$12", "a2b"),  # there is one group: the second digit is text
        ("ab", "(a)|(b)", "[$2]", "[][b]"),
        ("ab", "a", r"\$", "$b"),
        ("ab", "a", r"\\", r"\b"),
        ("aB", "(?i)b", "c", "ac"),
    ],
)
def test_replace_reads_patterns_and_replacements_as_java_does(
    text: str, pattern: str, by: str, expected: str
) -> None:
    expression = call("replace", f"<Constant>{text}</Constant>", pattern, by)
    assert evaluate(expression, "string") == [expected] * 4


def test_only_blanks_are_trimmed() -> None:
    text = "<Constant> \u00a0a\u00a0 </Constant>"
    assert evaluate(call("trimBlanks", text), "string") == ["\u00a0a\u00a0"] * 4


def test_functions_of_the_document() -> None:
    before = """<TransformationDictionary><DefineFunction name="twice" optype="continuous"
    dataType="double"><ParameterField name="a"/><Apply function="*"><FieldRef field="a"/>
    <Constant>2</Constant></Apply></DefineFunction></TransformationDictionary>"""
    same(evaluate(call("twice", "x"), before=before), [3.0, -5.0, NAN, 0.5])


@pytest.mark.parametrize(
    "expression",
    [
        call("oracle", "x"),
        call("ln", "x", "x"),
        call("lessThan", "s", "e"),
        call("+", "s", "x"),
        call("formatNumber", "i", "%d"),
        call("matches", "s", "(a+)+"),
        call("replace", "s", "a", "$1"),
        call("replace", "s", "a", "b$"),
        call("matches", "<Constant>é</Constant>", r"\b"),
        '<FieldRef field="nobody"/>',
        '<NormContinuous field="x"><LinearNorm orig="0" norm="0"/></NormContinuous>',
        # A step, whose place every evaluator reads in another way; the points must be ascending.
        '<NormContinuous field="x"><LinearNorm orig="0" norm="0"/><LinearNorm orig="1" norm="2"/>'
        '<LinearNorm orig="1" norm="5"/><LinearNorm orig="2" norm="6"/></NormContinuous>',
    ],
)
def test_what_has_no_counterpart_is_refused(expression: str) -> None:
    with pytest.raises(ImportRefused, match="line "):
        evaluate(expression)


def test_a_function_that_calls_itself_is_refused() -> None:
    before = """<TransformationDictionary><DefineFunction name="again" optype="continuous">
    <ParameterField name="a"/><Apply function="again"><FieldRef field="a"/></Apply>
    </DefineFunction></TransformationDictionary>"""
    with pytest.raises(ImportRefused, match="calls itself"):
        evaluate(call("again", "x"), before=before)


def test_functions_that_call_each_other_twice_are_bounded() -> None:
    twice = "".join(
        f'<DefineFunction name="f{i}" optype="continuous"><ParameterField name="a"/>'
        + call("+", *[f'<Apply function="f{i + 1}"><FieldRef field="a"/></Apply>'] * 2)
        + "</DefineFunction>"
        for i in range(40)
    )
    last = (
        '<DefineFunction name="f40" optype="continuous"><ParameterField name="a"/>'
        '<FieldRef field="a"/></DefineFunction>'
    )
    before = f"<TransformationDictionary>{twice}{last}</TransformationDictionary>"
    with pytest.raises(LimitExceeded, match="expand"):
        evaluate(call("f0", "x"), before=before)


@pytest.mark.parametrize(("version", "expected"), [("4.1", [2, 2, 3, 0.25]), ("4.2", [2, 2, 7, 7])])
def test_what_is_mapped_depends_on_the_version(version: str, expected: list[float]) -> None:
    """In 4.1 `mapMissingTo` stood for a missing result, and max leaves out missing numbers."""
    same(evaluate(call("max", "x", "j", mapMissingTo="7"), version=version), expected)
