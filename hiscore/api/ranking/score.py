"""``/v1/score`` in SGLang's body: probabilities of label tokens after a query and each of its items."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta

from hiscore.api.http.errors import bad_request
from hiscore.api.models import Models, rows
from hiscore.api.wire import Count, ModelCall, Request, TokenId, Usage, usage
from hiscore.prompts.token_limits import TokenLimits, TooMuchText
from hiscore.settings import Limits

OPTIONS = ("apply_softmax", "temperature", "raw_logits", "label_lengths", "log_scores", "normalize")


class ScoreBody(Request):
    """SGLang's ``ScoringRequest``; `labels` and, from `label_counts` on, what is not its own are ours.

    A list in `label_token_ids` has an item's own labels, as `label_counts` says for those that are not in lists.
    """

    query: str | list[TokenId]
    items: str | list[str | list[TokenId]]
    label_token_ids: list[TokenId | list[TokenId]] | None = None
    labels: list[str] | None = None
    apply_softmax: bool = False
    item_first: bool = False
    temperature: Annotated[float, Meta(gt=0)] = 1.0
    label_counts: list[Count] | None = None
    raw_logits: bool = False
    label_lengths: list[Count] | None = None
    log_scores: bool = False
    normalize: Literal["none", "tokens", "bytes"] = "none"
    item_adapters: list[str] | None = None
    return_token_logprobs: Literal[False] = False
    return_pooled_hidden_states: Literal[False] = False


class ScoreResponse(msgspec.Struct, kw_only=True):
    scores: list[list[float]]
    model: str
    usage: Usage
    object: str = "scoring"


async def score(models: Models, limits: TokenLimits, request: ScoreBody, call: ModelCall) -> ScoreResponse:
    """Score the items of a request. Too many token ids are refused before they are laid out for the models."""
    items = [request.items] if isinstance(request.items, str) else request.items
    label_ids, counts = _labels(request, len(items))
    options: dict[str, Any] = {name: getattr(request, name) for name in OPTIONS}
    options |= {"label_counts": counts, "item_adapters": request.item_adapters}
    options |= {"request_id": call.id, "adapter": call.adapter}
    if isinstance(request.query, str):
        result = await models.score_text(
            request.query,
            _texts(items),
            labels=request.labels,
            label_token_ids=label_ids,
            item_first=request.item_first,
            **options,
        )
    else:
        if request.labels is not None:
            raise bad_request("'labels' needs a query in text: give 'label_token_ids'", "labels")
        query, item_ids = request.query, _ids(items)
        try:
            limits.check_ids(len(query), list(map(len, item_ids)), shared=not request.item_first)
        except TooMuchText as error:
            raise bad_request(str(error), "items") from None
        if request.item_first:
            query, item_ids = [], [[*item, *query] for item in item_ids]
        result = await models.score_ids(query, item_ids, label_ids or (), **options)
    scores = rows(result.scores)
    if counts is not None and request.label_counts is None:
        scores = [row[:count] for row, count in zip(scores, counts, strict=True)]
    return ScoreResponse(
        scores=scores, model=call.model, usage=usage(result.usage.prompt_tokens, result.usage.cached_tokens)
    )


def _labels(request: ScoreBody, items: int) -> tuple[list[int] | None, list[int] | None]:
    """Return the ids of all labels in turn and how many are each item's own, or None."""
    ids, counts = request.label_token_ids, request.label_counts
    if lists := [each for each in ids or () if isinstance(each, list)]:
        others = counts is not None or request.label_lengths is not None
        if others or len(lists) != len(ids or ()) or len(lists) != items or not all(lists):
            raise bad_request(
                f"'label_token_ids' must hold ids, or a list of at least one for each of {items} items "
                "without 'label_counts' and 'label_lengths'",
                "label_token_ids",
            )
        ids, counts = [label for each in lists for label in each], list(map(len, lists))
    of_each = ids if request.label_lengths is None else request.label_lengths
    labels, most, whose = len(of_each or ()), Limits.max_labels, "in one call"
    if counts is not None:
        most, whose = Limits.max_labels * items, f"for {items} items"
    if labels > most:
        raise bad_request(
            f"'label_token_ids' holds {labels} labels: at most {most} {whose}", "label_token_ids"
        )
    return cast("list[int] | None", ids), counts


def _texts(items: Sequence[Any]) -> list[str]:
    if not all(isinstance(item, str) for item in items):
        raise bad_request("'items' must be text, since 'query' is: text and token ids do not mix", "items")
    return cast("list[str]", items)


def _ids(items: Sequence[Any]) -> list[list[int]]:
    if not all(isinstance(item, list) for item in items):
        raise bad_request("'items' must be lists of token ids, since 'query' is one", "items")
    return cast("list[list[int]]", items)
