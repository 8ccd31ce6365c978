"""Sampling on a CUDA device: no host waits, and the same in a graph and in any batch."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from hiscore.decoding.worker.sampler import sample
from tests.support.decode_kernels import sample_rows

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]

ROWS = 40


def batch(vocabulary: int, device: str = "cuda") -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    tensors = [
        torch.randn(ROWS, vocabulary, generator=generator) * 4,
        torch.tensor([0.0, 0.3, 1.0, 1.7]).repeat(ROWS)[:ROWS],
        torch.tensor([0, 1, 50, 10**6, 3], dtype=torch.int32).repeat(ROWS)[:ROWS],
        torch.tensor([1.0, 0.9, 0.5]).repeat(ROWS)[:ROWS],
        torch.rand(ROWS, generator=generator, dtype=torch.float64),
    ]
    return [tensor.to(device) for tensor in tensors]


@pytest.mark.parametrize("vocabulary", [7, 1000, 151_936])
def test_a_row_does_not_depend_on_the_others(vocabulary: int) -> None:
    tensors = batch(vocabulary)
    together = sample(*tensors)
    alone = [sample(*(tensor[row : row + 1] for tensor in tensors)) for row in range(ROWS)]
    assert torch.equal(together, torch.cat(alone))
    # Another rounding of exp could move a draw over a boundary; none of these is so close to one.
    assert torch.equal(together.cpu(), sample(*batch(vocabulary, "cpu")))


def with_min_p(tensors: list[Tensor]) -> list[Tensor]:
    return [*tensors, torch.tensor([0.0, 0.02], device=tensors[0].device).repeat(ROWS)[:ROWS]]


@pytest.mark.parametrize("draw", [sample, sample_rows])
def test_of_equal_logits_the_lower_ids_stay(draw: Callable[..., Tensor]) -> None:
    logits = torch.zeros(ROWS, 151_936, device="cuda")
    logits[:, 5::7] = 1
    _, temperature, top_k, top_p, uniforms = batch(8)
    off = torch.zeros_like(temperature)
    full, twenty = torch.ones_like(temperature), torch.full_like(top_k, 20)
    ids = draw(logits, full, twenty, torch.ones_like(top_p), uniforms, off)
    assert ids.tolist() == [5 + 7 * int(uniform * 20) for uniform in uniforms.tolist()]
    assert draw(logits, off, top_k, top_p, uniforms, off).tolist() == [5] * ROWS


@pytest.mark.parametrize("draw", [sample, partial(sample, filtered=False), sample_rows])
def test_nothing_waits_and_a_graph_gives_the_same(draw: Callable[..., Tensor]) -> None:
    tensors = with_min_p(batch(151_936))
    expected = draw(*tensors)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.raises(RuntimeError, match="synchronizing"):
            tensors[1].max().item()  # the control
        again = draw(*tensors)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(again, expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = draw(*tensors)
    tensors[4].copy_(tensors[4].flip(0))
    graph.replay()
    assert torch.equal(captured, draw(*tensors))
    assert not torch.equal(captured, expected)


@pytest.mark.parametrize("vocabulary", [7, 1000, 49_152, 151_936])
@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_kernels_draw_what_torch_draws(vocabulary: int, scale: float) -> None:
    """0.1: so flat that thousands of tokens are candidates."""
    tensors = with_min_p(batch(vocabulary))
    tensors[0] *= scale
    drawn = sample_rows(*tensors)
    # Another rounding of exp could move a draw over a boundary; allow for one in these rows.
    assert int((drawn != sample(*tensors)).sum()) <= 1
    alone = [sample_rows(*(tensor[row : row + 1] for tensor in tensors)) for row in range(ROWS)]
    assert torch.equal(drawn, torch.cat(alone))
