"""Prefill with an indexer by kernels against plain torch. Without a GPU they run in Triton's interpreter."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from hiscore.models.deepseek.config import DsaArchitecture, read_architecture
from hiscore.models.deepseek.indexer import IndexQuery
from hiscore.models.deepseek.latent_cache import Segment, StagedLatents
from hiscore.models.deepseek.latent_cache_triton import KernelLatents
from hiscore.models.deepseek.prefill_tiles import ROWS
from tests.support import tiny_dsa
from tests.support.decode_kernels import DEVICE

pytestmark = pytest.mark.slow  # hundreds of interpreted programs

WHERE = torch.device(DEVICE)
SLOTS, TOP_K = 130, tiny_dsa.TOP_K
# Tokens and new rows: more than a tile's, fewer than the top-k, a single one, and rows on both sides of the top-k.
SEQUENCES = ((50, 20), (9, 9), (40, 1), (21, 8))


@pytest.fixture(scope="module")
def sizes(tmp_path_factory: pytest.TempPathFactory) -> DsaArchitecture:
    architecture, _ = read_architecture(tiny_dsa.make("glm-shared", tmp_path_factory.mktemp("sizes")))
    return architecture


@dataclass(frozen=True)
class Rows:
    """Random rows of a forward, and what the pool holds."""

    q: Tensor
    index: IndexQuery
    pool: Tensor
    index_keys: Tensor
    slots: list[Tensor]


def rows_of(a: DsaArchitecture, whole_numbers: bool, seed: int = 0) -> Rows:
    """whole_numbers: of the indexer. Then every sum is exact in any order, and many scores are equal."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    def of_indexer(*shape: int) -> Tensor:
        return (random(*shape) / 2).round() if whole_numbers else random(*shape)

    rows, indexer = sum(new for _, new in SEQUENCES), a.indexer
    shuffled = torch.randperm(SLOTS, generator=generator)
    return Rows(
        q=random(rows, a.heads, a.row_dim),
        index=IndexQuery(of_indexer(rows, indexer.heads, indexer.head_dim), of_indexer(rows, indexer.heads)),
        pool=random(SLOTS, a.row_dim),
        index_keys=of_indexer(SLOTS, indexer.head_dim),
        slots=list(shuffled[: sum(n for n, _ in SEQUENCES)].split([n for n, _ in SEQUENCES])),
    )


def staged(kind: type[StagedLatents], a: DsaArchitecture, rows: Rows, **options: int) -> StagedLatents:
    made = kind(a, SLOTS, WHERE, rows.q.dtype, **options)
    # What no sequence has must never be read.
    made.pool.fill_(float("nan"))
    made.index_keys.fill_(float("nan"))
    held = torch.cat(rows.slots).to(WHERE)
    made.pool[:, held, 0, 0] = rows.pool.to(WHERE)[held]
    made.index_keys[:, held] = rows.index_keys.to(WHERE)[held]
    return made


def segments(rows: Rows) -> list[Segment]:
    return [Segment(slots.to(WHERE), new) for slots, (_, new) in zip(rows.slots, SEQUENCES, strict=True)]


def attend(latents: StagedLatents, rows: Rows, shares: bool = False) -> Tensor:
    """The rows that select, in a layer with an indexer or in one that shares the selection before it."""
    at = torch.arange(len(rows.q)) if latents.selecting is None else latents.selecting.cpu()
    q, index_q, gates = (x[at].to(WHERE) for x in (rows.q, rows.index.q, rows.index.gates))
    return latents.attend(int(shares), q, None if shares else IndexQuery(index_q, gates)).cpu()


def selected(latents: StagedLatents) -> list[list[int]]:
    """The pool slots that each row attends to."""
    if isinstance(latents, KernelLatents):
        begins, counts = latents._begins.tolist(), latents._counts.tolist()
        return [latents._lists[b : b + n].tolist() for b, n in zip(begins, counts, strict=True)]
    found = []
    for piece, chosen in zip(latents._pieces, latents._selected, strict=True):
        for row, length in enumerate(piece.lengths.tolist()):
            at = torch.arange(length, device=WHERE) if chosen is None else chosen[row]
            found.append(piece.slots[at[at >= 0].long()].tolist())
    return found


