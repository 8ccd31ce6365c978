"""The model of `model_type: new` in plain PyTorch, after modeling.py of Alibaba-NLP/new-impl: the truth of tests.

transformers does not have it. Names of modules are those of published files.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedModel
from transformers.activations import ACT2FN
from transformers.modeling_outputs import SequenceClassifierOutput

from hiscore.models.auto_classes import NewConfig

THETA, FACTOR = 20_000.0, 8.0
PUBLISHED = {
    "rope_theta": THETA,
    "rope_scaling": {"type": "ntk", "factor": FACTOR},
    "position_embedding_type": "rope",
}
"""Of gte-multilingual-reranker-base."""


def rotated(x: Tensor) -> Tensor:
    """x [heads, T, width]: base and frequencies are scaled, whatever the length."""
    width = x.shape[-1]
    frequencies = (THETA * FACTOR) ** (-torch.arange(0, width, 2) / width) / FACTOR ** (2 / width)
    angles = (torch.arange(x.shape[1])[:, None] * frequencies).repeat(1, 2)
    first, second = x.chunk(2, dim=-1)
    return x * angles.cos() + torch.cat((-second, first), dim=-1) * angles.sin()


class Layer(nn.Module):
    def __init__(self, config: NewConfig) -> None:
        super().__init__()
        width, self.heads = config.hidden_size, config.num_attention_heads
        self.attention = nn.ModuleDict(
            {"qkv_proj": nn.Linear(width, 3 * width), "o_proj": nn.Linear(width, width)}
        )
        inner, self.activate = config.intermediate_size, ACT2FN[config.hidden_act]
        self.mlp = nn.ModuleDict(
            {"up_gate_proj": nn.Linear(width, 2 * inner, bias=False), "down_proj": nn.Linear(inner, width)}
        )
        self.attn_ln, self.mlp_ln = (nn.LayerNorm(width, eps=config.layer_norm_eps) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        parts = self.attention["qkv_proj"](x).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(0, 1) for part in parts)
        weights = (rotated(q) @ rotated(k).mT / q.shape[-1] ** 0.5).softmax(-1)
        x = self.attn_ln(x + self.attention["o_proj"]((weights @ v).transpose(0, 1).flatten(1)))
        up, gate = self.mlp["up_gate_proj"](x).chunk(2, dim=-1)
        return self.mlp_ln(x + self.mlp["down_proj"](self.activate(gate) * up))


class NewForSequenceClassification(PreTrainedModel):
    config_class = NewConfig

    def __init__(self, config: NewConfig) -> None:
        super().__init__(config)
        width = config.hidden_size
        layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        embeddings = {
            "word_embeddings": nn.Embedding(config.vocab_size, width),
            "token_type_embeddings": nn.Embedding(config.type_vocab_size, width),
            "LayerNorm": nn.LayerNorm(width, eps=config.layer_norm_eps),
        }
        self.new = nn.ModuleDict(
            {
                "embeddings": nn.ModuleDict(embeddings),
                "encoder": nn.ModuleDict({"layer": layers}),
                "pooler": nn.ModuleDict({"dense": nn.Linear(width, width)}),
            }
        )
        self.classifier = nn.Linear(width, config.num_labels)
        self.post_init()

    def forward(
        self, input_ids: Tensor, token_type_ids: Tensor | None = None, attention_mask: Any = None
    ) -> SequenceClassifierOutput:
        """Logits of one pair; the mask is of ones."""
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        tables = self.new["embeddings"]
        x = tables["word_embeddings"](input_ids[0]) + tables["token_type_embeddings"](types[0])
        x = tables["LayerNorm"](x)
        for layer in self.new["encoder"]["layer"]:
            x = layer(x)
        pooled = self.new["pooler"]["dense"](x[0]).tanh()
        return SequenceClassifierOutput(logits=self.classifier(pooled)[None])


AutoConfig.register(NewConfig.model_type, NewConfig, exist_ok=True)
AutoModelForSequenceClassification.register(NewConfig, NewForSequenceClassification)
