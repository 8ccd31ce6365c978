"""The gated delta rule over chunks of tokens; its PyTorch form is `recurrence.gated_delta_rule`.

Programs take chunks and chains of a forward from its table (`recurrence.chunk_tables`). A chunk is computed alone,
by blocks of one size: no bit of it depends on what else the forward holds.
"""

import triton
import triton.language as tl


@triton.jit
def chunk_systems(
    mixed, inputs, rates, decay_bias, table, corrections, known, weights, kept_decay,
    HEADER: tl.constexpr, CHUNK_FIELDS: tl.constexpr, CHUNK: tl.constexpr, KEY_HEADS: tl.constexpr,
    GROUP: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
    KEY_BLOCK: tl.constexpr, VALUE_BLOCK: tl.constexpr, LEVELS: tl.constexpr, NARROW: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute chunks as far as that is possible without their first states. Grid: any.

    Each key head serves GROUP value heads, H in all.
    In:
        mixed: [T, CHANNELS]: queries, keys and values of all heads.
        inputs: [T, WIDTH]: in its last columns beta and decay of all value heads.
        rates, decay_bias: float32 [H].
    Out:
        corrections: [T, H, VALUES].
        known: [T, H, KEYS]: what corrections subtract of the first state.
        weights: [T, H, CHUNK], by which queries read corrections.
        kept_decay: float32 [T, H]: the logarithm of what is left of the first state.

    Args:
        NARROW: Invert in float16, which has the precision of TF32: keys are of unit length and beta is below 1, so
            no number of a system or of its inverse exceeds 1.
    """
    tl.static_assert(CHUNK == 1 << LEVELS)
    heads: tl.constexpr = KEY_HEADS * GROUP
    solved_type: tl.constexpr = tl.float16 if NARROW else tl.float32
    n, m = tl.arange(0, CHUNK)[:, None], tl.arange(0, CHUNK)[None, :]
    key, value, row = tl.arange(0, KEY_BLOCK), tl.arange(0, VALUE_BLOCK), tl.arange(0, CHUNK)
    of_key = row[:, None] * CHANNELS + key[None, :]
    for task in range(tl.program_id(0), tl.load(table) * heads, tl.num_programs(0)):
        fields = table + HEADER + task // heads * CHUNK_FIELDS
        head = task % heads
        first = tl.load(fields).to(tl.int64)
        valid = row < tl.load(fields + 1) - first
        is_key, is_value = valid[:, None] & (key < KEYS)[None, :], valid[:, None] & (value < VALUES)[None, :]
        of_head = inputs + first * WIDTH + (WIDTH - 2 * heads) + head
        beta = tl.sigmoid(tl.load(of_head + row * WIDTH, mask=valid, other=0.0).to(tl.float32))
        beta = tl.where(valid, beta, 0.0)
        rate = tl.load(of_head + heads + row * WIDTH, mask=valid, other=0.0).to(tl.float32)
        rate += tl.load(decay_bias + head)
        rate = tl.maximum(rate, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(rate)))
        kept = tl.cumsum(tl.where(valid, tl.load(rates + head) * rate, 0.0), axis=0)
        to = first * heads + head
        tl.store(kept_decay + to + row * heads, kept, mask=valid)
        between = tl.exp(tl.where(n >= m, kept[:, None] - kept[None, :], float("-inf")))

        of_query = mixed + first * CHANNELS + head // GROUP * KEYS
        k = tl.load(of_query + KEY_HEADS * KEYS + of_key, mask=is_key, other=0.0)
        q = tl.load(of_query + of_key, mask=is_key, other=0.0)
        read = tl.dot(q, tl.trans(k), input_precision=PRECISION) * between
        at = row[:, None] * (heads * CHUNK) + m
        tl.store(weights + to * CHUNK + at, read.to(k.dtype), mask=valid[:, None])
        # The inverse of the unit lower triangular system, of blocks of twice the size in each step.
        system = tl.dot(k, tl.trans(k), input_precision=PRECISION) * between * beta[:, None]
        system = tl.where(n > m, system, 0.0).to(solved_type)
        inverse = tl.where(n == m, 1.0, tl.where((n == m + 1) & (n % 2 == 1), -system.to(tl.float32), 0.0))
        for level in tl.static_range(1, LEVELS):
            is_below = ((n >> level) == (m >> level) + 1) & ((n >> level) % 2 == 1)
            narrow = inverse.to(solved_type)
            below = tl.dot(narrow, tl.where(is_below, system, 0.0).to(solved_type), input_precision=PRECISION)
            inverse -= tl.dot(below.to(solved_type), narrow, input_precision=PRECISION)
        final = inverse.to(k.dtype)
        of_value = mixed + first * CHANNELS + 2 * KEY_HEADS * KEYS + head * VALUES
        v = tl.load(of_value + row[:, None] * CHANNELS + value[None, :], mask=is_value, other=0.0)
        v = (v * beta[:, None]).to(k.dtype)
        at = row[:, None] * (heads * VALUES) + value[None, :]
        solved = tl.dot(final, v, input_precision=PRECISION)
        tl.store(corrections + to * VALUES + at, solved.to(k.dtype), mask=is_value)
        k = tl.load(of_query + KEY_HEADS * KEYS + of_key, mask=is_key, other=0.0)
        written = (k * (beta * tl.exp(kept))[:, None]).to(k.dtype)
        at = row[:, None] * (heads * KEYS) + key[None, :]
        solved = tl.dot(final, written, input_precision=PRECISION)
        tl.store(known + to * KEYS + at, solved.to(k.dtype), mask=is_key)


@triton.jit
def chain_states(
    mixed, corrections, known, weights, kept_decay, table, pool, scratch, out,
    ITEMS: tl.constexpr, HEADER: tl.constexpr, CHUNK_FIELDS: tl.constexpr, CHAIN_FIELDS: tl.constexpr,
    CHUNK: tl.constexpr, KEY_HEADS: tl.constexpr, GROUP: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr,
    CHANNELS: tl.constexpr, KEY_BLOCK: tl.constexpr, VALUE_BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Go through the chunks of each chain, and keep the states that the table says. Grid: any.

    Under ITEMS the chains that begin with states left by others of the forward, else those others.
    In: the outputs of `chunk_systems`; pool, scratch float32 [states, H, KEYS, VALUES]: a place below -1 is in
    scratch. Out: [T, H, VALUES].
    """
    heads: tl.constexpr = KEY_HEADS * GROUP
    parts: tl.constexpr = (VALUES + VALUE_BLOCK - 1) // VALUE_BLOCK
    state_size: tl.constexpr = heads * KEYS * VALUES
    first_chain, chains = 0, tl.load(table + 1)
    if ITEMS:
        first_chain, chains = chains, tl.load(table + 2)
    key, row = tl.arange(0, KEY_BLOCK), tl.arange(0, CHUNK)
    all_chains = table + HEADER + tl.load(table) * CHUNK_FIELDS
    for task in range(tl.program_id(0), chains * heads * parts, tl.num_programs(0)):
        fields = all_chains + (first_chain + task // (heads * parts)) * CHAIN_FIELDS
        begin, end, chunk, start = (
            tl.load(fields), tl.load(fields + 1), tl.load(fields + 2), tl.load(fields + 3).to(tl.int64)
        )  # fmt: skip
        head = task // parts % heads
        value = task % parts * VALUE_BLOCK + tl.arange(0, VALUE_BLOCK)
        is_value = value < VALUES
        of_head = head * KEYS * VALUES + key[:, None] * VALUES + value[None, :]
        in_pool = (key < tl.where(start >= 0, KEYS, 0))[:, None] & is_value[None, :]
        own = (key < tl.where(start < 0, KEYS, 0))[:, None] & is_value[None, :]
        state = tl.load(pool + start * state_size + of_head, mask=in_pool, other=0.0)
        state += tl.load(scratch + (-2 - start) * state_size + of_head, mask=own, other=0.0)
        for place_of_chunk in range(0, end - begin, CHUNK):
            first = begin + place_of_chunk
            valid = row < end - first
            is_key = valid[:, None] & (key < KEYS)[None, :]
            before = first.to(tl.int64)
            to = before * heads + head
            kept = tl.load(kept_decay + to + row * heads, mask=valid, other=0.0)
            last = tl.minimum(end - first, CHUNK) - 1
            at_end = tl.load(kept_decay + to + last * heads)
            of_query = mixed + before * CHANNELS + head // GROUP * KEYS
            of_key = row[:, None] * CHANNELS + key[None, :]
            q = tl.load(of_query + of_key, mask=is_key, other=0.0)
            k = tl.load(of_query + KEY_HEADS * KEYS + of_key, mask=is_key, other=0.0)
            at = row[:, None] * (heads * KEYS) + key[None, :]
            w = tl.load(known + to * KEYS + at, mask=is_key, other=0.0)
            at = row[:, None] * (heads * CHUNK) + row[None, :]
            reads = tl.load(weights + to * CHUNK + at, mask=valid[:, None], other=0.0)
            is_out = valid[:, None] & is_value[None, :]
            of_out = to * VALUES + row[:, None] * (heads * VALUES) + value[None, :]
            correction = tl.load(corrections + of_out, mask=is_out, other=0.0).to(tl.float32)
            narrow = state.to(q.dtype)
            correction -= tl.dot(w, narrow, input_precision=PRECISION)
            read = tl.dot(q, narrow, input_precision=PRECISION) * tl.exp(kept)[:, None]
            read += tl.dot(reads, correction.to(q.dtype), input_precision=PRECISION)
            tl.store(out + of_out, read.to(out.dtype.element_ty), mask=is_out)
            written = (correction * tl.exp(at_end - kept)[:, None]).to(q.dtype)
            state = state * tl.exp(at_end) + tl.dot(tl.trans(k), written, input_precision=PRECISION)
            place = tl.load(table + HEADER + chunk * CHUNK_FIELDS + 2).to(tl.int64)
            if place != -1:
                in_pool = (key < tl.where(place >= 0, KEYS, 0))[:, None] & is_value[None, :]
                own = (key < tl.where(place < 0, KEYS, 0))[:, None] & is_value[None, :]
                tl.store(pool + place * state_size + of_head, state, mask=in_pool)
                tl.store(scratch + (-2 - place) * state_size + of_head, state, mask=own)
            chunk += 1
