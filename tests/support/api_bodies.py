"""A small valid body of each wire format of the HTTP API's POST routes."""

from typing import Any

LABELS = [5, 6]
RERANK = {"query": "a fruit", "documents": ["an apple", "a hammer"]}
PAIRS = {"text_1": "a fruit", "text_2": ["an apple", "a hammer"]}
CHOICES = [{"value": "a fruit"}, {"value": True, "description": "a tool"}]
LEVELS = [{"label": "not ripe"}, {"label": "ripe"}]

MESSAGES = [{"role": "user", "content": "a fruit"}]

BODIES: dict[str, list[dict[str, Any]]] = {
    "/v1/score": [{"query": "a fruit", "items": ["an apple"], "label_token_ids": LABELS}, PAIRS],
    "/score": [PAIRS],
    "/v1/rerank": [RERANK],
    "/v2/rerank": [RERANK],
    "/rerank": [{"query": "a fruit", "texts": ["an apple", "a hammer"]}, RERANK],
    "/v1/decisions": [
        {"input": "an apple", "questions": [{"type": "choice", "instructions": "What?", "choices": CHOICES}]},
        {
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "an apple"}]}],
            "questions": [
                {"type": "predicate", "instructions": "It is a fruit.", "name": "fruit"},
                {"type": "score", "instructions": "How ripe?", "levels": LEVELS},
            ],
        },
    ],
    "/v1/systemone": [
        {
            "state": {"item": "an apple"},
            "questions": {
                "fruit": {"type": "noul", "instructions": "Is it a fruit?", "criteria": {"true": "a fruit"}},
                "kind": {"type": "choice", "criteria": {"a fruit": "it grows", "a tool": "of steel"}},
                "ripe": {"type": "score", "instructions": "How ripe?", "criteria": ["not", "very"]},
            },
        }
    ],
    "/v1/ranking": [{"query": {"text": "a fruit"}, "passages": [{"text": "an apple"}, {"text": "a hammer"}]}],
    "/v1/completions": [{"prompt": "a fruit"}],
    "/tokenize": [{"prompt": "a fruit"}, {"messages": MESSAGES}],
    "/detokenize": [{"tokens": [5, 6], "model": "any"}],
    "/v1/chat/completions": [{"messages": MESSAGES}],
}
"""By path. A new route gets its row here, and with it all the tests of bad input."""
CASES = [(path, body) for path, bodies in BODIES.items() for body in bodies]


def posted(description: Any) -> list[str]:
    """The routes that take a body."""
    return [path for path, methods in description["paths"].items() if "post" in methods]
