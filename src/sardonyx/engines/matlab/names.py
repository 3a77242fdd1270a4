"""Identifiers that MATLAB takes: at most 63 characters, unique, and the names of no functions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

LONGEST = 63
# Words of the language, and functions and constants of MATLAB and Octave that a name would hide.
RESERVED = frozenset(Path(__file__).with_name("reserved.txt").read_text(encoding="utf-8").split())


class Names:
    """Names of one place: each is given once."""

    def __init__(self, taken: Iterable[str] = ()):
        self.taken = set(taken)

    def fresh(self, text: str, other: str = "value") -> str:
        """A new identifier that resembles `text`."""
        base = identifier(text, other)
        name, number = base, 1
        while name.lower() in self.taken or name in self.taken:
            number += 1
            name = f"{base[: LONGEST - len(str(number)) - 1]}_{number}"
        self.taken |= {name, name.lower()}  # files of some systems do not tell cases apart
        return name


def identifier(text: str, other: str = "value") -> str:
    """An identifier that resembles `text` and is the name of no function.

    >>> identifier("/layers/0/fc/Gemm_output_0"), identifier("sum"), identifier("0.weight")
    ('layers_0_fc_Gemm', 'sum_', 'value_0_weight')
    """
    text = re.sub(r"_output_0$", "", text)
    name = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_")
    if len(name) > LONGEST - 3:
        name = name[-(LONGEST - 3) :].lstrip("_0123456789")
    name = re.sub(r"^(onnx_)+", "", name) or other  # the beginning of the library's functions
    if not name[0].isalpha():
        name = f"{other}_{name}"
    return f"{name}_" if name in RESERVED else name
