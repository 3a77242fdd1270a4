"""Parts of PMML documents for `tests.sweeps.pmml_documents`: fields, schemas, a linear model."""

from __future__ import annotations

VALUES = "".join(f'<Value value="{v}"/>' for v in "abc")
CLASSES = "".join(f'<Value value="{v}"/>' for v in ("low", "mid", "high"))
Z = '<DataField name="z" optype="continuous" dataType="double"/>'
PLAIN = f"""<DataField name="x" optype="continuous" dataType="double"/>{Z}
<DataField name="i" optype="continuous" dataType="integer"/>
<DataField name="s" optype="categorical" dataType="string">{VALUES}</DataField>"""
NUMBER = '<DataField name="y" optype="continuous" dataType="double"/>'
CLASS = f'<DataField name="y" optype="categorical" dataType="string">{CLASSES}</DataField>'
TARGET = '<MiningField name="y" usageType="target"/>'
ACTIVE = "".join(
    f'<MiningField name="{n}" invalidValueTreatment="asMissing"/>' for n in ("x", "z", "i", "s")
)
SCHEMA = f"<MiningSchema>{ACTIVE}{TARGET}</MiningSchema>"
PROBABILITIES = "".join(
    f'<OutputField name="p_{c}" optype="continuous" dataType="double" feature="probability" '
    f'value="{c}"/>'
    for c in ("low", "mid", "high")
)


def pmml(model: str, target: str = NUMBER, fields: str = PLAIN, before: str = "") -> str:
    return (
        '<PMML version="4.4" xmlns="http://www.dmg.org/PMML-4_4"><Header/><DataDictionary>'
        f"{fields}{target}</DataDictionary>{before}{model}</PMML>"
    )


def line(name: str, schema: str = SCHEMA, extra: str = "") -> str:
    return f"""<RegressionModel functionName="regression"><MiningSchema>{schema}</MiningSchema>
{extra}<RegressionTable intercept="1"><NumericPredictor name="{name}" coefficient="2"/>
</RegressionTable></RegressionModel>""".replace("<MiningSchema><MiningSchema>", "<MiningSchema>"
    ).replace("</MiningSchema></MiningSchema>", "</MiningSchema>")  # fmt: skip
