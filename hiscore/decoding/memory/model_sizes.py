"""Sizes of a checkpoint before it is loaded, and of the share that a rank has."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import torch

from hiscore.decoding.interface.sampling_batch import ROWS_AT_ONCE
from hiscore.decoding.memory.model_shape import ModelShape
from hiscore.models.activations import activation_bytes
from hiscore.models.config import Architecture, read_architecture
from hiscore.models.deepseek.activations import kernel_prefill_bytes
from hiscore.models.deepseek.config import DsaArchitecture
from hiscore.models.deepseek.config import read_architecture as read_latent_architecture
from hiscore.models.deepseek.latent_cache import MAX_ELEMENTS
from hiscore.models.deepseek.loader import load_weights as load_latent
from hiscore.models.deepseek.sharding import of_rank as latent_of_rank
from hiscore.models.facts import generation_context
from hiscore.models.families import DSA_FAMILIES
from hiscore.models.loader import load_weights
from hiscore.models.planned_weights import planned_bytes
from hiscore.models.sharding import of_rank
from hiscore.parallel.shard import Shard
from hiscore.settings import CacheSettings

CPU_COPIES = 16
"""Copies of the logits that sampling takes on the CPU: shares; weights, their order and their sums in 64 bits;
what each thread sorts; log-probabilities."""
PENALTY_COPIES = 6
"""Copies of the rows that penalties change at once."""
CANDIDATE_BYTES = 5 * 2**12
"""Bytes that the sampling kernels write for a row of up to 2**18 tokens."""


def is_latent(checkpoint: Path) -> bool:
    """Return whether a checkpoint has latent attention and an indexer."""
    return json.loads((checkpoint / "config.json").read_text())["model_type"] in DSA_FAMILIES


def read_shape(
    checkpoint: Path, settings: CacheSettings, shard: Shard
) -> tuple[ModelShape, Architecture | DsaArchitecture]:
    """Read a rank's share of a checkpoint, for the cache, and its architecture."""
    if is_latent(checkpoint):
        # On the device a rank has every latent and every index key, whatever it has of the heads; on the host the
        # ranks store the latents once, together.
        latent, _ = read_latent_architecture(checkpoint, settings.max_context)
        windows = (None,) * latent.layers
        sharing = frozenset(layer for layer, own in enumerate(latent.own_index) if not own)
        indexer = latent.indexer
        return ModelShape(
            1, 1, latent.row_dim, windows, latent.context_length, indexer.head_dim,
            indexer.top_k, sharing, shard,
        ), latent_of_rank(latent, shard)  # fmt: skip
    context = generation_context(checkpoint, settings.max_context)
    whole, _ = read_architecture(checkpoint, context)
    grouped = of_rank(whole, shard)
    return ModelShape(
        grouped.kv_heads, 2, grouped.head_dim, grouped.windows, grouped.context_length,
        context_setting="MAX_CONTEXT" if context == settings.max_context else "longrope's original context",
        recurrent=frozenset(np.flatnonzero(grouped.recurrent).tolist()), recurrence=grouped.recurrence,
    ), grouped  # fmt: skip


def bytes_of_rank(checkpoint: Path, dtype: torch.dtype, keeps_fp8: bool, shard: Shard) -> int:
    """Count the bytes of a rank's share of the weights; raise UnsupportedCheckpoint if it cannot be divided."""
    if is_latent(checkpoint):
        latent, _ = read_latent_architecture(checkpoint)
        return planned_bytes(
            partial(load_latent, checkpoint, latent, dtype=dtype, keeps_fp8=keeps_fp8, shard=shard)
        )
    whole, _ = read_architecture(checkpoint)
    return planned_bytes(partial(load_weights, checkpoint, whole, dtype=dtype, shard=shard))


def sampling_bytes(rows: int, vocabulary: int, on_cuda: bool) -> int:
    """Bound the bytes of logits, and of sampling from them, for so many sequences in a step."""
    logits = 4 * rows * vocabulary
    # A row of counts for each sequence: from the start on a GPU, elsewhere once penalties are asked for.
    counts = logits
    if not on_cuda:
        return (1 + CPU_COPIES) * logits + counts
    # A step's as the model gives them, where all graphs leave them, and those of prompts that end beside it.
    alive = 3 * logits
    changed = PENALTY_COPIES * 4 * min(rows, ROWS_AT_ONCE) * vocabulary
    # Log-probabilities take a copy before anything is changed, and its powers of e. Candidates are held twice: by
    # the graphs of steps, and for prompts that end beside them.
    return alive + counts + logits + max(logits, changed) + 2 * rows * CANDIDATE_BYTES


def forward_bytes(
    a: Architecture | DsaArchitecture,
    prefill_rows: int,
    step_rows: int,
    number_bytes: int,
    on_cuda: bool,
    kernels_top_k: int | None = None,
) -> int:
    """Bound the bytes of a prefill forward, whose rows select `kernels_top_k` tokens, and of a step's sampling."""
    logits = sampling_bytes(step_rows, a.vocab_size, on_cuda)
    if isinstance(a, Architecture):
        return activation_bytes(a, prefill_rows, number_bytes, by_kernels=on_cuda) + logits
    if kernels_top_k is not None:
        return kernel_prefill_bytes(a, prefill_rows, kernels_top_k, number_bytes) + logits
    return 2 * 4 * MAX_ELEMENTS + logits
