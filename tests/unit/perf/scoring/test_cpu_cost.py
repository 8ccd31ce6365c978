"""Growth of memory is seen; texts are the project's own."""

from perf.scoring import cpu_cost


def memory(rss: list[float], shm: list[float]) -> list[dict[str, float]]:
    rows = zip(rss, shm, strict=True)
    return [{"calls": 100.0 * (i + 1), "rss_mib": a, "shm_mib": b} for i, (a, b) in enumerate(rows)]


def test_growth_is_seen_in_the_second_half() -> None:
    flat = [500.0] * 12
    warm = [300.0, 400.0, 450.0, 480.0, 495.0, 499.0, *[500.0, 504.0] * 3]
    leak = [500 + 10.0 * i for i in range(12)]
    assert cpu_cost.growth(memory(warm, flat)) == []
    assert [line.split(" grew")[0] for line in cpu_cost.growth(memory(leak, flat))] == ["resident memory"]
    assert [line.split(" grew")[0] for line in cpu_cost.growth(memory(flat, leak))] == ["/dev/shm"]


def test_texts_are_the_documents_words() -> None:
    found = cpu_cost.texts()
    assert len(found) >= 5
    query, items = found[0]
    assert len(query.split(" ")) == cpu_cost.QUERY_WORDS
    assert len(items) == cpu_cost.ITEMS
    assert len({item for _, items in found for item in items}) == cpu_cost.ITEMS * len(found)
