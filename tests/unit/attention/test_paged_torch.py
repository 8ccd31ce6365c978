"""Attention over pages: its definition, and that a row's bits are its own."""

import pytest
import torch
from torch import Tensor

from hiscore.attention.paged_torch import paged_attention


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_a_row_s_bits_are_its_own(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randn(160, 2, 2, 8, generator=generator).to(dtype)
    q = 3 * torch.randn(3, 6, 8, generator=generator).to(dtype)
    lists = torch.stack([torch.randperm(40, generator=generator)[:16].view(2, 8) for _ in range(3)]).int()
    counts = torch.tensor([[8], [0], [5]], dtype=torch.int32).expand(3, 2)
    positions = torch.tensor([31, 0, 17], dtype=torch.int32)

    def attend(rows: slice, pages: Tensor) -> Tensor:
        return paged_attention(q[rows], tokens, 4, pages[rows], counts[rows], positions[rows], 0.3)

    together = attend(slice(3), lists)
    assert not together[1].any()
    for row in range(3):
        assert torch.equal(attend(slice(row, row + 1), lists)[0], together[row])
    # The control: the same pages in another order have other bits, in the rounding of sums of 32 weights.
    if dtype == torch.float32:
        turned = attend(slice(1), lists.flip(2))
        assert not torch.equal(turned, together[:1])
        torch.testing.assert_close(turned, together[:1], atol=1e-5, rtol=0)


@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize("soft_cap", [None, 0.7])
@pytest.mark.parametrize("window", [None, 1, 6, 50])
@pytest.mark.parametrize("latent", [False, True])
def test_it_is_the_softmax_of_its_definition(
    latent: bool, window: int | None, soft_cap: float | None, with_sinks: bool
) -> None:
    generator = torch.Generator().manual_seed(11)
    heads, kv_heads, width, value_width, page = 6, 1 if latent else 2, 8, 5 if latent else 8, 4
    tokens = torch.randn(160, 1 if latent else 2, kv_heads, width, generator=generator, dtype=torch.float64)
    q = torch.randn(3, heads, width, generator=generator, dtype=torch.float64)
    sinks = torch.randn(heads, generator=generator, dtype=torch.float64)
    positions = torch.tensor([22, 0, 13], dtype=torch.int32)
    counts = torch.tensor([[4], [0], [2]], dtype=torch.int32).expand(3, kv_heads)
    device_pages = torch.stack([torch.randperm(40, generator=generator)[: kv_heads * 5] for _ in range(3)])
    device_pages = device_pages.view(3, kv_heads, 5).int()
    of_latents, of_sinks = value_width if latent else None, sinks if with_sinks else None
    lists = tokens, page, device_pages, counts, positions
    out = paged_attention(q, *lists, 0.3, soft_cap, window, of_latents, of_sinks)
    assert out.shape == (3, heads, value_width)
    assert not out[1].any()
    for row, last in [(0, [0, 1, 2]), (2, [0, 1])]:
        for head in range(heads):
            kv_head = head * kv_heads // heads
            listed = device_pages[row, kv_head, : int(counts[row, 0])].tolist()
            seen = [page_index * page + offset for page_index in listed[:-1] for offset in range(page)]
            seen += [listed[-1] * page + offset for offset in last]
            seen = seen if window is None else seen[-window:]
            logits = [(q[row, head] * tokens[at, 0, kv_head]).sum() * 0.3 for at in seen]
            if soft_cap is not None:
                logits = [soft_cap * torch.tanh(logit / soft_cap) for logit in logits]
            values = torch.stack([tokens[at, -1, kv_head, :value_width] for at in seen])
            # float64 sums of at most 15 terms.
            weights = torch.stack(logits).exp()
            expected = weights @ values / (weights.sum() + (sinks[head].exp() if with_sinks else 0))
            torch.testing.assert_close(out[row, head], expected, atol=1e-14, rtol=1e-13)


def test_lists_of_different_lengths_are_refused() -> None:
    lists, counts = torch.zeros(1, 2, 2, dtype=torch.int32), torch.tensor([[2, 1]])
    with pytest.raises(ValueError, match=r"heads of row 0 have lists of different lengths: \[2, 1\]"):
        paged_attention(torch.ones(1, 2, 4), torch.ones(8, 2, 2, 4), 4, lists, counts, torch.tensor([7]), 1)
