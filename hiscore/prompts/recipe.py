"""The recipe by which a checkpoint's queries and documents are scored: its parts, and where each was found."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Source: TypeAlias = Literal["setting", "name", "files", "guess"]
"""Places where a part is found, the first that says it; nothing says a guess."""


@dataclass(frozen=True)
class RecipePart:
    """A part of a recipe."""

    value: str
    source: Source

    def __str__(self) -> str:
        return f"{self.value} ({self.source})"


@dataclass(frozen=True)
class Recipe:
    """A template and what is read behind it.

    Attributes:
        template: A built-in template's name, a file, or `pair`: query and document as the tokenizer joins them.
        readout: The labels, or the label of a classifier.
        column: Index of the classifier's label.
        remarks: What else callers should know.
    """

    template: RecipePart
    readout: RecipePart
    column: int = 0
    remarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"template {self.template}, scored by {self.readout}"

    @property
    def warnings(self) -> list[str]:
        """Sentences for callers: a part that is a guess, and the remarks."""
        if self.template.source == "guess":
            guess = [
                f"the template {self.template.value} is a guess: neither the model's name nor its files say "
                "how it ranks (PROMPT_TEMPLATE)"
            ]
        elif self.readout.source == "guess":
            guess = [f"the labels {self.readout.value} are a guess (PROMPT_LABELS)"]
        else:
            guess = []
        return [*guess, *self.remarks]
