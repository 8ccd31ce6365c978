"""Tokens drawn by kernels are those of the sampler in PyTorch. Without a GPU they run in Triton's interpreter."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from hiscore.decoding.worker import triton_sampler
from hiscore.decoding.worker.sampler import sample
from hiscore.kernels.sample_candidates import list_candidates
from hiscore.kernels.sample_draw import draw_tokens
from tests.support.decode_kernels import DEVICE, sample_rows

pytestmark = pytest.mark.slow  # in the interpreter a row takes half a second

CASES = [
    (0.0, 0, 1.0, 0.0), (1.0, 0, 1.0, 0.0), (0.7, 5, 1.0, 0.0), (1.0, 0, 0.9, 0.0), (1.0, 20, 0.8, 0.0),
    (1.3, 0, 1.0, 0.1), (0.9, 9, 0.95, 0.05), (1.0, 1, 1.0, 0.0), (1.0, 10**6, 0.5, 0.0), (2.0, 3, 0.3, 0.5),
    (1e-10, 0, 0.5, 0.0), (1e30, 4, 1.0, 0.0), (1.0, 0, 1e-6, 0.0), (1.0, 0, 1.0, 1.0), (1.0, 0, 1e-50, 0.0),
    (1.0, 3, 1e-50, 0.0),
]  # fmt: skip


def options(cases: list[tuple[float, int, float, float]] = CASES) -> list[Tensor]:
    columns = zip(*cases, strict=True)
    kinds = (torch.float32, torch.int32, torch.float32, torch.float32)
    return [torch.tensor(values, dtype=kind) for values, kind in zip(columns, kinds, strict=True)]


def by_kernel(
    logits: Tensor, given: list[Tensor], uniforms: Tensor, block: int = 128, listed: int = 256
) -> Tensor:
    temperature, top_k, top_p, min_p = (each.to(DEVICE) for each in given)
    drawn = sample_rows(
        logits.to(DEVICE), temperature, top_k, top_p, uniforms.to(DEVICE), min_p, block, listed
    )
    return drawn.cpu()


def by_torch(logits: Tensor, given: list[Tensor], uniforms: Tensor) -> Tensor:
    temperature, top_k, top_p, min_p = given
    return sample(logits, temperature, top_k, top_p, uniforms, min_p)


def draws(rows: int, seed: int = 0) -> Tensor:
    return torch.rand(rows, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("vocabulary", "scale"), [(1, 1.0), (300, 0.3), (300, 4.0)])
def test_tokens_are_those_of_torch(vocabulary: int, scale: float) -> None:
    rows = len(CASES)
    logits = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(vocabulary)) * scale
    given, uniforms = options(), draws(rows)
    # Another rounding of exp could move a draw over a boundary; none of these is so close to one.
    assert by_kernel(logits, given, uniforms).tolist() == by_torch(logits, given, uniforms).tolist()


def test_equal_logits_are_told_apart_by_their_ids() -> None:
    logits = torch.randn(len(CASES), 200, generator=torch.Generator().manual_seed(3)).round()
    given, plain = options(), options([(1.0, 0, 1.0, 0.0)] * len(CASES))
    for seed in range(2):
        uniforms = draws(len(CASES), seed)
        expected = by_torch(logits, given, uniforms).tolist()
        assert by_kernel(logits, given, uniforms).tolist() == expected
        assert by_torch(logits, plain, uniforms).tolist() != expected, "the control: options matter"


def test_a_row_does_not_depend_on_the_others_nor_on_the_blocks() -> None:
    logits = torch.randn(len(CASES), 150, generator=torch.Generator().manual_seed(5)) * 3
    given, uniforms = options(), draws(len(CASES))
    together = by_kernel(logits, given, uniforms)
    for row in (3, 4, 6, 9):
        own = slice(row, row + 1)
        alone = by_kernel(logits[own], [each[own] for each in given], uniforms[own], block=32, listed=16)
        assert int(alone) == int(together[row])


def test_masked_and_broken_rows() -> None:
    inf, nan = math.inf, math.nan
    logits = torch.tensor(
        [[-inf, 5.0, -inf, -5.0, 60.0, -inf], [0, nan, 1, 0, 0, 0], [inf, 0, 1, 0, 0, 0], [-inf] * 6]
    )
    for case in CASES[:7]:
        given = options([case] * 4)
        drawn = by_kernel(logits, given, torch.full((4,), 0.5, dtype=torch.float64), block=8, listed=8)
        assert int(drawn[0]) in (1, 3, 4)
        first = [each[:1] for each in given]
        assert int(drawn[0]) == int(by_torch(logits[:1], first, torch.tensor([0.5], dtype=torch.float64)))
        assert bool(((drawn >= 0) & (drawn < 6)).all())


class Found:
    """Stands in for `draw_tokens`, and keeps how many candidates were found and what was certain before it."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.certain: list[int] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*arguments: Any, **keywords: Any) -> None:
            base, found = arguments[5:7]
            self.counts += found[0].tolist()
            self.certain += base.tolist()
            draw_tokens[grid](*arguments, **keywords)

        return launch


