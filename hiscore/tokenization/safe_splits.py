r"""Split points: places at which a text's two parts, encoded separately, give the tokens of the whole.

A query shared by many items need not be encoded once per item if some place in it is a safe split regardless of
what follows. This module knows one kind of place, and the tokenizers for which it is proved;
`mark_splits` another.

A *split point* is between two characters ``a|b`` where

- ``a`` is not whitespace and ``b`` is an ASCII space, or
- ``a`` is a Han ideograph or a kana letter and ``b`` is one of ``、。，：；？！`` (such texts have few spaces).

Claim: if `has_safe_splits(backend)`, then for every text ``L + R`` with a split point in between, whatever R
continues with, ``encode(L + R) == encode(L) + encode(R)``, special tokens not added. Stage by stage:

Added tokens are matched first, leftmost-longest. None contains a split point, and none looks at or swallows its
surroundings (no lstrip, rstrip, single_word), so a match that begins in L ends in L. Matches from the left are
therefore those of L, then those of R; the pieces between them are pieces of L, pieces of R, and at most one piece
that crosses the split point. The rest is about that piece, ``l + r``.

NFC: no ``b`` above composes or reorders with what precedes it (all are starters with NFC_Quick_Check=Yes), so
``NFC(l + r) == NFC(l) + NFC(r)``. The split point is still one: NFC turns nothing else into whitespace, and leaves
these Han ideographs, kana and punctuation unchanged unless a mark follows. Tokens matched in normalised text: as
above, with their contents normalised too.

Split by a pattern of `SAFE_PATTERNS` ("isolated": every match is a piece, and so is the text between matches).
Matching goes left to right, without lookbehind, and

1. no alternative matches a string in which ``a`` is followed by ``b``. A space is matched by ``\s`` runs, which
   contain no non-space, and by a leading `` ?`` or ``[^\r\n\p{L}\p{N}]?``, before which the match is empty; the
   negated class ``[^\s...]+`` contains no space, and neither do ``[\r\n]*`` and ``[\r\n/]*``. After a letter, an
   alternative continues with letters, marks, or a contraction that begins with an ASCII apostrophe, never with
   the punctuation above; no character folds to or from these under ``(?i:)``.
2. So every match that begins in l ends in l, and is the one found in l alone: a greedy run that ends at the split
   point also ends there at the end of l, since ``b`` belongs to none of the classes it could continue with. The
   only lookahead, ``\s+(?!\S)``, looks one character past a run of whitespace that begins in l; as ``a`` is not
   whitespace, that character is in l.
3. ``b`` always begins a match (``\s+`` or the punctuation alternative), so no piece between two matches crosses
   the split point, and from there on matching sees r alone.

"Whitespace" can be judged by Python: its set includes all of Unicode's White_Space, which is ``\s`` of the engine,
so "not whitespace" here is "not whitespace" there.

Digits separates characters of different kinds, looking at each by itself, so it treats both halves as it treats
the whole. ByteLevel without its pattern maps bytes one by one; it must come last, since it turns spaces into
letters. Then BPE encodes every piece by itself; without dropout the result depends on the piece alone.
"""

import re
import unicodedata
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import BPE

from hiscore.tokenization.mark_splits import mark_split_rule
from hiscore.tokenization.split_rule import SplitRule, state

SPLIT_POINT = re.compile(r"(?<=\S) |(?<=[\u4e00-\u9fa5\u3041-\u3096\u30a1-\u30fa])[、。，：；？！]")

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_PREFIX, _SPACES = r"[^\r\n\p{L}\p{N}]?", r"\s*[\r\n]+|\s+(?!\S)|\s+"

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"  # in ByteLevel too
CL100K = (
    rf"{_CONTRACTIONS}|{_PREFIX}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"  # Llama 3
)
QWEN2 = rf"{_CONTRACTIONS}|{_PREFIX}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"  # Qwen3 too
O200K = (
    rf"{_PREFIX}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_PREFIX}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
TEKKEN = (  # Mistral
    rf"{_PREFIX}{_UPPER}*{_LOWER}+|{_PREFIX}{_UPPER}+{_LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
SAFE_PATTERNS = frozenset({GPT2, CL100K, QWEN2, O200K, TEKKEN})


def has_safe_splits(backend: Tokenizer) -> bool:
    """Check that the claim above is proved for a tokenizer."""
    return (
        isinstance(backend.model, BPE)
        and not backend.model.dropout
        and state(backend.normalizer).get("type") in (None, "NFC")
        and _splits_at_every_split_point(state(backend.pre_tokenizer))
        and not any(
            token.lstrip
            or token.rstrip
            or token.single_word
            or SPLIT_POINT.search(unicodedata.normalize("NFC", token.content))
            for token in backend.get_added_tokens_decoder().values()
        )
    )


def split_rule(backend: Tokenizer) -> SplitRule | None:
    """Find the rule by which a tokenizer's texts can be split; None if nothing is proved for it."""
    return SplitRule(SPLIT_POINT) if has_safe_splits(backend) else mark_split_rule(backend)


def _splits_at_every_split_point(pre_tokenizer: dict[str, Any]) -> bool:
    """Check that some step splits at every split point, and that no step joins or looks across one."""
    steps = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    splits = False
    for index, step in enumerate(steps):
        match step:
            case {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}:
                if pattern not in SAFE_PATTERNS:
                    return False
                splits = True
            case {"type": "Digits"}:
                pass
            case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": use_regex}:
                if index != len(steps) - 1:
                    return False
                splits |= use_regex
            case _:
                return False
    return splits
