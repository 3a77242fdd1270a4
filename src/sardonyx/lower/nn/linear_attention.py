"""LinearAttention: a matrix of state per head, written and read once per token."""

from __future__ import annotations

import numpy as np

from sardonyx.lower.driver import lowering

FLOAT32 = np.dtype(np.float32)


def tokens(xp, x, count, wide):
    """(batch, length, hidden) as (length, batch, heads, size), to go through token by token."""
    batch, length, hidden = xp.shape(x)
    apart = xp.reshape(xp.cast(x, wide), [batch, length, count, hidden // count])
    return xp.transpose(apart, (1, 0, 2, 3))


@lowering("LinearAttention")
def linear_attention(
    xp,
    query,
    key,
    value,
    past_state=None,
    decay=None,
    beta=None,
    *,
    chunk_size,
    kv_num_heads,
    q_num_heads,
    scale,
    update_rule,
    count,
):
    dtype = xp.dtype(query)
    wide = dtype if dtype.itemsize > 4 else FLOAT32
    q = tokens(xp, query, q_num_heads, wide)
    k, v = (tokens(xp, x, kv_num_heads, wide) for x in (key, value))
    length, batch, _, size = xp.shape(k)
    values = xp.shape(v)[3]
    if scale:
        factor = xp.full((), scale, wide)
    else:
        factor = 1 / xp.sqrt(xp.full((), size, wide))
    rows = [q, k, v]
    gated, corrected = decay is not None, beta is not None
    if gated:  # one factor per head, or one per row of its state
        rows.append(xp.exp(tokens(xp, decay, kv_num_heads, wide)))
    if corrected:  # one rate per head, or one for all
        rates = xp.shape(beta)[2]
        rows.append(tokens(xp, beta, rates, wide))
    if past_state is None:
        state = xp.zeros([batch, kv_num_heads, size, values], wide)
    else:
        state = xp.cast(past_state, wide)

    def step(states, row):
        (s,), (q_t, k_t, v_t, *rest) = states, row
        s = s * xp.expand_dims(rest[0], (3,)) if gated else s
        if corrected:
            recalled = xp.squeeze(xp.matmul(xp.expand_dims(k_t, (2,)), s), (2,))
            v_t = rest[-1] * (v_t - recalled)
        s = s + xp.expand_dims(k_t, (3,)) * xp.expand_dims(v_t, (2,))
        # Query heads that share a state are the rows of one product.
        queries = xp.reshape(q_t, [batch, kv_num_heads, q_num_heads // kv_num_heads, size])
        product = xp.reshape(xp.matmul(queries, s), [batch, q_num_heads, values])
        return (s,), (factor * product,)

    (state,), (y,) = xp.scan(step, (state,), tuple(rows), (wide,))
    y = xp.reshape(xp.transpose(y, (1, 0, 2, 3)), [batch, length, q_num_heads * values])
    state_dtype = dtype if past_state is None else xp.dtype(past_state)
    return (xp.cast(y, dtype), xp.cast(state, state_dtype))[:count]
