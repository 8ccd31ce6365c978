"""Launch every kernel at the sizes of real models; without a GPU the launches are only recorded."""

from dataclasses import replace
from types import SimpleNamespace
from typing import cast
from unittest import mock

import torch
from torch import Tensor

from hiscore.attention.base import AttentionShape
from hiscore.attention.bidirectional import BidirectionalShape, RelativeProjections
from hiscore.attention.bidirectional_triton import SegmentInputs, TritonBidirectionalAttention
from hiscore.attention.packed_triton import TileInputs, TileTables, TritonAttention
from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.kv_cache.shape import CacheShape
from hiscore.decoding.kv_cache.step_batch import StepBatch
from hiscore.decoding.sparse.triton_cache_ops import TritonCacheOps
from hiscore.decoding.worker.sampling_options import OPTIONS
from hiscore.decoding.worker.step_runner import COUNTERS
from hiscore.decoding.worker.triton_sampler import Feeding, draw
from hiscore.kernels import gated_mlp, pair_products, pipelined_products
from hiscore.kernels import gemv as few
from hiscore.layers import moe_triton, scaled_fp8_triton
from hiscore.layers import triton_ops as kernel_ops
from hiscore.layers.adapters import Adapters, LowRank
from hiscore.layers.step_products import StepProducts
from hiscore.layers.triton_ops import AdaptedTritonOps, TritonOps
from hiscore.layers.weights import Experts, Linear, Routing, Scales
from hiscore.models.deepseek.config import DsaArchitecture, Indexer
from hiscore.models.deepseek.indexer import IndexQuery
from hiscore.models.deepseek.latent_cache import Segment
from hiscore.models.deepseek.latent_cache_triton import KernelLatents
from hiscore.models.deepseek.mla import Projected
from hiscore.models.deepseek.weights import MlaWeights
from hiscore.parallel.shard import Shard
from hiscore.recurrence.gated_delta_net import RecurrentShape, RecurrentWeights
from hiscore.recurrence.metadata import FIRST_CACHED_SLOT
from hiscore.recurrence.state_pool import StatePool
from hiscore.recurrence.triton_recurrence import TritonRecurrence
from tests.support.layers import Tables, layer_of
from tests.support.shared_host import OneAfterTheOther

ROWS = 3
# hidden size, MLP's width, heads, KV heads, head dimension: Qwen3-0.6B, SmolLM2-135M, Gemma-2-2B
QWEN3, QWEN3_8B = (1024, 3072, 16, 8, 128), (4096, 12288, 32, 8, 128)
SMOLLM2, GEMMA2 = (576, 1536, 9, 3, 64), (2304, 9216, 8, 4, 256)
GPT_OSS = (2880, 2880, 64, 8, 64)
GROUPED = CacheShape(
    layers=3, kv_heads=8, kv_parts=2, head_dim=128, page_size=32, max_sequences=4, max_pages=1_280,
    host_pages=64, device_pages=48,
    lru_pages=127, ring_pages=2, top_pages=64, dense_layers=frozenset({1}), index_kind="bounds",
)  # fmt: skip
WINDOWED = replace(GROUPED, windowed=frozenset({1}), window_pages=64, window_ring=16, prefill_rows=4_096)
LATENT = replace(
    GROUPED, kv_heads=1, kv_parts=1, head_dim=576, page_size=1, max_pages=40_960, lru_pages=4_064, ring_pages=32,
    top_pages=2_048, index_kind="dsa", index_dim=128,
)  # fmt: skip
LATENT_OF_FOUR = replace(LATENT, dense_layers=frozenset(), host_share=Shard(1, 4))


