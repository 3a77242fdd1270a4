"""RotaryEmbedding: pairs of elements turned by an angle that grows with the position."""

from __future__ import annotations

from sardonyx.lower.driver import lowering
from sardonyx.lower.nn.attention import heads, merged


@lowering("RotaryEmbedding")
def rotary_embedding(
    xp, x, cos_cache, sin_cache, position_ids=None, *, interleaved, num_heads, rotary_embedding_dim
):
    split = heads(xp, x, num_heads)
    size = xp.shape(split)[3]
    turned = rotary_embedding_dim or size
    whole = isinstance(size, int) and turned == size
    part = split if whole else xp.index(split, 3, 0, turned)
    # Angles are (batch, length, pairs), or (positions, pairs) to choose from; heads share them.
    cos, sin = (
        xp.expand_dims(c if position_ids is None else xp.take(c, position_ids, 0), (1,))
        for c in (cos_cache, sin_cache)
    )
    if interleaved:
        first, second = (xp.index(part, 3, i, None, 2) for i in (0, 1))
    else:
        first, second = xp.index(part, 3, 0, turned // 2), xp.index(part, 3, turned // 2, None)
    pair = [cos * first - sin * second, sin * first + cos * second]
    if interleaved:
        y = xp.reshape(xp.stack(pair, 4), xp.shape(part))
    else:
        y = xp.concat(pair, 3)
    if not whole:
        y = xp.concat([y, xp.index(split, 3, turned, None)], 3)
    return y if xp.rank(x) == 4 else merged(xp, y)
