"""The tokens of prompts in ``/v1/completions``: `scorer` tells of them, and of the likeliest token behind them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import msgspec

from hiscore.api.chat.logprobs import LEAST, LogprobsReader, TextLogprobs, TextOffsets
from hiscore.api.chat.tokenize import PromptCoder
from hiscore.api.http.encoding import off_loop
from hiscore.api.http.errors import bad_request
from hiscore.api.models import Models, few_at_once
from hiscore.api.wire import ModelCall, Usage, usage
from hiscore.models.support import read_eos_ids
from hiscore.prompts.shared_beginning import common_length
from hiscore_client import Chunk
from hiscore_client.results import TokenLogprobs

WORDS = {
    "'input_ids'": "'prompt'",
    "'label_token_ids'": "'prompt'",
    "query, items and their labels make": "prompts make",
    "the labels of all items have": "prompts have",
}
"""Words of `scorer` where it refuses, and the caller's."""
NO_TOKEN = 0
"""Stands behind a prompt whose next token is asked for: the row before it is read."""


class PromptLogprob(msgspec.Struct):
    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs: TypeAlias = list[dict[str, PromptLogprob] | None]


@dataclass(frozen=True)
class ScoredPrompt:
    """A prompt, with the likeliest token behind it if that was asked for, and what is known of each token.

    Nothing is known of the first one.
    """

    ids: list[int]
    prompt_tokens: int
    text: str
    new_text: str
    tokens: TokenLogprobs | None
    finish_reason: str

    def logprobs(self, reader: LogprobsReader, top: int, first: int) -> TextLogprobs:
        """Write the log-probabilities of the tokens from `first` on, as OpenAI does."""
        if not self.ids[first:]:
            return TextLogprobs([], [], [], [])
        known = self.tokens
        chunk = Chunk(
            self.text,
            self.ids,
            "length",
            [LEAST, *([] if known is None else known.logprobs.tolist())],
            [[], *([] if known is None else known.top_ids[:, :top].tolist())],
            [[], *([] if known is None else known.top_logprobs[:, :top].tolist())],
        )
        made = reader.of_text(chunk, TextOffsets(self.text))
        made.token_logprobs[0], made.top_logprobs[0] = None, None
        rest = TextLogprobs(*(getattr(made, name)[first:] for name in made.__struct_fields__))
        rest.text_offset = [each - rest.text_offset[0] for each in rest.text_offset]
        return rest

    def prompt_logprobs(self, reader: LogprobsReader, top: int) -> PromptLogprobs:
        """Write the log-probabilities of the prompt's tokens as vLLM does: by id, the token's own first."""
        found: PromptLogprobs = [None]
        for index, token in enumerate(self.ids[1 : self.prompt_tokens]):
            assert self.tokens is not None
            own = float(self.tokens.logprobs[index]), int(self.tokens.ranks[index])
            ids, values = self.tokens.top_ids[index, :top], self.tokens.top_logprobs[index, :top]
            told = {token: own}
            for rank, (other, value) in enumerate(zip(ids.tolist(), values.tolist(), strict=True), 1):
                told.setdefault(other, (value, rank))
            found.append({
                str(each): PromptLogprob(max(value, LEAST), rank, reader.text_of(each))
                for each, (value, rank) in told.items()
            })  # fmt: skip
        return found


