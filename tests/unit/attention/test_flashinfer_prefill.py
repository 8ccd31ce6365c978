"""When FlashInfer computes attention in prompts, and which pages it is given."""

import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hiscore.attention import flashinfer_blocks, flashinfer_prefill
from hiscore.attention.base import AttentionShape
from hiscore.attention.flashinfer_blocks import jit_args
from hiscore.attention.flashinfer_prefill import (
    FlashInferAttention,
    choose_prefill_attention,
    page_tables,
    why_not,
)
from hiscore.attention.flashinfer_rows import MIN_ROWS, is_whole
from hiscore.attention.flashinfer_sizes import LENGTHS_BYTES, PLAN_BYTES, PagedSizes, buffer_bytes
from hiscore.decoding.interface.worker import PrefillChunk
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


@pytest.mark.parametrize(
    ("chunks", "whole"),
    [
        ([chunk([7, 3, 5], 0, 40)], True),
        ([chunk([7, 3, 5], 16, 40)], False),
        ([chunk([7, 3, 5], 0, 40), chunk([1], 0, 9)], False),
    ],
)
def test_a_forward_is_one_whole_prompt_or_not(chunks: list[PrefillChunk], whole: bool) -> None:
    forward = pack_chunks(chunks)
    assert is_whole(forward) == whole
    two_items = np.array([0, 4, *forward.cu_seqlens[1:]], np.int32)
    assert not is_whole(forward._replace(cu_seqlens=two_items))


def test_forwards_of_many_rows_need_two_plans() -> None:
    few, many = (buffer_bytes(PagedSizes(16, 64, rows, 4)) for rows in (MIN_ROWS - 1, MIN_ROWS))
    assert many[1] == 2 * few[1] == 2 * PLAN_BYTES
    assert many[0] - few[0] == PLAN_BYTES


