"""The k largest by a kernel. Without a GPU it runs in Triton's interpreter, on the CPU."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from hiscore.kernels import top_k
from tests.support.decode_kernels import DEVICE, random


@triton.jit
def _top_k(values, keys, out, taken_out, count, k, most, BLOCK: tl.constexpr, EQUALS: tl.constexpr):
    for begin in range(0, count, BLOCK):
        place = begin + tl.arange(0, BLOCK)
        value = tl.load(values + place, mask=place < count, other=0.0)
        key = top_k.float_key(value) if value.dtype == tl.float32 else value.to(tl.uint32)
        tl.store(keys + place, key, mask=place < count)
    tl.debug_barrier()
    low, allowed = top_k.kth_largest(keys, count, k, tl.cast(most, tl.uint32), BLOCK)
    allowed += EQUALS
    ties = count * 0
    taken = count * 0
    for begin in range(0, count, BLOCK):
        place = begin + tl.arange(0, BLOCK)
        key = tl.load(keys + place, mask=place < count, other=0)
        chosen, rank, ties, taken = top_k.select(key, place < count, low, allowed, ties, taken)
        tl.store(out + rank, place, mask=chosen)
    tl.store(taken_out, taken)


def run_top_k(values: Tensor, k: int, block: int = 16, equals: int = 0, most: int = 0xFFFFFFFF) -> list[int]:
    """Of float32 by their keys, or of int32 that are keys."""
    keys = torch.empty(len(values), dtype=torch.uint32, device=DEVICE)
    out = torch.full((len(values),), -7, dtype=torch.int32, device=DEVICE)
    taken = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    _top_k[(1,)](values.to(DEVICE), keys, out, taken, len(values), k, most, BLOCK=block, EQUALS=equals)
    assert (out[int(taken) :] == -7).all()
    return out[: int(taken)].tolist()


def sorted_top_k(values: Tensor, k: int) -> list[int]:
    return sorted(sorted(range(len(values)), key=lambda at: (-float(values[at]), at))[:k])


@pytest.mark.slow
@pytest.mark.parametrize("make", [
    lambda x: x, lambda x: x.round(), lambda x: x * 1e-42, lambda x: x * 0, lambda x: x * -0.0,
    lambda x: (x * 40).round() * float("inf"), lambda x: x.abs() * 1e38, lambda x: -x.abs(),
], ids=["any", "ties", "denormal", "zeros", "both zeros", "infinite", "great", "negative"])  # fmt: skip
def test_the_k_largest_are_a_sort_s_with_ties_to_the_lower_place(make: Callable[[Tensor], Tensor]) -> None:
    rng = np.random.default_rng(0)
    for seed in range(5):
        count = int(rng.integers(1, 70))
        values = make(random(count, seed=seed).cpu()).nan_to_num(nan=0.0, posinf=np.inf, neginf=-np.inf)
        for k in {1, int(rng.integers(1, count + 1)), count}:
            assert run_top_k(values, k) == sorted_top_k(values, k)
    # The control: one more of the equals is one too many.
    assert run_top_k(torch.zeros(20), 3, equals=1) != sorted_top_k(torch.zeros(20), 3)


@pytest.mark.slow
def test_bits_that_no_key_has_need_no_pass() -> None:
    rng = np.random.default_rng(1)
    for most in (1, 2, 3, 4, 15, 16, 17, 40_000, 2**30 - 1, 2**30, 2**31 - 1):
        ages = torch.from_numpy(rng.integers(0, most, 40, endpoint=True).astype(np.int32))
        ages[rng.integers(40)] = most
        for k in (1, int(rng.integers(2, 40)), 40):
            assert run_top_k(ages, k, most=most) == sorted_top_k(ages, k)
    # The control: one key is greater than said.
    assert run_top_k(torch.tensor([3, 9, 3, 3], dtype=torch.int32), 1, most=3) != [1]


def test_nan_among_scores_changes_how_many_are_chosen_by_none() -> None:
    values = random(40, seed=3)
    values[::7] = float("nan")
    values[1::7] = -float("nan")
    assert len(set(run_top_k(values, 11))) == 11
