"""What a decode step asks of the cache: one interface, in plain torch for the CPU and in kernels for CUDA devices.

In each layer a step's new keys and values are written (to the slots that `newest_slots` gives) and,
where the layer is sparse, into the index; pages are scored, chosen and brought to the device; rows attend to them.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from hiscore.decoding.kv_cache.cache import StepBatch


@dataclass(frozen=True)
class PageLists:
    """Pages that rows attend to, in `KVCache.tokens`: each row's list ends with the page of its position.

    pages: int32 [R, H, K], or by_slot a table [streams, K]; counts: int32 [R, H], or [R, 1] for all heads alike.
    """

    pages: Tensor
    counts: Tensor
    by_slot: bool = False


class Chosen(Protocol):
    """What a step attends to in a sparse layer; the pages are in the buffer once what was launched has run.

    pages: int32 [R, H, K], a stream's own pages, ascending, then -1; mass: float32 [R, H], see `Selection`.
    """

    @property
    def pages(self) -> Tensor: ...
    @property
    def lists(self) -> PageLists: ...
    @property
    def mass(self) -> Tensor: ...


class CacheOps(Protocol):
    """The parts of a step, and the copies beside it.

    staging: [L, slots, C, H, D], where a prompt stands at int32 [n] slots, in the order of positions; host_pages:
    int32, the pages of the host in that order; host_slots: int32 [n], the same as slots.
    """

    def newest_slots(self, rows: StepBatch) -> tuple[Tensor, Tensor]:
        """Where new tokens go: slots of `home` and of `buffer`, int32 [R] each, -1 for padding."""
        ...

    def write_index(self, layer: int, keys: Tensor, host_slots: Tensor) -> None:
        """Take a step's keys [R, H, D] (an indexer's: [R, D]) into the index; host_slots int32 [R]."""

    def scores(self, layer: int, q: Tensor, rows: StepBatch) -> Tensor:
        """Score pages by bounds or keys for rotated queries [R, heads, D]: [R, heads, pages]."""
        ...

    def indexer_scores(self, layer: int, q: Tensor, gates: Tensor, rows: StepBatch) -> Tensor:
        """Score tokens by an indexer's queries [R, heads, D] and gates float32 [R, heads]: [R, 1, pages]."""
        ...

    def choose(self, layer: int, scores: Tensor, rows: StepBatch) -> Chosen:
        """Choose pages by scores and bring the missing ones to the buffer."""
        ...

    def everything(self, rows: StepBatch) -> PageLists:
        """All pages of all rows, for dense layers: once a step."""
        ...

    def attend(self, layer: int, q: Tensor, lists: PageLists, rows: StepBatch) -> Tensor:
        """softmax(cap(q k^T * scale)) v over listed pages: [R, heads, D] to [R, heads, value width]."""
        ...

    def back_up(self, host_slots: Tensor, buffer_slots: Tensor) -> None:
        """Copy a step's new tokens, all layers, to the host pool: slots int32 [R], -1 for none."""

    def back_up_prompt(self, staging: Tensor, slots: Tensor, host_pages: Tensor) -> None:
        """Copy a prompt, or a part of it that begins where its first page does, to the host pool."""

    def restore_prompt(self, staging: Tensor, slots: Tensor, host_pages: Tensor) -> None:
        """Copy what `back_up_prompt` and `back_up` have copied to the host back to staging."""

    def index_prompt(self, staging: Tensor, slots: Tensor, host_pages: Tensor, host_slots: Tensor) -> None:
        """Take a prompt's keys into the index of all sparse layers: `bounds` or `keys`."""

    def seed(self, staging: Tensor, from_slots: Tensor, buffer_slots: Tensor) -> None:
        """Copy tokens from staging into the buffer, all sparse layers: int32 [n] each."""

    def settle(self, staging: Tensor, from_slots: Tensor, host_slots: Tensor) -> None:
        """Copy tokens from staging home, all dense layers: int32 [n] each."""