@pytest.mark.exhaustive
@pytest.mark.parametrize(("listed", "narrows", "searches"), [(16, True, True), (512, False, False)])
def test_candidates_beyond_the_list_are_narrowed_down_or_searched(
    listed: int, narrows: bool, searches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control is a list that holds them all: nothing is narrowed down and nothing searched."""
    cases = [(0, 0.5), (0, 0.99), (5, 0.9), (200, 1.0), (40, 0.3)]
    given, found = options([(1.0, *case, 0.0) for case in cases]), Found()
    monkeypatch.setattr(triton_sampler, "draw_tokens", found)
    for seed, scale in enumerate((0.02, 0.5, 2.0)):
        logits = torch.randn(5, 400, generator=torch.Generator().manual_seed(seed)) * scale
        for rounded in (logits, (logits / scale * 8).round() * scale / 8):
            uniforms = draws(5, seed)
            drawn = by_kernel(rounded, given, uniforms, 128, listed).tolist()
            assert drawn == by_torch(rounded, given, uniforms).tolist()
    kept = torch.tensor(found.counts) <= listed
    assert bool((torch.tensor(found.certain)[kept] > 0).any()) == narrows
    assert bool((~kept).any()) == searches


def test_lists_of_any_length_give_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short ones are sorted without the rest of the list."""
    cases = [(0, 0.5), (0, 0.99), (5, 0.9), (60, 1.0), (40, 0.3), (0, 0.9)]
    given, uniforms = options([(1.0, *case, 0.0) for case in cases]), draws(6)
    logits = torch.randn(6, 400, generator=torch.Generator().manual_seed(2)) * 2
    expected = by_torch(logits, given, uniforms).tolist()
    ways = set()
    for short, listed in ((16, 128), (64, 64), (2, 16)):
        found = Found()
        monkeypatch.setattr(triton_sampler, "draw_tokens", found)
        monkeypatch.setattr(triton_sampler, "SHORT", short)
        assert by_kernel(logits, given, uniforms, 128, listed).tolist() == expected
        for count, certain in zip(found.counts, found.certain, strict=True):
            ways.add((int(count > short) + int(count > listed), certain > 0))
    # The control: each way was gone.
    assert ways >= {(0, False), (0, True), (1, False), (2, False)}


def test_the_last_that_is_kept_may_be_of_the_least_weight() -> None:
    """A mass of 512 of 2^32 is cut off, of tokens that weigh 1 to 5; a list of 16 holds few of them."""
    logits = torch.rand(4, 400, generator=torch.Generator().manual_seed(4)) * 2 - 1.5
    logits[:, 0] = 21
    uniforms = 1 - torch.tensor([10, 100, 200, 300], dtype=torch.float64) / 2**32
    given = options([(1.0, 0, 1 - 2**-23, 0.0)] * 4)
    drawn = by_kernel(logits, given, uniforms, 128, 16).tolist()
    assert drawn == by_torch(logits, given, uniforms).tolist()
    assert len(set(drawn)) > 2, "the control: they are drawn from those that weigh little"


@pytest.mark.parametrize("greatest", [1.0, -math.inf])
def test_a_split_of_small_logits_is_not_read(greatest: float) -> None:
    """By its greatest: with one that is too small even those that would be candidates are not found."""
    logits = torch.zeros(1, 16, device=DEVICE)
    logits[0, [2, 9, 11]] = 1.0
    row_options = torch.zeros(10, 1, dtype=torch.float64)
    row_options[2], row_options[3], row_options[4] = 1, 3, 1
    ranges = torch.tensor([[2.0**31], [math.inf], [0], [0], [1.0]], dtype=torch.float64)
    found = torch.zeros(2, 1, dtype=torch.int32, device=DEVICE)
    sums, listed = (torch.zeros(shape, dtype=torch.int64, device=DEVICE) for shape in ((2, 1, 2), (1, 8)))
    list_candidates[(2, 1)](
        logits, row_options.to(DEVICE), torch.tensor([[1.0, greatest]], device=DEVICE), sums, ranges.to(DEVICE),
        found, listed, 16, 16, BLOCK=8, LISTED=8, CHAINED=False,
    )  # fmt: skip
    assert int(found[0]) == (3 if greatest == 1.0 else 1)
