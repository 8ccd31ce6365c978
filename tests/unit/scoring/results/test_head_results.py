import numpy as np
import pytest
import torch

from hiscore.layers import lm_head
from hiscore.layers.lm_head import LMHead
from hiscore.scoring.requests.options import ScoreOptions
from hiscore.scoring.requests.request import MultiItemPrompt, ScoreRequest
from tests.support.heads import results_of

HIDDEN, VOCABULARY = 8, 30


def request(
    items: int, *labels: int, softmax: bool = False, counts: tuple[int, ...] | None = None
) -> ScoreRequest:
    """counts: of labels that each item has of its own."""
    prompt = MultiItemPrompt(np.zeros(items + 1, np.int32), 1, np.ones(items, np.int32))
    options = ScoreOptions(apply_softmax=softmax, label_counts=counts)
    return ScoreRequest.of(prompt, np.array(labels, np.int32), options)


def labels_of(asked: ScoreRequest) -> list[np.ndarray]:
    """The labels of each item."""
    if asked.label_counts is None:
        return [asked.labels] * len(asked.prompt.item_lengths)
    return np.split(asked.labels, np.cumsum(asked.label_counts)[:-1])


@pytest.fixture
def head() -> LMHead:
    return LMHead(torch.randn(VOCABULARY, HIDDEN, generator=torch.Generator().manual_seed(1)), None)


BATCHES = {
    "one": [request(3, 1, 2)],
    "alike": [request(3, 1, 2), request(1, 1, 2)],
    "interleaved": [request(2, 1), request(1, 7, 8), request(2, 1), request(0, 7, 8), request(3, 7, 8)],
    "softmax among them": [request(2, 1, 5), request(2, 1, 5, softmax=True), request(3, 1, 5), request(1, 9)],
    "softmax alone": [request(2, 3, softmax=True), request(1, 3, softmax=True)],
    "nothing": [request(0, 3)],
    "labels of items' own": [
        request(3, 1, 2, 5, 3, 4, softmax=True, counts=(2, 1, 2)),
        request(4, 5, 6, softmax=True),
        request(2, 7, 8, 9, 7, counts=(3, 1)),
        request(1, 5, 6, softmax=True),
        request(2, 5, 6),
        request(2, *range(9), 3, counts=(9, 1)),
        request(1, 8, counts=(1,)),
    ],
}


@pytest.mark.parametrize("batch", BATCHES)
def test_each_request_gets_its_own_rows(batch: str, head: LMHead, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lm_head, "ROW_SLICE", 2)
    requests = BATCHES[batch]
    items = [len(each.prompt.item_lengths) for each in requests]
    hidden = torch.randn(sum(items), HIDDEN, generator=torch.Generator().manual_seed(2))
    logits = head.logits(hidden)
    results = results_of(head, hidden, requests)
    seen = []
    for result in results:
        values = result.values.flatten()
        for index in result.members:
            asked, start = requests[index], sum(items[:index])
            of_items = logits[start : start + items[index]]
            of_items = of_items if asked.options.apply_softmax else of_items.softmax(1)
            each = [row[labels] for row, labels in zip(of_items, labels_of(asked), strict=True)]
            expected = torch.cat([torch.empty(0), *each])
            torch.testing.assert_close(values[: len(expected)], expected, atol=1e-5, rtol=1e-5)
            values = values[len(expected) :]
        assert len(values) == 0
        seen += result.members
    assert sorted(seen) == list(range(len(requests)))


def test_requests_of_the_same_kind_share_a_result(head: LMHead) -> None:
    requests = BATCHES["interleaved"]
    members = [result.members for result in results_of(head, torch.zeros(8, HIDDEN), requests)]
    assert members == [[0, 2], [1, 3, 4]]
