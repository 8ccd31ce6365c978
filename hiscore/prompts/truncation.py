"""Cutting queries and documents, where a request asks for it."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from hiscore.prompts.chat import PromptError
from hiscore.prompts.pairs import PairPrompts
from hiscore.prompts.rerank import RerankPrompts
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


NOTHING = Truncation()


@dataclass(frozen=True)
class CutPrompts:
    """Prompts, and what was cut for them."""

    prompts: Prompts
    documents: list[bool]
    query: bool


def cut_prompts(
    maker: RerankPrompts,
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


@dataclass(frozen=True)
class CutPairs:
    """Prompts of pairs, with the rows of their documents in the request; and whether each row was cut."""

    prompts: list[tuple[list[int], Prompts]]
    cut: list[bool]


def cut_pairs(
    maker: PairPrompts,
    queries: Sequence[str],
    documents: Sequence[str],
    instruction: str | None,
    truncation: Truncation,
    limits: TokenLimits,
) -> CutPairs:
    """Encode pairs, cut as asked: token by token, as sentence-transformers cuts them.

    Raises:
        PromptError: There is an instruction, which a pair has no place for.
        CannotEncode: A text would become a special token, or the library gives up on one.
        TooMuchText: A pair is too long, and may not be cut; or there is too much to encode.
    """
    if instruction is not None:
        raise PromptError("'instruction' has no place: this model reads query and document alone")
    most_of_query, most_of_document = truncation.query or sys.maxsize, truncation.document or sys.maxsize
    different = list(dict.fromkeys(queries))
    limits.check_characters(sum(map(len, different)) + sum(map(len, documents)) + 16 * len(documents))
    query_ids = dict(zip(different, maker.tokenizer.encode_texts(different), strict=True))
    if truncation.prompt or truncation.document:
        # Still longer than its query, if it was.
        longest = max(truncation.prompt or 0, truncation.document or 0, *map(len, query_ids.values()))
        documents = [maker.tokenizer.shortened(text, longest, truncation.left) for text in documents]
    around = len(maker.template.before) + len(maker.template.between) + len(maker.template.after)
    rows_of: dict[tuple[str, int], list[int]] = {}
    kept, cut = [], []
    for row, (query, ids) in enumerate(zip(queries, maker.tokenizer.encode_texts(documents), strict=True)):
        lengths = min(len(query_ids[query]), most_of_query), min(len(ids), most_of_document)
        if truncation.prompt is not None:
            lengths = longest_first(*lengths, truncation.prompt - around)
        elif (length := sum(lengths) + around) > limits.context:
            raise TooMuchText(
                f"query and document have {length} tokens, and are cut where the request says so, by "
                f"'truncate_prompt_tokens': -1 (TEI and NIM: 'truncate'): at most {limits.context} (MAX_CONTEXT)"
            )
        kept.append(ids[len(ids) - lengths[1] :] if truncation.left else ids[: lengths[1]])
        cut.append(lengths != (len(query_ids[query]), len(ids)))
        rows_of.setdefault((query, lengths[0]), []).append(row)
    prompts = []
    for (query, length), rows in rows_of.items():
        of_rows = [documents[row] for row in rows], query_ids[query][:length], [kept[row] for row in rows]
        prompts.append((rows, Prompts(*maker.template.join(query, *of_rows))))
    return CutPairs(prompts, cut)


def longest_first(first: int, second: int, most: int) -> tuple[int, int]:
    """Cut the longer of two texts, and both where one alone does not suffice, as the tokenizers library does.

    Raises:
        TooMuchText: There is no room for a token of each.
    """
    if most < 2:
        raise TooMuchText("'truncate_prompt_tokens' has no room for a query and a document")
    if first + second <= most:
        return first, second
    short, long = sorted((first, second))
    long = max(short, most - short)
    if short + long > most:
        short, long = most // 2, most - most // 2
    return (short, long) if first <= second else (long, short)


def _excess(prompts: Prompts, most: int) -> list[int]:
    return [max(len(prompts.query) + len(item) - most, 0) for item in prompts.items]


def _check_size(
    maker: RerankPrompts,
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
