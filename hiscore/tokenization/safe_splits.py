r"""Places where a text may be cut so that its two parts, encoded apart, give the tokens of the whole.

A query shared by many items need not be encoded once per item if such a place is known in it, whatever
follows. This module knows one kind of place and the tokenizers for which it is proved.

A *cut* lies between two characters ``a|b`` where

- ``a`` is not whitespace and ``b`` is an ASCII space, or
- ``a`` is a Han ideograph or a kana letter and ``b`` is one of ``、。，：；？！`` (such texts have few spaces).

Claim: if `has_safe_cuts(backend)`, then for every text ``L + R`` with a cut between, whatever R goes on with,
``encode(L + R) == encode(L) + encode(R)``, special tokens not added. Stage by stage:

Added tokens are found first, leftmost-longest. None holds a cut inside, none looks at or swallows its
surroundings (no lstrip, rstrip, single_word), so a match that begins in L ends in L. Matches from the left are
thus those of L, then those of R; the pieces between them are pieces of L, pieces of R, and at most one piece
that goes over the cut. The rest concerns that piece, ``l + r``.

NFC: no ``b`` above composes or reorders with what stands before it (all are starters with NFC_Quick_Check=Yes),
so ``NFC(l + r) == NFC(l) + NFC(r)``. The cut is still one: NFC makes no whitespace of
anything else, and leaves these Han ideographs, kana and punctuation as they are unless a mark follows. Tokens
found in normalised text: as above, their contents normalised too.

Split by a pattern of `SAFE_PATTERNS` ("isolated": every match is a piece, what lies between matches too). Matching
goes left to right, without lookbehind, and

1. no alternative matches a string in which ``a`` is followed by ``b``. A space is matched by ``\s`` runs, which
   hold no non-space, and by a leading `` ?`` or ``[^\r\n\p{L}\p{N}]?``, before which the match holds nothing; the
   negated class ``[^\s...]+`` holds no space, ``[\r\n]*`` and ``[\r\n/]*`` neither. Behind a letter, an
   alternative goes on with letters, marks, or a contraction that begins with an ASCII apostrophe, never with the
   punctuation above; no character folds to or from these under ``(?i:)``.
2. So every match that begins in l ends in l, and is the one found in l alone: a greedy run that ends at the cut
   ends there at the end of l as well, since ``b`` belongs to none of the classes it could run on with. The only
   lookahead, ``\s+(?!\S)``, looks one character past a run of whitespace that begins in l; as ``a`` is not
   whitespace, that character is in l.
3. ``b`` always begins a match (``\s+`` or the punctuation alternative), so no piece between two matches goes
   over the cut, and from there on matching sees r alone.

"Whitespace" is safe to judge by Python: its set holds all of Unicode's White_Space, which is ``\s`` of the
engine, so "not whitespace" here is "not whitespace" there.

Digits cuts between characters of different kinds, each judged by itself: cut or not, both halves are cut alike.
ByteLevel without its pattern maps bytes one by one; it must come last, since it turns spaces into letters. Then
every piece is encoded by BPE for itself; without dropout the result depends on the piece alone.
"""

import json
import re
import unicodedata
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import BPE

CUT = re.compile(r"(?<=\S) |(?<=[\u4e00-\u9fa5\u3041-\u3096\u30a1-\u30fa])[、。，：；？！]")

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


def has_safe_cuts(backend: Tokenizer) -> bool:
    """Whether the claim above holds for a tokenizer; when in doubt it does not."""
    return (
        isinstance(backend.model, BPE)
        and not backend.model.dropout
        and _state(backend.normalizer).get("type") in (None, "NFC")
        and _splits_at_cuts(_state(backend.pre_tokenizer))
        and not any(
            token.lstrip
            or token.rstrip
            or token.single_word
            or CUT.search(unicodedata.normalize("NFC", token.content))
            for token in backend.get_added_tokens_decoder().values()
        )
    )


def first_cut(text: str) -> int | None:
    """Where the first cut of a text lies (the index of ``b``), if it has one."""
    found = CUT.search(text)
    return found.start() if found else None


def last_cut(text: str) -> int | None:
    """Where the last cut of a text lies, if it has one; reads only as much of the end as it must."""
    window = 256
    while True:
        start = max(0, len(text) - window)
        # A search position, unlike a slice, lets the lookbehind see the character before it.
        found = [match.start() for match in CUT.finditer(text, start)]
        if found or start == 0:
            return found[-1] if found else None
        window *= 8


def _splits_at_cuts(pre_tokenizer: dict[str, Any]) -> bool:
    """Whether some step splits at every cut and no step joins or looks over it."""
    steps = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    splits = False
    for place, step in enumerate(steps):
        match step:
            case {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}:
                if pattern not in SAFE_PATTERNS:
                    return False
                splits = True
            case {"type": "Digits"}:
                pass
            case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": use_regex}:
                if place != len(steps) - 1:
                    return False
                splits |= use_regex
            case _:
                return False
    return splits


def _state(component: Any) -> dict[str, Any]:
    """A pipeline component's own JSON, empty for none."""
    state: dict[str, Any] = json.loads(component.__getstate__()) if component is not None else {}
    return state
