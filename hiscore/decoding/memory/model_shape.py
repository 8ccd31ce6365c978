"""Facts of a checkpoint that the KV cache depends on."""

from dataclasses import dataclass

from hiscore.parallel.shard import WHOLE, Shard


@dataclass(frozen=True)
class ModelShape:
    """A checkpoint's sizes, named as in `CacheShape`.

    Attributes:
        windows: Sliding window of each layer; None: the layer attends to everything.
        context_length: Tokens of the longest sequence, decided by `context_setting`.
        top_k: Tokens that the checkpoint's own indexer selects; None without one.
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
