"""The kernels against plain torch. Without a GPU they run in Triton's interpreter, on the CPU."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="the Triton language is not installed")

from hiscore.attention.base import AttentionShape
from hiscore.attention.packed_triton import TritonAttention
from hiscore.attention.tiles import cut_into_tiles, max_tiles
from hiscore.kernels import gated_mlp, gemv
from hiscore.kernels.gated_mlp import LARGE, MEDIUM, SMALL, Tile, multiply, tile_for
from hiscore.layers import triton_ops as kernel_ops
from hiscore.layers.torch_ops import TorchOps
from hiscore.layers.triton_ops import TritonOps
from hiscore.layers.weights import FP8, Linear, Quantised, quantise
from hiscore.prefill.cuda_runner import InputLayout, capture_sizes
from hiscore.scoring.packing import pack, pool_reserve
from hiscore.scoring.prefix_cache import PAGE, PrefixCache
from tests.support.dense import dense_attention
from tests.support.steps import Tables, layer_of
from tests.support.strategies import Tokens, random_tokens
from tests.unit.attention.test_packed_torch import CALLS

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


@pytest.mark.parametrize("budget", [1_000, 37])
@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "soft_cap"), [(4, 2, 16, None), (6, 2, 24, 1.5)], ids=["plain", "odd"]
)
def test_attention_equals_the_dense_mask(
    budget: int, window: int | None, heads: int, kv_heads: int, head_dim: int, soft_cap: float | None
) -> None:
    rng = np.random.default_rng(1)
    calls = [random_tokens(rng, query, items, 100).prompt() for query, items in CALLS]
    # The last call's query is found in the pool, with a part of it that is not.
    calls.append(Tokens(calls[0].tokens[:30].tolist() + [5] * 9, [[1] * 40, [2]]).prompt())
    shape = AttentionShape(heads, kv_heads, head_dim, 0.4, soft_cap, (window, window))
    reserve = pool_reserve(64, budget)
    pages = PrefixCache(reserve + 4, reserve)
    attention = TritonAttention(shape, torch.float32, multiprocessors=3)
    for forward in pack(calls, budget, pages).forwards:
        rows = len(forward.input_ids) + 5  # with padding, whose keys and values are never to be read
        layout = InputLayout(rows, max_tiles(rows, rows, attention.rows_per_tile))
        buffer, slots = layout.pack(forward, attention.rows_per_tile)
        *_, attention.inputs = layout.views(
            torch.from_numpy(buffer).to(DEVICE),
            torch.from_numpy(np.append(slots, 0).astype(np.int32)).to(DEVICE),
        )
        qkv = random(rows, heads + 2 * kv_heads, head_dim, seed=rows)
        qkv[len(forward.input_ids) :] = float("nan")
        pool = random((reserve + 4) * PAGE, 2, kv_heads, head_dim)
        out = attention.attend(0, qkv.flatten(1).contiguous(), pool)[: len(forward.input_ids)]
        real = qkv[: len(forward.input_ids)].cpu()
        expected = dense_attention(forward, shape, window, real, pool.cpu())
        # float32 sums of at most 80 weights: 1e-5 is ten times their rounding.
        torch.testing.assert_close(out.cpu().double(), expected, atol=1e-5, rtol=0)
        # The last layer answers for the scored rows.
        scored = torch.from_numpy(forward.scored_rows)
        last = attention.attend(1, qkv.flatten(1).contiguous(), pool).cpu()[scored]
        torch.testing.assert_close(last.double(), expected[scored], atol=1e-5, rtol=0)


def plain_matmul(a: np.ndarray, b: np.ndarray, dtype: Any) -> np.ndarray:
    """a @ b with the terms of every sum added one after another, from the first to the last."""
    total = np.zeros((a.shape[0], b.shape[1]), dtype)
    for column, row in zip(a.T, b, strict=True):
        total += column[:, None] * row
    return total


@pytest.fixture
def fixed_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter's tl.dot is a product of the CPU's BLAS, which may add up each row of a tile differently.

    A GPU's tensor core adds up all rows of a tile alike. With `plain_matmul` the interpreter does so too, on any
    CPU, so that equal bits mean what they mean on a GPU: the kernel feeds every row the same blocks.
    """
    if DEVICE == "cpu":
        monkeypatch.setattr(np, "matmul", plain_matmul)


