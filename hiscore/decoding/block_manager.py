"""What a sequence needs of each pool, all of it before its prefill begins: nothing that runs can lack a page.

A sequence is counted with its prompt and max_tokens. So a full pool makes others wait, and never ends one.
"""

from dataclasses import dataclass

import numpy as np

from hiscore.arrays import Int32
from hiscore.decoding.pages import PagePool
from hiscore.decoding.sequence import DecodeCall, Sequence
from hiscore.decoding.worker.interface import NO_PAGES, STAGING_PAGE_SIZE, CacheConfig
from hiscore.errors import RequestError


@dataclass(frozen=True)
class Needs:
    """Pages of each pool; and always one index."""

    host: int
    device: int
    staging: int


@dataclass(frozen=True)
class Release:
    """Pages that belong to nobody any more; seq_index: -1 if the sequence held none."""

    seq_index: int
    host: Int32
    device: Int32


def needs_of(call: DecodeCall, staged: int, cache_config: CacheConfig) -> Needs:
    """What a call needs that comes in by way of `staged` tokens in the staging pool."""
    pages = -(-(len(call.prompt) + call.options.max_tokens) // cache_config.page_size)
    if cache_config.dense:
        device = 0
    elif call.options.sparse:
        device = min(pages, cache_config.lru_pages + cache_config.ring_pages)
    else:
        device = pages
    return Needs(pages, device, -(-staged // STAGING_PAGE_SIZE))


def check_fits(call: DecodeCall, cache_config: CacheConfig) -> None:
    """Refuse what could never start.

    Raises:
        RequestError: the context or a pool is too small; the message says which, and its size in tokens.
    """
    prompt, generated = len(call.prompt), call.options.max_tokens
    asked = f"the prompt of {prompt} tokens and max_tokens {generated} make {prompt + generated} tokens"
    if prompt + generated > cache_config.context_length:
        raise RequestError(f"{asked}: the context holds {cache_config.context_length}")
    needs = needs_of(call, prompt, cache_config)
    if needs.host > cache_config.host_pages:
        raise RequestError(
            f"{asked}: the host's pool holds {cache_config.host_pages * cache_config.page_size} (HOST_KV_BYTES)"
        )
    if needs.device > cache_config.device_pages:
        room = cache_config.device_pages * cache_config.page_size
        hint = "" if call.options.sparse else " and parameter 'sparse' is false"
        raise RequestError(f"{asked}{hint}: the device's pool holds {room} (DEVICE_KV_BYTES)")
    if needs.staging > cache_config.staging_pages:
        room = cache_config.staging_pages * STAGING_PAGE_SIZE
        raise RequestError(f"the prompt has {prompt} tokens: at most {room} can be prefilled")


class Pools:
    """The indices of sequences and the pages of all pools."""

    def __init__(self, cache_config: CacheConfig) -> None:
        self.seq_indices = PagePool(cache_config.max_sequences)
        self.host = PagePool(cache_config.host_pages)
        self.device = PagePool(cache_config.device_pages)
        self.staging = PagePool(cache_config.staging_pages)

    def fit(self, needs: Needs, without: Sequence | None = None) -> bool:
        """Whether all that is needed is free, or would be if the sequence `without` were preempted."""
        rows, device = (1, len(without.device)) if without else (0, 0)
        return (
            self.seq_indices.free + rows >= 1
            and needs.host <= self.host.free
            and needs.device <= self.device.free + device
            and needs.staging <= self.staging.free
        )

    def take(self, sequence: Sequence, needs: Needs) -> None:
        """Give a sequence all that it needs; a preempted one still has its pages on the host."""
        sequence.seq_index = int(self.seq_indices.take(1)[0])
        if needs.host:
            sequence.host = self.host.take(needs.host)
        sequence.device = self.device.take(needs.device)
        sequence.staging = self.staging.take(needs.staging)

    def end_staging(self, sequence: Sequence) -> None:
        self.staging.give_back(sequence.staging)
        sequence.staging = NO_PAGES

    def give_back(self, sequence: Sequence, keep_host: bool) -> Release:
        """Take all from a sequence, but perhaps its pages on the host."""
        released = Release(sequence.seq_index, NO_PAGES if keep_host else sequence.host, sequence.device)
        self.end_staging(sequence)
        self.host.give_back(released.host)
        self.device.give_back(released.device)
        if sequence.seq_index >= 0:
            self.seq_indices.give_back(np.array([sequence.seq_index], np.int32))
        sequence.seq_index, sequence.device = -1, NO_PAGES
        if not keep_host:
            sequence.host = NO_PAGES
        return released
