"""The interface of a decoder over the cache, the same for every family."""

from typing import Protocol

from torch import Tensor

from hiscore.arrays import Int32, divided
from hiscore.decoding.interface.cache_config import STAGING_PAGE_SIZE
from hiscore.decoding.interface.worker import PrefillChunk
from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.kv_cache.step_batch import StepBatch
from hiscore.decoding.models.states import SequenceStates
from hiscore.decoding.sparse.cache_ops import CacheOps


class DecodeModel(Protocol):
    """Prefills into a staging pool and decodes over the cache. Launches everything on the queue in use."""

    cache: KVCache
    staging: Tensor
    """Pool in which prompts are prefilled: [L, slots, C, H, head_dim]."""
    states: SequenceStates | None
    """None: no layer is recurrent."""

    def prefill(self, chunks: list[PrefillChunk]) -> Tensor:
        """Run parts of prompts, one per sequence; return logits after n last chunks: float32 [n, vocabulary]."""
        ...

    def decode(
        self, ids: Tensor, batch: StepBatch, ops: CacheOps, full_attention: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run one decode step.

        Args:
            ids: int32 [R]: tokens to feed.
            batch: R rows; the first one is not padding.
            full_attention: All rows are resident and attend to everything.

        Returns:
            Logits, float32 [R, vocabulary], and the slots of the tokens' keys and values, int32 [R] each: in the
            order of host pages and in the device buffers; -1 for padding.
        """
        ...

    def index_prompt(self, ops: CacheOps, slots: Tensor, host_pages: Tensor, host_slots: Tensor) -> None:
        """Index a prefilled prompt by its staging slots, host pages and host slots, int32, by position."""

    def restore_index(self, slots: Tensor, host_pages: Tensor) -> None:
        """Copy from the index to staging slots what a prefill behind these tokens needs of it, if anything."""


def staging_slots(pages: Int32, tokens: int) -> Int32:
    """Return the staging slots of a prompt's first tokens, int32 [tokens]."""
    return divided(pages, STAGING_PAGE_SIZE)[:tokens]
