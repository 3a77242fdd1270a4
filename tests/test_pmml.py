"""PMML documents written here, against results worked out by hand or by numpy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnxruntime
import pytest

import sardonyx as sx
from sardonyx.errors import ImportRefused, LimitExceeded, ModelError

NAN = math.nan
X = '<DataField name="x" optype="continuous" dataType="double"/>'
Y = '<DataField name="y" optype="continuous" dataType="double"/>'
S = """<DataField name="s" optype="categorical" dataType="string">
<Value value="a"/><Value value="b"/><Value value="c"/></DataField>"""
CLASS = """<DataField name="y" optype="categorical" dataType="string">
<Value value="no"/><Value value="yes"/></DataField>"""


def document(model: str, fields: str = X + Y, before: str = "", version: str = "4.4") -> bytes:
    return (
        f'<PMML version="{version}"><Header/><DataDictionary>{fields}</DataDictionary>'
        f"{before}{model}</PMML>"
    ).encode()


def schema(*names: str, target: str = "y", **treatments: str) -> str:
    settings = "".join(f' {key}="{value}"' for key, value in treatments.items())
    active = "".join(f'<MiningField name="{name}"{settings}/>' for name in names)
    return f'<MiningSchema>{active}<MiningField name="{target}" usageType="target"/></MiningSchema>'


def run(source: bytes, **columns: Any) -> dict[str, Any]:
    """The outputs of the imported model in onnxruntime, as lists."""
    model = sx.from_pmml(source)
    session = onnxruntime.InferenceSession(
        model.proto().SerializeToString(), providers=["CPUExecutionProvider"]
    )
    feeds = {}
    for value in session.get_inputs():
        cells = columns[value.name]
        is_text = "string" in value.type
        feeds[value.name] = np.array(cells, dtype=object if is_text else np.float64)
    names = [value.name for value in session.get_outputs()]
    return {name: list(out) for name, out in zip(names, session.run(None, feeds), strict=True)}


def same(actual: list[Any], expected: list[Any]) -> None:
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected, strict=True):
        if isinstance(b, str):
            assert a == b
        else:
            assert (math.isnan(a) and math.isnan(b)) or a == pytest.approx(b, rel=1e-13, abs=1e-300)


def regression(
    table: str, fields: str = X + Y, names: tuple[str, ...] = ("x",), **at: str
) -> bytes:
    settings = "".join(f' {key}="{value}"' for key, value in at.items())
    return document(
        f'<RegressionModel functionName="regression"{settings}>{schema(*names)}{table}'
        "</RegressionModel>",
        fields,
    )


def test_a_linear_regression() -> None:
    source = regression(
        '<RegressionTable intercept="1"><NumericPredictor name="x" coefficient="2"/>'
        '<NumericPredictor name="x" exponent="2" coefficient="0.5"/>'
        '<CategoricalPredictor name="s" value="b" coefficient="10"/></RegressionTable>',
        X + S + Y,
        ("x", "s"),
    )
    out = run(source, x=[0.0, 2.0, NAN, 2.0], s=["b", "a", "a", ""])
    same(out["y"], [11.0, 7.0, NAN, 7.0])


def test_a_value_that_is_not_declared_gives_no_result() -> None:
    table = '<RegressionTable intercept="1"><NumericPredictor name="x" coefficient="2"/>'
    used = '<CategoricalPredictor name="s" value="b" coefficient="5"/>'
    source = regression(table + used + "</RegressionTable>", X + S + Y, ("x", "s"))
    same(run(source, x=[1.0, 1.0], s=["a", "zebra"])["y"], [3.0, NAN])
    # Evaluators judge the fields that they come across: one that nothing uses is not judged.
    source = regression(table + "</RegressionTable>", X + S + Y, ("x", "s"))
    same(run(source, x=[1.0, 1.0], s=["a", "zebra"])["y"], [3.0, 3.0])


SEGMENT = """<Segment id="{id}">{predicate}<RegressionModel functionName="regression">{schema}
<RegressionTable intercept="{value}"/></RegressionModel></Segment>"""
NEGATIVE = '<SimplePredicate field="x" operator="lessThan" value="0"/>'


@pytest.mark.parametrize("method", ["selectFirst", "modelChain"])
def test_targets_are_for_rows_in_which_no_segment_has_a_result(method) -> None:
    """As JPMML does it: 3.77 times 10, rounded, where no segment takes part."""
    targets = (
        '<Targets><Target field="y" castInteger="round" rescaleFactor="10">'
        '<TargetValue defaultValue="3.77"/></Target></Targets>'
    )
    segment = SEGMENT.format(id="a", predicate=NEGATIVE, schema=schema("x"), value=1.26)
    source = document(
        f'<MiningModel functionName="regression">{schema("x")}{targets}<Segmentation '
        f'multipleModelMethod="{method}">{segment}</Segmentation></MiningModel>'
    )
    same(run(source, x=[-1.0, 1.0, NAN])["y"], [1.26, 38.0, 38.0])


def test_a_chain_has_no_result_where_its_segments_take_no_part() -> None:
    segments = SEGMENT.format(id="a", predicate=NEGATIVE, schema=schema("x"), value=1)
    source = document(
        f'<MiningModel functionName="regression">{schema("x")}<Segmentation '
        f'multipleModelMethod="modelChain">{segments}</Segmentation></MiningModel>'
    )
    same(run(source, x=[-1.0, 1.0, NAN])["y"], [1.0, NAN, NAN])


@pytest.mark.parametrize(
    "table",
    [
        '<Discretize field="x"><DiscretizeBin binValue="4"><Interval closure="openOpen" '
        'rightMargin="0"/></DiscretizeBin><DiscretizeBin binValue="2.5"><Interval '
        'closure="closedOpen" leftMargin="0"/></DiscretizeBin></Discretize>',
        '<MapValues outputColumn="out"><FieldColumnPair field="x" column="in"/><InlineTable>'
        "<row><in>-1</in><out>4</out></row><row><in>1</in><out>2.5</out></row></InlineTable>"
        "</MapValues>",
    ],
)
def test_numbers_of_a_table_inside_an_expression_are_numbers(table) -> None:
    derived = (
        '<TransformationDictionary><DerivedField name="d" optype="continuous" dataType="double">'
        f'<Apply function="*">{table}<Constant>2</Constant></Apply></DerivedField>'
        "</TransformationDictionary>"
    )
    model = (
        f'<RegressionModel functionName="regression">{schema("x")}<RegressionTable intercept="0">'
        '<NumericPredictor name="d" coefficient="1"/></RegressionTable></RegressionModel>'
    )
    same(run(document(model, before=derived), x=[-1.0, 1.0])["y"], [8.0, 5.0])


TREE = """<TreeModel functionName="classification" missingValueStrategy="{missing}"
noTrueChildStrategy="{no_true}">{schema}
<Output><OutputField name="p" feature="probability" value="yes"/>
<OutputField name="node" feature="entityId"/></Output>
<Node id="0" score="no" defaultChild="2"><True/>
<ScoreDistribution value="no" recordCount="6"/><ScoreDistribution value="yes" recordCount="4"/>
<Node id="1" score="no"><SimplePredicate field="x" operator="lessThan" value="1"/>
<ScoreDistribution value="no" recordCount="3"/><ScoreDistribution value="yes" recordCount="1"/>
</Node>
<Node id="2" score="yes"><SimpleSetPredicate field="s" booleanOperator="isIn">
<Array type="string">a "b"</Array></SimpleSetPredicate>
<ScoreDistribution value="no" recordCount="1"/><ScoreDistribution value="yes" recordCount="3"/>
</Node></Node></TreeModel>"""


@pytest.mark.parametrize(
    ("missing", "no_true", "labels", "nodes"),
    [
        ("none", "returnNullPrediction", ["no", "yes", "", "yes", ""], ["1", "2", "", "2", ""]),
        ("none", "returnLastPrediction", ["no", "yes", "no", "yes", "no"], list("12020")),
        ("lastPrediction", "returnNullPrediction", ["no", "yes", "", "no", "no"],
         ["1", "2", "", "0", "0"]),
        ("nullPrediction", "returnLastPrediction", ["no", "yes", "no", "", ""],
         ["1", "2", "0", "", ""]),
        ("defaultChild", "returnNullPrediction", ["no", "yes", "", "yes", "yes"],
         ["1", "2", "", "2", "2"]),
    ],
)  # fmt: skip
def test_strategies_of_trees(
    missing: str, no_true: str, labels: list[str], nodes: list[str]
) -> None:
    model = TREE.format(missing=missing, no_true=no_true, schema=schema("x", "s"))
    out = run(
        document(model, X + S + CLASS),
        x=[0.0, 2.0, 2.0, NAN, 2.0],
        s=["c", "b", "c", "a", ""],
    )
    assert out["y"] == labels
    assert out["node"] == nodes
    by_node = {"0": 0.4, "1": 0.25, "2": 0.75, "": NAN}
    same(out["p"], [by_node[n] for n in nodes])


def test_stages_are_marked() -> None:
    source = document(
        f"""<RegressionModel functionName="regression">{schema("x")}
        <LocalTransformations><DerivedField name="z" optype="continuous" dataType="double">
        <Apply function="ln"><FieldRef field="x"/></Apply></DerivedField></LocalTransformations>
        <RegressionTable intercept="0"><NumericPredictor name="z" coefficient="3"/>
        </RegressionTable></RegressionModel>"""
    )
    stages = {n.op_type: n.metadata_props["stage"] for n in sx.from_pmml(source).graph}
    assert stages["Log"] == "preprocessing"
    assert stages["MatMul"] == "model"
    same(run(source, x=[math.e, 1.0])["y"], [3.0, 0.0])


# -- hostile documents ----------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        b'<!DOCTYPE PMML [<!ENTITY a "b">]><PMML version="4.4">&a;</PMML>',
        b'<!DOCTYPE PMML [<!ENTITY a SYSTEM "file:///etc/passwd">]><PMML>&a;</PMML>',
        b'<!DOCTYPE PMML [<!ENTITY % a SYSTEM "http://localhost/a">%a;]><PMML/>',
        b"<PMML",
        b"",
        b"<html/>",
        b"\x00\x01",
    ],
)
def test_hostile_xml_is_refused(source: bytes) -> None:
    with pytest.raises(ModelError):
        sx.from_pmml(source)


def test_an_entity_of_a_description_elsewhere_is_refused() -> None:
    """A parser that does not read the description leaves it out: here, digits of a number."""
    elsewhere = b'<!DOCTYPE PMML SYSTEM "http://localhost/pmml.dtd">'
    model = f"""<RegressionModel functionName="regression">{schema("x")}
    <Output><OutputField name="o" feature="transformedValue" dataType="double" optype="continuous">
    <Constant dataType="double">1&zeros;</Constant></OutputField></Output>
    <RegressionTable intercept="0"/></RegressionModel>"""
    fields = """<DataField name="x" optype="continuous" dataType="double"/>
    <DataField name="y" optype="continuous" dataType="double"/>"""
    text = document(model, fields)
    sx.from_pmml(elsewhere + text.replace(b"&zeros;", b"00"))
    with pytest.raises(ModelError, match="zeros"):
        sx.from_pmml(elsewhere + text)


def test_depth_and_size_are_bounded() -> None:
    with pytest.raises(LimitExceeded):
        sx.from_pmml(b"<PMML>" + b"<a>" * 5000 + b"</a>" * 5000 + b"</PMML>")
    with pytest.raises(LimitExceeded):
        sx.from_pmml(b"<PMML>" + b" " * 100 + b"</PMML>", limits=sx.Limits(file_bytes=50))


def test_refusals_come_all_at_once_with_lines() -> None:
    source = document(
        f"""<RegressionModel functionName="regression">{schema("x")}
