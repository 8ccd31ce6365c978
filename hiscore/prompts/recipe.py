"""The recipe by which a checkpoint's queries and documents are scored: its parts, and where each was found."""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Source: TypeAlias = Literal["setting", "name", "files", "default", "guess"]
"""Places where a part is found, the first that says it; nothing says a default or a guess."""


@dataclass(frozen=True)
class RecipePart:
    value: str
    source: Source
    file: str = ""

    def __str__(self) -> str:
        return f"{self.value} ({self.file or self.source})"


@dataclass(frozen=True)
class Recipe:
    """A template and what is read behind it.

    Attributes:
        template: A built-in template's name, a file, or `pair`: query and document as the tokenizer joins them.
        readout: The labels, the label of a classifier, or the modules of a head.
        activation: The function that makes a score of a logit; `Softmax`: over all labels of a classifier.
        length: Tokens to which a request may have its prompts cut.
        instruction: The default of a request's instruction.
        column: Index of the classifier's label.
        longest: The number in `length`; None: the context's.
    """

    template: RecipePart
    readout: RecipePart
    activation: RecipePart = field(default=RecipePart("Sigmoid", "default"))
    length: RecipePart = field(default=RecipePart("the context", "default"))
    instruction: RecipePart = field(default=RecipePart("none", "default"))
    column: int = 0
    longest: int | None = None

    def __str__(self) -> str:
        parts = {"activation": self.activation, "length": self.length, "instruction": self.instruction}
        others = [f", {name} {part}" for name, part in parts.items() if part.source != "default"]
        return f"template {self.template}, scored by {self.readout}" + "".join(others)

    def table(self) -> str:
        names = ("template", "readout", "activation", "length", "instruction")
        return "\n".join(f"{name:12}{getattr(self, name)}" for name in names)

    @property
    def warnings(self) -> list[str]:
        if self.template.source == "guess":
            return [
                f"the template {self.template.value} is a guess: neither the model's name nor its files say "
                "how it ranks (PROMPT_TEMPLATE)"
            ]
        if self.readout.source == "guess":
            return [f"the labels {self.readout.value} are a guess (PROMPT_LABELS)"]
        return []