@pytest.mark.exhaustive
def test_the_choice_is_that_of_plain_torch_to_the_last_tie(sizes: DsaArchitecture) -> None:
    ties_decide = False
    for seed in range(2):
        rows = rows_of(sizes, whole_numbers=True, seed=seed)
        # Its tokens the other way round: the last row sees the same ones, but ties go the other way.
        turned = replace(rows, slots=[slots.flip(0) for slots in rows.slots])
        last = []
        for each in (rows, turned):
            plain, kernels = (staged(kind, sizes, each) for kind in (StagedLatents, KernelLatents))
            for latents in (plain, kernels):
                latents.plan(segments(each))
                attend(latents, each)
            assert selected(kernels) == selected(plain)
            assert max(map(len, selected(plain))) == TOP_K
            last.append(set(selected(kernels)[SEQUENCES[0][1] - 1]))
        ties_decide |= last[0] != last[1]
    # The control: a rule for ties that is not this one is told apart.
    assert ties_decide


def test_rows_attend_as_in_plain_torch(sizes: DsaArchitecture) -> None:
    rows = rows_of(sizes, whole_numbers=True)
    plain, kernels = (staged(kind, sizes, rows) for kind in (StagedLatents, KernelLatents))
    for latents in (plain, kernels):
        latents.plan(segments(rows))
    expected = attend(plain, rows)
    # float32 sums of 48 products of about 1, and of at most 50 weighted values, in another order: 1e-5 is ten
    # times their rounding. One token more or less among 50 weighs a hundredth.
    torch.testing.assert_close(attend(kernels, rows), expected, atol=1e-5, rtol=0)
    # The control: a token less for each row that selects.
    fewer = staged(KernelLatents, sizes, rows, top_k=TOP_K - 1)
    fewer.plan(segments(rows))
    new = SEQUENCES[0][1]
    assert (attend(fewer, rows)[:new] - expected[:new]).abs().max() > 1e-2


def test_a_layer_that_shares_uses_the_selection_before_it(sizes: DsaArchitecture) -> None:
    rows = rows_of(sizes, whole_numbers=True)
    plain, kernels = (staged(kind, sizes, rows) for kind in (StagedLatents, KernelLatents))
    found = []
    for latents in (plain, kernels):
        latents.plan(segments(rows))
        attend(latents, rows)
        found.append(attend(latents, rows, shares=True))
    # As above.
    torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("chunk", [1, 7, ROWS])
def test_chunks_of_any_size_select_alike_and_attend_to_same_bits(sizes: DsaArchitecture, chunk: int) -> None:
    """Scores are of no round numbers, as they are in use."""
    rows = rows_of(sizes, whole_numbers=False)
    (length, new), slots = SEQUENCES[0], rows.slots[0].to(WHERE)
    whole = staged(KernelLatents, sizes, rows)
    whole.plan([Segment(slots, new)])
    first = Rows(
        rows.q[:new], IndexQuery(rows.index.q[:new], rows.index.gates[:new]), rows.pool, rows.index_keys, []
    )
    expected, choice = attend(whole, first), selected(whole)
    parts = staged(KernelLatents, sizes, rows)
    for begin in range(0, new, chunk):
        end = min(begin + chunk, new)
        parts.plan([Segment(slots[: length - new + end], end - begin)])
        some = IndexQuery(rows.index.q[begin:end], rows.index.gates[begin:end])
        found = attend(parts, Rows(rows.q[begin:end], some, rows.pool, rows.index_keys, []))
        assert selected(parts) == choice[begin:end]
        assert torch.equal(found, expected[begin:end])


def test_bounded_scores_change_nothing(sizes: DsaArchitecture) -> None:
    rows = rows_of(sizes, whole_numbers=False)
    whole, bounded = staged(KernelLatents, sizes, rows), staged(KernelLatents, sizes, rows, max_elements=900)
    for latents in (whole, bounded):
        latents.plan(segments(rows))
    # 900 scores are one tile of the first sequence's rows, or several of short ones.
    assert (len(whole._passes), len(bounded._passes)) == (1, 2)
    assert torch.equal(attend(bounded, rows), attend(whole, rows))