def test_blocks_that_cannot_be_compiled_leave_the_librarys(
    hopper: torch.device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[list[Any] | None] = []

    def wrapper(*args: Any, jit_args: list[Any] | None = None, **named: Any) -> SimpleNamespace:
        made.append(jit_args)
        if jit_args:
            raise RuntimeError("Could not find nvcc\nanywhere")
        return SimpleNamespace(plan=lambda *args, **named: None)

    monkeypatch.setitem(
        sys.modules, "flashinfer", SimpleNamespace(BatchPrefillWithPagedKVCacheWrapper=wrapper)
    )
    shape, sizes = replace(SHAPE, head_dim=128), replace(SIZES, max_rows=MIN_ROWS)
    with caplog.at_level("INFO"):
        found = choose_prefill_attention(shape, torch.bfloat16, hopper, sizes)
    assert found is not None
    assert found.over_rows(MIN_ROWS) is None
    asked, library = made
    assert asked == jit_args(torch.bfloat16)
    assert library is None
    assert "larger blocks cannot be compiled: RuntimeError: Could not find nvcc" in caplog.text
    # Control: memory that runs out is no reason for other blocks.
    made.clear()
    monkeypatch.setattr(flashinfer_blocks, "jit_args", out_of_memory)
    with pytest.raises(torch.OutOfMemoryError):
        choose_prefill_attention(shape, torch.bfloat16, hopper, sizes)
    assert not made


@pytest.mark.parametrize(
    ("over_rows", "told"),
    [(1, ""), (2, "FlashInfer's bits over rows are others"), (None, "FlashInfer fails over rows")],
)
def test_whole_prompts_attend_over_rows_if_that_has_the_bits_of_pages(
    over_rows: float | None,
    told: str,
    hopper: torch.device,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A version of FlashInfer with other types would leave it other blocks over pages."""

    def computing(value: float | None) -> Callable[..., SimpleNamespace]:
        def run(*args: Any, out: torch.Tensor, **named: Any) -> None:
            if value is None:
                raise RuntimeError("no such kernel")
            out.fill_(value)

        return lambda *args, **named: SimpleNamespace(plan=lambda *args, **named: None, run=run)

    module = SimpleNamespace(
        BatchPrefillWithPagedKVCacheWrapper=computing(1),
        BatchPrefillWithRaggedKVCacheWrapper=computing(over_rows),
    )
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    shape, sizes = replace(SHAPE, head_dim=128), replace(SIZES, max_rows=MIN_ROWS)
    with caplog.at_level("INFO"):
        found = choose_prefill_attention(shape, torch.bfloat16, hopper, sizes)
    assert found is not None
    assert (found.over_rows(MIN_ROWS) is None) == bool(told)
    assert found.over_rows(MIN_ROWS - 1) is None
    assert told in caplog.text
    assert ("whole prompts attend over pages, too" in caplog.text) == bool(told)
    found.drop_rows()
    assert found.over_rows(MIN_ROWS) is None


def out_of_memory(dtype: torch.dtype) -> list[Any]:
    raise torch.OutOfMemoryError


def test_the_cpu_has_our_own_attention() -> None:
    assert choose_prefill_attention(SHAPE, torch.bfloat16, CPU, SIZES) is None


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


def planning(plan: Callable[..., None]) -> SimpleNamespace:
    """A FlashInfer with which this happens as soon as its kernels are needed."""
    wrapper = SimpleNamespace(plan=plan)
    return SimpleNamespace(BatchPrefillWithPagedKVCacheWrapper=lambda *args, **named: wrapper)


def failing(error: BaseException) -> SimpleNamespace:
    def plan(*args: Any, **named: Any) -> None:
        raise error

    return planning(plan)


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """A GPU for which FlashInfer has kernels, as far as these tests go: its memory is the CPU's."""

    def on_cpu(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        return lambda *args, device=None, **named: make(*args, **named)

    event = SimpleNamespace(synchronize=lambda: None, record=lambda stream: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(torch, "zeros", on_cpu(torch.zeros))
    monkeypatch.setattr(torch, "empty", on_cpu(torch.empty))
    monkeypatch.setattr(torch, "arange", on_cpu(torch.arange))
    monkeypatch.setattr(flashinfer_prefill, "upload", lambda array, device: array)
    return torch.device("cuda")


@pytest.mark.parametrize(
    ("module", "reason", "loads"),
    [
        (None, "flashinfer", False),
        (failing(RuntimeError("Could not find nvcc and default cuda_home='/x' doesn't exist")), "nvcc", True),
        (failing(RuntimeError("Ninja build failed. Ninja output:\nmany\nlines")), "Ninja build failed", True),
        (failing(FileNotFoundError(2, "No such file or directory", "ninja")), "'ninja'", True),
        (failing(OSError("libcudart.so.13: cannot open shared object file")), "libcudart", True),
    ],
)
def test_where_flashinfer_cannot_be_loaded_our_own_kernel_is_used_and_the_log_says_why(
    hopper: torch.device,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    module: Any,
    reason: str,
    loads: bool,
) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    with caplog.at_level("INFO"):
        assert choose_prefill_attention(SHAPE, torch.bfloat16, hopper, SIZES) is None
    last = caplog.records[-1].getMessage()
    assert "our own kernel, long ones slower than by FlashInfer" in last
    assert reason in last
    assert "\n" not in last
    assert ("loading FlashInfer" in caplog.text) == loads


def test_control_one_that_loads_is_used_and_a_full_gpu_is_no_reason_to_leave_it_out(
    hopper: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", planning(lambda *args, **named: None))
    found = choose_prefill_attention(SHAPE, torch.bfloat16, hopper, SIZES)
    assert isinstance(found, FlashInferAttention)
    monkeypatch.setitem(sys.modules, "flashinfer", failing(torch.OutOfMemoryError("full")))
    with pytest.raises(torch.OutOfMemoryError):
        choose_prefill_attention(SHAPE, torch.bfloat16, hopper, SIZES)


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
