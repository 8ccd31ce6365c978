"""A gated delta net around its rule: the convolution before it, and the norm behind it.

Programs take chunks of rows from the table of a forward (`recurrence.chunk_tables`), in which a *source* is a row
of the forward or, below 0, an entry of the tails that the pool keeps.
"""

import triton
import triton.language as tl


@triton.jit
def _load_sources(inputs, tails, source, column, mask, WIDTH: tl.constexpr, CHANNELS: tl.constexpr):
    """Load columns of sources, [N, BLOCK], in the model's dtype."""
    at = source.to(tl.int64)
    begin = tl.where(at >= 0, inputs + at * WIDTH, tails + (-1 - at) * CHANNELS)
    return tl.load(begin[:, None] + column[None, :], mask=mask, other=0.0)


@triton.jit
def convolve(
    inputs, weight, tails, table, out, eps, query_scale,
    HEADER: tl.constexpr, CHUNK_FIELDS: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr, TAPS: tl.constexpr,
    KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Convolve queries, keys and values, with silu behind it. Queries and keys become of unit length. Grid: any.

    In: inputs [T, WIDTH]; weight [TAPS, CHANNELS]; tails [slots, TAPS - 1, CHANNELS]. Out: [T, CHANNELS], queries
    times query_scale.
    """
    heads: tl.constexpr = 2 * KEY_HEADS + VALUE_HEADS
    channels: tl.constexpr = 2 * KEY_HEADS * KEYS + VALUE_HEADS * VALUES
    parts: tl.constexpr = CHUNK // ROWS
    for task in range(tl.program_id(0), tl.load(table) * heads * parts, tl.num_programs(0)):
        fields = table + HEADER + task // (heads * parts) * CHUNK_FIELDS
        first, end = tl.load(fields), tl.load(fields + 1)
        n = task // heads % parts * ROWS + tl.arange(0, ROWS)
        head = task % heads
        is_value = head >= 2 * KEY_HEADS
        values_before = tl.maximum(head - 2 * KEY_HEADS, 0)
        column = tl.minimum(head, 2 * KEY_HEADS) * KEYS + values_before * VALUES + tl.arange(0, BLOCK)
        inside = tl.arange(0, BLOCK) < tl.where(is_value, VALUES, KEYS)
        valid = first + n < end
        mask = valid[:, None] & inside[None, :]
        total = tl.zeros((ROWS, BLOCK), tl.float32)
        for tap in tl.static_range(TAPS):
            seen = n - (TAPS - 1 - tap)
            before = tl.load(fields + 3 + TAPS - 1 + seen, mask=valid & (seen < 0), other=0)
            source = tl.where(seen >= 0, first + seen, before)
            x = _load_sources(inputs, tails, source, column, mask, WIDTH, channels)
            factor = tl.load(weight + tap * channels + column, mask=inside, other=0.0)
            total += x.to(tl.float32) * factor.to(tl.float32)[None, :]
        total = (total * tl.sigmoid(total)).to(out.dtype.element_ty).to(tl.float32)
        scale = tl.rsqrt(tl.sum(total * total, axis=1) + eps) * tl.where(head < KEY_HEADS, query_scale, 1.0)
        total *= tl.where(is_value, 1.0, scale)[:, None]
        row = (first + n).to(tl.int64)
        to = out + row[:, None] * channels + column[None, :]
        tl.store(to, total.to(out.dtype.element_ty), mask=mask)


@triton.jit
def keep_tails(
    inputs, tails, table,
    HEADER: tl.constexpr, CHUNK_FIELDS: tl.constexpr, CHAIN_FIELDS: tl.constexpr, TAPS: tl.constexpr,
    TAPS_BLOCK: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Keep what the convolution of later tokens reads of the forward's, with each state in the pool. Grid: any."""
    blocks: tl.constexpr = (CHANNELS + BLOCK - 1) // BLOCK
    chains = tl.load(table + 1) + tl.load(table + 2)
    kept = table + HEADER + tl.load(table) * CHUNK_FIELDS + chains * CHAIN_FIELDS
    place = tl.arange(0, TAPS_BLOCK)
    for task in range(tl.program_id(0), tl.load(table + 3) * blocks, tl.num_programs(0)):
        fields = kept + task // blocks * TAPS
        column = task % blocks * BLOCK + tl.arange(0, BLOCK)
        is_tap = place < TAPS - 1
        mask = is_tap[:, None] & (column < CHANNELS)[None, :]
        source = tl.load(fields + 1 + place, mask=is_tap, other=0)
        x = _load_sources(inputs, tails, source, column, mask, WIDTH, CHANNELS)
        # A sequence of few new tokens keeps some of the tail that it begins with, in another place.
        tl.debug_barrier()
        slot = tl.load(fields).to(tl.int64) * (TAPS - 1) + place
        tl.store(tails + slot[:, None] * CHANNELS + column[None, :], x, mask=mask)


@triton.jit
def gated_norm(
    x, inputs, weight, table, eps,
    HEADS: tl.constexpr, VALUES: tl.constexpr, CHANNELS: tl.constexpr, WIDTH: tl.constexpr,
    HEAD_BLOCK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Normalise each head of x, [T, HEADS, VALUES], in place, times silu of its gates. Grid: (T,).

    Padding becomes zero, since nothing has written it.
    """
    row = tl.program_id(0).to(tl.int64)
    head, value = tl.arange(0, HEAD_BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    inside = (head < HEADS) & (value < VALUES)
    real = (head < HEADS) & (value < tl.where(row < tl.load(table + 4), VALUES, 0))
    at = head * VALUES + value
    found = tl.load(x + row * HEADS * VALUES + at, mask=real, other=0.0).to(tl.float32)
    gate = tl.load(inputs + row * WIDTH + CHANNELS + at, mask=real, other=0.0).to(tl.float32)
    factor = tl.load(weight + value, mask=value < VALUES, other=0.0)
    found *= tl.rsqrt(tl.sum(found * found, axis=1) / VALUES + eps)[:, None]
    found = found * factor * gate * tl.sigmoid(gate)
    tl.store(x + row * HEADS * VALUES + at, found.to(x.dtype.element_ty), mask=inside)
