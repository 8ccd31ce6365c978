"""The reference for decoding: transformers' cached decode, with attention in the model's own precision."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoConfig,
    DynamicCache,
)
from transformers.masking_utils import eager_mask

from tests.support import tiny_dsa


def chosen(weights: Tensor, top_k: int, groups: int) -> Tensor:
    """The selector `exact` by its definition, for one query of each head: weights [heads, n] to bool [groups, n].

    The first token and the newest are always in; of equal ones the lower position is.
    """
    mean = weights.view(groups, -1, weights.shape[1]).mean(1).tolist()
    keep = torch.zeros(groups, weights.shape[1], dtype=torch.bool)
    last = weights.shape[1] - 1
    for group, of_tokens in enumerate(mean):
        others = sorted(set(range(last + 1)) - {0, last}, key=lambda token: (-of_tokens[token], token))
        keep[group, [*{0, last}, *others[: top_k - 2]]] = True
    return keep


def attention(top_k: int | None) -> Callable[..., tuple[Tensor, None]]:
    """Attention as transformers calls it. top_k: single queries attend to what `exact` selects."""

    def attend(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float,
        softcap: float | None = None,
        sliding_window: int | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        kv_heads = key.shape[1]
        grouped = query.unflatten(1, (kv_heads, -1))
        logits = torch.einsum("bhgqd,bhkd->bhgqk", grouped, key) * scaling
        if softcap is not None:
            logits = torch.tanh(logits / softcap) * softcap
        if attention_mask is not None:
            logits = logits + attention_mask[:, :, None, :, : key.shape[2]]
        windowed = sliding_window is not None
        if top_k is not None and query.shape[2] == 1 and key.shape[2] > top_k and not windowed:
            weights = logits.softmax(-1)[0, :, :, 0].flatten(0, 1)
            logits = logits.masked_fill(~chosen(weights, top_k, kv_heads)[:, None, None], -torch.inf)
        out = torch.einsum("bhgqk,bhkd->bhgqd", logits.softmax(-1), value)
        return out.flatten(1, 2).transpose(1, 2), None

    return attend


def gemma_norm(norm: Any, x: Tensor) -> Tensor:
    """Gemma's norm, but multiplied by its weights in x's dtype, as in other families, instead of in float32.

    Otherwise a comparison in float64 would only show its rounding.
    """
    return norm._norm(x.float()).to(x.dtype) * (1.0 + norm.weight.float()).to(x.dtype)


class DecodeTruth:
    """transformers' model of a checkpoint; top_k: with the selector `exact` in its decode steps."""

    def __init__(self, checkpoint: Path, dtype: torch.dtype, top_k: int | None = None) -> None:
        config = AutoConfig.from_pretrained(checkpoint)
        if config.model_type in ("deepseek_v32", "glm_moe_dsa"):
            self.model = tiny_dsa.reference(checkpoint, dtype)
            return
        kind = "sdpa"
        # SDPA silently drops Gemma 2's soft cap.
        if top_k is not None or getattr(config, "attn_logit_softcapping", None):
            kind = f"plain-{top_k}"
            AttentionInterface.register(kind, attention(top_k))
            AttentionMaskInterface.register(kind, eager_mask)
        of_checkpoint: Any = getattr(transformers, config.architectures[0])
        self.model = of_checkpoint.from_pretrained(checkpoint, dtype=dtype, attn_implementation=kind).eval()
        for module in self.model.modules():
            if type(module).__name__ in ("Gemma2RMSNorm", "Gemma3RMSNorm"):
                module.forward = partial(gemma_norm, module)

    @torch.inference_mode()
    def follow(self, prompt: Sequence[int] | np.ndarray, tokens: Sequence[int]) -> Tensor:
        """Logits after the prompt and after each of the tokens, fed one by one: [1 + n, vocabulary]."""
        cache = DynamicCache(config=self.model.config)
        logits, fed = [], torch.tensor([list(map(int, prompt))])
        for token in [*tokens, None]:
            logits.append(self.model(fed, past_key_values=cache, use_cache=True).logits[0, -1])
            fed = torch.tensor([[token or 0]])
        return torch.stack(logits)


def near_best(logits: Tensor, tokens: Sequence[int]) -> Tensor:
    """How far each token's logit is below the largest one: [n] for logits [n, vocabulary]."""
    picked = logits.gather(1, torch.tensor(list(tokens))[:, None])[:, 0]
    return logits.amax(1) - picked
