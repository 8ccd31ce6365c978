"""Attention to whole sequences by a kernel against plain torch. Without a GPU it runs in Triton's interpreter."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hiscore.models.deepseek.config import DsaArchitecture, read_architecture
from hiscore.models.deepseek.latent_cache import Segment, StagedLatents
from hiscore.models.deepseek.latent_cache_triton import KernelLatents
from hiscore.models.deepseek.mla import Projected
from hiscore.models.deepseek.weights import MlaWeights
from tests.support import tiny_dsa
from tests.support.decode_kernels import DEVICE

pytestmark = pytest.mark.slow  # many interpreted programs

WHERE = torch.device(DEVICE)
SLOTS = 130
# Tokens and new rows: more than a tile's and a block's, one row, and a prompt that fills no block.
SEQUENCES = ((50, 40), (9, 9), (20, 1))


@pytest.fixture(scope="module")
def sizes(tmp_path_factory: pytest.TempPathFactory) -> DsaArchitecture:
    """Some widths are no powers of two."""
    checkpoint = tiny_dsa.make("deepseek", tmp_path_factory.mktemp("sizes"), index_topk=64)
    return read_architecture(checkpoint)[0]


def random(*shape: int, seed: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(WHERE, dtype)


def weights(a: DsaArchitecture, dtype: torch.dtype) -> MlaWeights:
    none = torch.empty(0)
    return MlaWeights(
        none, none, none, none,  # type: ignore[arg-type]
        random(a.heads, a.nope_dim, a.latent_rank, seed=1, dtype=dtype) / a.latent_rank**0.5,
        random(a.heads, a.latent_rank, a.value_dim, seed=2, dtype=dtype) / a.latent_rank**0.5,
        none,  # type: ignore[arg-type]
    )  # fmt: skip


def queries(a: DsaArchitecture, dtype: torch.dtype) -> Projected:
    rows = sum(new for _, new in SEQUENCES)
    # Views, as the projection's parts are.
    both = random(rows, a.heads, a.nope_dim + a.rope_dim, seed=3, dtype=dtype)
    nope, rotated = both.split([a.nope_dim, a.rope_dim], dim=2)
    return Projected(both, nope, rotated, both)


def slots() -> list[Tensor]:
    shuffled = torch.randperm(SLOTS, generator=torch.Generator().manual_seed(4)).to(WHERE)
    return list(shuffled[: sum(length for length, _ in SEQUENCES)].split([length for length, _ in SEQUENCES]))


def attended(
    kind: type[StagedLatents],
    a: DsaArchitecture,
    dtype: torch.dtype = torch.float32,
    max_elements: int = 2**20,
) -> Tensor:
    latents = kind(a, SLOTS, WHERE, dtype, max_elements=max_elements)
    # What no sequence has must never be read.
    latents.pool.fill_(float("nan"))
    held = torch.cat(slots())
    latents.pool[0, held, 0, 0] = random(len(held), a.row_dim, seed=5, dtype=dtype)
    latents.plan([Segment(each, new) for each, (_, new) in zip(slots(), SEQUENCES, strict=True)])
    out = latents.attend_full(0, weights(a, dtype), queries(a, dtype))
    assert out is not None
    return out.cpu().float()


@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-5), (torch.float16, 5e-3)])
def test_rows_attend_as_in_plain_torch(sizes: DsaArchitecture, dtype: torch.dtype, near: float) -> None:
    """float16 for 16 bits: Triton's interpreter multiplies the bits of bfloat16 as integers."""
    expected = attended(StagedLatents, sizes, dtype)
    # float32 sums of 40 products of about 1, and of at most 50 weighted values, in another order: 1e-5 is ten
    # times their rounding. float16 rounds weights, and values of up to 3, to 11 bits. One token more or less among
    # 50 weighs a hundredth.
    torch.testing.assert_close(attended(KernelLatents, sizes, dtype), expected, atol=near, rtol=0)
    # The control: another scale.
    wrong = replace(sizes, attention_scale=sizes.row_dim**-0.5)
    assert (attended(KernelLatents, wrong, dtype) - expected).abs().max() > 1e-2


