"""Free sizes of a model's inputs that depend on each other.

Keras declares every free size as None. Two of them may have to be equal (the length of a sequence
and of its mask), and one may have to be a multiple of a number (a U-Net that halves images four
times). One may have to stay below a number (a table of 512 positions). JAX needs to know; the model
says so by what it accepts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

from sardonyx.importers.keras.names import BATCH

Sizes = list[list[int | str]]
ROWS = 2
PAIRS = ((256, 448), (128, 64), (64, 32), (32, 16), (16, 8), (8, 4), (4, 2), (3, 2))
LARGEST = 1 << 15  # a size up to which a model may refuse larger ones
FACTORS = (1, 2, 4, 8, 16, 32, 64)
MOST = 6  # free sizes: beyond, the combinations are too many


def settled(shapes: Sequence[Sequence[int | str]], works: Callable[..., bool]) -> Sizes:
    """Shapes in which sizes that depend on each other have one name, or a factor.

    works -- whether the model takes inputs of these shapes, all of them numbers
    """
    free, accepts = _free(shapes, works)
    pair = _pair(free, accepts)
    if pair is None:
        return [list(shape) for shape in shapes]
    usual, other = pair
    steady = dict.fromkeys(free, usual)
    names: dict[str, str] = {}
    for group in _groups(free, other, lambda **sizes: accepts(**steady | sizes)):
        step = 1 if other > usual else -1
        sizes = ((f, usual + step * f) for f in FACTORS if usual + step * f > 0)
        factors = (f for f, size in sizes if accepts(**steady | dict.fromkeys(group, size)))
        factor = next(factors, 1)
        name = group[0] if factor == 1 else f"{factor}*{group[0]}"
        names |= dict.fromkeys(group, name)
    return [[names.get(d, d) if isinstance(d, str) else d for d in shape] for shape in shapes]


def largest(shapes: Sequence[Sequence[int | str]], works: Callable[..., bool]) -> dict[str, int]:
    """The symbols that the model does not take at every size, with the largest that it takes.

    shapes -- as `settled` returns them
    """
    free, accepts = _free(shapes, works)
    pair = _pair(free, accepts)
    if pair is None:
        return {}
    steady = pair[0]
    factors = {name: int(name.rpartition("*")[0] or 1) for name in free}
    if accepts(**{name: LARGEST * factor for name, factor in factors.items()}):
        return {}
    limits: dict[str, int] = {}
    for name, factor in factors.items():
        low, high = max(1, steady // factor), LARGEST
        sizes = dict.fromkeys(free, steady)
        if accepts(**{**sizes, name: high * factor}):
            continue
        while high - low > 1:
            middle = (low + high) // 2
            fits = accepts(**{**sizes, name: middle * factor})
            low, high = (middle, high) if fits else (low, middle)
        limits[name.rpartition("*")[2]] = low
    return limits


def _free(
    shapes: Sequence[Sequence[int | str]], works: Callable[..., bool]
) -> tuple[list[str], Callable[..., bool]]:
    """The free sizes but for the batch, and whether the model takes some in their place."""
    symbols = dict.fromkeys(d for shape in shapes for d in shape if isinstance(d, str))

    def accepts(**sizes: int) -> bool:
        numbers = {BATCH: ROWS, **sizes}
        return works([[numbers[d] if isinstance(d, str) else d for d in s] for s in shapes])

    return [s for s in symbols if s != BATCH], accepts


def _pair(free: Sequence[str], accepts: Callable[..., bool]) -> tuple[int, int] | None:
    """Two sizes to try with, of which the model takes the first everywhere."""
    if not free or len(free) > MOST:
        return None
    return next((p for p in PAIRS if accepts(**dict.fromkeys(free, p[0]))), None)


def _groups(
    free: Sequence[str], other: int, accepts: Callable[..., bool]
) -> Iterator[tuple[str, ...]]:
    """The smallest groups of sizes that change together, each size in one of them."""
    rest = list(free)
    while rest:
        first, *others = rest
        group = next(
            (
                (first, *more)
                for count in range(len(others) + 1)
                for more in combinations(others, count)
                if accepts(**dict.fromkeys((first, *more), other))
            ),
            tuple(rest),
        )
        rest = [s for s in rest if s not in group]
        yield group
