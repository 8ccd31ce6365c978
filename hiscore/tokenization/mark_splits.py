r"""Safe splits of tokenizers that write a space as a mark, mostly "▁", at the front of the next word.

A *split point* is between two characters ``a|b`` where ``b`` is an ASCII space and ``a`` is neither whitespace nor
the mark itself.

Claim: if `mark_split_rule(backend)` is not None, then for every text ``L + R`` with such a split point in between,
whatever R continues with, ``encode(L + R) == encode(L) + encode(R)``, special tokens not added; under `adds_space`
with R without its first character.

Added tokens are matched first, leftmost-longest. As in `safe_splits`, none contains a split point or looks at its
surroundings, so L and R have the matches of the whole, and at most one piece ``l + r`` crosses the split point.

The mark. Spaces become marks either by the pre-tokenizer Metaspace or by the normalizer Replace, one for one, so
``l + r`` becomes ``m(l) + m(r)``, where m(l) does not end in a mark and m(r) begins with one. Metaspace puts a
mark before a piece that does not begin with one ("always", or "first": only at the start of the text): never
before m(r), and before m(l) as in the whole. The normalizer Prepend puts a mark before every piece, whatever it
begins with. Then R without its space gets its mark back, if both l and r without its space have a character: for
that, no added token may end in ``a`` or begin with the character behind ``b``, and that is not whitespace.

The model then sees either words, if Metaspace splits: every word begins with a mark, so it is m(l)'s words, then
m(r)'s; or the whole piece. In that case BPE must have no piece in which a mark follows another character: then no
merge crosses the split point, and merges on both sides do not depend on each other. The mark itself is in the
vocabulary, so no run of unknown characters crosses it either. Unigram would add up the scores of both sides, and
ties might be decided by how sums are rounded: that is not claimed.
"""

import re

from tokenizers import Tokenizer
from tokenizers.models import BPE, Unigram

from hiscore.tokenization.split_rule import SplitRule, state


def mark_split_rule(backend: Tokenizer) -> SplitRule | None:
    """The rule, if the claim above is proved for a tokenizer."""
    found = _mark(backend)
    if found is None:
        return None
    mark, splits, prepends = found
    model = backend.model
    if isinstance(model, BPE):
        if model.dropout or (not splits and not _no_piece_crosses(backend, mark)):
            return None
    elif not (isinstance(model, Unigram) and splits):
        return None
    contents = []
    for token in backend.get_added_tokens_decoder().values():
        if token.lstrip or token.rstrip or token.single_word or not token.content.strip():
            return None
        contents.append(token.content.replace(mark, " "))
    before = rf"[^\s{re.escape(mark)}]"
    if any(re.search(rf"(?<={before}) ", content) for content in contents):
        return None
    if not prepends:
        return SplitRule(re.compile(rf"(?<={before}) "))
    # Tokens that are matched in normalised text have a mark put before them as well.
    firsts = "".join(re.escape(content.lstrip(" ")[:1]) for content in contents)
    lasts = "".join(re.escape(content[-1]) for content in contents)
    point = rf"(?<=[^\s{re.escape(mark)}{lasts}]) (?=[^\s{re.escape(mark)}{firsts}])"
    return SplitRule(re.compile(point), adds_space=True)


def _mark(backend: Tokenizer) -> tuple[str, bool, bool] | None:
    """The mark, whether words are split at it, and whether every piece gets one; None for other pipelines."""
    normalizer, pre_tokenizer = state(backend.normalizer), state(backend.pre_tokenizer)
    match pre_tokenizer:
        case {"type": "Metaspace", "replacement": mark, "split": splits} if not normalizer:
            return mark, splits, False
        case {} if not pre_tokenizer:
            pass
        # All spaces have become marks by then.
        case {"type": "Split", "pattern": {"String": " "}}:
            pass
        case _:
            return None
    match normalizer.get("normalizers", [normalizer]):
        case [{"type": "Replace", "pattern": {"String": " "}, "content": mark}] if len(mark) == 1:
            return mark, False, False
        case [
            {"type": "Prepend", "prepend": first},
            {"type": "Replace", "pattern": {"String": " "}, "content": mark},
        ] if first == mark and len(mark) == 1:
            return mark, False, True
    return None


def _no_piece_crosses(backend: Tokenizer, mark: str) -> bool:
    """Check that BPE over a whole piece never joins the two sides of a split point."""
    model = backend.model
    inner = re.compile(f"[^{re.escape(mark)}]{re.escape(mark)}")
    return (
        not model.ignore_merges
        and not model.continuing_subword_prefix
        and not model.end_of_word_suffix
        and model.token_to_id(mark) is not None
        and not any(inner.search(piece) for piece in backend.get_vocab(with_added_tokens=False))
    )
