"""PMML: `from_pmml` turns a PMML document of version 3.0 to 4.4 into an ONNX model in double.

document.py     hostile XML, as elements that know their line · refusal.py   what cannot be done
driver.py       the document as a whole · scope.py   which column a field name means
graph.py        columns, text as codes, three-valued truth · literals.py   constants
fields.py       DataDictionary, MiningSchema · dates.py   dates and times
expressions.py, functions.py, texts.py, predicates.py   transformations
results.py      what a model gives · targets.py, outputs.py   Targets, Output
then one file for each model element
"""

from __future__ import annotations

from pathlib import Path

from sardonyx.collector import paused
from sardonyx.errors import translated
from sardonyx.limits import Limits
from sardonyx.model import Model

__all__ = ["from_pmml"]


def from_pmml(source: str | Path | bytes, *, limits: Limits | None = None) -> Model:
    """The ONNX model of a PMML document (3.0 to 4.4), which computes in double precision.

    source  -- the file, or its bytes
    limits  -- what an untrusted file may cost

    One input for each active field: float64, where NaN is missing, or string, where "" is. One
    output for each target and OutputField.

    >>> import sardonyx as sx
    >>> model = sx.from_pmml(b'''<PMML version="4.4"><DataDictionary>
    ...   <DataField name="x" optype="continuous" dataType="double"/>
    ...   <DataField name="y" optype="continuous" dataType="double"/></DataDictionary>
    ...   <RegressionModel functionName="regression"><MiningSchema>
    ...     <MiningField name="x"/><MiningField name="y" usageType="target"/></MiningSchema>
    ...     <RegressionTable intercept="1"><NumericPredictor name="x" coefficient="2"/>
    ...     </RegressionTable></RegressionModel></PMML>''')
    >>> [value.name for value in model.inputs + model.outputs]
    ['x', 'y']
    """
    from .document import read
    from .driver import translate

    limits = limits or Limits()
    with paused(), translated("the PMML document is malformed"):
        return translate(read(source, limits), limits)
