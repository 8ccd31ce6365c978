"""The buffer of one stream, layer and head under LRU, in plain Python."""


class LruModel:
    """Places 0..n-1; each holds a page or nothing, and when it was last used."""

    def __init__(self, places: int, seeds: list[int], length: int) -> None:
        self.held: list[int | None] = [*seeds, *[None] * (places - len(seeds))]
        self.used = [2 * (length - 1)] * len(seeds) + [-1] * (places - len(seeds))

    def step(self, pages: list[int], position: int) -> int:
        """Make these pages (none of the ring's) resident; returns how many were not."""
        hits = [place for place, page in enumerate(self.held) if page in pages]
        missing = sorted(set(pages) - set(self.held))
        others = [place for place in range(len(self.held)) if place not in hits]
        others.sort(key=lambda place: (self.used[place], place))
        for page, place in zip(missing, sorted(others[: len(missing)]), strict=True):
            self.held[place], self.used[place] = page, 2 * position
        for place in hits:
            self.used[place] = 2 * position + 1
        return len(missing)
