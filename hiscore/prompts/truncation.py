"""Cutting queries and documents, where a request asks for it."""

from collections.abc import Sequence
from dataclasses import dataclass

from hiscore.prompts.rerank import ClassifierPairs, RerankPrompts
from hiscore.prompts.shared_beginning import Prompts
from hiscore.prompts.token_limits import TokenLimits, TooMuchText


@dataclass(frozen=True)
class Truncation:
    """Lengths to which texts may be cut, in tokens of the text alone; None: they may not be.

    `prompt` counts the tokens of a whole prompt, whose document is cut; with `left` documents keep their ends.
    """

    query: int | None = None
    document: int | None = None
    prompt: int | None = None
    left: bool = False

    @property
    def asked(self) -> bool:
        return (self.query, self.document, self.prompt) != (None, None, None)


NOTHING = Truncation()


@dataclass(frozen=True)
class CutPrompts:
    """Prompts, and what was cut for them."""

    prompts: Prompts
    documents: list[bool]
    query: bool


def cut_prompts(
    maker: RerankPrompts | ClassifierPairs,
    queries: Sequence[str],
    documents: Sequence[str],
    instruction: str | None,
    truncation: Truncation,
    limits: TokenLimits,
) -> CutPrompts:
    """Make prompts of texts that are cut as asked. Text that is over `limits` in any case is not encoded.

    Raises:
        PromptError: The template fails.
        CannotEncode: A text would become a special token, or the library gives up on one.
        TooMuchText: The text is too much to encode, or what may not be cut has too many tokens.
    """
    _check_size(maker, queries, documents, instruction, truncation, limits)
    tokenizer, left = maker.tokenizer, truncation.left
    asked_queries, asked_documents = queries, documents
    if truncation.query is not None:
        queries = [tokenizer.cut(text, truncation.query) for text in queries]
    if truncation.document is not None:
        documents = [tokenizer.cut(text, truncation.document, left) for text in documents]
    elif truncation.prompt is not None:
        documents = [tokenizer.shortened(text, truncation.prompt, left) for text in documents]
    prompts = maker.ids(queries, documents, instruction)
    if truncation.prompt is not None:
        excess = _excess(prompts, truncation.prompt)
        # What is left of a text may have other tokens at its end, and still be too long.
        while any(excess) and all(text for text, over in zip(documents, excess, strict=True) if over):
            lengths = map(len, tokenizer.encode_texts(documents))
            documents = [
                tokenizer.cut(text, max(length - over, 0), left) if over else text
                for text, length, over in zip(documents, lengths, excess, strict=True)
            ]
            prompts = maker.ids(queries, documents, instruction)
            excess = _excess(prompts, truncation.prompt)
        longest = len(prompts.query) + max(map(len, prompts.items), default=0)
        # What exceeds the context, the models refuse.
        if truncation.prompt < min(longest, limits.context):
            raise TooMuchText(
                f"a prompt has {longest} tokens without its document: at most {truncation.prompt} are asked for"
            )
    cut = [text != asked for text, asked in zip(documents, asked_documents, strict=True)]
    return CutPrompts(prompts, cut, list(queries) != list(asked_queries))


def _excess(prompts: Prompts, most: int) -> list[int]:
    return [max(len(prompts.query) + len(item) - most, 0) for item in prompts.items]


def _check_size(
    maker: RerankPrompts | ClassifierPairs,
    queries: Sequence[str],
    documents: Sequence[str],
    instruction: str | None,
    truncation: Truncation,
    limits: TokenLimits,
) -> None:
    limits.check_characters(maker.characters(queries, documents, instruction))
    bytes_per_token = maker.tokenizer.bytes_per_token
    if truncation.query is None:
        limits.check_bytes("", list(set(queries)), bytes_per_token)
    if truncation.document is None and truncation.prompt is None:
        limits.check_bytes("", documents, bytes_per_token)