class PromptScorer:
    def __init__(self, models: Models, reader: LogprobsReader, checkpoint: Path, coder: PromptCoder) -> None:
        self.reader = reader
        self._models, self._coder, self._ends = models, coder, read_eos_ids(checkpoint)

    async def encode(
        self, prompts: Sequence[str | Sequence[int]], special: bool, new: int
    ) -> list[list[int]]:
        """Turn prompts into token ids that fit the context with so many new ones."""
        ids = await self._coder.encode(prompts, special)
        most = self._coder.limits.context - new
        if (longest := max(map(len, ids))) > most:
            behind = f" with {new} behind it" if new else ""
            message = f"'prompt' has {longest} tokens: at most {most}{behind} (MAX_CONTEXT)"
            raise bad_request(message, "prompt", "context_length_exceeded")
        if [] in ids:
            raise bad_request("'prompt' is empty: at least one token is needed", "prompt")
        return ids

    async def score(
        self,
        prompts: Sequence[str | Sequence[int]],
        ids: Sequence[list[int]],
        top: int | None,
        generates: bool,
        call: ModelCall,
    ) -> tuple[list[ScoredPrompt], Usage]:
        """Score prompts; those that begin alike share what they begin with.

        Args:
            top: Likeliest tokens to tell of for each; None: nothing is asked of the prompts' own tokens.
            generates: The likeliest token behind each prompt is asked for.
        """
        known: dict[tuple[int, ...], TokenLogprobs | None] = dict.fromkeys(map(tuple, ids))
        if top is not None or generates:
            groups = _alike([list(each) for each in known if len(each) > 1 or generates])
            most = max(top or 0, 1) if generates else top
            calls = [partial(self._call, group, most, generates, call) for group in groups]
            for found in await few_at_once(calls):
                known |= found
        scored = [
            await off_loop(partial(self._scored, prompt, each, known[tuple(each)], generates), len(each))
            for prompt, each in zip(prompts, ids, strict=True)
        ]
        return scored, usage(sum(map(len, ids)), 0, len(ids) * generates)

    async def _call(
        self, prompts: list[list[int]], top: int | None, generates: bool, call: ModelCall
    ) -> dict[tuple[int, ...], TokenLogprobs]:
        """Score prompts with one first token in one call: the rest of each is a label behind it."""
        labels = [[*prompt[1:], *([NO_TOKEN] if generates else [])] for prompt in prompts]
        lengths = [*map(len, labels)]
        result = await self._models.score_ids(
            prompts[0][:1],
            [[]],
            [token for label in labels for token in label],
            label_lengths=lengths,
            log_scores=True,
            token_logprobs=top,
            request_id=call.id,
            adapter=call.adapter,
            words=WORDS,
        )
        assert result.tokens is not None
        found, begin = {}, 0
        for prompt, length in zip(prompts, lengths, strict=True):
            own = slice(begin, begin + length)
            found[tuple(prompt)] = TokenLogprobs(*(each[own] for each in vars(result.tokens).values()))
            begin += length
        return found

    def _scored(
        self, prompt: str | Sequence[int], ids: list[int], known: TokenLogprobs | None, generates: bool
    ) -> ScoredPrompt:
        text = prompt if isinstance(prompt, str) else self._coder.decode(ids)
        if not generates or known is None:
            return ScoredPrompt(ids, len(ids), text, "", known, "length")
        # The last row is that of no token of the prompt: its likeliest is what follows.
        token = int(known.top_ids[-1, 0])
        logprobs, ranks = known.logprobs.copy(), known.ranks.copy()
        logprobs[-1], ranks[-1] = known.top_logprobs[-1, 0], 1
        known = TokenLogprobs(logprobs, ranks, known.top_ids, known.top_logprobs)
        whole = [*ids, token]
        # The token may complete a character of the prompt.
        before, after = self._coder.decode(ids), self._coder.decode(whole)
        new = after[common_length([before + "a", after + "b"]) :]
        text = text + new if isinstance(prompt, str) else after
        reason = "stop" if token in self._ends else "length"
        return ScoredPrompt(whole, len(ids), text, new, known, reason)


def _alike(prompts: list[list[int]]) -> list[list[list[int]]]:
    """Group prompts of which those next to each other in order share at least half of the shorter one."""
    ordered = sorted(prompts)
    groups = [ordered[:1]] if ordered else []
    for before, each in pairwise(ordered):
        shared = common_length([[*before, -1], [*each, -2]])
        if 2 * shared >= min(len(before), len(each)) and shared:
            groups[-1].append(each)
        else:
            groups.append([each])
    return groups
