"""A plan of a model's memory, made before any of it is allocated."""

from dataclasses import dataclass

GIB = 2**30


class MemoryExceeded(ValueError):
    """A plan does not fit; the message gives the numbers and names the settings."""


@dataclass(frozen=True)
class MemoryLine:
    """One use of memory, decided by `settings`, most effective first.

    Models that name the same thing as `shared` have the memory together; empty: it is this model's own.
    """

    name: str
    bytes: int
    settings: tuple[str, ...] = ()
    shared: str = ""


@dataclass(frozen=True)
class MemoryPlan:
    """Everything that a model takes in one place: a device, such as ``cuda:0``, or ``host``."""

    place: str
    lines: tuple[MemoryLine, ...]

    @property
    def total(self) -> int:
        return sum(line.bytes for line in self.lines)

    def table(self, left: int) -> str:
        """Format the plan as lines of text, above the bytes `left` for it."""
        rows = [(line.name, line.bytes, ", ".join(line.settings)) for line in self.lines if line.bytes]
        rows += [("together", self.total, ""), ("available", left, "")]
        width = max(len(name) for name, _, _ in rows)
        text = [f"  {name:<{width}} {gib(size):>11}  {settings}".rstrip() for name, size, settings in rows]
        return "\n".join([f"memory on {self.place}:", *text])

    def check(self, left: int) -> None:
        """Raise `MemoryExceeded` if the plan needs more than the bytes `left` for it."""
        if self.total <= left:
            return
        uses = sorted((line for line in self.lines if line.bytes), key=lambda line: -line.bytes)
        parts = ", ".join(f"{line.name} {gib(line.bytes)}" for line in uses)
        settings = list(dict.fromkeys(name for line in uses for name in line.settings))
        raise MemoryExceeded(
            f"{self.place} has {gib(left)} left, {gib(self.total)} are needed: {parts}. "
            f"Less is needed with a lower {' or '.join(settings)}"
        )


def gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB" if size >= GIB / 10 else f"{size / 2**20:.1f} MiB"
