"""Preparation: a recorded function that can be tried out on frames at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sardonyx import frames
from sardonyx.importers.pandas.convert import from_pandas
from sardonyx.model import Model
from sardonyx.verify.subjects import OnnxSubject


class Preparation:
    """A model from pandas with an onnxruntime session: `run` takes a frame and gives a frame."""

    def __init__(self, model: Model):
        self.model = model
        self.order_dependent = frames.schema(model.metadata).order_dependent
        self._session = OnnxSubject(model)

    def run(self, frame: Any) -> Any:
        """The frame that the graph gives for the rows of another."""
        return self.model.frame(self._session(self.model.feeds(frame)))


def trace(function: Callable[[Any], Any], frame: Any, **options: Any) -> Preparation:
    """Record a function, as `from_pandas` does, for trying it out.

    >>> import pandas as pd
    >>> train = pd.DataFrame({"age": [20.0, None, 40.0]})
    >>> preparation = trace(lambda df: df.fillna(df.mean()), train)
    >>> preparation.run(pd.DataFrame({"age": [None, 1.0]}, dtype=float))["age"].tolist()
    [30.0, 1.0]
    """
    return Preparation(from_pandas(function, frame, **options))
