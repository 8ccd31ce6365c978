"""Penalties on tokens that a sequence has had, and the counts that they need.

A row of counts is kept on the device for each sequence that may run, since a step is launched before the host has
read the token of the one before.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from hiscore.arrays import Int32
from hiscore.decoding.interface.sampling_batch import History, Penalties
from hiscore.device.copies import upload

IN_PROMPT = 1 << 30


class TokenCounts:
    """Counts of each token in the outputs of running sequences, and its presence in their prompts."""

    def __init__(self, max_sequences: int, device: torch.device, vocabulary: int = 0) -> None:
        # Without a vocabulary it takes its room when the first row asks for it; the memory plan counts it.
        self.table = torch.zeros((max_sequences, vocabulary), dtype=torch.int32, device=device)
        """int32 [max_sequences, vocabulary]; it stays where it is once it has room."""

    def _start(self, histories: Iterable[History], seq_indices: Int32, vocabulary: int) -> None:
        if self.table.shape[1] != vocabulary:
            self.table = self.table.new_zeros((len(self.table), vocabulary))
        for history in histories:
            counts = self.table[int(seq_indices[history.row])].zero_()
            counts.index_fill_(0, upload(history.prompt, counts.device).long(), IN_PROMPT)
            if len(history.output):
                self._add(counts, upload(history.output, counts.device).long())

    def penalise(self, logits: Tensor, penalties: Penalties, seq_indices: Int32) -> None:
        """Change logits, float32 [R, V], of rows with penalties in place, as the last thing that may fail."""
        device = logits.device
        self._start(penalties.histories, seq_indices, logits.shape[-1])
        rows, counted = upload(penalties.rows, device), upload(seq_indices[penalties.rows], device).long()
        options = [penalties.repetition, penalties.presence, penalties.frequency]
        repetition, presence, frequency = (upload(each, device)[:, None] for each in options)
        own, counts = logits.index_select(0, rows), self.table.index_select(0, counted)
        own = torch.where(counts > 0, torch.where(own > 0, own / repetition, own * repetition), own)
        output = counts & (IN_PROMPT - 1)
        own -= frequency * output
        own -= presence * (output > 0)
        logits.index_copy_(0, rows, own)

    def count(self, ids: Tensor, penalties: Penalties, seq_indices: Int32) -> None:
        """Count sampled tokens, int64 [R], of rows with penalties."""
        rows, counted = (
            upload(each, ids.device).long() for each in (penalties.rows, seq_indices[penalties.rows])
        )
        self._add(self.table.view(-1), counted * self.table.shape[1] + ids.index_select(0, rows))

    @staticmethod
    def _add(counts: Tensor, places: Tensor) -> None:
        counts.index_add_(0, places, torch.ones_like(places, dtype=torch.int32))
