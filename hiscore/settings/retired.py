"""Settings that there are no more, and what to do in their place."""

from collections.abc import Mapping

CONSTANT = "it is a constant now"
RETIRED = {
    "API_BODY_TIMEOUT_S": CONSTANT,
    "API_DOCS": "the routes are described in /openapi.json",
    "API_HEADER_TIMEOUT_S": CONSTANT,
    "API_MAX_CONNECTIONS": CONSTANT,
    "API_MAX_BODY_BYTES": "it follows MAX_CALL_TOKENS",
    "API_TIMEOUT_S": "a request may take ten minutes beside what it may wait (QUEUE_TIMEOUT_S)",
    "BACKUP": "new keys and values are always offloaded by the ring",
    "CANARY_MISSES": CONSTANT,
    "CANARY_TIMEOUT_S": "a canary has twice CANARY_SECONDS to answer",
    "MAX_QUEUE_TOKENS": "it is four times MAX_CALL_TOKENS",
    "MAX_TEXT_BYTES": "it follows MAX_CALL_TOKENS",
    "MODEL_REPOSITORY": "set HISCORE_MODEL_REPOSITORY",
    "PREFILL_ATTENTION": "FlashInfer is used where it can be",
    "QUEST_DENSE_LAYERS": CONSTANT,
    "RESTART_WINDOW_S": CONSTANT,
    "SCORER_CORES": "it made nothing faster",
    "SERVER_MEMORY_BYTES": CONSTANT,
    "SHM_BYTES": CONSTANT,
    "SPIN": "docs/operations.md has a script that keeps cores awake",
    "WATCHDOG": "set MAX_RESTARTS=off for a server that exits",
}
AS_BEFORE = {("BACKUP", "ring"), ("PREFILL_ATTENTION", "auto"), ("WATCHDOG", "restart")}
"""Values that ask for what there is."""


def retired(given: Mapping[str, str]) -> dict[str, str]:
    """Find the settings among some variables that there are no more; gives the advice for each."""
    return {
        name: advice
        for name, advice in RETIRED.items()
        if given.get(name) and (name, given[name]) not in AS_BEFORE
    }
