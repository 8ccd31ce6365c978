"""Text that knows which of its characters a template wrote itself: special tokens are made of these alone.

Templates test and cut the texts of callers, so they have to get these as they are. What an operation of a template
does not keep track of, counts as a caller's.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import SupportsIndex

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame

CALLERS, OWN = b"c", b"o"
OWN_RUN = re.compile(OWN + b"+")


class TrackedText(str):
    """Text with a byte for each of its characters: `OWN` or `CALLERS`."""

    __slots__ = ("_marks",)
    _marks: bytes

    def __new__(cls, text: object = "", marks: bytes | None = None) -> "TrackedText":
        made = super().__new__(cls, text)
        made._marks = CALLERS * len(made) if marks is None else marks
        return made

    def rename(self, pattern: re.Pattern[str], name: Callable[[re.Match[str]], str]) -> str:
        """Give new names to what a pattern finds in the template's own text; return plain text."""
        parts, at = [], 0
        for run in OWN_RUN.finditer(self._marks):
            parts += [str.__getitem__(self, slice(at, run.start()))]
            parts += [pattern.sub(name, str.__getitem__(self, slice(*run.span())))]
            at = run.end()
        return "".join([*parts, str.__getitem__(self, slice(at, None))])

    def find_callers(self, pattern: re.Pattern[str]) -> set[str]:
        """Find what has no character that the template itself wrote."""
        return {found[0] for found in pattern.finditer(self) if OWN not in self._marks[slice(*found.span())]}

    def ends_with_own(self, text: str) -> bool:
        """Check that the template itself wrote a text at the end."""
        return self.endswith(text) and self._marks.endswith(OWN * len(text))

    def __str__(self) -> "TrackedText":
        return self

    def __add__(self, other: str) -> "TrackedText":
        return joined([self, other]) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> "TrackedText":
        return joined([other, self]) if isinstance(other, str) else NotImplemented

    def __getitem__(self, key: SupportsIndex | slice) -> "TrackedText":
        if not isinstance(key, slice):
            at = range(len(self))[key]
            key = slice(at, at + 1)
        return TrackedText(super().__getitem__(key), self._marks[key])

    def strip(self, chars: str | None = None, /) -> "TrackedText":
        return self._located([super().strip(chars)])[0]

    def lstrip(self, chars: str | None = None, /) -> "TrackedText":
        return self._located([super().lstrip(chars)])[0]

    def rstrip(self, chars: str | None = None, /) -> "TrackedText":
        return self._located([super().rstrip(chars)])[0]

    def split(self, sep: str | None = None, maxsplit: int = -1) -> "list[TrackedText]":  # type: ignore[override]
        return self._located(super().split(sep, maxsplit), len(sep or ""))

    def replace(self, old: str, new: str, count: int = -1, /) -> str:  # type: ignore[override]
        return joined(self.split(old, count), new) if old else super().replace(old, new, count)

    def join(self, texts: Iterable[str], /) -> "TrackedText":
        return joined(texts, self)

    def _located(self, parts: Sequence[str], gap: int = 0) -> "list[TrackedText]":
        """Track parts of this text, in their order; between two are `gap` characters, or ones that no part has."""
        found: list[TrackedText] = []
        at = 0
        for part in parts:
            start = self.find(part, at)
            found.append(self[start : start + len(part)])
            at = start + len(part) + gap
        return found


def joined(parts: Iterable[object], between: str = "") -> TrackedText:
    texts = [part if isinstance(part, str) else str(part) for part in parts]
    return TrackedText(str.join(between, texts), _marks(between).join(map(_marks, texts)))


def _marks(text: str) -> bytes:
    return text._marks if isinstance(text, TrackedText) else CALLERS * len(text)


@lru_cache(4_096)
def own(text: str) -> TrackedText:
    """Text of a template, never of a caller."""
    return TrackedText(text, OWN * len(text))


class TrackingGenerator(CodeGenerator):
    """Compiles templates that keep track of their own texts, by an environment's `own` and `concat` (`joined`)."""

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:
        if isinstance(node.value, str):
            self.write(f"environment.own({node.value!r})")
        else:
            super().visit_Const(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concat((")
        for each in node.nodes:
            self.visit(each, frame)
            self.write(", ")
        self.write("))")

    def _output_const_repr(self, group: Iterable[object]) -> str:
        return f"environment.own({''.join(map(str, group))!r})"