@pytest.mark.parametrize("window", [None, 40])
def test_no_bit_of_a_row_depends_on_what_shares_its_forward(window: int | None, fixed_sums: None) -> None:
    """An item in a call, behind other calls and with its query in the pool: the same bits as alone."""
    heads, kv_heads, head_dim = 4, 2, 16
    rng = np.random.default_rng(3)
    one, other = random_tokens(rng, 75, [50, 3, 90], 100), random_tokens(rng, 21, [33], 100)
    shape = AttentionShape(heads, kv_heads, head_dim, 0.4, None, (window, None))
    attention = TritonAttention(shape, torch.float32, multiprocessors=3)
    heads_of = random(100, 200, heads + 2 * kv_heads, head_dim)  # by token and position
    kept = PrefixCache(16, 2)
    pool = torch.full((16 * PAGE, 2, kv_heads, head_dim), float("nan"), device=DEVICE)

    def attend(pages: PrefixCache, *calls: Tokens, attention: TritonAttention = attention) -> torch.Tensor:
        """What the last call's rows attend to."""
        (forward,) = pack([call.prompt() for call in calls], 1_000, pages).forwards
        rows = len(forward.input_ids)
        layout = InputLayout(rows, max_tiles(rows, rows, attention.rows_per_tile))
        buffer, slots = layout.pack(forward, attention.rows_per_tile)
        *_, attention.inputs = layout.views(
            torch.from_numpy(buffer).to(DEVICE),
            torch.from_numpy(np.append(slots, 0).astype(np.int32)).to(DEVICE),
        )
        qkv = heads_of[forward.input_ids, forward.positions]
        written = forward.slot_mapping >= 0
        keys, values = qkv[written, heads:].split(kv_heads, dim=1)
        pool[forward.slot_mapping[written]] = torch.stack((keys, values), dim=1)
        return attention.attend(0, qkv.flatten(1).contiguous(), pool)

    together = attend(PrefixCache(8, 0, caching=False), other, one)[-143:]
    attend(kept, one)
    hit = attend(kept, other, one)
    assert len(hit) == 21 + 33 + (75 - 2 * PAGE) + 143  # two pages were found
    for first, last, item in ((0, 50, 0), (50, 53, 1), (53, 143, 2)):
        alone = attend(PrefixCache(8, 0, caching=False), Tokens(one.query, [one.items[item]]))[75:]
        torch.testing.assert_close(together[first:last], alone, atol=0, rtol=0)
        torch.testing.assert_close(hit[-143:][first:last], alone, atol=0, rtol=0)

    # Control: keys in blocks of another size are added up in another order, in float32's rounding.
    halved = TritonAttention(shape, torch.float32, multiprocessors=3)
    halved._launch = replace(halved._launch, n=halved._launch.n // 2)
    other_order = attend(
        PrefixCache(8, 0, caching=False), Tokens(one.query, [one.items[2]]), attention=halved
    )[75:]
    assert not torch.equal(other_order, alone)
    torch.testing.assert_close(other_order, alone, atol=1e-5, rtol=0)


def test_tiles_cover_every_row_once_and_hardly_exceed_what_rows_need() -> None:
    calls = [random_tokens(np.random.default_rng(2), 120, [2] * 400, 100).prompt() for _ in range(3)]
    (forward,) = pack(calls, 16_384, PrefixCache(8, 0, caching=False)).forwards
    cut = cut_into_tiles(forward, 64)
    covered = np.concatenate([np.arange(first, last) for first, last in cut.tiles[:, :2]])
    np.testing.assert_array_equal(np.sort(covered), np.arange(len(forward.input_ids)))
    scored = set(forward.scored_rows)
    holds = [bool(scored & set(range(first, last))) for first, last in cut.tiles[:, :2]]
    assert holds == [True] * cut.scored + [False] * (len(holds) - cut.scored)
    assert len(cut.tiles) <= max_tiles(len(forward.input_ids), len(forward.groups), 64)
    # 1,200 items of two tokens: a tile for each would be 1,203.
    assert len(cut.tiles) == 3 * (2 + 13)


def test_buckets_hold_every_number_of_rows_at_little_cost() -> None:
    found = capture_sizes(16_384)
    assert found == sorted(set(found))
    for rows in range(64, 16_385):
        bucket = next(b for b in found if b >= rows)
        assert bucket - rows < max(64, 0.125 * rows)
    assert capture_sizes(100)[-1] >= 100


@pytest.mark.parametrize("activation", ["silu", "gelu_pytorch_tanh"])
@pytest.mark.parametrize("normed", [True, False])
def test_steps_equal_plain_torch(activation: str, normed: bool) -> None:
    """Widths that are no powers of two, so that every mask is used. Bounds: float32 sums over 24 to 40 values."""
    heads, kv_heads, head_dim, width, rows = 3, 1, 24, 40, 5
    sizes = (heads, kv_heads, head_dim, 1e-6, activation)
    ours, plain = TritonOps(*sizes), TorchOps(*sizes)
    weight, post = random(width, seed=1), random(width, seed=2)
    table = random(50, width, seed=3)
    ids = torch.tensor([3, 49, 0, 3, 7], dtype=torch.int32, device=DEVICE)
    for mine, other in zip(
        ours.embed(ids, table, 6.3, weight), plain.embed(ids, table, 6.3, weight), strict=True
    ):
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-5)

    update = random(rows, width, seed=4)
    for post_weight in (None, post):
        x, y = random(rows, width, seed=5), random(rows, width, seed=5)
        h = ours.add_norm(x, update, post_weight, weight)
        torch.testing.assert_close(h, plain.add_norm(y, update, post_weight, weight), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(x, y, atol=1e-5, rtol=1e-5)

    gate_up = random(rows, 2 * width, seed=6)
    torch.testing.assert_close(ours.activate(gate_up), plain.activate(gate_up), atol=1e-5, rtol=1e-5)

    norms = (random(head_dim, seed=7), random(head_dim, seed=8)) if normed else (None, None)
    rope = Tables(random(60, head_dim // 2, seed=9), random(60, head_dim // 2, seed=10))
    positions = torch.tensor([0, 1, 59, 5, 5], dtype=torch.int32, device=DEVICE)
    write = torch.tensor([-1, 2, 0, -1, 1], dtype=torch.int32, device=DEVICE)
    qkv, other_qkv = (random(rows, (heads + 2 * kv_heads) * head_dim, seed=11) for _ in range(2))
    pool, other_pool = (random(4, 2, kv_heads, head_dim, seed=12) for _ in range(2))
    ours.rope_and_cache(layer_of(*norms), rope, qkv, positions, pool, write)
    plain.rope_and_cache(layer_of(*norms), rope, other_qkv, positions, other_pool, write)
    torch.testing.assert_close(qkv, other_qkv, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(pool, other_pool, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("inputs", [24, 1024, 3000])
@pytest.mark.parametrize("rows", [1, 3, gemv.GEMV_MAX_ROWS])
def test_products_of_few_rows_equal_plain_torch(rows: int, inputs: int) -> None:
    """Bound: float32 sums of up to 3,000 products, in another order."""
    x, weight, bias = (
        random(rows, inputs, seed=1),
        random(38, inputs, seed=2) / inputs**0.5,
        random(38, seed=3),
    )
    for offset in (None, bias):
        expected = torch.nn.functional.linear(x, weight, offset)
        torch.testing.assert_close(gemv.multiply(x, weight, offset), expected, atol=1e-5, rtol=1e-5)
    for activation in ("silu", "gelu_pytorch_tanh"):
        expected = TorchOps(1, 1, 2, 1e-6, activation).gate(Linear(weight), x)
        found = gemv.multiply(x, weight, gelu=activation != "silu")
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    norm, onto = random(inputs, seed=4), random(rows, 38, seed=5)
    ops, read = TorchOps(1, 1, 2, 1e-6, "silu"), gemv.Normed(x, norm, 1e-6)
    normed = ops._norm(x, norm, torch.float32)
    torch.testing.assert_close(gemv.multiply(read, weight), normed @ weight.T, atol=1e-5, rtol=1e-5)
    expected = ops.gate(Linear(weight), normed)
    torch.testing.assert_close(gemv.multiply(read, weight, gelu=False), expected, atol=1e-5, rtol=1e-5)
    expected = onto + torch.nn.functional.linear(x, weight, bias)
    gemv.multiply(x, weight, bias, onto)
    torch.testing.assert_close(onto, expected, atol=1e-5, rtol=1e-5)
    for row in range(rows):  # in one order, however many there are
        alone = gemv.multiply(x[row : row + 1], weight)
        torch.testing.assert_close(gemv.multiply(x, weight)[row : row + 1], alone, atol=0, rtol=0)


def test_few_rows_are_taken_where_they_may_be() -> None:
    taken = []
    ops = TritonOps(4, 2, 16, 1e-6, "silu", use_gemv=True)
    for rows, inputs in ((4, 40), (5, 40), (4, gemv.GEMV_MAX_INPUTS + 1), (0, 40)):
        x, weight = random(rows, inputs), random(6, inputs, seed=1)
        taken.append(ops._fits_gemv(Linear(weight), x))
        torch.testing.assert_close(ops.project(Linear(weight), x), x @ weight.T, atol=1e-3, rtol=1e-4)
        assert ops.gate(Linear(weight), x).shape == (rows, 3)
    assert taken == [True, False, False, False]


@pytest.mark.parametrize("multiprocessors", [1, 100])
@pytest.mark.parametrize("activation", ["silu", "gelu_pytorch_tanh"])
@pytest.mark.parametrize("tile", [SMALL, MEDIUM, LARGE], ids=["small", "medium", "large"])
def test_a_gated_product_equals_plain_torch(tile: Tile, activation: str, multiprocessors: int) -> None:
    """Tiles over the edges. Bound: float32 sums; on a GPU, which takes 16 bits only, a rounding of 8 bits each."""
    dtype, near = (torch.bfloat16, 2**-7) if DEVICE == "cuda" else (torch.float32, 1e-5)
    for rows, inputs, outputs in ((1, 8, 8), (130, 72, 200), (300, 200, 72), (2200, 16, 136)):
        x, weight = random(rows, inputs, seed=1), random(2 * outputs, inputs, seed=2) / inputs**0.5
        x, weight = x.to(dtype), weight.to(dtype)
        found = multiply(x, weight, activation != "silu", tile, multiprocessors)
        expected = TorchOps(1, 1, 2, 1e-6, activation).gate(Linear(weight), x)
        torch.testing.assert_close(found, expected, atol=near, rtol=near)
        # Control: gate and up in each other's place.
        wrong = multiply(x, weight.roll(outputs, 0), activation != "silu", tile, multiprocessors)
        assert not torch.allclose(wrong, expected, atol=10 * near, rtol=10 * near)


def test_a_tile_is_taken_where_it_fills_the_device() -> None:
    """Of the numbers of rows that were timed, at the sizes of Qwen3-0.6B on 132 multiprocessors."""
    taken = {rows: tile_for(rows, 1024, 3072, 132) for rows in (64, 320, 384, 640, 768, 1536, 1920, 15360)}
    assert taken == {
        64: None, 320: SMALL, 384: None, 640: MEDIUM, 768: None, 1536: None, 1920: MEDIUM, 15360: LARGE,
    }  # fmt: skip
    assert MEDIUM.fill(1920, 3072, 132) == 15 * 48 / (3 * 264)
    assert tile_for(15360, 2048, 6144, 132) is LARGE
    assert tile_for(1920, 2048, 6144, 132) is MEDIUM
    assert tile_for(15360, 4096, 12288, 132) is tile_for(320, 2048, 6144, 132) is None
    assert tile_for(0, 1024, 3072, 132) is None
    assert tile_for(15360, 1020, 3072, 132) is tile_for(15360, 1024, 3076, 132) is None


def test_steps_take_it_for_16_bits_without_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Tile] = []

    def watched(x: Any, weight: Any, gelu: bool, tile: Tile, multiprocessors: int) -> torch.Tensor:
        called.append(tile)
        return multiply(x, weight, gelu, tile, multiprocessors)

    monkeypatch.setattr(gated_mlp, "multiply", watched)
    monkeypatch.setattr(kernel_ops, "HOPPER_SM_COUNT", 5)
    ops = TritonOps(4, 2, 16, 1e-6, "silu")
    x, weight = (random(count, 64, seed=count).half() for count in (600, 256))
    expected = TorchOps(4, 2, 16, 1e-6, "silu").gate(Linear(weight), x)
    torch.testing.assert_close(ops.gate(Linear(weight), x), expected, atol=2**-5, rtol=2**-8)
    assert called == [MEDIUM]
    ops.gate(Linear(weight, random(256).half()), x)
    ops.gate(Linear(weight.float()), x.float())
    assert ops.gate(Linear(weight), x[:0]).shape == (0, 128)
    ops.gate(Linear(weight), x[:560])
    assert called == [MEDIUM] * 2
    monkeypatch.setattr(kernel_ops, "HOPPER_SM_COUNT", 0)
    ops.gate(Linear(weight), x)
    assert called == [MEDIUM] * 2


@pytest.mark.parametrize("sandwich", [False, True])
@pytest.mark.parametrize("rows", [gemv.GEMV_MAX_ROWS, gemv.GEMV_MAX_ROWS + 1])
@pytest.mark.parametrize("inputs", [24, gemv.GEMV_MAX_INPUTS + 8])
def test_a_norm_may_be_left_to_the_product_that_reads_it(inputs: int, rows: int, sandwich: bool) -> None:
    """Bound: float32 sums of up to 4,104 products of O(1) and 1/64."""
    arguments = 4, 2, 16, 1e-6, "silu"
    ours, plain = TritonOps(*arguments, use_gemv=True), TorchOps(*arguments)
    output, after = (Linear(random(*size, seed=1) / inputs**0.5) for size in ((48, inputs), (20, 48)))
    norm, post = random(48, seed=2), random(48, seed=3) if sandwich else None
    results = []
    for ops in (ours, plain):
        x, h = random(rows, 48, seed=4), random(rows, inputs, seed=5)
        h = ops.project_add_norm(x, output, h, post, norm)
        results.append((x, ops.project(after, h), ops.gate(after, h)))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.fixture
def true_fp8(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter (3.6) drops carries and NaN when it rounds to float8; a GPU does as torch does."""
    if DEVICE == "cuda":
        return
    from triton.runtime import interpreter

    def convert(values: np.ndarray, source, target, rounding) -> np.ndarray:
        assert (source.name, target.name) == ("fp32", "fp8e4nv")
        return torch.from_numpy(values).to(FP8).view(torch.uint8).numpy()

    monkeypatch.setattr(interpreter, "_convert_float", convert)


def assert_same_bits(found: Quantised, expected: Quantised) -> None:
    torch.testing.assert_close(found.scales, expected.scales, atol=0, rtol=0)
    torch.testing.assert_close(found.values.float(), expected.values.float(), atol=0, rtol=0)


def test_rows_are_quantised_to_the_same_bits_as_in_plain_torch(true_fp8: None) -> None:
    x = random(64, 2_112, seed=13) * torch.logspace(-12, 12, 64, device=DEVICE)[:, None]
    # Zeros; a peak below which nothing is scaled up; and steps of 1/8, many of them right between two numbers.
    x[0], x[1] = 0, 1e-33
    x[2] = torch.arange(2_112, device=DEVICE) / 8 % 448
    ops = TritonOps(4, 2, 16, 1e-6, "silu")
    assert_same_bits(ops.quantise(x), quantise(x))
    assert ops.quantise(x[:0]).values.shape == (0, 2_112)
    # What is not finite stays so, and in its row.
    x[4, 7], x[6, 2_000] = float("nan"), float("inf")
    found = ops.quantise(x)
    restored = found.values.float() * found.scales
    assert restored[4, 7].isnan()
    assert restored[6, 2_000].isnan()
    assert restored[[0, 1, 2, 3, 5, 7]].isfinite().all()


@pytest.mark.parametrize("activation", ["silu", "gelu_pytorch_tanh"])
def test_steps_make_in_fp8_what_they_make_otherwise_and_quantise_it(activation: str, true_fp8: None) -> None:
    """To the same bits: fp8 changes how a row is stored and nothing before. Plain torch's steps do the same."""
    width, rows = 80, 5
    weight, post, table = random(width, seed=1), random(width, seed=2), random(50, width, seed=3)
    ids = torch.tensor([3, 49, 0, 3, 7], dtype=torch.int32, device=DEVICE)
    update, gate_up = random(rows, width, seed=4), random(rows, 2 * width, seed=6)
    for kind in (TritonOps, TorchOps):
        ops = kind(3, 1, 24, 1e-6, activation)
        (x, h), (other_x, other_h) = (ops.embed(ids, table, 6.3, weight, fp8) for fp8 in (True, False))
        torch.testing.assert_close(x, other_x, atol=0, rtol=0)
        assert_same_bits(h, quantise(other_h))
        for post_weight in (None, post):
            x, other_x = random(rows, width, seed=5), random(rows, width, seed=5)
            h = ops.add_norm(x, update, post_weight, weight, True)
            assert_same_bits(h, quantise(ops.add_norm(other_x, update, post_weight, weight)))
            torch.testing.assert_close(x, other_x, atol=0, rtol=0)
        assert_same_bits(ops.activate(gate_up, True), quantise(ops.activate(gate_up)))
        assert ops.activate(gate_up[:0], True).values.shape == (0, width)