def ints(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def scorer(
    sizes: tuple[int, ...],
    dtype: torch.dtype,
    normed: bool = False,
    sandwich: bool = False,
    fp8: bool = False,
    with_sinks: bool = False,
) -> None:
    hidden, inner, heads, kv_heads, head_dim = sizes
    ops = TritonOps(heads, kv_heads, head_dim, 1e-6, "gelu_pytorch_tanh" if sandwich else "silu")
    weight, update = torch.zeros(hidden), torch.zeros(ROWS, hidden, dtype=dtype)
    x, _ = ops.embed(ints(ROWS), torch.zeros(50, hidden, dtype=dtype), 1.0, weight, fp8)
    ops.add_norm(x, update, weight if sandwich else None, weight, fp8)
    ops.activate(torch.zeros(ROWS, 2 * inner, dtype=dtype), fp8)
    if fp8:
        ops.quantise(update)
    pair_products.compile_for(torch.zeros(50, hidden, dtype=dtype))
    qkv = torch.zeros(ROWS, (heads + 2 * kv_heads) * head_dim, dtype=dtype)
    pool = torch.zeros(64, 2, kv_heads, head_dim, dtype=dtype)
    norm = torch.zeros(head_dim) if normed else None
    table = torch.zeros(64, head_dim // 2)
    ops.rope_and_cache(layer_of(norm, norm), Tables(table, table), qkv, ints(ROWS), pool, ints(ROWS))
    windows, cap = ((4_096, None), 50.0) if sandwich else ((None, None), None)
    sinks = (torch.zeros(heads),) * 2 if with_sinks else None
    shape = AttentionShape(heads, kv_heads, head_dim, head_dim**-0.5, cap, windows, sinks)
    attention = in_tiles(shape, dtype)
    for index in range(len(windows)):
        attention.attend(index, qkv, pool)


def in_tiles(shape: AttentionShape, dtype: torch.dtype) -> TritonAttention:
    """Attention over a forward that is cut into tiles."""
    attention = TritonAttention(shape, dtype, multiprocessors=132)
    tables = TileTables(ROWS, attention.rows_per_tile, torch.device("cpu"))
    attention.inputs = TileInputs(ints(ROWS), ints(6), ints(64), tables)
    attention.cut_into_tiles()
    return attention


def encoder(dtype: torch.dtype, reach: int | None, disentangled: bool) -> None:
    """Attention of an encoder, of the size of BERT-base, ModernBERT-base or DeBERTa-v3-base."""
    heads, head_dim, context, positions = 12, 64, 512, 512
    rows = ints(2 * context - 1) if disentangled else None
    shape = BidirectionalShape(heads, head_dim, head_dim**-0.5, (reach, None), rows)
    attention = TritonBidirectionalAttention(shape, dtype, multiprocessors=132)
    attention.inputs = SegmentInputs(ints(ROWS), ints(ROWS), ints(6), ints(2))
    table = torch.zeros(heads, positions, head_dim, dtype=dtype)
    relative = RelativeProjections(table, table) if disentangled else None
    attention.attend(0, torch.zeros(ROWS, 3 * heads * head_dim, dtype=dtype), relative)


def gated_delta_net(key_heads: int, value_heads: int, dtype: torch.dtype) -> None:
    shape = RecurrentShape(key_heads, value_heads, key_dim=128, value_dim=128, taps=4)
    pool = StatePool.empty(shape, 1, FIRST_CACHED_SLOT, dtype, torch.device("cpu"))
    recurrence = TritonRecurrence(shape, pool, 1e-6, multiprocessors=132)
    recurrence.table = ints(6)
    of_head = torch.zeros(value_heads)
    taps = torch.zeros(shape.taps, shape.channels, dtype=dtype)
    weights = RecurrentWeights(taps, of_head, of_head, torch.zeros(shape.value_dim))
    recurrence.mix(0, weights, torch.zeros(ROWS, shape.inputs, dtype=dtype))


def designs(sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    hidden, inner, heads, kv_heads, head_dim = sizes
    ids, table = ints(ROWS), torch.zeros(50, hidden, dtype=dtype)
    update, pool = torch.zeros(ROWS, hidden, dtype=dtype), torch.zeros(64, 2, kv_heads, head_dim, dtype=dtype)
    for centred, weight in ((True, torch.zeros(hidden)), (False, None)):
        ops = TritonOps(heads, kv_heads, head_dim, 1e-6, "gelu", centred)
        x, _ = ops.embed(ids, table, 1.0, weight)
        ops.add_norm(x, update, None, weight)
        ops.add_norm(x, update, torch.zeros(hidden), weight)
        ops.activate(torch.zeros(ROWS, 2 * inner, dtype=dtype))
    rope = Tables(torch.zeros(64, head_dim // 2), torch.zeros(64, head_dim // 2))
    rope.query_scales = torch.zeros(64)
    qkv = torch.zeros(ROWS, (heads + 2 * kv_heads) * head_dim, dtype=dtype)
    wide = layer_of(torch.zeros(heads * head_dim), torch.zeros(kv_heads * head_dim))
    for layer, tables in ((layer_of(None, None), None), (layer_of(None, None), rope), (wide, rope)):
        ops.rope_and_cache(layer, tables, qkv, ids, pool, ids)
    by_head = layer_of(torch.zeros(heads, head_dim), torch.zeros(kv_heads, head_dim))
    rope.query_scales = None
    TritonOps(heads, kv_heads, head_dim, 1e-6, "silu", centred=True).rope_and_cache(
        by_head, rope, qkv, ids, pool, ids
    )


def decode(
    sizes: CacheShape,
    dtype: torch.dtype,
    heads: int,
    value_width: int | None = None,
    with_sinks: bool = False,
) -> None:
    cache = KVCache.allocate(sizes, dtype, torch.device("cpu"), OneAfterTheOther(sizes.host_share))
    windows = tuple(512 if layer in sizes.dense_layers else None for layer in range(sizes.layers))
    sinks = (torch.zeros(heads),) * sizes.layers if with_sinks else None
    shape = AttentionShape(heads, sizes.kv_heads, sizes.head_dim, 0.1, None, windows, sinks)
    rows = StepBatch(ints(ROWS), ints(ROWS))
    staging = torch.zeros(sizes.layers, 64, sizes.kv_parts, sizes.kv_heads, sizes.head_dim, dtype=dtype)
    q = torch.zeros(ROWS, heads, sizes.head_dim, dtype=dtype)
    for full in (False, True):
        ops = TritonCacheOps(cache, shape, sizes.max_pages * sizes.page_size, full, value_width)
        host_slots, buffer = ops.slot_mapping(rows)
        for layer in range(sizes.layers):
            if layer in cache.windowed:
                ops.slot_mapping(rows, cache.window_block_table)
                lists = ops.all_pages(rows, cache.window_block_table)
            elif layer in cache.dense:
                lists = ops.all_pages(rows)
            else:
                if sizes.index_kind == "dsa":
                    ops.write_index(layer, torch.zeros(ROWS, sizes.index_dim, dtype=dtype), host_slots)
                    index_q = torch.zeros(ROWS, 64, 128, dtype=dtype)
                    scores = ops.indexer_scores(layer, index_q, torch.zeros(ROWS, 64), rows)
                else:
                    ops.write_index(layer, q[:, : sizes.kv_heads], host_slots)
                    scores = ops.page_scores(layer, q, rows)
                lists = ops.select_pages(layer, scores, rows).lists
            ops.attend(layer, q, lists, rows)
    ops.offload_step(host_slots, buffer)
    slots, pages = ints(40), ints(-(-40 // sizes.page_size))
    ops.offload_prompt(staging, slots, pages)
    ops.restore_prompt(staging, slots, pages)
    ops.index_prompt(staging, slots, pages, ints(40))
    ops.fill_buffer(staging, slots, ints(40))
    ops.fill_dense(staging, slots, ints(40))
    ops.restore_dense(staging, slots, ints(40))
    ops.keep_windows(slots, ints(40))


def indexed_prefill(dtype: torch.dtype) -> None:
    """A prefill's selection and attention at the widths of DeepSeek-V3.2."""
    indexer = Indexer(heads=64, head_dim=128, top_k=2_048, interleaved=False)
    sizes = SimpleNamespace(
        layers=1, own_index=(True,), heads=128, latent_rank=512, nope_dim=128, rope_dim=64, value_dim=128,
        row_dim=576, attention_scale=0.1, indexer=indexer,
    )  # fmt: skip
    latents = KernelLatents(cast(DsaArchitecture, sizes), 4_096, torch.device("cpu"), dtype)
    latents.plan([Segment(torch.arange(4_096), 32)])
    index = IndexQuery(torch.zeros(32, 64, 128, dtype=dtype), torch.zeros(32, 64))
    latents.attend(0, torch.zeros(32, 128, 576, dtype=dtype), index)
    # Where no row selects.
    latents.plan([Segment(torch.arange(32), 32)])
    nope, rotated = torch.zeros(32, 128, 128, dtype=dtype), torch.zeros(32, 128, 64, dtype=dtype)
    w = SimpleNamespace(
        to_latent=torch.zeros(128, 128, 512, dtype=dtype), from_latent=torch.zeros(128, 512, 128, dtype=dtype)
    )
    out = latents.attend_full(0, cast(MlaWeights, w), Projected(nope, nope, rotated, nope))
    assert out is not None


def chained(sizes: tuple[int, ...], rows: int, products: StepProducts) -> None:
    hidden, inner, heads, kv_heads, head_dim = sizes
    ops = TritonOps(heads, kv_heads, head_dim, 1e-6, "silu", step_products=products)
    norm, dtype = torch.zeros(hidden), torch.bfloat16
    x, h = ops.embed(ints(rows), torch.zeros(50, hidden, dtype=dtype), 1.0, norm)
    width = (heads + 2 * kv_heads) * head_dim
    qkv = ops.project(Linear(torch.zeros(width, hidden, dtype=dtype), torch.zeros(width, dtype=dtype)), h)
    of_head = torch.zeros(head_dim)
    layer, turns = layer_of(of_head, of_head), torch.zeros(64, head_dim // 2)
    pool = torch.zeros(64, 2, kv_heads, head_dim, dtype=dtype)
    ops.rope_and_cache(layer, Tables(turns, turns), qkv, ints(rows), pool, ints(rows))
    output, down = (Linear(torch.zeros(hidden, width, dtype=dtype)) for width in (heads * head_dim, inner))
    h = ops.project_add_norm(x, output, qkv[:, : heads * head_dim].contiguous(), None, norm)
    wide = ops.gate(Linear(torch.zeros(2 * inner, hidden, dtype=dtype)), h)
    h = ops.project_add_norm(x, down, wide, None, norm)
    ops.project(Linear(torch.zeros(width, hidden, dtype=dtype)), h)
    ops.add_norm(x, ops.project(down, wide), None, norm)


def adapted(sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    """Adapters of ranks 16 and 64 of attention's first projection."""
    hidden, _, heads, kv_heads, head_dim = sizes
    q, kv = heads * head_dim, kv_heads * head_dim
    products = [
        LowRank.empty(slice(*part), hidden, {1: 16, 2: 64}, 2, torch.empty(0, dtype=dtype))
        for part in ((0, q), (q, q + kv), (q + kv, q + 2 * kv))
    ]
    projection = Linear(torch.zeros(q + 2 * kv, hidden, dtype=dtype))
    ops = AdaptedTritonOps(Adapters({id(projection): products}, None), *sizes[2:], 1e-6, "silu")
    ops.adapt(ints(ROWS))
    ops.project(projection, torch.zeros(ROWS, hidden, dtype=dtype))


def gated(sizes: tuple[int, ...]) -> None:
    hidden, inner, *_ = sizes
    x, weight = (torch.zeros(count, hidden, dtype=torch.bfloat16) for count in (ROWS, 2 * inner))
    for tile in (gated_mlp.SMALL, gated_mlp.MEDIUM, gated_mlp.LARGE):
        for gelu in (False, True):
            gated_mlp.multiply(x, weight, gelu, tile, multiprocessors=132)


def experts(sizes: tuple[int, ...], activation: str, dtype: torch.dtype) -> None:
    """A mixture of experts: hidden size, neurons of an expert, experts, experts of a token."""
    hidden, width, count, per_token = sizes
    biased = activation == "clamped_swiglu"
    weights = Experts(
        routing=Routing(per_token, normalise=True), activation=activation,
        router=torch.zeros(count, hidden), router_bias=torch.zeros(count) if biased else None,
        gate_up=torch.zeros(1, dtype=dtype).expand(count, 2 * width, hidden),
        gate_up_bias=torch.zeros(count, 2 * width, dtype=dtype) if biased else None,
        down=torch.zeros(1, dtype=dtype).expand(count, hidden, width),
        down_bias=torch.zeros(count, hidden, dtype=dtype) if biased else None,
    )  # fmt: skip
    many = -(-moe_triton.MANY * count // per_token)
    for rows, step in ((ROWS, False), (ROWS, True), (many, False)):
        moe_triton.moe(weights, torch.zeros(rows, hidden, dtype=dtype), step)


def scaled_fp8_products() -> None:
    """Products in fp8: Qwen3-8B's last one of an MLP, and for a step and a prefill a projection and 4 experts of
    DeepSeek-V3.2's 256.
    """

    def weight(*shape: int) -> tuple[Tensor, Scales]:
        *before, outputs, inputs = shape
        blocks = torch.zeros(*before, -(-outputs // 128), inputs // 128)
        return torch.zeros(shape, dtype=torch.float8_e4m3fn), Scales(blocks, 128, 128, powers_of_two=True)

    of_rows = Scales(torch.zeros(4_096, 96), 1, 128, powers_of_two=False)
    x, values = (torch.zeros(count, 12_288, dtype=torch.bfloat16) for count in (128, 4_096))
    scaled_fp8_triton.multiply(x, values.to(torch.float8_e4m3fn), of_rows)
    hidden, width, count = 7_168, 2_048, 4
    for rows in (1, 2_048):
        scaled_fp8_triton.multiply(torch.zeros(rows, hidden, dtype=torch.bfloat16), *weight(2_112, hidden))
    (gate_up, gate_up_scales), (down, down_scales) = (
        weight(count, 2 * width, hidden),
        weight(count, hidden, width),
    )
    router = torch.zeros(count, hidden)
    experts = Experts(
        Routing(2, True, sigmoid=True), "silu", router, gate_up, down, correction=torch.zeros(count),
        gate_up_scales=gate_up_scales, down_scales=down_scales,
    )  # fmt: skip
    for rows, step in ((1, True), (1, False), (moe_triton.MANY * count, False)):
        moe_triton.moe(experts, torch.zeros(rows, hidden, dtype=torch.bfloat16), step)


def drawn(rows: int) -> None:
    """Tokens of a step, and of rows by themselves."""
    logits, options = torch.zeros(rows, 151_936), torch.zeros(OPTIONS, rows, dtype=torch.float64)
    one = torch.zeros(1, dtype=torch.int64)
    cache = cast(KVCache, SimpleNamespace(hits=one, misses=one, mass=torch.zeros(2, dtype=torch.float64)))
    readback = torch.zeros(COUNTERS + rows, dtype=torch.int64)
    draw(logits, options)
    draw(logits, options, Feeding(readback, ints(rows + 1), ints(rows, 151_936), cache))


def launch_everything() -> None:
    """What the supported families launch, in the dtypes that they are served in."""
    bfloat16, float32 = torch.bfloat16, torch.float32
    gated(QWEN3)
    gated(SMOLLM2)
    scaled_fp8_products()
    for dtype in (bfloat16, float32):
        experts((2048, 768, 128, 8), "silu", dtype)
        experts((2880, 2880, 32, 4), "clamped_swiglu", dtype)
        indexed_prefill(dtype)
        encoder(dtype, None, disentangled=False)
        encoder(dtype, 64, disentangled=False)
        encoder(dtype, None, disentangled=True)
    # Kernels that may start before the previous one has ended also read ahead, and none swaps in beside attention.
    # Of the others, what differs by no more than two instructions is compiled at one size.
    with mock.patch.object(kernel_ops, "supports_pdl", return_value=False):
        drawn(ROWS)
        scorer(QWEN3, bfloat16, normed=True)
        decode(GROUPED, bfloat16, heads=16)
        decode(GROUPED, float32, heads=16)
        decode(replace(GROUPED, head_dim=64), bfloat16, heads=64, with_sinks=True)
        decode(WINDOWED, bfloat16, heads=16)
        decode(replace(GROUPED, page_size=1), bfloat16, heads=16)
    with mock.patch.multiple(kernel_ops, supports_pdl=lambda: True, PDL_MIN_ROWS=1):
        for rows in (ROWS, 32):
            drawn(rows)
        for sizes in (QWEN3, SMOLLM2):
            for fp8 in (False, True):
                scorer(sizes, bfloat16, normed=sizes is QWEN3, fp8=fp8)
        scorer(QWEN3, float32, normed=True)
        scorer(GPT_OSS, bfloat16, with_sinks=True)
        scorer(GEMMA2, bfloat16, sandwich=True)
        in_tiles(AttentionShape(32, 32, 128, 0.1, None, (None,)), bfloat16)  # the most rows a tile
        gated_delta_net(16, 48, bfloat16)
        for dtype in (bfloat16, float32):
            designs(QWEN3, dtype)
            adapted(QWEN3, dtype)
        decode(GROUPED, bfloat16, heads=16)
        decode(GROUPED, float32, heads=16)
        decode(replace(GROUPED, head_dim=64), bfloat16, heads=64, with_sinks=True)
        decode(WINDOWED, bfloat16, heads=16)
        decode(replace(GROUPED, page_size=1), bfloat16, heads=16)
        decode(replace(LATENT, dense_layers=frozenset()), bfloat16, heads=128, value_width=512)
        decode(replace(LATENT, dense_layers=frozenset()), float32, heads=128, value_width=512)
        decode(LATENT_OF_FOUR, bfloat16, heads=32, value_width=512)
    with mock.patch.object(kernel_ops, "supports_pdl", return_value=True):
        for rows in range(1, few.GEMV_MAX_ROWS + 1):
            chained(QWEN3, rows, StepProducts())
            chained(QWEN3_8B, rows, StepProducts())
        more = pipelined_products.MAX_ROWS
        for rows in (1, 16, 17, more):
            for sizes in (QWEN3, QWEN3_8B):
                chained(sizes, rows, StepProducts(gemv_rows=1, pipelined_rows=more))
