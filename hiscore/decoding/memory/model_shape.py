"""Facts of a checkpoint that the KV cache depends on."""

from dataclasses import dataclass

from hiscore.parallel.shard import WHOLE, Shard


@dataclass(frozen=True)
class ModelShape:
    """Facts of a checkpoint that the cache depends on.

    Attributes:
        kv_heads: See `CacheShape`, as for the next two.
        kv_parts: 2 for keys and values, 1 for latents.
        head_dim: Length of a key, or of a latent with its rotary part.
        windows: Sliding window of each layer; None: the layer attends to everything.
        context_length: Tokens of the longest sequence.
        index_dim: Length of a key of the checkpoint's own indexer if it has one.
        top_k: Tokens that this indexer selects.
        sharing_layers: Layers that attend to what the indexer selected for a layer before them.
        host_share: See `CacheShape`.
        context_setting: What decides `context_length`.
    """

    kv_heads: int
    kv_parts: int
    head_dim: int
    windows: tuple[int | None, ...]
    context_length: int
    index_dim: int = 0
    top_k: int | None = None
    sharing_layers: frozenset[int] = frozenset()
    host_share: Shard = WHOLE
    context_setting: str = "MAX_CONTEXT"
