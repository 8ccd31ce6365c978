from collections.abc import Iterator, Sequence


def by_characters(texts: Sequence[str], characters: int) -> Iterator[list[str]]:
    """Texts in order, in batches that end as soon as they have so many characters."""
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= characters:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
