"""`Predictor`: a model as a function of batches that travels between processes.

Ray's `map_batches`, Spark's `predict_batch_udf` and `mapInPandas`, and Dask send a function to
their workers and call it there with batches of arrays, data frames or Arrow tables.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from sardonyx import frames
from sardonyx.errors import DataError, quote
from sardonyx.lower.program import element_type
from sardonyx.lower.xp import is_string
from sardonyx.model import Model, ModelSource, load
from sardonyx.train.evaluation import Place

_RUNNERS: dict[str, Any] = {}  # of this process: copies of one predictor share a session


class Predictor:
    """A model as a picklable function of batches; each process opens one session.

    It takes arrays in the order of the model's inputs, or by name in a mapping, a data frame of
    pandas or a table of Arrow, and gives the outputs in the same form: a mapping of arrays, or a
    frame or table with a column for each output. Columns of a frame that are not called like an
    input are, in their order, the features of a model with a single matrix as its input; a model
    with a schema of columns, such as that of `from_pandas`, takes and gives frames by it.

    model  -- a model, or a path
    engine, device -- as in `predict`

    >>> import numpy as np, sardonyx as sx
    >>> predictor = sx.Predictor("model.onnx")
    >>> predictor({"x": np.zeros((2, 8), np.float32)})["scores"].shape
    (2, 3)
    """

    def __init__(
        self, model: ModelSource, *, engine: str = "onnxruntime", device: str | None = None
    ):
        self.place = Place(engine, device)
        served = load(model).copy()
        served.records = []
        self.data = served.proto().SerializeToString()
        digest = hashlib.sha256(self.data).hexdigest()
        self.key = f"{digest} {engine} {device}"
        self._describe(served)

    def _describe(self, model: Model) -> None:
        self.inputs = {v.name or "": element_type(v) for v in model.inputs}
        self.ranks = {v.name or "": None if v.shape is None else len(v.shape) for v in model.inputs}
        self.outputs = [v.name or "" for v in model.outputs]
        self.schema = frames.schema(model.metadata) if frames.KEY in model.metadata else None

    @property
    def _runner(self) -> Any:
        if self.key not in _RUNNERS:
            import onnx

            model = load(onnx.load_from_string(self.data))
            _RUNNERS[self.key] = self.place.runner(model)
        return _RUNNERS[self.key]

    def __call__(self, *batch: Any) -> Any:
        """The outputs for one batch, in the form of the batch."""
        (first, *others) = batch or (None,)
        if not others and _is_frame(first) and self.schema is not None:
            outputs = self._runner(frames.feeds(self.schema, first))
            result = frames.frame(self.schema, outputs)
            return result.set_axis(first.index)
        if not others and _is_frame(first):
            return _frame(self._run(self._columns(first, list(first.columns))), first.index)
        if not others and _is_arrow(first):
            columns = {n: first.column(n).to_numpy(zero_copy_only=False) for n in _names(first)}
            return _arrow(self._run(self._columns(columns, list(columns))), first)
        if not others and isinstance(first, Mapping):
            return self._run(self._columns(first, list(first)))
        if len(batch) != len(self.inputs):
            raise DataError(f"the model takes {len(self.inputs)} inputs, not {len(batch)}")
        return self._run(dict(zip(self.inputs, map(np.asarray, batch), strict=True)))

    def map(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The outputs of each batch in turn: what Spark's `mapInPandas` takes."""
        return (self(batch) for batch in batches)

    def _columns(self, columns: Any, names: list[str]) -> dict[str, np.ndarray]:
        """The inputs of the model, from columns by name."""
        missing = [n for n in self.inputs if n not in names]
        if not missing:
            return {n: _stacked(columns[n]) for n in self.inputs}
        (only, *more) = self.inputs
        if more or self.ranks[only] != 2:
            rows = [[quote(n), "is missing"] for n in missing]
            raise DataError("the batch lacks inputs of the model", rows, f"it has {names}")
        return {only: np.column_stack([_stacked(columns[n]) for n in names])}

    def _run(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        feeds = {n: _typed(array, self.inputs[n], n) for n, array in arrays.items()}
        outputs = self._runner(feeds)
        return {name: np.asarray(outputs[name]) for name in self.outputs}


def _typed(array: np.ndarray, dtype: np.dtype | None, name: str) -> np.ndarray:
    """An array in the type of an input; numbers are cast where that keeps their kind."""
    if dtype is None or is_string(dtype) or array.dtype == dtype:
        return array
    whole = array.dtype.kind in "iub" and dtype.kind in "iuf"
    if not whole and not np.can_cast(array.dtype, dtype, "same_kind"):
        raise DataError(f"input {quote(name)} takes {dtype}, and the batch has {array.dtype}")
    return array.astype(dtype)


def _stacked(column: Any) -> np.ndarray:
    """A column as an array; cells that hold lists or arrays become its further axes."""
    array = np.asarray(column)
    if array.dtype == object and len(array) and isinstance(array[0], (list, tuple, np.ndarray)):
        return np.stack([np.asarray(cell) for cell in array])
    return array


# -- forms of batches -----------------------------------------------------------------------------


def _is_frame(value: Any) -> bool:
    return _package(value) == "pandas" and hasattr(value, "columns")


def _is_arrow(value: Any) -> bool:
    return _package(value) == "pyarrow" and hasattr(value, "schema")


def _package(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


def _names(table: Any) -> list[str]:
    return list(table.schema.names)


def _cells(array: np.ndarray) -> Any:
    """An output as a column: numbers, or a list for each row."""
    if array.ndim == 2 and array.shape[1] == 1:
        return array[:, 0]
    return array if array.ndim == 1 else [row.tolist() for row in array]


def _frame(outputs: Mapping[str, np.ndarray], index: Any) -> Any:
    import pandas

    return pandas.DataFrame({n: _cells(a) for n, a in outputs.items()}, index=index)


def _arrow(outputs: Mapping[str, np.ndarray], batch: Any) -> Any:
    import pyarrow

    columns = {n: pyarrow.array(_cells(a)) for n, a in outputs.items()}
    is_batch = isinstance(batch, pyarrow.RecordBatch)
    return (pyarrow.RecordBatch.from_pydict if is_batch else pyarrow.table)(columns)
