"""Operations of a decode step on the KV cache: one interface, implemented in PyTorch (CPU) and Triton (CUDA).

In each layer the new tokens' keys and values are written to the slots of `slot_mapping` and, in a sparse layer,
the keys to the index; pages are scored, selected and swapped in; the rows attend to them. The other operations
move whole prompts and finished steps between staging, device and host.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from hiscore.decoding.kv_cache.step_batch import StepBatch


@dataclass(frozen=True)
class PageLists:
    """Pages in `KVCache.tokens` that rows attend to; a list ends with the page of the row's position.

    Attributes:
        pages: int32 [R, H, K]; by_sequence: a block table [max_sequences, K].
        counts: int32 [R, H]; [R, 1] where all heads have the same.
        by_sequence: `pages` is indexed by sequence, not by row and head.
        wait: To be called before what reads pages listed as ~page is launched: they are still being swapped in.
            None: no page is. `attend` calls it.
    """

    pages: Tensor
    counts: Tensor
    by_sequence: bool = False
    wait: Callable[[], None] | None = None


@dataclass(frozen=True)
class SelectedPages:
    """Pages that a step selects in a sparse layer: in each sequence, as in `Selection`, and on the device."""

    pages: Tensor
    lists: PageLists
    mass: Tensor


class CacheOps(Protocol):
    """Operations on the cache, in the order of a step; then those on prompts.

    Throughout, `layer` is an index among all layers and q is [R, heads, head_dim]. Staging is [Lh, slots, C, H,
    head_dim], the host's layers, with slots in the order of positions. Slots are int32 [n], those of a step from
    `slot_mapping`.
    """

    def slot_mapping(self, batch: StepBatch) -> tuple[Tensor, Tensor]:
        """Return new tokens' slots in host pages (dense layers, index) and buffer: int32 [R], -1 for padding."""
        ...

    def window_slots(self, batch: StepBatch) -> Tensor:
        """Return the slots of new tokens in windowed layers: int32 [R], -1 for padding."""
        ...

    def write_index(self, layer: int, keys: Tensor, host_slots: Tensor) -> None:
        """Add a step's keys, [R, H, head_dim] or an indexer's [R, index_dim], to the index."""

    def page_scores(self, layer: int, q: Tensor, batch: StepBatch) -> Tensor:
        """Score pages by their bounds or keys: rotated queries, [R, heads, head_dim], to [R, heads, pages]."""
        ...

    def indexer_scores(self, layer: int, q: Tensor, gates: Tensor, batch: StepBatch) -> Tensor:
        """Score tokens by a checkpoint's own indexer: float32 [R, 1, pages].

        Args:
            q: The indexer's queries [R, index heads, index_dim], in the dtype of the index.
            gates: float32 [R, index heads], all scales included.
        """
        ...

    def select_pages(self, layer: int, scores: Tensor, batch: StepBatch) -> SelectedPages:
        """Select pages by their scores, [R, heads, pages], and begin to swap the missing ones into the buffer.

        They are there after `PageLists.wait`, or once all that was launched has run.
        """
        ...

    def all_pages(self, batch: StepBatch) -> PageLists:
        """Lists of every page of every row, for dense layers: once per step."""
        ...

    def window_pages(self, batch: StepBatch) -> PageLists:
        """Pages of `all_pages`, for windowed layers; pages before a row's window hold other tokens by now."""
        ...

    def resident_pages(self, batch: StepBatch) -> PageLists:
        """Lists of every page of every row in the buffer, where all rows are resident: once per step."""
        ...

    def attend(self, layer: int, q: Tensor, lists: PageLists, batch: StepBatch) -> Tensor:
        """Compute softmax(cap(q k^T * scale)) v over listed pages: [R, heads, value_dim]."""
        ...

    def offload_step(self, host_slots: Tensor, buffer_slots: Tensor) -> None:
        """Copy a step's new tokens, the host's layers, to the host pool."""

    def offload_prompt(self, staging: Tensor, slots: Tensor, host_pages: Tensor) -> None:
        """Copy a prompt, or a part that starts at a page, from staging to its host pages, the host's layers."""

    def restore_prompt(self, staging: Tensor, slots: Tensor, host_pages: Tensor) -> None:
        """Copy a sequence from its host pages, int32, back to staging, the host's layers."""

    def index_prompt(self, staging: Tensor, slots: Tensor, host_pages: Tensor, host_slots: Tensor) -> None:
        """Add a prompt's keys to the index of all sparse layers; do nothing for an indexer, which has its own."""

    def fill_buffer(self, staging: Tensor, slots: Tensor, buffer_slots: Tensor) -> None:
        """Copy tokens from staging to the buffer, all sparse layers."""

    def fill_dense(self, staging: Tensor, slots: Tensor, host_slots: Tensor) -> None:
        """Copy tokens from staging to `dense_kv`, all dense layers."""

    def restore_dense(self, staging: Tensor, slots: Tensor, host_slots: Tensor) -> None:
        """Copy tokens from `dense_kv` to staging, all dense layers: the first ones."""

    def keep_windows(self, slots: Tensor, window_slots: Tensor) -> None:
        """Move tokens in `window_kv`, all windowed layers, from a prefill's rows to other slots, none twice."""
