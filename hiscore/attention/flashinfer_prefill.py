"""Packed attention by FlashInfer's FlashAttention 3, over prompts whose keys and values are in pages of a pool.

On long prompts it is faster than our own kernel, which shares contexts among segments and needs no pages.
FlashInfer is optional. It compiles its kernels at the first start, unless they were installed compiled; those for
heads of 128 never are (`flashinfer_blocks`).
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hiscore.arrays import Int32, Int64
from hiscore.attention import flashinfer_blocks
from hiscore.attention.base import AttentionShape
from hiscore.attention.flashinfer_rows import MIN_ROWS, FlashInferRows, of_model
from hiscore.attention.flashinfer_sizes import WORKSPACE_BYTES, PagedSizes, most_pages
from hiscore.attention.metadata import Forward
from hiscore.device.copies import upload

log = logging.getLogger(__name__)

HEAD_DIMS = (64, 128, 256)
HOPPER = (9, 0)


class FlashInferAttention:
    """`Attention` over the forward that was planned last.

    Source: https://docs.flashinfer.ai/api/attention.html
    """

    def __init__(
        self, shape: AttentionShape, dtype: torch.dtype, device: torch.device, sizes: PagedSizes
    ) -> None:
        from flashinfer import BatchPrefillWithPagedKVCacheWrapper as Wrapper

        log.info(
            "loading FlashInfer's kernels; the first start compiles them, which takes one or two minutes, unless "
            "all were installed compiled"
        )
        self._shape, self._dtype, self._device = shape, dtype, device
        self._page_size, self._max_segments = sizes.page_size, sizes.max_segments
        pages = most_pages(sizes)

        def buffer(size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.int32, device=device)

        workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        make_wrapper = partial(
            Wrapper,
            workspace,
            "NHD",
            use_cuda_graph=True,
            qo_indptr_buf=buffer(sizes.max_segments + 1),
            paged_kv_indptr_buf=buffer(sizes.max_segments + 1),
            paged_kv_indices_buf=buffer(pages),
            paged_kv_last_page_len_buf=buffer(sizes.max_segments),
            backend="fa3",
        )
        self._kernels, self._scale = _load(make_wrapper, shape, dtype)
        self._uploaded = torch.cuda.Event()
        self.plan_rows(sizes.max_rows)  # the first plan says how large forwards may become
        self._over_rows = self._find_rows(workspace, sizes.max_rows) if self._scale else None

    def over_rows(self, rows: int) -> FlashInferRows | None:
        """Attention of the same bits for forwards of one whole prompt in so many rows; None: there is none."""
        return self._over_rows if rows >= MIN_ROWS else None

    def drop_rows(self) -> None:
        """Attend to whole prompts over pages, too; call it before anything is captured."""
        self._over_rows = None

    def _find_rows(self, workspace: Tensor, max_rows: int) -> FlashInferRows | None:
        if max_rows < MIN_ROWS:
            return None
        try:
            over_rows = FlashInferRows(self._shape, self._dtype, workspace, max_rows)
            if self._has_bits_of(over_rows):
                return over_rows
            log.warning("whole prompts attend over pages, too: FlashInfer's bits over rows are others")
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            log.warning("whole prompts attend over pages, too: FlashInfer fails over rows", exc_info=error)
        return None

    def _has_bits_of(self, over_rows: FlashInferRows) -> bool:
        """True if a prompt's bits are the same over rows; they differ if the library's types do."""
        shape, rows, tokens = self._shape, 512, 464  # which end inside a block, with padding behind them
        width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        anything = torch.arange(rows * width, dtype=torch.float32, device=self._device).sin()
        qkv = anything.to(self._dtype).view(rows, width)
        pool = qkv.view(rows, -1, shape.head_dim)[:, shape.heads :].unflatten(1, (2, -1)).contiguous()
        pages = np.arange(-(-tokens // self._page_size), dtype=np.int32)
        self._plan(np.array([0, tokens], np.int32), [pages], np.array([tokens]))
        over_rows.plan(tokens, rows)
        over_pages = self.attend(0, qkv[:tokens], pool)
        return torch.equal(over_pages, over_rows.attend(0, qkv, pool)[:tokens])

    def plan_rows(self, rows: int) -> None:
        """Plan so many rows that mean nothing, for a launch that is captured: it checks how many are planned."""
        anywhere = np.zeros(-(-rows // self._page_size), np.int32)
        self._plan(np.array([0, rows], np.int32), [anywhere], np.array([rows]))

    def plan(self, forward: Forward) -> None:
        """Set what `attend`, captured or not, attends to from now on, on the current stream.

        Each group is one segment. Contexts, and a segment's own slots, are in whole pages of consecutive slots.
        """
        self._plan(forward.cu_seqlens, *page_tables(forward, self._page_size))

    def _plan(self, edges: Int32, tables: list[Int32], lengths: Int64) -> None:
        """Plan segments with these rows, pages, and tokens; the rest up to `max_segments` are empty."""
        # What was planned before may still be on its way from the memory that is written to now: it goes ahead of
        # the forward that is running, so this is hardly ever a wait.
        self._uploaded.synchronize()
        missing = self._max_segments - len(tables)
        counts = np.array([len(table) for table in tables], np.int64)
        table_edges = np.concatenate(([0], np.cumsum(counts), np.full(missing, counts.sum())))
        last_page = np.concatenate((lengths - (counts - 1) * self._page_size, np.zeros(missing, np.int64)))
        pages = np.concatenate(tables)
        self._kernels.plan(
            torch.from_numpy(np.concatenate((edges, np.full(missing, edges[-1]))).astype(np.int32)),
            torch.from_numpy(table_edges.astype(np.int32)),
            upload(pages, self._device),
            torch.from_numpy(last_page.astype(np.int32)),
            page_size=self._page_size,
            **of_model(self._shape, self._dtype),
        )
        self._uploaded.record(torch.cuda.current_stream(self._device))

    def attend(self, layer: int, qkv: Tensor, pool: Tensor) -> Tensor:
        shape = self._shape
        q = qkv.view(len(qkv), -1, shape.head_dim)[:, : shape.heads]
        keys, values = pool.unflatten(0, (-1, self._page_size)).unbind(2)
        out = torch.empty((len(qkv), shape.heads, shape.head_dim), dtype=qkv.dtype, device=qkv.device)
        self._kernels.run(q, (keys, values), *self._scale, out=out, enable_pdl=False)
        return out.flatten(1)


def _load(
    make_wrapper: Callable[..., Any], shape: AttentionShape, dtype: torch.dtype
) -> tuple[Any, tuple[float, ...]]:
    """FlashInfer's wrapper, by larger blocks if they can be compiled, and what its `run` is given besides."""
    if shape.head_dim == flashinfer_blocks.HEAD_DIM:
        try:
            return make_wrapper(jit_args=flashinfer_blocks.jit_args(dtype)), (shape.scale,)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # there is no compiler, or other types in this version
            log.info(
                "FlashInfer attends to whole prompts over pages, too, since larger blocks cannot be compiled: %s",
                _first_line(error),
            )
    return make_wrapper(), ()


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def page_tables(forward: Forward, page_size: int) -> tuple[list[Int32], Int64]:
    """Pages that hold each group's keys and values, int32 [pages]; and the tokens in them, int64 [groups]."""
    slots = [
        np.concatenate((group.context_slots, forward.slot_mapping[group.first_row : group.last_row]))
        for group in forward.groups
    ]
    tables = [(each[::page_size] // page_size).astype(np.int32) for each in slots]
    return tables, np.array([len(each) for each in slots], np.int64)


def why_not(shape: AttentionShape, dtype: torch.dtype, device: torch.device) -> str:
    """Reason why these kernels cannot compute what our own can; empty: they can."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) != HOPPER:
        return "its FlashAttention 3 is for GPUs of compute capability 9.0"
    if dtype not in (torch.bfloat16, torch.float16):
        return "its kernels compute in 16 bits"
    if shape.head_dim not in HEAD_DIMS:
        return f"its kernels have no heads of {shape.head_dim}"
    if shape.soft_cap is not None or shape.sinks is not None or any(shape.windows):
        return "the checkpoint has soft caps, sinks or windows"
    return ""


def choose_prefill_attention(
    shape: AttentionShape, dtype: torch.dtype, device: torch.device, sizes: PagedSizes
) -> FlashInferAttention | None:
    """Take FlashInfer if it can be used; None: our own kernel."""
    if device.type != "cuda":
        return None
    if reason := why_not(shape, dtype, device):
        told = "prompts are prefilled by our own kernel and not by FlashInfer: %s"
    else:
        told = (
            "prompts are prefilled by our own kernel, long ones slower than by FlashInfer, which this GPU could "
            "use but which cannot be loaded (docs/decoding.md, kernels of prefill): %s"
        )
        try:
            return FlashInferAttention(shape, dtype, device, sizes)
        except ImportError as error:
            reason = str(error)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # there is no compiler, or one that fails
            log.warning("FlashInfer cannot be used", exc_info=error)
            reason = _first_line(error)
    log.info(told, reason)
    return None
