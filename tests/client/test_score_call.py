import math

import pytest

from hiscore_client import ChunkLimits, InvalidRequest
from hiscore_client.config import ClientConfig, make_config
from hiscore_client.score_call import ScoreOptions, ids_call, text_call


@pytest.mark.parametrize("temperature", [math.nan, math.inf, 0.0, -1.0])
def test_a_temperature_that_json_or_the_server_cannot_take_is_refused(temperature: float) -> None:
    with pytest.raises(InvalidRequest, match="'temperature'"):
        ScoreOptions(apply_softmax=True, temperature=temperature).parameters()


def config(**limits: int) -> ClientConfig:
    return make_config("host:1", ChunkLimits(**limits), None, 4, None)


@pytest.mark.parametrize(
    ("query", "labels", "chunks"),
    [
        # 10 bytes: the query, the labels and the items, as UTF-8.
        ("qq", None, [slice(0, 3)]),
        ("qqq", None, [slice(0, 2), slice(2, 3)]),
        ("q", ["x", "y"], [slice(0, 2), slice(2, 3)]),
        ("", ["ä"], [slice(0, 3)]),
        ("q", ["ä"], [slice(0, 2), slice(2, 3)]),
    ],
)
def test_bytes_of_a_request_include_query_and_labels(
    query: str, labels: list[str] | None, chunks: list[slice]
) -> None:
    options = ScoreOptions()
    call = text_call(config(max_bytes=10), query, ["aaa", "bbb", "cc"], labels, None, options, None, "id")
    assert call.chunks == chunks


@pytest.mark.parametrize("limit", range(8, 13))
def test_tokens_of_a_request_include_its_delimiters(limit: int) -> None:
    items = [[3, 3, 3], [4], [5, 5]]
    call = ids_call(config(max_tokens=limit), [1, 2], items, [7], ScoreOptions(), None, "id")
    sizes = [call.inputs(chunk)[0].shape[1] for chunk in call.chunks]
    assert max(sizes) <= limit
    # As many as fit: 2 + 1 for the query, one more for each item.
    assert len(sizes) == {8: 2, 9: 2, 10: 2, 11: 2, 12: 1}[limit]
