"""Tensors that share the memory of a model's weights, copied only when they are written to.

External data is mapped anew for each conversion, copy-on-write: pages that training changes belong
to the module alone. A tensor is mapped where torch has its type and its address is a multiple of
the element's size; otherwise it is copied.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from sardonyx.engines.torch.xp import DTYPES, Torch, torch
from sardonyx.external import Private
from sardonyx.lower.xp import BFLOAT16


class Memory:
    """Allocates the tensors of one conversion.

    share -- None: tensors in external data are mapped, others are copied;
             True: others share the model's arrays, which then change with the module;
             False: all are copied
    """

    def __init__(self, share: bool | None):
        self.share = share
        self._private = Private()

    def tensor(self, array: np.ndarray) -> Any:
        """A trainable tensor."""
        mapped = None if self.share is False else self._private.array(array)
        if mapped is None and self.share:
            mapped = array
        view = None if mapped is None else over(mapped)
        return Torch().asarray(array) if view is None else view

    def constant(self, array: np.ndarray) -> Any | None:
        """A tensor over mapped memory; None for an array that is not mapped."""
        mapped = None if self.share is False else self._private.array(array)
        return None if mapped is None else over(mapped)


def over(array: np.ndarray) -> Any | None:
    """A tensor that shares the array's memory; None where torch cannot."""
    if array.dtype not in DTYPES or not array.flags.aligned:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # read-only memory, which `share=True` asks for
        if array.dtype == BFLOAT16:
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)


class Sharing(Torch):
    """The namespace of a program whose mapped constants are not copied."""

    def __init__(self, memory: Memory):
        super().__init__("cpu")
        self.memory = memory

    def asarray(self, array, dtype=None):
        mapped = None
        if dtype is None and isinstance(array, np.ndarray):
            mapped = self.memory.constant(array)
        return super().asarray(array, dtype) if mapped is None else mapped