<Output><OutputField name="a" feature="standardError"/>
<OutputField name="b" feature="transformedValue"><Lag field="x"/></OutputField></Output>
<RegressionTable intercept="0"/></RegressionModel>"""
    )
    with pytest.raises(ImportRefused) as error:
        sx.from_pmml(source)
    assert [row[:2] for row in error.value.where] == [["line 2", "OutputField"], ["line 3", "Lag"]]


@pytest.mark.parametrize(
    "tag", ["AssociationModel", "TimeSeriesModel", "SequenceModel", "TextModel"]
)
def test_models_of_other_data_are_refused(tag: str) -> None:
    with pytest.raises(ImportRefused, match=tag):
        sx.from_pmml(document(f'<{tag} functionName="regression"><MiningSchema/></{tag}>'))


def test_a_missing_score_of_one_category_leaves_no_probability_of_the_others() -> None:
    tables = "".join(
        f'<RegressionTable intercept="0.2" targetCategory="{c}">{inner}</RegressionTable>'
        for c, inner in (
            ("a", '<NumericPredictor name="x" coefficient="0.1"/>'),
            ("b", ""),
            ("c", ""),
        )
    )
    target = '<DataField name="y" optype="categorical" dataType="string">' + "".join(
        f'<Value value="{c}"/>' for c in "abc") + "</DataField>"  # fmt: skip
    outputs = "".join(f'<OutputField name="{c}" feature="probability" value="{c}"/>' for c in "abc")
    source = document(
        f'<RegressionModel functionName="classification" normalizationMethod="none">{schema("x")}'
        f"<Output>{outputs}</Output>{tables}</RegressionModel>",
        X + target,
    )
    result = run(source, x=[1.0, NAN])
    same(result["y"], ["c", ""])
    for name, p in (("a", 0.3), ("b", 0.2), ("c", 0.5)):
        same(result[name], [p, NAN])
