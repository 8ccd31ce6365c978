"""Weights are cut into bins where the kernels that read the bins say that they are."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from hiscore.kernels.fixed_point import bin_of, edge_of_bin, least_of_bin
from tests.support.decode_kernels import DEVICE

BINS = 256


@triton.jit
def edges(to):
    number = tl.arange(0, 256)
    tl.store(to + number, edge_of_bin(number - 1))


@triton.jit
def bins(weights, to):
    number = tl.arange(0, 256)
    tl.store(to + number, bin_of(tl.load(weights + number)))


@triton.jit
def least(to):
    number = tl.arange(0, 256)
    tl.store(to + number, least_of_bin(number))


def edges_of_bins() -> Tensor:
    found = torch.zeros(BINS, dtype=torch.int32, device=DEVICE)
    edges[(1,)](found)
    return found.view(torch.float32)


def bins_of(weights: Tensor) -> list[int]:
    found = torch.zeros(BINS, dtype=torch.int32, device=DEVICE)
    bins[(1,)](weights, found)
    return found.tolist()


def test_bins_begin_at_their_edges() -> None:
    own = edges_of_bins()
    assert bins_of(own)[1:] == list(range(BINS - 1))
    # The control: the next smaller number is in the next bin.
    assert bins_of(torch.nextafter(own, torch.zeros_like(own))) == list(range(BINS))


def test_the_likeliest_is_in_the_first_bin_and_a_weight_of_one_in_the_last() -> None:
    own = edges_of_bins()
    own[0], own[1] = 2.0**32, 1.0
    assert bins_of(own)[:2] == [0, BINS - 1]


def test_a_bin_holds_no_weight_below_its_least() -> None:
    found = torch.zeros(BINS, dtype=torch.int64, device=DEVICE)
    least[(1,)](found)
    assert found[: BINS - 1].tolist() == edges_of_bins()[1:].long().tolist()
    assert int(found[BINS - 1]) == 1
