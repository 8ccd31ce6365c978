"""What a stream needs of each pool, all of it before its prefill begins: nothing that runs can lack a page.

A stream is counted with its prompt and max_tokens. So a full pool makes others wait, and never ends one.
"""

from dataclasses import dataclass

import numpy as np

from hiscore.arrays import Int32
from hiscore.decoding.pages import PagePool
from hiscore.decoding.sequence import DecodeCall, Stream
from hiscore.decoding.worker.interface import NO_PAGES, STAGING_PAGE, Geometry
from hiscore.errors import RequestError


@dataclass(frozen=True)
class Needs:
    """Pages of each pool; and always one slot."""

    host: int
    device: int
    staging: int


@dataclass(frozen=True)
class Release:
    """Pages that belong to nobody any more; slot: -1 if the stream held none."""

    slot: int
    host: Int32
    device: Int32


def needs_of(call: DecodeCall, staged: int, geometry: Geometry) -> Needs:
    """What a call needs that comes in by way of `staged` tokens in the staging pool."""
    pages = -(-(len(call.prompt) + call.options.max_tokens) // geometry.page)
    if geometry.dense:
        device = 0
    elif call.options.sparse:
        device = min(pages, geometry.lru_pages + geometry.ring_pages)
    else:
        device = pages
    return Needs(pages, device, -(-staged // STAGING_PAGE))


def check_fits(call: DecodeCall, geometry: Geometry) -> None:
    """Refuse what could never start.

    Raises:
        RequestError: the context or a pool is too small; the message says which, and its size in tokens.
    """
    prompt, generated = len(call.prompt), call.options.max_tokens
    asked = f"the prompt of {prompt} tokens and max_tokens {generated} make {prompt + generated} tokens"
    if prompt + generated > geometry.context_length:
        raise RequestError(f"{asked}: the context holds {geometry.context_length}")
    needs = needs_of(call, prompt, geometry)
    if needs.host > geometry.host_pages:
        raise RequestError(
            f"{asked}: the host's pool holds {geometry.host_pages * geometry.page} (HOST_KV_BYTES)"
        )
    if needs.device > geometry.device_pages:
        room = geometry.device_pages * geometry.page
        hint = "" if call.options.sparse else " and parameter 'sparse' is false"
        raise RequestError(f"{asked}{hint}: the device's pool holds {room} (DEVICE_KV_BYTES)")
    if needs.staging > geometry.staging_pages:
        room = geometry.staging_pages * STAGING_PAGE
        raise RequestError(f"the prompt has {prompt} tokens: at most {room} can be prefilled")


class Pools:
    """The slots and the pages of all pools."""

    def __init__(self, geometry: Geometry) -> None:
        self.slots = PagePool(geometry.max_streams)
        self.host = PagePool(geometry.host_pages)
        self.device = PagePool(geometry.device_pages)
        self.staging = PagePool(geometry.staging_pages)

    def fit(self, needs: Needs, without: Stream | None = None) -> bool:
        """Whether all that is needed is free, or would be if the stream `without` were preempted."""
        slots, device = (1, len(without.device)) if without else (0, 0)
        return (
            self.slots.free + slots >= 1
            and needs.host <= self.host.free
            and needs.device <= self.device.free + device
            and needs.staging <= self.staging.free
        )

    def take(self, stream: Stream, needs: Needs) -> None:
        """Give a stream all that it needs; a preempted one still has its pages on the host."""
        stream.slot = int(self.slots.take(1)[0])
        if needs.host:
            stream.host = self.host.take(needs.host)
        stream.device = self.device.take(needs.device)
        stream.staging = self.staging.take(needs.staging)

    def end_staging(self, stream: Stream) -> None:
        self.staging.give_back(stream.staging)
        stream.staging = NO_PAGES

    def give_back(self, stream: Stream, keep_host: bool) -> Release:
        """Take all from a stream, but perhaps its pages on the host."""
        released = Release(stream.slot, NO_PAGES if keep_host else stream.host, stream.device)
        self.end_staging(stream)
        self.host.give_back(released.host)
        self.device.give_back(released.device)
        if stream.slot >= 0:
            self.slots.give_back(np.array([stream.slot], np.int32))
        stream.slot, stream.device = -1, NO_PAGES
        if not keep_host:
            stream.host = NO_PAGES
        return released
