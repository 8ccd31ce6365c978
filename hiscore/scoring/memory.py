"""The plan of the scorer's memory: weights, one pool of keys and values, activations."""

from dataclasses import dataclass

from hiscore.models.activations import activation_bytes, head_bytes, output_bytes
from hiscore.models.config import Architecture
from hiscore.prefill.row_counts import output_rows
from hiscore.recurrence.metadata import FIRST_CACHED_SLOT, MOST_QUERIES, STATES_OF_QUERY
from hiscore.scoring.packing.packing import pool_reserve
from hiscore.scoring.requests.label_trie import LABEL_ROWS
from hiscore.scoring.requests.query_key import PAGE
from hiscore.server.plan import MemoryLine, MemoryPlan

DEFAULT_CACHE_BYTES, CACHE_SHARE = 2**30, 1 / 8
"""QUERY_CACHE_BYTES if it is not set: so much, or this share of the device if that is less."""
HEAD_ROWS = 256
"""Rows whose logits over the whole vocabulary exist at once (`layers.lm_head.ROW_SLICE`)."""
STATE_SHARE = 1 / 2
"""Share of QUERY_CACHE_BYTES for states, where layers are recurrent: a query needs its state and its pages."""
CPU_ATTENTION_BYTES = 3 * 2**26
"""Bytes that attention on a CPU holds at once: weights before, during and after their softmax."""
PROCESS_BYTES = 2**29
"""Bytes of a process on the host: the interpreter, torch, and what an allocator keeps."""
CUDA_BYTES = 5 * 2**27
"""Kernels, those of libraries that are only tried included; graphs, and workspaces of the libraries."""


@dataclass(frozen=True)
class PoolSizes:
    """Pages of the KV pool, `reserve` of which a batch of several forwards can have in any case, and of states."""

    pages: int
    reserve: int
    states: int = 0
    """Slots of recurrent layers' states; 0: there are no such layers."""


def pool_sizes(a: Architecture, number_bytes: int, budget: int, query_cache_bytes: int) -> PoolSizes:
    """Size one pool for cached queries and for what a call keeps between forwards of `budget` tokens.

    The pool has `query_cache_bytes` unless its reserve is larger; `number_bytes` is that of one key's number.
    """
    reserve, states = pool_reserve(a.context_length, budget), 0
    if a.recurrence is not None:
        of_states = int(STATE_SHARE * query_cache_bytes)
        query_cache_bytes -= of_states
        states = FIRST_CACHED_SLOT + of_states // state_bytes(a, number_bytes)
    pages = max(reserve, query_cache_bytes // (PAGE * slot_bytes(a, number_bytes)))
    return PoolSizes(pages, reserve, states)


def state_bytes(a: Architecture, number_bytes: int) -> int:
    return 0 if a.recurrence is None else a.recurrence.bytes_of(a.recurrent_layers, number_bytes)


def slot_bytes(a: Architecture, number_bytes: int) -> int:
    """Bytes of one token's keys and values in all layers that keep them."""
    return 2 * a.attention_layers * a.key_width * number_bytes


def default_cache_bytes(device_bytes: int) -> int:
    """QUERY_CACHE_BYTES if it is not set, on a device with so much memory."""
    return min(DEFAULT_CACHE_BYTES, int(CACHE_SHARE * device_bytes))


def plan_memory(
    place: str,
    a: Architecture,
    number_bytes: int,
    weights: MemoryLine,
    budget: int,
    pool: PoolSizes,
    in_slices: bool = True,
    adapter_numbers: int = 0,
) -> MemoryPlan:
    """Plan the scorer's memory; one number of an activation, a key, a value or an adapter has `number_bytes`."""
    on_cuda = place.startswith("cuda")
    activations = activation_bytes(a, budget, number_bytes, by_kernels=on_cuda) + head_bytes(a, HEAD_ROWS)
    activations += 0 if on_cuda else CPU_ATTENTION_BYTES
    # Every row of a prompt may be read, and those of a request are picked out for its product with the head.
    activations += 2 * max(budget, a.context_length, LABEL_ROWS) * a.hidden_size * number_bytes
    positions = a.context_length * (1 if a.original_context is None else 2)
    tables = len(set(a.rope_kinds)) * positions * a.head_dim * 4
    outputs = output_bytes(a, output_rows(budget, in_slices), number_bytes) if on_cuda else 0
    return MemoryPlan(
        place,
        (
            weights,
            MemoryLine("adapters", adapter_numbers * number_bytes, ("ADAPTERS",)),
            MemoryLine("rotary tables", tables, ("MAX_CONTEXT",)),
            MemoryLine(
                "keys and values",
                pool.pages * PAGE * slot_bytes(a, number_bytes),
                ("MAX_CONTEXT", "QUERY_CACHE_BYTES"),
            ),
            *_states(a, number_bytes, pool.states, 1 if on_cuda else STATES_OF_QUERY),
            MemoryLine("activations", activations, ("MAX_BATCH_TOKENS",)),
            MemoryLine("outputs of CUDA graphs", outputs, ("MAX_BATCH_TOKENS",)),
            MemoryLine("kernels and libraries", CUDA_BYTES if on_cuda else PROCESS_BYTES),
        ),
    )


def _states(a: Architecture, number_bytes: int, slots: int, of_query: int) -> tuple[MemoryLine, ...]:
    if not slots:
        return ()
    of_each = state_bytes(a, number_bytes)
    return (
        MemoryLine("recurrent states", slots * of_each, ("QUERY_CACHE_BYTES",)),
        MemoryLine("states of a forward", MOST_QUERIES * of_query * of_each // a.recurrent_layers),
    )
