"""Labels' scores from the log-probabilities of their tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from hiscore.arrays import Float32, Int32, Int64
from hiscore.errors import Code, RequestError
from hiscore.scoring.requests.label_trie import LabelTrie
from hiscore.scoring.results.readout import PairScores


class TokenValues(NamedTuple):
    """Values of the tokens of all items' labels, in turn.

    Attributes:
        logprobs: float32 [tokens].
        ranks: int32 [tokens]: 1 for the likeliest of the vocabulary.
        top_ids: int32 [tokens, n]: the likeliest, best first.
        top_logprobs: float32 [tokens, n].
    """

    logprobs: Float32
    ranks: Int32
    top_ids: Int32
    top_logprobs: Float32


@dataclass(frozen=True)
class LabelTokens:
    """The tokens of all items' labels, and the rows that predict them.

    Attributes:
        rows: int64 [tokens]: of the request's rows that are read.
        ids: int32 [tokens].
        lengths: int64 [labels of all items].
        sizes: int64 [labels of all items]: what their logarithms are divided by.
        reads: The number of rows.
    """

    rows: Int64
    ids: Int32
    lengths: Int64
    sizes: Int64
    reads: int

    @classmethod
    def of(cls, tries: Sequence[LabelTrie]) -> "LabelTokens":
        reads = np.array([trie.reads for trie in tries], np.int64)
        firsts = np.repeat(reads.cumsum() - reads, [len(trie.ids) for trie in tries])
        nothing = np.empty(0, np.int64)
        return cls(
            np.concatenate([nothing, *(trie.rows for trie in tries)]) + firsts,
            np.concatenate([nothing.astype(np.int32), *(trie.ids for trie in tries)]),
            np.concatenate([nothing, *(trie.lengths for trie in tries)]),
            np.concatenate([nothing, *(trie.sizes for trie in tries)]),
            int(reads.sum()),
        )

    @cached_property
    def order(self) -> Int64:
        """int64 [tokens]: their order by row, in which the head computes them."""
        return self.rows.argsort(kind="stable")

    def scores(self, found: Float32, of_labels: PairScores) -> Float32:
        """Turn what the head computed, [tokens, columns] by row, into scores, or raise `RequestError`."""
        logs = self._in_turn(found[:, 0]).astype(np.float64)
        if not np.isfinite(logs).all():
            raise RequestError("the model's output is not a finite number", Code.INTERNAL)
        starts = self.lengths.cumsum() - self.lengths
        sums = np.add.reduceat(logs, starts) if len(starts) else logs
        return of_labels.of_logs(sums / self.sizes)

    def values(self, found: Float32, top: int) -> TokenValues:
        """Read what the head computed of each token, float32 [tokens, 2 + 2 * top] by row."""
        logprobs, ranks, *_ = (in_turn := self._in_turn(found)).T
        top_logprobs, top_ids = in_turn[:, 2 : 2 + top], in_turn[:, 2 + top :]
        return TokenValues(logprobs, ranks.astype(np.int32), top_ids.astype(np.int32), top_logprobs)

    def _in_turn(self, by_row: Float32) -> Float32:
        in_turn = np.empty_like(by_row)
        in_turn[self.order] = by_row
        return in_turn
