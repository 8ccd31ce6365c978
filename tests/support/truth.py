"""The truth that every scoring path is compared with: transformers, one item at a time, in float32."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification


class Truth:
    def __init__(self, checkpoint: Path, skips_pads: bool = False) -> None:
        config = AutoConfig.from_pretrained(checkpoint)
        self.is_classifier = config.architectures[0].endswith("ForSequenceClassification")
        kind: Any = getattr(transformers, config.architectures[0], None)
        if kind is None or not isinstance(config, kind.config_class):
            # A class of the tests, or a mistral with layer_types, a ministral to transformers' Auto classes.
            kind = AutoModelForSequenceClassification if self.is_classifier else AutoModelForCausalLM
        # Not SDPA: it silently drops Gemma 2's soft cap.
        self.model = kind.from_pretrained(checkpoint, dtype=torch.float32, attn_implementation="eager").eval()
        if self.is_classifier and not skips_pads:
            # With a pad id, transformers skips trailing tokens that have it; a score is read at the last token.
            self.model.config.get_text_config().pad_token_id = None
        self._known: dict[tuple[int, ...], np.ndarray] = {}

    @torch.inference_mode()
    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """Last-token logits, float64 [vocabulary] (a classifier: [labels])."""
        key = tuple(map(int, ids))
        if key not in self._known:
            # Its cache would refuse configs that its forward computes.
            out = self.model(torch.tensor([key]), use_cache=False).logits[0]
            self._known[key] = (out if self.is_classifier else out[-1]).double().numpy()
        return self._known[key]

    def scores(
        self,
        query: Sequence[int],
        items: Sequence[Sequence[int]],
        labels: Sequence[int] = (),
        apply_softmax: bool = False,
        temperature: float = 1.0,
    ) -> np.ndarray:
        """float64 [items, labels], by the contract's meaning of a score."""
        rows = np.stack([self.logits([*query, *item]) for item in items]) / temperature
        if self.is_classifier:
            return of_classifier(rows, apply_softmax)
        if apply_softmax:
            return softmax(rows[:, list(labels)])
        return softmax(rows)[:, list(labels)]


def of_classifier(rows: np.ndarray, apply_softmax: bool) -> np.ndarray:
    """The scores of a classifier's logits [items, labels]: of one label, a softmax is a sigmoid."""
    if not apply_softmax:
        return rows
    return 1 / (1 + np.exp(-rows)) if rows.shape[1] == 1 else softmax(rows)


def softmax(rows: np.ndarray) -> np.ndarray:
    powers = np.exp(rows - rows.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)
