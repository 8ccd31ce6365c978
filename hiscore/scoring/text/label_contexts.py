"""Labels of several tokens, encoded as they follow their prompt: what is scored is one text, prompt and label."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hiscore.errors import RequestError
from hiscore.scoring.text.encoding_plan import TextRequest
from hiscore.tokenization.tokenizer import TextTokenizer


@dataclass(frozen=True)
class Place:
    """A label behind an item, and the end of the text before it, from a safe split on."""

    label: int
    item: int
    before: str


def encode_behind(
    tokenizer: TextTokenizer, request: TextRequest, alone: Sequence[Sequence[int]], most_bytes: int
) -> list[list[int]]:
    """Encode each label of a request behind its items.

    Args:
        alone: The tokens of each label by itself; a single one is taken as it is.
    """
    labels = request.labels or ()
    for label, ids in zip(labels, alone, strict=True):
        if not ids:
            raise RequestError(f"label {short(label)} is 0 tokens: a label needs at least one")
    found = [list(ids) for ids in alone]
    if all(len(ids) == 1 for ids in alone) or not request.items:
        return found
    if not tokenizer.adds_affixes:
        raise RequestError(
            "labels of several tokens must be given as 'label_token_ids' with 'label_lengths': this model's "
            "tokenizer does more than to put special tokens around a text"
        )
    if tokenizer.suffix:
        return found  # special tokens stand between the two
    places: list[Place] = []
    texts: dict[str, None] = {}
    work = 0
    for each in _places(tokenizer, request, alone):
        for text in (each.before, each.before + labels[each.label]):
            if text not in texts:
                texts[text] = None
                work += len(text.encode())
        # As soon as possible: many items with many labels are more than memory holds.
        if work > most_bytes:
            raise RequestError(
                f"'labels' must be encoded with the text before them, more than {most_bytes} bytes in all. Send "
                "fewer items, or put a space into their ends"
            )
        places.append(each)
    ids_of = dict(zip(texts, tokenizer.encoder.encode(list(texts)), strict=True))
    first: dict[int, int] = {}
    for each in places:
        before, whole = ids_of[each.before], ids_of[each.before + labels[each.label]]
        name = f"label {short(labels[each.label])}"
        if whole[: len(before)] != before or len(whole) == len(before):
            raise RequestError(
                f"{name} and the text before it, which ends in {short(each.before[-20:])} at item {each.item}, "
                "become other tokens together: begin the label with a space, or give 'label_token_ids'"
            )
        behind = whole[len(before) :]
        if first.setdefault(each.label, each.item) != each.item and found[each.label] != behind:
            raise RequestError(
                f"{name} is other tokens behind item {each.item} than behind item {first[each.label]}: give each "
                "item labels of its own, with 'label_counts'"
            )
        found[each.label] = behind
    return found


def _places(
    tokenizer: TextTokenizer, request: TextRequest, alone: Sequence[Sequence[int]]
) -> Iterator[Place]:
    """List where labels of several tokens stand; items with the same end are listed once."""
    rule, counts = tokenizer.splits, request.label_counts
    owners = [item for item, count in enumerate(counts or ()) for _ in range(count)]
    several = [index for index, ids in enumerate(alone) if len(ids) > 1]
    if request.item_first:
        ends = [_end(tokenizer, item, request.query) for item in request.items]
    else:
        split = rule.last(request.query) if rule else None
        begin = "" if split is None else request.query[:split]
        rest = request.query[len(begin) :]
        ends = [_end(tokenizer, begin, rest + item) for item in request.items]
    if counts is not None:
        return (Place(label, owners[label], ends[owners[label]]) for label in several)
    distinct: dict[str, int] = {}
    for item, end in enumerate(ends):
        distinct.setdefault(end, item)
    return (Place(label, item, end) for end, item in distinct.items() for label in several)


def _end(tokenizer: TextTokenizer, begin: str, rest: str) -> str:
    """The end of two texts from their last safe split on, as it is encoded by itself."""
    rule = tokenizer.splits
    if rule is None:
        return begin + rest
    # The character before a split tells whether it is one.
    text = begin[-1:] + rest
    if (split := rule.last(text)) is not None:
        return rule.second(text[split:])
    text = begin + rest
    split = rule.last(text)
    return text if split is None else rule.second(text[split:])


def short(label: str) -> str:
    return repr(label if len(label) <= 60 else label[:57] + "...")
