"""The weights of a model with a lightning indexer, on one device."""

from dataclasses import dataclass

from torch import Tensor

from hiscore.layers.weights import Experts, Mlp, Projection


@dataclass(frozen=True)
class MlaWeights:
    down: Projection
    """[q_rank + latent_rank + rope_dim, hidden]: to the low-rank query, the latent, the shared rotary key."""
    q_norm: Tensor  # [q_rank]
    latent_norm: Tensor  # [latent_rank]
    q_up: Projection  # [heads (nope_dim + rope_dim), q_rank]
    to_latent: Tensor  # [heads, nope_dim, latent_rank]: takes a head's query to the latents' space
    from_latent: Tensor  # [heads, latent_rank, value_dim]: takes attended latents to a head's values
    output: Projection  # [hidden, heads value_dim]


@dataclass(frozen=True)
class IndexerWeights:
    query: Projection  # [index heads index dim, q_rank]
    key: Projection  # [index dim, hidden]
    key_norm: Tensor  # [index dim]
    key_norm_bias: Tensor  # [index dim]
    head_weights: Tensor  # [index heads, hidden], in float32 at least, because rounded scores would tie


@dataclass(frozen=True)
class DsaLayerWeights:
    input_norm: Tensor  # [hidden]
    attention: MlaWeights
    indexer: IndexerWeights | None
    """None where the layer uses the selection of an earlier one."""
    mlp_norm: Tensor  # [hidden]
    mlp: Mlp | Experts


@dataclass(frozen=True)
class DsaWeights:
    embedding: Tensor  # [vocabulary, hidden]
    layers: tuple[DsaLayerWeights, ...]
    final_norm: Tensor  # [hidden]
    head: Tensor  # [vocabulary, hidden]
