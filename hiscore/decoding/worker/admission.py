"""Admit a sequence to decoding: what was found of its prompt to staging, and from there, when all of it has been
prefilled, to its device buffer, its dense layers and its index."""

import numpy as np

from hiscore.arrays import divided
from hiscore.decoding.interface.prefix import Prefix
from hiscore.decoding.interface.worker import Admission
from hiscore.decoding.models.base import DecodeModel, staging_slots
from hiscore.decoding.sparse.block_tables import admit
from hiscore.decoding.sparse.cache_ops import CacheOps
from hiscore.decoding.worker.device_queues import Queue
from hiscore.decoding.worker.host_copies import Restores
from hiscore.device.copies import upload


def bring_to_staging(model: DecodeModel, ops: CacheOps, restores: Restores, prefix: Prefix) -> None:
    """Copy what staging lacks of a prefix: pages from the host, and of those that are there the dense layers."""
    device, there = model.staging.device, prefix.on_device
    slots = staging_slots(prefix.staging_pages, prefix.tokens).reshape(len(there), -1)
    if not there.all():
        with restores.beside_forwards(prefix.seq_index):
            into = upload(slots[~there].ravel(), device)
            host_pages = upload(prefix.source_pages[~there], device)
            ops.restore_prompt(model.staging, into, host_pages)
            model.restore_index(into, host_pages)
    if there.any():
        with restores.queues.use(Queue.COMPUTE):
            into = upload(slots[there].ravel(), device)
            host_slots = upload(divided(prefix.host_pages[there], slots.shape[1]), device)
            ops.restore_dense(model.staging, into, host_slots)


def fill_from_staging(model: DecodeModel, ops: CacheOps, admission: Admission) -> None:
    """Fill a sequence's tables, and copy the pages that its device buffer starts with from staging."""
    page_size, device = model.cache.shape.page_size, model.staging.device
    slots = staging_slots(admission.staging_pages, admission.length)
    pages, device_pages = admit(model.cache, admission)
    positions = divided(pages, page_size)
    exists = positions < admission.length
    buffer_slots = divided(device_pages, page_size)[exists]
    staged = slots[: len(buffer_slots)] if admission.is_buffer_alone else slots[positions[exists]]
    if model.cache.shape.prompts_in == "buffers" and np.array_equal(staged, buffer_slots):
        return  # it was prefilled where it stays
    ops.fill_buffer(model.staging, upload(staged, device), upload(buffer_slots, device))


def index_from_staging(model: DecodeModel, ops: CacheOps, admission: Admission) -> None:
    """Take a sequence's keys from staging into the index, and what was prefilled into the dense layers."""
    page_size, device = model.cache.shape.page_size, model.staging.device
    to_slots = upload(divided(admission.host_pages, page_size)[: admission.length], device)
    from_slots = upload(staging_slots(admission.staging_pages, admission.length), device)
    # Of a restored one they are still there, and some of them nowhere else.
    if model.cache.shape.prompts_in != "dense" and admission.first_token is None:
        ops.fill_dense(model.staging, from_slots, to_slots)
    model.index_prompt(ops, from_slots, upload(admission.host_pages, device), to_slots)
