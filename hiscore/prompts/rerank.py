"""Rerank requests to token ids: a query and a document in a template, the documents' common beginning shared."""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hiscore.prompts.chat import (
    ChatTemplate,
    PromptError,
    compiled,
    read_chat_template,
    render,
    special_tokens,
)
from hiscore.prompts.families import DEFAULT, FAMILIES, RerankFamily, family_of
from hiscore.prompts.shared_beginning import Prompts, share
from hiscore.prompts.tokenizer import PromptTokenizer
from hiscore.prompts.tracked_text import TrackedText

# Special tokens, and the work for a pair whose texts are empty.
AROUND_A_PAIR = 16


class ClassifierPairs:
    """The prompts of a classifier without a template: pairs of query and document, as for cross-encoders."""

    name = "pair"
    label_ids: Sequence[int] = ()

    def __init__(self, checkpoint: Path) -> None:
        self.tokenizer = PromptTokenizer(checkpoint)

    def ids(
        self, queries: Sequence[str], documents: Sequence[str], instruction: str | None = None
    ) -> Prompts:
        """Encode pairs.

        Raises:
            PromptError: There is no place for an instruction.
            CannotEncode: A text would become a special token, or the library gives up on one.
        """
        if instruction is not None:
            raise PromptError("'instruction' has no place in the prompts of this model: set PROMPT_TEMPLATE")
        return share(self.tokenizer.encode_pairs(queries, documents))

    def characters(
        self, queries: Sequence[str], documents: Sequence[str], instruction: str | None = None
    ) -> int:
        return sum(map(len, queries)) + sum(map(len, documents)) + AROUND_A_PAIR * len(documents)


class RerankPrompts:
    """Makes the prompts of one checkpoint from a template.

    Args:
        template: The name of a family, the path of a Jinja file, or empty: chosen by the checkpoint.
        labels: Two texts; empty: those that the file names, or else the family's.

    Raises:
        ValueError: The template or the labels cannot be used.
    """

    def __init__(
        self, checkpoint: Path, template: str = "", labels: Sequence[str] = (), is_classifier: bool = False
    ) -> None:
        self.family, source = _choose(checkpoint, template)
        self._chat: ChatTemplate | None = read_chat_template(checkpoint) if self.family.in_chat else None
        self._template = compiled(source)
        self._special_tokens = special_tokens(checkpoint)
        sources = [source, self._chat.source] if self._chat else [source]
        self.tokenizer = PromptTokenizer(checkpoint, sources)
        self.label_ids: Sequence[int] = ()
        if not is_classifier:
            self._find_labels(labels)

    @property
    def name(self) -> str:
        return self.family.name

    def _find_labels(self, labels: Sequence[str]) -> None:
        texts = [text for text in labels or self.family.labels if text]
        if self.family.in_chat and not labels:
            texts = [self._answered(text) for text in texts]
        prompt = self.text("a", "b")
        ids, *continued = self.tokenizer.encode([prompt, *(prompt + text for text in texts)])
        for text, longer in zip(texts, continued, strict=True):
            if longer[:-1] != ids:
                raise ValueError(
                    f"the label {text!r} does not add one token to the prompt: set PROMPT_LABELS to two texts "
                    "of one token each, as in PROMPT_LABELS=yes,no"
                )
        self.label_ids = [longer[-1] for longer in continued]
        if len(set(self.label_ids)) < len(texts):
            raise ValueError(f"the labels {texts[0]!r} and {texts[1]!r} are the same token")

    def _answered(self, label: str) -> str:
        """Write a label as the chat template begins an answer with it, in some behind a space."""
        if self._chat is None:
            return f" {label}"  # the answer follows a colon
        question = {"role": "user", "content": "a"}
        with suppress(PromptError):
            prompt = self._chat.render([question])
            answer = {"role": "assistant", "content": label}
            whole = self._chat.render_as_is([question, answer], add_generation_prompt=False)
            before, found, _ = whole.removeprefix(prompt).partition(label)
            if found and whole.startswith(prompt) and not before.strip():
                return before + label
        return label

    def text(self, query: str, document: str, instruction: str | None = None) -> TrackedText:
        """Render the whole prompt for one document."""
        prompt = render(
            self._template,
            query=query,
            document=document,
            instruction=self.family.instruction if instruction is None else instruction,
            **self._special_tokens,
        )
        if self._chat:
            return self._chat.render([{"role": "user", "content": prompt}])
        return prompt + "\nAnswer:" if self.family.in_chat else prompt

    def ids(
        self, queries: Sequence[str], documents: Sequence[str], instruction: str | None = None
    ) -> Prompts:
        """Encode the prompts for all documents, each with its own query.

        Raises:
            PromptError: The template fails.
            CannotEncode: A text would become a special token, or the library gives up on one.
        """
        if not documents:
            return Prompts([], [])
        pairs = zip(queries, documents, strict=True)
        once, ids = self.tokenizer.encode_alike([self.text(*pair, instruction) for pair in pairs])
        rest = share(ids)
        return Prompts(once + rest.query, rest.items)

    def characters(
        self, queries: Sequence[str], documents: Sequence[str], instruction: str | None = None
    ) -> int:
        """Estimate the characters that `ids` renders and encodes."""
        around = len(self.text("", "", instruction))
        return sum(map(len, queries)) + sum(map(len, documents)) + around * len(documents)


def make_prompts(
    checkpoint: Path, template: str, labels: Sequence[str], is_classifier: bool
) -> RerankPrompts | ClassifierPairs:
    """Choose the prompts of a checkpoint; raises ValueError if the template or the labels cannot be used."""
    if is_classifier and not template and family_of(checkpoint) is DEFAULT:
        return ClassifierPairs(checkpoint)
    return RerankPrompts(checkpoint, template, labels, is_classifier)


def _choose(checkpoint: Path, template: str) -> tuple[RerankFamily, str]:
    family = FAMILIES.get(template) or family_of(checkpoint)
    path = Path(template) if template and template not in FAMILIES else family.file
    if not path.is_file():
        raise ValueError(f"PROMPT_TEMPLATE '{template}' is neither a file nor one of {', '.join(FAMILIES)}")
    if path != family.file:
        # A deployment's own file is the whole prompt.
        family = RerankFamily(str(path), _named_labels(path) or family.labels, family.instruction)
    return family, path.read_text()


def _named_labels(template: Path) -> tuple[str, str] | None:
    """Read what a file names as its labels in a comment at its beginning: ``{# labels: ["true", "false"] #}``."""
    named = re.match(r"\{#-?\s*labels:(.*?)-?#\}", template.read_text(), re.DOTALL)
    if named is None:
        return None
    try:
        labels = json.loads(named[1])
    except ValueError:
        labels = None
    match labels:
        case [str(yes), str(no)]:
            return yes, no
    raise ValueError(f"the labels of PROMPT_TEMPLATE '{template}' must be a JSON list of two texts")
