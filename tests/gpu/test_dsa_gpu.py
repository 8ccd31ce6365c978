"""Prefills with an indexer at real widths on one CUDA GPU: what they compute and what they take."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from hiscore.layers.weights import Routing
from hiscore.models.config import ExpertShape
from hiscore.models.deepseek.activations import SCORE_ELEMENTS, kernel_prefill_bytes
from hiscore.models.deepseek.config import DsaArchitecture, Indexer
from hiscore.models.deepseek.indexer import IndexQuery
from hiscore.models.deepseek.latent_cache import Segment, StagedLatents
from hiscore.models.deepseek.mla import Projected
from hiscore.models.deepseek.weights import MlaWeights

pytest.importorskip("triton", reason="the Triton language is not installed")
from hiscore.models.deepseek.latent_cache_triton import KernelLatents

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]

WIDE = DsaArchitecture(
    family="deepseek_v32", vocab_size=256, context_length=40_960, layers=1, hidden_size=7_168,
    intermediate_size=18_432, heads=128, q_rank=1_536, latent_rank=512, nope_dim=128, rope_dim=64, value_dim=128,
    attention_bias=False, attention_scale=192**-0.5, norm_eps=1e-6,
    indexer=Indexer(heads=64, head_dim=128, top_k=2_048, interleaved=False), own_index=(True,), routed=(False,),
    experts=ExpertShape(256, 2_048, "silu", Routing(8, normalise=True)), shared_width=2_048, tied_head=False,
    lookahead_layers=0,
)  # fmt: skip
"""Attention and indexer of DeepSeek-V3.2."""


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


def wide(dtype: torch.dtype, slots: int) -> list[StagedLatents]:
    """The same pool twice, for plain torch and for kernels. Index keys are whole numbers: sums are exact."""
    torch.manual_seed(0)
    pool, keys = random(slots, WIDE.row_dim, dtype=dtype), random(slots, 128, dtype=dtype).round()
    found = []
    for kind in (StagedLatents, KernelLatents):
        found.append(kind(WIDE, slots, torch.device("cuda"), dtype, max_elements=2**26))
        found[-1].pool[0, :, 0, 0], found[-1].index_keys[0] = pool, keys
    return found


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_prefill_by_kernels_equals_plain_torch_at_real_widths(dtype: torch.dtype) -> None:
    """Rows of two sequences, one of which selects from few more than the top-k."""
    plain, kernels = wide(dtype, 9_000)
    slots = torch.randperm(9_000, device="cuda")
    parts = [Segment(slots[:6_000], 40), Segment(slots[6_000:8_060], 12)]
    q, index_q = random(52, 128, 576, dtype=dtype), random(52, 64, 128, dtype=dtype).round()
    index = IndexQuery(index_q, random(52, 64).round())
    outputs = []
    for latents in (plain, kernels):
        latents.plan(parts)
        outputs.append(latents.attend(0, q, index).float())
    chosen = torch.cat([found[: int(n)] for found, n in _lists(kernels)])
    expected = torch.cat(_slots(plain))
    assert torch.equal(chosen, expected)
    # bfloat16: weights and output with 8 bits each. float32: 576 products and 2,048 values in another order.
    bound = 2**-7 if dtype == torch.bfloat16 else 1e-4
    torch.testing.assert_close(outputs[1], outputs[0], atol=bound * float(outputs[0].abs().max()), rtol=0)


def _lists(latents: StagedLatents) -> list[tuple[Tensor, Tensor]]:
    begins = latents._begins.tolist()
    return [(latents._lists[at:], n) for at, n in zip(begins, latents._counts, strict=True)]


def _slots(latents: StagedLatents) -> list[Tensor]:
    found = []
    for piece, chosen in zip(latents._pieces, latents._selected, strict=True):
        for row, length in enumerate(piece.lengths.tolist()):
            at = (
                torch.arange(length, device="cuda")
                if chosen is None
                else chosen[row][chosen[row] >= 0].long()
            )
            found.append(piece.slots[at].int())
    return found


@torch.inference_mode()
@pytest.mark.parametrize("chunk", [7, 64, 500])
def test_chunks_of_any_size_have_the_same_bits_at_real_widths(chunk: int) -> None:
    """Scores of no round numbers, as in use."""
    _, kernels = wide(torch.bfloat16, 4_000)
    kernels.index_keys.normal_()
    slots, new = torch.randperm(4_000, device="cuda"), 1_000
    q, index_q = random(new, 128, 576, dtype=torch.bfloat16), random(new, 64, 128, dtype=torch.bfloat16)
    gates = random(new, 64)
    kernels.plan([Segment(slots, new)])
    whole = kernels.attend(0, q, IndexQuery(index_q, gates))
    for begin in range(0, new, chunk):
        end = min(begin + chunk, new)
        kernels.plan([Segment(slots[: 4_000 - new + end], end - begin)])
        part = kernels.attend(0, q[begin:end], IndexQuery(index_q[begin:end], gates[begin:end]))
        assert torch.equal(part, whole[begin:end])


@torch.inference_mode()
def test_a_prefill_by_kernels_takes_no_more_than_planned() -> None:
    _, kernels = wide(torch.bfloat16, 32_768)
    rows = 2_048
    q, index_q = random(rows, 128, 576, dtype=torch.bfloat16), random(rows, 64, 128, dtype=torch.bfloat16)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    kernels.plan([Segment(torch.arange(32_768, device="cuda"), rows)])
    kernels.attend(0, q, IndexQuery(index_q, random(rows, 64)))
    given = q.nbytes + index_q.nbytes
    peak = torch.cuda.max_memory_allocated() - before + given
    assert peak <= kernel_prefill_bytes(WIDE, rows, WIDE.indexer.top_k, 2)
    # The control: what plain torch gathers for as many rows would not fit.
    assert peak < rows * WIDE.indexer.top_k * WIDE.row_dim


def full_rows(kind: type[StagedLatents], dtype: torch.dtype, parts: list[Segment], scale: float) -> Tensor:
    """Rows that attend to everything before them, with keys and values expanded."""
    torch.manual_seed(0)
    latents = kind(
        replace(WIDE, attention_scale=scale), 9_000, torch.device("cuda"), dtype, max_elements=2**26
    )
    latents.pool[0, :, 0, 0] = random(9_000, WIDE.row_dim, dtype=dtype)
    rows, none = sum(part.rows for part in parts), torch.empty(0)
    w = MlaWeights(
        none, none, none, none,
        random(128, 128, 512, dtype=dtype) * 512**-0.5, random(128, 512, 128, dtype=dtype) * 512**-0.5, none,
    )  # fmt: skip
    nope, rotated = random(rows, 128, 192, dtype=dtype).split([128, 64], dim=2)
    latents.plan(parts)
    out = latents.attend_full(0, w, Projected(none, nope, rotated, none))
    assert out is not None
    return out.float()


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_whole_sequences_by_a_kernel_equal_plain_torch_at_real_widths(dtype: torch.dtype) -> None:
    """A prompt that begins, one row, and rows behind a context of which not all heads are expanded at once."""
    slots = torch.randperm(9_000, device="cuda")
    parts = [
        Segment(slots[:1_000], 1_000),
        Segment(slots[1_000:1_009], 1),
        Segment(slots[1_009:], 700, full=True),
    ]
    scale = WIDE.attention_scale
    expected = full_rows(StagedLatents, dtype, parts, scale)
    found = full_rows(KernelLatents, dtype, parts, scale)
    # bfloat16: weights and output with 8 bits each. float32: 192 products and 7,991 values in another order.
    bound = 2**-7 if dtype == torch.bfloat16 else 1e-4
    largest = float(expected.abs().max())
    torch.testing.assert_close(found, expected, atol=bound * largest, rtol=0)
    # The control: another scale, that of a cache row.
    other = full_rows(KernelLatents, dtype, parts, WIDE.row_dim**-0.5)
    assert float((other - expected).abs().max()) > 4 * bound * largest


@torch.inference_mode()
def test_expanded_rows_have_the_same_bits_wherever_they_are_cut() -> None:
    """At real widths, alone and beside another prompt, of a sequence whose later rows select."""
    torch.manual_seed(0)
    dtype, none, seen = torch.bfloat16, torch.empty(0), WIDE.indexer.top_k
    latents = KernelLatents(WIDE, 4_000, torch.device("cuda"), dtype, max_elements=2**26)
    latents.pool[0, :, 0, 0] = random(4_000, WIDE.row_dim, dtype=dtype)
    up, down = (random(128, *shape, dtype=dtype) * 512**-0.5 for shape in ((128, 512), (512, 128)))
    w = MlaWeights(none, none, none, none, up, down, none)
    nope, rotated = random(3_000, 128, 192, dtype=dtype).split([128, 64], dim=2)
    slots = torch.randperm(4_000, device="cuda")

    def rows(begin: int, end: int, company: int = 0) -> Tensor:
        other = [Segment(slots[3_000 : 3_000 + company], company)] if company else []
        latents.plan([*other, Segment(slots[:end], end - begin)])
        both = [torch.cat((part[:company], part[begin:end])) for part in (nope, rotated)]
        new = Projected(both[0], both[0], both[1], both[0])
        out = latents.attend_full(0, w, new)
        assert out is not None
        return out[company : company + min(end, seen) - begin]

    whole = rows(0, 3_000)
    assert len(whole) == seen
    for begin, end, company in (
        (0, 300, 0),
        (960, 1_000, 0),
        (0, 1_024, 700),
        (2_047, 2_048, 0),
        (2_000, 2_100, 9),
    ):
        assert torch.equal(rows(begin, end, company), whole[begin : min(end, seen)])
    # The control: the first token shows in the last row.
    latents.pool[0, slots[0], 0, 0] += 10
    assert not torch.equal(rows(2_047, 2_048), whole[-1:])


@torch.inference_mode()
def test_a_prefill_of_whole_sequences_takes_no_more_than_planned() -> None:
    rows, length = 2_048, 32_768
    latents = KernelLatents(WIDE, length, torch.device("cuda"), torch.bfloat16, max_elements=SCORE_ELEMENTS)
    none = torch.empty(0)
    up, down = (random(128, *shape, dtype=torch.bfloat16) for shape in ((128, 512), (512, 128)))
    nope, rotated = random(rows, 128, 192, dtype=torch.bfloat16).split([128, 64], dim=2)
    latents.plan([Segment(torch.arange(length, device="cuda"), rows, full=True)])
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    w = MlaWeights(none, none, none, none, up, down, none)
    assert latents.attend_full(0, w, Projected(none, nope, rotated, none)) is not None
    peak = torch.cuda.max_memory_allocated() - before + nope.nbytes + rotated.nbytes
    assert peak <= kernel_prefill_bytes(WIDE, rows, WIDE.indexer.top_k, 2)
    # The control: all heads' keys and values at once would not fit.
    assert peak < length * 128 * 256 * 2
