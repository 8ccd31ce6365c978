"""Bad prompts and labels are refused with a message that names field, value and bound."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hiscore.errors import RequestError
from hiscore.models.support import CheckpointFacts
from hiscore.scoring.requests import repeated_labels
from hiscore.scoring.requests.layout import unpack
from hiscore.scoring.requests.repeated_labels import check_repeated
from hiscore.scoring.requests.request import MultiItemPrompt
from hiscore.scoring.requests.validation import check_labels, check_prompt
from hiscore.scoring.text.encoding_plan import TextRequest
from hiscore.scoring.text.labels import check_label_inputs
from hiscore.settings import Limits

FACTS = CheckpointFacts(vocab_size=100, context_length=8, is_classifier=False)
CLASSIFIER = CheckpointFacts(vocab_size=100, context_length=8, is_classifier=True)
LIMITS = Limits(max_items=3, max_call_tokens=20)


@pytest.fixture(autouse=True)
def few_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Limits, "max_labels", 4)


def int32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def checked(ids: np.ndarray, delimiters: np.ndarray) -> MultiItemPrompt:
    prompt = unpack(ids, delimiters)
    check_prompt(prompt, LIMITS, FACTS)
    return prompt


@pytest.mark.parametrize(
    ("ids", "delimiters", "says"),
    [
        (int32(1, 2), int32(), "'delimiter_indices' is empty"),
        (int32(1, 0, 2, 0), int32(3, 1), "must ascend strictly: 3 is followed by 1 at index 1"),
        (int32(1, 0, 2, 0), int32(1, 1, 3), "must ascend strictly: 1 is followed by 1"),
        (int32(1, 0, 2, 0), int32(1, 4), "holds 4: out of range for 'input_ids' of length 4"),
        (int32(1, 0, 2, 0), int32(-1, 3), "holds -1: out of range"),
        (int32(1, 0, 2, 0), int32(1, 2), "must end the sequence: the last is 2, 'input_ids' ends at 3"),
        (int32(), int32(0), "out of range for 'input_ids' of length 0"),
        (int32(100, 0, 2, 0), int32(1, 3), "'input_ids' holds 100: ids of this model are 0 to 99"),
        (int32(1, 0, -1, 0), int32(1, 3), "'input_ids' holds -1"),
        (int32(*[1] * 5, 0, *[1] * 4, 0), int32(5, 10), "have 9 tokens together: at most 8 (MAX_CONTEXT)"),
        (int32(0, 1, 0, 0), int32(0, 2, 3), "the query and item 1 are both empty"),
        (int32(1, 0, 0, 0, 0, 0), int32(1, 2, 3, 4, 5), "lays out 4 items: at most 3"),
        (int32(*([1] * 6 + [0]) * 4), int32(6, 13, 20, 27), "holds 24 tokens: at most 20"),
    ],
)
def test_a_bad_layout_is_refused(ids: np.ndarray, delimiters: np.ndarray, says: str) -> None:
    with pytest.raises(RequestError) as error:
        checked(ids, delimiters)
    assert says in error.value.message


@pytest.mark.parametrize(
    ("query", "items"),
    [
        ([1] * 5, [[99] * 3, [0] * 3]),  # the longest context, the lowest and the highest id
        ([1], [[2]] * 3),  # as many items as allowed
        ([1] * 2, [[1] * 6] * 3),  # as many tokens as allowed
        ([], [[1]]),
        ([1], [[]]),
        ([], []),
    ],
)
def test_a_prompt_at_its_limits_is_accepted(query: list[int], items: list[list[int]]) -> None:
    check_prompt(MultiItemPrompt.of(query, items), LIMITS, FACTS)


def test_as_many_labels_as_allowed_are_accepted() -> None:
    assert check_labels(int32(1, 2, 3, 4), LIMITS, FACTS).tolist() == [1, 2, 3, 4]
    assert check_labels(int32(0, 99), LIMITS, FACTS).tolist() == [0, 99]
    check_label_inputs(TextRequest("", [], [*"abcd"]), LIMITS, FACTS)
    with pytest.raises(RequestError, match="'labels' holds 5 labels: at most 4"):
        check_label_inputs(TextRequest("", [], [*"abcde"]), LIMITS, FACTS)


@pytest.mark.parametrize(
    ("labels", "facts", "says"),
    [
        (int32(), FACTS, "needs at least one label"),
        (int32(5, 100), FACTS, "holds 100"),
        (int32(5, -3), FACTS, "holds -3"),
        (int32(5, 6, 5), FACTS, "holds 5 more than once"),
        (int32(1, 2, 3, 4, 5), FACTS, "holds 5 labels: at most 4"),
        (int32(5), CLASSIFIER, "must be empty: this model is a classifier"),
    ],
)
def test_bad_labels_are_refused(labels: np.ndarray, facts: CheckpointFacts, says: str) -> None:
    with pytest.raises(RequestError) as error:
        check_labels(labels, LIMITS, facts)
    assert says in error.value.message


@given(
    items=st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=8), min_size=1, max_size=8),
    slots=st.sampled_from([1, 2, 2**20]),
)
def test_labels_given_twice_are_found_however_they_share_slots(items: list[list[int]], slots: int) -> None:
    counts = np.array([len(own) for own in items])
    ids = int32(*(label for own in items for label in own))
    twice = any(len(set(own)) < len(own) for own in items)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeated_labels, "MOST_SLOTS", slots)
        if not twice:
            check_repeated(ids, counts)
            return
        with pytest.raises(RequestError, match="more than once for item") as caught:
            check_repeated(ids, counts)
    words = caught.value.message.split()
    label, item = int(words[words.index("holds") + 1]), int(words[-1])
    assert items[item].count(label) > 1


@pytest.mark.parametrize("count", [1, repeated_labels.FEW, repeated_labels.FEW + 1, 1_000])
def test_shared_labels_given_twice_are_found_among_few_and_many(count: int) -> None:
    labels = np.arange(count, dtype=np.int32)
    check_repeated(labels)
    for first in {0, count // 2, count - 1}:
        with pytest.raises(RequestError, match=f"holds {first} more than once"):
            check_repeated(np.append(labels, np.int32(first)))
