"""Free sizes of a model's inputs that depend on each other.

Keras declares every free size as None. Two of them may have to be equal (the length of a sequence
and of its mask), and one may have to be a multiple of a number (a U-Net that halves images four
times). JAX needs to know; the model says so by what it accepts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

from sardonyx.importers.keras.names import BATCH

Sizes = list[list[int | str]]
USUAL, OTHER, ROWS = 256, 448, 2  # sizes to try with: multiples of 64
FACTORS = (1, 2, 4, 8, 16, 32, 64)
MOST = 6  # free sizes: beyond, the combinations are too many


def settled(shapes: Sequence[Sequence[int | str]], works: Callable[..., bool]) -> Sizes:
    """Shapes in which sizes that depend on each other have one name, or a factor.

    works -- whether the model takes inputs of these shapes, all of them numbers
    """
    symbols = dict.fromkeys(d for shape in shapes for d in shape if isinstance(d, str))
    free = [s for s in symbols if s != BATCH]

    def accepts(**sizes: int) -> bool:
        numbers = {**dict.fromkeys(free, USUAL), BATCH: ROWS, **sizes}
        return works([[numbers[d] if isinstance(d, str) else d for d in s] for s in shapes])

    unchanged = [list(shape) for shape in shapes]
    if not free or len(free) > MOST or not accepts():
        return unchanged
    names: dict[str, str] = {}
    for group in _groups(free, accepts):
        factors = (f for f in FACTORS if accepts(**dict.fromkeys(group, USUAL + f)))
        factor = next(factors, 1)
        name = group[0] if factor == 1 else f"{factor}*{group[0]}"
        names |= dict.fromkeys(group, name)
    return [[names.get(d, d) if isinstance(d, str) else d for d in shape] for shape in shapes]


def _groups(free: Sequence[str], accepts: Callable[..., bool]) -> Iterator[tuple[str, ...]]:
    """The smallest groups of sizes that change together, each size in one of them."""
    rest = list(free)
    while rest:
        first, *others = rest
        group = next(
            (
                (first, *more)
                for count in range(len(others) + 1)
                for more in combinations(others, count)
                if accepts(**dict.fromkeys((first, *more), OTHER))
            ),
            tuple(rest),
        )
        rest = [s for s in rest if s not in group]
        yield group
