"""How much a body may hold: values are counted before any of them is made."""

from functools import partial

import numpy as np

from hiscore.api.encoding import off_loop
from hiscore.api.errors import bad_request

MAX_VALUES = 2**19
"""Texts, keys, lists and objects of one body. Numbers take no memory to speak of; a route bounds them itself."""
# Bytes looked at together; what they are compared to is several times as large.
PIECE_BYTES = 2**20
QUOTE, LIST, OBJECT = b'"[{'


async def check_values(body: bytes) -> None:
    """Refuse a body that holds millions of values: making them would keep all callers waiting.

    Raises:
        ApiError: It does.
    """
    # Each has two bytes at least.
    if len(body) < 2 * MAX_VALUES or _at_most(body) <= MAX_VALUES:
        return
    count = await off_loop(partial(count_values, body), len(body))
    if count > MAX_VALUES:
        raise bad_request(f"the body holds {count} texts, lists and objects: at most {MAX_VALUES}")


def count_values(body: bytes) -> int:
    """How many texts, keys, lists and objects a body of valid JSON has."""
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"")
    count = quotes = 0
    for start in range(0, len(plain), PIECE_BYTES):
        piece = np.frombuffer(plain[start : start + PIECE_BYTES], np.uint8)
        quotes_before = np.cumsum(piece == QUOTE, dtype=np.int64) + quotes
        outside = quotes_before % 2 == 0
        count += int(np.count_nonzero(((piece == LIST) | (piece == OBJECT)) & outside))
        quotes = int(quotes_before[-1])
    return count + quotes // 2


def _at_most(body: bytes) -> int:
    """An upper bound at a fraction of the cost: what stands in texts is counted, too."""
    return body.count(b'"') // 2 + body.count(b"[") + body.count(b"{")
