"""Cutting queries and documents, where a request asks for it."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from hiscore.prompts.chat import PromptError
from hiscore.prompts.pairs import PairPrompts
from hiscore.prompts.rerank import RerankPrompts
from hiscore.prompts.shared_beginning import Prompts
from hiscore.prompts.token_limits import TokenLimits, TooMuchText, Truncation


@dataclass(frozen=True)
class CutPrompts:
    """Prompts that share a query, with the rows of their documents in the request; and which rows were cut."""

    prompts: list[tuple[Sequence[int], Prompts]]
    cut: list[bool]


def cut_prompts(
    maker: RerankPrompts | PairPrompts,
    queries: Sequence[str],
    documents: Sequence[str],
    instruction: str | None,
    truncation: Truncation,
    limits: TokenLimits,
) -> CutPrompts:
    """Make prompts of texts that are cut as asked (`cut_pairs`). Text that is over `limits` anyway is not encoded.

    Raises:
        PromptError: The template fails.
        CannotEncode: A text would become a special token, or the library gives up on one.
        TooMuchText: The text is too much to encode, or what may not be cut has too many tokens.
    """
    if isinstance(maker, PairPrompts):
        return cut_pairs(maker, queries, documents, instruction, truncation, limits)
    tokenizer, left = maker.tokenizer, truncation.left
    limits.check_characters(maker.characters(queries, documents, instruction))
    if truncation.query is None:
        limits.check_bytes("", list(set(queries)), tokenizer.bytes_per_token)
    if truncation.document is None and truncation.prompt is None:
        limits.check_bytes("", documents, tokenizer.bytes_per_token)
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
    asked, kept = zip(asked_queries, asked_documents, strict=True), zip(queries, documents, strict=True)
    cut = [each != before for each, before in zip(kept, asked, strict=True)]
    return CutPrompts([(range(len(cut)), prompts)], cut)


def cut_pairs(
    maker: PairPrompts,
    queries: Sequence[str],
    documents: Sequence[str],
    instruction: str | None,
    truncation: Truncation,
    limits: TokenLimits,
) -> CutPrompts:
    """Encode pairs, cut as asked: token by token, as sentence-transformers cuts them."""
    if instruction is not None and not maker.prompt:
        raise PromptError("'instruction' has no place: this model reads query and document alone")
    most_of_query, most_of_document = truncation.query or sys.maxsize, truncation.document or sys.maxsize
    prompt = maker.prompt if instruction is None else instruction
    if prompt:
        queries = [prompt + query for query in queries]
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
    prompts: list[tuple[Sequence[int], Prompts]] = []
    for (query, length), rows in rows_of.items():
        # Also of empty texts, of which sentence-transformers makes pairs, too.
        head = [*maker.template.before, *query_ids[query][:length], *maker.template.between]
        prompts.append((rows, Prompts(head, [[*kept[row], *maker.template.after] for row in rows])))
    return CutPrompts(prompts, cut)


def longest_first(first: int, second: int, most: int) -> tuple[int, int]:
    """Cut the longer of two texts, or both, as the tokenizers library does, or raise `TooMuchText`."""
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
