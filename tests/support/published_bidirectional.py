"""Llama's classifier with attention in both directions, after NVIDIA's llama_bidirectional_model.py.

The truth of tests: transformers does not have it. The layers are its own Llama's with a bidirectional mask.
"""

from typing import Any

from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, LlamaModel, LlamaPreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from hiscore.models.auto_classes import BidirectionalLlamaConfig


class LlamaBidirectionalForSequenceClassification(LlamaPreTrainedModel):  # type: ignore[misc]
    config_class = BidirectionalLlamaConfig

    def __init__(self, config: BidirectionalLlamaConfig) -> None:
        super().__init__(config)
        self.score = nn.Linear(config.hidden_size, config.num_labels, bias=False)
        self.model = LlamaModel(config)
        self.post_init()

    def forward(self, input_ids: Tensor, attention_mask: Any = None, **_: Any) -> SequenceClassifierOutput:
        """Logits of one text; the mask is of ones."""
        self.config.is_causal = False
        hidden = self.model(input_ids, use_cache=False).last_hidden_state[0]
        pooled = {"avg": hidden.mean(0), "cls": hidden[0], "last": hidden[-1]}[self.config.pooling]
        return SequenceClassifierOutput(logits=(self.score(pooled) / self.config.temperature)[None])


AutoModelForSequenceClassification.register(
    BidirectionalLlamaConfig, LlamaBidirectionalForSequenceClassification
)
