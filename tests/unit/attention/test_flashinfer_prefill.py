"""When FlashInfer computes attention in prompts, and which pages it is given."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hiscore.attention.base import AttentionShape
from hiscore.attention.flashinfer_prefill import (
    LENGTHS_BYTES,
    PLAN_BYTES,
    FlashInferAttention,
    PagedSizes,
    buffer_bytes,
    choose_prefill_attention,
    page_tables,
    why_not,
)
from hiscore.decoding.models.gqa import pack_chunks
from tests.support.prefill_chunks import chunk

SHAPE = AttentionShape(4, 2, 64, 0.125, None, (None, None))
CPU = torch.device("cpu")
SIZES = PagedSizes(16, 64, 256, 4)


def test_a_segments_pages_hold_its_context_and_its_own_tokens() -> None:
    forward = pack_chunks([chunk([7, 3, 5], 16, 40), chunk([1], 0, 9), chunk([4, 2], 5, 20)])
    tables, lengths = page_tables(forward, 16)
    assert [table.tolist() for table in tables] == [[7, 3, 5], [1], [4, 2]]
    assert lengths.tolist() == [40, 9, 20]


def test_the_cpu_has_our_own_attention() -> None:
    assert choose_prefill_attention("auto", SHAPE, torch.bfloat16, CPU, SIZES) is None
    assert choose_prefill_attention("triton", SHAPE, torch.bfloat16, CPU, SIZES) is None


def test_flashinfer_is_refused_by_name_where_it_cannot_be_used() -> None:
    with pytest.raises(ValueError, match=r"PREFILL_ATTENTION is flashinfer.*compute capability"):
        choose_prefill_attention("flashinfer", SHAPE, torch.bfloat16, CPU, SIZES)


def test_what_is_planned_for_its_buffers_is_what_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[torch.Tensor] = []

    def wrapper(workspace: torch.Tensor, layout: str, **named: Any) -> SimpleNamespace:
        given.extend((workspace, *(each for each in named.values() if isinstance(each, torch.Tensor))))
        return SimpleNamespace(plan=lambda *args, **named: None)

    def nothing(*args: Any) -> None: ...

    event = SimpleNamespace(synchronize=nothing, record=nothing)
    monkeypatch.setitem(
        sys.modules, "flashinfer", SimpleNamespace(BatchPrefillWithPagedKVCacheWrapper=wrapper)
    )
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    monkeypatch.setattr(torch.cuda, "current_stream", nothing)
    FlashInferAttention(SHAPE, torch.bfloat16, CPU, SIZES)
    assert len(given) == 5
    on_device, pinned = buffer_bytes(SIZES)
    assert on_device - PLAN_BYTES - LENGTHS_BYTES == sum(each.nbytes for each in given)
    assert pinned == PLAN_BYTES


@pytest.mark.parametrize(
    ("shape", "dtype", "reason"),
    [
        (SHAPE, torch.float32, "16 bits"),
        (AttentionShape(4, 2, 80, 0.1, None, (None,)), torch.bfloat16, "heads of 80"),
        (AttentionShape(4, 2, 64, 0.1, 30.0, (None,)), torch.bfloat16, "soft caps"),
        (AttentionShape(4, 2, 64, 0.1, None, (None, 128)), torch.bfloat16, "windows"),
        (SHAPE, torch.bfloat16, ""),
    ],
)
def test_what_it_cannot_compute(
    shape: AttentionShape, dtype: torch.dtype, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    found = why_not(shape, dtype, torch.device("cuda"))
    assert reason in found
    assert bool(found) == bool(reason)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert "9.0" in why_not(shape, dtype, torch.device("cuda"))
