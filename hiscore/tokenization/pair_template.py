"""The special tokens that a tokenizer puts around and between the two texts of a pair."""

from dataclasses import dataclass
from itertools import product
from typing import Any

# Different in length, script and first character; nothing in them is special to any tokenizer.
PROBES = ("a", " b c", "Is 12 a number?\n", "你好")


@dataclass(frozen=True)
class PairTemplate:
    """How two texts, encoded each by itself and without special tokens, become a pair.

    Attributes:
        before: Token ids before the first text.
        between: Token ids between the texts.
        after: Token ids after the second text.
        token_types: Of the first text with `before` and `between`, and of the second with `after`.
    """

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    token_types: tuple[int, int] = (0, 0)


def find_pair_template(tokenizer: Any) -> PairTemplate | None:
    """Take the template of one of transformers' fast tokenizers from what it does to a pair.

    Returns:
        None if pairs of probes show that there is no such template.
    """
    backend = tokenizer.backend_tokenizer
    encoding = backend.encode(PROBES[2], PROBES[3])
    texts = encoding.sequence_ids  # 0, 1, or None for a special token
    if 0 not in texts or 1 not in texts:
        return None
    first, last = texts.index(0), len(texts) - texts[::-1].index(0)
    second, end = texts.index(1), len(texts) - texts[::-1].index(1)
    ids, types = encoding.ids, _types(tokenizer, PROBES[2], PROBES[3])
    template = PairTemplate(
        tuple(ids[:first]), tuple(ids[last:second]), tuple(ids[end:]), (types[first], types[second])
    )
    return template if all(_holds(template, tokenizer, *pair) for pair in product(PROBES, PROBES)) else None


def _types(tokenizer: Any, first: str, second: str) -> list[int]:
    """The token types that a model would get: zeros where the tokenizer gives none."""
    encoding = tokenizer(first, second)
    return list(encoding.get("token_type_ids", [0] * len(encoding["input_ids"])))


def _holds(template: PairTemplate, tokenizer: Any, first: str, second: str) -> bool:
    backend = tokenizer.backend_tokenizer
    a, b = (backend.encode(text, add_special_tokens=False).ids for text in (first, second))
    of_first = [*template.before, *a, *template.between]
    of_second = [*b, *template.after]
    types = [template.token_types[0]] * len(of_first) + [template.token_types[1]] * len(of_second)
    ids = list(tokenizer(first, second)["input_ids"])
    return of_first + of_second == ids and types == _types(tokenizer, first, second)