def test_heads_may_be_computed_one_at_a_time(sizes: DsaArchitecture) -> None:
    whole = attended(KernelLatents, sizes)
    parts = attended(KernelLatents, sizes, max_elements=1)
    # Products of other widths, which expand, may add in another order; as above.
    torch.testing.assert_close(parts, whole, atol=1e-5, rtol=0)


def same(found: Tensor, expected: Tensor) -> bool:
    """To the bit on a GPU. In the interpreter NumPy multiplies a tile, and on some processors a row's sum
    depends on its place there: then to a few times float32's rounding of sums of O(1)."""
    return (
        torch.equal(found, expected) if found.is_cuda else torch.allclose(found, expected, rtol=0, atol=2e-6)
    )


@torch.inference_mode()
def test_neither_cuts_nor_neighbours_change_a_bit(sizes: DsaArchitecture) -> None:
    a, where = sizes, torch.randperm(SLOTS, generator=torch.Generator().manual_seed(6)).to(WHERE)
    latents = KernelLatents(a, SLOTS, WHERE, torch.float32)
    latents.pool[0, :, 0, 0] = random(SLOTS, a.row_dim, seed=5, dtype=torch.float32)
    nope, rotated = random(70, a.heads, a.nope_dim + a.rope_dim, seed=3, dtype=torch.float32).split(
        [a.nope_dim, a.rope_dim], dim=2
    )

    def rows(begin: int, end: int, company: int = 0) -> Tensor:
        """Of a sequence of 70 tokens, of which 64 attend to all before them, behind rows of another one."""
        other = [Segment(where[70 : 70 + 2 * company], company)] if company else []
        latents.plan([*other, Segment(where[:end], end - begin)])
        both = [torch.cat((part[:company], part[begin:end])) for part in (nope, rotated)]
        new = Projected(both[0], both[0], both[1], both[0])
        out = latents.attend_full(0, weights(a, torch.float32), new)
        assert out is not None
        return out[company : company + min(end, 64) - begin]

    whole = rows(0, 70)
    for begin, end, company in ((0, 40, 0), (0, 40, 20), (33, 64, 0), (63, 70, 5)):
        assert same(rows(begin, end, company), whole[begin : min(end, 64)])
    # The control: what a row sees shows, to the last token.
    latents.pool[0, where[0], 0, 0] += 0.01
    assert not same(rows(63, 70), whole[63:64])


@torch.inference_mode()
def test_a_whole_decoder_prefills_by_kernels(tmp_path: Path) -> None:
    """Whole sequences, then rows that select, through experts and all layers."""
    from hiscore.models.deepseek.decoder import DsaDecoder

    decoder = DsaDecoder(tiny_dsa.make("glm-experts", tmp_path), WHERE, torch.float32)
    ids = torch.randint(tiny_dsa.VOCABULARY, (45,), generator=torch.Generator().manual_seed(1)).int()
    found, chosen = [], []
    for kind in (StagedLatents, KernelLatents):
        latents, parts = kind(decoder.architecture, SLOTS, WHERE, torch.float32), []
        order = torch.randperm(SLOTS, generator=torch.Generator().manual_seed(2))[:45].to(WHERE)
        for begin, end in ((0, tiny_dsa.TOP_K), (tiny_dsa.TOP_K, 45)):
            latents.plan([Segment(order[:end], end - begin)])
            chosen.append(latents.selecting is None)
            positions = torch.arange(begin, end).int().to(WHERE)
            parts.append(decoder.tail(*decoder.body(ids[begin:end].to(WHERE), positions, latents)).cpu())
        found.append(torch.cat(parts))
    assert chosen == [False, True] * 2
    # As between any two float32 implementations here; a wrong row among those seen is 1e-3.
    torch.testing.assert_close(found[1], found[0], atol=1e-4, rtol=0)
