"""The truth of encoders: transformers, one pair at a time, in float32."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tests.support.truth import of_classifier


class PairTruth:
    """transformers' own model and tokenizer of a checkpoint."""

    def __init__(self, checkpoint: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        self.model = AutoModelForSequenceClassification.from_pretrained(
            checkpoint, dtype=torch.float32, attn_implementation="eager"
        ).eval()

    def encode(self, query: str, item: str, item_first: bool = False) -> dict[str, torch.Tensor]:
        """As a user of transformers would: an empty text makes no pair."""
        texts = [text for text in ((item, query) if item_first else (query, item)) if text]
        return dict(self.tokenizer(*(texts or [""]), return_tensors="pt"))

    def ids(self, query: str, item: str, item_first: bool = False) -> list[int]:
        return self.encode(query, item, item_first)["input_ids"][0].tolist()

    def scores(
        self, query: str, items: Sequence[str], apply_softmax: bool = False, item_first: bool = False
    ) -> np.ndarray:
        """float64 [items, labels]."""
        return of_classifier(
            np.stack([self._logits(**self.encode(query, item, item_first)) for item in items]), apply_softmax
        )

    def scores_of_ids(
        self, query: Sequence[int], items: Sequence[Sequence[int]], apply_softmax: bool = False
    ) -> np.ndarray:
        """The same for token ids; the item's have the second token type, if there are several and a query."""
        types = int(getattr(self.model.config, "type_vocab_size", 0) > 1 and len(query) > 0)
        rows = []
        for item in items:
            inputs = {"input_ids": torch.tensor([[*query, *item]])}
            if types:
                inputs["token_type_ids"] = torch.tensor([[0] * len(query) + [1] * len(item)])
            rows.append(self._logits(**inputs))
        return of_classifier(np.stack(rows), apply_softmax)

    @torch.inference_mode()
    def _logits(self, **inputs: torch.Tensor) -> np.ndarray:
        return self.model(**inputs).logits[0].double().numpy()
