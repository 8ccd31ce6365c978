"""MPNet: BERT's layers, whose logits have a bias for each head and distance, the same in all layers."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hiscore.attention.bidirectional import RelativeProjections
from hiscore.models.encoders import bert
from hiscore.models.encoders.architecture import Disentangled, EncoderArchitecture
from hiscore.models.encoders.weights import EncoderReader, EncoderWeights


def architecture(config: Any) -> EncoderArchitecture:
    distances = Disentangled(1, _buckets(config.max_position_embeddings))
    return replace(bert.architecture(config), token_types=0, disentangled=distances)


def _buckets(context: int) -> Tensor:
    """Row in the table of biases of every distance from query to key, int32 [2 context - 1]."""
    # Transformers' own, so that no distance gets another bucket; other families need not import it.
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

    rows: Tensor = MPNetEncoder.relative_position_bucket(-torch.arange(1 - context, context))
    return rows.int()


def load(read: EncoderReader, config: Any) -> EncoderWeights:
    shape = config.relative_attention_num_buckets, config.num_attention_heads
    biases = read.read.tensor("mpnet.encoder.relative_attention_bias.weight", *shape)
    return bert.load(read, config, RelativeProjections(None, None, biases.T.contiguous()))
