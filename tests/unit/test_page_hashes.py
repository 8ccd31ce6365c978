"""Hashes of pages: over everything before, the same however the tokens come, and apart by salt."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hiscore.page_hashes import PageHashes


def hashes(*parts: list[int], page: int = 4, salt: bytes = b"") -> PageHashes:
    made = PageHashes(page, salt)
    for part in parts:
        made.extend(np.array(part, np.int32))
    return made


@given(st.lists(st.integers(0, 9), max_size=30), st.integers(0, 30))
def test_how_the_tokens_come_makes_no_difference(tokens: list[int], cut: int) -> None:
    whole, parts = hashes(tokens), hashes(tokens[:cut], tokens[cut:])
    assert (whole.pages, whole.whole(), whole.tokens) == (parts.pages, parts.whole(), parts.tokens)
    assert len(whole.pages) == len(tokens) // 4


def test_a_page_s_hash_is_of_all_tokens_up_to_its_end() -> None:
    first, second = hashes([1, 2, 3, 4, 5, 6, 7, 8]), hashes([0, 2, 3, 4, 5, 6, 7, 8])
    assert len({*first.pages, *second.pages}) == 4
    assert hashes([1, 2, 3, 4, 5, 6, 7, 9]).pages[0] == first.pages[0]


def test_a_salt_keeps_apart() -> None:
    tokens = [1, 2, 3, 4]
    assert len({hashes(tokens, salt=salt).pages[0] for salt in (b"", b"a", b"b", b"a" * 100)}) == 4
