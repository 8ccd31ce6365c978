"""Rotary positions, the norms of q and k, and the write to the KV pool: one pass over the heads of each token."""

import triton
import triton.language as tl

from hiscore.kernels.gemv import launch_dependents, wait_for_predecessors


@triton.jit
def rope_and_cache(
    qkv, positions, cos, sin, query_scales, q_norm, k_norm, pool, slot_mapping, pool_stride, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, ROTATED: tl.constexpr,
    QUERY_SCALED: tl.constexpr, NORMED: tl.constexpr, NORM_BY_HEAD: tl.constexpr, NORM_WIDE: tl.constexpr,
    CENTRED: tl.constexpr, BLOCK_HEADS: tl.constexpr, BLOCK_HALF: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Normalise (NORMED) and rotate (ROTATED) the heads of q and k in place; write k and v to pool.

    Grid: (T, blocks of heads), under NORM_WIDE one block.

    In: positions int32 [T]; cos, sin float32 [context, head_dim / 2]; query_scales float32 [context], which
    multiplies the rotated q under QUERY_SCALED; slot_mapping int32 [T], -1 to write nothing.
    In: q_norm, k_norm float32 [head_dim]; under NORM_BY_HEAD [heads, head_dim] and [kv_heads, head_dim]; under
    NORM_WIDE [heads head_dim] and [kv_heads head_dim], for a norm over all heads of q and one over all of k.
    CENTRED is read for single heads.
    In place: qkv [T, (heads + 2 kv_heads) head_dim]; pool [slots, 2, kv_heads, head_dim].
    """
    launch_dependents(CHAINED)
    HALF: tl.constexpr = HEAD_DIM // 2
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)[:, None]
    half = tl.arange(0, BLOCK_HALF)[None, :]
    inside = (head < HEADS + KV_HEADS) & (half < HALF)
    if ROTATED:
        position = tl.load(positions + token).to(tl.int64)
        angle = position * HALF + half
        c = tl.load(cos + angle, mask=half < HALF, other=0.0)
        s = tl.load(sin + angle, mask=half < HALF, other=0.0)
        if QUERY_SCALED:
            query_scale = tl.load(query_scales + position)
    if NORM_WIDE or NORM_BY_HEAD:
        at_q, at_k = head * HEAD_DIM + half, (head - HEADS) * HEAD_DIM + half
        of_q = (head < HEADS) & (half < HALF)
        of_k = inside & (head >= HEADS)
        norm_first = tl.load(q_norm + at_q, mask=of_q, other=0.0) + tl.load(
            k_norm + at_k, mask=of_k, other=0.0
        )
        norm_second = tl.load(q_norm + at_q + HALF, mask=of_q, other=0.0)
        norm_second += tl.load(k_norm + at_k + HALF, mask=of_k, other=0.0)
    elif NORMED:
        in_half = half < HALF
        q_first = tl.load(q_norm + half, mask=in_half, other=0.0)
        q_second = tl.load(q_norm + half + HALF, mask=in_half, other=0.0)
        k_first = tl.load(k_norm + half, mask=in_half, other=0.0)
        k_second = tl.load(k_norm + half + HALF, mask=in_half, other=0.0)
    wait_for_predecessors(CHAINED)
    at = qkv + token * ((HEADS + 2 * KV_HEADS) * HEAD_DIM) + head * HEAD_DIM + half
    # Load everything before the first store: one memory latency instead of three.
    slot = tl.load(slot_mapping + token).to(tl.int64)
    first = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(at + HALF, mask=inside, other=0.0).to(tl.float32)
    kept = (half < HALF) & (head >= HEADS) & (head < tl.where(slot >= 0, HEADS + KV_HEADS, 0))
    values = at + KV_HEADS * HEAD_DIM
    first_value = tl.load(values, mask=kept, other=0.0)
    second_value = tl.load(values + HALF, mask=kept, other=0.0)
    is_q = head < HEADS
    if NORM_WIDE:
        squares = tl.sum(first * first + second * second, axis=1)[:, None]
        q_factor = tl.rsqrt(tl.sum(tl.where(is_q, squares, 0.0)) / (HEADS * HEAD_DIM) + eps)
        k_factor = tl.rsqrt(tl.sum(tl.where(is_q, 0.0, squares)) / (KV_HEADS * HEAD_DIM) + eps)
        factor = tl.where(is_q, q_factor, k_factor)
        first = (first * factor * norm_first).to(qkv.dtype.element_ty).to(tl.float32)
        second = (second * factor * norm_second).to(qkv.dtype.element_ty).to(tl.float32)
    elif NORMED:
        if CENTRED:
            mean = (tl.sum(first + second, axis=1) / HEAD_DIM)[:, None]
            first = tl.where(inside, first - mean, 0.0)
            second = tl.where(inside, second - mean, 0.0)
        squares = tl.sum(first * first + second * second, axis=1)
        factor = tl.rsqrt(squares / HEAD_DIM + eps)[:, None]
        if not NORM_BY_HEAD:
            norm_first, norm_second = tl.where(is_q, q_first, k_first), tl.where(is_q, q_second, k_second)
        first = (first * factor * norm_first).to(qkv.dtype.element_ty).to(tl.float32)
        second = (second * factor * norm_second).to(qkv.dtype.element_ty).to(tl.float32)
    if ROTATED:
        turned_first = first * c - second * s
        turned_second = second * c + first * s
        if QUERY_SCALED:
            turned_first *= tl.where(is_q, query_scale, 1.0)
            turned_second *= tl.where(is_q, query_scale, 1.0)
    else:
        turned_first, turned_second = first, second
    turned_first = turned_first.to(qkv.dtype.element_ty)
    turned_second = turned_second.to(qkv.dtype.element_ty)
    tl.store(at, turned_first, mask=inside)
    tl.store(at + HALF, turned_second, mask=inside)
    to = pool + slot * pool_stride + (head - HEADS) * HEAD_DIM + half
    tl.store(to, turned_first, mask=kept)
    tl.store(to + HALF, turned_second, mask=kept)
    to += KV_HEADS * HEAD_DIM
    tl.store(to, first_value, mask=kept)
    tl.store(to + HALF, second_value, mask=kept)
