"""Limits on the tokens of prompts: a text that holds more is refused before all of it is encoded."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hiscore.prompts.shared_beginning import common_length

# That may be encoded for one call, where all of a text has to be encoded with every prompt.
MAX_CHARACTERS = 2**25


class TooMuchText(ValueError):
    """More text than may be encoded for one call, or than a prompt or a call can hold."""


@dataclass(frozen=True)
class Truncation:
    """Lengths to which texts may be cut, in tokens of the text alone; None: they may not be.

    `prompt` counts the tokens of a whole prompt, whose document is cut; with `left` documents keep their ends.
    """

    query: int | None = None
    document: int | None = None
    prompt: int | None = None
    left: bool = False


NOTHING = Truncation()


@dataclass(frozen=True)
class TokenLimits:
    """The scorer's own limits, which would refuse the prompts only once they are encoded and sent.

    `context` (MAX_CONTEXT) bounds the tokens of a prompt, `call` (MAX_CALL_TOKENS) those of all, shared ones once.
    """

    context: int
    call: int

    def check_characters(self, characters: int) -> None:
        """Raise `TooMuchText` for more than `MAX_CHARACTERS`, which may be encoded for one call."""
        if characters > MAX_CHARACTERS:
            raise TooMuchText(
                f"{characters} characters are to be encoded: at most {MAX_CHARACTERS} in one call"
            )

    def check_bytes(self, head: str, tails: Sequence[str], bytes_per_token: int | None) -> None:
        """Raise `TooMuchText` if a prompt has too many tokens however it is encoded.

        `bytes_per_token` counts the bytes of UTF-8 that one token can be at most; None: any number.
        """
        if bytes_per_token is None:
            return
        size = len(head.encode()) + max((len(each.encode()) for each in tails), default=0)
        if size > (most := bytes_per_token * self.context):
            raise TooMuchText(
                f"a prompt has {size} bytes: at most {most} can be {self.context} tokens (MAX_CONTEXT)"
            )

    def check_ids(self, query: int, items: Sequence[int], shared: bool) -> None:
        """Raise `TooMuchText` if a query's and its items' numbers of tokens are over a limit.

        With `shared` the query comes first in every prompt, and counts once.
        """
        longest = query + max(items, default=0)
        if longest > self.context:
            raise TooMuchText(f"query and item have {longest} tokens: at most {self.context} (MAX_CONTEXT)")
        tokens = sum(items) + (query if shared else query * len(items))
        if tokens > self.call:
            raise TooMuchText(
                f"query and items have {tokens} tokens: at most {self.call} in one call (MAX_CALL_TOKENS)"
            )

    def gather(self, once: Sequence[int], batches: Iterable[list[list[int]]]) -> list[list[int]]:
        """Take prompts that begin with `once`, and raise `TooMuchText` at the first batch that is over a limit."""
        rows: list[list[int]] = []
        extremes: list[list[int]] = []
        tokens = len(once)
        for batch in batches:
            rows += batch
            longest = len(once) + max(map(len, batch))
            if longest > self.context:
                raise TooMuchText(f"a prompt has {longest} tokens: at most {self.context} (MAX_CONTEXT)")
            tokens += sum(map(len, batch))
            # What the first and the last row in order share, all share. With further rows it can only be less.
            extremes = [min([*extremes, *batch]), max([*extremes, *batch])]
            least = tokens - common_length(extremes) * (len(rows) - 1)
            if least > self.call:
                raise TooMuchText(
                    f"{len(rows)} prompts have {least} tokens: at most {self.call} in one call (MAX_CALL_TOKENS)"
                )
        return rows
