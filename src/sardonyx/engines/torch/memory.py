"""Tensors over the memory in which a model has its weights: nothing is copied before it is written.

External data is mapped once more for each conversion, so that what is written stays with the
module: page by page, the system copies what changes. Whether that is so for a tensor depends on its
type (torch must have it) and its address (a multiple of the element's size); else it is copied.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from sardonyx.engines.torch.xp import DTYPES, Torch, torch
from sardonyx.external import Private
from sardonyx.lower.xp import BFLOAT16


class Memory:
    """Where the tensors of one conversion lie.

    share -- None: in the file, where the model has them there, else in memory of their own;
             True: in the model's own arrays as well, which then change with the module;
             False: always in memory of their own
    """

    def __init__(self, share: bool | None):
        self.share = share
        self._private = Private()

    def tensor(self, array: np.ndarray) -> Any:
        """A tensor to train."""
        held = None if self.share is False else self._private.array(array)
        if held is None and self.share:
            held = array
        found = None if held is None else over(held)
        return Torch().asarray(array) if found is None else found

    def constant(self, array: np.ndarray) -> Any | None:
        """A tensor over mapped memory; None for an array that is not mapped."""
        held = None if self.share is False else self._private.array(array)
        return None if held is None else over(held)


def over(array: np.ndarray) -> Any | None:
    """A tensor that is the array's memory; None where torch cannot have it."""
    if array.dtype not in DTYPES or not array.flags.aligned:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # memory that is only to be read: `share=True` says so
        if array.dtype == BFLOAT16:
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)


class Sharing(Torch):
    """The namespace of a program whose mapped constants stay where they are."""

    def __init__(self, memory: Memory):
        super().__init__("cpu")
        self.memory = memory

    def asarray(self, array, dtype=None):
        found = None
        if dtype is None and isinstance(array, np.ndarray):
            found = self.memory.constant(array)
        return super().asarray(array, dtype) if found is None else found
