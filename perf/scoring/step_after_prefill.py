"""One decode step after each prefill, as an engine built for generation would do."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hiscore.arrays import Int32
from hiscore.attention.metadata import NO_SLOT, Forward, SegmentGroup
from hiscore.layers.lm_head import LMHead
from hiscore.prefill.interface import Runner

NO_ROWS = slice(0, 0)


class StepAfter(Runner):
    """`Runner` that keeps all keys and values of a forward, then runs a step over one more token per item.

    With a head, the host waits for each item's most probable token and feeds it to the step. Without, the step
    follows immediately and reads the item's last token again: the least that a step can cost, as if sampling were
    free and never involved the host. The step's result is discarded.
    """

    def __init__(self, runner: Runner, head: LMHead | None) -> None:
        self._runner, self._head = runner, head
        self.pool = runner.pool
        self.stepped: Tensor | None = None
        """Final hidden states of the last step, [R, hidden_size]."""

    def forward(self, forwards: Sequence[Forward]) -> Tensor:
        """Like `Runner.run`. The steps use the pool's slots from 0 on, so the forwards must not use any."""
        return torch.cat([self._forward(keeping_all(forward, self.pool.shape[1])) for forward in forwards])

    def _forward(self, forward: Forward) -> Tensor:
        last = forward.input_ids[forward.scored_rows]
        if self._head is None:
            both = self._runner.forward([forward, decode_step(forward, last)])
            self.stepped = both[len(last) :]
            return both[: len(last)]
        hidden = self._runner.forward([forward])
        best = self._head._product(hidden).argmax(dim=-1).cpu().numpy().astype(np.int32)
        self.stepped = self._runner.forward([decode_step(forward, best)])
        return hidden


def keeping_all(forward: Forward, slots: int) -> Forward:
    """The forward with the keys and values of row r kept in slot r.

    Raises:
        ValueError: It uses the pool itself, or the pool has too few slots.
    """
    rows = len(forward.input_ids)
    if (forward.slot_mapping != NO_SLOT).any() or any(len(group.context_slots) for group in forward.groups):
        raise ValueError("the forward uses the pool: it was cut, or queries are cached")
    if rows > slots:
        raise ValueError(f"{rows} rows are to be kept, the pool has {slots} slots")
    return forward._replace(slot_mapping=np.arange(rows))


def decode_step(forward: Forward, tokens: Int32) -> Forward:
    """A forward over one more token for each item of a forward whose keys and values were kept.

    Args:
        forward: The prefill, from `keeping_all`.
        tokens: int32 [R], the next token of each item.
    """
    groups = []
    firsts = np.array([group.first_row for group in forward.groups])
    for index, row in enumerate(forward.scored_rows):
        group = forward.groups[int(np.searchsorted(firsts, row, side="right")) - 1]
        begin = forward.cu_seqlens[np.searchsorted(forward.cu_seqlens, row, side="right") - 1]
        seen = np.r_[group.context_rows, begin : row + 1].astype(np.int64)
        groups.append(SegmentGroup(index, index + 1, seen, NO_ROWS))
    rows = np.arange(len(tokens))
    return Forward(
        input_ids=tokens,
        positions=forward.positions[forward.scored_rows] + np.int32(1),
        cu_seqlens=np.arange(len(tokens) + 1, dtype=np.int32),
        groups=tuple(groups),
        slot_mapping=np.full(len(tokens), NO_SLOT, np.int64),
        scored_rows=rows,
        scored_items=forward.scored_items,
    )
