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

RING = 4
"""Newest tokens that are always selected."""


def chosen(weights: Tensor, top_k: int, groups: int) -> Tensor:
    """Exact selection by its definition, for one query of each head: weights [heads, n] to bool [groups, n].

    The first token and those of `build`'s ring are always in; of equal ones the lower position is.
    """
    mean = weights.view(groups, -1, weights.shape[1]).mean(1).tolist()
    keep = torch.zeros(groups, weights.shape[1], dtype=torch.bool)
    last = weights.shape[1] - 1
    for group, of_tokens in enumerate(mean):
        always = {0, *range(last - RING + 1, last + 1)}
        others = sorted(set(range(last + 1)) - always, key=lambda token: (-of_tokens[token], token))
        keep[group, [*always, *others[: top_k - len(always)]]] = True
    return keep


def attention(top_k: int | None) -> Callable[..., tuple[Tensor, None]]:
    """Attention as transformers calls it. top_k: single queries attend to selected tokens."""

    def attend(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float,
        softcap: float | None = None,
        sliding_window: int | None = None,
        s_aux: Tensor | None = None,
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
        sinks = None if s_aux is None else s_aux.view(kv_heads, -1, 1, 1)
        out = torch.einsum("bhgqk,bhkd->bhgqd", softmax(logits, sinks), value)
        return out.flatten(1, 2).transpose(1, 2), None

    return attend


def gemma_norm(norm: Any, x: Tensor) -> Tensor:
    """Gemma's norm, but multiplied by its weights in x's dtype, as in other families, instead of in float32.

    Otherwise a comparison in float64 would only show its rounding.
    """
    return norm._norm(x.float()).to(x.dtype) * (1.0 + norm.weight.float()).to(x.dtype)


def gpt_oss_norm(norm: Any, x: Tensor) -> Tensor:
    """GPT-OSS's norm, likewise."""
    y = x.float()
    normed = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)
    return normed.to(x.dtype) * norm.weight.to(x.dtype)


def softmax(logits: Tensor, sinks: Tensor | None) -> Tensor:
    """Weights of [..., keys], with a sink's in the sum alone."""
    if sinks is None:
        return logits.softmax(-1)
    top = torch.maximum(logits.amax(-1, keepdim=True), sinks)
    weights = (logits - top).exp()
    return weights / (weights.sum(-1, keepdim=True) + (sinks - top).exp())


class DecodeTruth:
    """transformers' model of a checkpoint; top_k: with exact selection in its decode steps."""

    def __init__(self, checkpoint: Path, dtype: torch.dtype, top_k: int | None = None) -> None:
        config = AutoConfig.from_pretrained(checkpoint)
        if config.model_type in ("deepseek_v32", "glm_moe_dsa"):
            self.model = tiny_dsa.reference(checkpoint, dtype)
            return
        kind = "sdpa"
        # SDPA silently drops Gemma 2's soft cap.
        # It has no sinks either.
        with_sinks = config.model_type == "gpt_oss"
        if top_k is not None or with_sinks or getattr(config, "attn_logit_softcapping", None):
            kind = f"plain-{top_k}"
            AttentionInterface.register(kind, attention(top_k))
            AttentionMaskInterface.register(kind, eager_mask)
        of_checkpoint: Any = getattr(transformers, config.architectures[0])
        self.model = of_checkpoint.from_pretrained(
            checkpoint, dtype=dtype, attn_implementation=kind, experts_implementation="eager"
        ).eval()
        for module in self.model.modules():
            if type(module).__name__ in ("Gemma2RMSNorm", "Gemma3RMSNorm"):
                module.forward = partial(gemma_norm, module)
            if type(module).__name__ == "GptOssRMSNorm":
                module.forward = partial(gpt_oss_norm, module)

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
