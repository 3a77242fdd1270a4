"""pandas: a function from frame to frame becomes an ONNX model.

recorder.py   steps, refusals with the user's line, what was frozen · column.py, frame.py   proxies
namespace.py  what the function sees instead of pandas and NumPy · source.py   comprehensions, dicts
tables.py     dicts, series and frames that a value of a row is a key of
rules/        one module per family, rules named after pandas' own methods
emission.py   columns as tensors · lookup.py   tables · characters.py, regex.py, search.py   strings
convert.py    `from_pandas` · proof.py   the graph against pandas · preparation.py   trying it out
"""

from __future__ import annotations

from sardonyx.importers.pandas.convert import from_pandas

__all__ = ["from_pandas"]
