"""The buffer of one sequence, layer and head under LRU, in plain Python."""


class LruModel:
    """Entries 0..n-1; each holds a page or nothing, and when it was last used."""

    def __init__(self, entries: int, seeds: list[int], length: int) -> None:
        self.pages: list[int | None] = [*seeds, *[None] * (entries - len(seeds))]
        self.last_use = [2 * (length - 1)] * len(seeds) + [-1] * (entries - len(seeds))

    def step(self, pages: list[int], position: int) -> int:
        """Make these pages (none of the ring's) resident; returns how many were not."""
        hits = [entry for entry, page in enumerate(self.pages) if page in pages]
        missing = sorted(set(pages) - set(self.pages))
        others = [entry for entry in range(len(self.pages)) if entry not in hits]
        others.sort(key=lambda entry: (self.last_use[entry], entry))
        for page, entry in zip(missing, sorted(others[: len(missing)]), strict=True):
            self.pages[entry], self.last_use[entry] = page, 2 * position
        for entry in hits:
            self.last_use[entry] = 2 * position + 1
        return len(missing)
