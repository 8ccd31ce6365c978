"""A small valid body of each wire format of the HTTP API's POST routes."""

from typing import Any

LABELS = [5, 6]
RERANK = {"query": "a fruit", "documents": ["an apple", "a hammer"]}
PAIRS = {"text_1": "a fruit", "text_2": ["an apple", "a hammer"]}

BODIES: dict[str, list[dict[str, Any]]] = {
    "/v1/score": [{"query": "a fruit", "items": ["an apple"], "label_token_ids": LABELS}, PAIRS],
    "/score": [PAIRS],
    "/v1/rerank": [RERANK],
    "/v2/rerank": [RERANK],
    "/rerank": [{"query": "a fruit", "texts": ["an apple", "a hammer"]}, RERANK],
    "/v1/ranking": [{"query": {"text": "a fruit"}, "passages": [{"text": "an apple"}, {"text": "a hammer"}]}],
}
"""By path. A new route gets its row here, and with it all the tests of bad input."""
